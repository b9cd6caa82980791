//! The circuit: a pure state machine.
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | Closed | success | the streak is 0 |
//! | Closed | failure | the streak grows by 1; at `failure_threshold` → Open, and the cooldown counts from now. A fatal failure trips at once |
//! | Closed | a result from an older generation | stale: changes nothing, success or failure |
//! | Open | a call, the cooldown is not over | refused, with the time that is left |
//! | Open | a call, the cooldown is over | → `HalfOpen`; this call is the probe, and its lease starts |
//! | Open | a stale success | ignored: it describes the time before the trip |
//! | Open | a stale failure | the cooldown restarts from now (once for each admitted call; refusals never do this) |
//! | `HalfOpen` | a call, the slot is taken | refused (`ProbeInFlight`), with the rest of the lease |
//! | `HalfOpen` | the probe succeeds within its lease | → Closed (or the next probe, until `success_threshold`) |
//! | `HalfOpen` | the probe fails | → Open, the cooldown counts from now |
//! | `HalfOpen` | the probe shows a sign of life within its lease | the lease starts anew |
//! | `HalfOpen` | the lease is over | → Open, the cooldown counts from the end of the lease, however late it is noticed |
//! | `HalfOpen` | the probe is neutral | the slot is free; the next call is the probe |
//! | `HalfOpen` | any other result | stale: changes nothing |
//! | any | pinned open by hand | Open until a reset; results are stale and change nothing |
//! | any | reset | as new, in a new generation |
//!
//! Beside the table: with a failure rate, a success or a failure also trips the closed circuit if
//! the rate is reached.
//!
//! Every transition begins a new generation. Nobody is admitted in a generation that is open, and
//! only probes are admitted in one that is half-open. So the generation of a result alone says
//! which row it belongs to.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod` | the machine: one function for each kind of event, then one for each row that changes something |
//! | `phase`, `ticket` | the phase of a circuit; what an admitted call carries |
//! | `lock_free` | the decisions that the packed state alone allows |
//! | `rules` | the settings, the failure rate, the growth of the cooldown |
//! | `window` | the last calls, for the failure rate |
//! | `machine` | the circuit as the shared machinery sees it: packed state, eviction, events |

mod lock_free;
mod machine;
mod phase;
mod rules;
mod ticket;
mod window;

#[cfg(test)]
mod driver;
#[cfg(test)]
mod model;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod walk;

use std::time::Duration;

pub(super) use self::phase::Phase;
pub use self::rules::WhenOpen;
pub(crate) use self::rules::{Backoff, Rate, Rules};
pub(super) use self::ticket::{Role, Ticket};
pub use self::window::Window;
use self::window::WindowCounts;
use crate::machinery::clock::Timestamp;
use crate::machinery::cooldown::{restarted, retry_deadline};
use crate::machinery::denied::Denied;
use crate::machinery::event_queue::EventQueue;
use crate::vocabulary::{Failure, FailureKind, Outcome, Reason, Recorded, State, TransitionReason};

/// An event that waits for the observers.
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

/// The state machine. See the module's table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Circuit {
    generation: u32,
    pub(super) phase: Phase,
    /// When the phase runs out; [`Timestamp::NEVER`] if it does not.
    deadline: Timestamp,
    pub(super) streak: u32,
    last_failure: Option<FailureKind>,
    /// The latest `retry_after` of the streak, as a point in time; [`Timestamp::START`] if no
    /// failure carried one.
    retry_deadline: Timestamp,
    /// The cooldown of the last trip, jitter included. A stale failure restarts it.
    cooldown: Duration,
    /// The cooldown of the next trip, without jitter.
    next_cooldown: Duration,
    /// How many probes have succeeded, one after the other.
    successes: u32,
    pub(super) trips: u64,
    seed: u64,
    /// Whether a verdict may depend on how long the call ran.
    timed: bool,
    /// The last calls, if a failure rate is set.
    window: Option<Box<WindowCounts>>,
}

impl Circuit {
    /// A closed circuit. `seed` is the seed of its jitter.
    pub(super) fn new(rules: &Rules, seed: u64) -> Self {
        Self {
            generation: 0,
            phase: Phase::Closed,
            deadline: Timestamp::NEVER,
            streak: 0,
            last_failure: None,
            retry_deadline: Timestamp::START,
            cooldown: Duration::ZERO,
            next_cooldown: rules.recovery_duration,
            successes: 0,
            trips: 0,
            seed,
            timed: rules.are_timed(),
            window: rules
                .rate
                .map(|rate| Box::new(WindowCounts::new(rate.window))),
        }
    }

