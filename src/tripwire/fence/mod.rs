//! The fence: the tripwire's pure state machine.
//!
//! | state | a call comes | what happens |
//! | --- | --- | --- |
//! | closed | it is new, and turns are left | it runs and spends a turn |
//! | closed | it is the `identical_limit`-th identical call in a row | → open (`identical_call`); the call is refused before it runs |
//! | closed | `max_turns` are spent | → open (`max_turns`); the call is refused |
//! | open | the cooldown is not over | it is refused and counted |
//! | open | it is the `open_cooldown_rejects`-th refused call | → `half_open`; the call is refused too, and arms one probe |
//! | `half_open` | it is the next call | it is the probe; the turn and identical checks still apply to it, and open the fence again |
//! | `half_open` | the probe is out | it is refused and counted; after `open_cooldown_rejects` such calls the probe counts as lost, as if dropped |
//! | any | the run's time is over | → open (`deadline`); every call is refused with it, until a reset |
//!
//! | state | a result comes | what happens |
//! | --- | --- | --- |
//! | closed | a success | the error streak is zeroed |
//! | closed | a neutral result | nothing changes |
//! | closed | `error_limit` consecutive errors | → open (`error_streak`); the failing call's own error reaches its caller |
//! | `half_open` | the probe succeeds | → closed; error and identical streaks are zeroed, turns are never given back |
//! | `half_open` | the probe is neutral | armed again: the next call is the probe |
//! | `half_open` | the probe fails | → open (`error_streak`); the cooldown restarts |
//! | `half_open` | the probe is dropped | → open; the old reason stays, the cooldown restarts |
//! | any | a result from an older generation | stale: it changes nothing |
//! | any | the inner service fails to become ready | an error that spends no turn, if some call would be let through |
//!
//! | state | by hand | what happens |
//! | --- | --- | --- |
//! | any | `extend` | the budget grows; after a trip by `max_turns` → closed, streaks kept |
//! | any | `reset` | a new run begins, in a new generation |
//!
//! - The checks come in this order: deadline, `max_turns`, identical.
//! - A refusal while open touches neither the digest nor the streaks. A trip clears none of them.
//! - The call that trips as identical counts in its streak, and spends no turn.
//! - A plain success clears the error streak alone. A probe's success clears both streaks and
//!   keeps the last digest, so the same call again is number 1.
//! - Every transition begins a new generation. In a half-open generation only the probe is ever
//!   admitted, and in an open one nobody is. So a result's generation alone says what it may do.

mod call;
mod counting;
#[cfg(test)]
mod driver;
mod memory;
#[cfg(test)]
mod model;
mod packed;
#[cfg(test)]
mod rows;
mod rules;
#[cfg(test)]
mod walk;

use self::memory::Memory;
use self::packed::PendingEvent;
use super::digest::Digest;
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::EventQueue;
use crate::vocabulary::{FailureKind, Outcome, Reason, State, TransitionReason};

pub(super) use self::call::{CallFacts, Denied, Role, Ticket, Trip};
pub(crate) use self::rules::{Cycles, Rules};

/// Where a fence is.
///
/// The packed state carries it as a number, with
/// [`NO_TURN_LEFT`](packed::NO_TURN_LEFT) added once the budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Phase {
    Closed = 0,
    Open = 1,
    /// Half-open, and the probe is out.
    Probing = 2,
    /// Half-open, and the next call is the probe.
    Armed = 3,
    /// The run's time is over. The number is that of `Open` with the mark: both refuse every
    /// call.
    Expired = 5,
}

impl Phase {
    pub(super) fn state(self) -> State {
        match self {
            Phase::Closed => State::Closed,
            Phase::Open | Phase::Expired => State::Open,
            Phase::Probing | Phase::Armed => State::HalfOpen,
        }
    }
}

