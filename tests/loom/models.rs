//! The interleavings of a shared machine, the store, the events and the permit, on the shipped
//! sources. Each model checks one property.
//!
//! No answer depends on when the clock is read. Either the model passes the time in, or its
//! cooldowns are over at once, or they outlast the model.
//!
//! # What each ordering and lock is for
//!
//! Each of these was weakened once. The models named failed, and all others passed.
//!
//! | in | weakened | what fails |
//! | --- | --- | --- |
//! | `SharedMachine::packed_before_deadline` | `Acquire` to `Relaxed` | `packed_state_and_deadline_are_of_one_generation`, `a_reader_beside_a_renewal_sees_no_other_generations_deadline` |
//! | `SharedMachine::deadline` | `Acquire` to `Relaxed` | the same two; `a_lease_is_renewed_or_over_not_both`, `a_renewal_never_leaks_into_the_next_generation` |
//! | `SharedMachine::deadline` | no second look at the packed state | the same four |
//! | `SharedMachine::publish` | the deadline's `Release` to `Relaxed` | `packed_state_and_deadline_are_of_one_generation` |
//! | `SharedMachine::publish` | the deadline is stored, not swapped | these four but the first, because loom lets that store come before a renewal that it cannot come before |
//! | `SharedMachine::publish` | a deadline that has not moved is stored, too | `a_renewal_beside_a_step_is_not_lost` |
//! | `SharedMachine::publish` | the packed state's `Release` to `Relaxed` | `packed_state_and_deadline_are_of_one_generation`, `a_reader_beside_a_renewal_sees_no_other_generations_deadline` |
//! | `SharedMachine::mark_busy` | the packed state is loaded, not marked busy | `packed_state_and_deadline_are_of_one_generation`, `a_lease_is_renewed_or_over_not_both`, `a_reader_beside_a_renewal_sees_no_other_generations_deadline`; `a_count_beside_a_step_is_not_lost`, `a_verdict_is_not_lost_to_an_eviction`, `a_machine_in_use_stays_in_the_store` |
//! | `SharedMachine::mark_busy` | the deadline is loaded, not read by a write | `a_lease_is_renewed_or_over_not_both` |
//! | `SharedMachine::mark_busy` | that write's `Release` to `Relaxed` | the same |
//! | `SharedMachine::mark_busy` | a renewed deadline is not taken over | the same; `a_renewal_beside_a_step_is_not_lost` |
//! | `SharedMachine::renew` | no second try | `a_renewal_beside_a_step_is_not_lost` |
//! | `SharedMachine::renew` | no lock around it | the same |
//! | `SharedMachine::try_renew` | does not look whether the packed state is busy | the same |
//! | `SharedMachine::try_renew` | the deadline without a second look at the packed state | those that fail for `SharedMachine::deadline`, but the first |
//! | `SharedMachine::try_renew` | a store for compare-and-swap | all four of a renewal |
//! | `SharedMachine::mark_busy` | what was counted is not taken over | `failures_without_the_lock_trip_once`, `a_count_beside_a_step_is_not_lost` |
//! | `SharedMachine::update` | load and store for compare-and-swap | the same two |
//! | `SharedMachine::step` | the wakers are taken before the packed state is marked | `a_first_wait_misses_no_transition`, `a_second_wait_misses_no_transition` |
//! | `SharedMachine::step_unless_retired` | does not look whether the machine is retired | `a_verdict_is_not_lost_to_an_eviction`, `a_machine_in_use_stays_in_the_store`, `a_pin_by_hand_is_not_lost_to_an_eviction` |
//! | `SharedMachine::retire` | counts no references | `a_verdict_is_not_lost_to_an_eviction`, `a_machine_in_use_stays_in_the_store`, `a_parked_machine_that_was_looked_up_is_found` |
//! | `SharedMachine::retire` | counts the references before the packed state is marked | the first two of these |
//! | `full_fence` | no fence; or `AcqRel` | the same two; `a_machine_that_is_looked_up_while_it_is_parked_is_found` |
//! | `WaiterGuard` | leaves its waker behind when it goes | `a_waiter_that_goes_is_not_woken_and_harms_nobody`, with an abort |
//! | `EventQueue::begin` | does not look whether somebody delivers already | `events_come_in_order_and_one_at_a_time`, `events_of_a_listener_come_after` |
//! | `Store::get` | the fence after the touch | `a_machine_that_is_looked_up_while_it_is_parked_is_found` |
//! | `Store::touch` | `Release` of `touched` to `Relaxed` | `a_parked_machine_that_was_looked_up_is_found` |
//! | `Store::find_or_insert` | `Acquire` of `touched` to `Relaxed` | the same |
//! | `Store::find_or_insert` | no look-up under the lock | `one_key_has_one_machine` |
//! | `Store::find_or_insert` | one machine more than the capacity | `the_capacity_is_never_exceeded`, `a_machine_in_use_stays_in_the_store`, `a_parked_machine_that_was_looked_up_is_found` |
//! | `Store::forget` | leaves the machine in the map | `a_forgotten_key_is_guarded_anew` |
//! | `Order::evict` | parks a machine after its references are counted | `a_machine_that_is_looked_up_while_it_is_parked_is_found` |
//! | `KeyedCircuitBreakerHandle::force_open` | does not look whether the machine is retired | `a_pin_by_hand_is_not_lost_to_an_eviction` |
//!
//! All other orderings are `Relaxed`, and the source says why that is enough.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc as StdArc, Mutex as StdMutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use loom::thread;

