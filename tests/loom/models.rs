//! The interleavings of `cell`, `store`, the notes and the permit, one property a model, on the shipped sources.
//!
//! Times are passed in, or such that the answer does not depend on when the clock is read: cooldowns that are over at once, or that outlast
//! any model.
//!
//! # What each ordering and lock is for
//!
//! Each of these was weakened once, and the models named failed; all others passed.
//!
//! | in | weakened | what fails |
//! | --- | --- | --- |
//! | `Cell::word_before_until` | `Acquire` to `Relaxed` | `word_and_moment_are_of_one_generation`, `a_reader_beside_a_renewal_is_told_no_other_generations_moment` |
//! | `Cell::until` | `Acquire` to `Relaxed` | the same two; `a_lease_is_renewed_or_over_not_both`, `a_renewal_never_leaks_into_the_next_generation` |
//! | `Cell::until` | no second look at the word | the same four |
//! | `Cell::publish` | the moment's `Release` to `Relaxed` | `word_and_moment_are_of_one_generation` |
//! | `Cell::publish` | the moment is stored, not swapped | these four but the first, since loom lets that store come before a renewal that it cannot come before |
//! | `Cell::publish` | a moment that has not moved is stored, too | `a_renewal_beside_a_step_is_not_lost` |
//! | `Cell::publish` | the word's `Release` to `Relaxed` | `word_and_moment_are_of_one_generation`, `a_reader_beside_a_renewal_is_told_no_other_generations_moment` |
//! | `Cell::enter` | the word is loaded, not marked busy | `word_and_moment_are_of_one_generation`, `a_lease_is_renewed_or_over_not_both`, `a_reader_beside_a_renewal_is_told_no_other_generations_moment`; `a_count_beside_a_step_is_not_lost`, `a_verdict_is_not_lost_to_an_eviction`, `a_held_cell_stays_in_the_store` |
//! | `Cell::enter` | the moment is loaded, not read by a write | `a_lease_is_renewed_or_over_not_both` |
//! | `Cell::enter` | that write's `Release` to `Relaxed` | the same |
//! | `Cell::enter` | a renewed moment is not taken over | the same; `a_renewal_beside_a_step_is_not_lost` |
//! | `Cell::renew` | no second try | `a_renewal_beside_a_step_is_not_lost` |
//! | `Cell::renew` | no lock around it | the same |
//! | `Cell::try_renew` | does not look whether the word is busy | the same |
//! | `Cell::try_renew` | the moment without a second look at the word | those that fail for `Cell::until`, but the first |
//! | `Cell::try_renew` | a store for compare-and-swap | all four of a renewal |
//! | `Cell::enter` | what was counted is not taken over | `failures_without_the_lock_trip_once`, `a_count_beside_a_step_is_not_lost` |
//! | `Cell::update` | load and store for compare-and-swap | the same two |
//! | `Cell::step` | the wakers are taken before the word is marked | `a_first_wait_misses_no_transition`, `a_second_wait_misses_no_transition` |
//! | `Cell::step_unless_retired` | does not look whether the cell is retired | `a_verdict_is_not_lost_to_an_eviction`, `a_held_cell_stays_in_the_store`, `a_pin_by_hand_is_not_lost_to_an_eviction` |
//! | `Cell::retire` | counts no holders | `a_verdict_is_not_lost_to_an_eviction`, `a_held_cell_stays_in_the_store`, `a_filed_cell_that_was_looked_up_is_found` |
//! | `Cell::retire` | counts the holders before the word is marked | the first two of these |
//! | `settle` | no fence; or `AcqRel` | the same two |
//! | `Waiter` | leaves its waker behind when it goes | `a_waiter_that_goes_is_not_woken_and_harms_nobody`, with an abort |
//! | `Notes::begin` | does not look whether somebody delivers | `events_come_in_order_and_one_at_a_time`, `events_of_a_listener_come_after` |
//! | `Store::get` | settles after the touch | `a_cell_that_is_looked_up_while_it_is_filed_is_found` |
//! | `Store::touch` | `Release` of `stirred` to `Relaxed` | `a_filed_cell_that_was_looked_up_is_found` |
//! | `Store::get_or_insert` | `Acquire` of `stirred` to `Relaxed` | the same |
//! | `Store::get_or_insert` | no look-up under the lock | `one_key_has_one_cell` |
//! | `Store::get_or_insert` | one cell more than the capacity | `the_capacity_is_never_exceeded`, `a_held_cell_stays_in_the_store`, `a_filed_cell_that_was_looked_up_is_found` |
//! | `Store::forget` | leaves the cell in the map | `a_forgotten_key_is_guarded_anew` |
//! | `Order::evict` | files a cell after its holders are counted | `a_cell_that_is_looked_up_while_it_is_filed_is_found` |
//! | `KeyedCircuitBreakerHandle::force_open` | does not look whether the cell is retired | `a_pin_by_hand_is_not_lost_to_an_eviction` |
//!
//! Everything else is `Relaxed`, and the source says why that is enough.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc as StdArc, Mutex as StdMutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use loom::thread;

