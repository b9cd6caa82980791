//! What an admitted turn carries until its verdict.

use std::fmt;
use std::mem;

use super::chain::{Chain, Role, Server, Since, Ticket};
use crate::cell::{Anchor, Cell};
use crate::clock::Moment;
use crate::event::Event;
use crate::machine::Word;
use crate::outcome::{Failure, Outcome, Recorded};
use crate::refusal::Name;
use crate::sync::Arc;

/// The permit inside a future or a body of ours. Dropped without a verdict it is a cancelled turn.
///
/// It is empty, and records nothing, once its verdict is given.
pub struct Admission {
    anchor: Option<Arc<Anchor<Chain>>>,
    /// When it was admitted, if a verdict may depend on how long the turn ran.
    started: Moment,
    ticket: Ticket,
}

impl Admission {
    pub(super) fn new(anchor: Arc<Anchor<Chain>>, ticket: Ticket) -> Self {
        let cell = anchor.cell();
        let started = if cell.rules().on_cancel.is_timed() {
            cell.now()
        } else {
            Moment::START
        };
        Self {
            anchor: Some(anchor),
            started,
            ticket,
        }
    }

    /// The permit of a turn that `word` sends to the primary with all others.
    #[inline]
    pub(super) fn plain(anchor: Arc<Anchor<Chain>>, word: Word) -> Self {
        Self {
            anchor: Some(anchor),
            started: Moment::START,
            ticket: Ticket::ordinary(word),
        }
    }

    #[inline]
    pub(super) fn none() -> Self {
        Self {
            anchor: None,
            started: Moment::START,
            ticket: Ticket {
                since: Since::new(0, 0),
                server: Server::Primary(Role::Aside),
            },
        }
    }

    /// Takes it out; an empty one stays.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::none())
    }

    pub(super) fn server(&self) -> Server {
        self.ticket.server
    }

    /// The name of who serves; `None` once the verdict is given.
    #[inline]
    pub(super) fn name(&self) -> Option<&str> {
        let anchor = self.anchor.as_ref()?;
        Some(anchor.cell().rules().name(self.ticket.server))
    }

    /// Gives the verdict of a success, if it changes nothing and nobody is to hear of it: what nearly every turn of the primary comes to. To be asked for a turn through the
    /// primary's service alone: a turn that a backup serves may be of the same generation.
    #[inline]
    pub(super) fn pass(&mut self) -> Option<Passed> {
        let cell = self.anchor.as_ref()?.cell();
        // In a generation that is clean nobody but the primary serves through its service, and every turn of it is an ordinary one.
        if cell.word().is_clean_in(self.ticket.since.generation()) {
            self.anchor.take().map(Passed)
        } else {
            None
        }
    }

    /// The turn shows a sign of life: the lease of a probe starts anew.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) fn renew(&self) {
        if let (Some(anchor), Server::Primary(Role::Probe)) = (&self.anchor, self.ticket.server) {
            let cell = anchor.cell();
            cell.renew(|word, until, now| {
                Chain::renewed(word, until, self.ticket, cell.rules(), now)
            });
        }
    }

    /// Gives the verdict, once.
    pub(crate) fn record(&mut self, outcome: Outcome) -> Option<Settled> {
        let anchor = self.anchor.take()?;
        settle(anchor.cell(), self.ticket, outcome);
        let server = self.ticket.server;
        Some(Settled { anchor, server })
    }

    /// The verdict of a turn that panicked.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self) {
        self.record(Failure::transient().into());
    }

    /// The turn did not begin after all.
    pub(super) fn discard(mut self) {
        self.anchor = None;
    }

    /// The verdict of a turn that was dropped, by the rule for such turns.
    #[cold]
    #[inline(never)]
    pub(super) fn cancel(&mut self) {
        if let Some(anchor) = self.anchor.take() {
            let cell = anchor.cell();
            let ran = || cell.now().since(self.started);
            if let Some(outcome) = cell.rules().on_cancel.judge(ran) {
                settle(cell, self.ticket, outcome);
            }
        }
    }
}

fn settle(cell: &Cell<Chain>, ticket: Ticket, outcome: Outcome) {
    let rules = cell.rules();
    if cell.update(|word| Chain::shortcut(word, ticket, outcome, rules)) {
        return;
    }
    let now = cell.now();
    let recorded =
        cell.step(|chain, rules, notes| chain.record(rules, now, ticket, outcome, notes));
    if recorded == Recorded::Stale && cell.observed() {
        cell.tell(&Event::LateVerdict {
            name: Some(rules.name(ticket.server)),
            generation: ticket.since.generation(),
            outcome,
        });
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
            .field("generation", &self.ticket.since.generation())
            .field("server", &self.ticket.server)
            .finish()
    }
}

/// A turn of the primary that passed.
pub(super) struct Passed(Arc<Anchor<Chain>>);

impl Passed {
    /// The name of who served.
    #[inline]
    pub(super) fn name(&self) -> &str {
        &self.0.cell().rules().primary
    }
}

/// An attempt whose verdict is given.
pub(crate) struct Settled {
    anchor: Arc<Anchor<Chain>>,
    server: Server,
}

impl Settled {
    /// The name of who served.
    pub(super) fn name(&self) -> &str {
        self.anchor.cell().rules().name(self.server)
    }

    /// Tells the observers that the turn is over.
    pub(crate) fn tell(&self, outcome: Outcome) {
        let cell = self.anchor.cell();
        if cell.observed() {
            cell.tell(&Event::Served {
                name: cell.name().map(Name::as_str),
                by: self.name(),
                outcome,
            });
        }
    }

    /// The next live entry, and its ticket.
    pub(super) fn go_on(&self) -> Option<(usize, Ticket)> {
        let cell = self.anchor.cell();
        let now = cell.now();
        let ticket = cell.look(|chain, _, rules| chain.go_on(rules, now, self.server))?;
        match ticket.server {
            Server::Entry(entry) => Some((entry, ticket)),
            Server::Primary(_) => None,
        }
    }

    pub(super) fn name_of(&self, ticket: Ticket) -> &str {
        self.anchor.cell().rules().name(ticket.server)
    }

    /// A permit for the attempt after this.
    pub(super) fn admit(self, ticket: Ticket) -> Admission {
        Admission::new(self.anchor, ticket)
    }

    /// Tells the observers that the turn goes on.
    pub(super) fn tell_moved_on(&self, to: Ticket) {
        let cell = self.anchor.cell();
        if cell.observed() {
            cell.tell(&Event::MovedOn {
                name: cell.name().map(Name::as_str),
                from: self.name(),
                to: self.name_of(to),
            });
        }
    }
}
