//! The fence: a pure state machine.
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | closed | turns left, call is new | executed, turn spent |
//! | closed | the `identical_limit`-th identical call in a row | → open (`identical_call`); that call is refused before it runs |
//! | closed | `max_turns` spent | → open (`max_turns`), refused |
//! | closed | `error_limit` consecutive errors | → open (`error_streak`); the failing call's own error reaches its caller |
//! | open | call, cooldown not over | refused, counted |
//! | open | the `open_cooldown_rejects`-th refused call | → `half_open`: this call is refused too, and arms one probe |
//! | `half_open` | next call | it is the probe; the turn and identical checks still apply to it, and open again |
//! | `half_open` | the probe succeeds | → closed, error and identical streaks zeroed (turns are never given back) |
//! | `half_open` | the probe fails | → open (`error_streak`), cooldown restarts |
//! | `half_open` | the probe is dropped | → open, the old reason kept, cooldown restarts |
//! | `half_open` | calls while the probe is out | refused and counted; after `open_cooldown_rejects` of them the probe counts as lost, as if dropped |
//! | `half_open` | the probe is neutral | armed again: the next call is the probe |
//! | any | the run's time is over | open (`deadline`): every call is refused with it, until a reset |
//! | any | a result from an older generation | stale: changes nothing |
//! | any | `extend` | the budget grows; after a trip by `max_turns` → closed, streaks kept |
//! | any | `reset` | a new run, in a new generation |
//!
//! The order of the checks is deadline, `max_turns`, identical. Refusals while open touch neither digest nor streaks, and a trip clears none
//! of them. The call that trips as identical counts in its streak and spends no turn. A plain success clears the error streak alone; a
//! probe's clears both and keeps the last digest, so that the same call again is number 1.
//!
//! Every transition begins a new generation. Only a probe is ever admitted in a generation that is half-open, and nobody in one
//! that is open, so a result's generation alone says what it may do.

use std::collections::VecDeque;
use std::time::Duration;

use super::digest::Digest;
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::EventQueue;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{Event, State, TransitionReason};
use crate::vocabulary::{FailureKind, Outcome};
use crate::vocabulary::{Name, Reason, Refusal};

/// How a fence decides.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(super) max_turns: u32,
    pub(super) identical_limit: u32,
    pub(super) error_limit: u32,
    pub(super) open_cooldown_rejects: u32,
    pub(super) deadline: Option<Duration>,
    pub(super) cycles: Option<Cycles>,
    pub(super) warn_at: Option<u32>,
    /// Calls say to which planner's turn they belong.
    pub(super) by_turn: bool,
    pub(super) observe_only: bool,
}

/// Which rounds of calls are a repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycles {
    pub(super) max_period: usize,
    pub(super) repeats: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            max_turns: 8,
            identical_limit: 3,
            error_limit: 3,
            open_cooldown_rejects: 4,
            deadline: None,
            cycles: None,
            warn_at: None,
            by_turn: false,
            observe_only: false,
        }
    }
}

impl Rules {
    /// Whether they ask for more than the last call.
    fn remember(&self) -> bool {
        self.by_turn || self.cycles.is_some()
    }
}

/// What a request says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallFacts {
    /// `None` for a call that is exempt: neither a repeat nor the end of a streak.
    pub(super) digest: Option<Digest>,
    /// The planner's turn that it belongs to, if that is known.
    pub(super) turn: Option<Digest>,
    /// Its tool's own limit of identical calls.
    pub(super) limit: Option<u32>,
}

/// Where a fence is. The word carries it as a number, to which [`SPENT`] is added where every call would trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Phase {
    Closed = 0,
    Open = 1,
    /// Half-open, the probe out.
    Probing = 2,
    /// Half-open: the next call is the probe.
    Armed = 3,
    /// The run's time is over.
    Over = 5,
}

/// The word's mark for a budget that is spent, with which a call is refused even while closed or armed.
const SPENT: u8 = 4;

impl Phase {
    fn state(self) -> State {
        match self {
            Phase::Closed => State::Closed,
            Phase::Open | Phase::Over => State::Open,
            Phase::Probing | Phase::Armed => State::HalfOpen,
        }
    }
}

