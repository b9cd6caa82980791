//! The circuit: a pure state machine.
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | Closed | success | streak = 0 |
//! | Closed | failure | streak + 1; at `failure_threshold` → Open, the cooldown counts from now. A fatal one trips at once |
//! | Closed | a result from an older generation | stale: changes nothing, success or failure |
//! | Open | call, cooldown not over | refused, with the time that is left |
//! | Open | call, `elapsed ≥ recovery_duration` | → `HalfOpen`; this caller is the probe, its lease starts |
//! | Open | stale success | ignored: it describes the time before the trip |
//! | Open | stale failure | the cooldown restarts from now (each admitted call once; refusals never) |
//! | `HalfOpen` | call, slot taken | refused (`ProbeInFlight`), with the rest of the lease |
//! | `HalfOpen` | the probe succeeds, lease live | → Closed (or the next probe, until `success_threshold`) |
//! | `HalfOpen` | the probe fails | → Open, the cooldown counts from now |
//! | `HalfOpen` | the probe shows a sign of life, lease live | the lease starts anew |
//! | `HalfOpen` | lease over | → Open, the cooldown counts from the lease's end, however late it is noticed |
//! | `HalfOpen` | the probe is neutral | the slot is free; the next call is the probe |
//! | `HalfOpen` | any other result | stale: changes nothing |
//! | any | pinned open by hand | Open until a reset; results are stale and move nothing |
//! | any | reset | as new, in a new generation |
//!
//! Every transition begins a new generation. Only a probe is ever admitted in a generation that is half-open, and nobody in one
//! that is open, so a result's generation alone says what it may do.

mod window;

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::time::Duration;

use self::window::Tally;
pub use self::window::Window;
use super::WhenOpen;
use crate::machinery::clock::{Timestamp, nanos};
use crate::machinery::cooldown::{restarted, retry_deadline};
use crate::machinery::denied::Denied;
use crate::machinery::event_queue::EventQueue;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::Reason;
use crate::vocabulary::{Cancelled, Failure, FailureKind, Outcome, Recorded};
use crate::vocabulary::{Event, State, TransitionReason};

/// How a circuit decides.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(super) failure_threshold: u32,
    pub(super) recovery_duration: Duration,
    pub(super) probe_timeout: Duration,
    pub(super) success_threshold: u32,
    pub(super) retry_after_cap: Duration,
    pub(super) backoff: Option<Backoff>,
    /// The largest part of a cooldown that is added to it.
    pub(super) jitter: f64,
    pub(super) rate: Option<Rate>,
    /// The calls that the window must hold before the rate counts; a smaller window must be full.
    pub(super) minimum_calls: u32,
    pub(super) slow_call: Option<Duration>,
    pub(super) on_cancel: Cancelled,
    pub(super) observe_only: bool,
    pub(super) when_open: WhenOpen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub(super) factor: f64,
    pub(super) max: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) fraction: f64,
    pub(super) window: Window,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            failure_threshold: 3,
            recovery_duration: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(30),
            success_threshold: 1,
            retry_after_cap: Duration::from_secs(5 * 60),
            backoff: None,
            jitter: 0.0,
            rate: None,
            minimum_calls: 10,
            slow_call: None,
            on_cancel: Cancelled::Ignore,
            observe_only: false,
            when_open: WhenOpen::Refuse,
        }
    }
}

impl Rules {
    /// Whether a verdict may depend on how long the call ran.
    pub(super) fn are_timed(&self) -> bool {
        self.slow_call.is_some() || self.on_cancel.is_timed()
    }

    /// Whether the failure rate, if one is set, calls for a trip.
    fn rate_is_reached(&self, tally: Option<&Tally>, now: Timestamp) -> bool {
        let (Some(rate), Some(tally)) = (self.rate, tally) else {
            return false;
        };
        let minimum = match rate.window {
            Window::Calls(calls) => calls.min(self.minimum_calls),
            Window::Time(_) => self.minimum_calls,
        };
        let (calls, failures) = tally.totals(now);
        // Divided, and not multiplied: of counts far below 2⁵³, the quotient is rounded as the fraction itself is, so that the two are
        // equal where they are meant to be.
        #[allow(clippy::cast_precision_loss)]
        let reached = failures as f64 / calls as f64 >= rate.fraction;
        calls >= u64::from(minimum) && reached
    }

