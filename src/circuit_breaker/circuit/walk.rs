//! Visits every state that a circuit can reach, and checks what must hold in each.
//!
//! The settings are small, and few calls are in flight. A state is the circuit, the calls in
//! flight, and the time. It is normalised: instants are distances from now, and a generation is
//! current or older, because no rule asks for more. The number of states is therefore finite, and
//! the walk ends when no step leads to a new one.
//!
//! Each step lets one nanosecond pass at most, and the settings are a few nanoseconds long. So the
//! walk visits the instants just before, at and just after every edge.

use std::collections::HashSet;
use std::time::Duration;

use super::driver::Driver;
use super::{Backoff, Circuit, Phase, Rate, Role, Rules, Ticket, Window};
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Retention;
use crate::vocabulary::{Cancelled, Failure, Outcome, Reason, State};

const NS: Duration = Duration::from_nanos(1);
/// The time now, in every normalised state.
const NOW: Timestamp = Timestamp::from_nanos(1_000_000);
/// The current generation, in every normalised state.
const GENERATION: u32 = 1_000;
const MAX_IN_FLIGHT: usize = 3;

/// A normalised state.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Node {
    circuit: Circuit,
    in_flight: Vec<Ticket>,
}

impl Node {
    fn of(driver: &Driver, in_flight: &[Ticket]) -> Self {
        let mut circuit = driver.synced();
        let mut in_flight = in_flight.to_vec();
        for ticket in &mut in_flight {
            // No older generation comes again, so they are all the same.
            let age = u32::from(ticket.generation != circuit.generation);
            ticket.generation = GENERATION - age;
        }
        in_flight.sort_by_key(|ticket| (ticket.generation, ticket.role == Role::Probe));
        circuit.generation = GENERATION;
        // The number of trips matters to the jitter alone, and these rules have no jitter.
        circuit.trips = 0;
        circuit.deadline = match circuit.phase {
            Phase::Open => from_now(circuit.deadline, driver.now, Duration::ZERO),
            // How long the lease has been over matters until the cooldown after it is over too.
            Phase::Probing => from_now(circuit.deadline, driver.now, circuit.next_cooldown),
            _ => circuit.deadline,
        };
        circuit.retry_deadline = from_now(circuit.retry_deadline, driver.now, Duration::ZERO);
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

/// An instant as a distance from now. Instants that are longer ago than `long` are all the same.
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

/// All states that can be reached, and the number of steps between them.
fn walk(rules: &Rules) -> (HashSet<Node>, usize) {
    let mut driver = Driver::new(rules.clone());
    driver.now = NOW;
    let start = Node::of(&driver, &[]);
    let mut seen = HashSet::from([start.clone()]);
    let mut next = vec![start];
    let mut steps = 0;
    while let Some(node) = next.pop() {
        check(&node, rules);
        for reached in steps_from(&node, rules) {
            steps += 1;
            assert!(steps < 200_000, "the walk does not end");
            if seen.insert(reached.clone()) {
                next.push(reached);
            }
        }
    }
    (seen, steps)
}

fn steps_from(node: &Node, rules: &Rules) -> Vec<Node> {
    let mut reached = Vec::new();
    let mut step = |f: &dyn Fn(&mut Driver, &mut Vec<Ticket>)| {
        let mut driver = node.driver(rules);
        let mut in_flight = node.in_flight.clone();
        f(&mut driver, &mut in_flight);
        reached.push(Node::of(&driver, &in_flight));
    };
    step(&|driver, _| {
        driver.advance(NS);
    });
    step(&|driver, _| driver.force_open());
    step(&|driver, _| driver.reset());
    if node.in_flight.len() < MAX_IN_FLIGHT {
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
    for (n, ticket) in node.in_flight.iter().enumerate() {
        if node.in_flight[..n].contains(ticket) {
            continue; // The same ticket was taken before.
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

/// Asserts what must hold in every state.
fn check(node: &Node, rules: &Rules) {
    let driver = node.driver(rules);
    let circuit = &node.circuit;
    let packed = driver.packed();

    // There are never two live probes. A half-open generation has no other calls, and an open one
    // has none at all.
    let live = node.current().count();
    match circuit.phase {
        Phase::Closed => assert!(node.current().all(|ticket| ticket.role == Role::Ordinary)),
        Phase::Probing => {
            assert!(live <= 1, "two probes");
            assert!(node.current().all(|ticket| ticket.role == Role::Probe));
        }
        Phase::Open | Phase::Vacant | Phase::Forced => assert_eq!(live, 0, "{circuit:?}"),
    }

    // Asking changes nothing. The driver compares the oracle with the gate, and each with its
    // lock-free form.
    let answer = driver.would_allow();
    let shown = (driver.snapshot(), driver.retention());
    for _ in 0..3 {
        assert_eq!(driver.would_allow(), answer);
        assert_eq!((driver.snapshot(), driver.retention()), shown);
    }
    assert!(driver.synced() == *circuit && driver.packed() == packed);
    let mut gate = driver.clone();
    assert_eq!(gate.try_acquire().map(|_| ()), answer);

    // The snapshot and the retention fit the answer.
    let snapshot = shown.0;
    let (refused, reason) = (answer.is_err(), answer.err().map(|denied| denied.reason));
    assert_eq!(snapshot.forced, reason == Some(Reason::ForcedOpen));
    let half_open = snapshot.state == State::HalfOpen;
    assert_eq!(half_open && refused, reason == Some(Reason::ProbeInFlight));
    assert_eq!(snapshot.due, snapshot.state == State::Open && !refused);
    assert_eq!(shown.1 == Retention::Live, refused);
    assert!(snapshot.streak <= rules.failure_threshold);
    assert!(circuit.successes < rules.success_threshold);
    if snapshot.state == State::Closed {
        assert!(snapshot.streak < rules.failure_threshold);
        assert_eq!(circuit.next_cooldown, rules.recovery_duration);
    }

    is_not_wedged(&driver);
}

/// Asserts that time alone leads to an admitted call, and that each refusal says how much time.
fn is_not_wedged(driver: &Driver) {
    if driver.snapshot().forced {
        let mut reset = driver.clone();
        reset.reset();
        assert!(reset.try_acquire().is_ok());
        return;
    }
    // Whether or not somebody asks in between.
    let mut silent = driver.clone();
    let mut asking = driver.clone();
    let mut refusals = Vec::new();
    while let Err(denied) = silent.would_allow() {
        assert_eq!(asking.try_acquire(), Err(denied));
        refusals.push(denied.reason);
        assert!(refusals.len() <= 2, "{refusals:?}");
        let wait = denied.wait.expect("a wait");
        let sooner = wait
            .checked_sub(NS)
            .expect("a call without a wait is admitted");
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
                let (nodes, steps) = walk(&rules(failures, successes, on_cancel));
                println!(
                    "{failures} failures, {successes} successes, {on_cancel:?}: {} states, {steps} steps",
                    nodes.len()
                );
                counts.push(nodes.len());
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
    let (nodes, steps) = walk(&rules);
    println!("growing: {} states, {steps} steps", nodes.len());
    assert_eq!(nodes.len(), 5410);
}

#[test]
fn every_reachable_state_is_sound_without_a_cooldown() {
    let mut rules = rules(2, 2, Cancelled::Release);
    rules.recovery_duration = Duration::ZERO;
    let (nodes, steps) = walk(&rules);
    println!("no cooldown: {} states, {steps} steps", nodes.len());
    assert_eq!(nodes.len(), 799);
}

#[test]
fn every_reachable_state_is_sound_with_a_window() {
    let mut rules = rules(2, 2, Cancelled::Ignore);
    let window = Window::Calls(3);
    let fraction = 0.5;
    rules.rate = Some(Rate { fraction, window });
    rules.minimum_calls = 2;
    let (nodes, steps) = walk(&rules);
    println!("a window: {} states, {steps} steps", nodes.len());
    assert_eq!(nodes.len(), 9407);
}