/// What an admitted call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) generation: u32,
    /// Which of the counted calls it is; 0 for an exempt one.
    pub(super) number: u32,
    pub(super) role: Role,
}

/// An enum rather than a flag, so that the compiler has room in it to tell a future's variants apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Ordinary,
    Probe,
}

/// Why it tripped, and the count that ran into its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tripped {
    pub(super) reason: Reason,
    pub(super) count: Option<u32>,
    /// How many calls repeat: 1, or more for a round of calls.
    pub(super) period: u32,
}

/// Why a call is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Denied {
    pub(super) reason: Reason,
    /// The trip that it follows from; `None` if the inner service was not ready.
    pub(super) tripped: Option<Tripped>,
    pub(super) last: Option<FailureKind>,
}

impl Denied {
    /// The inner service was not polled ready for the call: it may come again at once.
    pub(super) const NOT_READY: Self = Self {
        reason: Reason::NotReady,
        tripped: None,
        last: None,
    };

    pub(super) fn refusal(self, name: Option<Name>) -> Refusal {
        let period = self.tripped.map_or(1, |tripped| tripped.period);
        let before = self
            .tripped
            .filter(|_| self.reason == Reason::TripwireOpen)
            .map(|tripped| tripped.reason);
        let wait = (self.reason == Reason::NotReady).then_some(Duration::ZERO);
        Refusal::tripwire(self.reason, period)
            .with_name(name)
            .with_retry_after(wait)
            .with_last_failure(self.last)
            .with_tripped_by(before)
            .with_count(self.tripped.and_then(|tripped| tripped.count))
    }
}

/// What the fence leaves for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingEvent {
    Transition {
        from: State,
        to: State,
        reason: TransitionReason,
        generation: u32,
    },
    ProbeStarted {
        generation: u32,
    },
    Warned {
        turns: u32,
        budget: u32,
    },
}

/// A fence as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TripwireSnapshot {
    /// The state. A run whose time is over has opened the fence, noticed or not.
    pub state: State,
    /// Why it tripped last, if it has not closed since.
    pub reason: Option<Reason>,
    /// How many turns the run has spent.
    pub turns: u32,
    /// How many turns it has left.
    pub turns_left: u32,
    /// How many identical calls came in a row.
    pub identical: u32,
    /// How many calls failed in a row.
    pub errors: u32,
    /// How many refusals of the cooldown are still to come before a probe is armed, or before the probe that is out counts as lost; 0
    /// where nothing is counted.
    pub rejects_left: u32,
    /// Whether a probe is out.
    pub probing: bool,
    /// What is left of the run's time; `None` if it has no deadline, or has not begun.
    pub time_left: Option<Duration>,
    /// How often it has tripped in this run.
    pub trips: u64,
    /// The kind of the last failure of this run.
    pub last_failure: Option<FailureKind>,
}

/// The state machine. See the module's table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fence {
    generation: u32,
    phase: Phase,
    turns: u32,
    /// How many turns the run may spend, extensions included.
    budget: u32,
    errors: u32,
    identical: u32,
    /// Refusals of the present cooldown, or since the probe went out.
    rejects: u32,
    failure: Option<FailureKind>,
    by_turn: bool,
    timed: bool,
    /// The last call that was not exempt.
    last: Option<Digest>,
    /// The number of the last call, and of the first of those that are identical with it.
    number: u32,
    first: u32,
    /// What the last of them answered.
    answer: Option<Digest>,
    tripped: Option<Tripped>,
    trips: u64,
    /// When the run's time is over; [`Timestamp::NEVER`] before it begins.
    end: Timestamp,
    memory: Option<Box<Memory>>,
}

/// What only some rules ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Memory {
    /// The last calls, for the cycles.
    calls: VecDeque<Called>,
    /// The turns that were paid for, the latest last.
    paid: VecDeque<Digest>,
    /// The turn in which the present streak was counted last.
    counted: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Called {
    digest: Digest,
    turn: Option<Digest>,
    number: u32,
    answer: Option<Digest>,
}

