//! How a probe renews its lease without the lock.
//!
//! The probe's caller reads the packed state and the deadline that belongs to it. It then replaces
//! that deadline by compare-and-swap.
//!
//! A step may run at the same time. The step first marks the packed state as busy, and then reads
//! the deadline by a write. So each renewal comes either before or after that write:
//!
//! - **Before it.** The step finds the lease renewed.
//! - **After it.** The step has not seen the renewal. A caller that sees the renewed deadline also
//!   sees the busy mark. If the step leaves the deadline alone, then the renewal stays, and the
//!   next step takes it over. If the step moves the deadline, then the lease has ended, the
//!   renewal came too late, and it is lost.

use super::SharedMachine;
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Machine;
use crate::machinery::packed_state::PackedState;
use crate::machinery::sync::{Ordering, lock};

impl<M: Machine> SharedMachine<M> {
    /// Moves the deadline without the lock.
    ///
    /// `f` gets the packed state, the deadline and the time. It returns the new deadline, which is
    /// never earlier than the old one. It returns `None` if the deadline of this phase is not the
    /// caller's to move.
    ///
    /// A slow caller may find that the machine has moved in the meantime. The deadline is then
    /// another one, and it stays as it is. The machine must see to that: whatever ends a lease,
    /// except its own probe, leaves another deadline. (The same deadline may come again in a later
    /// generation, if the clock shows the same nanosecond twice, or if a cooldown ends to the
    /// nanosecond where the lease would have ended. A renewal would have to be under way across
    /// all the steps up to there.)
    pub(crate) fn renew(&self, f: impl Fn(PackedState, Timestamp, Timestamp) -> Option<Timestamp>) {
        if self.try_renew(&f).is_none() {
            // A step is under way. Once it is over, the packed state shows its result.
            let _inside = lock(&self.inside);
            self.try_renew(&f);
        }
    }

    /// Returns `None` if a step is under way.
    fn try_renew(
        &self,
        f: impl Fn(PackedState, Timestamp, Timestamp) -> Option<Timestamp>,
    ) -> Option<()> {
        // Relaxed: the caller holds the permit, so it has seen the step that gave out the permit.
        // It reads no deadline that is older than that step.
        let packed = self.packed();
        if packed.is_busy() {
            return None;
        }
        let deadline = self.deadline(packed)?;
        if let Some(renewed) = f(packed, deadline, self.now()) {
            // Relaxed: the write continues the release of the step whose deadline it replaces, or
            // of a step under way that has read that deadline already. If the exchange fails, then
            // a step has moved the deadline, and the caller's phase is over.
            let _ = self.deadline.compare_exchange(
                deadline.as_nanos(),
                renewed.as_nanos(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        Some(())
    }
}