/// The state machine. See the module's tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fence {
    generation: u32,
    pub(super) phase: Phase,
    pub(super) turns: u32,
    /// How many turns the run may spend, extensions included.
    pub(super) budget: u32,
    /// The error streak.
    pub(super) errors: u32,
    /// The identical streak.
    pub(super) identical: u32,
    /// How many calls were refused in this cooldown, or since the probe went out.
    pub(super) rejects: u32,
    last_failure: Option<FailureKind>,
    by_turn: bool,
    has_deadline: bool,
    /// The digest of the last call that has one.
    last_digest: Option<Digest>,
    /// The number of the last call that has a digest.
    last_number: u32,
    /// The number of the first call of the identical streak.
    streak_start: u32,
    /// The last answer to a call of the identical streak.
    last_answer: Option<Digest>,
    /// The last trip; `None` once the fence has closed again.
    last_trip: Option<Trip>,
    pub(super) trips: u64,
    /// When the run's time is over; [`Timestamp::NEVER`] before the run begins.
    pub(super) deadline: Timestamp,
    /// `None` if no rule needs it.
    memory: Option<Box<Memory>>,
}

/// The decision about a call: the answer of the oracle, and the action of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Admit {
        streak: u32,
        spends_turn: bool,
    },
    RefuseIdentical {
        streak: u32,
        count: u32,
        period: u32,
    },
    RefuseNoTurnLeft,
    /// The fence had tripped before.
    RefuseTripped,
    RefuseExpired,
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
            last_failure: None,
            by_turn: rules.by_turn,
            has_deadline: rules.deadline.is_some(),
            last_digest: None,
            last_number: 0,
            streak_start: 0,
            last_answer: None,
            last_trip: None,
            trips: 0,
            deadline: Timestamp::NEVER,
            memory: rules.need_memory().then(Box::default),
        }
    }

    // ===== a call comes: the oracle and the gate =====

    /// The oracle: whether the gate would admit this call. It changes nothing.
    pub(super) fn would_allow(&self, rules: &Rules, now: Timestamp, facts: &CallFacts) -> bool {
        matches!(self.decide(rules, now, facts), Decision::Admit { .. })
    }

    /// Whether the gate would admit some call.
    pub(super) fn would_allow_some(&self, now: Timestamp) -> bool {
        !self.is_expired(now)
            && matches!(self.phase, Phase::Closed | Phase::Armed)
            && !self.has_no_turn_left()
    }

    /// The gate: admits the call, or says why not.
    pub(super) fn try_acquire(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        facts: &CallFacts,
        events: &mut EventQueue<PendingEvent>,
    ) -> Result<Ticket, Denied> {
        match self.decide(rules, now, facts) {
            Decision::Admit {
                streak,
                spends_turn,
            } => Ok(self.admit(rules, now, facts, streak, spends_turn, events)),
            Decision::RefuseIdentical {
                streak,
                count,
                period,
            } => {
                self.count_call(rules, facts, streak);
                Err(self.refuse_identical(count, period, events))
            }
            Decision::RefuseNoTurnLeft => Err(self.refuse_no_turn_left(events)),
            Decision::RefuseTripped => Err(self.refuse_tripped(rules, events)),
            Decision::RefuseExpired => Err(self.refuse_expired(events)),
        }
    }

    /// The gate's fast path: an ordinary call under the plain rules, with a turn left after it.
    ///
    /// All that it changes is in no packed state. `None`, with nothing changed, if the call needs
    /// [`try_acquire`](Self::try_acquire).
    #[inline]
    pub(super) fn try_acquire_fast(&mut self, rules: &Rules, facts: &CallFacts) -> Option<Ticket> {
        let turns = self.turns.checked_add(1)?;
        let is_plain = !self.has_deadline
            && self.memory.is_none()
            && self.phase == Phase::Closed
            && turns < self.budget
            && rules.warn_at != Some(turns);
        if !is_plain {
            return None;
        }
        let mut number = 0;
        if let Some(digest) = facts.digest {
            let streak = self.streak_with(digest);
            if streak >= facts.limit.unwrap_or(rules.identical_limit) {
                return None;
            }
            number = self.append_to_streak(digest, streak);
        }
        self.turns = turns;
        Some(self.ticket(number, Role::Ordinary))
    }

    /// Refuses a call that nobody has looked at, if every call would be refused.
    ///
    /// `None`, with nothing changed, if some call would be let through.
    pub(super) fn refuse_if_none_allowed(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) -> Option<Denied> {
        if self.is_expired(now) {
            return Some(self.refuse_expired(events));
        }
        match self.phase {
            Phase::Open | Phase::Probing => Some(self.refuse_tripped(rules, events)),
            _ if self.has_no_turn_left() => Some(self.refuse_no_turn_left(events)),
            _ => None,
        }
    }

    /// Decides what becomes of a call. The checks come in the order that the module's docs name.
    fn decide(&self, rules: &Rules, now: Timestamp, facts: &CallFacts) -> Decision {
        if self.is_expired(now) {
            return Decision::RefuseExpired;
        }
        if !matches!(self.phase, Phase::Closed | Phase::Armed) {
            return Decision::RefuseTripped;
        }
        let spends_turn = !self.has_spent_turn_of(facts);
        if spends_turn && self.turns >= self.budget {
            return Decision::RefuseNoTurnLeft;
        }
        let Some(digest) = facts.digest else {
            let streak = self.identical;
            return Decision::Admit {
                streak,
                spends_turn,
            };
        };
        let mut streak = self.streak_with(digest);
        if self.last_digest == Some(digest) && self.has_counted_turn_of(facts) {
            streak = self.identical;
        }
        let (count, period) = if streak >= facts.limit.unwrap_or(rules.identical_limit) {
            (streak, 1)
        } else if let Some(cycle) = self.completes_cycle(rules, digest, facts) {
            cycle
        } else {
            return Decision::Admit {
                streak,
                spends_turn,
            };
        };
        Decision::RefuseIdentical {
            streak,
            count,
            period,
        }
    }

    /// Closed: the call runs. Half-open: it is the probe.
    fn admit(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        facts: &CallFacts,
        streak: u32,
        spends_turn: bool,
        events: &mut EventQueue<PendingEvent>,
    ) -> Ticket {
        // The run begins with its first admitted call.
        if let (Some(limit), Timestamp::NEVER) = (rules.deadline, self.deadline) {
            self.deadline = now.saturating_add(limit);
        }
        if spends_turn {
            self.spend_turn(facts);
            if rules.warn_at == Some(self.turns) {
                events.push(PendingEvent::Warned {
                    turns: self.turns,
                    budget: self.budget,
                });
            }
        }
        let number = self.count_call(rules, facts, streak);
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

    /// The `identical_limit`-th identical call in a row, or a completed cycle: trips.
    fn refuse_identical(
        &mut self,
        count: u32,
        period: u32,
        events: &mut EventQueue<PendingEvent>,
    ) -> Denied {
        let trip = Trip {
            reason: Reason::IdenticalCall,
            count: Some(count),
            period,
        };
        self.trip(trip, TransitionReason::IdenticalCall, events);
        self.denied(trip.reason)
    }

    /// `max_turns` are spent: trips.
    fn refuse_no_turn_left(&mut self, events: &mut EventQueue<PendingEvent>) -> Denied {
        let trip = Trip {
            reason: Reason::MaxTurns,
            count: Some(self.turns),
            period: 1,
        };
        self.trip(trip, TransitionReason::MaxTurns, events);
        self.denied(trip.reason)
    }

    /// Open, or the probe is out: refuses the call and counts it. Enough of them end the
    /// cooldown, or declare the probe lost.
    fn refuse_tripped(&mut self, rules: &Rules, events: &mut EventQueue<PendingEvent>) -> Denied {
        let denied = self.denied(Reason::TripwireOpen);
        self.rejects += 1;
        if self.rejects >= rules.open_cooldown_rejects {
            self.rejects = 0;
            if self.phase == Phase::Open {
                self.move_to(Phase::Armed, TransitionReason::CooldownOver, events);
            } else {
                self.move_to(Phase::Open, TransitionReason::ProbeLost, events);
            }
        }
        denied
    }

    /// The run's time is over: trips, if no call has noticed before.
    fn refuse_expired(&mut self, events: &mut EventQueue<PendingEvent>) -> Denied {
        if self.phase != Phase::Expired {
            self.trip(EXPIRED, TransitionReason::Deadline, events);
        }
        self.denied(EXPIRED.reason)
    }

    fn denied(&self, reason: Reason) -> Denied {
        Denied {
            reason,
            trip: self.last_trip,
            last_failure: self.last_failure,
        }
    }

    /// Whether the run's time is over.
    #[inline]
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        // No clock reaches `Timestamp::NEVER`.
        now >= self.deadline
    }

    /// Whether every call would find the budget spent.
    ///
    /// Never with `by_turn`: a call of a turn that was spent before spends no other.
    fn has_no_turn_left(&self) -> bool {
        self.turns >= self.budget && !self.by_turn
    }

    // ===== a result comes =====

    /// Records a verdict, and what a success answered, where answers are compared.
    ///
    /// Returns `false` if the verdict is stale.
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
            self.compare_answer(ticket.number, answer);
        }
        match (self.phase, outcome) {
            (Phase::Closed, Outcome::Success) => self.errors = 0,
            (Phase::Closed, Outcome::Neutral) => {}
            // Half-open: the only call in flight in this generation is the probe.
            (_, Outcome::Success) => {
                self.errors = 0;
                self.identical = 0;
                if let Some(memory) = &mut self.memory {
                    memory.clear_calls();
                }
                self.last_trip = None;
                self.move_to(Phase::Closed, TransitionReason::ProbeSucceeded, events);
            }
            (_, Outcome::Neutral) => self.phase = Phase::Armed,
            (_, Outcome::Failure(failure)) => self.count_error(rules, failure.kind(), events),
        }
        true
    }

    /// An error: closed, it may be the `error_limit`-th in a row; half-open, the probe has
    /// failed.
    fn count_error(
        &mut self,
        rules: &Rules,
        kind: FailureKind,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.errors = self.errors.saturating_add(1);
        self.last_failure = Some(kind);
        let reason = match self.phase {
            Phase::Closed if self.errors < rules.error_limit => return,
            Phase::Closed => TransitionReason::ErrorStreak,
            _ => TransitionReason::ProbeFailed,
        };
        let trip = Trip {
            reason: Reason::ErrorStreak,
            count: Some(self.errors),
            period: 1,
        };
        self.trip(trip, reason, events);
    }

    /// The probe was dropped without a verdict. It must not wedge the fence.
    pub(super) fn lose_probe(&mut self, ticket: Ticket, events: &mut EventQueue<PendingEvent>) {
        if ticket.generation == self.generation && self.phase == Phase::Probing {
            self.rejects = 0;
            self.move_to(Phase::Open, TransitionReason::ProbeLost, events);
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
            self.count_error(rules, kind, events);
        }
    }

    // ===== by hand =====

    pub(super) fn extend(&mut self, turns: u32, events: &mut EventQueue<PendingEvent>) {
        self.budget = self.budget.saturating_add(turns);
        if self.trip_reason() == Some(Reason::MaxTurns) && turns > 0 {
            self.last_trip = None;
            self.rejects = 0;
            self.move_to(Phase::Closed, TransitionReason::Extended, events);
        }
    }

    pub(super) fn reset(&mut self, rules: &Rules, events: &mut EventQueue<PendingEvent>) {
        let from = self.phase;
        let generation = self.generation;
        *self = Self::new(rules);
        self.generation = generation;
        self.phase = from;
        self.move_to(Phase::Closed, TransitionReason::Reset, events);
    }

    /// Why the fence tripped last, if it has not closed since.
    pub(super) fn trip_reason(&self) -> Option<Reason> {
        self.last_trip.map(|trip| trip.reason)
    }

    // ===== transitions =====

    fn trip(
        &mut self,
        trip: Trip,
        reason: TransitionReason,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.last_trip = Some(trip);
        self.trips += 1;
        self.rejects = 0;
        let phase = if trip == EXPIRED {
            Phase::Expired
        } else {
            Phase::Open
        };
        self.move_to(phase, reason, events);
    }

    fn move_to(
        &mut self,
        to: Phase,
        reason: TransitionReason,
        events: &mut EventQueue<PendingEvent>,
    ) {
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

/// The trip at the end of the run's time.
const EXPIRED: Trip = Trip {
    reason: Reason::Deadline,
    count: None,
    period: 1,
};