    // ===== the events =====

    /// Takes the verdict of an admitted call, as [`Rules::judge`] gave it.
    pub(super) fn record(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        ticket: Ticket,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) -> Recorded {
        self.expire_lease(rules, now, events);
        let current = ticket.generation == self.generation;
        match (self.phase, outcome) {
            (Phase::Closed, Outcome::Success) if current => {
                self.closed_success(rules, now, events);
            }
            (Phase::Closed, Outcome::Failure(failure)) if current => {
                self.closed_failure(rules, now, failure, events);
            }
            // Nobody is admitted in an open generation, so this failure is stale.
            (Phase::Open, Outcome::Failure(failure)) => {
                self.open_stale_failure(rules, now, failure);
            }
            // The only current call of a half-open generation is the probe.
            (Phase::Probing, Outcome::Success) if current => self.probe_success(rules, events),
            (Phase::Probing, Outcome::Failure(failure)) if current => {
                self.probe_failure(rules, now, failure, events);
            }
            (Phase::Probing, Outcome::Neutral) if current => self.free_slot(),
            // A neutral result of an ordinary call, and every other stale result.
            _ => {}
        }
        if current {
            Recorded::Applied
        } else {
            Recorded::Stale
        }
    }

    /// The gate: admits a call, or says why not.
    pub(super) fn try_acquire(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) -> Result<Ticket, Denied> {
        self.expire_lease(rules, now, events);
        let role = Self::decide(self.phase, self.deadline, self.last_failure, now)?;
        if role == Role::Probe {
            self.start_probe(rules, now, events);
        }
        Ok(self.ticket(role))
    }

    /// The oracle: what the gate would answer, with nothing changed.
    pub(super) fn would_allow(&self, rules: &Rules, now: Timestamp) -> Result<(), Denied> {
        let (phase, deadline) = self.phase_at(rules, now);
        Self::decide(phase, deadline, self.last_failure_at(phase), now).map(|_| ())
    }

    /// The rows of a call, for the gate and the oracle alike.
    fn decide(
        phase: Phase,
        deadline: Timestamp,
        last: Option<FailureKind>,
        now: Timestamp,
    ) -> Result<Role, Denied> {
        let reason = match phase {
            Phase::Closed => return Ok(Role::Ordinary),
            Phase::Open if now >= deadline => return Ok(Role::Probe),
            Phase::Open => Reason::CircuitOpen,
            Phase::Probing => Reason::ProbeInFlight,
            Phase::Vacant => return Ok(Role::Probe),
            Phase::Forced => Reason::ForcedOpen,
        };
        let wait = deadline.remaining(now);
        Err(Denied { reason, wait, last })
    }

    /// Opens the circuit if the lease is over. Every other event comes after this one.
    pub(super) fn expire_lease(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        if self.phase == Phase::Probing && now >= self.deadline {
            events.push(PendingEvent::LeaseExpired {
                generation: self.generation,
            });
            self.last_failure = Some(FailureKind::Transient);
            let end = self.deadline;
            self.trip(rules, end, TransitionReason::LeaseExpired, events);
            // Without a cooldown, the new deadline would be the end of the lease. A late frame of
            // the probe would take it for its own, and renew it.
            self.deadline = self.deadline.distinct_from(end);
        }
    }

    /// Pins the circuit open.
    pub(super) fn force_open(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.expire_lease(rules, now, events);
        if self.phase != Phase::Forced {
            self.deadline = Timestamp::NEVER;
            self.trips += u64::from(self.phase.state() != State::Open);
            self.transition(Phase::Forced, TransitionReason::ForcedOpen, events);
        }
    }

    /// Closes the circuit and forgets everything.
    pub(super) fn reset(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.expire_lease(rules, now, events);
        self.clear(rules);
        self.last_failure = None;
        self.trips = 0;
        self.transition(Phase::Closed, TransitionReason::Reset, events);
    }

    // ===== the rows that change something, in the order of the table =====

    fn closed_success(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.streak = 0;
        self.retry_deadline = Timestamp::START;
        self.count_in_window(false, now);
        // A success can complete the minimum of calls.
        if rules.rate_is_reached(self.window.as_deref(), now) {
            self.trip(rules, now, TransitionReason::FailureRate, events);
        }
    }