use super::Cancelled;
use super::circuit::{Circuit, Role, Rules, Ticket};
use super::gate::{self, Circuits};
use super::permit::{Admission, Permit};
use crate::cell::{Anchor, Cell, Shared};
use crate::clock::{Clock, Moment};
use crate::event::{Event, Observers, State, TransitionReason};
use crate::keyed::Keyed;
use crate::machine::Machine;
use crate::outcome::{Failure, Outcome, Recorded};
use crate::refusal::Refusal;
use crate::sync::Arc;

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
        "word_and_moment_are_of_one_generation",
        word_and_moment_are_of_one_generation,
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
        "a_reader_beside_a_renewal_is_told_no_other_generations_moment",
        a_reader_beside_a_renewal_is_told_no_other_generations_moment,
    ),
    (
        "a_verdict_is_not_lost_to_an_eviction",
        a_verdict_is_not_lost_to_an_eviction,
    ),
    (
        "a_held_cell_stays_in_the_store",
        a_held_cell_stays_in_the_store,
    ),
    (
        "a_pin_by_hand_is_not_lost_to_an_eviction",
        a_pin_by_hand_is_not_lost_to_an_eviction,
    ),
    ("one_key_has_one_cell", one_key_has_one_cell),
    (
        "the_capacity_is_never_exceeded",
        the_capacity_is_never_exceeded,
    ),
    (
        "a_forgotten_key_is_guarded_anew",
        a_forgotten_key_is_guarded_anew,
    ),
    (
        "a_cell_that_is_looked_up_while_it_is_filed_is_found",
        a_cell_that_is_looked_up_while_it_is_filed_is_found,
    ),
    (
        "a_filed_cell_that_was_looked_up_is_found",
        a_filed_cell_that_was_looked_up_is_found,
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

/// Explores the interleavings of `f`; with `preemptions`, those with at most so many.
fn explore(preemptions: Option<usize>, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(f);
}

const LONG: Duration = Duration::from_secs(1_000_000);

fn at(seconds: u64) -> Moment {
    Moment::START.after(Duration::from_secs(seconds))
}

fn failure() -> Outcome {
    Failure::transient().into()
}

/// Three failures, and an opening that outlasts the model.
fn rules() -> Rules {
    Rules {
        recovery_duration: LONG,
        probe_timeout: LONG,
        ..Rules::default()
    }
}

fn shared(rules: Rules, observers: Observers) -> Arc<Shared<Rules>> {
    let clock = Clock::start();
    Arc::new(Shared {
        rules,
        clock,
        observers,
    })
}

fn observed(rules: Rules, observers: Observers) -> Arc<Anchor<Circuit>> {
    let circuit = Circuit::new(&rules, 0);
    Arc::new(Anchor::new(Cell::new(
        circuit,
        None,
        shared(rules, observers),
    )))
}

fn circuit(rules: Rules) -> Arc<Anchor<Circuit>> {
    observed(rules, Observers::default())
}

fn circuits(capacity: usize, rules: Rules) -> Arc<Circuits<u32>> {
    let shared = shared(rules, Observers::default());
    Arc::new(Circuits::new(Keyed::new(capacity, None, shared, None, 0)))
}

fn watching(observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Observers {
    let mut observers = Observers::default();
    observers.add(StdArc::new(observer));
    observers
}

fn admit(anchor: &Arc<Anchor<Circuit>>) -> Admission {
    let ticket = gate::acquire(anchor.cell()).unwrap();
    Admission::new(Arc::clone(anchor), ticket)
}

fn admit_in(circuits: &Circuits<u32>, key: u32) -> Result<Admission, Refusal> {
    let found = circuits.keyed().store().get(&key);
    circuits.admit(found, || key)
}

fn acquire_at(anchor: &Arc<Anchor<Circuit>>, now: Moment) -> Option<Ticket> {
    let step = |circuit: &mut Circuit, rules: &Rules, notes: &mut _| {
        circuit.try_acquire(rules, now, notes)
    };
    anchor.cell().step(step).ok()
}

fn record_at(
    anchor: &Arc<Anchor<Circuit>>,
    now: Moment,
    ticket: Ticket,
    outcome: Outcome,
) -> Recorded {
    let step = |circuit: &mut Circuit, rules: &Rules, notes: &mut _| {
        circuit.record(rules, now, ticket, outcome, notes)
    };
    anchor.cell().step(step)
}

/// A frame of the probe whose ticket this is.
fn renew_at(cell: &Cell<Circuit>, now: Moment, ticket: Ticket) {
    cell.renew(|word, until, _| Circuit::renewed(word, until, ticket, cell.rules(), now));
}

/// A circuit whose probe is out from 30 s until 60 s; its failure, or its lease's end, opens the circuit for `cooldown`.
fn probing(cooldown: Duration) -> (Arc<Anchor<Circuit>>, Ticket) {
    let anchor = circuit(Rules {
        failure_threshold: 1,
        recovery_duration: cooldown,
        probe_timeout: Duration::from_secs(30),
        ..Rules::default()
    });
    let now = at(30).as_nanos() - u64::try_from(cooldown.as_nanos()).unwrap();
    let now = Moment::from_nanos(now);
    let ticket = acquire_at(&anchor, now).unwrap();
    record_at(&anchor, now, ticket, failure());
    let probe = acquire_at(&anchor, at(30)).unwrap();
    assert_eq!(probe.role, Role::Probe);
    (anchor, probe)
}

fn reset(cell: &Cell<Circuit>) {
    cell.step(|circuit, rules, notes| circuit.reset(rules, Moment::START, notes));
}

fn force_open(cell: &Cell<Circuit>) {
    cell.step(|circuit, rules, notes| circuit.force_open(rules, Moment::START, notes));
}

fn state(cell: &Cell<Circuit>) -> State {
    cell.look(|circuit, word, rules| circuit.snapshot(word, rules, Moment::START).state)
}

fn streak(cell: &Cell<Circuit>) -> u32 {
    cell.look(|circuit, word, rules| circuit.snapshot(word, rules, Moment::START).streak)
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

// ===== the cell =====

fn one_of_three_callers_is_the_probe() {
    explore(Some(2), || {
        let anchor = circuit(Rules {
            recovery_duration: Duration::ZERO,
            failure_threshold: 1,
            ..rules()
        });
        admit(&anchor).record(failure());
        let ask = |anchor: &Arc<Anchor<Circuit>>| {
            let answer = gate::acquire(anchor.cell());
            usize::from(answer.is_ok_and(|ticket| ticket.role == Role::Probe))
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let anchor = Arc::clone(&anchor);
                thread::spawn(move || ask(&anchor))
            })
            .collect();
        let mut probes = ask(&anchor);
        for other in others {
            probes += other.join().unwrap();
        }
        assert_eq!(probes, 1);
        assert_eq!(state(anchor.cell()), State::HalfOpen);
    });
}

fn failures_without_the_lock_trip_once() {
    explore(Some(3), || {
        let trips = StdArc::new(AtomicUsize::new(0));
        let counter = StdArc::clone(&trips);
        let anchor = observed(
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
                let mut admission = admit(&anchor);
                thread::spawn(move || admission.record(failure()))
            })
            .collect();
        let mut recorded = vec![admit(&anchor).record(failure())];
        recorded.extend(others.into_iter().map(|other| other.join().unwrap()));
        assert_eq!(recorded, [Recorded::Applied; 3]);
        assert_eq!(state(anchor.cell()), State::Open);
        assert_eq!(trips.load(Ordering::Relaxed), 1);
    });
}

fn a_count_beside_a_step_is_not_lost() {
    explore(Some(3), || {
        let anchor = circuit(Rules {
            failure_threshold: 9,
            ..rules()
        });
        let mut one = admit(&anchor);
        let one = thread::spawn(move || one.record(failure()));
        // One with a hint needs the lock, and moves no generation.
        let mut hinted = admit(&anchor);
        let hinted = thread::spawn(move || {
            let failure = Failure::transient().with_retry_after(Duration::from_secs(1));
            hinted.record(failure.into())
        });
        admit(&anchor).record(failure());
        one.join().unwrap();
        hinted.join().unwrap();
        assert_eq!(streak(anchor.cell()), 3);
        assert_eq!(state(anchor.cell()), State::Closed);
    });
}

fn a_success_beside_a_trip_changes_nothing() {
    explore(Some(3), || {
        let anchor = circuit(Rules {
            failure_threshold: 1,
            ..rules()
        });
        let mut slow = admit(&anchor);
        let mut other = admit(&anchor);
        let mut failing = admit(&anchor);
        let slow = thread::spawn(move || slow.record(Outcome::Success));
        let other = thread::spawn(move || other.record(Outcome::Success));
        assert_eq!(failing.record(failure()), Recorded::Applied);
        slow.join().unwrap();
        other.join().unwrap();
        assert_eq!(state(anchor.cell()), State::Open);
        assert_eq!(streak(anchor.cell()), 1);
    });
}

fn word_and_moment_are_of_one_generation() {
    explore(None, || {
        let anchor = circuit(Rules {
            failure_threshold: 1,
            recovery_duration: Duration::from_secs(30),
            ..Rules::default()
        });
        let fail = |anchor: &Arc<Anchor<Circuit>>, now| {
            let ticket = acquire_at(anchor, now).unwrap();
            record_at(anchor, now, ticket, failure());
        };
        fail(&anchor, at(0));
        let other = Arc::clone(&anchor);
        let other = thread::spawn(move || {
            reset(other.cell());
            fail(&other, at(100));
        });
        let cell = anchor.cell();
        let word = cell.word_before_until();
        // A busy word is asked for no moment.
        if let (false, Some(until)) = (word.is_busy(), cell.until(word)) {
            let expected = match word.generation() {
                1 => at(30),
                2 => Moment::NEVER,
                3 => at(130),
                _ => panic!("{word:?}"),
            };
            assert_eq!(until, expected, "{word:?}");
        }
        other.join().unwrap();
        assert_eq!(cell.until(cell.word_before_until()), Some(at(130)));
    });
}

fn a_first_wait_misses_no_transition() {
    explore(None, || {
        let anchor = circuit(rules());
        let other = Arc::clone(&anchor);
        let other = thread::spawn(move || force_open(other.cell()));
        let woken = Woken::new();
        let waker = Waker::from(StdArc::clone(&woken));
        let mut waiter = None;
        anchor
            .cell()
            .wait(&mut waiter, &mut Context::from_waker(&waker));
        let word = anchor.cell().word();
        let saw = word.is_busy() || word.generation() == 1;
        other.join().unwrap();
        assert!(saw || woken.times() == 1);
    });
}

fn a_second_wait_misses_no_transition() {
    explore(None, || {
        let anchor = circuit(rules());
        let mut waiter = None;
        anchor
            .cell()
            .wait(&mut waiter, &mut Context::from_waker(Waker::noop()));
        reset(anchor.cell());
        let other = Arc::clone(&anchor);
        let other = thread::spawn(move || force_open(other.cell()));
        let woken = Woken::new();
        let waker = Waker::from(StdArc::clone(&woken));
        anchor
            .cell()
            .wait(&mut waiter, &mut Context::from_waker(&waker));
        let word = anchor.cell().word();
        let saw = word.is_busy() || word.generation() == 2;
        other.join().unwrap();
        assert!(saw || woken.times() == 1);
    });
}

fn a_waiter_that_goes_is_not_woken_and_harms_nobody() {
    explore(Some(3), || {
        let anchor = circuit(rules());
        let stays = Woken::new();
        let goes = Woken::new();
        let mut staying = None;
        let mut going = None;
        let waker = Waker::from(StdArc::clone(&stays));
        anchor
            .cell()
            .wait(&mut staying, &mut Context::from_waker(&waker));
        let waker = Waker::from(StdArc::clone(&goes));
        anchor
            .cell()
            .wait(&mut going, &mut Context::from_waker(&waker));
        drop(waker);
        let other = Arc::clone(&anchor);
        let other = thread::spawn(move || force_open(other.cell()));
        drop(going);
        let woken = goes.times();
        assert_eq!(StdArc::strong_count(&goes), 1, "its waker went with it");
        other.join().unwrap();
        assert_eq!(goes.times(), woken);
        assert_eq!(stays.times(), 1);
    });
}

// ===== the notes =====

fn events_come_in_order_and_one_at_a_time() {
    explore(Some(3), || {
        let seen = StdArc::new(StdMutex::new(Vec::new()));
        let list = StdArc::clone(&seen);
        let listening = AtomicBool::new(false);
        let anchor = observed(
            rules(),
            watching(move |event| {
                let Event::Transition { generation, .. } = event else {
                    panic!("{event:?}");
                };
                assert!(!listening.swap(true, Ordering::Relaxed));
                // A place for others to come between.
                thread::yield_now();
                list.lock().unwrap().push(*generation);
                listening.store(false, Ordering::Relaxed);
            }),
        );
        let others: Vec<_> = (0..2)
            .map(|_| {
                let anchor = Arc::clone(&anchor);
                thread::spawn(move || reset(anchor.cell()))
            })
            .collect();
        reset(anchor.cell());
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
        let back = StdArc::new(StdMutex::new(None::<Arc<Anchor<Circuit>>>));
        let way = StdArc::clone(&back);
        let anchor = observed(
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
                    reset(way.unwrap().cell());
                }
                list.lock().unwrap().push(*generation);
            }),
        );
        *back.lock().unwrap() = Some(Arc::clone(&anchor));
        let other = Arc::clone(&anchor);
        let other = thread::spawn(move || force_open(other.cell()));
        reset(anchor.cell());
        other.join().unwrap();
        drop(back.lock().unwrap().take());
        assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
    });
}

