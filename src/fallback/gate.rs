//! How a service asks its chain.

use std::fmt;
use std::sync::Arc as StdArc;
use std::task::Context;

use super::chain::{Chain, Readied, Role, Rules, Server};
use super::permit::Admission;
use crate::cell::{Anchor, Cell, Count, Shared, Waiter};
use crate::event::Event;
use crate::outcome::Failure;
use crate::refusal::{Denied, Name, Refusal};
use crate::sync::Arc;

type ChainAnchor = Arc<Anchor<Chain>>;

/// A service's hold on its chain.
pub(super) struct Gate {
    anchor: ChainAnchor,
    waiter: Option<Waiter>,
    /// Whose count `anchor` is.
    count: Count,
}

/// The oracle. It reads no clock while the primary serves.
pub(super) fn would_serve(cell: &Cell<Chain>) -> Result<Server, Denied> {
    if let Some(ticket) = Chain::glance(cell.word()) {
        return Ok(ticket.server);
    }
    let now = cell.now();
    cell.look(|chain, _, rules| chain.would_serve(rules, now))
}

impl Gate {
    fn new(anchor: ChainAnchor) -> Self {
        Self {
            anchor,
            waiter: None,
            count: Count::Shared,
        }
    }

    /// A chain of its own.
    pub(super) fn made(mut shared: Shared<Rules>) -> Self {
        shared.rules.observed = !shared.observers.is_empty();
        let chain = Chain::new(&shared.rules);
        let name = Name::Shared(StdArc::clone(&shared.rules.primary));
        let cell = Cell::new(chain, Some(name), Arc::new(shared));
        Self::new(Arc::new(Anchor::new(cell)))
    }

    pub(super) fn anchor(&self) -> &ChainAnchor {
        &self.anchor
    }

    /// Whether the word alone sends every turn to the primary.
    #[inline]
    pub(super) fn lets_all_through(&self) -> bool {
        self.anchor.cell().word().lets_all_through()
    }

    /// The gate for a turn of the primary, where the word alone decides.
    #[inline]
    pub(super) fn begin_at_once(&self) -> Option<Admission> {
        let word = self.anchor.cell().word();
        if self.count == Count::Own && word.lets_all_through() {
            Some(Admission::plain(Arc::clone(&self.anchor), word))
        } else {
            None
        }
    }

    pub(super) fn would_serve(&self) -> Result<Server, Denied> {
        would_serve(self.anchor.cell())
    }

    /// Who serves instead of `server` if that is not ready: the first live entry, when a probe is due.
    pub(super) fn stand_in(&self, server: Server) -> Option<usize> {
        if server != Server::Primary(Role::Probe) {
            return None;
        }
        let cell = self.anchor.cell();
        let now = cell.now();
        cell.look(|chain, _, rules| chain.live_from(rules, now, 0))
    }

    /// The gate: begins a turn.
    pub(super) fn begin(&mut self, readied: Readied) -> Result<Admission, Denied> {
        let cell = self.anchor.cell();
        if readied == Readied::Primary {
            if let Some(ticket) = Chain::glance(cell.word()) {
                return Ok(Admission::new(self.hold(), ticket));
            }
        }
        let now = cell.now();
        let ticket = cell.step(|chain, rules, notes| chain.begin(rules, now, readied, notes))?;
        Ok(Admission::new(self.hold(), ticket))
    }

    /// What becomes of a turn that the gate denies.
    pub(super) fn refuse(&self, denied: Denied) -> Refusal {
        let cell = self.anchor.cell();
        let refusal = denied.refusal(Refusal::fallback, cell.name().cloned());
        if cell.observed() {
            cell.tell(&Event::Refused {
                refusal: &refusal,
                observe_only: false,
            });
        }
        refusal
    }

    /// A service failed to become ready: a failed turn of the one that it would have served.
    pub(super) fn readiness_failed(&mut self, server: Server, failure: Failure) {
        let readied = match server {
            Server::Primary(_) => Readied::Primary,
            Server::Entry(entry) => Readied::Entry(entry),
        };
        if let Ok(mut admission) = self.begin(readied) {
            match (server, admission.server()) {
                // Another turn took the probe, or the primary tripped: no turn of it began.
                (Server::Primary(_), Server::Entry(_)) => admission.discard(),
                _ => {
                    admission.record(failure.into());
                }
            }
        }
    }

    /// Has `cx` woken at every transition, and at every change of an entry's liveness.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) {
        self.anchor.cell().wait(&mut self.waiter, cx);
    }

    /// The anchor for one more permit.
    fn hold(&mut self) -> ChainAnchor {
        self.count.hold(&mut self.anchor)
    }
}

/// New clones carry no place among those who wait, and share the count until they are called twice.
impl Clone for Gate {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.anchor))
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.anchor.fmt(f)
    }
}
