//! The fence against a naive model that shares no code with it.
//!
//! The model keeps a log of what happened in the run, and works out every count from that log
//! anew. Several calls are in flight. Their results come in any order: early, late or never.

use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::{collection, option};

use super::call::{CallFacts, Role, Ticket};
use super::driver::Run;
use super::packed::PendingEvent;
use super::rules::{Cycles, Rules};
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::Queued;
use crate::tripwire::digest::Digest;
use crate::vocabulary::{Failure, FailureKind, Outcome, Reason, State};

// ===== the model =====

#[derive(Clone, Copy, Debug)]
struct ModelRules {
    turns: usize,
    identical: usize,
    errors: usize,
    rejects: usize,
    deadline: Option<u64>,
    cycles: Option<(usize, usize)>,
    warn_at: Option<usize>,
    by_turn: bool,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    digest: Option<u8>,
    turn: Option<u8>,
    limit: Option<usize>,
}

/// One thing that happened in the run, as far as a rule asks for it.
#[derive(Clone, Copy, Debug)]
enum LogEntry {
    /// A turn was spent: the planner's, if that is known.
    Spent(Option<u8>),
    /// A call with a digest was admitted, or refused as identical.
    Called {
        id: usize,
        digest: u8,
        turn: Option<u8>,
    },
    Answered {
        id: usize,
        answer: u8,
    },
    Succeeded,
    Failed,
    ProbeSucceeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelPhase {
    Closed,
    Open,
    Armed,
    Probing,
    Expired,
}

#[derive(Clone, Debug)]
struct Model {
    rules: ModelRules,
    now: u64,
    started: Option<u64>,
    log: Vec<LogEntry>,
    phase: ModelPhase,
    generation: usize,
    rejects: usize,
    reason: Option<Reason>,
    trips: u64,
    extended: usize,
    calls_seen: usize,
    warned: usize,
}

#[derive(Clone, Copy, Debug)]
struct ModelTicket {
    id: usize,
    generation: usize,
    exempt: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct ModelDenied {
    reason: Reason,
    tripped_by: Option<Reason>,
    count: Option<usize>,
}

impl Model {
    fn new(model_rules: ModelRules) -> Self {
        Self {
            rules: model_rules,
            now: 0,
            started: None,
            log: Vec::new(),
            phase: ModelPhase::Closed,
            generation: 0,
            rejects: 0,
            reason: None,
            trips: 0,
            extended: 0,
            calls_seen: 0,
            warned: 0,
        }
    }

    fn turns(&self) -> usize {
        let spent = |entry: &&LogEntry| matches!(entry, LogEntry::Spent(_));
        self.log.iter().filter(spent).count()
    }

    fn left(&self) -> usize {
        self.rules.turns + self.extended - self.turns()
    }

    fn errors(&self) -> usize {
        let mut count = 0;
        for entry in self.log.iter().rev() {
            match entry {
                LogEntry::Failed => count += 1,
                LogEntry::Succeeded | LogEntry::ProbeSucceeded => break,
                _ => {}
            }
        }
        count
    }

    /// The identical streak: of which digest, and how long.
    fn streak(&self) -> (Option<u8>, usize) {
        let (mut present, mut count) = (None, 0);
        let mut within: Vec<usize> = Vec::new();
        let (mut last_turn, mut last_answer) = (None, None);
        for entry in &self.log {
            match *entry {
                LogEntry::Called { id, digest, turn } => {
                    if present != Some(digest) {
                        (present, count, last_answer) = (Some(digest), 1, None);
                        within.clear();
                    } else if turn.is_none() || turn != last_turn {
                        count += 1;
                    }
                    within.push(id);
                    last_turn = turn;
                }
                LogEntry::Answered { id, answer } if within.contains(&id) => {
                    if last_answer.is_some() && last_answer != Some(answer) {
                        count = 1;
                    }
                    last_answer = Some(answer);
                }
                LogEntry::ProbeSucceeded => (count, last_turn) = (0, None),
                _ => {}
            }
        }
        (present, count)
    }

