//! The interleavings of the fallback: its chain as a shared machine, the gate, the permits, and a
//! service that waits.
//!
//! Each of these was weakened once. The models named failed, and all others passed.
//!
//! | in | weakened | what fails |
//! | --- | --- | --- |
//! | `SharedMachine::mark_busy` | the packed state is loaded, not marked busy | `failures_without_the_lock_trip_a_fallback_once`, `a_fallbacks_lease_is_renewed_or_over_not_both` |
//! | `SharedMachine::mark_busy` | what was counted is not taken over | the first of these |
//! | `SharedMachine::update` | load and store for compare-and-swap | the same |
//! | `SharedMachine::deadline` | `Acquire` to `Relaxed`, or no second look at the packed state | `a_fallbacks_lease_is_renewed_or_over_not_both`, `a_renewal_never_leaks_into_a_fallbacks_next_generation` |
//! | `SharedMachine::publish` | the deadline is stored, not swapped | the same two |
//! | `SharedMachine::publish` | a deadline that has not moved is stored, too | `a_renewal_beside_a_step_of_a_fallback_is_not_lost` |
//! | `SharedMachine::mark_busy` | the deadline is loaded, not read by a write; or that write's `Release` to `Relaxed` | `a_fallbacks_lease_is_renewed_or_over_not_both` |
//! | `SharedMachine::mark_busy` | a renewed deadline is not taken over | the same; `a_renewal_beside_a_step_of_a_fallback_is_not_lost` |
//! | `SharedMachine::renew` | no second try, or no lock around it; or does not look whether the packed state is busy | `a_renewal_beside_a_step_of_a_fallback_is_not_lost` |
//! | `Chain::begin_lock_free` | does not look whether the packed state is busy | `one_of_three_turns_is_the_fallbacks_probe`, `turns_beside_the_probe_of_a_spent_fallback_are_refused` |
//! | `Chain::begin` | the probe takes no slot | the same two, and all models that look at who else serves |
//! | `Chain::expire` | a lease that ends begins no new generation | `lease_or_verdict_counts_in_a_fallback_not_both` |
//! | `Chain::record` | a strike is not judged by its epoch | `a_strike_counts_in_the_fallbacks_epoch_it_began_in` |
//! | `Chain::record` | a budget that is spent wakes nobody | `a_fallback_that_waits_misses_no_change_of_an_entry` |
//! | `Chain::set_disabled` | wakes nobody | the same; `a_fallback_that_waits_for_a_probe_misses_no_change_of_an_entry` |
//! | `SharedMachine::step` | the wakers are taken before the packed state is marked | `a_fallback_that_waits_misses_no_transition` |
//! | `Fallback::poll_slow` | no second look at who would serve | the same; `a_fallback_that_waits_misses_no_change_of_an_entry` |
//! | `Fallback::poll_slow` | no second look at who stands in | `a_fallback_that_waits_for_a_probe_misses_no_change_of_an_entry` |
//! | `CallPermit::record` | keeps its reference to the machine | `the_last_permit_of_a_fallback_frees_everything`; and, by loom's own count of what is left, all models that record |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::{Ready, ready};
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::thread;
use tower_service::Service;

use super::backends::Services;
use super::chain::{Chain, Readied, Role, Rules, Server, Since, Ticket};
use super::gate::Gate;
use super::handle::FallbackHandle;
use super::permit::CallPermit;
use super::same_turn::Once;
use super::service::Fallback;
use super::snapshot::FallbackSnapshot;
use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::denied::Denied;
use crate::machinery::judge::Head;
use crate::machinery::machine::Machine;
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::{Environment, SharedMachine};
use crate::vocabulary::{AsBoxError, Reason};
use crate::vocabulary::{Event, FallbackState, TransitionReason};
use crate::vocabulary::{Failure, Outcome, Recorded, RefusalsAsFailures};

