//! The callers that wait for a machine to move.
//!
//! A waiter has two ends. The machine keeps the [`Waiter`] in its list, and the service keeps the
//! [`WaiterGuard`]. Both share one slot for a waker. The slot has a lock of its own.
//!
//! # No wake-up is lost
//!
//! A caller leaves its waker in the slot, and then looks at the packed state once more. A step
//! publishes the packed state, and then takes the wakers out of the slots. Both go through the
//! lock of the slot, so one of the two sees the other.
//!
//! # Wakers are foreign code
//!
//! A waker belongs to an executor. It is cloned, woken and dropped outside the machine's lock,
//! because it may hold something that comes back to this very machine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::machinery::sync::{Arc, Mutex, lock};

type Slot = Arc<Mutex<Option<Waker>>>;

/// The waiters of one machine. The machine's lock guards the list.
#[derive(Default)]
pub(super) struct Waiters(Vec<Waiter>);

impl Waiters {
    /// Adds the machine's end of `guard`.
    pub(super) fn add(&mut self, guard: &WaiterGuard) {
        // A full list first drops the waiters whose service is gone. It then makes room for as
        // many again as are left, so that services that come and go do not pile up here.
        if self.0.len() == self.0.capacity() {
            self.0.retain(Waiter::has_service);
            let room = self.0.len() + 1;
            self.0.reserve(room);
        }
        self.0.push(Waiter(Arc::clone(&guard.0)));
    }

    /// Returns the waiters, to be woken once the machine's lock is free. Those whose service is
    /// gone leave the list on the way.
    pub(super) fn still_waiting(&mut self) -> Vec<Waiter> {
        self.0.retain(Waiter::has_service);
        self.0.clone()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

/// The machine's end of a waiting service.
#[derive(Clone, Debug)]
pub(super) struct Waiter(Slot);

impl Waiter {
    /// Takes the waker, if there is one, and wakes it.
    pub(super) fn wake(&self) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            // A panic in one executor must not keep the other waiters asleep, nor hold back the
            // events.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                // The destructor of the payload might panic as well.
                std::mem::forget(payload);
            }
        }
    }

    /// Whether the service still holds its end.
    fn has_service(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// The service's end. When the service goes, it takes its waker along.
#[derive(Debug)]
pub(crate) struct WaiterGuard(Slot);

impl WaiterGuard {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// Replaces the waker. The old one is dropped after the slot's lock is free.
    pub(super) fn set(&self, waker: Option<Waker>) {
        let old = std::mem::replace(&mut *lock(&self.0), waker);
        drop(old);
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.set(None);
    }
}
