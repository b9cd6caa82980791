//! The permit that an admitted call carries until its verdict.

use std::fmt;

use super::circuit::{Circuit, Role, Ticket};
use crate::machinery::clock::Timestamp;
#[cfg(feature = "http")]
use crate::machinery::held_permit::{ErasedTicket, HeldPermit, PermitIssuer};
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::Event;
use crate::vocabulary::Name;
use crate::vocabulary::{Failure, FailureKind, Outcome, Recorded};

/// The permit inside a future of this crate. Dropped without a verdict, it is a cancelled call.
///
/// It is empty once its verdict is given, and for a call that runs unguarded. An empty permit
/// records nothing.
pub(crate) struct CallPermit {
    machine_ref: Option<Arc<MachineRef<Circuit>>>,
    /// When the call was admitted, if a verdict may depend on how long it ran.
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

    /// The permit of a call while `packed` admits all calls.
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

    /// Whether a verdict would be recorded.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.machine_ref.is_some()
    }

    pub(super) fn is_probe(&self) -> bool {
        self.machine_ref.is_some() && self.ticket.role == Role::Probe
    }

    /// Hands the call over to a permit that a response body can hold.
    #[cfg(feature = "http")]
    pub(super) fn hand_over(&mut self) -> HeldPermit {
        let ticket = ErasedTicket {
            parts: [
                u64::from(self.ticket.generation),
                self.started.as_nanos(),
                0,
            ],
            is_probe: self.is_probe(),
        };
        let issuer = self.machine_ref.take();
        HeldPermit::new(issuer.map(|issuer| issuer as Arc<dyn PermitIssuer>), ticket)
    }

    /// Gives the verdict, once.
    // The one caller that matters is a future's `poll`, of which this is most of the code.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn record(&mut self, outcome: Outcome) -> Recorded {
        let Some(machine_ref) = self.machine_ref.take() else {
            return Recorded::Stale;
        };
        let (machine, ticket) = (machine_ref.machine(), self.ticket);
        let counted = match outcome {
            // Nearly every call ends here: it reads the packed state, and changes nothing.
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

    /// Gives the verdict of a call that panicked.
    #[inline]
    pub(super) fn fail(&mut self) {
        self.record_unwinding(Failure::transient().into());
    }

    /// As [`record`](Self::record), for places that are rarely reached.
    #[inline]
    pub(super) fn record_unwinding(&mut self, outcome: Outcome) {
        if let Some(machine_ref) = self.machine_ref.take() {
            record_slow(machine_ref, self.started, self.ticket, outcome);
        }
    }

    /// Gives the verdict of a call that was dropped, by the layer's `on_cancel`.
    #[inline]
    pub(super) fn cancel(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            cancel(machine_ref, self.started, self.ticket);
        }
    }
}

// The functions below are out of line, and take the parts of a permit instead of the permit. If a
// permit were borrowed by a function that is not inlined, it would have to be in memory. Its
// parts, and with them a future that is polled where it was made, can stay in registers. The slow
// path takes the reference too, so that its drop is compiled here and not into every future.

/// Counts a success, if that needs neither the clock nor the lock. Answers whether it did.
#[inline(never)]
fn count_success(machine: &SharedMachine<Circuit>, ticket: Ticket) -> bool {
    machine.update(|packed| {
        if packed.is_timed() {
            return None;
        }
        Circuit::record_lock_free(packed, ticket, Outcome::Success, machine.rules())
    })
}

/// Counts a plain failure, if that needs no lock. Answers whether it did.
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
    record_in(machine_ref.machine(), started, ticket, outcome)
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn cancel(machine_ref: Arc<MachineRef<Circuit>>, started: Timestamp, ticket: Ticket) {
    cancel_in(machine_ref.machine(), started, ticket);
}

/// Records what a call said that was admitted at `started`.
fn record_in(
    machine: &SharedMachine<Circuit>,
    started: Timestamp,
    ticket: Ticket,
    outcome: Outcome,
) -> Recorded {
    let ran = || machine.now().duration_since(started);
    let outcome = machine.rules().judge(outcome, ran);
    settle(machine, ticket, outcome)
}

/// Records that a call was dropped which was admitted at `started`.
fn cancel_in(machine: &SharedMachine<Circuit>, started: Timestamp, ticket: Ticket) {
    let ran = || machine.now().duration_since(started);
    if let Some(outcome) = machine.rules().on_cancel.judge(ran) {
        settle(machine, ticket, outcome);
    }
}

/// Records an outcome that the rules have judged.
fn settle(machine: &SharedMachine<Circuit>, ticket: Ticket, outcome: Outcome) -> Recorded {
    if machine.update(|packed| Circuit::record_lock_free(packed, ticket, outcome, machine.rules()))
    {
        return Recorded::Applied;
    }
    let now = machine.now();
    let recorded = machine.step_unless_retired(|circuit, rules, events| {
        circuit.record(rules, now, ticket, outcome, events)
    });
    // The circuit was forgotten while the call was in flight. Its result is lost, and no observer
    // hears of a circuit that is gone.
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

#[cfg(feature = "http")]
impl PermitIssuer for MachineRef<Circuit> {
    fn record(&self, ticket: &ErasedTicket, outcome: Outcome) {
        record_in(self.machine(), started(ticket), ticket.into(), outcome);
    }

    fn cancel(&self, ticket: &ErasedTicket) {
        cancel_in(self.machine(), started(ticket), ticket.into());
    }

    fn renew(&self, ticket: &ErasedTicket) {
        let (machine, ticket) = (self.machine(), Ticket::from(ticket));
        machine.renew(|packed, deadline, now| {
            Circuit::renewed(packed, deadline, ticket, machine.rules(), now)
        });
    }
}

#[cfg(feature = "http")]
fn started(ticket: &ErasedTicket) -> Timestamp {
    Timestamp::from_nanos(ticket.parts[1])
}

#[cfg(feature = "http")]
impl From<&ErasedTicket> for Ticket {
    fn from(ticket: &ErasedTicket) -> Self {
        // The generation went in as 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        let generation = ticket.parts[0] as u32;
        let role = if ticket.is_probe {
            Role::Probe
        } else {
            Role::Ordinary
        };
        Self { generation, role }
    }
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
/// Dropped without a verdict, it is a cancelled call, and
/// [`on_cancel`](super::CircuitBreakerLayer::on_cancel) says what that means. Dropped while its
/// thread panics, it is a failure.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once is a cancelled call"]
pub struct Permit {
    call: CallPermit,
}

impl Permit {
    pub(super) fn new(call: CallPermit) -> Self {
        Self { call }
    }

    /// Whether the call is the probe.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.call.is_probe()
    }

    /// Records that the call succeeded.
    pub fn success(self) -> Recorded {
        self.record(Outcome::Success)
    }

    /// Records that the call failed transiently.
    pub fn failure(self) -> Recorded {
        self.record(Failure::transient())
    }

    /// Records any outcome. Answers whether it counted, or came from an older generation.
    pub fn record(mut self, outcome: impl Into<Outcome>) -> Recorded {
        self.call.record(outcome.into())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.call.fail();
        }
    }
}