    fn closed_failure(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        failure: Failure,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.streak = self.streak.saturating_add(1);
        self.last_failure = Some(failure.kind());
        self.retry_deadline =
            self.retry_deadline
                .max(retry_deadline(failure, now, rules.retry_after_cap));
        self.count_in_window(true, now);
        let reason = if failure.kind() == FailureKind::Fatal {
            TransitionReason::FatalFailure
        } else if self.streak >= rules.failure_threshold {
            TransitionReason::FailureThreshold
        } else if rules.rate_is_reached(self.window.as_deref(), now) {
            TransitionReason::FailureRate
        } else {
            return;
        };
        self.trip(rules, now, reason, events);
    }

    /// Open, and the cooldown is over; or half-open, and the slot is free: this call is the probe.
    fn start_probe(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) {
        if self.phase == Phase::Open {
            self.transition(Phase::Probing, TransitionReason::CooldownOver, events);
        }
        self.phase = Phase::Probing;
        self.deadline = now.saturating_add(rules.probe_timeout);
        events.push(PendingEvent::ProbeStarted {
            generation: self.generation,
        });
    }

    fn open_stale_failure(&mut self, rules: &Rules, now: Timestamp, failure: Failure) {
        self.last_failure = Some(failure.kind());
        self.deadline = restarted(
            failure,
            self.deadline,
            now,
            self.cooldown,
            rules.retry_after_cap,
        );
    }

    fn probe_success(&mut self, rules: &Rules, events: &mut EventQueue<PendingEvent>) {
        self.successes += 1;
        if self.successes < rules.success_threshold {
            self.free_slot();
        } else {
            self.clear(rules);
            self.transition(Phase::Closed, TransitionReason::ProbeSucceeded, events);
        }
    }

    fn probe_failure(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        failure: Failure,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.last_failure = Some(failure.kind());
        self.retry_deadline = retry_deadline(failure, now, rules.retry_after_cap);
        self.trip(rules, now, TransitionReason::ProbeFailed, events);
    }

    /// The probe is neutral, or more probes must succeed.
    fn free_slot(&mut self) {
        self.phase = Phase::Vacant;
        self.deadline = Timestamp::NEVER;
    }

    // ===== what the rows have in common =====

    /// Opens the circuit. The cooldown counts from `at`.
    fn trip(
        &mut self,
        rules: &Rules,
        at: Timestamp,
        reason: TransitionReason,
        events: &mut EventQueue<PendingEvent>,
    ) {
        self.cooldown = self.jittered_cooldown(rules);
        self.deadline = at.saturating_add(self.cooldown).max(self.retry_deadline);
        self.retry_deadline = Timestamp::START;
        self.next_cooldown = rules.grown(self.next_cooldown);
        self.successes = 0;
        self.trips += 1;
        self.transition(Phase::Open, reason, events);
    }

    /// The cooldown of the next trip, jitter included. The answer stays the same until the circuit
    /// trips.
    fn jittered_cooldown(&self, rules: &Rules) -> Duration {
        rules.jittered(self.next_cooldown, self.seed, self.trips)
    }

    fn transition(
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

    /// Forgets the streak, its retry deadline, the growth of the cooldown, and the window.
    fn clear(&mut self, rules: &Rules) {
        self.deadline = Timestamp::NEVER;
        self.streak = 0;
        self.retry_deadline = Timestamp::START;
        self.cooldown = Duration::ZERO;
        self.next_cooldown = rules.recovery_duration;
        self.successes = 0;
        if let Some(window) = &mut self.window {
            window.clear();
        }
    }

    fn count_in_window(&mut self, failed: bool, now: Timestamp) {
        if let Some(window) = &mut self.window {
            window.count(failed, now);
        }
    }

    fn ticket(&self, role: Role) -> Ticket {
        let generation = self.generation;
        Ticket { generation, role }
    }

    // ===== a lease that is over, before anybody has noticed =====

    /// The phase and its deadline at `now`: if the lease is over, the circuit is open.
    pub(super) fn phase_at(&self, rules: &Rules, now: Timestamp) -> (Phase, Timestamp) {
        if self.phase == Phase::Probing && now >= self.deadline {
            let cooldown = self.jittered_cooldown(rules);
            return (Phase::Open, self.deadline.saturating_add(cooldown));
        }
        (self.phase, self.deadline)
    }

    /// The last failure in `phase`, as [`phase_at`](Self::phase_at) answered it: a lease that is
    /// over is a failure.
    pub(super) fn last_failure_at(&self, phase: Phase) -> Option<FailureKind> {
        if phase == self.phase {
            self.last_failure
        } else {
            Some(FailureKind::Transient)
        }
    }
}
