//! Every state that a circuit can reach, with small rules and few calls in flight, and what must hold in each.
//!
//! A state is the circuit, the calls in flight, and the time. It is written down as seen from now: all instants as distances from the present, and the
//! generations as current or older, because no rule asks for more. So there are finitely many, and the walk ends when no step
//! leads to a new one. Time passes one nanosecond a step with rules of a few nanoseconds, which visits just before, at, and
//! just after every edge.

use std::collections::HashSet;
use std::time::Duration;

use super::driver::Driver;
use super::{Backoff, Rate, Retention, State, Window};
use super::{Cancelled, Circuit, Failure, Outcome, Phase, Reason, Role, Rules, Ticket, Timestamp};

const NS: Duration = Duration::from_nanos(1);
/// The present of every state as it is written down.
const NOW: Timestamp = Timestamp::from_nanos(1_000_000);
const GENERATION: u32 = 1_000;
const MOST_IN_FLIGHT: usize = 3;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    circuit: Circuit,
    in_flight: Vec<Ticket>,
}

impl Place {
    fn of(driver: &Driver, in_flight: &[Ticket]) -> Self {
        let mut circuit = driver.settled();
        let mut in_flight = in_flight.to_vec();
        for ticket in &mut in_flight {
            // An older generation never comes again.
            let age = u32::from(ticket.generation != circuit.generation);
            ticket.generation = GENERATION - age;
        }
        in_flight.sort_by_key(|ticket| (ticket.generation, ticket.role == Role::Probe));
        circuit.generation = GENERATION;
        // Only the jitter, which is off here, asks how often it tripped.
        circuit.trips = 0;
        circuit.deadline = match circuit.phase {
            Phase::Open => from_now(circuit.deadline, driver.now, Duration::ZERO),
            // Of a lease that is over it matters how long, until the cooldown after it is over too.
            Phase::Probing => from_now(circuit.deadline, driver.now, circuit.next),
            _ => circuit.deadline,
        };
        circuit.hint = from_now(circuit.hint, driver.now, Duration::ZERO);
        Self { circuit, in_flight }
    }

    fn driver(&self, rules: &Rules) -> Driver {
        Driver::of(rules.clone(), self.circuit.clone(), NOW)
    }

    fn current(&self) -> impl Iterator<Item = &Ticket> {
        let current = |ticket: &&Ticket| ticket.generation == self.circuit.generation;
        self.in_flight.iter().filter(current)
    }
}