use super::Cancelled;
use super::circuit::{Circuit, Role, Rules, Ticket};
use super::gate::{self, Circuits};
use super::permit::{CallPermit, Permit};
use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::keyed::KeyedMachines;
use crate::machinery::machine::Machine;
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::{Environment, MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::Refusal;
use crate::vocabulary::{Event, State, TransitionReason};
use crate::vocabulary::{Failure, Outcome, Recorded};

/// Every model and its name.
pub const ALL: &[(&str, fn())] = &[
    (
        "one_of_three_callers_is_the_probe",
        one_of_three_callers_is_the_probe,
    ),
    (
        "failures_without_the_lock_trip_once",
        failures_without_the_lock_trip_once,
    ),
    (
        "a_count_beside_a_step_is_not_lost",
        a_count_beside_a_step_is_not_lost,
    ),
    (
        "a_success_beside_a_trip_changes_nothing",
        a_success_beside_a_trip_changes_nothing,
    ),
    (
        "packed_state_and_deadline_are_of_one_generation",
        packed_state_and_deadline_are_of_one_generation,
    ),
    (
        "a_first_wait_misses_no_transition",
        a_first_wait_misses_no_transition,
    ),
    (
        "a_second_wait_misses_no_transition",
        a_second_wait_misses_no_transition,
    ),
    (
        "a_waiter_that_goes_is_not_woken_and_harms_nobody",
        a_waiter_that_goes_is_not_woken_and_harms_nobody,
    ),
    (
        "events_come_in_order_and_one_at_a_time",
        events_come_in_order_and_one_at_a_time,
    ),
    (
        "events_of_a_listener_come_after",
        events_of_a_listener_come_after,
    ),
    (
        "lease_or_verdict_counts_not_both",
        lease_or_verdict_counts_not_both,
    ),
    (
        "a_lease_is_renewed_or_over_not_both",
        a_lease_is_renewed_or_over_not_both,
    ),
    (
        "a_renewal_beside_a_step_is_not_lost",
        a_renewal_beside_a_step_is_not_lost,
    ),
    (
        "a_renewal_never_leaks_into_the_next_generation",
        a_renewal_never_leaks_into_the_next_generation,
    ),
    (
        "a_reader_beside_a_renewal_sees_no_other_generations_deadline",
        a_reader_beside_a_renewal_sees_no_other_generations_deadline,
    ),
    (
        "a_verdict_is_not_lost_to_an_eviction",
        a_verdict_is_not_lost_to_an_eviction,
    ),
    (
        "a_machine_in_use_stays_in_the_store",
        a_machine_in_use_stays_in_the_store,
    ),
    (
        "a_pin_by_hand_is_not_lost_to_an_eviction",
        a_pin_by_hand_is_not_lost_to_an_eviction,
    ),
    ("one_key_has_one_machine", one_key_has_one_machine),
    (
        "the_capacity_is_never_exceeded",
        the_capacity_is_never_exceeded,
    ),
    (
        "a_forgotten_key_is_guarded_anew",
        a_forgotten_key_is_guarded_anew,
    ),
    (
        "a_machine_that_is_looked_up_while_it_is_parked_is_found",
        a_machine_that_is_looked_up_while_it_is_parked_is_found,
    ),
    (
        "a_parked_machine_that_was_looked_up_is_found",
        a_parked_machine_that_was_looked_up_is_found,
    ),
    (
        "a_permit_dropped_elsewhere_frees_the_slot_once",
        a_permit_dropped_elsewhere_frees_the_slot_once,
    ),
    (
        "the_last_permit_frees_everything",
        the_last_permit_frees_everything,
    ),
];

/// Explores the interleavings of `f`. With `preemptions`, only those with at most that many.
fn explore(preemptions: Option<usize>, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(f);
}

const LONG: Duration = Duration::from_secs(1_000_000);

fn at(seconds: u64) -> Timestamp {
    Timestamp::START.saturating_add(Duration::from_secs(seconds))
}

fn failure() -> Outcome {
    Failure::transient().into()
}

/// A threshold of three failures, and a cooldown and a lease that outlast the model.
fn rules() -> Rules {
    Rules {
        recovery_duration: LONG,
        probe_timeout: LONG,
        ..Rules::default()
    }
}

fn environment(rules: Rules, observers: Observers) -> Arc<Environment<Rules>> {
    let clock = Clock::start();
    Arc::new(Environment {
        rules,
        clock,
        observers,
    })
}

fn observed(rules: Rules, observers: Observers) -> Arc<MachineRef<Circuit>> {
    let circuit = Circuit::new(&rules, 0);
    Arc::new(MachineRef::new(SharedMachine::new(
        circuit,
        None,
        environment(rules, observers),
    )))
}

fn circuit(rules: Rules) -> Arc<MachineRef<Circuit>> {
    observed(rules, Observers::default())
}

fn circuits(capacity: usize, rules: Rules) -> Arc<Circuits<u32>> {
    let environment = environment(rules, Observers::default());
    Arc::new(Circuits::new(KeyedMachines::new(
        capacity,
        None,
        environment,
        None,
        0,
    )))
}

fn watching(observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Observers {
    let mut observers = Observers::default();
    observers.add(StdArc::new(observer));
    observers
}

fn admit(machine_ref: &Arc<MachineRef<Circuit>>) -> CallPermit {
    let ticket = gate::acquire(machine_ref.machine()).unwrap();
    CallPermit::new(Arc::clone(machine_ref), ticket)
}

fn admit_in(circuits: &Circuits<u32>, key: u32) -> Result<CallPermit, Refusal> {
    let found = circuits.keyed().store().get(&key);
    circuits.admit(found, || key)
}

fn acquire_at(machine_ref: &Arc<MachineRef<Circuit>>, now: Timestamp) -> Option<Ticket> {
    let step = |circuit: &mut Circuit, rules: &Rules, events: &mut _| {
        circuit.try_acquire(rules, now, events)
    };
    machine_ref.machine().step(step).ok()
}

fn record_at(
    machine_ref: &Arc<MachineRef<Circuit>>,
    now: Timestamp,
    ticket: Ticket,
    outcome: Outcome,
) -> Recorded {
    let step = |circuit: &mut Circuit, rules: &Rules, events: &mut _| {
        circuit.record(rules, now, ticket, outcome, events)
    };
    machine_ref.machine().step(step)
}

/// Renews the lease as a frame does that the probe with this ticket receives.
fn renew_at(machine: &SharedMachine<Circuit>, now: Timestamp, ticket: Ticket) {
    machine.renew(|packed, deadline, _| {
        Circuit::renewed(packed, deadline, ticket, machine.rules(), now)
    });
}

/// Makes a circuit with a probe in flight, whose lease runs from 30 s to 60 s. A failure of the
/// probe, or the end of its lease, opens the circuit for `cooldown`.
fn probing(cooldown: Duration) -> (Arc<MachineRef<Circuit>>, Ticket) {
    let machine_ref = circuit(Rules {
        failure_threshold: 1,
        recovery_duration: cooldown,
        probe_timeout: Duration::from_secs(30),
        ..Rules::default()
    });
    let now = at(30).as_nanos() - u64::try_from(cooldown.as_nanos()).unwrap();
    let now = Timestamp::from_nanos(now);
    let ticket = acquire_at(&machine_ref, now).unwrap();
    record_at(&machine_ref, now, ticket, failure());
    let probe = acquire_at(&machine_ref, at(30)).unwrap();
    assert_eq!(probe.role, Role::Probe);
    (machine_ref, probe)
}

fn reset(machine: &SharedMachine<Circuit>) {
    machine.step(|circuit, rules, events| circuit.reset(rules, Timestamp::START, events));
}

fn force_open(machine: &SharedMachine<Circuit>) {
    machine.step(|circuit, rules, events| circuit.force_open(rules, Timestamp::START, events));
}

fn state(machine: &SharedMachine<Circuit>) -> State {
    machine.read(|circuit, packed, rules| circuit.snapshot(packed, rules, Timestamp::START).state)
}

fn streak(machine: &SharedMachine<Circuit>) -> u32 {
    machine.read(|circuit, packed, rules| circuit.snapshot(packed, rules, Timestamp::START).streak)
}

struct Woken(AtomicUsize);

impl Woken {
    fn new() -> StdArc<Self> {
        StdArc::new(Self(AtomicUsize::new(0)))
    }

    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: StdArc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// ===== the shared machine =====

fn one_of_three_callers_is_the_probe() {
    explore(Some(2), || {
        let machine_ref = circuit(Rules {
            recovery_duration: Duration::ZERO,
            failure_threshold: 1,
            ..rules()
        });
        admit(&machine_ref).record(failure());
        let ask = |machine_ref: &Arc<MachineRef<Circuit>>| {
            let answer = gate::acquire(machine_ref.machine());
            usize::from(answer.is_ok_and(|ticket| ticket.role == Role::Probe))
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let machine_ref = Arc::clone(&machine_ref);
                thread::spawn(move || ask(&machine_ref))
            })
            .collect();
        let mut probes = ask(&machine_ref);
        for other in others {
            probes += other.join().unwrap();
        }
        assert_eq!(probes, 1);
        assert_eq!(state(machine_ref.machine()), State::HalfOpen);
    });
}

fn failures_without_the_lock_trip_once() {
    explore(Some(3), || {
        let trips = StdArc::new(AtomicUsize::new(0));
        let counter = StdArc::clone(&trips);
        let machine_ref = observed(
            rules(),
            watching(move |event| {
                let Event::Transition {
                    to: State::Open,
                    reason,
                    ..
                } = event
                else {
                    panic!("{event:?}");
                };
                assert_eq!(*reason, TransitionReason::FailureThreshold);
                counter.fetch_add(1, Ordering::Relaxed);
            }),
        );
        let others: Vec<_> = (0..2)
            .map(|_| {
                let mut permit = admit(&machine_ref);
                thread::spawn(move || permit.record(failure()))
            })
            .collect();
        let mut recorded = vec![admit(&machine_ref).record(failure())];
        recorded.extend(others.into_iter().map(|other| other.join().unwrap()));
        assert_eq!(recorded, [Recorded::Applied; 3]);
        assert_eq!(state(machine_ref.machine()), State::Open);
        assert_eq!(trips.load(Ordering::Relaxed), 1);
    });
}

fn a_count_beside_a_step_is_not_lost() {
    explore(Some(3), || {
        let machine_ref = circuit(Rules {
            failure_threshold: 9,
            ..rules()
        });
        let mut one = admit(&machine_ref);
        let one = thread::spawn(move || one.record(failure()));
        // A failure with a hint needs the lock, and begins no new generation.
        let mut hinted = admit(&machine_ref);
        let hinted = thread::spawn(move || {
            let failure = Failure::transient().with_retry_after(Duration::from_secs(1));
            hinted.record(failure.into())
        });
        admit(&machine_ref).record(failure());
        one.join().unwrap();
        hinted.join().unwrap();
        assert_eq!(streak(machine_ref.machine()), 3);
        assert_eq!(state(machine_ref.machine()), State::Closed);
    });
}

fn a_success_beside_a_trip_changes_nothing() {
    explore(Some(3), || {
        let machine_ref = circuit(Rules {
            failure_threshold: 1,
            ..rules()
        });
        let mut slow = admit(&machine_ref);
        let mut other = admit(&machine_ref);
        let mut failing = admit(&machine_ref);
        let slow = thread::spawn(move || slow.record(Outcome::Success));
        let other = thread::spawn(move || other.record(Outcome::Success));
        assert_eq!(failing.record(failure()), Recorded::Applied);
        slow.join().unwrap();
        other.join().unwrap();
        assert_eq!(state(machine_ref.machine()), State::Open);
        assert_eq!(streak(machine_ref.machine()), 1);
    });
}

fn packed_state_and_deadline_are_of_one_generation() {
    explore(None, || {
        let machine_ref = circuit(Rules {
            failure_threshold: 1,
            recovery_duration: Duration::from_secs(30),
            ..Rules::default()
        });
        let fail = |machine_ref: &Arc<MachineRef<Circuit>>, now| {
            let ticket = acquire_at(machine_ref, now).unwrap();
            record_at(machine_ref, now, ticket, failure());
        };
        fail(&machine_ref, at(0));
        let other = Arc::clone(&machine_ref);
        let other = thread::spawn(move || {
            reset(other.machine());
            fail(&other, at(100));
        });
        let machine = machine_ref.machine();
        let packed = machine.packed_before_deadline();
        // A busy packed state has no deadline.
        if let (false, Some(deadline)) = (packed.is_busy(), machine.deadline(packed)) {
            let expected = match packed.generation() {
                1 => at(30),
                2 => Timestamp::NEVER,
                3 => at(130),
                _ => panic!("{packed:?}"),
            };
            assert_eq!(deadline, expected, "{packed:?}");
        }
        other.join().unwrap();
        assert_eq!(
            machine.deadline(machine.packed_before_deadline()),
            Some(at(130))
        );
    });
}

fn a_first_wait_misses_no_transition() {
    explore(None, || {
        let machine_ref = circuit(rules());
        let other = Arc::clone(&machine_ref);
        let other = thread::spawn(move || force_open(other.machine()));
        let woken = Woken::new();
        let waker = Waker::from(StdArc::clone(&woken));
        let mut waiter = None;
        machine_ref
            .machine()
            .wait(&mut waiter, &mut Context::from_waker(&waker));
        let packed = machine_ref.machine().packed();
        let saw = packed.is_busy() || packed.generation() == 1;
        other.join().unwrap();
        assert!(saw || woken.times() == 1);
    });
}

fn a_second_wait_misses_no_transition() {
    explore(None, || {
        let machine_ref = circuit(rules());
        let mut waiter = None;
        machine_ref
            .machine()
            .wait(&mut waiter, &mut Context::from_waker(Waker::noop()));
        reset(machine_ref.machine());
        let other = Arc::clone(&machine_ref);
        let other = thread::spawn(move || force_open(other.machine()));
        let woken = Woken::new();
        let waker = Waker::from(StdArc::clone(&woken));
        machine_ref
            .machine()
            .wait(&mut waiter, &mut Context::from_waker(&waker));
        let packed = machine_ref.machine().packed();
        let saw = packed.is_busy() || packed.generation() == 2;
        other.join().unwrap();
        assert!(saw || woken.times() == 1);
    });
}

fn a_waiter_that_goes_is_not_woken_and_harms_nobody() {
    explore(Some(3), || {
        let machine_ref = circuit(rules());
        let stays = Woken::new();
        let goes = Woken::new();
        let mut staying = None;
        let mut going = None;
        let waker = Waker::from(StdArc::clone(&stays));
        machine_ref
            .machine()
            .wait(&mut staying, &mut Context::from_waker(&waker));
        let waker = Waker::from(StdArc::clone(&goes));
        machine_ref
            .machine()
            .wait(&mut going, &mut Context::from_waker(&waker));
        drop(waker);
        let other = Arc::clone(&machine_ref);
        let other = thread::spawn(move || force_open(other.machine()));
        drop(going);
        let woken = goes.times();
        assert_eq!(
            StdArc::strong_count(&goes),
            1,
            "the waker is dropped with the waiter"
        );
        other.join().unwrap();
        assert_eq!(goes.times(), woken);
        assert_eq!(stays.times(), 1);
    });
}

// ===== the events =====

fn events_come_in_order_and_one_at_a_time() {
    explore(Some(3), || {
        let seen = StdArc::new(StdMutex::new(Vec::new()));
        let list = StdArc::clone(&seen);
        let listening = AtomicBool::new(false);
        let machine_ref = observed(
            rules(),
            watching(move |event| {
                let Event::Transition { generation, .. } = event else {
                    panic!("{event:?}");
                };
                assert!(!listening.swap(true, Ordering::Relaxed));
                // Other threads may run here.
                thread::yield_now();
                list.lock().unwrap().push(*generation);
                listening.store(false, Ordering::Relaxed);
            }),
        );
        let others: Vec<_> = (0..2)
            .map(|_| {
                let machine_ref = Arc::clone(&machine_ref);
                thread::spawn(move || reset(machine_ref.machine()))
            })
            .collect();
        reset(machine_ref.machine());
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
    });
}

fn events_of_a_listener_come_after() {
    explore(Some(3), || {
        let seen = StdArc::new(StdMutex::new(Vec::new()));
        let list = StdArc::clone(&seen);
        let back = StdArc::new(StdMutex::new(None::<Arc<MachineRef<Circuit>>>));
        let way = StdArc::clone(&back);
        let machine_ref = observed(
            rules(),
            watching(move |event| {
                let Event::Transition {
                    generation, reason, ..
                } = event
                else {
                    panic!("{event:?}");
                };
                if *reason == TransitionReason::ForcedOpen {
                    let way = way.lock().unwrap().clone();
                    reset(way.unwrap().machine());
                }
                list.lock().unwrap().push(*generation);
            }),
        );
        *back.lock().unwrap() = Some(Arc::clone(&machine_ref));
        let other = Arc::clone(&machine_ref);
        let other = thread::spawn(move || force_open(other.machine()));
        reset(machine_ref.machine());
        other.join().unwrap();
        drop(back.lock().unwrap().take());
        assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
    });
}

// ===== permits =====

fn lease_or_verdict_counts_not_both() {
    explore(None, || {
        let machine_ref = circuit(Rules {
            failure_threshold: 1,
            recovery_duration: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(30),
            ..Rules::default()
        });
        let ticket = acquire_at(&machine_ref, at(0)).unwrap();
        record_at(&machine_ref, at(0), ticket, failure());
        let probe = acquire_at(&machine_ref, at(30)).unwrap();
        assert_eq!(probe.role, Role::Probe);
        let other = Arc::clone(&machine_ref);
        let late = thread::spawn(move || acquire_at(&other, at(60)));
        let recorded = record_at(&machine_ref, at(59), probe, Outcome::Success);
        let late = late.join().unwrap();
        let trips = machine_ref
            .machine()
            .read(|circuit, packed, rules| circuit.snapshot(packed, rules, at(60)).trips);
        match recorded {
            Recorded::Applied => {
                assert_eq!(late.map(|ticket| ticket.role), Some(Role::Ordinary));
                assert_eq!((state(machine_ref.machine()), trips), (State::Closed, 1));
            }
            Recorded::Stale => {
                assert_eq!(late, None);
                assert_eq!((state(machine_ref.machine()), trips), (State::Open, 2));
            }
        }
    });
}

fn a_lease_is_renewed_or_over_not_both() {
    explore(None, || {
        let (machine_ref, probe) = probing(Duration::ZERO);
        let other = Arc::clone(&machine_ref);
        let late = thread::spawn(move || acquire_at(&other, at(60)));
        let machine = machine_ref.machine();
        renew_at(machine, at(59), probe);
        let packed = machine.packed_before_deadline();
        let seen = packed.generation() == probe.generation
            && !packed.is_busy()
            && machine.deadline(packed) == Some(at(89));
        let late = late.join().unwrap();
        let recorded = record_at(&machine_ref, at(60), probe, Outcome::Success);
        if let Some(next) = late {
            assert_eq!(next.role, Role::Probe);
            assert!(!seen, "a second probe beside one whose renewal was seen");
            assert_eq!(recorded, Recorded::Stale);
            let now =
                machine.read(|circuit, packed, rules| circuit.snapshot(packed, rules, at(61)));
            assert_eq!(now.state, State::HalfOpen);
            assert_eq!(now.time_left, Some(Duration::from_secs(29)));
            assert_eq!(machine.deadline(machine.packed()), Some(at(90)));
        } else {
            assert_eq!(recorded, Recorded::Applied);
            assert_eq!(state(machine), State::Closed);
        }
    });
}

fn a_renewal_beside_a_step_is_not_lost() {
    let beside = |step: fn(&Arc<MachineRef<Circuit>>, Ticket)| {
        explore(None, move || {
            let (machine_ref, probe) = probing(Duration::ZERO);
            let stale = Ticket {
                generation: 0,
                role: Role::Ordinary,
            };
            let other = Arc::clone(&machine_ref);
            let other = thread::spawn(move || step(&other, stale));
            renew_at(machine_ref.machine(), at(59), probe);
            other.join().unwrap();
            let machine = machine_ref.machine();
            assert_eq!(machine.deadline(machine.packed()), Some(at(89)));
            assert_eq!(acquire_at(&machine_ref, at(88)), None);
            let recorded = record_at(&machine_ref, at(88), probe, Outcome::Success);
            assert_eq!(recorded, Recorded::Applied);
        });
    };
    beside(|machine_ref, _| assert_eq!(acquire_at(machine_ref, at(59)), None));
    beside(|machine_ref, stale| {
        let recorded = record_at(machine_ref, at(59), stale, failure());
        assert_eq!(recorded, Recorded::Stale);
    });
}

fn a_renewal_never_leaks_into_the_next_generation() {
    let beside = |deadline, step: fn(&Arc<MachineRef<Circuit>>)| {
        explore(None, move || {
            let (machine_ref, probe) = probing(Duration::from_secs(20));
            let other = Arc::clone(&machine_ref);
            let other = thread::spawn(move || step(&other));
            renew_at(machine_ref.machine(), at(59), probe);
            other.join().unwrap();
            let machine = machine_ref.machine();
            let packed = machine.packed();
            // Either the step came before the renewal, or it found the lease renewed and left it
            // alone.
            let deadline = if packed.generation() == probe.generation {
                at(89)
            } else {
                deadline
            };
            assert_eq!(machine.deadline(packed), Some(deadline));
            machine.read(|circuit, _, _| assert_eq!(Machine::deadline(circuit), deadline));
        });
    };
    beside(at(80), |machine_ref| {
        assert_eq!(acquire_at(machine_ref, at(60)), None)
    });
    beside(Timestamp::NEVER, |machine_ref| {
        force_open(machine_ref.machine())
    });
    beside(Timestamp::NEVER, |machine_ref| reset(machine_ref.machine()));
    beside(at(90), |machine_ref| {
        reset(machine_ref.machine());
        let ticket = acquire_at(machine_ref, at(70)).unwrap();
        record_at(machine_ref, at(70), ticket, failure());
    });
}

fn a_reader_beside_a_renewal_sees_no_other_generations_deadline() {
    explore(Some(3), || {
        let (machine_ref, probe) = probing(Duration::from_secs(20));
        let other = Arc::clone(&machine_ref);
        let renewal = thread::spawn(move || renew_at(other.machine(), at(59), probe));
        let other = Arc::clone(&machine_ref);
        let late = thread::spawn(move || assert_eq!(acquire_at(&other, at(60)), None));
        let machine = machine_ref.machine();
        let look = || {
            let packed = machine.packed_before_deadline();
            if let (false, Some(deadline)) = (packed.is_busy(), machine.deadline(packed)) {
                let fits = match packed.generation() {
                    2 => deadline == at(60) || deadline == at(89),
                    3 => deadline == at(80),
                    _ => panic!("{packed:?}"),
                };
                assert!(fits, "{packed:?} {deadline:?}");
            }
        };
        look();
        renewal.join().unwrap();
        look();
        late.join().unwrap();
        look();
    });
}

fn a_permit_dropped_elsewhere_frees_the_slot_once() {
    explore(Some(3), || {
        let machine_ref = circuit(Rules {
            failure_threshold: 1,
            recovery_duration: Duration::ZERO,
            on_cancel: Cancelled::Release,
            ..rules()
        });
        let stale = Permit::new(admit(&machine_ref));
        admit(&machine_ref).record(failure());
        let probe = Permit::new(admit(&machine_ref));
        assert!(probe.is_probe());
        let probe = thread::spawn(move || drop(probe));
        let stale = thread::spawn(move || drop(stale));
        let early = gate::acquire(machine_ref.machine());
        probe.join().unwrap();
        stale.join().unwrap();
        let late = gate::acquire(machine_ref.machine());
        assert!(early.is_ok() != late.is_ok(), "{early:?} {late:?}");
    });
}

fn the_last_permit_frees_everything() {
    explore(Some(3), || {
        // Loom itself checks that none of its own `Arc`s is left.
        let alive = StdArc::new(());
        let witness = StdArc::clone(&alive);
        let circuits = circuits(
            1,
            Rules {
                failure_threshold: 1,
                ..rules()
            },
        );
        let keyed = admit_in(&circuits, 1).unwrap();
        let machine_ref = observed(rules(), watching(move |_| drop(StdArc::clone(&witness))));
        let own = Arc::new(machine_ref.with_own_count());
        let one = Permit::new(admit(&own));
        let two = Permit::new(admit(&machine_ref));
        let one = thread::spawn(move || drop((own, one, keyed)));
        let two = thread::spawn(move || two.failure());
        drop((machine_ref, circuits));
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(StdArc::strong_count(&alive), 1);
    });
}

// ===== the store =====

fn a_verdict_is_not_lost_to_an_eviction() {
    explore(Some(3), || {
        let circuits = circuits(
            1,
            Rules {
                failure_threshold: 1,
                ..rules()
            },
        );
        admit_in(&circuits, 1).unwrap().record(Outcome::Success);
        let other = Arc::clone(&circuits);
        let other = thread::spawn(move || {
            let mut permit = admit_in(&other, 1).unwrap();
            let guarded = permit.is_guarded();
            permit.record(failure());
            guarded
        });
        admit_in(&circuits, 2).unwrap().record(Outcome::Success);
        if other.join().unwrap() {
            let machine_ref = circuits.keyed().store().peek(&1);
            assert_eq!(
                machine_ref.map(|machine_ref| state(machine_ref.machine())),
                Some(State::Open)
            );
        }
    });
}

fn a_machine_in_use_stays_in_the_store() {
    explore(Some(3), || {
        let circuits = circuits(1, rules());
        admit_in(&circuits, 1).unwrap().record(Outcome::Success);
        let other = Arc::clone(&circuits);
        let other = thread::spawn(move || admit_in(&other, 1).unwrap());
        let second = admit_in(&circuits, 2).unwrap();
        let first = other.join().unwrap();
        assert!(first.is_guarded() != second.is_guarded());
        let kept = if first.is_guarded() { 1 } else { 2 };
        assert_eq!(circuits.keyed().store().keys(), [kept]);
    });
}

fn a_pin_by_hand_is_not_lost_to_an_eviction() {
    explore(Some(3), || {
        let circuits = circuits(1, rules());
        admit_in(&circuits, 1).unwrap().record(Outcome::Success);
        let handle = super::KeyedCircuitBreakerHandle::new(&circuits);
        let other = thread::spawn(move || handle.force_open(&1));
        drop(admit_in(&circuits, 2));
        if other.join().unwrap() {
            let machine_ref = circuits.keyed().store().peek(&1);
            assert_eq!(
                machine_ref.map(|machine_ref| state(machine_ref.machine())),
                Some(State::Open)
            );
        }
    });
}

fn one_key_has_one_machine() {
    explore(Some(3), || {
        let circuits = circuits(2, rules());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let circuits = Arc::clone(&circuits);
                thread::spawn(move || circuits.keyed().get_or_insert(1).unwrap())
            })
            .collect();
        let found = circuits.keyed().get_or_insert(1).unwrap();
        for other in others {
            assert!(Arc::ptr_eq(&found, &other.join().unwrap()));
        }
        assert_eq!(circuits.keyed().store().keys(), [1]);
    });
}

