//! The chain: a pure state machine over a primary and its backups.
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | Primary | success | `consecutive_failures` = 0 |
//! | Primary | failure | + 1; at `trip_threshold` → Fallback: activated for good, the cooldown starts, both counters zeroed. A fatal one trips at once |
//! | Fallback | before a turn, `elapsed ≥ recovery_timeout` | → Recovering, success count 0 |
//! | Fallback | a turn | the first entry that is not failed |
//! | Fallback | a turn, no entry is live | refused (`FallbackExhausted`), with the time until the primary is probed. Without a chain the primary serves, and its result says nothing |
//! | Fallback | a backup fails | that entry's strikes + 1, a fatal one spends its budget; a success changes nothing |
//! | Fallback | stale failure of the primary | the cooldown restarts from now |
//! | Recovering | a turn, slot free | it is the probe, its lease starts |
//! | Recovering | a turn, slot taken | the first entry that is not failed |
//! | Recovering | a turn, slot taken, no entry is live | refused (`ProbeInFlight`), with the rest of the lease. Without a chain the primary serves, and its result says nothing |
//! | Recovering | the probe succeeds, lease live | + 1; at `recovery_successes_needed` → Primary: everything zeroed, every entry's strikes cleared |
//! | Recovering | the probe is rate limited, or fatal | → Fallback, the cooldown counts from now |
//! | Recovering | the probe fails transiently | success count 0, the slot is free; the `probation_limit`-th in a row → Fallback |
//! | Recovering | the probe shows a sign of life, lease live | the lease starts anew |
//! | Recovering | lease over | as a transient failure at the lease's end, however late it is noticed |
//! | Recovering | the probe is neutral | the slot is free |
//! | any | any other result of the primary | stale: changes nothing |
//! | any | a backup fails | its strike, unless the chain was cleared since it was admitted |
//! | any | a spent entry's time on the `bench` is over | it has a fresh budget |
//! | any | reset | as new, in a new generation; what is disabled stays so |
//!
//! Every transition begins a new generation, and so does a lease that ends. In one generation that is recovering, the only call whose
//! result may count is the probe, so a primary's result is judged by its generation alone. Entries are judged by the *epoch*, which begins
//! when the chain is cleared.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Exhausted;
use crate::machinery::clock::Timestamp;
use crate::machinery::cooldown::{restarted, retry_deadline};
use crate::machinery::denied::Denied;
use crate::machinery::event_queue::EventQueue;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::Reason;
use crate::vocabulary::{Cancelled, FailureKind, Outcome, Recorded};
use crate::vocabulary::{EntryChange, Event, FallbackState, TransitionReason};

/// How a chain decides, and the names of those in it.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(super) primary: Arc<str>,
    pub(super) entries: Vec<Arc<str>>,
    pub(super) trip_threshold: u32,
    pub(super) recovery_timeout: Duration,
    pub(super) recovery_successes_needed: u32,
    pub(super) max_fail_count: u32,
    pub(super) probe_timeout: Duration,
    pub(super) retry_after_cap: Duration,
    pub(super) probation_limit: Option<u32>,
    pub(super) bench: Option<Duration>,
    pub(super) strikes_reset_on_success: bool,
    pub(super) on_cancel: Cancelled,
    pub(super) when_exhausted: Exhausted,
    /// Somebody observes.
    pub(super) observed: bool,
}

impl Rules {
    pub(super) fn new(primary: Arc<str>) -> Self {
        Self {
            primary,
            entries: Vec::new(),
            trip_threshold: 3,
            recovery_timeout: Duration::from_secs(60),
            recovery_successes_needed: 2,
            max_fail_count: 2,
            probe_timeout: Duration::from_secs(120),
            retry_after_cap: Duration::from_secs(5 * 60),
            probation_limit: None,
            bench: None,
            strikes_reset_on_success: false,
            on_cancel: Cancelled::Ignore,
            when_exhausted: Exhausted::Refuse,
            observed: false,
        }
    }

    /// Whether so many transient failures of probes in a row are too many.
    fn is_hopeless(&self, failures: u32) -> bool {
        self.probation_limit.is_some_and(|limit| failures >= limit)
    }

    /// The name of who serves.
    #[inline]
    pub(super) fn name(&self, server: Server) -> &Arc<str> {
        match server {
            Server::Primary(_) => &self.primary,
            Server::Entry(entry) => &self.entries[entry],
        }
    }

