//! Counted references to a shared machine.
//!
//! Every permit holds one. The `Arc` count of a [`MachineRef`] says how many calls are in flight.

use std::fmt;

use crate::machinery::machine::Machine;
use crate::machinery::shared_machine::SharedMachine;
use crate::machinery::sync::Arc;

/// A counted reference to a shared machine.
///
/// A service that is called more than once makes a `MachineRef` of its own. Two threads that have
/// a clone of the service each then write to different counts. The alignment puts these counts on
/// different cache lines.
#[repr(align(64))]
pub(crate) struct MachineRef<M: Machine> {
    machine: Arc<SharedMachine<M>>,
}

impl<M: Machine> MachineRef<M> {
    pub(crate) fn new(machine: SharedMachine<M>) -> Self {
        Self {
            machine: Arc::new(machine),
        }
    }

    /// Makes another reference to the same machine, with a count of its own.
    pub(crate) fn with_own_count(&self) -> Self {
        Self {
            machine: Arc::clone(&self.machine),
        }
    }

    #[inline]
    pub(crate) fn machine(&self) -> &SharedMachine<M> {
        &self.machine
    }
}

impl<M: Machine> fmt::Debug for MachineRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.fmt(f)
    }
}

/// Whose reference count a service uses.
///
/// A count of its own costs an allocation. A service makes one when it is called for the second
/// time, so a clone that serves a single request pays nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefOwner {
    /// It uses the count of the layer, or of the service that it was cloned from. It was not
    /// called yet.
    Shared,
    /// The same, but it was called once.
    SharedOnce,
    /// It uses a count of its own.
    Own,
}

impl RefOwner {
    /// Returns the reference for one more permit of a service. `machine_ref` is the reference that
    /// the service keeps, and `self` says whose it is.
    pub(crate) fn hold<M: Machine>(
        &mut self,
        machine_ref: &mut Arc<MachineRef<M>>,
    ) -> Arc<MachineRef<M>> {
        match self {
            RefOwner::Shared => *self = RefOwner::SharedOnce,
            RefOwner::SharedOnce => {
                *machine_ref = Arc::new(machine_ref.with_own_count());
                *self = RefOwner::Own;
            }
            RefOwner::Own => {}
        }
        Arc::clone(machine_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machinery::test_machine::machine_ref;

    #[test]
    fn a_reference_with_a_count_of_its_own_leads_to_the_same_machine() {
        let shared = machine_ref();
        let own = shared.with_own_count().with_own_count();
        assert!(std::ptr::eq(own.machine(), shared.machine()));
        assert_eq!(format!("{own:?}"), format!("{:?}", shared.machine()));
        assert_eq!(
            format!("{own:?}"),
            format!(
                "SharedMachine {{ name: Some(Static(\"test\")), packed: {:?}, .. }}",
                shared.machine().packed()
            )
        );
    }

    #[test]
    fn a_service_gets_a_count_of_its_own_when_it_is_called_for_the_second_time() {
        let shared = machine_ref();
        let mut kept = Arc::clone(&shared);
        let mut owner = RefOwner::Shared;
        let first = owner.hold(&mut kept);
        assert_eq!(owner, RefOwner::SharedOnce);
        assert!(Arc::ptr_eq(&first, &shared));
        for _ in 0..2 {
            let next = owner.hold(&mut kept);
            assert_eq!(owner, RefOwner::Own);
            assert!(Arc::ptr_eq(&next, &kept) && !Arc::ptr_eq(&next, &shared));
            assert!(std::ptr::eq(next.machine(), shared.machine()));
        }
        drop(first);
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