// ===== permits =====

fn lease_or_verdict_counts_not_both() {
    explore(None, || {
        let anchor = circuit(Rules {
            failure_threshold: 1,
            recovery_duration: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(30),
            ..Rules::default()
        });
        let ticket = acquire_at(&anchor, at(0)).unwrap();
        record_at(&anchor, at(0), ticket, failure());
        let probe = acquire_at(&anchor, at(30)).unwrap();
        assert_eq!(probe.role, Role::Probe);
        let other = Arc::clone(&anchor);
        let late = thread::spawn(move || acquire_at(&other, at(60)));
        let recorded = record_at(&anchor, at(59), probe, Outcome::Success);
        let late = late.join().unwrap();
        let trips = anchor
            .cell()
            .look(|circuit, word, rules| circuit.snapshot(word, rules, at(60)).trips);
        match recorded {
            Recorded::Applied => {
                assert_eq!(late.map(|ticket| ticket.role), Some(Role::Ordinary));
                assert_eq!((state(anchor.cell()), trips), (State::Closed, 1));
            }
            Recorded::Stale => {
                assert_eq!(late, None);
                assert_eq!((state(anchor.cell()), trips), (State::Open, 2));
            }
        }
    });
}

fn a_lease_is_renewed_or_over_not_both() {
    explore(None, || {
        let (anchor, probe) = probing(Duration::ZERO);
        let other = Arc::clone(&anchor);
        let late = thread::spawn(move || acquire_at(&other, at(60)));
        let cell = anchor.cell();
        renew_at(cell, at(59), probe);
        let word = cell.word_before_until();
        let seen = word.generation() == probe.generation
            && !word.is_busy()
            && cell.until(word) == Some(at(89));
        let late = late.join().unwrap();
        let recorded = record_at(&anchor, at(60), probe, Outcome::Success);
        if let Some(next) = late {
            assert_eq!(next.role, Role::Probe);
            assert!(!seen, "a second probe beside one whose renewal was seen");
            assert_eq!(recorded, Recorded::Stale);
            let now = cell.look(|circuit, word, rules| circuit.snapshot(word, rules, at(61)));
            assert_eq!(now.state, State::HalfOpen);
            assert_eq!(now.time_left, Some(Duration::from_secs(29)));
            assert_eq!(cell.until(cell.word()), Some(at(90)));
        } else {
            assert_eq!(recorded, Recorded::Applied);
            assert_eq!(state(cell), State::Closed);
        }
    });
}