/// Every model and its name.
pub const ALL: &[(&str, fn())] = &[
    (
        "one_of_three_turns_is_the_fallbacks_probe",
        one_of_three_turns_is_the_fallbacks_probe,
    ),
    (
        "turns_beside_the_probe_of_a_spent_fallback_are_refused",
        turns_beside_the_probe_of_a_spent_fallback_are_refused,
    ),
    (
        "failures_without_the_lock_trip_a_fallback_once",
        failures_without_the_lock_trip_a_fallback_once,
    ),
    (
        "lease_or_verdict_counts_in_a_fallback_not_both",
        lease_or_verdict_counts_in_a_fallback_not_both,
    ),
    (
        "a_fallbacks_lease_is_renewed_or_over_not_both",
        a_fallbacks_lease_is_renewed_or_over_not_both,
    ),
    (
        "a_renewal_beside_a_step_of_a_fallback_is_not_lost",
        a_renewal_beside_a_step_of_a_fallback_is_not_lost,
    ),
    (
        "a_renewal_never_leaks_into_a_fallbacks_next_generation",
        a_renewal_never_leaks_into_a_fallbacks_next_generation,
    ),
    (
        "a_strike_counts_in_the_fallbacks_epoch_it_began_in",
        a_strike_counts_in_the_fallbacks_epoch_it_began_in,
    ),
    (
        "a_fallback_that_waits_misses_no_transition",
        a_fallback_that_waits_misses_no_transition,
    ),
    (
        "a_fallback_that_waits_misses_no_change_of_an_entry",
        a_fallback_that_waits_misses_no_change_of_an_entry,
    ),
    (
        "a_fallback_that_waits_for_a_probe_misses_no_change_of_an_entry",
        a_fallback_that_waits_for_a_probe_misses_no_change_of_an_entry,
    ),
    (
        "the_last_permit_of_a_fallback_frees_everything",
        the_last_permit_of_a_fallback_frees_everything,
    ),
];

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

/// One failure trips, one success recovers, one strike fails an entry. The cooldown and the lease
/// outlast the model.
fn rules(entries: &[&str]) -> Rules {
    Rules {
        entries: entries.iter().map(|name| (*name).into()).collect(),
        trip_threshold: 1,
        recovery_timeout: LONG,
        recovery_successes_needed: 1,
        max_fail_count: 1,
        probe_timeout: LONG,
        ..Rules::new("a".into())
    }
}

/// The same rules, with a cooldown that is over at once.
fn due(entries: &[&str]) -> Rules {
    Rules {
        recovery_timeout: Duration::ZERO,
        ..rules(entries)
    }
}

fn observed(rules: Rules, observers: Observers) -> Gate {
    Gate::made(Environment {
        rules,
        clock: Clock::start(),
        observers,
    })
}

fn gate(rules: Rules) -> Gate {
    observed(rules, Observers::default())
}

/// Makes a gate whose primary has failed.
fn tripped(rules: Rules) -> Gate {
    let mut gate = gate(rules);
    primary(&mut gate).record(failure());
    gate
}

