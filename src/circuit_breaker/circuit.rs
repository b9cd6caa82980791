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

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::time::Duration;

use super::WhenOpen;
use super::window::{Tally, Window};
use crate::clock::{Moment, nanos};
use crate::event::{Event, State, TransitionReason};
use crate::machine::{Machine, Notes, Rest, Word};
use crate::outcome::{Cancelled, Failure, FailureKind, Outcome, Recorded};
use crate::refusal::{Denied, Reason};

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
    fn rate_is_reached(&self, tally: Option<&Tally>, now: Moment) -> bool {
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
    fn of(word: Word) -> Self {
        match word.phase() {
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
    pub(super) fn ordinary(word: Word) -> Self {
        Self {
            generation: word.generation(),
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
    /// The deadline of the phase; [`Moment::NEVER`] where it has none.
    until: Moment,
    streak: u32,
    last: Option<FailureKind>,
    /// Until when a failure of this streak asked to be left alone; [`Moment::START`] if none did.
    hint: Moment,
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
            until: Moment::NEVER,
            streak: 0,
            last: None,
            hint: Moment::START,
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
        now: Moment,
        notes: &mut Notes<Note>,
    ) -> Result<Ticket, Denied> {
        self.expire(rules, now, notes);
        match Self::answer(self.phase, self.until, self.last, now) {
            Err(denied) => Err(denied),
            Ok(Role::Ordinary) => Ok(self.ticket(Role::Ordinary)),
            Ok(Role::Probe) => {
                if self.phase == Phase::Open {
                    self.go(Phase::Probing, TransitionReason::CooldownOver, notes);
                }
                self.phase = Phase::Probing;
                self.until = now.after(rules.probe_timeout);
                notes.push(Note::ProbeStarted {
                    generation: self.generation,
                });
                Ok(self.ticket(Role::Probe))
            }
        }
    }

    /// The oracle: what the gate would answer, with nothing changed.
    pub(super) fn would_allow(&self, rules: &Rules, now: Moment) -> Result<(), Denied> {
        let (phase, until) = self.at(rules, now);
        Self::answer(phase, until, self.last_at(phase), now).map(|_| ())
    }

    /// The oracle again, for callers without the lock, from the word and its moment alone. `None` if the machine must be asked.
    pub(super) fn glance(
        word: Word,
        until: impl FnOnce() -> Option<Moment>,
        now: impl FnOnce() -> Moment,
    ) -> Option<Result<Ticket, Denied>> {
        if word.is_busy() {
            return None;
        }
        let phase = Phase::of(word);
        let role = match phase {
            Phase::Closed => Role::Ordinary,
            Phase::Vacant => return None,
            Phase::Open | Phase::Probing | Phase::Forced => {
                match Self::answer(phase, until()?, word.last(), now()) {
                    Err(denied) if denied.wait != Some(Duration::ZERO) => return Some(Err(denied)),
                    // Due, or the lease is over: the machine has to move.
                    _ => return None,
                }
            }
        };
        let generation = word.generation();
        Some(Ok(Ticket { generation, role }))
    }

    /// Whether `word` is open, so that its moment is when a probe may go. A busy word says no.
    #[inline]
    pub(super) fn is_open(word: Word) -> bool {
        word.phase() & Phase::Open as u8 != 0
    }

    fn answer(
        phase: Phase,
        until: Moment,
        last: Option<FailureKind>,
        now: Moment,
    ) -> Result<Role, Denied> {
        let reason = match phase {
            Phase::Closed => return Ok(Role::Ordinary),
            Phase::Vacant => return Ok(Role::Probe),
            Phase::Open if now >= until => return Ok(Role::Probe),
            Phase::Open => Reason::CircuitOpen,
            Phase::Probing => Reason::ProbeInFlight,
            Phase::Forced => Reason::ForcedOpen,
        };
        let wait = until.left(now);
        Err(Denied { reason, wait, last })
    }

    fn ticket(&self, role: Role) -> Ticket {
        let generation = self.generation;
        Ticket { generation, role }
    }

    // ===== verdicts =====

    /// What a verdict changes if that is the streak and the last failure alone; `None` if the machine must be asked.
    #[inline]
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
            Outcome::Failure(failure) if !failure.is_plain() => None,
            _ => word.counting(outcome, rules.failure_threshold),
        }
    }

    /// When the lease ends of a probe that shows a sign of life now; `None` if `ticket` is not that of the probe that is out, or its lease is
    /// over.
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    pub(super) fn renewed(
        word: Word,
        until: Moment,
        ticket: Ticket,
        rules: &Rules,
        now: Moment,
    ) -> Option<Moment> {
        let out = Phase::of(word) == Phase::Probing && word.generation() == ticket.generation;
        (out && now < until).then(|| now.after(rules.probe_timeout))
    }

    /// Takes a verdict, already judged by the rules.
    pub(super) fn record(
        &mut self,
        rules: &Rules,
        now: Moment,
        ticket: Ticket,
        outcome: Outcome,
        notes: &mut Notes<Note>,
    ) -> Recorded {
        self.expire(rules, now, notes);
        if ticket.generation == self.generation {
            match self.phase {
                Phase::Closed => self.record_ordinary(rules, now, outcome, notes),
                // The only call in flight in this generation is the probe.
                _ => self.record_probe(rules, now, outcome, notes),
            }
            return Recorded::Applied;
        }
        if let (Phase::Open, Outcome::Failure(failure)) = (self.phase, outcome) {
            self.last = Some(failure.kind());
            self.until = failure.restarts(self.until, now, self.cooldown, rules.retry_after_cap);
        }
        Recorded::Stale
    }

    fn record_ordinary(
        &mut self,
        rules: &Rules,
        now: Moment,
        outcome: Outcome,
        notes: &mut Notes<Note>,
    ) {
        let failure = match outcome {
            Outcome::Neutral => return,
            Outcome::Success => {
                self.streak = 0;
                self.hint = Moment::START;
                None
            }
            Outcome::Failure(failure) => {
                self.streak = self.streak.saturating_add(1);
                self.last = Some(failure.kind());
                self.hint = self
                    .hint
                    .max(failure.asked_until(now, rules.retry_after_cap));
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
        self.trip(rules, now, reason, notes);
    }

    fn record_probe(
        &mut self,
        rules: &Rules,
        now: Moment,
        outcome: Outcome,
        notes: &mut Notes<Note>,
    ) {
        match outcome {
            Outcome::Neutral => self.vacate(),
            Outcome::Success => {
                self.successes += 1;
                if self.successes < rules.success_threshold {
                    self.vacate();
                } else {
                    self.clear(rules);
                    self.go(Phase::Closed, TransitionReason::ProbeSucceeded, notes);
                }
            }
            Outcome::Failure(failure) => {
                self.last = Some(failure.kind());
                self.hint = failure.asked_until(now, rules.retry_after_cap);
                self.trip(rules, now, TransitionReason::ProbeFailed, notes);
            }
        }
    }

    fn vacate(&mut self) {
        self.phase = Phase::Vacant;
        self.until = Moment::NEVER;
    }

    // ===== by hand =====

    pub(super) fn force_open(&mut self, rules: &Rules, now: Moment, notes: &mut Notes<Note>) {
        self.expire(rules, now, notes);
        if self.phase != Phase::Forced {
            self.until = Moment::NEVER;
            self.trips += u64::from(self.phase.state() != State::Open);
            self.go(Phase::Forced, TransitionReason::ForcedOpen, notes);
        }
    }

    pub(super) fn reset(&mut self, rules: &Rules, now: Moment, notes: &mut Notes<Note>) {
        self.expire(rules, now, notes);
        self.clear(rules);
        self.last = None;
        self.trips = 0;
        self.go(Phase::Closed, TransitionReason::Reset, notes);
    }

    pub(super) fn snapshot(
        &self,
        word: Word,
        rules: &Rules,
        now: Moment,
    ) -> CircuitBreakerSnapshot {
        let (phase, until) = self.at(rules, now);
        CircuitBreakerSnapshot {
            state: phase.state(),
            due: phase == Phase::Open && now >= until,
            forced: phase == Phase::Forced,
            streak: word.streak_or(self.streak),
            time_left: until.left(now),
            trips: self.trips + u64::from(phase != self.phase),
            last_failure: if phase == self.phase {
                word.last()
            } else {
                self.last_at(phase)
            },
        }
    }

    // ===== how it moves =====

    /// The phase and its deadline as they are at `now`, a lease that is over taken into account.
    fn at(&self, rules: &Rules, now: Moment) -> (Phase, Moment) {
        if self.phase == Phase::Probing && now >= self.until {
            return (Phase::Open, self.until.after(self.next_cooldown(rules)));
        }
        (self.phase, self.until)
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
    pub(super) fn expire(&mut self, rules: &Rules, now: Moment, notes: &mut Notes<Note>) {
        if self.phase == Phase::Probing && now >= self.until {
            notes.push(Note::LeaseExpired {
                generation: self.generation,
            });
            self.last = Some(FailureKind::Transient);
            let end = self.until;
            self.trip(rules, end, TransitionReason::LeaseExpired, notes);
            // The same without a cooldown, when a probe is due: a frame that comes late must not take it for its lease's end.
            self.until = self.until.unlike(end);
        }
    }

    /// Opens the circuit; the cooldown counts from `at`.
    fn trip(
        &mut self,
        rules: &Rules,
        at: Moment,
        reason: TransitionReason,
        notes: &mut Notes<Note>,
    ) {
        self.cooldown = self.next_cooldown(rules);
        self.until = at.after(self.cooldown).max(self.hint);
        self.hint = Moment::START;
        self.next = rules.grow(self.next);
        self.successes = 0;
        self.trips += 1;
        self.go(Phase::Open, reason, notes);
    }

    /// The cooldown of the next opening. The same question has the same answer until the circuit trips.
    fn next_cooldown(&self, rules: &Rules) -> Duration {
        rules.lengthen(self.next, self.seed, self.trips)
    }

    /// Forgets the streak, the hints, the growth of the cooldown and the window.
    fn clear(&mut self, rules: &Rules) {
        self.until = Moment::NEVER;
        self.streak = 0;
        self.hint = Moment::START;
        self.cooldown = Duration::ZERO;
        self.next = rules.recovery_duration;
        self.successes = 0;
        if let Some(tally) = &mut self.tally {
            tally.clear();
        }
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
    type Note = Note;

    fn word(&self) -> Word {
        // A hint that was heard, or a window, has to see every result.
        let plain =
            self.phase == Phase::Closed && self.hint == Moment::START && self.tally.is_none();
        Word::new(self.generation, self.phase as u8)
            .with_last(self.last)
            .with_streak(self.streak)
            .plain(plain)
            .timed(self.timed)
    }

    fn until(&self) -> Moment {
        self.until
    }

    fn adopt(&mut self, word: Word, until: Moment) {
        self.streak = word.streak_or(self.streak);
        self.last = word.last();
        if self.phase == Phase::Probing {
            self.until = until;
        }
    }

    fn rest(&self, rules: &Rules, now: Moment) -> Rest {
        match self.at(rules, now) {
            (Phase::Closed, _) if self.streak == 0 && !self.tally_has_failures(now) => Rest::Clean,
            (Phase::Closed | Phase::Vacant, _) => Rest::Unclean,
            (Phase::Open, until) if now >= until => Rest::Unclean,
            (Phase::Open | Phase::Probing | Phase::Forced, _) => Rest::Live,
        }
    }

    fn live_until(&self, rules: &Rules, now: Moment) -> Moment {
        // A lease that is over was followed by a cooldown, noticed or not.
        self.at(rules, now).1
    }

    fn event<'a>(note: Note, name: Option<&'a str>, rules: &Rules) -> Event<'a> {
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
                lease: rules.probe_timeout,
            },
            Note::LeaseExpired { generation } => Event::LeaseExpired { name, generation },
        }
    }
}

impl Circuit {
    fn tally_has_failures(&self, now: Moment) -> bool {
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
