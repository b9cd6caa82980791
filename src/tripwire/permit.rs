//! The permit that an admitted call carries until its verdict.

use std::fmt;

use super::digest::Digest;
use super::fence::{Fence, Role, Ticket};
#[cfg(feature = "http")]
use crate::machinery::held_permit::{ErasedTicket, HeldPermit, PermitIssuer};
use crate::machinery::shared_machine::{MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::Event;
use crate::vocabulary::Name;
use crate::vocabulary::{Failure, Outcome};

/// The permit inside a future of this crate. Dropped without a verdict, it is a cancelled call:
/// its turn stays spent, and if it was the probe, the fence opens again.
///
/// It is empty once its verdict is given, and for a call that runs unguarded. An empty permit
/// records nothing.
pub(crate) struct CallPermit {
    machine_ref: Option<Arc<MachineRef<Fence>>>,
    ticket: Ticket,
}

impl CallPermit {
    #[inline]
    pub(super) fn new(machine_ref: Arc<MachineRef<Fence>>, ticket: Ticket) -> Self {
        Self {
            machine_ref: Some(machine_ref),
            ticket,
        }
    }

    pub(super) fn none() -> Self {
        Self {
            machine_ref: None,
            ticket: Ticket {
                generation: 0,
                number: 0,
                role: Role::Ordinary,
            },
        }
    }

    /// Whether a verdict would be recorded.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.machine_ref.is_some()
    }

    /// Gives the verdict, once. Where answers are compared, a success brings its answer's digest.
    // The one caller that matters is a future's `poll`, of which this is most of the code.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(super) fn record(&mut self, outcome: Outcome, answer: Option<Digest>) {
        let Some(machine_ref) = self.machine_ref.take() else {
            return;
        };
        let packed = machine_ref.machine().packed();
        if answer.is_some() || !Fence::is_clean_success(packed, self.ticket.generation, outcome) {
            settle(machine_ref, self.ticket, outcome, answer);
        }
    }

    /// Hands the call over to a permit for a response body, together with the digest of the
    /// answer's head.
    #[cfg(feature = "http")]
    pub(super) fn hand_over(&mut self, answer: Option<Digest>) -> HeldPermit {
        let Ticket {
            generation,
            number,
            role,
        } = self.ticket;
        let [first, second] = answer.map_or([0, 0], Digest::into_parts);
        let ticket = ErasedTicket {
            parts: [
                u64::from(generation) << 32 | u64::from(number),
                first,
                second,
            ],
            is_probe: role == Role::Probe,
        };
        let issuer = self.machine_ref.take();
        HeldPermit::new(issuer.map(|issuer| issuer as Arc<dyn PermitIssuer>), ticket)
    }

    /// Gives the verdict of a call that panicked.
    #[inline]
    pub(super) fn fail(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            settle(machine_ref, self.ticket, Failure::transient().into(), None);
        }
    }

    /// Cancels the call, because it was dropped. An ordinary call then has no verdict. The fence
    /// must not wait for a lost probe.
    #[inline]
    pub(super) fn cancel(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            cancel(machine_ref, self.ticket);
        }
    }
}

// The functions below are out of line, and take the parts of a permit instead of the permit. If a
// permit were borrowed by a function that is not inlined, it would have to be in memory. Its
// parts, and with them a future that is polled where it was made, can stay in registers. They take
// the reference too, so that its drop is compiled here and not into every future.

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn settle(
    machine_ref: Arc<MachineRef<Fence>>,
    ticket: Ticket,
    outcome: Outcome,
    answer: Option<Digest>,
) {
    record_in(machine_ref.machine(), ticket, outcome, answer);
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn cancel(machine_ref: Arc<MachineRef<Fence>>, ticket: Ticket) {
    cancel_in(machine_ref.machine(), ticket);
}

/// Records a call's outcome.
fn record_in(
    machine: &SharedMachine<Fence>,
    ticket: Ticket,
    outcome: Outcome,
    answer: Option<Digest>,
) {
    if answer.is_none()
        && machine
            .update(|packed| Fence::record_lock_free(packed, ticket, outcome, machine.rules()))
    {
        return;
    }
    let applied =
        machine.step(|fence, rules, events| fence.record(rules, ticket, outcome, answer, events));
    if !applied && machine.observed() {
        machine.tell(&Event::LateVerdict {
            name: machine.name().map(Name::as_str),
            generation: ticket.generation,
            outcome,
        });
    }
}

/// Records that a call was dropped.
fn cancel_in(machine: &SharedMachine<Fence>, ticket: Ticket) {
    if ticket.role == Role::Probe {
        machine.step(|fence, _, events| fence.lose_probe(ticket, events));
    }
}

#[cfg(feature = "http")]
impl PermitIssuer for MachineRef<Fence> {
    fn record(&self, erased: &ErasedTicket, outcome: Outcome) {
        let answer = Digest::from_parts([erased.parts[1], erased.parts[2]]);
        record_in(self.machine(), erased.into(), outcome, answer);
    }

    fn cancel(&self, ticket: &ErasedTicket) {
        cancel_in(self.machine(), ticket.into());
    }

    /// Does nothing: a fence has no lease. It counts refused calls.
    fn renew(&self, _: &ErasedTicket) {}
}

#[cfg(feature = "http")]
impl From<&ErasedTicket> for Ticket {
    fn from(ticket: &ErasedTicket) -> Self {
        // Two halves of 32 bits each.
        #[allow(clippy::cast_possible_truncation)]
        let (generation, number) = ((ticket.parts[0] >> 32) as u32, ticket.parts[0] as u32);
        let role = if ticket.is_probe {
            Role::Probe
        } else {
            Role::Ordinary
        };
        Self {
            generation,
            number,
            role,
        }
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
            .field("probe", &(self.ticket.role == Role::Probe))
            .finish()
    }
}
