//! The chain: a pure state machine over a primary and its backups.
//!
//! The tables are in the order of the functions below. An entry is *live* unless it is disabled by
//! hand, or its budget is spent.
//!
//! # A turn begins
//!
//! `begin` is the gate, and `would_serve` the oracle. Both ask `answer`.
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | any | a turn, a backup was readied | that backup serves, even if another would be chosen now |
//! | any | a turn, nothing was readied | an entry serves, or the turn is refused (`NotReady`); it takes no probe |
//! | Fallback | before a turn, `elapsed ≥ recovery_timeout` | → Recovering, success count 0 |
//! | Primary | a turn | the primary serves |
//! | Recovering | a turn, slot free | it is the probe, its lease starts |
//! | Fallback | a turn | the first live entry serves |
//! | Recovering | a turn, slot taken | the first live entry serves |
//! | Fallback | a turn, no entry is live | refused (`FallbackExhausted`), with the time until the primary is probed |
//! | Recovering | a turn, slot taken, no entry is live | refused (`ProbeInFlight`), with the rest of the lease |
//! | Fallback, Recovering | the same two, without a chain or with `LastResort` | the primary serves *aside* |
//!
//! # A turn ends
//!
//! `record` takes the verdict.
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | any | a turn that the primary served aside | its result says nothing |
//! | Primary | success | `consecutive_failures` = 0 |
//! | Primary | failure | + 1; at `trip_threshold` → Fallback: activated for good, the cooldown starts, all counts are zeroed. A fatal failure trips at once |
//! | Primary | neutral | changes nothing |
//! | Recovering | the probe succeeds, lease live | + 1; at `recovery_successes_needed` → Primary: everything is zeroed, every entry's strikes are cleared |
//! | Recovering | the probe is rate limited, or fatal | → Fallback, the cooldown counts from now |
//! | Recovering | the probe fails transiently | success count 0, the slot is free; the `probation_limit`-th in a row → Fallback |
//! | Recovering | the probe is neutral | the slot is free |
//! | Fallback | stale failure of the primary | the cooldown restarts from now |
//! | any | any other result of the primary | stale: changes nothing |
//! | any | a backup fails | its strikes + 1, unless the chain was cleared since the turn was admitted; a fatal failure spends the budget |
//! | any | a backup succeeds | changes nothing; with `strikes_reset_on_success` its strikes are 0, unless the budget is spent |
//!
//! # Time passes
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | Recovering | the probe shows a sign of life, lease live | `renewed`: the lease starts anew |
//! | Recovering | lease over | `expire`: as a transient failure at the lease's end, however late it is noticed |
//! | any | a spent entry's time on the `bench` is over | `restore`: it has a fresh budget |
//!
//! # By hand
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | any | an entry is disabled, or enabled | it serves no turn, or may serve again; its strikes stay |
//! | any | reset | as new, in a new generation; what is disabled stays so |
//!
//! # Generations and epochs
//!
//! Every transition begins a new generation, and so does a lease that ends. In a generation that
//! is Recovering, the probe is the only turn of the primary whose result may count. So a result
//! of the primary is judged by its generation alone. A result of an entry is judged by the
//! *epoch*. A new epoch begins when the chain is cleared.

mod entry;
mod event;
mod rules;
mod ticket;

use self::entry::Entry;
use self::event::PendingEvent;
pub(super) use self::rules::Rules;
pub(super) use self::ticket::{Readied, Role, Server, Since, Ticket};
use super::Exhausted;
use crate::machinery::clock::Timestamp;
use crate::machinery::cooldown::{restarted, retry_deadline};
use crate::machinery::denied::Denied;
use crate::machinery::event_queue::EventQueue;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{
    Event, FailureKind, FallbackState, Outcome, Reason, Recorded, TransitionReason,
};

/// Where a chain is. The packed state carries it as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Phase {
    Primary,
    /// The deadline is when the primary may be probed.
    Fallback,
    /// Recovering, the slot taken. The deadline is the end of the lease.
    Probing,
    /// Recovering, the slot free.
    Vacant,
}