    /// The last calls, among which cycles are looked for.
    fn remembered(&self, most: usize) -> Vec<(usize, u8, Option<u8>, Option<u8>)> {
        let mut calls: Vec<(usize, u8, Option<u8>, Option<u8>)> = Vec::new();
        for entry in &self.log {
            match *entry {
                LogEntry::Called { id, digest, turn } => {
                    let same = |call: &(usize, u8, Option<u8>, Option<u8>)| {
                        turn.is_some() && (call.1, call.2) == (digest, turn)
                    };
                    if !calls.iter().any(same) {
                        calls.push((id, digest, turn, None));
                    }
                    if calls.len() > most {
                        calls.remove(0);
                    }
                }
                LogEntry::Answered { id, answer } => {
                    let Some(at) = calls.iter().position(|call| call.0 == id) else {
                        continue;
                    };
                    calls[at].3 = Some(answer);
                    let digest = calls[at].1;
                    let mut earlier: Vec<_> = calls[..at].to_vec();
                    earlier.retain(|call| call.1 == digest && call.3.is_some());
                    if earlier.last().is_some_and(|call| call.3 != Some(answer)) {
                        calls = calls.split_off(at);
                    }
                }
                LogEntry::ProbeSucceeded => calls.clear(),
                _ => {}
            }
        }
        calls
    }

    /// How often the cycle that this call would complete has then come.
    fn completes_cycle(&self, digest: u8, turn: Option<u8>) -> Option<usize> {
        let (longest, repeats) = self.rules.cycles?;
        let calls = self.remembered(longest * repeats);
        if turn.is_some() && calls.iter().any(|call| (call.1, call.2) == (digest, turn)) {
            return None;
        }
        let mut all: Vec<u8> = calls.iter().map(|call| call.1).collect();
        all.push(digest);
        for period in 2..=longest {
            if all.len() >= period * repeats {
                let end = &all[all.len() - period * repeats..];
                let varied = end.iter().any(|call| *call != end[0]);
                if varied && end == end[..period].repeat(repeats) {
                    return Some(repeats);
                }
            }
        }
        None
    }

    fn is_expired(&self) -> bool {
        match (self.rules.deadline, self.started) {
            (Some(deadline), Some(started)) => self.now >= started + deadline,
            _ => false,
        }
    }

    fn move_to(&mut self, phase: ModelPhase) {
        self.phase = phase;
        self.generation += 1;
        self.rejects = 0;
    }

    fn trip(&mut self, reason: Reason) {
        self.reason = Some(reason);
        self.trips += 1;
        self.move_to(if reason == Reason::Deadline {
            ModelPhase::Expired
        } else {
            ModelPhase::Open
        });
    }

    fn refuse_tripped(&mut self, count: Option<usize>) -> ModelDenied {
        let denied = ModelDenied {
            reason: Reason::TripwireOpen,
            tripped_by: self.reason,
            count,
        };
        self.rejects += 1;
        if self.rejects == self.rules.rejects {
            self.move_to(if self.phase == ModelPhase::Open {
                ModelPhase::Armed
            } else {
                ModelPhase::Open
            });
        }
        denied
    }

    /// Refuses the call, if every call is refused.
    fn refuse_if_none_allowed(&mut self, count: Option<usize>) -> Option<ModelDenied> {
        let denied = |reason, count| ModelDenied {
            reason,
            tripped_by: None,
            count,
        };
        if self.is_expired() {
            if self.phase != ModelPhase::Expired {
                self.trip(Reason::Deadline);
            }
            return Some(denied(Reason::Deadline, None));
        }
        if matches!(self.phase, ModelPhase::Open | ModelPhase::Probing) {
            return Some(self.refuse_tripped(count));
        }
        if self.left() == 0 && !self.rules.by_turn {
            self.trip(Reason::MaxTurns);
            return Some(denied(Reason::MaxTurns, Some(self.turns())));
        }
        None
    }