    /// The entry called `name`.
    pub(super) fn entry(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| **entry == *name)
    }
}

/// Where a chain is. The word carries it as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Phase {
    Primary,
    /// `until` is when the primary may be probed.
    Fallback,
    /// Recovering, the slot taken; `until` is the lease's end.
    Probing,
    /// Recovering, the slot free.
    Vacant,
}

impl Phase {
    /// The bit of the word's phase that changes whenever an entry's liveness may have, so that those who wait for one look again. While the
    /// primary serves nobody does.
    const ENTRIES: u8 = 0b100;

    fn state(self) -> FallbackState {
        match self {
            Phase::Primary => FallbackState::Primary,
            Phase::Fallback => FallbackState::Fallback,
            Phase::Probing | Phase::Vacant => FallbackState::Recovering,
        }
    }
}

/// Who serves a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Server {
    Primary(Role),
    Entry(usize),
}

/// What a turn of the primary is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Ordinary,
    Probe,
    /// For want of anybody else. Its result says nothing.
    Aside,
}

/// Which services a caller has ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Readied {
    /// None: only an entry can serve, which is readied later.
    Nothing,
    /// The primary. An entry can serve too, which is readied later.
    Primary,
    /// This entry alone.
    Entry(usize),
}

/// What an admitted turn carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) since: Since,
    pub(super) server: Server,
}

/// The generation in which a turn was admitted, by which a primary's result is judged, and the epoch, by which an entry's is. In one number, which is stored at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Since(u64);

impl Since {
    pub(super) fn new(generation: u32, epoch: u32) -> Self {
        Self(u64::from(generation) | u64::from(epoch) << 32)
    }

    #[allow(clippy::cast_possible_truncation)] // The lower half is meant.
    #[inline]
    pub(super) fn generation(self) -> u32 {
        (self.0 & u64::from(u32::MAX)) as u32
    }

    pub(super) fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.generation(), self.epoch())
    }
}

impl Ticket {
    /// That of a turn which `word` sends to the primary with all others.
    #[inline]
    pub(super) fn ordinary(packed: PackedState) -> Self {
        Self {
            since: Since(u64::from(packed.generation())),
            server: Server::Primary(Role::Ordinary),
        }
    }
}

/// What the chain leaves for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingEvent {
    Transition {
        from: FallbackState,
        to: FallbackState,
        reason: TransitionReason,
        generation: u32,
        first: Option<usize>,
    },
    ProbeStarted {
        generation: u32,
    },
    LeaseExpired {
        generation: u32,
    },
    Entry {
        entry: usize,
        change: EntryChange,
        strikes: u32,
    },
}

/// A fallback as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackSnapshot {
    /// The state. A cooldown that is over still reads as [`FallbackState::Fallback`], until a turn moves it.
    pub state: FallbackState,
    /// The next turn is a probe: the cooldown is over, or the slot is free.
    pub due: bool,
    /// How many turns of the primary failed in a row.
    pub consecutive_failures: u32,
    /// How many probes succeeded in a row.
    pub probe_successes: u32,
    /// How many probes failed transiently in a row.
    pub probe_failures: u32,
    /// What is left of the cooldown: the time until the primary is probed. Zero when a probe is due; `None` if the primary serves, if a probe is in flight, and
    /// if it never ends.
    pub time_until_probe: Option<Duration>,
    /// What is left of the lease of the probe that is in flight; `None` if there is none, or it has no end.
    pub lease_left: Option<Duration>,
    /// How often it has gone to [`FallbackState::Fallback`] since it was made or reset.
    pub trips: u64,
    /// Whether it has ever tripped since it was made or reset.
    pub fallback_activated: bool,
    /// The kind of the last failure since it was made or reset, whoever served.
    pub last_failure: Option<FailureKind>,
    /// The entries of the chain, in its order.
    pub entries: Vec<EntrySnapshot>,
}

/// An entry of a fallback's chain as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntrySnapshot {
    /// Its name.
    pub name: Arc<str>,
    /// How many of its turns failed since the chain was cleared, or since it came back from the bench.
    pub strikes: u32,
    /// Somebody disabled it.
    pub disabled: bool,
    /// It serves no turn: it is disabled, or its budget is spent.
    pub failed: bool,
    /// What is left of its time on the bench; `None` if its budget is not spent, or stays so.
    pub bench_left: Option<Duration>,
}

/// A backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    strikes: u32,
    disabled: bool,
    /// When its budget was spent; of no meaning unless it is.
    spent: Timestamp,
}