fn watching(observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Observers {
    let mut observers = Observers::default();
    observers.add(StdArc::new(observer));
    observers
}

/// Begins a turn of a service whose primary is ready.
fn primary(gate: &mut Gate) -> CallPermit {
    gate.begin(Readied::Primary).unwrap()
}

/// Begins a turn of a service whose backup `entry` is ready.
fn backup(gate: &mut Gate, entry: usize) -> CallPermit {
    gate.begin(Readied::Entry(entry)).unwrap()
}

fn begin_at(machine: &SharedMachine<Chain>, now: Timestamp) -> Result<Ticket, Denied> {
    machine.step(|chain, rules, events| chain.begin(rules, now, Readied::Primary, events))
}

fn record_at(
    machine: &SharedMachine<Chain>,
    now: Timestamp,
    ticket: Ticket,
    outcome: Outcome,
) -> Recorded {
    machine.step(|chain, rules, events| chain.record(rules, now, ticket, outcome, events))
}

/// Renews the lease as a frame does that the probe with this ticket receives.
fn renew_at(machine: &SharedMachine<Chain>, now: Timestamp, ticket: Ticket) {
    machine.renew(|packed, deadline, _| {
        Chain::renewed(packed, deadline, ticket, machine.rules(), now)
    });
}

/// Makes a chain of one backup, with a probe in flight whose lease runs from 60 s to 180 s. A
/// probe that fails trips the chain again.
fn probing() -> (Gate, Ticket) {
    let gate = gate(Rules {
        recovery_timeout: Duration::from_secs(60),
        probe_timeout: Duration::from_secs(120),
        probation_limit: Some(1),
        max_fail_count: 9,
        ..rules(&["b"])
    });
    let machine = gate.machine_ref().machine();
    let ticket = begin_at(machine, at(0)).unwrap();
    record_at(machine, at(0), ticket, failure());
    let probe = begin_at(machine, at(60)).unwrap();
    assert_eq!(probe.server, Server::Primary(Role::Probe));
    (gate, probe)
}

fn snapshot(gate: &Gate) -> FallbackSnapshot {
    let machine = gate.machine_ref().machine();
    machine.read(|chain, packed, rules| chain.snapshot(packed, rules, Timestamp::START))
}

// ===== turns =====

fn one_of_three_turns_is_the_fallbacks_probe() {
    explore(Some(3), || {
        let mut gate = tripped(due(&["b"]));
        let others =
            [gate.clone(), gate.clone()].map(|mut gate| thread::spawn(move || primary(&mut gate)));
        let mut turns = vec![primary(&mut gate)];
        turns.extend(others.into_iter().map(|other| other.join().unwrap()));
        let mut servers: Vec<_> = turns.iter().map(CallPermit::server).collect();
        servers.sort_by_key(|server| *server == Server::Entry(0));
        let probe = Server::Primary(Role::Probe);
        assert_eq!(servers, [probe, Server::Entry(0), Server::Entry(0)]);
        assert_eq!(snapshot(&gate).state, FallbackState::Recovering);
    });
}

fn turns_beside_the_probe_of_a_spent_fallback_are_refused() {
    explore(Some(3), || {
        let mut gate = gate(due(&["b"]));
        backup(&mut gate, 0).record(failure());
        primary(&mut gate).record(failure());
        let turn = |gate: &mut Gate| gate.begin(Readied::Primary).map_err(|denied| denied.reason);
        let others =
            [gate.clone(), gate.clone()].map(|mut gate| thread::spawn(move || turn(&mut gate)));
        let mut turns = vec![turn(&mut gate)];
        turns.extend(others.into_iter().map(|other| other.join().unwrap()));
        turns.sort_by_key(Result::is_err);
        let probe = turns[0].as_ref().unwrap();
        assert_eq!(probe.server(), Server::Primary(Role::Probe));
        for turn in &turns[1..] {
            assert_eq!(*turn.as_ref().unwrap_err(), Reason::ProbeInFlight);
        }
    });
}

fn failures_without_the_lock_trip_a_fallback_once() {
    explore(Some(3), || {
        let trips = StdArc::new(AtomicUsize::new(0));
        let counter = StdArc::clone(&trips);
        let mut gate = observed(
            Rules {
                trip_threshold: 3,
                ..rules(&["b"])
            },
            watching(move |event| {
                if let Event::FallbackTransition {
                    to, reason, first, ..
                } = event
                {
                    assert_eq!(*to, FallbackState::Fallback);
                    assert_eq!(*reason, TransitionReason::FailureThreshold);
                    assert_eq!(*first, Some("b"));
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }),
        );
        let turns = [primary(&mut gate), primary(&mut gate)];
        let others = turns.map(|mut turn| thread::spawn(move || turn.record(failure()).is_some()));
        primary(&mut gate).record(failure());
        for other in others {
            assert!(other.join().unwrap());
        }
        let now = snapshot(&gate);
        assert_eq!((now.state, now.trips), (FallbackState::Fallback, 1));
        assert_eq!(trips.load(Ordering::Relaxed), 1);
    });
}

fn lease_or_verdict_counts_in_a_fallback_not_both() {
    explore(None, || {
        let gate = gate(Rules {
            recovery_timeout: Duration::from_secs(60),
            probe_timeout: Duration::from_secs(120),
            ..rules(&["b"])
        });
        let machine = gate.machine_ref().machine();
        let ticket = begin_at(machine, at(0)).unwrap();
        record_at(machine, at(0), ticket, failure());
        let probe = begin_at(machine, at(60)).unwrap();
        assert_eq!(probe.server, Server::Primary(Role::Probe));
        let other = gate.clone();
        let late = thread::spawn(move || begin_at(other.machine_ref().machine(), at(180)).unwrap());
        let recorded = record_at(machine, at(179), probe, Outcome::Success);
        let late = late.join().unwrap();
        let now = snapshot(&gate);
        let seen = (
            late.server,
            now.state,
            now.probe_failures,
            now.probe_successes,
        );
        let role = |role| Server::Primary(role);
        match recorded {
            Recorded::Applied => {
                assert_eq!(seen, (role(Role::Ordinary), FallbackState::Primary, 0, 0));
            }
            Recorded::Stale => {
                assert_eq!(seen, (role(Role::Probe), FallbackState::Recovering, 1, 0));
            }
        }
    });
}

fn a_fallbacks_lease_is_renewed_or_over_not_both() {
    explore(None, || {
        let (gate, probe) = probing();
        let other = gate.clone();
        let late = thread::spawn(move || begin_at(other.machine_ref().machine(), at(240)).unwrap());
        let machine = gate.machine_ref().machine();
        // When the next turn begins, a renewed lease still runs. Without the renewal, the lease is
        // over, and so is the cooldown after it.
        renew_at(machine, at(179), probe);
        let packed = machine.packed_before_deadline();
        let seen = packed.generation() == probe.since.generation()
            && !packed.is_busy()
            && machine.deadline(packed) == Some(at(299));
        let late = late.join().unwrap();
        let recorded = record_at(machine, at(240), probe, Outcome::Success);
        let now = snapshot(&gate);
        if late.server == Server::Primary(Role::Probe) {
            assert!(!seen, "a second probe beside one whose renewal was seen");
            assert_eq!(recorded, Recorded::Stale);
            assert_eq!((now.state, now.trips), (FallbackState::Recovering, 2));
            assert_eq!(machine.deadline(machine.packed()), Some(at(360)));
        } else {
            assert_eq!(late.server, Server::Entry(0));
            assert_eq!(recorded, Recorded::Applied);
            assert_eq!((now.state, now.trips), (FallbackState::Primary, 1));
        }
    });
}

fn a_renewal_beside_a_step_of_a_fallback_is_not_lost() {
    let beside = |step: fn(&Gate)| {
        explore(None, move || {
            let (gate, probe) = probing();
            let other = gate.clone();
            let other = thread::spawn(move || step(&other));
            let machine = gate.machine_ref().machine();
            renew_at(machine, at(179), probe);
            other.join().unwrap();
            assert_eq!(machine.deadline(machine.packed()), Some(at(299)));
            assert!(begin_at(machine, at(298)).is_ok_and(|turn| turn.server == Server::Entry(0)));
            let recorded = record_at(machine, at(298), probe, Outcome::Success);
            assert_eq!(recorded, Recorded::Applied);
        });
    };
    // A turn that the backup serves.
    beside(|gate| assert!(begin_at(gate.machine_ref().machine(), at(179)).is_ok()));
    // A strike of an entry that has strikes left.
    beside(|gate| {
        let ticket = Ticket {
            since: Since::new(0, 0),
            server: Server::Entry(0),
        };
        let recorded = record_at(gate.machine_ref().machine(), at(179), ticket, failure());
        assert_eq!(recorded, Recorded::Applied);
    });
    // A change of an entry, which changes the packed state.
    beside(|gate| {
        for disabled in [true, false] {
            let machine = gate.machine_ref().machine();
            machine.step(|chain, _, events| chain.set_disabled(0, disabled, events));
        }
    });
}

fn a_renewal_never_leaks_into_a_fallbacks_next_generation() {
    let beside = |deadline, step: fn(&SharedMachine<Chain>)| {
        explore(None, move || {
            let (gate, probe) = probing();
            let other = gate.clone();
            let other = thread::spawn(move || step(other.machine_ref().machine()));
            let machine = gate.machine_ref().machine();
            renew_at(machine, at(179), probe);
            other.join().unwrap();
            let packed = machine.packed();
            // Either the step came before the renewal, or it found the lease renewed and left it
            // alone.
            let deadline = if packed.generation() == probe.since.generation() {
                at(299)
            } else {
                deadline
            };
            assert_eq!(machine.deadline(packed), Some(deadline));
            machine.read(|chain, _, _| assert_eq!(Machine::deadline(chain), deadline));
        });
    };
    beside(at(240), |machine| {
        assert!(begin_at(machine, at(180)).is_ok())
    });
    beside(Timestamp::NEVER, |machine| {
        machine.step(|chain, rules, events| chain.reset(rules, at(100), events));
    });
}

fn a_strike_counts_in_the_fallbacks_epoch_it_began_in() {
    explore(Some(3), || {
        let mut gate = tripped(Rules {
            max_fail_count: 3,
            ..due(&["b"])
        });
        let mut probe = primary(&mut gate);
        let mut old = primary(&mut gate);
        assert_eq!(old.server(), Server::Entry(0));
        let old = thread::spawn(move || old.record(failure()).is_some());
        // The chain is cleared. A turn that begins now belongs to the new epoch.
        probe.record(Outcome::Success);
        backup(&mut gate, 0).record(failure());
        assert!(old.join().unwrap());
        let now = snapshot(&gate);
        assert_eq!(now.state, FallbackState::Primary);
        assert_eq!(now.entries[0].strikes, 1);
    });
}

// ===== services that wait =====

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: StdArc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A service that is always ready, or is never ready and wakes nobody.
#[derive(Clone)]
struct Model {
    ready: bool,
}

impl Service<()> for Model {
    type Response = ();
    type Error = crate::BoxError;
    type Future = Ready<Result<(), crate::BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), crate::BoxError>> {
        if self.ready {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

/// Makes a service whose primary is never ready. Of its backups only the last one is ready.
fn waiting(gate: &Gate) -> impl Service<()> + use<> {
    let last = gate.machine_ref().machine().rules().entries.len() - 1;
    let mut backups = Services::first(Model { ready: last == 0 });
    for entry in 1..=last {
        backups.push(Model {
            ready: entry == last,
        });
    }
    let policies = (RefusalsAsFailures, AsBoxError, (), Once, Head);
    Fallback::new(Model { ready: false }, backups, gate.clone(), policies)
}

/// Polls `service` while `change` runs. The service is ready at once, or it is woken and ready
/// then.
fn miss_nothing(mut service: impl Service<()>, change: impl FnOnce() + Send + 'static) {
    let woken = StdArc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(StdArc::clone(&woken));
    let cx = &mut Context::from_waker(&waker);
    let other = thread::spawn(change);
    let seen = service.poll_ready(cx).is_ready();
    other.join().unwrap();
    assert!(seen || woken.0.load(Ordering::Relaxed) == 1);
    assert!(service.poll_ready(cx).is_ready());
}

fn a_fallback_that_waits_misses_no_transition() {
    explore(Some(3), || {
        let mut gate = gate(rules(&["b"]));
        let mut turn = primary(&mut gate);
        miss_nothing(waiting(&gate), move || drop(turn.record(failure())));
    });
}

fn a_fallback_that_waits_misses_no_change_of_an_entry() {
    // Its budget is spent.
    explore(Some(3), || {
        let mut gate = tripped(rules(&["b", "c"]));
        let mut turn = primary(&mut gate);
        miss_nothing(waiting(&gate), move || drop(turn.record(failure())));
    });
    // It is disabled.
    explore(Some(3), || {
        let gate = tripped(rules(&["b", "c"]));
        let handle = FallbackHandle::new(gate.machine_ref());
        miss_nothing(waiting(&gate), move || handle.disable("b").unwrap());
    });
}

fn a_fallback_that_waits_for_a_probe_misses_no_change_of_an_entry() {
    // The entry that stands in for the primary is no longer live.
    explore(Some(3), || {
        let gate = tripped(due(&["b", "c"]));
        let handle = FallbackHandle::new(gate.machine_ref());
        miss_nothing(waiting(&gate), move || handle.disable("b").unwrap());
    });
    // An entry stands in again.
    explore(Some(3), || {
        let gate = tripped(due(&["b"]));
        let handle = FallbackHandle::new(gate.machine_ref());
        handle.disable("b").unwrap();
        miss_nothing(waiting(&gate), move || handle.enable("b").unwrap());
    });
}

// ===== permits =====

fn the_last_permit_of_a_fallback_frees_everything() {
    explore(Some(3), || {
        // Loom itself checks that none of its own `Arc`s is left.
        let alive = StdArc::new(());
        let witness = StdArc::clone(&alive);
        let mut gate = observed(
            rules(&["b"]),
            watching(move |_| drop(StdArc::clone(&witness))),
        );
        let dropped = primary(&mut gate);
        // The second turn makes a `MachineRef` of its own.
        let mut failing = primary(&mut gate);
        let mut serving = backup(&mut gate.clone(), 0);
        let dropped = thread::spawn(move || drop(dropped));
        let failing = thread::spawn(move || drop(failing.record(failure())));
        drop(gate);
        serving.record(failure());
        dropped.join().unwrap();
        failing.join().unwrap();
        assert_eq!(StdArc::strong_count(&alive), 1);
    });
}