fn a_renewal_beside_a_step_is_not_lost() {
    let beside = |step: fn(&Arc<Anchor<Circuit>>, Ticket)| {
        explore(None, move || {
            let (anchor, probe) = probing(Duration::ZERO);
            let stale = Ticket {
                generation: 0,
                role: Role::Ordinary,
            };
            let other = Arc::clone(&anchor);
            let other = thread::spawn(move || step(&other, stale));
            renew_at(anchor.cell(), at(59), probe);
            other.join().unwrap();
            let cell = anchor.cell();
            assert_eq!(cell.until(cell.word()), Some(at(89)));
            assert_eq!(acquire_at(&anchor, at(88)), None);
            let recorded = record_at(&anchor, at(88), probe, Outcome::Success);
            assert_eq!(recorded, Recorded::Applied);
        });
    };
    beside(|anchor, _| assert_eq!(acquire_at(anchor, at(59)), None));
    beside(|anchor, stale| {
        let recorded = record_at(anchor, at(59), stale, failure());
        assert_eq!(recorded, Recorded::Stale);
    });
}

fn a_renewal_never_leaks_into_the_next_generation() {
    let beside = |until, step: fn(&Arc<Anchor<Circuit>>)| {
        explore(None, move || {
            let (anchor, probe) = probing(Duration::from_secs(20));
            let other = Arc::clone(&anchor);
            let other = thread::spawn(move || step(&other));
            renew_at(anchor.cell(), at(59), probe);
            other.join().unwrap();
            let cell = anchor.cell();
            let word = cell.word();
            // Either the step came before the renewal, or it found the lease renewed and left it so.
            let until = if word.generation() == probe.generation {
                at(89)
            } else {
                until
            };
            assert_eq!(cell.until(word), Some(until));
            cell.look(|circuit, _, _| assert_eq!(Machine::until(circuit), until));
        });
    };
    beside(at(80), |anchor| {
        assert_eq!(acquire_at(anchor, at(60)), None)
    });
    beside(Moment::NEVER, |anchor| force_open(anchor.cell()));
    beside(Moment::NEVER, |anchor| reset(anchor.cell()));
    beside(at(90), |anchor| {
        reset(anchor.cell());
        let ticket = acquire_at(anchor, at(70)).unwrap();
        record_at(anchor, at(70), ticket, failure());
    });
}