impl Phase {
    /// The bit of the packed phase that flips whenever an entry may have become live or failed. It
    /// makes waiters look again. It stays 0 while the primary serves, as nobody waits for an entry
    /// then.
    const ENTRIES: u8 = 0b100;

    pub(super) fn state(self) -> FallbackState {
        match self {
            Phase::Primary => FallbackState::Primary,
            Phase::Fallback => FallbackState::Fallback,
            Phase::Probing | Phase::Vacant => FallbackState::Recovering,
        }
    }
}

/// The state machine. See the module's tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Chain {
    generation: u32,
    phase: Phase,
    /// When the phase runs out; [`Timestamp::NEVER`] where it does not.
    deadline: Timestamp,
    /// Failures of the primary in a row.
    pub(super) streak: u32,
    last: Option<FailureKind>,
    /// The latest time that a `retry_after` of this streak asks to wait for; [`Timestamp::START`]
    /// if there was none.
    hint: Timestamp,
    /// Probes that succeeded in a row.
    pub(super) successes: u32,
    /// Probes that failed transiently in a row.
    pub(super) failures: u32,
    pub(super) trips: u64,
    /// Counts how often the chain was cleared.
    epoch: u32,
    /// Flips whenever an entry may have become live or failed.
    entries_flip: bool,
    /// Whether a success must not pass on the packed state alone: a verdict may depend on the
    /// clock, or somebody observes.
    timed: bool,
    pub(super) entries: Vec<Entry>,
}

impl Chain {
    pub(super) fn new(rules: &Rules) -> Self {
        Self {
            generation: 0,
            phase: Phase::Primary,
            deadline: Timestamp::NEVER,
            streak: 0,
            last: None,
            hint: Timestamp::START,
            successes: 0,
            failures: 0,
            trips: 0,
            epoch: 0,
            entries_flip: false,
            timed: rules.on_cancel.is_timed() || rules.observed,
            entries: vec![Entry::default(); rules.entries.len()],
        }
    }

    // ===== a turn begins =====

    /// The gate: begins a turn, and says who serves it, or why nobody does.
    pub(super) fn begin(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        readied: Readied,
        events: &mut EventQueue<PendingEvent>,
    ) -> Result<Ticket, Denied> {
        self.expire(rules, now, events);
        if self.restore(rules, now, events) {
            self.entries_flip = !self.entries_flip;
        }
        let server = match (readied, self.answer(rules, self.phase, self.deadline, now)) {
            (Readied::Entry(entry), _) => Server::Entry(entry),
            (_, Err(denied)) => return Err(denied),
            (Readied::Nothing, Ok(Server::Primary(_))) => return Err(Denied::NOT_READY),
            (_, Ok(server)) => server,
        };
        if self.phase == Phase::Fallback && now >= self.deadline {
            self.deadline = Timestamp::NEVER;
            let reason = TransitionReason::CooldownOver;
            self.transition(rules, Phase::Vacant, reason, now, events);
        }
        if server == Server::Primary(Role::Probe) {
            self.phase = Phase::Probing;
            self.deadline = now.saturating_add(rules.probe_timeout);
            events.push(PendingEvent::ProbeStarted {
                generation: self.generation,
            });
        }
        Ok(self.ticket(server))
    }

    /// The oracle: who would serve the next turn. It changes nothing.
    pub(super) fn would_serve(&self, rules: &Rules, now: Timestamp) -> Result<Server, Denied> {
        let (phase, deadline) = self.phase_at(rules, now);
        self.answer(rules, phase, deadline, now)
    }

    /// The answer of the oracle and of the gate, from the packed state alone. `None` if the
    /// machine must be asked.
    pub(super) fn begin_lock_free(packed: PackedState) -> Option<Ticket> {
        let primary = !packed.is_busy() && packed.phase() == Phase::Primary as u8;
        primary.then(|| Ticket::ordinary(packed))
    }

