//! An exhaustive walk over the reachable states.
//!
//! Thresholds are small, and three turns are in flight. Time goes in steps that fall just before,
//! at and just after each deadline.

use std::collections::HashSet;
use std::time::Duration;

use super::driver::{renew, timestamp};
use super::event::PendingEvent;
use super::{Chain, Phase, Readied, Role, Rules, Server, Since, Ticket};
use crate::fallback::Exhausted;
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::EventQueue;
use crate::vocabulary::{Failure, Outcome, Reason};

/// The present time of every situation, in seconds. All timestamps are relative to it.
const NOW: u64 = 100;
/// Earlier timestamps count as this one. No cooldown, lease or bench reaches further back.
const PAST: u64 = NOW - 10;

const LEASE: u64 = 2;
const COOLDOWN: u64 = 2;
const HINT: u64 = 3;
const BENCH: u64 = 3;

/// A chain, and the tickets of the turns in flight.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Situation {
    chain: Chain,
    in_flight: Vec<Ticket>,
}

/// The timestamp `at`, seen `ahead` seconds later.
fn shifted(at: Timestamp, ahead: u64) -> Timestamp {
    if at == Timestamp::NEVER || at == Timestamp::START {
        return at;
    }
    let seconds = at.duration_since(Timestamp::START).as_secs();
    timestamp((seconds - ahead).max(PAST))
}

impl Situation {
    /// The situation in its normal form, so that equal situations are met once.
    ///
    /// Of generations and epochs only "the current one" and "an older one" matter, and of time
    /// only what is counted from now.
    fn normalized(mut self, rules: &Rules) -> Self {
        let chain = &mut self.chain;
        for ticket in &mut self.in_flight {
            let since = ticket.since;
            let mut generation = u32::from(since.generation() == chain.generation);
            let mut epoch = u32::from(since.epoch() == chain.epoch);
            match &mut ticket.server {
                Server::Primary(Role::Uncounted) => (generation, epoch) = (0, 0),
                Server::Primary(role) => {
                    epoch = 0;
                    // A probe of an older generation is as stale as any other turn.
                    if generation == 0 {
                        *role = Role::Ordinary;
                    }
                }
                Server::Entry(_) => generation = 0,
            }
            ticket.since = Since::new(generation, epoch);
        }
        self.in_flight.sort_by_key(|ticket| format!("{ticket:?}"));
        (chain.generation, chain.epoch) = (1, 1);
        chain.trips = chain.trips.min(1);
        chain.entries_flip = false;
        chain.last = None;
        chain.failures = chain.failures.min(rules.probation_limit.unwrap_or(0));
        for entry in &mut chain.entries {
            entry.strikes = entry.strikes.min(rules.max_fail_count);
            if entry.strikes < rules.max_fail_count || rules.bench.is_none() {
                entry.spent_at = Timestamp::START;
            }
        }
        self
    }

    /// The situation `seconds` later.
    fn later(&self, seconds: u64) -> Self {
        let mut later = self.clone();
        later.chain.deadline = shifted(later.chain.deadline, seconds);
        later.chain.hint = shifted(later.chain.hint, seconds);
        for entry in &mut later.chain.entries {
            entry.spent_at = shifted(entry.spent_at, seconds);
        }
        later
    }

    /// Asserts what must hold in every situation.
    fn check(&self, rules: &Rules) {
        let Self { chain, in_flight } = self;
        let now = timestamp(NOW);
        let oracle = chain.would_serve(rules, now);
        let gate = chain
            .clone()
            .begin(rules, now, Readied::Primary, &mut EventQueue::default());
        assert_eq!(
            oracle,
            gate.map(|ticket| ticket.server),
            "the oracle is not the gate"
        );

        let probes = in_flight.iter().filter(|ticket| {
            ticket.server == Server::Primary(Role::Probe)
                && ticket.since.generation() == chain.generation
        });
        assert!(probes.count() <= 1, "two probes");

        let (phase, deadline) = chain.phase_at(rules, now);
        let live = chain.entries.iter().any(|entry| entry.is_live(rules, now));
        let exhausted =
            phase == Phase::Fallback && now < deadline && !live && !chain.entries.is_empty();
        assert_eq!(
            oracle.err().map(|denied| denied.reason) == Some(Reason::FallbackExhausted),
            exhausted && rules.when_exhausted == Exhausted::Refuse,
            "exhausted: tripped, cooling down, and no entry live"
        );
        if let Err(denied) = oracle {
            let wait = denied.wait.expect("an end");
            assert!(wait > Duration::ZERO);
        }

        // The chain is never stuck: time alone leads to a turn of the primary.
        let later = self.later(LEASE + COOLDOWN + HINT + 1);
        assert!(matches!(
            later.chain.would_serve(rules, now),
            Ok(Server::Primary(Role::Ordinary | Role::Probe))
        ));
    }

