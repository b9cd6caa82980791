//! What an admitted call carries until its verdict.

use std::fmt;

use super::digest::Digest;
use super::fence::{Fence, Role, Ticket};
use crate::cell::{Anchor, Cell};
use crate::event::Event;
use crate::outcome::Outcome;
use crate::refusal::Name;
use crate::sync::Arc;

/// The permit inside a future of ours. Dropped without a verdict it is a cancelled call: its turn stays spent, and if it was the probe,
/// the fence opens again.
///
/// It is empty, and records nothing, once its verdict is given, and for a call that runs unguarded.
pub(super) struct Admission {
    anchor: Option<Arc<Anchor<Fence>>>,
    ticket: Ticket,
}

impl Admission {
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

    /// Whether a verdict would be recorded.
    pub(super) fn is_guarded(&self) -> bool {
        self.anchor.is_some()
    }

    /// Gives the verdict, once; and for a success what it answered, where answers are compared.
    #[inline]
    pub(super) fn record(&mut self, outcome: Outcome, answer: Option<Digest>) {
        let Some(anchor) = self.anchor.take() else {
            return;
        };
        let cell = anchor.cell();
        let settled =
            answer.is_none() && Fence::is_settled(cell.word(), self.ticket.generation, outcome);
        if !settled {
            self.settle(cell, outcome, answer);
        }
    }

    /// The call was dropped. Nobody learns anything of it, but a probe must not wedge the fence.
    fn cancel(&mut self) {
        if let (Some(anchor), Role::Probe) = (self.anchor.take(), self.ticket.role) {
            anchor
                .cell()
                .step(|fence, _, notes| fence.lose(self.ticket, notes));
        }
    }

    #[cold]
    fn settle(&self, cell: &Cell<Fence>, outcome: Outcome, answer: Option<Digest>) {
        if answer.is_none()
            && cell.update(|word| Fence::shortcut(word, self.ticket, outcome, cell.rules()))
        {
            return;
        }
        let applied = cell
            .step(|fence, rules, notes| fence.record(rules, self.ticket, outcome, answer, notes));
        if !applied && cell.observed() {
            cell.tell(&Event::LateVerdict {
                name: cell.name().map(Name::as_str),
                generation: self.ticket.generation,
                outcome,
            });
        }
    }
}

impl Drop for Admission {
    #[inline]
    fn drop(&mut self) {
        if self.anchor.is_some() {
            self.cancel();
        }
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
