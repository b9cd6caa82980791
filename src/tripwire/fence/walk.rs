//! Every state that a fence can reach, and what must hold in each.
//!
//! The rules are small and few calls are in flight. A place is the fence, the calls in flight,
//! and the time. It is written down as seen from now:
//!
//! - the run's end as a distance from now,
//! - generations as current or older,
//! - counts no further than their limits,
//! - of the turns only those that are left.
//!
//! No rule asks for more. The number of places is therefore finite, and the walk ends when no step
//! leads to a new one.

use std::collections::HashSet;
use std::time::Duration;

use super::call::{CallFacts, Role, Ticket};
use super::driver::{Run, exempt, facts};
use super::{Fence, Phase, Rules};
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::EventQueue;
use crate::machinery::machine::{Machine, Retention};
use crate::vocabulary::{Failure, FailureKind, Outcome, Reason, State};

const NS: Duration = Duration::from_nanos(1);
/// The present of every place as it is written down.
const NOW: Timestamp = Timestamp::from_nanos(1_000);
const GENERATION: u32 = 1_000;
const MOST_IN_FLIGHT: usize = 3;
const MOST_TURNS_LEFT: u32 = 3;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    fence: Fence,
    in_flight: Vec<Ticket>,
}

impl Place {
    fn of(run: &Run, in_flight: &[Ticket]) -> Self {
        let mut fence = run.fence.clone();
        let mut in_flight = in_flight.to_vec();
        for ticket in &mut in_flight {
            // An older generation never comes again.
            let age = u32::from(ticket.generation != fence.generation);
            ticket.generation = GENERATION - age;
            // Numbers matter where answers are compared, which they are not here.
            ticket.number = 0;
        }
        in_flight.sort_by_key(|ticket| (ticket.generation, ticket.role == Role::Probe));
        fence.generation = GENERATION;
        (fence.last_number, fence.streak_start) = (0, 0);
        fence.budget -= fence.turns;
        fence.turns = 0;
        fence.identical = fence.identical.min(run.rules.identical_limit);
        fence.errors = fence.errors.min(run.rules.error_limit);
        fence.trips = 0;
        if let Some(trip) = &mut fence.last_trip {
            trip.count = None;
        }
        if fence.deadline != Timestamp::NEVER {
            fence.deadline = NOW.saturating_add(fence.deadline.duration_since(run.now));
        }
        Self { fence, in_flight }
    }

    fn run(&self, rules: &Rules) -> Run {
        Run {
            rules: rules.clone(),
            fence: self.fence.clone(),
            now: NOW,
            events: EventQueue::default(),
        }
    }

    fn current(&self) -> impl Iterator<Item = &Ticket> {
        let current = |ticket: &&Ticket| ticket.generation == self.fence.generation;
        self.in_flight.iter().filter(current)
    }
}

fn calls() -> [CallFacts; 3] {
    [facts(1), facts(2), exempt()]
}

/// All places that can be reached, and how many steps lead from one to another.
fn walk(rules: &Rules) -> (HashSet<Place>, usize) {
    let mut run = Run::of(rules.clone());
    run.now = NOW;
    let start = Place::of(&run, &[]);
    let mut seen = HashSet::from([start.clone()]);
    let mut next = vec![start];
    let mut steps = 0;
    while let Some(place) = next.pop() {
        assert_sound(&place, rules);
        for reached in steps_from(&place, rules) {
            steps += 1;
            assert!(steps < 3_000_000, "the walk does not end");
            if seen.insert(reached.clone()) {
                next.push(reached);
            }
        }
    }
    (seen, steps)
}

fn steps_from(place: &Place, rules: &Rules) -> Vec<Place> {
    let mut reached = Vec::new();
    let mut step = |f: &dyn Fn(&mut Run, &mut Vec<Ticket>)| {
        let mut run = place.run(rules);
        let mut in_flight = place.in_flight.clone();
        f(&mut run, &mut in_flight);
        reached.push(Place::of(&run, &in_flight));
    };
    if rules.deadline.is_some() {
        step(&|run, _| run.now = run.now.saturating_add(NS));
    }
    step(&|run, _| run.fence.reset(&run.rules, &mut run.events));
    if place.fence.budget < MOST_TURNS_LEFT {
        step(&|run, _| run.fence.extend(1, &mut run.events));
    }
    step(&|run, _| {
        let kind = FailureKind::Transient;
        let Run {
            fence,
            rules,
            events,
            now,
        } = run;
        fence.readiness_failed(rules, *now, kind, events);
    });
    step(&|run, _| {
        let _ = run
            .fence
            .refuse_if_none_allowed(&run.rules, run.now, &mut run.events);
    });
    if place.in_flight.len() < MOST_IN_FLIGHT {
        for call in calls() {
            step(&|run, in_flight| in_flight.extend(run.ask(&call)));
        }
    }
    let outcomes = [
        Outcome::Success,
        Outcome::Neutral,
        Failure::transient().into(),
    ];
    for (n, ticket) in place.in_flight.iter().enumerate() {
        if place.in_flight[..n].contains(ticket) {
            continue; // The same as another.
        }
        for outcome in outcomes {
            step(&|run, in_flight| {
                run.tell(in_flight.remove(n), outcome, None);
            });
        }
        step(&|run, in_flight| {
            let ticket = in_flight.remove(n);
            if ticket.role == Role::Probe {
                run.fence.lose_probe(ticket, &mut run.events);
            }
        });
    }
    reached
}

