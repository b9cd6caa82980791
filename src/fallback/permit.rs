//! The permit that an admitted turn carries until its verdict.

use std::fmt;
use std::mem;

use super::chain::{Chain, Role, Server, Since, Ticket};
use crate::machinery::clock::Timestamp;
#[cfg(feature = "http")]
use crate::machinery::held_permit::{ErasedTicket, HeldPermit, PermitIssuer};
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::Event;
use crate::vocabulary::Name;
use crate::vocabulary::{Failure, Outcome, Recorded};

/// The permit inside a future of this crate. Dropped without a verdict, it is a cancelled turn.
///
/// It is empty once its verdict is given. An empty permit records nothing.
pub(crate) struct CallPermit {
    machine_ref: Option<Arc<MachineRef<Chain>>>,
    /// When the turn was admitted, if a verdict may depend on how long it ran.
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

    /// The permit of a turn while `packed` sends all turns to the primary.
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
                server: Server::Primary(Role::Uncounted),
            },
        }
    }

    /// Takes the permit out, and leaves an empty one.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::none())
    }

    pub(super) fn server(&self) -> Server {
        self.ticket.server
    }

    /// The name of the model that serves; `None` once the verdict is given.
    #[inline]
    pub(super) fn name(&self) -> Option<&str> {
        let machine_ref = self.machine_ref.as_ref()?;
        Some(machine_ref.machine().rules().name(self.ticket.server))
    }

    /// Gives the verdict of a success, if it changes nothing and no observer has to hear of it.
    /// Nearly every turn of the primary ends here.
    ///
    /// The caller asks it only for a turn through the primary's service: a turn that a backup
    /// serves may have the same generation.
    #[inline]
    pub(super) fn pass(&mut self) -> Option<Passed> {
        let machine = self.machine_ref.as_ref()?.machine();
        // In a clean generation only the primary serves through its service, and all its turns are
        // ordinary ones.
        if machine.packed().is_clean_in(self.ticket.since.generation()) {
            self.machine_ref.take().map(Passed)
        } else {
            None
        }
    }

    /// Hands the call over to a permit that a response body can hold.
    #[cfg(feature = "http")]
    pub(super) fn hand_over(&mut self) -> HeldPermit {
        let ticket = erased(self.ticket, self.started);
        let issuer = self.machine_ref.take();
        HeldPermit::new(issuer.map(|issuer| issuer as Arc<dyn PermitIssuer>), ticket)
    }

    /// Gives the verdict, once.
    pub(super) fn record(&mut self, outcome: Outcome) -> Option<Settled> {
        let machine_ref = self.machine_ref.take()?;
        settle(machine_ref.machine(), self.ticket, outcome);
        let server = self.ticket.server;
        Some(Settled {
            machine_ref,
            server,
        })
    }

    /// Gives the verdict of a turn that panicked.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self) {
        self.record(Failure::transient().into());
    }

    /// Throws the permit away: its turn did not begin.
    pub(super) fn discard(mut self) {
        self.machine_ref = None;
    }

    /// Gives the verdict of a turn that was dropped, by the layer's `on_cancel`.
    #[cold]
    #[inline(never)]
    pub(super) fn cancel(&mut self) {
        if let Some(machine_ref) = self.machine_ref.take() {
            cancel_in(machine_ref.machine(), self.started, self.ticket);
        }
    }
}

/// Records that a turn was dropped which was admitted at `started`.
fn cancel_in(machine: &SharedMachine<Chain>, started: Timestamp, ticket: Ticket) {
    let ran = || machine.now().duration_since(started);
    if let Some(outcome) = machine.rules().on_cancel.judge(ran) {
        settle(machine, ticket, outcome);
    }
}

/// Records an attempt's outcome.
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

#[cfg(feature = "http")]
impl PermitIssuer for MachineRef<Chain> {
    fn record(&self, ticket: &ErasedTicket, outcome: Outcome) {
        let ticket = Ticket::from(ticket);
        settle(self.machine(), ticket, outcome);
        tell_served(self.machine(), ticket.server, outcome);
    }

    fn cancel(&self, ticket: &ErasedTicket) {
        cancel_in(self.machine(), started(ticket), ticket.into());
    }

    fn renew(&self, ticket: &ErasedTicket) {
        let (machine, ticket) = (self.machine(), Ticket::from(ticket));
        machine.renew(|packed, deadline, now| {
            Chain::renewed(packed, deadline, ticket, machine.rules(), now)
        });
    }
}

/// The last part of an erased ticket says who serves. These two numbers stand for the primary, and
/// every other one is an entry's index. The probe has a flag of its own.
#[cfg(feature = "http")]
const ORDINARY: u64 = u64::MAX;
#[cfg(feature = "http")]
const UNCOUNTED: u64 = u64::MAX - 1;

#[cfg(feature = "http")]
fn erased(Ticket { since, server }: Ticket, started: Timestamp) -> ErasedTicket {
    let serves = match server {
        Server::Primary(Role::Ordinary | Role::Probe) => ORDINARY,
        Server::Primary(Role::Uncounted) => UNCOUNTED,
        Server::Entry(entry) => entry as u64,
    };
    let since = u64::from(since.generation()) << 32 | u64::from(since.epoch());
    ErasedTicket {
        parts: [since, started.as_nanos(), serves],
        is_probe: server == Server::Primary(Role::Probe),
    }
}

#[cfg(feature = "http")]
fn started(ticket: &ErasedTicket) -> Timestamp {
    Timestamp::from_nanos(ticket.parts[1])
}

#[cfg(feature = "http")]
impl From<&ErasedTicket> for Ticket {
    fn from(ticket: &ErasedTicket) -> Self {
        let [since, _, serves] = ticket.parts;
        // Two halves of 32 bits each, and an entry's index.
        #[allow(clippy::cast_possible_truncation)]
        let (since, entry) = (
            Since::new((since >> 32) as u32, since as u32),
            serves as usize,
        );
        let serving = match serves {
            ORDINARY if ticket.is_probe => Server::Primary(Role::Probe),
            ORDINARY => Server::Primary(Role::Ordinary),
            UNCOUNTED => Server::Primary(Role::Uncounted),
            _ => Server::Entry(entry),
        };
        Self {
            since,
            server: serving,
        }
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

/// Tells the observers that a turn which `server` served is over.
fn tell_served(machine: &SharedMachine<Chain>, server: Server, outcome: Outcome) {
    if machine.observed() {
        machine.tell(&Event::Served {
            name: machine.name().map(Name::as_str),
            by: machine.rules().name(server),
            outcome,
        });
    }
}

/// A turn of the primary that succeeded and changed nothing.
pub(super) struct Passed(Arc<MachineRef<Chain>>);

impl Passed {
    /// The primary's name.
    #[inline]
    pub(super) fn name(&self) -> &str {
        &self.0.machine().rules().primary
    }
}

/// An attempt whose verdict is given.
pub(super) struct Settled {
    machine_ref: Arc<MachineRef<Chain>>,
    server: Server,
}

impl Settled {
    /// The name of the model that served.
    pub(super) fn name(&self) -> &str {
        self.machine_ref.machine().rules().name(self.server)
    }

    /// Tells the observers that the turn is over.
    pub(super) fn tell(&self, outcome: Outcome) {
        tell_served(self.machine_ref.machine(), self.server, outcome);
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

    /// The permit of the next attempt.
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