    /// `count` is that of the present trip. The caller keeps it.
    fn call(&mut self, call: Call, count: Option<usize>) -> Result<ModelTicket, ModelDenied> {
        if let Some(denied) = self.refuse_if_none_allowed(count) {
            return Err(denied);
        }
        let was_spent = call.turn.is_some()
            && self
                .log
                .iter()
                .any(|entry| matches!(entry, LogEntry::Spent(turn) if *turn == call.turn));
        if !was_spent && self.left() == 0 {
            self.trip(Reason::MaxTurns);
            return Err(ModelDenied {
                reason: Reason::MaxTurns,
                tripped_by: None,
                count: Some(self.turns()),
            });
        }
        let id = self.calls_seen;
        self.calls_seen += 1;
        if let Some(digest) = call.digest {
            let completes_cycle = self.completes_cycle(digest, call.turn);
            self.log.push(LogEntry::Called {
                id,
                digest,
                turn: call.turn,
            });
            let streak = self.streak().1;
            let count = if streak >= call.limit.unwrap_or(self.rules.identical) {
                Some(streak)
            } else {
                completes_cycle
            };
            if count.is_some() {
                self.trip(Reason::IdenticalCall);
                return Err(ModelDenied {
                    reason: Reason::IdenticalCall,
                    tripped_by: None,
                    count,
                });
            }
        }
        if !was_spent {
            self.log.push(LogEntry::Spent(call.turn));
            self.warned += usize::from(self.rules.warn_at == Some(self.turns()));
        }
        self.started = self.started.or(Some(self.now));
        if self.phase == ModelPhase::Armed {
            self.phase = ModelPhase::Probing;
            self.rejects = 0;
        }
        Ok(ModelTicket {
            id,
            generation: self.generation,
            exempt: call.digest.is_none(),
        })
    }

    fn result(&mut self, ticket: ModelTicket, outcome: Outcome, answer: Option<u8>) {
        if ticket.generation != self.generation {
            return;
        }
        let probing = self.phase == ModelPhase::Probing;
        match outcome {
            Outcome::Success => {
                if let (Some(answer), false) = (answer, ticket.exempt) {
                    self.log.push(LogEntry::Answered {
                        id: ticket.id,
                        answer,
                    });
                }
                self.log.push(if probing {
                    LogEntry::ProbeSucceeded
                } else {
                    LogEntry::Succeeded
                });
                if probing {
                    self.reason = None;
                    self.move_to(ModelPhase::Closed);
                }
            }
            Outcome::Failure(_) => self.count_error(),
            Outcome::Neutral if probing => {
                self.phase = ModelPhase::Armed;
                self.rejects = 0;
            }
            Outcome::Neutral => {}
        }
    }

    fn count_error(&mut self) {
        self.log.push(LogEntry::Failed);
        if self.phase != ModelPhase::Closed || self.errors() >= self.rules.errors {
            self.trip(Reason::ErrorStreak);
        }
    }

    fn dropped(&mut self, ticket: ModelTicket) {
        if ticket.generation == self.generation && self.phase == ModelPhase::Probing {
            self.move_to(ModelPhase::Open);
        }
    }

    fn readiness_failed(&mut self) {
        let is_open_to_calls =
            matches!(self.phase, ModelPhase::Closed | ModelPhase::Armed) && !self.is_expired();
        if is_open_to_calls && (self.left() > 0 || self.rules.by_turn) {
            self.count_error();
        }
    }

    fn extend(&mut self, turns: usize) {
        self.extended += turns;
        if turns > 0 && self.reason == Some(Reason::MaxTurns) {
            self.reason = None;
            self.move_to(ModelPhase::Closed);
        }
    }

    fn reset(&mut self) {
        *self = Self {
            now: self.now,
            generation: self.generation + 1,
            calls_seen: self.calls_seen,
            warned: self.warned,
            ..Self::new(self.rules)
        };
    }

