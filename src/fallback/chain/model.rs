//! The chain beside an independent, naive model: several turns in flight, any outcomes, and time.
//!
//! The model knows neither generations nor epochs. It numbers the turns, and remembers which turn
//! was the first one after a change.

use std::time::Duration;

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};

use super::driver::timestamp;
use super::{Chain, Readied, Role, Rules, Server};
use crate::fallback::Exhausted;
use crate::machinery::denied::Denied;
use crate::machinery::event_queue::EventQueue;
use crate::machinery::machine::Machine;
use crate::vocabulary::{Failure, FailureKind, FallbackState, Outcome, Reason};

/// A step that the chain and the model both take.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(Readied),
    Finish(usize, Outcome),
    Frame(usize),
    Wait(u64),
    Disable(usize, bool),
    Reset,
}

/// The settings that vary.
#[derive(Clone, Debug)]
struct Settings {
    entries: usize,
    trip_threshold: u32,
    needed: u32,
    budget: u32,
    probation: Option<u32>,
    bench: Option<u64>,
    reset_on_success: bool,
    last_resort: bool,
}

const COOLDOWN: u64 = 10;
const LEASE: u64 = 7;
const CAP: u64 = 25;

impl Settings {
    fn rules(&self) -> Rules {
        let mut rules = Rules::new("p".into());
        rules.entries = (0..self.entries).map(|n| format!("b{n}").into()).collect();
        rules.trip_threshold = self.trip_threshold;
        rules.recovery_successes_needed = self.needed;
        rules.max_fail_count = self.budget;
        rules.probation_limit = self.probation;
        rules.bench = self.bench.map(Duration::from_secs);
        rules.strikes_reset_on_success = self.reset_on_success;
        rules.recovery_timeout = Duration::from_secs(COOLDOWN);
        rules.probe_timeout = Duration::from_secs(LEASE);
        rules.retry_after_cap = Duration::from_secs(CAP);
        if self.last_resort {
            rules.when_exhausted = Exhausted::LastResort;
        }
        rules
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Primary,
    Fallback { due: u64 },
    Recovering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Primary,
    /// The primary, because nobody else can serve.
    Uncounted,
    Backup(usize),
}

#[derive(Clone, Debug, Default)]
struct Backup {
    strikes: u32,
    disabled: bool,
    spent_at: Option<u64>,
}

/// The naive model. Its times are seconds.
struct Naive {
    set: Settings,
    now: u64,
    mode: Mode,
    failures_in_a_row: u32,
    good_probes: u32,
    bad_probes: u32,
    hints: Vec<u64>,
    probe: Option<(usize, u64)>,
    trips: u64,
    turns: Vec<Who>,
    /// The first turn that was admitted after the last transition.
    since_transition: usize,
    /// The first turn that was admitted after the chain was cleared.
    since_clear: usize,
    backups: Vec<Backup>,
}

impl Naive {
    fn new(set: &Settings) -> Self {
        Self {
            set: set.clone(),
            now: 0,
            mode: Mode::Primary,
            failures_in_a_row: 0,
            good_probes: 0,
            bad_probes: 0,
            hints: Vec::new(),
            probe: None,
            trips: 0,
            turns: Vec::new(),
            since_transition: 0,
            since_clear: 0,
            backups: vec![Backup::default(); set.entries],
        }
    }

    /// Lets one second pass, so that leases and benches end on time.
    fn tick(&mut self) {
        self.now += 1;
        if let Some((_, end)) = self.probe {
            if self.now == end {
                self.probe = None;
                self.bad_probe();
            }
        }
        if let Some(bench) = self.set.bench {
            for backup in &mut self.backups {
                if backup.spent_at.is_some_and(|at| self.now >= at + bench) {
                    backup.spent_at = None;
                    backup.strikes = 0;
                }
            }
        }
    }