impl Memory {
    /// How many of the turns that were paid for are remembered. A planner has one at a time, or few.
    const TURNS: usize = 64;
}

/// What is to become of a call: the oracle's answer, and what the gate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Admit {
        streak: u32,
        spends: bool,
    },
    /// Refused because it tripped before.
    Kept,
    Over,
    Spent,
    Identical {
        streak: u32,
        count: u32,
        period: u32,
    },
}

impl Fence {
    pub(super) fn new(rules: &Rules) -> Self {
        Self {
            generation: 0,
            phase: Phase::Closed,
            turns: 0,
            budget: rules.max_turns,
            errors: 0,
            identical: 0,
            rejects: 0,
            failure: None,
            by_turn: rules.by_turn,
            timed: rules.deadline.is_some(),
            last: None,
            number: 0,
            first: 0,
            answer: None,
            tripped: None,
            trips: 0,
            end: Timestamp::NEVER,
            memory: rules.remember().then(Box::default),
        }
    }

    // ===== the gate and the oracle =====

    /// The gate: admits the call, or says why not.
    pub(super) fn try_acquire(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        facts: &CallFacts,
        events: &mut EventQueue<PendingEvent>,
    ) -> Result<Ticket, Denied> {
        match self.decide(rules, now, facts) {
            Decision::Admit { streak, spends } => {
                Ok(self.admit(rules, now, facts, streak, spends, events))
            }
            Decision::Kept => Err(self.keep(rules, events)),
            Decision::Over => Err(self.run_out(events)),
            Decision::Spent => Err(self.spend_out(events)),
            Decision::Identical {
                streak,
                count,
                period,
            } => {
                self.count(rules, facts, streak);
                let tripped = Tripped {
                    reason: Reason::IdenticalCall,
                    count: Some(count),
                    period,
                };
                self.trip(tripped, TransitionReason::IdenticalCall, events);
                Err(self.denied(tripped.reason))
            }
        }
    }

    /// The gate again, where all that it changes is what no word mirrors: an ordinary call by the plain rules, with turns left after it. `None`,
    /// with nothing changed, if there is more to it.
    #[inline]
    pub(super) fn try_acquire_fast(&mut self, rules: &Rules, facts: &CallFacts) -> Option<Ticket> {
        let turns = self.turns.checked_add(1)?;
        let quiet = !self.timed
            && self.memory.is_none()
            && self.phase == Phase::Closed
            && turns < self.budget
            && rules.warn_at != Some(turns);
        if !quiet {
            return None;
        }
        let mut number = 0;
        if let Some(digest) = facts.digest {
            let streak = self.streak_with(digest);
            if streak >= facts.limit.unwrap_or(rules.identical_limit) {
                return None;
            }
            number = self.number_next(digest, streak);
        }
        self.turns = turns;
        Some(self.ticket(number, Role::Ordinary))
    }

    /// Refuses a call that comes without a ready inner service, if any call would be refused. `None`, with nothing changed, if some call would
    /// be let through.
    pub(super) fn refuse_any(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) -> Option<Denied> {
        if self.is_over(now) {
            return Some(self.run_out(events));
        }
        match self.phase {
            Phase::Open | Phase::Probing => Some(self.keep(rules, events)),
            _ if self.is_spent() => Some(self.spend_out(events)),
            _ => None,
        }
    }

    /// The oracle: what the gate would answer, with nothing changed.
    pub(super) fn would_allow(&self, rules: &Rules, now: Timestamp, facts: &CallFacts) -> bool {
        matches!(self.decide(rules, now, facts), Decision::Admit { .. })
    }

    /// Whether there is any call that would be let through.
    pub(super) fn would_allow_some(&self, now: Timestamp) -> bool {
        !self.is_over(now) && matches!(self.phase, Phase::Closed | Phase::Armed) && !self.is_spent()
    }

    /// [`would_allow_some`](Self::would_allow_some) for callers without the lock, from the word and its moment alone. `None` if the machine
    /// must be asked.
    #[inline]
    pub(super) fn would_allow_some_lock_free(
        packed: PackedState,
        deadline: impl FnOnce() -> Option<Timestamp>,
        now: Timestamp,
    ) -> Option<bool> {
        if packed.is_busy() {
            return None;
        }
        let passes = packed.phase() == Phase::Closed as u8 || packed.phase() == Phase::Armed as u8;
        Some(passes && (!packed.is_timed() || now < deadline()?))
    }

