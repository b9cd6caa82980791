//! The gate of a layer with one fence.

use std::fmt;
use std::task::{Context, Poll};

use super::{
    FenceRef, Gate, Renew, acquire, acquire_fast, deny, now_of, refuse_if_none_allowed,
    would_allow_some,
};
use crate::machinery::shared_machine::{
    Environment, MachineRef, RefOwner, Retired, SharedMachine, WaiterGuard,
};
use crate::machinery::sync::Arc;
use crate::tripwire::fence::{CallFacts, Denied, Fence, Rules};
use crate::tripwire::permit::CallPermit;
use crate::tripwire::reader::Read;
use crate::vocabulary::{FailureKind, Name, Refusal};

/// One fence for all calls: one run.
pub struct One {
    machine_ref: FenceRef,
    waiter: Option<WaiterGuard>,
    ready: Readiness,
    /// Whose reference count `machine_ref` is.
    ref_owner: RefOwner,
}

/// The result of the last `poll_ready`, for the one call after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Unknown,
    Ready,
    Refused,
}

impl One {
    /// A gate with a new fence.
    pub(in crate::tripwire) fn create(
        environment: &Arc<Environment<Rules>>,
        name: Option<&Name>,
    ) -> Self {
        let fence = Fence::new(&environment.rules);
        let machine = SharedMachine::new(fence, name.cloned(), Arc::clone(environment));
        Self::new(Arc::new(MachineRef::new(machine)))
    }

    fn new(machine_ref: FenceRef) -> Self {
        Self {
            machine_ref,
            waiter: None,
            ready: Readiness::Unknown,
            ref_owner: RefOwner::Shared,
        }
    }

    pub(in crate::tripwire) fn machine_ref(&self) -> &FenceRef {
        &self.machine_ref
    }

    /// The reference for one more permit.
    #[inline]
    fn hold(&mut self) -> FenceRef {
        if self.ref_owner == RefOwner::Own {
            Arc::clone(&self.machine_ref)
        } else {
            self.hold_early()
        }
    }

    /// Does what [`hold`](Self::hold) does while the service has no reference count of its own.
    #[cold]
    fn hold_early(&mut self) -> FenceRef {
        self.ref_owner.hold(&mut self.machine_ref)
    }

    /// The gate's slow path.
    #[cold]
    fn admit_slow(&mut self, facts: &CallFacts) -> Result<CallPermit, Denied> {
        match acquire(self.machine_ref.machine(), facts) {
            Ok(Ok(ticket)) => Ok(CallPermit::new(self.hold(), ticket)),
            Ok(Err(denied)) => Err(denied),
            // A fence outside a store is never evicted.
            Err(Retired) => Err(Denied::NOT_READY),
        }
    }

    /// Refuses a call whose inner service is not ready.
    ///
    /// If some call would be let through by now, this one is neither admitted nor counted.
    #[cold]
    fn refuse(&self, ready: Readiness) -> Denied {
        match ready {
            Readiness::Refused => match refuse_if_none_allowed(self.machine_ref.machine()) {
                Ok(Some(denied)) => denied,
                Ok(None) | Err(Retired) => Denied::NOT_READY,
            },
            Readiness::Unknown | Readiness::Ready => Denied::NOT_READY,
        }
    }
}

impl Clone for One {
    fn clone(&self) -> Self {
        // New clones shouldn't carry the readiness state, nor the waiter. A clone gets a
        // reference count of its own once it is called again.
        Self::new(Arc::clone(&self.machine_ref))
    }
}

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One")
            .field("fence", &self.machine_ref)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Renew for One {
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>) -> Self {
        Self::create(environment, name)
    }
}

impl<Req> Gate<Req> for One {
    fn ask(&mut self) -> bool {
        let machine = self.machine_ref.machine();
        let allowed = would_allow_some(machine) || machine.rules().observe_only;
        self.ready = if allowed {
            Readiness::Unknown
        } else {
            Readiness::Refused
        };
        allowed
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.machine_ref.machine().wait(&mut self.waiter, cx);
        // A transition before the waker was registered has woken nobody, so ask again.
        if Gate::<Req>::ask(self) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn readied(&mut self) {
        self.ready = Readiness::Ready;
    }

    fn readiness_failed(&mut self, kind: FailureKind) {
        let machine = self.machine_ref.machine();
        let now = now_of(machine);
        machine.step(|fence, rules, events| fence.readiness_failed(rules, now, kind, events));
    }

    #[inline]
    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<CallPermit, Refusal> {
        let denied = match std::mem::replace(&mut self.ready, Readiness::Unknown) {
            Readiness::Ready => {
                let facts = reader.read(req);
                if let Some(ticket) = acquire_fast(self.machine_ref.machine(), &facts) {
                    return Ok(CallPermit::new(self.hold(), ticket));
                }
                match self.admit_slow(&facts) {
                    Ok(permit) => return Ok(permit),
                    Err(denied) => denied,
                }
            }
            ready => self.refuse(ready),
        };
        let machine = self.machine_ref.machine();
        deny(machine.rules(), machine.observers(), denied, || {
            reader.name_of(req).or_else(|| machine.name().cloned())
        })
    }
}