    /// All situations that one step leads to.
    fn next(&self, rules: &Rules) -> Vec<Self> {
        let now = timestamp(NOW);
        let mut all = vec![self.later(1)];
        let mut step = |f: &dyn Fn(&mut Self, &mut EventQueue<PendingEvent>)| {
            let mut next = self.clone();
            f(&mut next, &mut EventQueue::default());
            all.push(next);
        };
        if self.in_flight.len() < 3 {
            let entries = (0..self.chain.entries.len()).map(Readied::Entry);
            for readied in [Readied::Primary, Readied::Nothing]
                .into_iter()
                .chain(entries)
            {
                step(&|next, events| {
                    let ticket = next.chain.begin(rules, now, readied, events);
                    next.in_flight.extend(ticket);
                });
            }
        }
        let hint = Duration::from_secs(HINT);
        let outcomes = [
            Outcome::Success,
            Outcome::Neutral,
            Failure::transient().into(),
            Failure::rate_limited().with_retry_after(hint).into(),
            Failure::fatal().into(),
        ];
        for index in 0..self.in_flight.len() {
            for outcome in outcomes {
                step(&|next, events| {
                    let ticket = next.in_flight.remove(index);
                    next.chain.record(rules, now, ticket, outcome, events);
                });
            }
            step(&|next, _| {
                let ticket = next.in_flight[index];
                renew(&mut next.chain, rules, now, ticket);
            });
            // A turn is dropped, and says nothing.
            step(&|next, _| {
                next.in_flight.remove(index);
            });
        }
        for index in 0..self.chain.entries.len() {
            let disabled = !self.chain.entries[index].disabled;
            step(&|next, events| next.chain.set_disabled(index, disabled, events));
        }
        step(&|next, events| next.chain.reset(rules, now, events));
        all.into_iter().map(|next| next.normalized(rules)).collect()
    }
}

/// Walks until nothing new is found. Returns the number of states.
fn walk(set: impl FnOnce(&mut Rules)) -> usize {
    let mut rules = Rules::new("p".into());
    rules.entries = vec!["a".into()];
    rules.trip_threshold = 2;
    rules.recovery_successes_needed = 2;
    rules.max_fail_count = 1;
    rules.probe_timeout = Duration::from_secs(LEASE);
    rules.recovery_timeout = Duration::from_secs(COOLDOWN);
    set(&mut rules);
    let start = Situation {
        chain: Chain::new(&rules),
        in_flight: Vec::new(),
    };
    let start = start.normalized(&rules);
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(situation) = open.pop() {
        situation.check(&rules);
        for next in situation.next(&rules) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    println!("{} states", seen.len());
    seen.len()
}

#[test]
fn every_reachable_state_without_a_chain_is_sound() {
    assert_eq!(walk(|rules| rules.entries.clear()), 1044);
}

#[test]
fn every_reachable_state_with_one_backup_is_sound() {
    assert_eq!(walk(|rules| rules.max_fail_count = 2), 11_552);
}

#[test]
fn every_reachable_state_with_two_backups_is_sound() {
    assert_eq!(walk(|rules| rules.entries.push("b".into())), 77_576);
}

#[test]
fn every_reachable_state_with_probation_and_a_bench_is_sound() {
    let states = walk(|rules| {
        rules.probation_limit = Some(2);
        rules.bench = Some(Duration::from_secs(BENCH));
    });
    assert_eq!(states, 36_668);
}

#[test]
fn every_reachable_state_with_a_last_resort_is_sound() {
    let states = walk(|rules| rules.when_exhausted = Exhausted::LastResort);
    assert_eq!(states, 12_628);
}