    fn decide(&self, rules: &Rules, now: Timestamp, facts: &CallFacts) -> Decision {
        if self.is_over(now) {
            return Decision::Over;
        }
        if !matches!(self.phase, Phase::Closed | Phase::Armed) {
            return Decision::Kept;
        }
        let spends = !self.has_paid(facts);
        if spends && self.turns >= self.budget {
            return Decision::Spent;
        }
        let Some(digest) = facts.digest else {
            let streak = self.identical;
            return Decision::Admit { streak, spends };
        };
        let mut streak = self.streak_with(digest);
        if self.last == Some(digest) && self.was_counted(facts) {
            streak = self.identical;
        }
        let (count, period) = if streak >= facts.limit.unwrap_or(rules.identical_limit) {
            (streak, 1)
        } else if let Some(round) = self.closes_round(rules, digest, facts) {
            round
        } else {
            return Decision::Admit { streak, spends };
        };
        Decision::Identical {
            streak,
            count,
            period,
        }
    }

    fn admit(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        facts: &CallFacts,
        streak: u32,
        spends: bool,
        events: &mut EventQueue<PendingEvent>,
    ) -> Ticket {
        if let (Some(deadline), Timestamp::NEVER) = (rules.deadline, self.end) {
            self.end = now.saturating_add(deadline);
        }
        if spends {
            self.pay(facts);
            if rules.warn_at == Some(self.turns) {
                events.push(PendingEvent::Warned {
                    turns: self.turns,
                    budget: self.budget,
                });
            }
        }
        let number = self.count(rules, facts, streak);
        if self.phase == Phase::Closed {
            return self.ticket(number, Role::Ordinary);
        }
        self.phase = Phase::Probing;
        self.rejects = 0;
        events.push(PendingEvent::ProbeStarted {
            generation: self.generation,
        });
        self.ticket(number, Role::Probe)
    }

    #[inline]
    fn ticket(&self, number: u32, role: Role) -> Ticket {
        Ticket {
            generation: self.generation,
            number,
            role,
        }
    }

    fn denied(&self, reason: Reason) -> Denied {
        Denied {
            reason,
            tripped: self.tripped,
            last: self.failure,
        }
    }

    /// Refuses, and counts it.
    fn keep(&mut self, rules: &Rules, events: &mut EventQueue<PendingEvent>) -> Denied {
        let denied = self.denied(Reason::TripwireOpen);
        self.rejects += 1;
        if self.rejects >= rules.open_cooldown_rejects {
            self.rejects = 0;
            if self.phase == Phase::Open {
                self.go(Phase::Armed, TransitionReason::CooldownOver, events);
            } else {
                self.go(Phase::Open, TransitionReason::ProbeLost, events);
            }
        }
        denied
    }

    fn spend_out(&mut self, events: &mut EventQueue<PendingEvent>) -> Denied {
        let tripped = Tripped {
            reason: Reason::MaxTurns,
            count: Some(self.turns),
            period: 1,
        };
        self.trip(tripped, TransitionReason::MaxTurns, events);
        self.denied(tripped.reason)
    }

    fn run_out(&mut self, events: &mut EventQueue<PendingEvent>) -> Denied {
        if self.phase != Phase::Over {
            self.trip(OVER, TransitionReason::Deadline, events);
        }
        self.denied(OVER.reason)
    }

    #[inline]
    fn is_over(&self, now: Timestamp) -> bool {
        // A moment that never comes is never reached.
        now >= self.end
    }

    /// Whether every call would find the budget spent.
    fn is_spent(&self) -> bool {
        self.turns >= self.budget && !self.by_turn
    }

    // ===== what is remembered of calls =====

    fn has_paid(&self, facts: &CallFacts) -> bool {
        match (facts.turn, &self.memory) {
            (Some(turn), Some(memory)) => memory.paid.contains(&turn),
            _ => false,
        }
    }