fn the_capacity_is_never_exceeded() {
    explore(Some(3), || {
        let circuits = circuits(2, rules());
        circuits.keyed().get_or_insert(1).unwrap();
        let others: Vec<_> = [2, 3]
            .into_iter()
            .map(|key| {
                let circuits = Arc::clone(&circuits);
                thread::spawn(move || drop(circuits.keyed().get_or_insert(key)))
            })
            .collect();
        assert!(circuits.keyed().store().keys().len() <= 2);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(circuits.keyed().store().keys().len(), 2);
    });
}

fn a_forgotten_key_is_guarded_anew() {
    explore(Some(3), || {
        let circuits = circuits(
            1,
            Rules {
                failure_threshold: 1,
                ..rules()
            },
        );
        admit_in(&circuits, 1).unwrap().record(Outcome::Success);
        let other = Arc::clone(&circuits);
        let other = thread::spawn(move || {
            admit_in(&other, 1).unwrap().record(failure());
        });
        assert!(circuits.keyed().store().forget(&1));
        other.join().unwrap();
        // The call ran either in the machine that is gone, or in one that is in the store.
        if let Ok(permit) = admit_in(&circuits, 1) {
            assert!(permit.is_guarded());
        }
        let machine_ref = circuits.keyed().store().peek(&1).unwrap();
        assert!(
            !machine_ref.machine().packed().is_busy(),
            "it is not the machine that is gone"
        );
        assert_eq!(circuits.keyed().store().keys(), [1]);
    });
}