    /// Chooses the server of a turn in `phase`, for a caller whose primary is ready.
    fn answer(
        &self,
        rules: &Rules,
        phase: Phase,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Result<Server, Denied> {
        let reason = match phase {
            Phase::Primary => return Ok(Server::Primary(Role::Ordinary)),
            Phase::Vacant => return Ok(Server::Primary(Role::Probe)),
            Phase::Fallback if now >= deadline => return Ok(Server::Primary(Role::Probe)),
            Phase::Fallback => Reason::FallbackExhausted,
            Phase::Probing => Reason::ProbeInFlight,
        };
        if let Some(entry) = self.live_from(rules, now, 0) {
            return Ok(Server::Entry(entry));
        }
        if self.entries.is_empty() || rules.when_exhausted == Exhausted::LastResort {
            return Ok(Server::Primary(Role::Uncounted));
        }
        Err(Denied {
            reason,
            wait: deadline.remaining(now),
            last: self.last_at(now),
        })
    }

    /// The first live entry from index `from` on.
    pub(super) fn live_from(&self, rules: &Rules, now: Timestamp, from: usize) -> Option<usize> {
        let entries = self.entries.iter().enumerate().skip(from);
        entries
            .filter(|(_, entry)| entry.is_live(rules, now))
            .map(|(index, _)| index)
            .next()
    }

    /// Goes on within a turn: a ticket for the next live entry after `failed`, the server whose
    /// attempt failed.
    pub(super) fn go_on(&self, rules: &Rules, now: Timestamp, failed: Server) -> Option<Ticket> {
        let from = match failed {
            Server::Primary(_) => 0,
            Server::Entry(entry) => entry + 1,
        };
        let entry = self.live_from(rules, now, from)?;
        Some(self.ticket(Server::Entry(entry)))
    }

    fn ticket(&self, server: Server) -> Ticket {
        Ticket {
            since: Since::new(self.generation, self.epoch),
            server,
        }
    }

    // ===== a turn ends =====

    /// Takes the verdict of a turn.
    pub(super) fn record(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        ticket: Ticket,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) -> Recorded {
        self.expire(rules, now, events);
        let restored = self.restore(rules, now, events);
        let mut spent = false;
        let recorded = match ticket.server {
            Server::Primary(Role::Uncounted) => Recorded::Applied,
            Server::Primary(_) if ticket.since.generation() == self.generation => {
                match self.phase {
                    Phase::Primary => self.record_ordinary(rules, now, outcome, events),
                    // The only turn that counts in this generation is the probe's.
                    _ => self.record_probe(rules, now, outcome, events),
                }
                Recorded::Applied
            }
            Server::Primary(_) => {
                if let (Phase::Fallback, Outcome::Failure(failure)) = (self.phase, outcome) {
                    self.last = Some(failure.kind());
                    let (cooldown, cap) = (rules.recovery_timeout, rules.retry_after_cap);
                    self.deadline = restarted(failure, self.deadline, now, cooldown, cap);
                }
                Recorded::Stale
            }
            Server::Entry(index) if ticket.since.epoch() == self.epoch => {
                if let Outcome::Failure(failure) = outcome {
                    self.last = Some(failure.kind());
                }
                spent = self.entries[index].record(index, rules, now, outcome, events);
                Recorded::Applied
            }
            Server::Entry(_) => Recorded::Stale,
        };
        if restored || spent {
            self.entries_flip = !self.entries_flip;
        }
        recorded
    }

    /// Takes the verdict of a turn in state Primary.
    fn record_ordinary(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) {
        match outcome {
            Outcome::Success => {
                self.streak = 0;
                self.hint = Timestamp::START;
            }
            Outcome::Failure(failure) => {
                self.streak = self.streak.saturating_add(1);
                self.last = Some(failure.kind());
                self.hint = self
                    .hint
                    .max(retry_deadline(failure, now, rules.retry_after_cap));
                if failure.kind() == FailureKind::Fatal {
                    self.trip(rules, now, TransitionReason::FatalFailure, now, events);
                } else if self.streak >= rules.trip_threshold {
                    self.trip(rules, now, TransitionReason::FailureThreshold, now, events);
                }
            }
            Outcome::Neutral => {}
        }
    }

    /// Takes the verdict of the probe.
    fn record_probe(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) {
        match outcome {
            Outcome::Success => {
                self.successes += 1;
                self.failures = 0;
                self.hint = Timestamp::START;
                self.vacate();
                if self.successes >= rules.recovery_successes_needed {
                    self.clear();
                    let reason = TransitionReason::ProbeSucceeded;
                    self.transition(rules, Phase::Primary, reason, now, events);
                }
            }
            Outcome::Failure(failure) => {
                self.last = Some(failure.kind());
                self.hint = self
                    .hint
                    .max(retry_deadline(failure, now, rules.retry_after_cap));
                let reason = TransitionReason::ProbeFailed;
                if failure.kind() == FailureKind::Transient {
                    self.fail_transiently(rules, now, reason, now, events);
                } else {
                    self.trip(rules, now, reason, now, events);
                }
            }
            Outcome::Neutral => self.vacate(),
        }
    }

    /// The packed state after a verdict that changes only the streak and the last failure. `None`
    /// if the machine must be asked.
    pub(super) fn record_lock_free(
        packed: PackedState,
        ticket: Ticket,
        outcome: Outcome,
        rules: &Rules,
    ) -> Option<PackedState> {
        if ticket.server != Server::Primary(Role::Ordinary)
            || !packed.is_lock_free_in(ticket.since.generation())
        {
            return None;
        }
        match outcome {
            Outcome::Failure(failure) if !failure.is_plain() => None,
            _ => packed.counting(outcome, rules.trip_threshold),
        }
    }

    // ===== time passes =====

    /// When the lease ends of a probe that shows a sign of life at `now`. `None` if `ticket` is
    /// not that of the probe in flight, or if its lease is over.
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    pub(super) fn renewed(
        packed: PackedState,
        deadline: Timestamp,
        ticket: Ticket,
        rules: &Rules,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let in_flight = ticket.server == Server::Primary(Role::Probe)
            && packed.phase() & !Phase::ENTRIES == Phase::Probing as u8
            && packed.generation() == ticket.since.generation();
        (in_flight && now < deadline).then(|| now.saturating_add(rules.probe_timeout))
    }

    /// Notices that the lease is over.
    fn expire(&mut self, rules: &Rules, now: Timestamp, events: &mut EventQueue<PendingEvent>) {
        if self.has_expired(now) {
            events.push(PendingEvent::LeaseExpired {
                generation: self.generation,
            });
            self.last = Some(FailureKind::Transient);
            // The late result of this probe is stale.
            self.generation = self.generation.wrapping_add(1);
            let (end, reason) = (self.deadline, TransitionReason::LeaseExpired);
            self.fail_transiently(rules, end, reason, now, events);
            // Without a cooldown the new deadline is the end of the lease, and a probe is due. A
            // late frame must not take this deadline for the deadline of its lease.
            self.deadline = self.deadline.distinct_from(end);
        }
    }

    /// The phase and its deadline as they are at `now`, as if `expire` had been called.
    pub(super) fn phase_at(&self, rules: &Rules, now: Timestamp) -> (Phase, Timestamp) {
        if !self.has_expired(now) {
            (self.phase, self.deadline)
        } else if rules.ends_probation(self.failures.saturating_add(1)) {
            let deadline = self
                .deadline
                .saturating_add(rules.recovery_timeout)
                .max(self.hint);
            (Phase::Fallback, deadline)
        } else {
            (Phase::Vacant, Timestamp::NEVER)
        }
    }

    /// The kind of the last failure at `now`. A lease that is over counts as a transient failure.
    pub(super) fn last_at(&self, now: Timestamp) -> Option<FailureKind> {
        if self.has_expired(now) {
            Some(FailureKind::Transient)
        } else {
            self.last
        }
    }

    /// Whether the lease is over, and `expire` has not noticed it yet.
    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        self.phase == Phase::Probing && now >= self.deadline
    }