    fn bad_probe(&mut self) {
        self.good_probes = 0;
        self.bad_probes += 1;
        if self
            .set
            .probation
            .is_some_and(|limit| self.bad_probes >= limit)
        {
            self.trip();
        }
    }

    fn trip(&mut self) {
        let hinted = self.hints.drain(..).max().unwrap_or(0);
        self.mode = Mode::Fallback {
            due: hinted.max(self.now + COOLDOWN),
        };
        self.failures_in_a_row = 0;
        self.good_probes = 0;
        self.bad_probes = 0;
        self.probe = None;
        self.trips += 1;
        self.since_transition = self.turns.len();
    }

    fn clear(&mut self) {
        self.mode = Mode::Primary;
        self.failures_in_a_row = 0;
        self.good_probes = 0;
        self.bad_probes = 0;
        self.hints.clear();
        self.probe = None;
        self.since_transition = self.turns.len();
        self.since_clear = self.turns.len();
        for backup in &mut self.backups {
            backup.strikes = 0;
            backup.spent_at = None;
        }
    }

    fn live(&self) -> Option<usize> {
        self.backups
            .iter()
            .position(|backup| !backup.disabled && backup.strikes < self.set.budget)
    }

    fn is_due(&self) -> bool {
        match self.mode {
            Mode::Primary => false,
            Mode::Fallback { due } => self.now >= due,
            Mode::Recovering => self.probe.is_none(),
        }
    }

    /// The model that would serve, and whether as the probe. Otherwise the reason of the refusal,
    /// and the wait.
    fn who(&self) -> Result<(Who, bool), (Reason, u64)> {
        if self.mode == Mode::Primary || self.is_due() {
            return Ok((Who::Primary, self.mode != Mode::Primary));
        }
        if let Some(backup) = self.live() {
            return Ok((Who::Backup(backup), false));
        }
        if self.backups.is_empty() || self.set.last_resort {
            return Ok((Who::Uncounted, false));
        }
        match (self.mode, self.probe) {
            (Mode::Fallback { due }, _) => Err((Reason::FallbackExhausted, due - self.now)),
            (_, Some((_, end))) => Err((Reason::ProbeInFlight, end - self.now)),
            _ => unreachable!("due"),
        }
    }

    fn begin(&mut self, readied: Readied) -> Result<(Who, bool), (Reason, u64)> {
        let (who, probe) = match readied {
            Readied::Entry(entry) => (Who::Backup(entry), false),
            Readied::Primary => self.who()?,
            Readied::Nothing => match self.who()? {
                (Who::Backup(entry), _) => (Who::Backup(entry), false),
                _ => return Err((Reason::NotReady, 0)),
            },
        };
        if matches!(self.mode, Mode::Fallback { due } if self.now >= due) {
            self.mode = Mode::Recovering;
            self.since_transition = self.turns.len();
        }
        if probe {
            self.probe = Some((self.turns.len(), self.now + LEASE));
        }
        self.turns.push(who);
        Ok((who, probe))
    }

    /// Renews the lease if the turn is the probe in flight. Returns whether it is.
    fn frame(&mut self, turn: usize) -> bool {
        match &mut self.probe {
            Some((probe, end)) if *probe == turn => {
                *end = self.now + LEASE;
                true
            }
            _ => false,
        }
    }

