//! What an admitted call carries until its verdict.

use std::fmt;
use std::mem;

use super::digest::Digest;
use super::fence::{Fence, Role, Ticket};
use crate::machinery::shared_machine::MachineRef;
use crate::machinery::sync::Arc;
use crate::vocabulary::Event;
use crate::vocabulary::Name;
use crate::vocabulary::{Failure, Outcome};

/// The permit inside a future or a body of ours. Dropped without a verdict it is a cancelled call: its turn stays spent, and if it was the probe,
/// the fence opens again.
///
/// It is empty, and records nothing, once its verdict is given, and for a call that runs unguarded.
pub struct CallPermit {
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

    /// Takes it out; an empty one stays.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::none())
    }

    /// Whether a verdict would be recorded.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.machine_ref.is_some()
    }

    /// Gives the verdict, once; and for a success what it answered, where answers are compared.
    #[allow(clippy::inline_always)] // A future's `poll` is the one place that matters, and there it is most of the code.
    #[inline(always)]
    pub(crate) fn record(&mut self, outcome: Outcome, answer: Option<Digest>) {
        let Some(machine_ref) = self.machine_ref.take() else {
            return;
        };
        let packed = machine_ref.machine().packed();
        if answer.is_some() || !Fence::is_settled(packed, self.ticket.generation, outcome) {
            settle(machine_ref, self.ticket, outcome, answer);
        }
    }

    /// The verdict of a call that panicked.
    #[inline]
    pub(super) fn fail(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            settle(machine_ref, self.ticket, Failure::transient().into(), None);
        }
    }

    /// The call was dropped. Nobody learns anything of it, but a probe must not wedge the fence.
    #[inline]
    pub(super) fn cancel(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            cancel(machine_ref, self.ticket);
        }
    }
}

// What follows is out of line, and takes the parts of an admission instead of the admission, so that a future that is polled where it was made stays in
// registers: what is lent to a function that is not inlined has to be in memory. It takes the anchor, too, and lets go of it here and not
// in every future.

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn settle(
    machine_ref: Arc<MachineRef<Fence>>,
    ticket: Ticket,
    outcome: Outcome,
    answer: Option<Digest>,
) {
    let machine = machine_ref.machine();
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

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn cancel(machine_ref: Arc<MachineRef<Fence>>, ticket: Ticket) {
    if ticket.role == Role::Probe {
        machine_ref
            .machine()
            .step(|fence, _, events| fence.lose(ticket, events));
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