    fn compare(&self, run: &Run) {
        let now = run.snapshot();
        let unnoticed = self.is_expired() && self.phase != ModelPhase::Expired;
        let phase = if unnoticed {
            ModelPhase::Expired
        } else {
            self.phase
        };
        let state = match phase {
            ModelPhase::Closed => State::Closed,
            ModelPhase::Open | ModelPhase::Expired => State::Open,
            ModelPhase::Armed | ModelPhase::Probing => State::HalfOpen,
        };
        let reason = if unnoticed {
            Some(Reason::Deadline)
        } else {
            self.reason
        };
        assert_eq!((now.state, now.reason), (state, reason));
        assert_eq!(now.probing, phase == ModelPhase::Probing);
        assert_eq!(now.turns as usize, self.turns());
        assert_eq!(now.turns_left as usize, self.left());
        assert_eq!(now.errors as usize, self.errors());
        assert_eq!(now.identical as usize, self.streak().1);
        let counts = matches!(phase, ModelPhase::Open | ModelPhase::Probing);
        let rejects = self.rules.rejects - self.rejects;
        assert_eq!(now.rejects_left as usize, if counts { rejects } else { 0 });
        assert_eq!(now.trips, self.trips + u64::from(unnoticed));
        let left = self.rules.deadline.zip(self.started);
        let left = left.map(|(deadline, started)| (started + deadline).saturating_sub(self.now));
        assert_eq!(now.time_left, left.map(Duration::from_nanos));
    }
}

// ===== the two side by side =====

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(Call),
    /// Which of the calls in flight, its verdict as a number, and its answer.
    Result(usize, u8, Option<u8>),
    Drop(usize),
    CallUnready,
    ReadinessFailed,
    Extend(usize),
    Reset,
    Wait(u64),
}

fn model_rules() -> impl Strategy<Value = ModelRules> {
    let counts = (0..12_usize, 2..4_usize, 1..4_usize, 1..4_usize);
    let options = (
        option::weighted(0.3, 1..20_u64),
        option::weighted(0.5, (2..4_usize, 2..4_usize)),
        option::of(1..6_usize),
        any::<bool>(),
    );
    (counts, options).prop_map(
        |((turns, identical, errors, rejects), (deadline, cycles, warn_at, by_turn))| ModelRules {
            turns,
            identical,
            errors,
            rejects,
            deadline,
            cycles,
            warn_at,
            by_turn,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let call = (
        option::weighted(0.9, 0..3_u8),
        option::weighted(0.7, 0..4_u8),
        option::weighted(0.2, 2..5_usize),
    );
    prop_oneof![
        12 => call.prop_map(|(digest, turn, limit)| Step::Call(Call { digest, turn, limit })),
        9 => (0..3_usize, 0..8_u8, option::of(0..2_u8))
            .prop_map(|(n, says, answer)| Step::Result(n, says, answer)),
        1 => (0..3_usize).prop_map(Step::Drop),
        1 => Just(Step::CallUnready),
        1 => Just(Step::ReadinessFailed),
        1 => (0..3_usize).prop_map(Step::Extend),
        1 => Just(Step::Reset),
        1 => (1..6_u64).prop_map(Step::Wait),
    ]
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}

fn rules(model_rules: ModelRules) -> Rules {
    Rules {
        max_turns: number(model_rules.turns),
        identical_limit: number(model_rules.identical),
        error_limit: number(model_rules.errors),
        open_cooldown_rejects: number(model_rules.rejects),
        deadline: model_rules.deadline.map(Duration::from_nanos),
        cycles: model_rules.cycles.map(|(max_period, repeats)| Cycles {
            max_period,
            repeats,
        }),
        warn_at: model_rules.warn_at.map(number),
        by_turn: model_rules.by_turn,
        observe_only: false,
    }
}

fn side_by_side(model_rules: ModelRules, steps: Vec<Step>) {
    let mut run = Run::of(rules(model_rules));
    let mut model = Model::new(model_rules);
    let mut in_flight: Vec<(Ticket, ModelTicket)> = Vec::new();
    let mut warned = 0;
    for step in steps {
        let count = run.fence.last_trip.and_then(|trip| trip.count);
        let count = count.map(|count| count as usize);
        match step {
            Step::Call(mut call) => {
                if !model_rules.by_turn {
                    call.turn = None;
                }
                let facts = CallFacts {
                    digest: call.digest.map(|digest| Digest::of(&digest)),
                    turn: call.turn.map(|turn| Digest::of(&turn)),
                    limit: call.limit.map(number),
                };
                match (run.ask(&facts), model.call(call, count)) {
                    (Ok(ticket), Ok(model_ticket)) => {
                        let probing = model.phase == ModelPhase::Probing;
                        assert_eq!(ticket.role == Role::Probe, probing);
                        in_flight.push((ticket, model_ticket));
                    }
                    (Err(denied), Err(model_denied)) => {
                        let refusal = denied.refusal(None);
                        let shown = ModelDenied {
                            reason: refusal.reason(),
                            tripped_by: refusal.tripped_by(),
                            count: refusal.count().map(|count| count as usize),
                        };
                        assert_eq!(shown, model_denied);
                    }
                    other => panic!("{call:?}: {other:?}"),
                }
            }
            Step::Result(n, says, answer) if n < in_flight.len() => {
                let (ticket, model_ticket) = in_flight.remove(n);
                let outcome = match says {
                    0..4 => Outcome::Success,
                    4 => Outcome::Neutral,
                    _ => Failure::transient().into(),
                };
                let applied = run.tell(ticket, outcome, answer.map(u64::from));
                assert_eq!(applied, model_ticket.generation == model.generation);
                model.result(model_ticket, outcome, answer);
            }
            Step::Drop(n) if n < in_flight.len() => {
                let (ticket, model_ticket) = in_flight.remove(n);
                if ticket.role == Role::Probe {
                    run.fence.lose_probe(ticket, &mut run.events);
                }
                model.dropped(model_ticket);
            }
            Step::Result(..) | Step::Drop(_) => {}
            Step::CallUnready => {
                let denied = run
                    .fence
                    .refuse_if_none_allowed(&run.rules, run.now, &mut run.events);
                let model_denied = model.refuse_if_none_allowed(count);
                assert_eq!(
                    denied.map(|denied| denied.reason),
                    model_denied.map(|denied| denied.reason)
                );
            }
            Step::ReadinessFailed => {
                let kind = FailureKind::Transient;
                run.fence
                    .readiness_failed(&run.rules, run.now, kind, &mut run.events);
                model.readiness_failed();
            }
            Step::Extend(turns) => {
                run.fence.extend(number(turns), &mut run.events);
                model.extend(turns);
            }
            Step::Reset => {
                run.fence.reset(&run.rules, &mut run.events);
                model.reset();
            }
            Step::Wait(nanos) => {
                run.now = run.now.saturating_add(Duration::from_nanos(nanos));
                model.now += nanos;
            }
        }
        run.events.begin();
        while let Some(pending) = run.events.next() {
            warned += usize::from(matches!(
                pending,
                Queued::Event(PendingEvent::Warned { .. })
            ));
        }
        assert_eq!(warned, model.warned);
        model.compare(&run);
    }
    assert!(run.now < Timestamp::NEVER);
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 2_000, ..Default::default() })]

    #[test]
    fn the_fence_does_as_the_model(
        model_rules in model_rules(),
        steps in collection::vec(step(), 0..80),
    ) {
        side_by_side(model_rules, steps);
    }

    #[test]
    fn a_serial_history_is_decided_as_the_model_decides_it(
        model_rules in model_rules(),
        calls in collection::vec((0..3_u8, 0..8_u8, 0..2_u8), 0..80),
    ) {
        let model_rules = ModelRules { by_turn: false, ..model_rules };
        let steps = calls.into_iter().flat_map(|(digest, says, answer)| {
            let call = Call { digest: Some(digest), turn: None, limit: None };
            [Step::Call(call), Step::Result(0, says, Some(answer))]
        });
        side_by_side(model_rules, steps.collect());
    }
}