    fn finish(&mut self, turn: usize, outcome: Outcome) {
        let failure = match outcome {
            Outcome::Failure(failure) => Some(failure),
            _ => None,
        };
        let hint = failure
            .and_then(|failure| failure.retry_after())
            .map(|wait| self.now + wait.as_secs().min(CAP));
        let kind = failure.map(|failure| failure.kind());
        match self.turns[turn] {
            Who::Backup(entry) if turn >= self.since_clear => {
                let backup = &mut self.backups[entry];
                let spent = backup.strikes >= self.set.budget;
                if kind.is_some() {
                    backup.strikes += 1;
                    if kind == Some(FailureKind::Fatal) {
                        backup.strikes = backup.strikes.max(self.set.budget);
                    }
                    if !spent && backup.strikes >= self.set.budget {
                        backup.spent_at = Some(self.now);
                    }
                } else if outcome == Outcome::Success && self.set.reset_on_success && !spent {
                    backup.strikes = 0;
                }
            }
            Who::Uncounted | Who::Backup(_) => {}
            Who::Primary if self.probe.is_some_and(|(probe, _)| probe == turn) => {
                self.probe = None;
                self.hints.extend(hint);
                match (outcome, kind) {
                    (_, Some(FailureKind::Transient)) => self.bad_probe(),
                    (_, Some(_)) => self.trip(),
                    (Outcome::Success, _) => {
                        self.good_probes += 1;
                        self.bad_probes = 0;
                        self.hints.clear();
                        if self.good_probes == self.set.needed {
                            self.clear();
                        }
                    }
                    _ => {}
                }
            }
            Who::Primary if self.mode == Mode::Primary && turn >= self.since_transition => {
                self.hints.extend(hint);
                match (outcome, kind) {
                    (_, Some(kind)) => {
                        self.failures_in_a_row += 1;
                        if kind == FailureKind::Fatal
                            || self.failures_in_a_row >= self.set.trip_threshold
                        {
                            self.trip();
                        }
                    }
                    (Outcome::Success, _) => {
                        self.failures_in_a_row = 0;
                        self.hints.clear();
                    }
                    _ => {}
                }
            }
            Who::Primary => {
                if let (Mode::Fallback { due }, Some(_)) = (self.mode, kind) {
                    let due = due.max(self.now + COOLDOWN).max(hint.unwrap_or(0));
                    self.mode = Mode::Fallback { due };
                }
            }
        }
    }

