//! What an admitted turn carries until its verdict.

use std::fmt;
use std::mem;

use super::chain::{Chain, Role, Server, Since, Ticket};
use crate::machinery::clock::Timestamp;
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::Event;
use crate::vocabulary::Name;
use crate::vocabulary::{Failure, Outcome, Recorded};

/// The permit inside a future or a body of ours. Dropped without a verdict it is a cancelled turn.
///
/// It is empty, and records nothing, once its verdict is given.
pub struct CallPermit {
    machine_ref: Option<Arc<MachineRef<Chain>>>,
    /// When it was admitted, if a verdict may depend on how long the turn ran.
    started: Timestamp,
    ticket: Ticket,
}

impl CallPermit {
    pub(super) fn new(machine_ref: Arc<MachineRef<Chain>>, ticket: Ticket) -> Self {
        let machine = machine_ref.machine();
        let started = if machine.rules().on_cancel.is_timed() {
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

    /// The permit of a turn that `word` sends to the primary with all others.
    #[inline]
    pub(super) fn plain(machine_ref: Arc<MachineRef<Chain>>, packed: PackedState) -> Self {
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
        let machine_ref = self.machine_ref.as_ref()?;
        Some(machine_ref.machine().rules().name(self.ticket.server))
    }

    /// Gives the verdict of a success, if it changes nothing and nobody is to hear of it: what nearly every turn of the primary comes to. To be asked for a turn through the
    /// primary's service alone: a turn that a backup serves may be of the same generation.
    #[inline]
    pub(super) fn pass(&mut self) -> Option<Passed> {
        let machine = self.machine_ref.as_ref()?.machine();
        // In a generation that is clean nobody but the primary serves through its service, and every turn of it is an ordinary one.
        if machine.packed().is_clean_in(self.ticket.since.generation()) {
            self.machine_ref.take().map(Passed)
        } else {
            None
        }
    }

    /// The turn shows a sign of life: the lease of a probe starts anew.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) fn renew(&self) {
        if let (Some(machine_ref), Server::Primary(Role::Probe)) =
            (&self.machine_ref, self.ticket.server)
        {
            let machine = machine_ref.machine();
            machine.renew(|packed, deadline, now| {
                Chain::renewed(packed, deadline, self.ticket, machine.rules(), now)
            });
        }
    }

    /// Gives the verdict, once.
    pub(crate) fn record(&mut self, outcome: Outcome) -> Option<Settled> {
        let machine_ref = self.machine_ref.take()?;
        settle(machine_ref.machine(), self.ticket, outcome);
        let server = self.ticket.server;
        Some(Settled {
            machine_ref,
            server,
        })
    }

    /// The verdict of a turn that panicked.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self) {
        self.record(Failure::transient().into());
    }

    /// The turn did not begin after all.
    pub(super) fn discard(mut self) {
        self.machine_ref = None;
    }

    /// The verdict of a turn that was dropped, by the rule for such turns.
    #[cold]
    #[inline(never)]
    pub(super) fn cancel(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            let machine = machine_ref.machine();
            let ran = || machine.now().duration_since(self.started);
            if let Some(outcome) = machine.rules().on_cancel.judge(ran) {
                settle(machine, self.ticket, outcome);
            }
        }
    }
}

fn settle(machine: &SharedMachine<Chain>, ticket: Ticket, outcome: Outcome) {
    let rules = machine.rules();
    if machine.update(|packed| Chain::record_lock_free(packed, ticket, outcome, rules)) {
        return;
    }
    let now = machine.now();
    let recorded =
        machine.step(|chain, rules, events| chain.record(rules, now, ticket, outcome, events));
    if recorded == Recorded::Stale && machine.observed() {
        machine.tell(&Event::LateVerdict {
            name: Some(rules.name(ticket.server)),
            generation: ticket.since.generation(),
            outcome,
        });
    }
}

impl Drop for CallPermit {
    #[inline]
    fn drop(&mut self) {
        if self.machine_ref.is_some() {
            self.cancel();
        }
    }
}

impl fmt::Debug for CallPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("generation", &self.ticket.since.generation())
            .field("server", &self.ticket.server)
            .finish()
    }
}

/// A turn of the primary that passed.
pub(super) struct Passed(Arc<MachineRef<Chain>>);

impl Passed {
    /// The name of who served.
    #[inline]
    pub(super) fn name(&self) -> &str {
        &self.0.machine().rules().primary
    }
}

/// An attempt whose verdict is given.
pub(crate) struct Settled {
    machine_ref: Arc<MachineRef<Chain>>,
    server: Server,
}

impl Settled {
    /// The name of who served.
    pub(super) fn name(&self) -> &str {
        self.machine_ref.machine().rules().name(self.server)
    }

    /// Tells the observers that the turn is over.
    pub(crate) fn tell(&self, outcome: Outcome) {
        let machine = self.machine_ref.machine();
        if machine.observed() {
            machine.tell(&Event::Served {
                name: machine.name().map(Name::as_str),
                by: self.name(),
                outcome,
            });
        }
    }

    /// The next live entry, and its ticket.
    pub(super) fn go_on(&self) -> Option<(usize, Ticket)> {
        let machine = self.machine_ref.machine();
        let now = machine.now();
        let ticket = machine.read(|chain, _, rules| chain.go_on(rules, now, self.server))?;
        match ticket.server {
            Server::Entry(entry) => Some((entry, ticket)),
            Server::Primary(_) => None,
        }
    }

    pub(super) fn name_of(&self, ticket: Ticket) -> &str {
        self.machine_ref.machine().rules().name(ticket.server)
    }

    /// A permit for the attempt after this.
    pub(super) fn admit(self, ticket: Ticket) -> CallPermit {
        CallPermit::new(self.machine_ref, ticket)
    }

    /// Tells the observers that the turn goes on.
    pub(super) fn tell_moved_on(&self, to: Ticket) {
        let machine = self.machine_ref.machine();
        if machine.observed() {
            machine.tell(&Event::MovedOn {
                name: machine.name().map(Name::as_str),
                from: self.name(),
                to: self.name_of(to),
            });
        }
    }
}