    fn pay(&mut self, facts: &CallFacts) {
        self.turns += 1;
        if let (Some(turn), Some(memory)) = (facts.turn, &mut self.memory) {
            if memory.paid.len() == Memory::TURNS {
                memory.paid.pop_front();
            }
            memory.paid.push_back(turn);
        }
    }

    /// Whether the present streak was counted in the call's own turn: parallel calls of one turn are not a repetition in time.
    fn was_counted(&self, facts: &CallFacts) -> bool {
        let memory = self.memory.as_ref();
        facts.turn.is_some() && memory.is_some_and(|memory| memory.counted == facts.turn)
    }

    /// Counts the call in its streak, unless it is exempt. Answers its number.
    fn count(&mut self, rules: &Rules, facts: &CallFacts, streak: u32) -> u32 {
        let Some(digest) = facts.digest else {
            return 0;
        };
        let number = self.number_next(digest, streak);
        if let Some(memory) = &mut self.memory {
            memory.count(rules, digest, facts.turn, number);
        }
        number
    }

    /// How long the streak is with one more such call.
    #[inline]
    fn streak_with(&self, digest: Digest) -> u32 {
        if self.last == Some(digest) {
            self.identical.saturating_add(1)
        } else {
            1
        }
    }

    /// Gives the next number to a call that is not exempt, and makes it the last of its streak.
    #[inline]
    fn number_next(&mut self, digest: Digest, streak: u32) -> u32 {
        self.number = self.number.checked_add(1).unwrap_or(1);
        if self.last != Some(digest) {
            self.last = Some(digest);
            self.first = self.number;
            self.answer = None;
        }
        self.identical = streak;
        self.number
    }

    /// The shortest round of at least two different calls that this one closes for the last time allowed: how often it came, and of how
    /// many calls it is.
    fn closes_round(&self, rules: &Rules, digest: Digest, facts: &CallFacts) -> Option<(u32, u32)> {
        let memory = self.memory.as_ref()?;
        let period = memory.closes_round(rules.cycles?, digest, facts.turn)?;
        // The setter bounds both.
        let count = u32::try_from(rules.cycles?.repeats).ok()?;
        Some((count, u32::try_from(period).ok()?))
    }

    // ===== verdicts =====

    /// Whether a verdict is a success that changes nothing, as most are.
    #[inline]
    pub(super) fn is_settled(packed: PackedState, generation: u32, outcome: Outcome) -> bool {
        outcome == Outcome::Success && packed.is_clean_in(generation)
    }

    /// What a verdict changes if that is the error streak and the last failure alone; `None` if the machine must be asked.
    pub(super) fn record_lock_free(
        packed: PackedState,
        ticket: Ticket,
        outcome: Outcome,
        rules: &Rules,
    ) -> Option<PackedState> {
        if !packed.is_lock_free_in(ticket.generation) {
            return None;
        }
        packed.counting(outcome, rules.error_limit)
    }

    /// Takes a verdict, and for a success what it answered, where answers are compared. Answers `false` if it is stale.
    pub(super) fn record(
        &mut self,
        rules: &Rules,
        ticket: Ticket,
        outcome: Outcome,
        answer: Option<Digest>,
        events: &mut EventQueue<PendingEvent>,
    ) -> bool {
        if ticket.generation != self.generation {
            return false;
        }
        if let (Outcome::Success, Some(answer)) = (outcome, answer) {
            self.compare(ticket.number, answer);
        }
        match (self.phase, outcome) {
            (Phase::Closed, Outcome::Success) => self.errors = 0,
            (Phase::Closed, Outcome::Neutral) => {}
            (_, Outcome::Success) => {
                self.errors = 0;
                self.identical = 0;
                if let Some(memory) = &mut self.memory {
                    memory.calls.clear();
                    memory.counted = None;
                }
                self.tripped = None;
                self.go(Phase::Closed, TransitionReason::ProbeSucceeded, events);
            }
            // The only call in flight in this generation is the probe.
            (_, Outcome::Neutral) => self.phase = Phase::Armed,
            (_, Outcome::Failure(failure)) => self.fail(rules, failure.kind(), events),
        }
        true
    }

