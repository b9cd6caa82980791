//! A state machine that many threads share.
//!
//! A [`SharedMachine`] consists of the machine under a lock, the atomic [`PackedState`] that
//! mirrors it, its atomic deadline, its waiters, and the events that wait to be delivered.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod` | the parts, and what callers read and change without the lock |
//! | `step` | the locked path: a step of the machine, the wake-ups and the events that follow it |
//! | `renewal` | how a probe renews its lease without the lock |
//! | `retirement` | how the store takes a machine out of use |
//!
//! # The invariant
//!
//! Only a *step* changes what the packed state and the deadline mirror. A step does this, in this
//! order:
//!
//! 1. It takes the lock.
//! 2. It marks the packed state as busy. From here on lock-free callers go to the lock.
//! 3. It hands the machine what lock-free callers have changed since the last step.
//! 4. It lets the machine move.
//! 5. It publishes the deadline, and then the packed state.
//!
//! Between two steps each value has one place where it is true:
//!
//! | value | where it is true | who changes it between two steps |
//! | --- | --- | --- |
//! | the streak, the last failure | the packed state | lock-free callers, by compare-and-swap |
//! | the deadline of a lease | the atomic deadline | the lease's probe, by compare-and-swap |
//! | what neither of the two mirrors | the machine | `update_unmirrored`, under the lock |
//! | everything else | the machine | nobody |
//!
//! A lock-free reader loads the packed state, then the deadline, then the packed state again. If
//! the two packed states are equal and not busy, then both are of one generation, and the deadline
//! between them belongs to it.

use std::fmt;

use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::event_queue::EventQueue;
use crate::machinery::machine::Machine;
use crate::machinery::observers::Observers;
use crate::machinery::packed_state::PackedState;
use crate::machinery::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::machinery::waiters::Waiters;
use crate::vocabulary::{Event, Name};

#[cfg(any(feature = "http", test, tower_breaker_loom))]
mod renewal;
mod retirement;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use self::retirement::{Retired, Retirement, full_fence};
pub(crate) use crate::machinery::machine_ref::{MachineRef, RefOwner};
pub(crate) use crate::machinery::waiters::WaiterGuard;

/// A machine that many threads share.
pub(crate) struct SharedMachine<M: Machine> {
    packed: AtomicU64,
    deadline: AtomicU64,
    /// When the machine was last looked up. Only the store reads and writes it.
    last_used: AtomicU64,
    name: Option<Name>,
    environment: Arc<Environment<M::Rules>>,
    inside: Mutex<Inside<M>>,
}

/// The rules, the clock and the observers that all machines of one layer share.
#[derive(Clone, Debug)]
pub(crate) struct Environment<R> {
    pub(crate) rules: R,
    pub(crate) clock: Clock,
    pub(crate) observers: Observers,
}

/// The state that the lock guards.
struct Inside<M: Machine> {
    machine: M,
    /// The machine has left its store. It admits no more calls.
    retired: bool,
    waiters: Waiters,
    events: EventQueue<M::Pending>,
}

impl<M: Machine> SharedMachine<M> {
    pub(crate) fn new(
        machine: M,
        name: Option<Name>,
        environment: Arc<Environment<M::Rules>>,
    ) -> Self {
        Self {
            packed: AtomicU64::new(machine.packed().bits()),
            deadline: AtomicU64::new(machine.deadline().as_nanos()),
            last_used: AtomicU64::new(0),
            name,
            environment,
            inside: Mutex::new(Inside {
                machine,
                retired: false,
                waiters: Waiters::default(),
                events: EventQueue::default(),
            }),
        }
    }

    #[inline]
    pub(crate) fn rules(&self) -> &M::Rules {
        &self.environment.rules
    }

    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        self.environment.clock.now()
    }

    #[inline]
    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.environment.observers
    }

    /// Whether the layer has observers.
    #[inline]
    pub(crate) fn observed(&self) -> bool {
        !self.environment.observers.is_empty()
    }

    /// Delivers an event that is not a step of the machine.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.environment.observers.tell(event);
    }

    /// When the machine was last looked up. The value is the store's.
    pub(crate) fn last_used(&self) -> &AtomicU64 {
        &self.last_used
    }

    /// Loads the packed state. It may be busy.
    #[inline]
    pub(crate) fn packed(&self) -> PackedState {
        // Relaxed: a caller that reads the packed state alone needs nothing else to be as recent.
        PackedState::from_bits(self.packed.load(Ordering::Relaxed))
    }

    /// Loads the packed state for a caller that asks for its [`deadline`](Self::deadline) next.
    #[inline]
    pub(crate) fn packed_before_deadline(&self) -> PackedState {
        // Acquire: the deadline that was published before this packed state is visible.
        PackedState::from_bits(self.packed.load(Ordering::Acquire))
    }

    /// Loads the deadline that belongs to `packed`. Returns `None` if the packed state has changed
    /// since.
    #[inline]
    pub(crate) fn deadline(&self, packed: PackedState) -> Option<Timestamp> {
        // Acquire: the second load of the packed state comes after this one. If this load saw the
        // deadline of a newer step, then the second load sees that step's busy mark, or what
        // followed it.
        let deadline = self.deadline.load(Ordering::Acquire);
        (self.packed.load(Ordering::Relaxed) == packed.bits())
            .then(|| Timestamp::from_nanos(deadline))
    }

    /// Loads the deadline, whatever packed state it belongs to. It serves to see whether the
    /// deadline has moved.
    #[inline]
    pub(crate) fn any_deadline(&self) -> Timestamp {
        // Relaxed: a caller that sees an old deadline could as well have come a little earlier.
        Timestamp::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    /// Changes the packed state without the lock.
    ///
    /// `f` gets the packed state and returns the new one, or `None` if the change needs a step.
    /// Returns `false`, with nothing changed, if `f` returned `None` or if somebody else changed
    /// the packed state meanwhile. The caller then takes a [`step`](Self::step).
    #[inline]
    pub(crate) fn update(&self, f: impl FnOnce(PackedState) -> Option<PackedState>) -> bool {
        // Relaxed: the packed state alone holds all that a count means. A step takes it over by a
        // swap, which reads the last value.
        let bits = self.packed.load(Ordering::Relaxed);
        let Some(new) = f(PackedState::from_bits(bits)) else {
            return false;
        };
        new.bits() == bits
            || self
                .packed
                .compare_exchange(bits, new.bits(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

impl<M: Machine> fmt::Debug for SharedMachine<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMachine")
            .field("name", &self.name)
            .field("packed", &self.packed())
            .finish_non_exhaustive()
    }
}
