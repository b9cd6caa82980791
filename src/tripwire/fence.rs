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
use crate::clock::Moment;
use crate::event::{Event, State, TransitionReason};
use crate::machine::{Machine, Notes, Rest, Word};
use crate::outcome::{FailureKind, Outcome};
use crate::refusal::{Name, Reason, Refusal};

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

/// What a request says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
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
pub(crate) enum Note {
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
    /// The last call that was not exempt.
    last: Option<Digest>,
    /// The number of the last call, and of the first of those that are identical with it.
    number: u32,
    first: u32,
    /// What the last of them answered.
    answer: Option<Digest>,
    tripped: Option<Tripped>,
    trips: u64,
    /// When the run's time is over; [`Moment::NEVER`] before it begins.
    end: Moment,
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
        tripped: Tripped,
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
            last: None,
            number: 0,
            first: 0,
            answer: None,
            tripped: None,
            trips: 0,
            end: Moment::NEVER,
            memory: (rules.by_turn || rules.cycles.is_some()).then(Box::default),
        }
    }

    // ===== the gate and the oracle =====

    /// The gate: admits the call, or says why not.
    pub(super) fn try_acquire(
        &mut self,
        rules: &Rules,
        now: Moment,
        asked: &Asked,
        notes: &mut Notes<Note>,
    ) -> Result<Ticket, Denied> {
        match self.decide(rules, now, asked) {
            Decision::Admit { streak, spends } => {
                Ok(self.admit(rules, now, asked, streak, spends, notes))
            }
            Decision::Kept => Err(self.keep(rules, notes)),
            Decision::Over => Err(self.run_out(notes)),
            Decision::Spent => Err(self.spend_out(notes)),
            Decision::Identical { streak, tripped } => {
                self.count(rules, asked, streak);
                self.trip(tripped, TransitionReason::IdenticalCall, notes);
                Err(self.denied(tripped.reason))
            }
        }
    }

    /// The gate again, where all that it changes is what no word mirrors: an ordinary call, with turns left after it. `None`, with nothing
    /// changed, if there is more to it.
    pub(super) fn try_acquire_quietly(
        &mut self,
        rules: &Rules,
        now: Moment,
        asked: &Asked,
    ) -> Option<Ticket> {
        if self.phase != Phase::Closed || (rules.deadline.is_some() && self.end == Moment::NEVER) {
            return None;
        }
        let Decision::Admit { streak, spends } = self.decide(rules, now, asked) else {
            return None;
        };
        if spends {
            let turns = self.turns + 1;
            if (turns >= self.budget && !self.by_turn) || rules.warn_at == Some(turns) {
                return None;
            }
            self.pay(asked);
        }
        let number = self.count(rules, asked, streak);
        Some(self.ticket(number, Role::Ordinary))
    }

    /// Refuses a call that comes without a ready inner service, if any call would be refused. `None`, with nothing changed, if some call would
    /// be let through.
    pub(super) fn refuse_any(
        &mut self,
        rules: &Rules,
        now: Moment,
        notes: &mut Notes<Note>,
    ) -> Option<Denied> {
        if self.is_over(now) {
            return Some(self.run_out(notes));
        }
        match self.phase {
            Phase::Open | Phase::Probing => Some(self.keep(rules, notes)),
            _ if self.is_spent() => Some(self.spend_out(notes)),
            _ => None,
        }
    }

    /// The oracle: what the gate would answer, with nothing changed.
    pub(super) fn would_allow(&self, rules: &Rules, now: Moment, asked: &Asked) -> bool {
        matches!(self.decide(rules, now, asked), Decision::Admit { .. })
    }

    /// Whether there is any call that would be let through.
    pub(super) fn would_allow_some(&self, now: Moment) -> bool {
        !self.is_over(now) && matches!(self.phase, Phase::Closed | Phase::Armed) && !self.is_spent()
    }

    /// [`would_allow_some`](Self::would_allow_some) for callers without the lock, from the word and its moment alone. `None` if the machine
    /// must be asked.
    pub(super) fn glance(
        word: Word,
        until: impl FnOnce() -> Option<Moment>,
        rules: &Rules,
        now: Moment,
    ) -> Option<bool> {
        if word.is_busy() {
            return None;
        }
        let passes = word.phase() == Phase::Closed as u8 || word.phase() == Phase::Armed as u8;
        Some(passes && (rules.deadline.is_none() || now < until()?))
    }

    fn decide(&self, rules: &Rules, now: Moment, asked: &Asked) -> Decision {
        if self.is_over(now) {
            return Decision::Over;
        }
        if !matches!(self.phase, Phase::Closed | Phase::Armed) {
            return Decision::Kept;
        }
        let spends = !self.has_paid(asked);
        if spends && self.turns >= self.budget {
            return Decision::Spent;
        }
        let Some(digest) = asked.digest else {
            let streak = self.identical;
            return Decision::Admit { streak, spends };
        };
        let streak = if self.last != Some(digest) {
            1
        } else if self.was_counted(asked) {
            self.identical
        } else {
            self.identical.saturating_add(1)
        };
        let identical = Tripped {
            reason: Reason::IdenticalCall,
            count: Some(streak),
            period: 1,
        };
        let tripped = if streak >= asked.limit.unwrap_or(rules.identical_limit) {
            Some(identical)
        } else {
            self.closes_cycle(rules, digest, asked)
                .map(|cycle| Tripped {
                    count: u32::try_from(cycle.repeats).ok(),
                    period: u32::try_from(cycle.max_period).unwrap_or(u32::MAX),
                    ..identical
                })
        };
        match tripped {
            Some(tripped) => Decision::Identical { streak, tripped },
            None => Decision::Admit { streak, spends },
        }
    }

    fn admit(
        &mut self,
        rules: &Rules,
        now: Moment,
        asked: &Asked,
        streak: u32,
        spends: bool,
        notes: &mut Notes<Note>,
    ) -> Ticket {
        if let (Some(deadline), Moment::NEVER) = (rules.deadline, self.end) {
            self.end = now.after(deadline);
        }
        if spends {
            self.pay(asked);
            if rules.warn_at == Some(self.turns) {
                notes.push(Note::Warned {
                    turns: self.turns,
                    budget: self.budget,
                });
            }
        }
        let number = self.count(rules, asked, streak);
        if self.phase == Phase::Closed {
            return self.ticket(number, Role::Ordinary);
        }
        self.phase = Phase::Probing;
        self.rejects = 0;
        notes.push(Note::ProbeStarted {
            generation: self.generation,
        });
        self.ticket(number, Role::Probe)
    }

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
    fn keep(&mut self, rules: &Rules, notes: &mut Notes<Note>) -> Denied {
        let denied = self.denied(Reason::TripwireOpen);
        self.rejects += 1;
        if self.rejects >= rules.open_cooldown_rejects {
            self.rejects = 0;
            if self.phase == Phase::Open {
                self.go(Phase::Armed, TransitionReason::CooldownOver, notes);
            } else {
                self.go(Phase::Open, TransitionReason::ProbeLost, notes);
            }
        }
        denied
    }

    fn spend_out(&mut self, notes: &mut Notes<Note>) -> Denied {
        let tripped = Tripped {
            reason: Reason::MaxTurns,
            count: Some(self.turns),
            period: 1,
        };
        self.trip(tripped, TransitionReason::MaxTurns, notes);
        self.denied(tripped.reason)
    }

    fn run_out(&mut self, notes: &mut Notes<Note>) -> Denied {
        if self.phase != Phase::Over {
            self.trip(OVER, TransitionReason::Deadline, notes);
        }
        self.denied(OVER.reason)
    }

    fn is_over(&self, now: Moment) -> bool {
        // A moment that never comes is never reached.
        now >= self.end
    }

    /// Whether every call would find the budget spent.
    fn is_spent(&self) -> bool {
        self.turns >= self.budget && !self.by_turn
    }

    // ===== what is remembered of calls =====

    fn has_paid(&self, asked: &Asked) -> bool {
        match (asked.turn, &self.memory) {
            (Some(turn), Some(memory)) => memory.paid.contains(&turn),
            _ => false,
        }
    }

    fn pay(&mut self, asked: &Asked) {
        self.turns += 1;
        if let (Some(turn), Some(memory)) = (asked.turn, &mut self.memory) {
            if memory.paid.len() == Memory::TURNS {
                memory.paid.pop_front();
            }
            memory.paid.push_back(turn);
        }
    }

    /// Whether the present streak was counted in the call's own turn: parallel calls of one turn are not a repetition in time.
    fn was_counted(&self, asked: &Asked) -> bool {
        let memory = self.memory.as_ref();
        asked.turn.is_some() && memory.is_some_and(|memory| memory.counted == asked.turn)
    }

    /// Counts the call in its streak, unless it is exempt. Answers its number.
    fn count(&mut self, rules: &Rules, asked: &Asked, streak: u32) -> u32 {
        let Some(digest) = asked.digest else {
            return 0;
        };
        self.number = self.number.checked_add(1).unwrap_or(1);
        let number = self.number;
        if self.last != Some(digest) {
            self.last = Some(digest);
            self.first = number;
            self.answer = None;
        }
        self.identical = streak;
        if let Some(memory) = &mut self.memory {
            memory.counted = asked.turn;
            if let Some(cycles) = rules.cycles {
                if !memory.holds(digest, asked.turn) {
                    if memory.calls.len() == cycles.max_period * cycles.repeats {
                        memory.calls.pop_front();
                    }
                    memory.calls.push_back(Called {
                        digest,
                        turn: asked.turn,
                        number,
                        answer: None,
                    });
                }
            }
        }
        number
    }

    /// The shortest round of at least two different calls that this one closes for the last time allowed.
    fn closes_cycle(&self, rules: &Rules, digest: Digest, asked: &Asked) -> Option<Cycles> {
        let cycles = rules.cycles?;
        let memory = self.memory.as_ref()?;
        if memory.holds(digest, asked.turn) {
            return None;
        }
        // The latest first, and this call before them.
        let call = |back: usize| match back {
            0 => Some(digest),
            _ => Some(
                memory
                    .calls
                    .get(memory.calls.len().checked_sub(back)?)?
                    .digest,
            ),
        };
        (2..=cycles.max_period)
            .find(|period| {
                let length = period * cycles.repeats;
                length <= memory.calls.len() + 1
                    && (*period..length).all(|back| call(back) == call(back - period))
                    && (1..*period).any(|back| call(back) != call(0))
            })
            .map(|max_period| Cycles {
                max_period,
                ..cycles
            })
    }

    // ===== verdicts =====

    /// What a verdict changes if that is the error streak and the last failure alone; `None` if the machine must be asked.
    pub(super) fn shortcut(
        word: Word,
        ticket: Ticket,
        outcome: Outcome,
        rules: &Rules,
    ) -> Option<Word> {
        if !word.is_plain_in(ticket.generation) {
            return None;
        }
        match outcome {
            Outcome::Success => Some(word.with_streak(0)),
            Outcome::Neutral => Some(word),
            Outcome::Failure(failure) => {
                let streak = word.streak() + 1;
                (streak < rules.error_limit.min(Word::FULL))
                    .then(|| word.with_streak(streak).with_last(Some(failure.kind())))
            }
        }
    }

    /// Takes a verdict, and for a success what it answered, where answers are compared. Answers `false` if it is stale.
    pub(super) fn record(
        &mut self,
        rules: &Rules,
        ticket: Ticket,
        outcome: Outcome,
        answer: Option<Digest>,
        notes: &mut Notes<Note>,
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
                self.go(Phase::Closed, TransitionReason::ProbeSucceeded, notes);
            }
            // The only call in flight in this generation is the probe.
            (_, Outcome::Neutral) => self.phase = Phase::Armed,
            (_, Outcome::Failure(failure)) => self.fail(rules, failure.kind(), notes),
        }
        true
    }

    /// The probe was dropped without a verdict. It must not wedge the fence.
    pub(super) fn lose(&mut self, ticket: Ticket, notes: &mut Notes<Note>) {
        if ticket.generation == self.generation && self.phase == Phase::Probing {
            self.rejects = 0;
            self.go(Phase::Open, TransitionReason::ProbeLost, notes);
        }
    }

    /// The inner service failed to become ready: an error without a call.
    pub(super) fn readiness_failed(
        &mut self,
        rules: &Rules,
        now: Moment,
        kind: FailureKind,
        notes: &mut Notes<Note>,
    ) {
        if self.would_allow_some(now) {
            self.fail(rules, kind, notes);
        }
    }

    fn fail(&mut self, rules: &Rules, kind: FailureKind, notes: &mut Notes<Note>) {
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
        self.trip(tripped, reason, notes);
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

    pub(super) fn extend(&mut self, turns: u32, notes: &mut Notes<Note>) {
        self.budget = self.budget.saturating_add(turns);
        if self.reason() == Some(Reason::MaxTurns) && turns > 0 {
            self.tripped = None;
            self.rejects = 0;
            self.go(Phase::Closed, TransitionReason::Extended, notes);
        }
    }

    pub(super) fn reset(&mut self, rules: &Rules, notes: &mut Notes<Note>) {
        let from = self.phase;
        let generation = self.generation;
        *self = Self::new(rules);
        self.generation = generation;
        self.phase = from;
        self.go(Phase::Closed, TransitionReason::Reset, notes);
    }

    fn reason(&self) -> Option<Reason> {
        self.tripped.map(|tripped| tripped.reason)
    }

    pub(super) fn snapshot(&self, word: Word, rules: &Rules, now: Moment) -> TripwireSnapshot {
        // What lock-free callers counted is in the word.
        let mut errors = self.errors;
        if word.streak() < Word::FULL {
            errors = word.streak();
        }
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
            time_left: self.end.left(now),
            trips: self.trips + u64::from(unnoticed),
            last_failure: word.last(),
        }
    }

    // ===== how it moves =====

    fn trip(&mut self, tripped: Tripped, reason: TransitionReason, notes: &mut Notes<Note>) {
        self.tripped = Some(tripped);
        self.trips += 1;
        self.rejects = 0;
        let phase = if tripped == OVER {
            Phase::Over
        } else {
            Phase::Open
        };
        self.go(phase, reason, notes);
    }

    fn go(&mut self, to: Phase, reason: TransitionReason, notes: &mut Notes<Note>) {
        let from = self.phase.state();
        self.phase = to;
        self.generation = self.generation.wrapping_add(1);
        notes.push(Note::Transition {
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

    /// Notes an answer. If the same call answered otherwise before, what came before this one is no part of a cycle.
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
    type Note = Note;

    fn word(&self) -> Word {
        let mut phase = self.phase as u8;
        if self.is_spent() {
            phase |= SPENT;
        }
        Word::new(self.generation, phase)
            .with_last(self.failure)
            .with_streak(self.errors)
            .plain(self.phase == Phase::Closed)
    }

    fn until(&self) -> Moment {
        self.end
    }

    fn adopt(&mut self, word: Word) {
        // A full word counts no further; then the machine does.
        if word.streak() < Word::FULL {
            self.errors = word.streak();
        }
        self.failure = word.last();
    }

    fn rest(&self, rules: &Rules, now: Moment) -> Rest {
        // Nothing runs in a fence but its calls: its cooldown is counted in refusals.
        let clean = self.phase == Phase::Closed
            && self.errors == 0
            && self.identical <= 1
            && self.budget == rules.max_turns
            && !self.is_over(now);
        if clean { Rest::Clean } else { Rest::Unclean }
    }

    fn event<'a>(note: Note, name: Option<&'a str>, _: &Rules) -> Event<'a> {
        match note {
            Note::Transition {
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
            Note::ProbeStarted { generation } => Event::ProbeStarted {
                name,
                generation,
                // Refusals end it, and no time.
                lease: Duration::MAX,
            },
            Note::Warned { turns, budget } => Event::Warned {
                name,
                turns,
                max_turns: budget,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Told;
    use crate::outcome::Failure;

    type Answer = Result<Ticket, Denied>;

    /// A fence that is driven by hand.
    struct Run {
        rules: Rules,
        fence: Fence,
        now: Moment,
        notes: Notes<Note>,
    }

    impl Run {
        fn of(rules: Rules) -> Self {
            Self {
                fence: Fence::new(&rules),
                rules,
                now: Moment::START,
                notes: Notes::default(),
            }
        }

        fn new() -> Self {
            Self::of(Rules::default())
        }

        fn ask(&mut self, asked: &Asked) -> Answer {
            let oracle = self.fence.would_allow(&self.rules, self.now, asked);
            if !self.fence.would_allow_some(self.now) {
                assert!(!oracle, "some call is allowed where none is");
                let mut other = self.fence.clone();
                let any = other.refuse_any(&self.rules, self.now, &mut Notes::default());
                let gate = self
                    .fence
                    .try_acquire(&self.rules, self.now, asked, &mut self.notes);
                assert_eq!(any, gate.err(), "without readiness it is refused alike");
                assert_eq!(other, self.fence);
                return gate;
            }
            let mut quiet = self.fence.clone();
            let quietly = quiet.try_acquire_quietly(&self.rules, self.now, asked);
            let word = self.fence.word();
            let gate = self
                .fence
                .try_acquire(&self.rules, self.now, asked, &mut self.notes);
            assert_eq!(oracle, gate.is_ok(), "the oracle is the gate");
            if let Some(ticket) = quietly {
                assert_eq!((Ok(ticket), &quiet), (gate, &self.fence), "quietly");
                assert_eq!(word, self.fence.word(), "no word mirrors it");
            } else {
                assert_eq!(quiet.word(), word, "nothing is changed");
            }
            gate
        }

        fn call(&mut self, call: u64) -> Answer {
            self.ask(&asked(call))
        }

        fn call_in(&mut self, turn: u64, call: u64) -> Answer {
            self.ask(&Asked {
                turn: Some(Digest::of(&turn)),
                ..asked(call)
            })
        }

        fn tell(&mut self, ticket: Ticket, outcome: Outcome, answer: Option<u64>) -> bool {
            let answer = answer.map(|answer| Digest::of(&answer));
            let short = Fence::shortcut(self.fence.word(), ticket, outcome, &self.rules);
            if let (Some(word), None) = (short, answer) {
                let mut long = self.fence.clone();
                self.fence.adopt(word);
                assert!(long.record(&self.rules, ticket, outcome, None, &mut Notes::default()));
                assert_eq!(long, self.fence, "the shortcut leads to the same place");
                return true;
            }
            self.fence
                .record(&self.rules, ticket, outcome, answer, &mut self.notes)
        }

        fn ok(&mut self, call: u64) {
            let ticket = self.call(call).unwrap();
            assert!(self.tell(ticket, Outcome::Success, None));
        }

        fn fail(&mut self, call: u64) {
            let ticket = self.call(call).unwrap();
            assert!(self.tell(ticket, Failure::transient().into(), None));
        }

        /// Calls whose number does not matter are refused.
        fn refused(&mut self, calls: u32) {
            for _ in 0..calls {
                let denied = self.call(999).unwrap_err();
                assert_eq!(denied.reason, Reason::TripwireOpen);
            }
        }

        fn answered(&mut self, call: u64, answer: u64) {
            let ticket = self.call(call).unwrap();
            assert!(self.tell(ticket, Outcome::Success, Some(answer)));
        }

        fn reason_of(&mut self, call: u64) -> Reason {
            self.call(call).unwrap_err().reason
        }

        fn snapshot(&self) -> TripwireSnapshot {
            self.fence
                .snapshot(self.fence.word(), &self.rules, self.now)
        }

        fn state(&self) -> State {
            self.snapshot().state
        }

        /// Tripped by three errors, none of them of call 1, and one probe armed.
        fn armed() -> Self {
            let mut run = Self::new();
            for call in 10..13 {
                run.fail(call);
            }
            run.refused(4);
            assert_eq!(run.state(), State::HalfOpen);
            run
        }

        fn transitions(&mut self) -> Vec<(State, State, TransitionReason)> {
            let mut told = Vec::new();
            self.notes.begin();
            while let Some(note) = self.notes.next() {
                if let Told::Note(Note::Transition {
                    from, to, reason, ..
                }) = note
                {
                    told.push((from, to, reason));
                }
            }
            told
        }
    }

    fn asked(call: u64) -> Asked {
        Asked {
            digest: Some(Digest::of(&call)),
            turn: None,
            limit: None,
        }
    }

    fn exempt() -> Asked {
        Asked {
            digest: None,
            turn: None,
            limit: None,
        }
    }

    #[test]
    fn closed_with_turns_left_and_a_new_call_executes_and_spends_a_turn() {
        let mut run = Run::new();
        run.ok(1);
        run.ok(2);
        let now = run.snapshot();
        assert_eq!(
            (now.state, now.turns, now.turns_left),
            (State::Closed, 2, 6)
        );
        assert_eq!((now.identical, now.reason, now.trips), (1, None, 0));
    }

    #[test]
    fn closed_the_identical_limit_th_identical_call_in_a_row_opens_and_is_refused() {
        let mut run = Run::new();
        run.ok(1);
        run.ok(1);
        let denied = run.call(1).unwrap_err();
        assert_eq!(denied.reason, Reason::IdenticalCall);
        assert_eq!(denied.tripped.unwrap().count, Some(3));
        let now = run.snapshot();
        assert_eq!((now.state, now.turns, now.identical), (State::Open, 2, 3));
        assert_eq!(now.reason, Some(Reason::IdenticalCall));
        assert_eq!(
            run.transitions(),
            [(State::Closed, State::Open, TransitionReason::IdenticalCall)]
        );
    }

    #[test]
    fn closed_with_max_turns_spent_opens_and_refuses() {
        let mut run = Run::new();
        for call in 0..8 {
            run.ok(call);
        }
        assert_eq!(run.state(), State::Closed);
        let before = run.snapshot();
        assert_eq!(run.reason_of(7), Reason::MaxTurns);
        let now = run.snapshot();
        assert_eq!((now.state, now.turns), (State::Open, 8));
        assert_eq!(
            now.identical, before.identical,
            "refused before it is looked at"
        );
        assert_eq!(now.reason, Some(Reason::MaxTurns));
    }

    #[test]
    fn closed_error_limit_consecutive_errors_open() {
        let mut run = Run::new();
        run.fail(1);
        run.fail(2);
        run.ok(3);
        assert_eq!(run.snapshot().errors, 0, "a success breaks the streak");
        for call in 4..7 {
            assert_eq!(run.state(), State::Closed);
            run.fail(call);
        }
        let now = run.snapshot();
        assert_eq!((now.state, now.errors), (State::Open, 3));
        assert_eq!(now.reason, Some(Reason::ErrorStreak));
        assert_eq!(now.last_failure, Some(FailureKind::Transient));
    }

    #[test]
    fn closed_a_neutral_result_neither_raises_nor_ends_the_error_streak() {
        let mut run = Run::new();
        run.fail(1);
        run.fail(2);
        for call in 3..5 {
            let ticket = run.call(call).unwrap();
            assert!(run.tell(ticket, Outcome::Neutral, None));
        }
        run.fail(6);
        assert_eq!(run.state(), State::Open);
    }

    #[test]
    fn a_fatal_failure_is_one_error() {
        let mut run = Run::new();
        let ticket = run.call(1).unwrap();
        run.tell(ticket, Failure::fatal().into(), None);
        assert_eq!((run.state(), run.snapshot().errors), (State::Closed, 1));
    }

    #[test]
    fn open_with_the_cooldown_not_over_refuses_and_counts() {
        let mut run = Run::new();
        for call in 0..3 {
            run.fail(call);
        }
        let before = run.snapshot();
        assert_eq!(before.rejects_left, 4);
        let denied = run.call(2).unwrap_err();
        assert_eq!(denied.reason, Reason::TripwireOpen);
        assert_eq!(denied.tripped.unwrap().reason, Reason::ErrorStreak);
        let after = TripwireSnapshot {
            rejects_left: 3,
            ..before
        };
        assert_eq!(run.snapshot(), after, "neither digest nor streaks");
    }

    #[test]
    fn open_the_open_cooldown_rejects_th_refused_call_arms_one_probe() {
        let mut run = Run::new();
        for call in 0..3 {
            run.fail(call);
        }
        run.refused(3);
        assert_eq!(run.state(), State::Open);
        run.refused(1);
        assert_eq!(run.state(), State::HalfOpen);
        assert!(!run.snapshot().probing);
        assert!(run.call(9).is_ok());
        assert!(run.snapshot().probing);
    }

    #[test]
    fn half_open_the_next_call_is_the_probe_and_the_identical_check_applies_to_it() {
        let mut run = Run::new();
        run.ok(1);
        run.ok(1);
        assert_eq!(run.reason_of(1), Reason::IdenticalCall);
        run.refused(4);
        let denied = run.call(1).unwrap_err();
        assert_eq!(denied.reason, Reason::IdenticalCall);
        assert_eq!(denied.tripped.unwrap().count, Some(4));
        assert_eq!((run.state(), run.snapshot().trips), (State::Open, 2));
        run.refused(4);
        let probe = run.call(2).unwrap();
        assert_eq!(probe.role, Role::Probe);
        assert_eq!(run.snapshot().turns, 3, "a probe spends its turn");
    }

    #[test]
    fn half_open_the_next_call_is_the_probe_and_the_turn_check_applies_to_it() {
        let mut run = Run::new();
        for call in 0..5 {
            run.ok(call);
        }
        for call in 5..8 {
            run.fail(call);
        }
        assert_eq!(run.snapshot().reason, Some(Reason::ErrorStreak));
        run.refused(4);
        assert_eq!(run.reason_of(1), Reason::MaxTurns);
        assert_eq!(run.snapshot().reason, Some(Reason::MaxTurns));
        for _ in 0..50 {
            assert!(run.call(1).is_err(), "a spent turn budget is final");
        }
    }

    #[test]
    fn half_open_the_probe_succeeds_and_closes_with_both_streaks_zeroed() {
        let mut run = Run::armed();
        run.ok(1);
        let now = run.snapshot();
        assert_eq!((now.state, now.reason), (State::Closed, None));
        assert_eq!((now.errors, now.identical, now.turns), (0, 0, 4));
        run.ok(1);
        assert_eq!(
            run.snapshot().identical,
            1,
            "the same call again is number 1"
        );
        run.ok(1);
        assert_eq!(run.reason_of(1), Reason::IdenticalCall);
    }

    #[test]
    fn half_open_the_probe_fails_and_opens_with_a_new_cooldown() {
        let mut run = Run::new();
        run.ok(1);
        run.ok(1);
        assert_eq!(run.reason_of(1), Reason::IdenticalCall);
        run.refused(4);
        run.transitions();
        run.fail(2);
        let now = run.snapshot();
        assert_eq!((now.state, now.rejects_left), (State::Open, 4));
        assert_eq!((now.reason, now.trips), (Some(Reason::ErrorStreak), 2));
        assert_eq!(now.errors, 1);
        assert_eq!(
            run.transitions(),
            [(State::HalfOpen, State::Open, TransitionReason::ProbeFailed)]
        );
    }

    #[test]
    fn half_open_the_probe_is_dropped_and_opens_with_the_old_reason() {
        let mut run = Run::armed();
        let probe = run.call(1).unwrap();
        run.transitions();
        run.fence.lose(probe, &mut run.notes);
        let now = run.snapshot();
        assert_eq!((now.state, now.rejects_left), (State::Open, 4));
        assert_eq!((now.reason, now.trips), (Some(Reason::ErrorStreak), 1));
        assert_eq!(
            run.transitions(),
            [(State::HalfOpen, State::Open, TransitionReason::ProbeLost)]
        );
        run.refused(4);
        assert!(run.call(1).is_ok());
    }

    #[test]
    fn half_open_calls_while_the_probe_is_out_are_refused_and_after_enough_of_them_it_is_lost() {
        let mut run = Run::armed();
        let probe = run.call(1).unwrap();
        run.refused(3);
        assert_eq!(run.state(), State::HalfOpen);
        run.refused(1);
        let now = run.snapshot();
        assert_eq!((now.state, now.rejects_left), (State::Open, 4));
        assert_eq!(now.reason, Some(Reason::ErrorStreak));
        assert!(
            !run.tell(probe, Outcome::Success, None),
            "its late result says nothing"
        );
        assert_eq!(run.snapshot(), now);
        run.fence.lose(probe, &mut run.notes);
        assert_eq!(run.snapshot(), now);
        run.refused(4);
        assert_eq!(run.state(), State::HalfOpen);
    }

    #[test]
    fn half_open_the_probe_is_neutral_and_the_next_call_is_the_probe() {
        let mut run = Run::armed();
        for call in 1..4 {
            let probe = run.call(call).unwrap();
            assert_eq!(probe.role, Role::Probe);
            run.refused(2);
            assert!(run.tell(probe, Outcome::Neutral, None));
            assert_eq!(run.state(), State::HalfOpen);
        }
    }

    #[test]
    fn a_deadline_counts_from_the_first_admitted_call_and_is_final_until_a_reset() {
        let minute = Duration::from_secs(60);
        let mut run = Run::of(Rules {
            deadline: Some(minute),
            ..Rules::default()
        });
        run.now = run.now.after(minute * 10);
        assert_eq!(run.snapshot().time_left, None);
        run.ok(1);
        assert_eq!(run.snapshot().time_left, Some(minute));
        run.now = run.now.after(Duration::from_secs(59));
        run.ok(2);
        run.now = run.now.after(Duration::from_secs(1));
        let unnoticed = run.snapshot();
        assert_eq!(unnoticed.state, State::Open);
        assert_eq!(unnoticed.reason, Some(Reason::Deadline));
        for _ in 0..20 {
            assert_eq!(run.reason_of(3), Reason::Deadline);
            assert_eq!(run.snapshot(), unnoticed);
        }
        run.fence.reset(&run.rules, &mut run.notes);
        run.ok(3);
        assert_eq!(run.snapshot().time_left, Some(minute));
    }

    #[test]
    fn a_deadline_goes_before_any_other_reason() {
        let mut run = Run::of(Rules {
            deadline: Some(Duration::from_secs(1)),
            max_turns: 1,
            ..Rules::default()
        });
        run.ok(1);
        assert_eq!(run.reason_of(1), Reason::MaxTurns);
        run.now = run.now.after(Duration::from_secs(1));
        assert_eq!(run.reason_of(1), Reason::Deadline);
        run.fence.extend(5, &mut run.notes);
        assert_eq!(run.reason_of(1), Reason::Deadline, "final until a reset");
        assert_eq!(run.snapshot().turns_left, 5);
    }

    #[test]
    fn a_result_from_an_older_generation_is_stale() {
        let mut run = Run::new();
        let old: Vec<_> = (0..3).map(|call| run.call(call).unwrap()).collect();
        for call in 3..6 {
            run.fail(call);
        }
        let now = run.snapshot();
        let outcomes = [
            Outcome::Success,
            Outcome::Neutral,
            Failure::transient().into(),
        ];
        for (ticket, outcome) in old.into_iter().zip(outcomes) {
            assert!(!run.tell(ticket, outcome, Some(1)));
            assert_eq!(run.snapshot(), now);
        }
    }

    #[test]
    fn extending_after_max_turns_closes_with_streaks_kept() {
        let mut run = Run::new();
        for call in 0..5 {
            run.ok(call);
        }
        run.fail(5);
        run.fail(6);
        run.ok(7);
        assert_eq!(run.reason_of(7), Reason::MaxTurns);
        run.refused(4);
        run.fence.extend(0, &mut run.notes);
        assert_eq!(run.state(), State::HalfOpen, "nothing is given");
        run.fence.extend(2, &mut run.notes);
        let now = run.snapshot();
        assert_eq!((now.state, now.turns_left), (State::Closed, 2));
        assert_eq!((now.identical, now.reason), (1, None));
        run.ok(7);
        assert_eq!(run.reason_of(7), Reason::IdenticalCall);
    }

    #[test]
    fn extending_after_another_trip_grows_the_budget_alone() {
        let mut run = Run::armed();
        run.fence.extend(u32::MAX, &mut run.notes);
        let now = run.snapshot();
        assert_eq!((now.state, now.turns_left), (State::HalfOpen, u32::MAX - 3));
        assert_eq!(now.reason, Some(Reason::ErrorStreak));
    }

    #[test]
    fn a_reset_is_a_new_run_in_a_new_generation() {
        let mut run = Run::armed();
        let probe = run.call(1).unwrap();
        run.fence.extend(7, &mut run.notes);
        run.transitions();
        run.fence.reset(&run.rules, &mut run.notes);
        assert_eq!(run.snapshot(), Run::new().snapshot());
        assert_eq!(
            run.transitions(),
            [(State::HalfOpen, State::Closed, TransitionReason::Reset)]
        );
        assert!(!run.tell(probe, Failure::transient().into(), None));
        assert_eq!(run.snapshot(), Run::new().snapshot());
    }

    #[test]
    fn no_turns_refuse_every_call() {
        let mut run = Run::of(Rules {
            max_turns: 0,
            ..Rules::default()
        });
        assert_eq!(run.reason_of(1), Reason::MaxTurns);
        for _ in 0..20 {
            assert!(run.call(1).is_err());
        }
    }

    #[test]
    fn an_exempt_call_spends_a_turn_and_is_neither_a_repeat_nor_the_end_of_a_streak() {
        let mut run = Run::new();
        run.ok(1);
        run.ask(&exempt()).unwrap();
        run.ok(1);
        run.ask(&exempt()).unwrap();
        assert_eq!(run.snapshot().turns, 4);
        assert_eq!(run.reason_of(1), Reason::IdenticalCall);
    }

    #[test]
    fn a_tool_has_its_own_limit() {
        let mut run = Run::new();
        let own = Asked {
            limit: Some(5),
            ..asked(1)
        };
        for _ in 0..4 {
            run.ask(&own).unwrap();
        }
        assert_eq!(run.ask(&own).unwrap_err().reason, Reason::IdenticalCall);
    }

    #[test]
    fn a_warning_comes_once_in_a_run_at_its_turn() {
        let mut run = Run::of(Rules {
            warn_at: Some(6),
            ..Rules::default()
        });
        let mut warned = |run: &mut Run| {
            run.notes.begin();
            std::iter::from_fn(|| run.notes.next())
                .filter(|note| {
                    matches!(
                        note,
                        Told::Note(Note::Warned {
                            turns: 6,
                            budget: 8
                        })
                    )
                })
                .count()
        };
        for call in 0..5 {
            run.ok(call);
        }
        assert_eq!(warned(&mut run), 0);
        run.ok(5);
        assert_eq!(warned(&mut run), 1);
        run.ok(6);
        run.ok(7);
        assert_eq!(warned(&mut run), 0);
        run.fence.reset(&run.rules, &mut run.notes);
        for call in 0..6 {
            run.ok(call);
        }
        assert_eq!(warned(&mut run), 1);
    }

    fn cycling() -> Run {
        Run::of(Rules {
            max_turns: 100,
            cycles: Some(Cycles {
                max_period: 3,
                repeats: 3,
            }),
            ..Rules::default()
        })
    }

    #[test]
    fn a_round_of_calls_that_comes_again_and_again_is_a_repetition() {
        for round in [&[1, 2][..], &[1, 2, 3], &[1, 1, 2]] {
            let mut run = cycling();
            for call in [7, 8] {
                run.ok(call);
            }
            let mut calls = round.repeat(3);
            let last = calls.pop().unwrap();
            for call in calls {
                run.ok(call);
            }
            let denied = run.call(last).unwrap_err();
            assert_eq!(denied.reason, Reason::IdenticalCall, "{round:?}");
            let tripped = denied.tripped.unwrap();
            assert_eq!(tripped.count, Some(3));
            assert_eq!(tripped.period as usize, round.len());
            run.refused(4);
            assert_eq!(run.reason_of(round[0]), Reason::IdenticalCall, "it goes on");
            run.refused(4);
            run.ok(50);
            assert_eq!(run.state(), State::Closed);
            for _ in 0..2 {
                for call in round {
                    run.ok(*call);
                }
            }
        }
    }

    #[test]
    fn what_is_not_the_same_round_is_no_repetition() {
        let mut run = cycling();
        for call in [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4] {
            run.ok(call);
        }
        let mut run = Run::of(Rules {
            identical_limit: 100,
            ..cycling().rules
        });
        for _ in 0..50 {
            run.ok(1);
        }
    }

    #[test]
    fn an_answer_that_differs_is_progress_and_one_that_does_not_is_none() {
        let mut run = Run::of(Rules {
            max_turns: 100,
            ..Rules::default()
        });
        for answer in 0..10 {
            run.answered(1, answer);
        }
        run.answered(1, 9);
        assert_eq!(
            run.reason_of(1),
            Reason::IdenticalCall,
            "two equal answers, and a third call"
        );
    }

    #[test]
    fn failures_are_never_progress() {
        let mut run = Run::new();
        run.answered(1, 1);
        run.fail(1);
        assert_eq!(run.reason_of(1), Reason::IdenticalCall);
    }

    #[test]
    fn an_answer_to_another_call_is_no_progress_of_this_one() {
        let mut run = Run::new();
        let early = run.call(1).unwrap();
        run.answered(2, 20);
        run.answered(2, 20);
        run.tell(early, Outcome::Success, Some(99));
        assert_eq!(run.snapshot().identical, 2);
        assert_eq!(run.reason_of(2), Reason::IdenticalCall);
    }

    #[test]
    fn polling_in_a_round_is_honest_while_its_answers_differ() {
        let mut run = cycling();
        for round in 0..10 {
            run.answered(1, round);
            run.answered(2, 5);
        }
        for call in [1, 2, 1, 2] {
            run.answered(call, 5);
        }
        run.answered(1, 5);
        assert_eq!(run.reason_of(2), Reason::IdenticalCall);
    }

    #[test]
    fn calls_of_one_turn_spend_one_turn_and_are_no_repetition_in_time() {
        let mut run = Run::of(Rules {
            max_turns: 3,
            by_turn: true,
            cycles: cycling().rules.cycles,
            ..Rules::default()
        });
        for _ in 0..20 {
            run.call_in(1, 1).unwrap();
        }
        assert_eq!((run.snapshot().turns, run.snapshot().identical), (1, 1));
        for _ in 0..10 {
            run.call_in(2, 1).unwrap();
            run.call_in(2, 2).unwrap();
        }
        assert_eq!(run.snapshot().turns, 2);
        run.call_in(3, 5).unwrap();
        run.call_in(1, 6).unwrap();
        run.call_in(3, 7).unwrap();
        assert_eq!(run.call_in(4, 8).unwrap_err().reason, Reason::MaxTurns);
    }

    #[test]
    fn the_same_call_in_turn_after_turn_is_a_repetition() {
        let mut run = Run::of(Rules {
            by_turn: true,
            ..Rules::default()
        });
        for turn in [1, 1, 2, 2, 2] {
            run.call_in(turn, 1).unwrap();
        }
        assert_eq!(run.call_in(3, 1).unwrap_err().reason, Reason::IdenticalCall);
    }

    #[test]
    fn a_failed_readiness_is_an_error_without_a_call() {
        let mut run = Run::new();
        for _ in 0..3 {
            run.fence
                .readiness_failed(&run.rules, run.now, FailureKind::Transient, &mut run.notes);
        }
        let now = run.snapshot();
        assert_eq!((now.state, now.turns), (State::Open, 0));
        assert_eq!(now.reason, Some(Reason::ErrorStreak));
        run.fence
            .readiness_failed(&run.rules, run.now, FailureKind::Transient, &mut run.notes);
        assert_eq!(run.snapshot(), now, "nothing is asked of it while open");
        run.refused(4);
        run.fence
            .readiness_failed(&run.rules, run.now, FailureKind::Transient, &mut run.notes);
        assert_eq!((run.state(), run.snapshot().trips), (State::Open, 2));
    }

    #[test]
    fn the_word_alone_tells_whether_any_call_may_go() {
        let glance = |run: &Run| {
            let until = || Some(run.fence.until());
            Fence::glance(run.fence.word(), until, &run.rules, run.now)
        };
        let mut run = Run::of(Rules {
            max_turns: 4,
            deadline: Some(Duration::from_secs(9)),
            ..Rules::default()
        });
        let mut seen = Vec::new();
        let mut look = |run: &Run| {
            assert_eq!(glance(run), Some(run.fence.would_allow_some(run.now)));
            seen.push(glance(run).unwrap());
        };
        look(&run);
        for call in 0..3 {
            run.fail(call);
        }
        look(&run);
        run.refused(4);
        look(&run);
        run.call(7).unwrap();
        look(&run);
        run.refused(8);
        look(&run);
        run.now = run.now.after(Duration::from_secs(9));
        look(&run);
        assert_eq!(seen, [true, false, true, false, false, false]);
        assert_eq!(
            Fence::glance(Word::BUSY, || None, &run.rules, run.now),
            None
        );
    }

    #[test]
    fn a_fence_without_streaks_is_clean_and_nothing_in_it_runs() {
        let rest = |run: &Run| run.fence.rest(&run.rules, run.now);
        let mut run = Run::new();
        run.ok(1);
        assert_eq!(rest(&run), Rest::Clean);
        run.ok(1);
        assert_eq!(rest(&run), Rest::Unclean);
        run.fail(2);
        assert_eq!(rest(&run), Rest::Unclean);
        assert_eq!(rest(&Run::armed()), Rest::Unclean);
        let mut run = Run::of(Rules {
            deadline: Some(Duration::from_secs(1)),
            ..Rules::default()
        });
        run.ok(1);
        run.now = run.now.after(Duration::from_secs(1));
        assert_eq!(rest(&run), Rest::Unclean);
    }

    #[test]
    fn a_refusal_tells_the_rule_the_count_and_what_it_followed() {
        let mut run = Run::new();
        run.ok(1);
        run.ok(1);
        let first = run.call(1).unwrap_err().refusal(None);
        assert_eq!(first.reason(), Reason::IdenticalCall);
        assert_eq!((first.tripped_by(), first.count()), (None, Some(3)));
        let later = run.call(5).unwrap_err().refusal(None);
        assert_eq!(later.reason(), Reason::TripwireOpen);
        assert_eq!(later.tripped_by(), Some(Reason::IdenticalCall));
        assert_eq!((later.count(), later.retry_after()), (Some(3), None));
        let early = Denied::NOT_READY.refusal(None);
        assert_eq!(early.retry_after(), Some(Duration::ZERO));
        assert_eq!((early.tripped_by(), early.count()), (None, None));
    }
}
