//! How the store takes a machine out of use.
//!
//! A call is in flight while anybody but the store holds a reference to the machine.
//!
//! - A caller first takes a reference, and then looks at the packed state.
//! - The store first marks the packed state as busy, and then counts the references.
//!
//! Each side has a [`full_fence`] between its two actions, so at least one of them sees the other.
//! Either the caller sees the mark, and comes to the lock to learn whether the machine is still in
//! use; or the store counts the caller.

use super::SharedMachine;
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::machine_ref::MachineRef;
use crate::machinery::sync::{Arc, Ordering, fence, lock};

/// The machine was evicted or forgotten after the caller had looked it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired;

/// Whether the store could evict a machine, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retirement {
    /// It is gone for good.
    Done { clean: bool },
    /// It could go, but it is not clean.
    Unclean,
    /// A call is in flight.
    InUse,
    /// It is live, at least until this deadline if nobody calls.
    Live(Timestamp),
}

impl<M: Machine> SharedMachine<M> {
    /// Evicts a machine that is not live and has no call in flight. It must also be clean, unless
    /// `accept_unclean` is set.
    ///
    /// `store_refs` says how many references the store itself holds.
    pub(crate) fn retire(
        this: &Arc<MachineRef<M>>,
        store_refs: usize,
        accept_unclean: bool,
        now: Timestamp,
    ) -> Retirement {
        let machine = this.machine();
        let mut inside = lock(&machine.inside);
        let (_, old_deadline) = machine.mark_busy(&mut inside);
        full_fence();
        let retirement = if Arc::strong_count(this) > store_refs {
            Retirement::InUse
        } else {
            let rules = &machine.environment.rules;
            let retention = inside.machine.retention(rules, now);
            match retention {
                Retention::Live => Retirement::Live(inside.machine.live_until(rules, now)),
                Retention::Unclean if !accept_unclean => Retirement::Unclean,
                Retention::Clean | Retention::Unclean => {
                    inside.retired = true;
                    let clean = retention == Retention::Clean;
                    Retirement::Done { clean }
                }
            }
        };
        machine.publish(&inside, old_deadline);
        retirement
    }

    /// Takes the machine out of use for good, whatever its state.
    pub(crate) fn retire_now(&self) {
        self.step_inside(|inside, _| inside.retired = true);
    }
}

/// Stands between the two actions of each side.
///
/// | side | before the fence | after the fence |
/// | --- | --- | --- |
/// | a caller | takes a reference | touches the machine, and looks at the packed state |
/// | the store | parks the machine, and marks the packed state as busy | counts the references |
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}
