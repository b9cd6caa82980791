//! The interleavings of the tripwire: what its quiet step does beside verdicts, steps and evictions.
//!
//! | in | weakened | what fails |
//! | --- | --- | --- |
//! | `Cell::quietly` | does not look whether the cell is retired | `a_turn_is_not_spent_in_an_evicted_fence` |
//! | `Fence::adopt` | what was counted is not taken over | `an_error_beside_a_quiet_call_is_not_lost` |
//! | `Fence::try_acquire_quietly` | admits while half-open | `one_of_three_callers_is_the_tripwires_probe` |
//! | `Fence::try_acquire_quietly` | spends the last turn | `the_word_tells_that_no_turn_is_left` |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use loom::thread;

use super::digest::Digest;
use super::fence::{Asked, Denied, Fence, Rules};
use super::gate::{self, FenceAnchor, Sessions};
use super::permit::Admission;
use crate::cell::{Anchor, Cell, Shared};
use crate::clock::{Clock, Moment};
use crate::event::{Observers, State};
use crate::outcome::{Failure, Outcome};
use crate::sync::Arc;

/// Every model and its name.
pub const ALL: &[(&str, fn())] = &[
    (
        "a_turn_budget_is_never_exceeded_by_one",
        a_turn_budget_is_never_exceeded_by_one,
    ),
    (
        "the_word_tells_that_no_turn_is_left",
        the_word_tells_that_no_turn_is_left,
    ),
    (
        "an_error_beside_a_quiet_call_is_not_lost",
        an_error_beside_a_quiet_call_is_not_lost,
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
    // The process's keys are no part of any model.
    let _ = Digest::of(&0);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn shared(rules: Rules) -> Arc<Shared<Rules>> {
    Arc::new(Shared {
        rules,
        clock: Clock::start(),
        observers: Observers::default(),
    })
}

fn fence(rules: Rules) -> FenceAnchor {
    let shared = shared(rules);
    let cell = Cell::new(Fence::new(&shared.rules), None, shared);
    Arc::new(Anchor::new(cell))
}

fn asked(call: u32) -> Asked {
    Asked {
        digest: Some(Digest::of(&call)),
        turn: None,
        limit: None,
    }
}

fn admit(anchor: &FenceAnchor, call: u32) -> Result<Admission, Denied> {
    let asked = asked(call);
    let ticket = match gate::acquire_quietly(anchor.cell(), &asked) {
        Some(ticket) => ticket,
        None => gate::acquire(anchor.cell(), &asked).expect("no store")?,
    };
    Ok(Admission::new(Arc::clone(anchor), ticket))
}

fn snapshot(anchor: &FenceAnchor) -> super::TripwireSnapshot {
    let look = |fence: &Fence, word, rules: &Rules| fence.snapshot(word, rules, Moment::START);
    anchor.cell().look(look)
}

fn failure() -> Outcome {
    Failure::transient().into()
}

fn a_turn_budget_is_never_exceeded_by_one() {
    explore(3, || {
        let anchor = fence(Rules {
            max_turns: 2,
            ..Rules::default()
        });
        let others: Vec<_> = (0..2)
            .map(|call| {
                let anchor = Arc::clone(&anchor);
                thread::spawn(move || admit(&anchor, call).is_ok())
            })
            .collect();
        let mut admitted = usize::from(admit(&anchor, 7).is_ok());
        for other in others {
            admitted += usize::from(other.join().unwrap());
        }
        assert_eq!(admitted, 2);
        assert_eq!(snapshot(&anchor).turns, 2);
    });
}

fn the_word_tells_that_no_turn_is_left() {
    explore(3, || {
        let anchor = fence(Rules {
            max_turns: 3,
            ..Rules::default()
        });
        let others = [1, 2].map(|call| {
            let anchor = Arc::clone(&anchor);
            thread::spawn(move || admit(&anchor, call).is_ok())
        });
        assert!(admit(&anchor, 7).is_ok());
        for other in others {
            assert!(other.join().unwrap());
        }
        assert_eq!(snapshot(&anchor).state, State::Closed);
        assert!(!anchor.cell().word().lets_all_through());
    });
}

fn an_error_beside_a_quiet_call_is_not_lost() {
    explore(3, || {
        let anchor = fence(Rules {
            error_limit: 3,
            ..Rules::default()
        });
        let calls = [admit(&anchor, 1).unwrap(), admit(&anchor, 2).unwrap()];
        let others = calls.map(|mut call| thread::spawn(move || call.record(failure(), None)));
        let mut third = admit(&anchor, 3).unwrap();
        for other in others {
            other.join().unwrap();
        }
        let now = snapshot(&anchor);
        assert_eq!((now.errors, now.turns), (2, 3));
        third.record(failure(), None);
        assert_eq!(snapshot(&anchor).state, State::Open);
    });
}

fn one_of_three_callers_is_the_tripwires_probe() {
    explore(3, || {
        let anchor = fence(Rules {
            error_limit: 1,
            open_cooldown_rejects: 3,
            ..Rules::default()
        });
        admit(&anchor, 1).unwrap().record(failure(), None);
        for _ in 0..3 {
            assert!(admit(&anchor, 2).is_err());
        }
        let others: Vec<_> = (3..5)
            .map(|call| {
                let anchor = Arc::clone(&anchor);
                thread::spawn(move || admit(&anchor, call).ok())
            })
            .collect();
        let mut probes = vec![admit(&anchor, 5).ok()];
        probes.extend(others.into_iter().map(|other| other.join().unwrap()));
        assert_eq!(probes.iter().flatten().count(), 1);
        assert!(snapshot(&anchor).probing);
    });
}

fn a_turn_is_not_spent_in_an_evicted_fence() {
    explore(3, || {
        let sessions = Arc::new(Sessions::new(1, None, shared(Rules::default()), None));
        let admit = |sessions: &Sessions<u32>, session: u32| {
            sessions.acquire(
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
        // One of the two is guarded, and its fence, with its turns, is the one in the store.
        assert!(first.is_guarded() != second.is_guarded());
        let kept = if first.is_guarded() { 1 } else { 2 };
        assert_eq!(sessions.store().keys(), [kept]);
        let kept = sessions.store().get(&kept).unwrap();
        assert!(snapshot(&kept).turns >= 1);
    });
}