    /// The probe was dropped without a verdict. It must not wedge the fence.
    pub(super) fn lose(&mut self, ticket: Ticket, events: &mut EventQueue<PendingEvent>) {
        if ticket.generation == self.generation && self.phase == Phase::Probing {
            self.rejects = 0;
            self.go(Phase::Open, TransitionReason::ProbeLost, events);
        }
    }

    /// The inner service failed to become ready: an error without a call.
    pub(super) fn readiness_failed(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        kind: FailureKind,
        events: &mut EventQueue<PendingEvent>,
    ) {
        if self.would_allow_some(now) {
            self.fail(rules, kind, events);
        }
    }

    fn fail(&mut self, rules: &Rules, kind: FailureKind, events: &mut EventQueue<PendingEvent>) {
        self.errors = self.errors.saturating_add(1);
        self.failure = Some(kind);
        let reason = match self.phase {
            Phase::Closed if self.errors < rules.error_limit => return,
            Phase::Closed => TransitionReason::ErrorStreak,
            _ => TransitionReason::ProbeFailed,
        };
        let tripped = Tripped {
            reason: Reason::ErrorStreak,
            count: Some(self.errors),
            period: 1,
        };
        self.trip(tripped, reason, events);
    }

    /// Compares an answer with the one before it to the same call. Another answer is progress: the call is then the first of its streak.
    fn compare(&mut self, number: u32, answer: Digest) {
        if number == 0 {
            return;
        }
        let since = |first: u32| number.wrapping_sub(first);
        if since(self.first) <= self.number.wrapping_sub(self.first) {
            if self.answer.is_some_and(|before| before != answer) {
                self.identical = 1;
            }
            self.answer = Some(answer);
        }
        if let Some(memory) = &mut self.memory {
            memory.compare(number, answer);
        }
    }

    // ===== by hand =====

    pub(super) fn extend(&mut self, turns: u32, events: &mut EventQueue<PendingEvent>) {
        self.budget = self.budget.saturating_add(turns);
        if self.reason() == Some(Reason::MaxTurns) && turns > 0 {
            self.tripped = None;
            self.rejects = 0;
            self.go(Phase::Closed, TransitionReason::Extended, events);
        }
    }

    pub(super) fn reset(&mut self, rules: &Rules, events: &mut EventQueue<PendingEvent>) {
        let from = self.phase;
        let generation = self.generation;
        *self = Self::new(rules);
        self.generation = generation;
        self.phase = from;
        self.go(Phase::Closed, TransitionReason::Reset, events);
    }

    fn reason(&self) -> Option<Reason> {
        self.tripped.map(|tripped| tripped.reason)
    }

    pub(super) fn snapshot(
        &self,
        packed: PackedState,
        rules: &Rules,
        now: Timestamp,
    ) -> TripwireSnapshot {
        let errors = packed.streak_or(self.errors);
        let unnoticed = self.is_over(now) && self.phase != Phase::Over;
        let phase = if unnoticed { Phase::Over } else { self.phase };
        let counts = matches!(phase, Phase::Open | Phase::Probing);
        TripwireSnapshot {
            state: phase.state(),
            reason: if unnoticed {
                Some(OVER.reason)
            } else {
                self.reason()
            },
            turns: self.turns,
            turns_left: self.budget.saturating_sub(self.turns),
            identical: self.identical,
            errors,
            rejects_left: if counts {
                rules.open_cooldown_rejects - self.rejects
            } else {
                0
            },
            probing: phase == Phase::Probing,
            time_left: self.end.remaining(now),
            trips: self.trips + u64::from(unnoticed),
            last_failure: packed.last(),
        }
    }

    // ===== how it moves =====

    fn trip(
        &mut self,
        tripped: Tripped,
        reason: TransitionReason,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.tripped = Some(tripped);
        self.trips += 1;
        self.rejects = 0;
        let phase = if tripped == OVER {
            Phase::Over
        } else {
            Phase::Open
        };
        self.go(phase, reason, events);
    }

