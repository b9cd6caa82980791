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
use crate::vocabulary::{Event, Failure, Name, Refusal};

type ChainRef = Arc<MachineRef<Chain>>;

/// A service's hold on its chain.
pub(super) struct Gate {
    machine_ref: ChainRef,
    waiter: Option<WaiterGuard>,
    /// Whose reference count `machine_ref` holds.
    owner: RefOwner,
}

/// The oracle. It reads no clock in state Primary.
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
            owner: RefOwner::Shared,
        }
    }

    /// A gate with a chain of its own.
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

    /// Whether the packed state alone sends every turn to the primary.
    #[inline]
    pub(super) fn admits_all(&self) -> bool {
        self.machine_ref.machine().packed().admits_all()
    }

    /// The gate for a turn of the primary. `None` if the packed state alone does not decide.
    #[inline]
    pub(super) fn begin_lock_free(&self) -> Option<CallPermit> {
        let packed = self.machine_ref.machine().packed();
        if self.owner == RefOwner::Own && packed.admits_all() {
            Some(CallPermit::plain(Arc::clone(&self.machine_ref), packed))
        } else {
            None
        }
    }

    pub(super) fn would_serve(&self) -> Result<Server, Denied> {
        would_serve(self.machine_ref.machine())
    }

    /// The entry that serves instead if `server` is not ready: the first live one, when a probe is
    /// due.
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

    /// Makes the refusal of a turn that the gate denied, and tells the observers.
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

    /// Counts a service that failed to become ready as a failed turn of `server`.
    pub(super) fn readiness_failed(&mut self, server: Server, failure: Failure) {
        let readied = match server {
            Server::Primary(_) => Readied::Primary,
            Server::Entry(entry) => Readied::Entry(entry),
        };
        if let Ok(mut permit) = self.begin(readied) {
            match (server, permit.server()) {
                // Another turn took the probe, or the primary tripped. Therefore no turn of the
                // primary began.
                (Server::Primary(_), Server::Entry(_)) => permit.discard(),
                _ => {
                    permit.record(failure.into());
                }
            }
        }
    }

    /// Registers `cx` to be woken at every transition, and whenever an entry may have become live
    /// or failed.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) {
        self.machine_ref.machine().wait(&mut self.waiter, cx);
    }

    /// A counted reference for one more permit.
    fn hold(&mut self) -> ChainRef {
        self.owner.hold(&mut self.machine_ref)
    }
}

/// New clones are not registered as waiters. They share the reference count until they are called
/// twice.
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