fn a_machine_that_is_looked_up_while_it_is_parked_is_found() {
    explore(Some(3), || {
        let circuits = circuits(
            1,
            Rules {
                failure_threshold: 1,
                ..rules()
            },
        );
        admit_in(&circuits, 1).unwrap().record(failure());
        let other = Arc::clone(&circuits);
        let other = thread::spawn(move || {
            let machine_ref = other.keyed().store().get(&1).unwrap();
            reset(machine_ref.machine());
        });
        let second = circuits.keyed().get_or_insert(2).is_ok();
        other.join().unwrap();
        assert!(circuits.keyed().get_or_insert(3).is_ok(), "{second}");
    });
}

fn a_parked_machine_that_was_looked_up_is_found() {
    explore(Some(3), || {
        let circuits = circuits(
            1,
            Rules {
                failure_threshold: 1,
                ..rules()
            },
        );
        admit_in(&circuits, 1).unwrap().record(failure());
        assert!(circuits.keyed().get_or_insert(2).is_err(), "parked as live");
        let other = Arc::clone(&circuits);
        let other = thread::spawn(move || {
            let machine_ref = other.keyed().store().get(&1).unwrap();
            reset(machine_ref.machine());
        });
        drop(circuits.keyed().get_or_insert(3));
        other.join().unwrap();
        assert!(circuits.keyed().get_or_insert(4).is_ok());
    });
}