impl Entry {
    fn is_spent(&self, rules: &Rules) -> bool {
        self.strikes >= rules.max_fail_count
    }

    /// When a spent entry comes back from the bench.
    fn back(&self, rules: &Rules) -> Timestamp {
        rules
            .bench
            .map_or(Timestamp::NEVER, |bench| self.spent.saturating_add(bench))
    }

    /// The strikes as they are at `now`, the end of its time on the bench taken into account.
    fn strikes_at(&self, rules: &Rules, now: Timestamp) -> u32 {
        if self.is_spent(rules) && now >= self.back(rules) {
            0
        } else {
            self.strikes
        }
    }

    fn is_live(&self, rules: &Rules, now: Timestamp) -> bool {
        !self.disabled && self.strikes_at(rules, now) < rules.max_fail_count
    }
}

/// The state machine. See the module's table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Chain {
    generation: u32,
    phase: Phase,
    /// The deadline of the phase; [`Timestamp::NEVER`] where it has none.
    deadline: Timestamp,
    /// Failures of the primary in a row.
    streak: u32,
    last: Option<FailureKind>,
    /// Until when a failure of this streak asked to be left alone; [`Timestamp::START`] if none did.
    hint: Timestamp,
    /// Probes that succeeded, one after the other.
    successes: u32,
    /// Probes that failed transiently, one after the other.
    failures: u32,
    trips: u64,
    /// Begins anew when the chain is cleared.
    epoch: u32,
    /// Changes whenever an entry's liveness may have.
    turned: bool,
    /// No turn may pass with a look at the word: a verdict may depend on the clock, or somebody observes.
    watched: bool,
    entries: Vec<Entry>,
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
            turned: false,
            watched: rules.on_cancel.is_timed() || rules.observed,
            entries: vec![Entry::default(); rules.entries.len()],
        }
    }

    // ===== the gate and the oracle =====

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
            self.turned = !self.turned;
        }
        let server = match (readied, self.answer(rules, self.phase, self.deadline, now)) {
            // A backup that was readied serves, whoever it would be by now.
            (Readied::Entry(entry), _) => Server::Entry(entry),
            (_, Err(denied)) => return Err(denied),
            (Readied::Nothing, Ok(Server::Primary(_))) => return Err(Denied::NOT_READY),
            (_, Ok(server)) => server,
        };
        if self.phase == Phase::Fallback && now >= self.deadline {
            self.deadline = Timestamp::NEVER;
            let reason = TransitionReason::CooldownOver;
            self.go(rules, Phase::Vacant, reason, now, events);
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

    /// The oracle: who would serve the next turn, with nothing changed.
    pub(super) fn would_serve(&self, rules: &Rules, now: Timestamp) -> Result<Server, Denied> {
        let (phase, deadline) = self.at(rules, now);
        self.answer(rules, phase, deadline, now)
    }

    /// The oracle and the gate for callers without the lock, from the word alone. `None` if the machine must be asked.
    pub(super) fn begin_lock_free(packed: PackedState) -> Option<Ticket> {
        let primary = !packed.is_busy() && packed.phase() == Phase::Primary as u8;
        primary.then(|| Ticket::ordinary(packed))
    }

    /// The first live entry from `from` on.
    pub(super) fn live_from(&self, rules: &Rules, now: Timestamp, from: usize) -> Option<usize> {
        let entries = self.entries.iter().enumerate().skip(from);
        entries
            .filter(|(_, entry)| entry.is_live(rules, now))
            .map(|(index, _)| index)
            .next()
    }

    /// Goes on within a turn: to the next live entry after the server that failed.
    pub(super) fn go_on(&self, rules: &Rules, now: Timestamp, failed: Server) -> Option<Ticket> {
        let from = match failed {
            Server::Primary(_) => 0,
            Server::Entry(entry) => entry + 1,
        };
        let entry = self.live_from(rules, now, from)?;
        Some(self.ticket(Server::Entry(entry)))
    }

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
            return Ok(Server::Primary(Role::Aside));
        }
        Err(Denied {
            reason,
            wait: deadline.remaining(now),
            last: self.last_at(now),
        })
    }

    fn ticket(&self, server: Server) -> Ticket {
        Ticket {
            since: Since::new(self.generation, self.epoch),
            server,
        }
    }

    // ===== verdicts =====

    /// What a verdict changes if that is the streak and the last failure alone; `None` if the machine must be asked.
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
        let out = ticket.server == Server::Primary(Role::Probe)
            && packed.phase() & !Phase::ENTRIES == Phase::Probing as u8
            && packed.generation() == ticket.since.generation();
        (out && now < deadline).then(|| now.saturating_add(rules.probe_timeout))
    }

    /// Takes a verdict.
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
            Server::Primary(Role::Aside) => Recorded::Applied,
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
            Server::Entry(entry) if ticket.since.epoch() == self.epoch => {
                spent = self.record_entry(rules, now, entry, outcome, events);
                Recorded::Applied
            }
            Server::Entry(_) => Recorded::Stale,
        };
        if restored || spent {
            self.turned = !self.turned;
        }
        recorded
    }

    fn record_ordinary(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) {
        match outcome {
            Outcome::Neutral => {}
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
        }
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
                self.failures = 0;
                self.hint = Timestamp::START;
                self.vacate();
                if self.successes >= rules.recovery_successes_needed {
                    self.clear();
                    let reason = TransitionReason::ProbeSucceeded;
                    self.go(rules, Phase::Primary, reason, now, events);
                }
            }
            Outcome::Failure(failure) => {
                self.last = Some(failure.kind());
                self.hint = self
                    .hint
                    .max(retry_deadline(failure, now, rules.retry_after_cap));
                if failure.kind() == FailureKind::Transient {
                    let reason = TransitionReason::ProbeFailed;
                    self.fail_transiently(rules, now, reason, now, events);
                } else {
                    self.trip(rules, now, TransitionReason::ProbeFailed, now, events);
                }
            }
        }
    }

    /// Answers whether the entry's budget was spent by this.
    fn record_entry(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        index: usize,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) -> bool {
        let entry = &mut self.entries[index];
        let was_spent = entry.is_spent(rules);
        match outcome {
            Outcome::Neutral => false,
            Outcome::Success => {
                // A budget that is spent stays so: this turn began before it was.
                if rules.strikes_reset_on_success && !was_spent {
                    entry.strikes = 0;
                }
                false
            }
            Outcome::Failure(failure) => {
                entry.strikes = entry.strikes.saturating_add(1);
                if failure.kind() == FailureKind::Fatal {
                    entry.strikes = entry.strikes.max(rules.max_fail_count);
                }
                self.last = Some(failure.kind());
                let spent = !was_spent && entry.is_spent(rules);
                let mut change = EntryChange::Struck;
                if spent {
                    change = EntryChange::Spent;
                    entry.spent = now;
                }
                events.push(PendingEvent::Entry {
                    entry: index,
                    change,
                    strikes: entry.strikes,
                });
                spent
            }
        }
    }

    /// A probe failed transiently, at `at`.
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
        if rules.is_hopeless(self.failures) {
            self.trip(rules, at, reason, now, events);
        } else {
            self.vacate();
        }
    }

    fn vacate(&mut self) {
        self.phase = Phase::Vacant;
        self.deadline = Timestamp::NEVER;
    }

    // ===== by hand =====

    /// Takes an entry out of the chain, or puts it back.
    pub(super) fn set_disabled(
        &mut self,
        index: usize,
        disabled: bool,
        events: &mut EventQueue<PendingEvent>,
    ) {
        let entry = &mut self.entries[index];
        if entry.disabled != disabled {
            entry.disabled = disabled;
            self.turned = !self.turned;
            events.push(PendingEvent::Entry {
                entry: index,
                change: if disabled {
                    EntryChange::Disabled
                } else {
                    EntryChange::Enabled
                },
                strikes: entry.strikes,
            });
        }
    }

    pub(super) fn reset(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.clear();
        self.last = None;
        self.trips = 0;
        self.go(rules, Phase::Primary, TransitionReason::Reset, now, events);
    }

    pub(super) fn snapshot(
        &self,
        packed: PackedState,
        rules: &Rules,
        now: Timestamp,
    ) -> FallbackSnapshot {
        let (phase, deadline) = self.at(rules, now);
        let expired = self.has_expired(now);
        let tripped = expired && phase == Phase::Fallback;
        let due = phase == Phase::Vacant || phase == Phase::Fallback && now >= deadline;
        let entries = rules.entries.iter().zip(&self.entries);
        FallbackSnapshot {
            state: phase.state(),
            due,
            consecutive_failures: packed.streak_or(self.streak),
            probe_successes: if expired { 0 } else { self.successes },
            probe_failures: match (tripped, expired) {
                (true, _) => 0,
                (false, true) => self.failures.saturating_add(1),
                (false, false) => self.failures,
            },
            time_until_probe: match phase {
                Phase::Fallback => deadline.remaining(now),
                Phase::Vacant => Some(Duration::ZERO),
                Phase::Primary | Phase::Probing => None,
            },
            lease_left: if phase == Phase::Probing {
                deadline.remaining(now)
            } else {
                None
            },
            trips: self.trips + u64::from(tripped),
            fallback_activated: self.is_activated(),
            last_failure: if expired {
                self.last_at(now)
            } else {
                packed.last()
            },
            entries: entries
                .map(|(name, entry)| EntrySnapshot {
                    name: Arc::clone(name),
                    strikes: entry.strikes_at(rules, now),
                    disabled: entry.disabled,
                    failed: !entry.is_live(rules, now),
                    bench_left: if entry.strikes_at(rules, now) >= rules.max_fail_count {
                        entry.back(rules).remaining(now)
                    } else {
                        None
                    },
                })
                .collect(),
        }
    }

    /// Whether it has ever tripped since it was made or reset.
    pub(super) fn is_activated(&self) -> bool {
        self.trips > 0
    }

    // ===== how it moves =====

    fn has_expired(&self, now: Timestamp) -> bool {
        self.phase == Phase::Probing && now >= self.deadline
    }

    /// The last failure as it is at `now`: a lease that is over is one.
    fn last_at(&self, now: Timestamp) -> Option<FailureKind> {
        if self.has_expired(now) {
            Some(FailureKind::Transient)
        } else {
            self.last
        }
    }

    /// The phase and its deadline as they are at `now`, a lease that is over taken into account.
    fn at(&self, rules: &Rules, now: Timestamp) -> (Phase, Timestamp) {
        if !self.has_expired(now) {
            (self.phase, self.deadline)
        } else if rules.is_hopeless(self.failures.saturating_add(1)) {
            let deadline = self
                .deadline
                .saturating_add(rules.recovery_timeout)
                .max(self.hint);
            (Phase::Fallback, deadline)
        } else {
            (Phase::Vacant, Timestamp::NEVER)
        }
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
            // The same without a cooldown, when a probe is due: a frame that comes late must not take it for its lease's end.
            self.deadline = self.deadline.distinct_from(end);
        }
    }

    /// Notices that entries are back from the bench, and answers whether any is.
    fn restore(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) -> bool {
        let mut restored = false;
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.is_spent(rules) && now >= entry.back(rules) {
                entry.strikes = 0;
                restored = true;
                events.push(PendingEvent::Entry {
                    entry: index,
                    change: EntryChange::Restored,
                    strikes: 0,
                });
            }
        }
        restored
    }

    /// Lets the chain serve; the cooldown counts from `at`.
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
        self.go(rules, Phase::Fallback, reason, now, events);
    }

    /// Forgets the counters, the hints and every entry's strikes.
    fn clear(&mut self) {
        self.deadline = Timestamp::NEVER;
        self.streak = 0;
        self.hint = Timestamp::START;
        self.successes = 0;
        self.failures = 0;
        self.epoch = self.epoch.wrapping_add(1);
        for entry in &mut self.entries {
            entry.strikes = 0;
            entry.spent = Timestamp::START;
        }
    }

    fn go(
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
        // A hint that was heard has to see every result.
        let plain = self.phase == Phase::Primary && self.hint == Timestamp::START;
        let turned = if self.turned && self.phase != Phase::Primary {
            Phase::ENTRIES
        } else {
            0
        };
        PackedState::new(self.generation, self.phase as u8 | turned)
            .with_last(self.last)
            .with_streak(self.streak)
            .lock_free(plain)
            .timed(self.watched)
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
        match pending {
            PendingEvent::Transition {
                from,
                to,
                reason,
                generation,
                first,
            } => Event::FallbackTransition {
                name,
                from,
                to,
                reason,
                generation,
                first: first.map(|entry| &*rules.entries[entry]),
            },
            PendingEvent::ProbeStarted { generation } => Event::ProbeStarted {
                name,
                generation,
                lease: rules.probe_timeout,
            },
            PendingEvent::LeaseExpired { generation } => Event::LeaseExpired { name, generation },
            PendingEvent::Entry {
                entry,
                change,
                strikes,
            } => Event::Entry {
                name,
                entry: &rules.entries[entry],
                change,
                strikes,
            },
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod walk;