    /// Notices which entries are back from the bench. Returns whether any is.
    fn restore(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) -> bool {
        let mut restored = false;
        for (index, entry) in self.entries.iter_mut().enumerate() {
            restored |= entry.restore(index, rules, now, events);
        }
        restored
    }

    // ===== by hand =====

    /// Takes the entry of this index out of the chain, or puts it back.
    pub(super) fn set_disabled(
        &mut self,
        index: usize,
        disabled: bool,
        events: &mut EventQueue<PendingEvent>,
    ) {
        if self.entries[index].set_disabled(index, disabled, events) {
            self.entries_flip = !self.entries_flip;
        }
    }

    /// Begins a new life.
    pub(super) fn reset(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.clear();
        self.last = None;
        self.trips = 0;
        self.transition(rules, Phase::Primary, TransitionReason::Reset, now, events);
    }

    /// Whether it has ever tripped since it was made or reset.
    pub(super) fn is_activated(&self) -> bool {
        self.trips > 0
    }

    // ===== transitions =====

    /// Counts a probe that failed transiently at `at`.
    fn fail_transiently(
        &mut self,
        rules: &Rules,
        at: Timestamp,
        reason: TransitionReason,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.successes = 0;
        self.failures = self.failures.saturating_add(1);
        if rules.ends_probation(self.failures) {
            self.trip(rules, at, reason, now, events);
        } else {
            self.vacate();
        }
    }