fn a_reader_beside_a_renewal_is_told_no_other_generations_moment() {
    explore(Some(3), || {
        let (anchor, probe) = probing(Duration::from_secs(20));
        let other = Arc::clone(&anchor);
        let renewal = thread::spawn(move || renew_at(other.cell(), at(59), probe));
        let other = Arc::clone(&anchor);
        let late = thread::spawn(move || assert_eq!(acquire_at(&other, at(60)), None));
        let cell = anchor.cell();
        let look = || {
            let word = cell.word_before_until();
            if let (false, Some(until)) = (word.is_busy(), cell.until(word)) {
                let fits = match word.generation() {
                    2 => until == at(60) || until == at(89),
                    3 => until == at(80),
                    _ => panic!("{word:?}"),
                };
                assert!(fits, "{word:?} {until:?}");
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
        let anchor = circuit(Rules {
            failure_threshold: 1,
            recovery_duration: Duration::ZERO,
            on_cancel: Cancelled::Release,
            ..rules()
        });
        let stale = Permit::new(admit(&anchor));
        admit(&anchor).record(failure());
        let probe = Permit::new(admit(&anchor));
        assert!(probe.is_probe());
        let probe = thread::spawn(move || drop(probe));
        let stale = thread::spawn(move || drop(stale));
        let early = gate::acquire(anchor.cell());
        probe.join().unwrap();
        stale.join().unwrap();
        let late = gate::acquire(anchor.cell());
        assert!(early.is_ok() != late.is_ok(), "{early:?} {late:?}");
    });
}

fn the_last_permit_frees_everything() {
    explore(Some(3), || {
        // Loom itself looks that no `Arc` of its own is left.
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
        let anchor = observed(rules(), watching(move |_| drop(StdArc::clone(&witness))));
        let own = Arc::new(anchor.again());
        let one = Permit::new(admit(&own));
        let two = Permit::new(admit(&anchor));
        let one = thread::spawn(move || drop((own, one, keyed)));
        let two = thread::spawn(move || two.failure());
        drop((anchor, circuits));
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
            let mut admission = admit_in(&other, 1).unwrap();
            let guarded = admission.is_guarded();
            admission.record(failure());
            guarded
        });
        admit_in(&circuits, 2).unwrap().record(Outcome::Success);
        if other.join().unwrap() {
            let anchor = circuits.keyed().store().peek(&1);
            assert_eq!(anchor.map(|anchor| state(anchor.cell())), Some(State::Open));
        }
    });
}