    /// What a result says, a success's time taken into account.
    #[inline]
    pub(super) fn judge(&self, outcome: Outcome, ran: impl FnOnce() -> Duration) -> Outcome {
        match (outcome, self.slow_call) {
            (Outcome::Success, Some(slow)) if ran() >= slow => Failure::transient().into(),
            _ => outcome,
        }
    }
}

/// Where a circuit is. The word carries it as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Phase {
    Closed = 0,
    /// Half-open, the slot free.
    Vacant = 1,
    /// Half-open, the slot taken; `until` is the lease's end.
    Probing = 2,
    /// Pinned open by hand.
    Forced = 3,
    /// `until` is when a probe may go. It has a bit of its own, since most refusals look at nothing else.
    Open = 4,
}

impl Phase {
    fn of(packed: PackedState) -> Self {
        match packed.phase() {
            0 => Phase::Closed,
            1 => Phase::Vacant,
            2 => Phase::Probing,
            3 => Phase::Forced,
            _ => Phase::Open,
        }
    }

    fn state(self) -> State {
        match self {
            Phase::Closed => State::Closed,
            Phase::Open | Phase::Forced => State::Open,
            Phase::Probing | Phase::Vacant => State::HalfOpen,
        }
    }
}

/// What an admitted call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) generation: u32,
    pub(super) role: Role,
}

impl Ticket {
    /// The ticket of a call that `word` lets through with all others.
    #[inline]
    pub(super) fn ordinary(packed: PackedState) -> Self {
        Self {
            generation: packed.generation(),
            role: Role::Ordinary,
        }
    }
}

/// An enum rather than a flag, so that the compiler has room in it to tell a future's variants apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Ordinary,
    Probe,
}

/// What the circuit leaves for observers.
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
    LeaseExpired {
        generation: u32,
    },
}

/// A circuit as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitBreakerSnapshot {
    /// The state. A probe whose lease is over has opened the circuit, noticed or not.
    pub state: State,
    /// Open, and the cooldown is over: the next call is the probe.
    pub due: bool,
    /// Pinned open by hand, until a reset.
    pub forced: bool,
    /// How many calls failed in a row while closed; kept from a trip until the circuit closes again.
    pub streak: u32,
    /// What is left of the cooldown, zero once a probe is due, or of the probe's lease; `None` if neither runs, or it has no end.
    pub time_left: Option<Duration>,
    /// How often it has tripped or was pinned open, since it was made or reset.
    pub trips: u64,
    /// The kind of the last failure since it was made or reset.
    pub last_failure: Option<FailureKind>,
}

/// The state machine. See the module's table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Circuit {
    generation: u32,
    phase: Phase,
    /// The deadline of the phase; [`Timestamp::NEVER`] where it has none.
    deadline: Timestamp,
    streak: u32,
    last: Option<FailureKind>,
    /// Until when a failure of this streak asked to be left alone; [`Timestamp::START`] if none did.
    hint: Timestamp,
    /// The cooldown of the present opening, jitter included; a late failure restarts it.
    cooldown: Duration,
    /// The cooldown of the next opening, jitter left aside.
    next: Duration,
    /// Probes that succeeded, one after the other.
    successes: u32,
    trips: u64,
    seed: u64,
    /// Whether its verdicts may depend on how long a call ran.
    timed: bool,
    tally: Option<Box<Tally>>,
}

impl Circuit {
    pub(super) fn new(rules: &Rules, seed: u64) -> Self {
        Self {
            generation: 0,
            phase: Phase::Closed,
            deadline: Timestamp::NEVER,
            streak: 0,
            last: None,
            hint: Timestamp::START,
            cooldown: Duration::ZERO,
            next: rules.recovery_duration,
            successes: 0,
            trips: 0,
            seed,
            timed: rules.are_timed(),
            tally: rules.rate.map(|rate| Box::new(Tally::new(rate.window))),
        }
    }

    // ===== the gate and the oracle =====

