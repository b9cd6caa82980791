//! The interleavings of the tripwire: its fast path beside verdicts, steps and evictions.
//!
//! | in | weakened | what fails |
//! | --- | --- | --- |
//! | `SharedMachine::update_unmirrored` | does not look whether the machine is retired | `a_turn_is_not_spent_in_an_evicted_fence` |
//! | `Fence::take_over` | what was counted is not taken over | `an_error_beside_a_fast_call_is_not_lost` |
//! | `Fence::try_acquire_fast` | admits while half-open | `one_of_three_callers_is_the_tripwires_probe` |
//! | `Fence::try_acquire_fast` | spends the last turn | `the_packed_state_tells_that_no_turn_is_left` |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use loom::thread;

use super::digest::Digest;
use super::fence::{CallFacts, Denied, Fence, Rules};
use super::gate::{self, FenceRef, Sessions};
use super::permit::CallPermit;
use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::{Environment, MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::State;
use crate::vocabulary::{Failure, Outcome};

/// Every model and its name.
pub const ALL: &[(&str, fn())] = &[
    (
        "a_turn_budget_is_never_exceeded_by_one",
        a_turn_budget_is_never_exceeded_by_one,
    ),
    (
        "the_packed_state_tells_that_no_turn_is_left",
        the_packed_state_tells_that_no_turn_is_left,
    ),
    (
        "an_error_beside_a_fast_call_is_not_lost",
        an_error_beside_a_fast_call_is_not_lost,
    ),
    (
        "one_of_three_callers_is_the_tripwires_probe",
        one_of_three_callers_is_the_tripwires_probe,
    ),
    (
        "a_turn_is_not_spent_in_an_evicted_fence",
        a_turn_is_not_spent_in_an_evicted_fence,
    ),
];

fn explore(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    // This makes the hash keys of the process now, so that they are no part of a model.
    let _ = Digest::of(&0);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn environment(rules: Rules) -> Arc<Environment<Rules>> {
    Arc::new(Environment {
        rules,
        clock: Clock::start(),
        observers: Observers::default(),
    })
}

fn fence(rules: Rules) -> FenceRef {
    let environment = environment(rules);
    let machine = SharedMachine::new(Fence::new(&environment.rules), None, environment);
    Arc::new(MachineRef::new(machine))
}

fn facts(call: u32) -> CallFacts {
    CallFacts {
        digest: Some(Digest::of(&call)),
        turn: None,
        limit: None,
    }
}

fn admit(machine_ref: &FenceRef, call: u32) -> Result<CallPermit, Denied> {
    let facts = facts(call);
    let ticket = match gate::acquire_fast(machine_ref.machine(), &facts) {
        Some(ticket) => ticket,
        None => gate::acquire(machine_ref.machine(), &facts).expect("no store")?,
    };
    Ok(CallPermit::new(Arc::clone(machine_ref), ticket))
}

fn snapshot(machine_ref: &FenceRef) -> super::TripwireSnapshot {
    let look =
        |fence: &Fence, packed, rules: &Rules| fence.snapshot(packed, rules, Timestamp::START);
    machine_ref.machine().read(look)
}

fn failure() -> Outcome {
    Failure::transient().into()
}

fn a_turn_budget_is_never_exceeded_by_one() {
    explore(3, || {
        let machine_ref = fence(Rules {
            max_turns: 2,
            ..Rules::default()
        });
        let others: Vec<_> = (0..2)
            .map(|call| {
                let machine_ref = Arc::clone(&machine_ref);
                thread::spawn(move || admit(&machine_ref, call).is_ok())
            })
            .collect();
        let mut admitted = usize::from(admit(&machine_ref, 7).is_ok());
        for other in others {
            admitted += usize::from(other.join().unwrap());
        }
        assert_eq!(admitted, 2);
        assert_eq!(snapshot(&machine_ref).turns, 2);
    });
}

fn the_packed_state_tells_that_no_turn_is_left() {
    explore(3, || {
        let machine_ref = fence(Rules {
            max_turns: 3,
            ..Rules::default()
        });
        let others = [1, 2].map(|call| {
            let machine_ref = Arc::clone(&machine_ref);
            thread::spawn(move || admit(&machine_ref, call).is_ok())
        });
        assert!(admit(&machine_ref, 7).is_ok());
        for other in others {
            assert!(other.join().unwrap());
        }
        assert_eq!(snapshot(&machine_ref).state, State::Closed);
        assert!(!machine_ref.machine().packed().admits_all());
    });
}

fn an_error_beside_a_fast_call_is_not_lost() {
    explore(3, || {
        let machine_ref = fence(Rules {
            error_limit: 3,
            ..Rules::default()
        });
        let calls = [
            admit(&machine_ref, 1).unwrap(),
            admit(&machine_ref, 2).unwrap(),
        ];
        let others = calls.map(|mut call| thread::spawn(move || call.record(failure(), None)));
        let mut third = admit(&machine_ref, 3).unwrap();
        for other in others {
            other.join().unwrap();
        }
        let now = snapshot(&machine_ref);
        assert_eq!((now.errors, now.turns), (2, 3));
        third.record(failure(), None);
        assert_eq!(snapshot(&machine_ref).state, State::Open);
    });
}

fn one_of_three_callers_is_the_tripwires_probe() {
    explore(3, || {
        let machine_ref = fence(Rules {
            error_limit: 1,
            open_cooldown_rejects: 3,
            ..Rules::default()
        });
        admit(&machine_ref, 1).unwrap().record(failure(), None);
        for _ in 0..3 {
            assert!(admit(&machine_ref, 2).is_err());
        }
        let others: Vec<_> = (3..5)
            .map(|call| {
                let machine_ref = Arc::clone(&machine_ref);
                thread::spawn(move || admit(&machine_ref, call).ok())
            })
            .collect();
        let mut probes = vec![admit(&machine_ref, 5).ok()];
        probes.extend(others.into_iter().map(|other| other.join().unwrap()));
        assert_eq!(probes.iter().flatten().count(), 1);
        assert!(snapshot(&machine_ref).probing);
    });
}

fn a_turn_is_not_spent_in_an_evicted_fence() {
    explore(3, || {
        let sessions = Arc::new(Sessions::new(
            1,
            None,
            environment(Rules::default()),
            None,
            (),
        ));
        let admit = |sessions: &Sessions<u32>, session: u32| {
            gate::acquire_in(
                sessions,
                &super::Owned::new(move |_: &()| session),
                &<super::Reader>::default(),
                &(),
            )
        };
        admit(&sessions, 1).unwrap().record(Outcome::Success, None);
        let other = Arc::clone(&sessions);
        let other = thread::spawn(move || admit(&other, 1).unwrap());
        let second = admit(&sessions, 2).unwrap();
        let first = other.join().unwrap();
        // One of the two calls is guarded. Its fence, with its turns, is the one in the store.
        assert!(first.is_guarded() != second.is_guarded());
        let kept = if first.is_guarded() { 1 } else { 2 };
        assert_eq!(sessions.store().keys(), [kept]);
        let kept = sessions.store().get(&kept).unwrap();
        assert!(snapshot(&kept).turns >= 1);
    });
}