/// An instant as a distance from now; all that lie longer ago than `long` are the same.
fn from_now(at: Timestamp, now: Timestamp, long: Duration) -> Timestamp {
    if at == Timestamp::NEVER || at == Timestamp::START {
        return at;
    }
    let ago = now.duration_since(at).min(long);
    Timestamp::from_nanos(NOW.saturating_add(at.duration_since(now)).as_nanos() - nanos(ago))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// All places that can be reached, and how many steps lead from one to another.
fn walk(rules: &Rules) -> (HashSet<Place>, usize) {
    let mut driver = Driver::new(rules.clone());
    driver.now = NOW;
    let start = Place::of(&driver, &[]);
    let mut seen = HashSet::from([start.clone()]);
    let mut next = vec![start];
    let mut steps = 0;
    while let Some(place) = next.pop() {
        holds(&place, rules);
        for reached in steps_from(&place, rules) {
            steps += 1;
            assert!(steps < 200_000, "there is no end to it");
            if seen.insert(reached.clone()) {
                next.push(reached);
            }
        }
    }
    (seen, steps)
}

fn steps_from(place: &Place, rules: &Rules) -> Vec<Place> {
    let mut reached = Vec::new();
    let mut step = |f: &dyn Fn(&mut Driver, &mut Vec<Ticket>)| {
        let mut driver = place.driver(rules);
        let mut in_flight = place.in_flight.clone();
        f(&mut driver, &mut in_flight);
        reached.push(Place::of(&driver, &in_flight));
    };
    step(&|driver, _| {
        driver.advance(NS);
    });
    step(&|driver, _| driver.force_open());
    step(&|driver, _| driver.reset());
    if place.in_flight.len() < MOST_IN_FLIGHT {
        step(&|driver, in_flight| in_flight.extend(driver.try_acquire()));
    }
    let outcomes = [
        Outcome::Success,
        Outcome::Neutral,
        Failure::transient().into(),
        Failure::rate_limited()
            .with_retry_after(Duration::MAX)
            .into(),
        Failure::fatal().into(),
    ];
    for (n, ticket) in place.in_flight.iter().enumerate() {
        if place.in_flight[..n].contains(ticket) {
            continue; // The same as another.
        }
        step(&|driver, in_flight| {
            driver.renew(in_flight[n]);
        });
        for outcome in outcomes {
            step(&|driver, in_flight| {
                driver.record(in_flight.remove(n), outcome);
            });
        }
        for ran in [Duration::ZERO, Duration::MAX] {
            step(&|driver, in_flight| {
                driver.cancel(in_flight.remove(n), ran);
            });
        }
    }
    reached
}

/// What must hold in every place.
fn holds(place: &Place, rules: &Rules) {
    let driver = place.driver(rules);
    let circuit = &place.circuit;
    let packed = driver.packed();

    // Never two live probes, and nobody else in their generation; nobody at all in one that is open.
    let live = place.current().count();
    match circuit.phase {
        Phase::Closed => assert!(place.current().all(|ticket| ticket.role == Role::Ordinary)),
        Phase::Probing => {
            assert!(live <= 1, "two probes");
            assert!(place.current().all(|ticket| ticket.role == Role::Probe));
        }
        Phase::Open | Phase::Vacant | Phase::Forced => assert_eq!(live, 0, "{circuit:?}"),
    }

    // Asking changes nothing; the driver compares the oracle and the gate, each both ways.
    let answer = driver.would_allow();
    let looked = (driver.snapshot(), driver.retention());
    for _ in 0..3 {
        assert_eq!(driver.would_allow(), answer);
        assert_eq!((driver.snapshot(), driver.retention()), looked);
    }
    assert!(driver.settled() == *circuit && driver.packed() == packed);
    let mut gate = driver.clone();
    assert_eq!(gate.try_acquire().map(|_| ()), answer);

    // What it shows of itself fits the answer.
    let snapshot = looked.0;
    let (refused, reason) = (answer.is_err(), answer.err().map(|denied| denied.reason));
    assert_eq!(snapshot.forced, reason == Some(Reason::ForcedOpen));
    let half_open = snapshot.state == State::HalfOpen;
    assert_eq!(half_open && refused, reason == Some(Reason::ProbeInFlight));
    assert_eq!(snapshot.due, snapshot.state == State::Open && !refused);
    assert_eq!(looked.1 == Retention::Live, refused);
    assert!(snapshot.streak <= rules.failure_threshold);
    assert!(circuit.successes < rules.success_threshold);
    if snapshot.state == State::Closed {
        assert!(snapshot.streak < rules.failure_threshold);
        assert_eq!(circuit.next, rules.recovery_duration);
    }

    is_not_wedged(&driver);
}

/// Time alone leads to an admitted call, and each refusal says how much of it.
fn is_not_wedged(driver: &Driver) {
    if driver.snapshot().forced {
        let mut reset = driver.clone();
        reset.reset();
        assert!(reset.try_acquire().is_ok());
        return;
    }
    // Whether or not anybody asks in between.
    let mut silent = driver.clone();
    let mut asking = driver.clone();
    let mut refusals = Vec::new();
    while let Err(denied) = silent.would_allow() {
        assert_eq!(asking.try_acquire(), Err(denied));
        refusals.push(denied.reason);
        assert!(refusals.len() <= 2, "{refusals:?}");
        let wait = denied.wait.expect("a time");
        let sooner = wait
            .checked_sub(NS)
            .expect("some time, or it would be admitted");
        let mut just_before = silent.clone();
        just_before.advance(sooner);
        let still = just_before.would_allow().unwrap_err();
        assert_eq!((still.reason, still.wait), (denied.reason, Some(NS)));
        silent.advance(wait);
        asking.advance(wait);
    }
    let (probe_out, open) = (Reason::ProbeInFlight, Reason::CircuitOpen);
    let longest = [probe_out, open];
    let fits = [&[][..], &[open], &[probe_out], &longest].contains(&&refusals[..]);
    assert!(fits, "{refusals:?}");
    assert!(silent.try_acquire().is_ok());
    assert!(asking.try_acquire().is_ok());
}

fn rules(failures: u32, successes: u32, on_cancel: Cancelled) -> Rules {
    Rules {
        failure_threshold: failures,
        success_threshold: successes,
        recovery_duration: NS * 3,
        probe_timeout: NS * 2,
        retry_after_cap: NS * 4,
        on_cancel,
        ..Rules::default()
    }
}

#[test]
fn every_reachable_state_is_sound_and_none_is_wedged() {
    let after = Cancelled::FailureAfter(NS);
    let mut counts = Vec::new();
    for failures in [1, 2] {
        for successes in [1, 2] {
            for on_cancel in [
                Cancelled::Ignore,
                Cancelled::Release,
                Cancelled::Failure,
                after,
            ] {
                let (places, steps) = walk(&rules(failures, successes, on_cancel));
                println!(
                    "{failures} failures, {successes} successes, {on_cancel:?}: {} states, {steps} steps",
                    places.len()
                );
                counts.push(places.len());
            }
        }
    }
    assert_eq!(
        counts,
        [
            450, 342, 342, 342, 711, 495, 495, 495, 951, 735, 735, 735, 1473, 1041, 1041, 1041
        ]
    );
}

#[test]
fn every_reachable_state_is_sound_with_a_cooldown_that_grows() {
    let mut rules = rules(2, 2, Cancelled::Ignore);
    let (factor, max) = (2.0, NS * 7);
    rules.backoff = Some(Backoff { factor, max });
    let (places, steps) = walk(&rules);
    println!("growing: {} states, {steps} steps", places.len());
    assert_eq!(places.len(), 5410);
}

#[test]
fn every_reachable_state_is_sound_with_no_cooldown_at_all() {
    let mut rules = rules(2, 2, Cancelled::Release);
    rules.recovery_duration = Duration::ZERO;
    let (places, steps) = walk(&rules);
    println!("no cooldown: {} states, {steps} steps", places.len());
    assert_eq!(places.len(), 799);
}

#[test]
fn every_reachable_state_is_sound_with_a_window() {
    let mut rules = rules(2, 2, Cancelled::Ignore);
    let window = Window::Calls(3);
    let fraction = 0.5;
    rules.rate = Some(Rate { fraction, window });
    rules.minimum_calls = 2;
    let (places, steps) = walk(&rules);
    println!("a window: {} states, {steps} steps", places.len());
    assert_eq!(places.len(), 9407);
}
