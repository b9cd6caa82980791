//! What an admitted call carries until its verdict.

use std::fmt;
use std::mem;

use super::digest::Digest;
use super::fence::{Fence, Role, Ticket};
use crate::cell::Anchor;
use crate::event::Event;
use crate::outcome::{Failure, Outcome};
use crate::refusal::Name;
use crate::sync::Arc;

/// The permit inside a future or a body of ours. Dropped without a verdict it is a cancelled call: its turn stays spent, and if it was the probe,
/// the fence opens again.
///
/// It is empty, and records nothing, once its verdict is given, and for a call that runs unguarded.
pub struct Admission {
    anchor: Option<Arc<Anchor<Fence>>>,
    ticket: Ticket,
}

impl Admission {
    #[inline]
    pub(super) fn new(anchor: Arc<Anchor<Fence>>, ticket: Ticket) -> Self {
        Self {
            anchor: Some(anchor),
            ticket,
        }
    }

    pub(super) fn none() -> Self {
        Self {
            anchor: None,
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
        self.anchor.is_some()
    }

    /// Gives the verdict, once; and for a success what it answered, where answers are compared.
    #[allow(clippy::inline_always)] // A future's `poll` is the one place that matters, and there it is most of the code.
    #[inline(always)]
    pub(crate) fn record(&mut self, outcome: Outcome, answer: Option<Digest>) {
        let Some(anchor) = self.anchor.take() else {
            return;
        };
        let word = anchor.cell().word();
        if answer.is_some() || !Fence::is_settled(word, self.ticket.generation, outcome) {
            settle(anchor, self.ticket, outcome, answer);
        }
    }

    /// The verdict of a call that panicked.
    #[inline]
    pub(super) fn fail(&mut self) {
        if let Some(anchor) = self.anchor.take() {
            settle(anchor, self.ticket, Failure::transient().into(), None);
        }
    }

    /// The call was dropped. Nobody learns anything of it, but a probe must not wedge the fence.
    #[inline]
    pub(super) fn cancel(&mut self) {
        if let Some(anchor) = self.anchor.take() {
            cancel(anchor, self.ticket);
        }
    }
}

// What follows is out of line, and takes the parts of an admission instead of the admission, so that a future that is polled where it was made stays in
// registers: what is lent to a function that is not inlined has to be in memory. It takes the anchor, too, and lets go of it here and not
// in every future.

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn settle(anchor: Arc<Anchor<Fence>>, ticket: Ticket, outcome: Outcome, answer: Option<Digest>) {
    let cell = anchor.cell();
    if answer.is_none() && cell.update(|word| Fence::shortcut(word, ticket, outcome, cell.rules()))
    {
        return;
    }
    let applied =
        cell.step(|fence, rules, notes| fence.record(rules, ticket, outcome, answer, notes));
    if !applied && cell.observed() {
        cell.tell(&Event::LateVerdict {
            name: cell.name().map(Name::as_str),
            generation: ticket.generation,
            outcome,
        });
    }
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn cancel(anchor: Arc<Anchor<Fence>>, ticket: Ticket) {
    if ticket.role == Role::Probe {
        anchor
            .cell()
            .step(|fence, _, notes| fence.lose(ticket, notes));
    }
}

impl Drop for Admission {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("guarded", &self.anchor.is_some())
            .field("generation", &self.ticket.generation)
            .field("probe", &(self.ticket.role == Role::Probe))
            .finish()
    }
}