    /// The gate: admits the call, or says why not.
    pub(super) fn try_acquire(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) -> Result<Ticket, Denied> {
        self.expire(rules, now, events);
        match Self::answer(self.phase, self.deadline, self.last, now) {
            Err(denied) => Err(denied),
            Ok(Role::Ordinary) => Ok(self.ticket(Role::Ordinary)),
            Ok(Role::Probe) => {
                if self.phase == Phase::Open {
                    self.go(Phase::Probing, TransitionReason::CooldownOver, events);
                }
                self.phase = Phase::Probing;
                self.deadline = now.saturating_add(rules.probe_timeout);
                events.push(PendingEvent::ProbeStarted {
                    generation: self.generation,
                });
                Ok(self.ticket(Role::Probe))
            }
        }
    }

    /// The oracle: what the gate would answer, with nothing changed.
    pub(super) fn would_allow(&self, rules: &Rules, now: Timestamp) -> Result<(), Denied> {
        let (phase, deadline) = self.at(rules, now);
        Self::answer(phase, deadline, self.last_at(phase), now).map(|_| ())
    }

    /// The oracle again, for callers without the lock, from the word and its moment alone. `None` if the machine must be asked.
    pub(super) fn try_acquire_lock_free(
        packed: PackedState,
        deadline: impl FnOnce() -> Option<Timestamp>,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Result<Ticket, Denied>> {
        if packed.is_busy() {
            return None;
        }
        let phase = Phase::of(packed);
        let role = match phase {
            Phase::Closed => Role::Ordinary,
            Phase::Vacant => return None,
            Phase::Open | Phase::Probing | Phase::Forced => {
                match Self::answer(phase, deadline()?, packed.last(), now()) {
                    Err(denied) if denied.wait != Some(Duration::ZERO) => return Some(Err(denied)),
                    // Due, or the lease is over: the machine has to move.
                    _ => return None,
                }
            }
        };
        let generation = packed.generation();
        Some(Ok(Ticket { generation, role }))
    }

    /// Whether `word` is open, so that its moment is when a probe may go. A busy word says no.
    #[inline]
    pub(super) fn is_open(packed: PackedState) -> bool {
        packed.phase() & Phase::Open as u8 != 0
    }

    fn answer(
        phase: Phase,
        deadline: Timestamp,
        last: Option<FailureKind>,
        now: Timestamp,
    ) -> Result<Role, Denied> {
        let reason = match phase {
            Phase::Closed => return Ok(Role::Ordinary),
            Phase::Vacant => return Ok(Role::Probe),
            Phase::Open if now >= deadline => return Ok(Role::Probe),
            Phase::Open => Reason::CircuitOpen,
            Phase::Probing => Reason::ProbeInFlight,
            Phase::Forced => Reason::ForcedOpen,
        };
        let wait = deadline.remaining(now);
        Err(Denied { reason, wait, last })
    }

    fn ticket(&self, role: Role) -> Ticket {
        let generation = self.generation;
        Ticket { generation, role }
    }

    // ===== verdicts =====

    /// What a verdict changes if that is the streak and the last failure alone; `None` if the machine must be asked.
    #[inline]
    pub(super) fn record_lock_free(
        packed: PackedState,
        ticket: Ticket,
        outcome: Outcome,
        rules: &Rules,
    ) -> Option<PackedState> {
        if !packed.is_lock_free_in(ticket.generation) {
            return None;
        }
        match outcome {
            Outcome::Failure(failure) if !failure.is_plain() => None,
            _ => packed.counting(outcome, rules.failure_threshold),
        }
    }

    /// When the lease ends of a probe that shows a sign of life now; `None` if `ticket` is not that of the probe that is out, or its lease is
    /// over.
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    pub(super) fn renewed(
        packed: PackedState,
        deadline: Timestamp,
        ticket: Ticket,
        rules: &Rules,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let out = Phase::of(packed) == Phase::Probing && packed.generation() == ticket.generation;
        (out && now < deadline).then(|| now.saturating_add(rules.probe_timeout))
    }

    /// Takes a verdict, already judged by the rules.
    pub(super) fn record(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        ticket: Ticket,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) -> Recorded {
        self.expire(rules, now, events);
        if ticket.generation == self.generation {
            match self.phase {
                Phase::Closed => self.record_ordinary(rules, now, outcome, events),
                // The only call in flight in this generation is the probe.
                _ => self.record_probe(rules, now, outcome, events),
            }
            return Recorded::Applied;
        }
        if let (Phase::Open, Outcome::Failure(failure)) = (self.phase, outcome) {
            self.last = Some(failure.kind());
            self.deadline = restarted(
                failure,
                self.deadline,
                now,
                self.cooldown,
                rules.retry_after_cap,
            );
        }
        Recorded::Stale
    }

    fn record_ordinary(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) {
        let failure = match outcome {
            Outcome::Neutral => return,
            Outcome::Success => {
                self.streak = 0;
                self.hint = Timestamp::START;
                None
            }
            Outcome::Failure(failure) => {
                self.streak = self.streak.saturating_add(1);
                self.last = Some(failure.kind());
                self.hint = self
                    .hint
                    .max(retry_deadline(failure, now, rules.retry_after_cap));
                Some(failure)
            }
        };
        if let Some(tally) = &mut self.tally {
            tally.count(failure.is_some(), now);
        }
        let reason = match failure {
            Some(failure) if failure.kind() == FailureKind::Fatal => TransitionReason::FatalFailure,
            Some(_) if self.streak >= rules.failure_threshold => TransitionReason::FailureThreshold,
            _ if rules.rate_is_reached(self.tally.as_deref(), now) => TransitionReason::FailureRate,
            _ => return,
        };
        self.trip(rules, now, reason, events);
    }

    fn record_probe(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) {
        match outcome {
            Outcome::Neutral => self.vacate(),
            Outcome::Success => {
                self.successes += 1;
                if self.successes < rules.success_threshold {
                    self.vacate();
                } else {
                    self.clear(rules);
                    self.go(Phase::Closed, TransitionReason::ProbeSucceeded, events);
                }
            }
            Outcome::Failure(failure) => {
                self.last = Some(failure.kind());
                self.hint = retry_deadline(failure, now, rules.retry_after_cap);
                self.trip(rules, now, TransitionReason::ProbeFailed, events);
            }
        }
    }

    fn vacate(&mut self) {
        self.phase = Phase::Vacant;
        self.deadline = Timestamp::NEVER;
    }

    // ===== by hand =====

    pub(super) fn force_open(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.expire(rules, now, events);
        if self.phase != Phase::Forced {
            self.deadline = Timestamp::NEVER;
            self.trips += u64::from(self.phase.state() != State::Open);
            self.go(Phase::Forced, TransitionReason::ForcedOpen, events);
        }
    }

    pub(super) fn reset(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.expire(rules, now, events);
        self.clear(rules);
        self.last = None;
        self.trips = 0;
        self.go(Phase::Closed, TransitionReason::Reset, events);
    }

    pub(super) fn snapshot(
        &self,
        packed: PackedState,
        rules: &Rules,
        now: Timestamp,
    ) -> CircuitBreakerSnapshot {
        let (phase, deadline) = self.at(rules, now);
        CircuitBreakerSnapshot {
            state: phase.state(),
            due: phase == Phase::Open && now >= deadline,
            forced: phase == Phase::Forced,
            streak: packed.streak_or(self.streak),
            time_left: deadline.remaining(now),
            trips: self.trips + u64::from(phase != self.phase),
            last_failure: if phase == self.phase {
                packed.last()
            } else {
                self.last_at(phase)
            },
        }
    }

    // ===== how it moves =====

    /// The phase and its deadline as they are at `now`, a lease that is over taken into account.
    fn at(&self, rules: &Rules, now: Timestamp) -> (Phase, Timestamp) {
        if self.phase == Phase::Probing && now >= self.deadline {
            return (
                Phase::Open,
                self.deadline.saturating_add(self.next_cooldown(rules)),
            );
        }
        (self.phase, self.deadline)
    }

    /// The last failure, if the phase is as [`at`](Self::at) found it: a lease that is over is a failure.
    fn last_at(&self, phase: Phase) -> Option<FailureKind> {
        if phase == self.phase {
            self.last
        } else {
            Some(FailureKind::Transient)
        }
    }

    /// Notices that the lease is over.
    pub(super) fn expire(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        if self.phase == Phase::Probing && now >= self.deadline {
            events.push(PendingEvent::LeaseExpired {
                generation: self.generation,
            });
            self.last = Some(FailureKind::Transient);
            let end = self.deadline;
            self.trip(rules, end, TransitionReason::LeaseExpired, events);
            // The same without a cooldown, when a probe is due: a frame that comes late must not take it for its lease's end.
            self.deadline = self.deadline.distinct_from(end);
        }
    }

    /// Opens the circuit; the cooldown counts from `at`.
    fn trip(
        &mut self,
        rules: &Rules,
        at: Timestamp,
        reason: TransitionReason,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.cooldown = self.next_cooldown(rules);
        self.deadline = at.saturating_add(self.cooldown).max(self.hint);
        self.hint = Timestamp::START;
        self.next = rules.grow(self.next);
        self.successes = 0;
        self.trips += 1;
        self.go(Phase::Open, reason, events);
    }

    /// The cooldown of the next opening. The same question has the same answer until the circuit trips.
    fn next_cooldown(&self, rules: &Rules) -> Duration {
        rules.lengthen(self.next, self.seed, self.trips)
    }

    /// Forgets the streak, the hints, the growth of the cooldown and the window.
    fn clear(&mut self, rules: &Rules) {
        self.deadline = Timestamp::NEVER;
        self.streak = 0;
        self.hint = Timestamp::START;
        self.cooldown = Duration::ZERO;
        self.next = rules.recovery_duration;
        self.successes = 0;
        if let Some(tally) = &mut self.tally {
            tally.clear();
        }
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

impl Rules {
    /// The cooldown after one of `cooldown`.
    fn grow(&self, cooldown: Duration) -> Duration {
        match self.backoff {
            // Never less than it was: `max` may be below it, and a float rounds.
            Some(Backoff { factor, max }) => times(cooldown, factor).min(max).max(cooldown),
            None => cooldown,
        }
    }

    /// `cooldown` and a part of it that depends on the seed and on how often the circuit has tripped.
    fn lengthen(&self, cooldown: Duration, seed: u64, trips: u64) -> Duration {
        if self.jitter == 0.0 {
            return cooldown;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        hasher.write_u64(trips);
        // The upper 53 bits, which an f64 holds exactly, as a number from 0 to 1.
        #[allow(clippy::cast_precision_loss)]
        let part = (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64;
        cooldown.saturating_add(times(cooldown, self.jitter * part))
    }
}

/// `factor` times `duration`, in nanoseconds, saturating.
fn times(duration: Duration, factor: f64) -> Duration {
    // Casts of floats to integers saturate. A factor is finite and not negative: the setters see to it.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    Duration::from_nanos((nanos(duration) as f64 * factor).round() as u64)
}

impl Machine for Circuit {
    type Rules = Rules;
    type Pending = PendingEvent;

    fn packed(&self) -> PackedState {
        // A hint that was heard, or a window, has to see every result.
        let plain =
            self.phase == Phase::Closed && self.hint == Timestamp::START && self.tally.is_none();
        PackedState::new(self.generation, self.phase as u8)
            .with_last(self.last)
            .with_streak(self.streak)
            .lock_free(plain)
            .timed(self.timed)
    }

    fn deadline(&self) -> Timestamp {
        self.deadline
    }

    fn take_over(&mut self, packed: PackedState, deadline: Timestamp) {
        self.streak = packed.streak_or(self.streak);
        self.last = packed.last();
        if self.phase == Phase::Probing {
            self.deadline = deadline;
        }
    }

    fn retention(&self, rules: &Rules, now: Timestamp) -> Retention {
        match self.at(rules, now) {
            (Phase::Closed, _) if self.streak == 0 && !self.tally_has_failures(now) => {
                Retention::Clean
            }
            (Phase::Closed | Phase::Vacant, _) => Retention::Unclean,
            (Phase::Open, deadline) if now >= deadline => Retention::Unclean,
            (Phase::Open | Phase::Probing | Phase::Forced, _) => Retention::Live,
        }
    }

    fn live_until(&self, rules: &Rules, now: Timestamp) -> Timestamp {
        // A lease that is over was followed by a cooldown, noticed or not.
        self.at(rules, now).1
    }

    fn event<'a>(pending: PendingEvent, name: Option<&'a str>, rules: &Rules) -> Event<'a> {
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
                lease: rules.probe_timeout,
            },
            PendingEvent::LeaseExpired { generation } => Event::LeaseExpired { name, generation },
        }
    }
}

impl Circuit {
    fn tally_has_failures(&self, now: Timestamp) -> bool {
        self.tally
            .as_ref()
            .is_some_and(|tally| tally.totals(now).1 > 0)
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
