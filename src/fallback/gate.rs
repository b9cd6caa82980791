//! How a service asks its chain.

use std::fmt;
use std::sync::Arc as StdArc;
use std::task::Context;

use super::chain::{Chain, Readied, Role, Rules, Server};
use super::permit::CallPermit;
use crate::machinery::denied::Denied;
use crate::machinery::shared_machine::{
    Environment, MachineRef, RefOwner, SharedMachine, WaiterGuard,
};
use crate::machinery::sync::Arc;
use crate::vocabulary::Event;
use crate::vocabulary::Failure;
use crate::vocabulary::{Name, Refusal};

type ChainRef = Arc<MachineRef<Chain>>;

/// A service's hold on its chain.
pub(super) struct Gate {
    machine_ref: ChainRef,
    waiter: Option<WaiterGuard>,
    /// Whose count `anchor` is.
    count: RefOwner,
}

/// The oracle. It reads no clock while the primary serves.
pub(super) fn would_serve(machine: &SharedMachine<Chain>) -> Result<Server, Denied> {
    if let Some(ticket) = Chain::begin_lock_free(machine.packed()) {
        return Ok(ticket.server);
    }
    let now = machine.now();
    machine.read(|chain, _, rules| chain.would_serve(rules, now))
}

impl Gate {
    fn new(machine_ref: ChainRef) -> Self {
        Self {
            machine_ref,
            waiter: None,
            count: RefOwner::Shared,
        }
    }

    /// A chain of its own.
    pub(super) fn made(mut environment: Environment<Rules>) -> Self {
        environment.rules.observed = !environment.observers.is_empty();
        let chain = Chain::new(&environment.rules);
        let name = Name::Shared(StdArc::clone(&environment.rules.primary));
        let machine = SharedMachine::new(chain, Some(name), Arc::new(environment));
        Self::new(Arc::new(MachineRef::new(machine)))
    }

    pub(super) fn machine_ref(&self) -> &ChainRef {
        &self.machine_ref
    }

    /// Whether the word alone sends every turn to the primary.
    #[inline]
    pub(super) fn admits_all(&self) -> bool {
        self.machine_ref.machine().packed().admits_all()
    }

    /// The gate for a turn of the primary, where the word alone decides.
    #[inline]
    pub(super) fn begin_at_once(&self) -> Option<CallPermit> {
        let packed = self.machine_ref.machine().packed();
        if self.count == RefOwner::Own && packed.admits_all() {
            Some(CallPermit::plain(Arc::clone(&self.machine_ref), packed))
        } else {
            None
        }
    }

    pub(super) fn would_serve(&self) -> Result<Server, Denied> {
        would_serve(self.machine_ref.machine())
    }

    /// Who serves instead of `server` if that is not ready: the first live entry, when a probe is due.
    pub(super) fn stand_in(&self, server: Server) -> Option<usize> {
        if server != Server::Primary(Role::Probe) {
            return None;
        }
        let machine = self.machine_ref.machine();
        let now = machine.now();
        machine.read(|chain, _, rules| chain.live_from(rules, now, 0))
    }

    /// The gate: begins a turn.
    pub(super) fn begin(&mut self, readied: Readied) -> Result<CallPermit, Denied> {
        let machine = self.machine_ref.machine();
        if readied == Readied::Primary {
            if let Some(ticket) = Chain::begin_lock_free(machine.packed()) {
                return Ok(CallPermit::new(self.hold(), ticket));
            }
        }
        let now = machine.now();
        let ticket =
            machine.step(|chain, rules, events| chain.begin(rules, now, readied, events))?;
        Ok(CallPermit::new(self.hold(), ticket))
    }

    /// What becomes of a turn that the gate denies.
    pub(super) fn refuse(&self, denied: Denied) -> Refusal {
        let machine = self.machine_ref.machine();
        let refusal = denied.refusal(Refusal::fallback, machine.name().cloned());
        if machine.observed() {
            machine.tell(&Event::Refused {
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
        if let Ok(mut permit) = self.begin(readied) {
            match (server, permit.server()) {
                // Another turn took the probe, or the primary tripped: no turn of it began.
                (Server::Primary(_), Server::Entry(_)) => permit.discard(),
                _ => {
                    permit.record(failure.into());
                }
            }
        }
    }

    /// Has `cx` woken at every transition, and at every change of an entry's liveness.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) {
        self.machine_ref.machine().wait(&mut self.waiter, cx);
    }

    /// The anchor for one more permit.
    fn hold(&mut self) -> ChainRef {
        self.count.hold(&mut self.machine_ref)
    }
}

/// New clones carry no place among those who wait, and share the count until they are called twice.
impl Clone for Gate {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.machine_ref))
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine_ref.fmt(f)
    }
}