    fn compare(&self, chain: &Chain, rules: &Rules) {
        let now = timestamp(self.now);
        let seen = chain.snapshot(chain.packed(), rules, now);
        let state = match self.mode {
            Mode::Primary => FallbackState::Primary,
            Mode::Fallback { .. } => FallbackState::Fallback,
            Mode::Recovering => FallbackState::Recovering,
        };
        assert_eq!(seen.state, state);
        assert_eq!(seen.due, self.is_due());
        assert_eq!(seen.consecutive_failures, self.failures_in_a_row);
        assert_eq!(seen.probe_successes, self.good_probes);
        assert_eq!(seen.probe_failures, self.bad_probes);
        assert_eq!(
            (seen.trips, seen.fallback_activated),
            (self.trips, self.trips > 0)
        );
        let deadline = match (self.mode, self.probe) {
            (Mode::Fallback { due }, _) => Some(due.saturating_sub(self.now)),
            (Mode::Recovering, None) => Some(0),
            _ => None,
        };
        assert_eq!(seen.time_until_probe, deadline.map(Duration::from_secs));
        let lease = self
            .probe
            .map(|(_, end)| Duration::from_secs(end - self.now));
        assert_eq!(seen.lease_left, lease);
        for (seen, backup) in seen.entries.iter().zip(&self.backups) {
            assert_eq!(
                (seen.strikes, seen.disabled),
                (backup.strikes, backup.disabled)
            );
            assert_eq!(
                seen.failed,
                backup.disabled || backup.strikes >= self.set.budget
            );
        }
        let oracle = chain.would_serve(rules, now);
        assert_eq!(translated(oracle), self.who());
    }
}

/// An answer of the chain in the model's terms.
fn translated(answer: Result<Server, Denied>) -> Result<(Who, bool), (Reason, u64)> {
    match answer {
        Ok(Server::Primary(Role::Ordinary)) => Ok((Who::Primary, false)),
        Ok(Server::Primary(Role::Probe)) => Ok((Who::Primary, true)),
        Ok(Server::Primary(Role::Uncounted)) => Ok((Who::Uncounted, false)),
        Ok(Server::Entry(entry)) => Ok((Who::Backup(entry), false)),
        Err(denied) => Err((denied.reason, denied.wait.expect("an end").as_secs())),
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    let counts = (0..3_usize, 1..4_u32, 1..4_u32, 1..4_u32);
    let limits = (
        proptest::option::of(1..4_u32),
        proptest::option::of(1..30_u64),
    );
    (counts, limits, any::<bool>(), any::<bool>()).prop_map(
        |(counts, limits, reset_on_success, last_resort)| Settings {
            entries: counts.0,
            trip_threshold: counts.1,
            needed: counts.2,
            budget: counts.3,
            probation: limits.0,
            bench: limits.1,
            reset_on_success,
            last_resort,
        },
    )
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let failure = prop_oneof![
        6 => Just(Failure::transient()),
        2 => Just(Failure::rate_limited()),
        1 => Just(Failure::fatal()),
    ];
    let hinted =
        (failure, proptest::option::weighted(0.2, 0..40_u64)).prop_map(|(failure, hint)| {
            hint.map_or(failure, |hint| {
                failure.with_retry_after(Duration::from_secs(hint))
            })
        });
    prop_oneof![
        4 => Just(Outcome::Success),
        1 => Just(Outcome::Neutral),
        6 => hinted.prop_map(Outcome::Failure),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let readied = prop_oneof![
        8 => Just(Readied::Primary),
        1 => Just(Readied::Nothing),
        1 => (0..3_usize).prop_map(Readied::Entry),
    ];
    let disabled = (0..3_usize, any::<bool>());
    prop_oneof![
        10 => readied.prop_map(Step::Begin),
        10 => (0..5_usize, outcome()).prop_map(|(turn, outcome)| Step::Finish(turn, outcome)),
        5 => (0..5_usize).prop_map(Step::Frame),
        4 => (0..12_u64).prop_map(Step::Wait),
        1 => disabled.prop_map(|(entry, disabled)| Step::Disable(entry, disabled)),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn the_chain_does_what_the_naive_model_does(
        settings in settings(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let rules = settings.rules();
        let mut chain = Chain::new(&rules);
        let mut naive = Naive::new(&settings);
        let mut events = EventQueue::default();
        let mut in_flight = Vec::new();
        for step in steps {
            let now = timestamp(naive.now);
            match step {
                Step::Begin(Readied::Entry(entry)) if entry >= settings.entries => continue,
                Step::Begin(readied) => {
                    let ticket = chain.begin(&rules, now, readied, &mut events);
                    let turn = naive.turns.len();
                    let server = ticket.map(|ticket| ticket.server);
                    assert_eq!(translated(server), naive.begin(readied));
                    in_flight.extend(ticket.map(|ticket| (turn, ticket)));
                }
                Step::Finish(index, outcome) if index < in_flight.len() => {
                    let (turn, ticket) = in_flight.remove(index);
                    chain.record(&rules, now, ticket, outcome, &mut events);
                    naive.finish(turn, outcome);
                }
                Step::Frame(index) if index < in_flight.len() => {
                    let (turn, ticket) = in_flight[index];
                    let (packed, deadline) = (chain.packed(), chain.deadline());
                    let renewed = Chain::renewed(packed, deadline, ticket, &rules, now);
                    assert_eq!(renewed.is_some(), naive.frame(turn));
                    chain.take_over(packed, renewed.unwrap_or(deadline));
                }
                Step::Finish(..) | Step::Frame(_) => continue,
                Step::Wait(seconds) => (0..seconds).for_each(|_| naive.tick()),
                Step::Disable(entry, _) if entry >= settings.entries => continue,
                Step::Disable(entry, disabled) => {
                    chain.set_disabled(entry, disabled, &mut events);
                    naive.backups[entry].disabled = disabled;
                }
                Step::Reset => {
                    chain.reset(&rules, now, &mut events);
                    naive.clear();
                    naive.trips = 0;
                }
            }
            naive.compare(&chain, &rules);
        }
    }
}