    /// Frees the probe's slot.
    fn vacate(&mut self) {
        self.phase = Phase::Vacant;
        self.deadline = Timestamp::NEVER;
    }

    /// Goes to Fallback. The cooldown counts from `at`.
    fn trip(
        &mut self,
        rules: &Rules,
        at: Timestamp,
        reason: TransitionReason,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.deadline = at.saturating_add(rules.recovery_timeout).max(self.hint);
        self.hint = Timestamp::START;
        self.streak = 0;
        self.successes = 0;
        self.failures = 0;
        self.trips += 1;
        self.transition(rules, Phase::Fallback, reason, now, events);
    }

    /// Forgets the counts, the hint and every entry's strikes, and begins a new epoch.
    fn clear(&mut self) {
        self.deadline = Timestamp::NEVER;
        self.streak = 0;
        self.hint = Timestamp::START;
        self.successes = 0;
        self.failures = 0;
        self.epoch = self.epoch.wrapping_add(1);
        for entry in &mut self.entries {
            entry.clear();
        }
    }

    /// Goes to `to`, and begins a new generation.
    fn transition(
        &mut self,
        rules: &Rules,
        to: Phase,
        reason: TransitionReason,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        let from = self.phase.state();
        self.phase = to;
        self.generation = self.generation.wrapping_add(1);
        let first = (to == Phase::Fallback)
            .then(|| self.live_from(rules, now, 0))
            .flatten();
        events.push(PendingEvent::Transition {
            from,
            to: to.state(),
            reason,
            generation: self.generation,
            first,
        });
    }
}

impl Machine for Chain {
    type Rules = Rules;
    type Pending = PendingEvent;

    fn packed(&self) -> PackedState {
        // While there is a hint, the machine must see every result.
        let lock_free = self.phase == Phase::Primary && self.hint == Timestamp::START;
        let entries = if self.entries_flip && self.phase != Phase::Primary {
            Phase::ENTRIES
        } else {
            0
        };
        PackedState::new(self.generation, self.phase as u8 | entries)
            .with_last(self.last)
            .with_streak(self.streak)
            .lock_free(lock_free)
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

    /// A chain lives in its layer, and in no store.
    fn retention(&self, _: &Rules, _: Timestamp) -> Retention {
        Retention::Live
    }

    fn event<'a>(pending: PendingEvent, name: Option<&'a str>, rules: &'a Rules) -> Event<'a> {
        pending.named(name, rules)
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
