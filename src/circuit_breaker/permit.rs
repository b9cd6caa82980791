//! What an admitted call carries until its verdict.

use std::fmt;
use std::mem;

use super::circuit::{Circuit, Role, Ticket};
use crate::machinery::clock::Timestamp;
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::Event;
use crate::vocabulary::Name;
use crate::vocabulary::{Failure, FailureKind, Outcome, Recorded};

/// The permit inside a future or a body of ours. Dropped without a verdict it is a cancelled call.
///
/// It is empty, and records nothing, once its verdict is given, and for a call that runs unguarded.
pub struct CallPermit {
    machine_ref: Option<Arc<MachineRef<Circuit>>>,
    /// When it was admitted, if a verdict may depend on how long the call ran.
    started: Timestamp,
    ticket: Ticket,
}

impl CallPermit {
    pub(super) fn new(machine_ref: Arc<MachineRef<Circuit>>, ticket: Ticket) -> Self {
        let machine = machine_ref.machine();
        let started = if machine.rules().are_timed() {
            machine.now()
        } else {
            Timestamp::START
        };
        Self {
            machine_ref: Some(machine_ref),
            started,
            ticket,
        }
    }

    /// The permit of a call that `word` lets through with all others.
    #[inline]
    pub(super) fn plain(machine_ref: Arc<MachineRef<Circuit>>, packed: PackedState) -> Self {
        Self {
            machine_ref: Some(machine_ref),
            started: Timestamp::START,
            ticket: Ticket::ordinary(packed),
        }
    }

    #[inline]
    pub(super) fn none() -> Self {
        Self {
            machine_ref: None,
            started: Timestamp::START,
            ticket: Ticket {
                generation: 0,
                role: Role::Ordinary,
            },
        }
    }

    /// Takes it out; an empty one stays.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::none())
    }

    /// Whether a verdict would be recorded.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.machine_ref.is_some()
    }

    pub(super) fn is_probe(&self) -> bool {
        self.machine_ref.is_some() && self.ticket.role == Role::Probe
    }

    /// The call shows a sign of life: the lease of a probe starts anew.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) fn renew(&self) {
        if let (Some(machine_ref), Role::Probe) = (&self.machine_ref, self.ticket.role) {
            let machine = machine_ref.machine();
            machine.renew(|packed, deadline, now| {
                Circuit::renewed(packed, deadline, self.ticket, machine.rules(), now)
            });
        }
    }

    /// Gives the verdict, once.
    #[allow(clippy::inline_always)] // A future's `poll` is the one place that matters, and there it is most of the code.
    #[inline(always)]
    pub(crate) fn record(&mut self, outcome: Outcome) -> Recorded {
        let Some(machine_ref) = self.machine_ref.take() else {
            return Recorded::Stale;
        };
        let (machine, ticket) = (machine_ref.machine(), self.ticket);
        let counted = match outcome {
            // What nearly every call comes to: a look at the word, and no more.
            Outcome::Success => {
                machine.packed().is_clean_in(ticket.generation) || count_success(machine, ticket)
            }
            Outcome::Failure(failure) if failure.is_plain() => {
                count_failure(machine, ticket, failure.kind())
            }
            Outcome::Failure(_) | Outcome::Neutral => false,
        };
        if counted {
            return Recorded::Applied;
        }
        record_slow(machine_ref, self.started, ticket, outcome)
    }

    /// The verdict of a call that panicked.
    #[inline]
    pub(super) fn fail(&mut self) {
        self.record_unwinding(Failure::transient().into());
    }

    /// [`record`](Self::record) where that is rare.
    #[inline]
    pub(super) fn record_unwinding(&mut self, outcome: Outcome) {
        if let Some(machine_ref) = self.machine_ref.take() {
            record_slow(machine_ref, self.started, self.ticket, outcome);
        }
    }

    /// The verdict of a call that was dropped, by the rule for such calls.
    #[inline]
    pub(super) fn cancel(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            cancel(machine_ref, self.started, self.ticket);
        }
    }
}

// What follows is out of line, and takes the parts of an admission instead of the admission, so that a future that is polled where it was made stays in
// registers: what is lent to a function that is not inlined has to be in memory. What is rare takes the anchor, too, and lets go of it here and
// not in every future.

/// Counts a success where that needs neither the clock nor the lock.
#[inline(never)]
fn count_success(machine: &SharedMachine<Circuit>, ticket: Ticket) -> bool {
    machine.update(|packed| {
        if packed.is_timed() {
            return None;
        }
        Circuit::record_lock_free(packed, ticket, Outcome::Success, machine.rules())
    })
}

/// Counts a plain failure, likewise.
#[inline(never)]
fn count_failure(machine: &SharedMachine<Circuit>, ticket: Ticket, kind: FailureKind) -> bool {
    let outcome = Failure::of(kind).into();
    machine.update(|packed| Circuit::record_lock_free(packed, ticket, outcome, machine.rules()))
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn record_slow(
    machine_ref: Arc<MachineRef<Circuit>>,
    started: Timestamp,
    ticket: Ticket,
    outcome: Outcome,
) -> Recorded {
    let machine = machine_ref.machine();
    let outcome = machine
        .rules()
        .judge(outcome, || machine.now().duration_since(started));
    settle(machine, ticket, outcome)
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn cancel(machine_ref: Arc<MachineRef<Circuit>>, started: Timestamp, ticket: Ticket) {
    let machine = machine_ref.machine();
    let ran = || machine.now().duration_since(started);
    if let Some(outcome) = machine.rules().on_cancel.judge(ran) {
        settle(machine, ticket, outcome);
    }
}

/// Records an outcome that is judged already.
fn settle(machine: &SharedMachine<Circuit>, ticket: Ticket, outcome: Outcome) -> Recorded {
    if machine.update(|packed| Circuit::record_lock_free(packed, ticket, outcome, machine.rules()))
    {
        return Recorded::Applied;
    }
    let now = machine.now();
    let recorded = machine.step_unless_retired(|circuit, rules, events| {
        circuit.record(rules, now, ticket, outcome, events)
    });
    // Forgotten while the call was in flight: its result is lost, and nobody is told of a circuit that is gone.
    let Ok(recorded) = recorded else {
        return Recorded::Stale;
    };
    if recorded == Recorded::Stale && machine.observed() {
        machine.tell(&Event::LateVerdict {
            name: machine.name().map(Name::as_str),
            generation: ticket.generation,
            outcome,
        });
    }
    recorded
}

impl Drop for CallPermit {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for CallPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("guarded", &self.machine_ref.is_some())
            .field("generation", &self.ticket.generation)
            .field("probe", &self.is_probe())
            .finish()
    }
}

/// The right to make one call, taken by hand from a handle. It ends in a verdict.
///
/// Dropped without one it is a cancelled call, by the rule that
/// [`on_cancel`](super::CircuitBreakerLayer::on_cancel) set; dropped while its thread panics, a failure.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once is a cancelled call"]
pub struct Permit {
    permit: CallPermit,
}

impl Permit {
    pub(super) fn new(permit: CallPermit) -> Self {
        Self { permit }
    }

    /// Whether the call is the one that tests recovery.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.permit.is_probe()
    }

    /// The call succeeded.
    pub fn success(self) -> Recorded {
        self.record(Outcome::Success)
    }

    /// The call failed, and may fare better next time.
    pub fn failure(self) -> Recorded {
        self.record(Failure::transient())
    }

    /// The verdict in full. Answers whether it counted, or was of an older generation.
    pub fn record(mut self, outcome: impl Into<Outcome>) -> Recorded {
        self.permit.record(outcome.into())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.permit.fail();
        }
    }
}