    fn go(&mut self, to: Phase, reason: TransitionReason, events: &mut EventQueue<PendingEvent>) {
        let from = self.phase.state();
        self.phase = to;
        self.generation = self.generation.wrapping_add(1);
        events.push(PendingEvent::Transition {
            from,
            to: to.state(),
            reason,
            generation: self.generation,
        });
    }
}

/// The end of the run's time.
const OVER: Tripped = Tripped {
    reason: Reason::Deadline,
    count: None,
    period: 1,
};

impl Memory {
    /// Whether the call is already remembered for its own turn.
    fn holds(&self, digest: Digest, turn: Option<Digest>) -> bool {
        turn.is_some()
            && self
                .calls
                .iter()
                .any(|call| call.digest == digest && call.turn == turn)
    }

    fn count(&mut self, rules: &Rules, digest: Digest, turn: Option<Digest>, number: u32) {
        self.counted = turn;
        let Some(cycles) = rules.cycles else {
            return;
        };
        if self.holds(digest, turn) {
            return;
        }
        if self.calls.len() == cycles.max_period * cycles.repeats {
            self.calls.pop_front();
        }
        self.calls.push_back(Called {
            digest,
            turn,
            number,
            answer: None,
        });
    }

    fn closes_round(&self, cycles: Cycles, digest: Digest, turn: Option<Digest>) -> Option<usize> {
        if self.holds(digest, turn) {
            return None;
        }
        // The latest first, and this call before them.
        let call = |back: usize| match back {
            0 => Some(digest),
            _ => Some(self.calls.get(self.calls.len().checked_sub(back)?)?.digest),
        };
        (2..=cycles.max_period).find(|period| {
            let length = period * cycles.repeats;
            length <= self.calls.len() + 1
                && (*period..length).all(|back| call(back) == call(back - period))
                && (1..*period).any(|back| call(back) != call(0))
        })
    }

    /// EventQueue an answer. If the same call answered otherwise before, what came before this one is no part of a cycle.
    fn compare(&mut self, number: u32, answer: Digest) {
        let Some(at) = self.calls.iter().position(|call| call.number == number) else {
            return;
        };
        self.calls[at].answer = Some(answer);
        let digest = self.calls[at].digest;
        let before = self
            .calls
            .range(..at)
            .rev()
            .find_map(|call| call.answer.filter(|_| call.digest == digest));
        if before.is_some_and(|before| before != answer) {
            self.calls.drain(..at);
        }
    }
}

impl Machine for Fence {
    type Rules = Rules;
    type Pending = PendingEvent;

    fn packed(&self) -> PackedState {
        let mut phase = self.phase as u8;
        if self.is_spent() {
            phase |= SPENT;
        }
        PackedState::new(self.generation, phase)
            .with_last(self.failure)
            .with_streak(self.errors)
            .lock_free(self.phase == Phase::Closed)
            .timed(self.timed)
    }

    fn deadline(&self) -> Timestamp {
        self.end
    }

    fn take_over(&mut self, packed: PackedState, _: Timestamp) {
        self.errors = packed.streak_or(self.errors);
        self.failure = packed.last();
    }

    fn retention(&self, rules: &Rules, now: Timestamp) -> Retention {
        // Nothing runs in a fence but its calls: its cooldown is counted in refusals.
        let clean = self.phase == Phase::Closed
            && self.errors == 0
            && self.identical <= 1
            && self.budget == rules.max_turns
            && !self.is_over(now);
        if clean {
            Retention::Clean
        } else {
            Retention::Unclean
        }
    }

    fn event<'a>(pending: PendingEvent, name: Option<&'a str>, _: &Rules) -> Event<'a> {
        match pending {
            PendingEvent::Transition {
                from,
                to,
                reason,
                generation,
            } => Event::Transition {
                name,
                from,
                to,
                reason,
                generation,
            },
            PendingEvent::ProbeStarted { generation } => Event::ProbeStarted {
                name,
                generation,
                // Refusals end it, and no time.
                lease: Duration::MAX,
            },
            PendingEvent::Warned { turns, budget } => Event::Warned {
                name,
                turns,
                max_turns: budget,
            },
        }
    }
}

#[cfg(test)]
mod driver;
#[cfg(test)]
mod model;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod walk;