fn a_held_cell_stays_in_the_store() {
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
            let anchor = circuits.keyed().store().peek(&1);
            assert_eq!(anchor.map(|anchor| state(anchor.cell())), Some(State::Open));
        }
    });
}

fn one_key_has_one_cell() {
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
        // Either the call ran in the cell that is gone, or in one that is there.
        if let Ok(admission) = admit_in(&circuits, 1) {
            assert!(admission.is_guarded());
        }
        let anchor = circuits.keyed().store().peek(&1).unwrap();
        assert!(
            !anchor.cell().word().is_busy(),
            "it is not the one that is gone"
        );
        assert_eq!(circuits.keyed().store().keys(), [1]);
    });
}

fn a_cell_that_is_looked_up_while_it_is_filed_is_found() {
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
            let anchor = other.keyed().store().get(&1).unwrap();
            reset(anchor.cell());
        });
        let second = circuits.keyed().get_or_insert(2).is_ok();
        other.join().unwrap();
        assert!(circuits.keyed().get_or_insert(3).is_ok(), "{second}");
    });
}

fn a_filed_cell_that_was_looked_up_is_found() {
    explore(Some(3), || {
        let circuits = circuits(
            1,
            Rules {
                failure_threshold: 1,
                ..rules()
            },
        );
        admit_in(&circuits, 1).unwrap().record(failure());
        assert!(
            circuits.keyed().get_or_insert(2).is_err(),
            "filed as cooling"
        );
        let other = Arc::clone(&circuits);
        let other = thread::spawn(move || {
            let anchor = other.keyed().store().get(&1).unwrap();
            reset(anchor.cell());
        });
        drop(circuits.keyed().get_or_insert(3));
        other.join().unwrap();
        assert!(circuits.keyed().get_or_insert(4).is_ok());
    });
}