/// Checks that hold in every place.
fn assert_sound(place: &Place, rules: &Rules) {
    let run = place.run(rules);
    let fence = &place.fence;
    let snapshot = run.snapshot();

    // Never two live probes, and no other call in their generation. None at all in an open one.
    let live = place.current().count();
    match fence.phase {
        Phase::Closed => assert!(place.current().all(|ticket| ticket.role == Role::Ordinary)),
        Phase::Probing => {
            assert!(live <= 1, "two probes");
            assert!(place.current().all(|ticket| ticket.role == Role::Probe));
        }
        Phase::Open | Phase::Armed | Phase::Expired => assert_eq!(live, 0, "{fence:?}"),
    }

    // Asking changes nothing. The gate answers as the oracle does: the driver compares them.
    let some = run.fence.would_allow_some(run.now);
    let mut any = false;
    for call in calls().into_iter().chain([facts(3)]) {
        let answer = run.fence.would_allow(rules, run.now, &call);
        any |= answer;
        let mut gate = place.run(rules);
        assert_eq!(gate.ask(&call).is_ok(), answer);
        // A refused call leaves the error streak and the turns alone.
        let after = gate.snapshot();
        assert_eq!(after.errors, snapshot.errors);
        assert_eq!(after.turns, snapshot.turns + u32::from(answer));
    }
    assert_eq!(any, some);
    assert_eq!(run.fence, *fence);
    assert_eq!(run.snapshot(), snapshot);
    let deadline = || Some(fence.deadline());
    let lock_free = Fence::would_allow_some_lock_free(fence.packed(), deadline, run.now);
    assert_eq!(lock_free, Some(some));

    // The snapshot agrees with itself.
    assert_eq!(snapshot.state == State::Closed, snapshot.reason.is_none());
    assert_eq!(
        snapshot.probing,
        fence.phase == Phase::Probing && snapshot.reason != Some(Reason::Deadline)
    );
    assert!(snapshot.rejects_left <= rules.open_cooldown_rejects);
    let counting = matches!(snapshot.state, State::Open) || snapshot.probing;
    assert_eq!(
        snapshot.rejects_left > 0,
        counting && snapshot.reason != Some(Reason::Deadline)
    );
    assert!(snapshot.turns <= snapshot.turns + snapshot.turns_left);
    let retention = fence.retention(rules, run.now);
    assert_ne!(retention, Retention::Live);
    assert!(retention == Retention::Unclean || snapshot.state == State::Closed);

    assert_not_wedged(run, rules);
}

/// Refusals alone lead to an admitted call, unless the turns are spent or the time is over.
fn assert_not_wedged(mut run: Run, rules: &Rules) {
    let is_final = |run: &Run| {
        let snapshot = run.snapshot();
        snapshot.turns_left == 0 || snapshot.reason == Some(Reason::Deadline)
    };
    if is_final(&run) {
        for _ in 0..20 {
            assert!(run.call(7).is_err());
        }
        run.fence.reset(rules, &mut run.events);
        assert_eq!(run.call(7).is_ok(), rules.max_turns > 0);
        return;
    }
    let mut refusals = 0;
    while run.call(7).is_err() {
        refusals += 1;
        assert!(refusals <= 2 * rules.open_cooldown_rejects, "wedged");
    }
}

fn rules(turns: u32, identical: u32, errors: u32, rejects: u32) -> Rules {
    Rules {
        max_turns: turns,
        identical_limit: identical,
        error_limit: errors,
        open_cooldown_rejects: rejects,
        ..Rules::default()
    }
}

#[test]
fn every_reachable_state_is_sound_and_none_is_wedged() {
    let mut counts = Vec::new();
    for turns in [0, 1, 3] {
        for errors in [1, 2] {
            for rejects in [1, 2] {
                let (places, steps) = walk(&rules(turns, 2, errors, rejects));
                println!(
                    "{turns} turns, {errors} errors, {rejects} rejects: {} states, {steps} steps",
                    places.len()
                );
                counts.push(places.len());
            }
        }
    }
    assert_eq!(
        counts,
        [
            3861, 6259, 5289, 8746, 3855, 6252, 5283, 8739, 3853, 6250, 5279, 8735
        ]
    );
}

#[test]
fn every_reachable_state_is_sound_with_three_identical_calls() {
    let (places, steps) = walk(&rules(3, 3, 2, 2));
    println!("3 identical: {} states, {steps} steps", places.len());
    assert_eq!(places.len(), 12_145);
}

#[test]
fn every_reachable_state_is_sound_with_a_deadline() {
    let mut rules = rules(2, 2, 2, 2);
    rules.deadline = Some(NS * 2);
    let (places, steps) = walk(&rules);
    println!("a deadline: {} states, {steps} steps", places.len());
    assert_eq!(places.len(), 27_383);
}
