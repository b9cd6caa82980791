//! Machines by key: bounded, and what is live is never evicted.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod` | the store: look-ups, insertions, and when a machine was last looked up |
//! | `map` | the map behind it |
//! | `order` | which machine is evicted next |
//!
//! # Look-ups
//!
//! The map is read without a lock. A caller takes a reference to the machine that it found, and
//! then looks at the machine's packed state. [`SharedMachine::retire`] marks the packed state as
//! busy, and then counts the references. One of the two sees the other, so no call runs in a
//! machine that has left the map.
//!
//! # Ticks
//!
//! The store has a tick, and each machine carries the tick of its last look-up. Each insertion
//! advances the tick. So does each look-up, for the first 65,535 after an insertion.
//!
//! - The order is exact where it matters, because only insertions evict.
//! - A store that has seen all its keys is read without a shared write.
//!
//! # Foreign code
//!
//! A key belongs to the user, and its code may panic.
//!
//! - Its `Hash` runs before the lock is taken.
//! - Its `Eq` and `Borrow` run under the lock, but before anything is changed.
//! - Changes under the lock identify a key by its hash and a number.
//! - No value of the user is dropped under the lock.
//!
//! A key that panics therefore breaks nothing.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;

use self::map::{Lookup, Map};
use self::order::{Order, PARKED};
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Machine;
use crate::machinery::shared_machine::{MachineRef, SharedMachine, full_fence};
use crate::machinery::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

mod map;
mod order;
#[cfg(test)]
mod tests;

/// The lower bits of a tick: look-ups since the last insertion.
const LOOKUPS: u64 = 0xffff;

/// Machines by key, at most `capacity` of them.
pub(crate) struct Store<K, M: Machine> {
    map: Map<K, Arc<MachineRef<M>>>,
    order: Mutex<Order<M>>,
    /// The last tick. The upper 48 bits count insertions, and never reach [`PARKED`]. The lower 16
    /// bits count the look-ups since the last insertion.
    tick: AtomicU64,
    /// Not zero once a parked machine was looked up: the order is out of date.
    touched: AtomicU64,
    capacity: usize,
}

/// The result of an insertion.
pub(crate) struct Inserted<M: Machine> {
    /// The key's machine. If every machine in the store is live, then `Err` holds the new one,
    /// which found no room.
    pub(crate) found: Result<Arc<MachineRef<M>>, Arc<MachineRef<M>>>,
    /// The machine that was evicted to make room, if it was not clean.
    pub(crate) evicted: Option<Arc<MachineRef<M>>>,
}

impl<K: Hash + Eq, M: Machine> Store<K, M> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            map: Map::new(),
            order: Mutex::new(Order::new()),
            tick: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            capacity,
        }
    }

    /// Returns the machine of `key`, and marks it as used. The caller must still look at its
    /// packed state.
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<Arc<MachineRef<M>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let machine_ref = self.map.get(&self.map.lookup(key))?;
        full_fence();
        self.touch(machine_ref.machine());
        Some(machine_ref)
    }

    /// Reads the machine of `key`. Changes nothing, not even the order.
    ///
    /// This takes no reference to the machine, so the store may evict it meanwhile.
    pub(crate) fn read<Q, R>(&self, key: &Q, f: impl FnOnce(&SharedMachine<M>) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.map.with(
            &self.map.lookup(key),
            |machine_ref| f(machine_ref.machine()),
        )
    }

    /// Returns the machine of `key`, and does not mark it as used.
    #[cfg(any(test, tower_breaker_loom))]
    pub(crate) fn peek<Q>(&self, key: &Q) -> Option<Arc<MachineRef<M>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.map.get(&self.map.lookup(key))
    }

    /// Returns the machine of `key`. Makes one if there is none, and if there is room or something
    /// to evict.
    ///
    /// It waits for the insertions and evictions of other callers. So it also serves a caller that
    /// has met a retired machine.
    pub(crate) fn get_or_insert(
        &self,
        key: K,
        now: Timestamp,
        make: impl FnOnce(&K) -> SharedMachine<M>,
    ) -> Inserted<M> {
        // The machine is made before the lock is taken, because a key's `Hash` and `Display` are
        // the user's.
        let hash = self.map.lookup(&key).hash;
        let new = Arc::new(MachineRef::new(make(&key)));
        let mut key = Some(key);
        // With the pin, the map drops what it removes, evicted keys included, after the lock is
        // free. It also drops that before anything is returned, as `Map::get` does.
        let pin = self.map.pin();
        let inserted = self.find_or_insert(hash, &mut key, new, now);
        drop(pin);
        drop(key);
        inserted
    }

    /// Takes the key out of `key` if it inserts the machine.
    fn find_or_insert(
        &self,
        hash: u64,
        key: &mut Option<K>,
        new: Arc<MachineRef<M>>,
        now: Timestamp,
    ) -> Inserted<M> {
        let mut order = lock(&self.order);
        let lookup = key.as_ref().map(|key| Lookup { hash, key });
        if let Some(found) = lookup.and_then(|lookup| self.map.get(&lookup)) {
            // This needs no fence. An eviction takes this lock, and counts the caller.
            self.touch(found.machine());
            return Inserted {
                found: Ok(found),
                evicted: None,
            };
        }

        let mut evicted = None;
        if order.len() >= self.capacity {
            // Acquire: after this load of the flag, the parked bits show which machines were
            // touched.
            if self.touched.swap(0, Ordering::Acquire) != 0 {
                order.requeue_touched();
            }
            let Some(first) = order.evict(now) else {
                return Inserted {
                    found: Err(new),
                    evicted: None,
                };
            };
            self.map.remove(first.entry.id);
            evicted = Some(first);
        }

        // All look-ups before this insertion are older than it, and all after it are newer.
        let tick = (self.tick.load(Ordering::Relaxed) | LOOKUPS) + 1;
        self.tick.store(tick, Ordering::Relaxed);
        new.machine().last_used().store(tick, Ordering::Relaxed);
        let id = order.next_id(hash);
        if let Some(key) = key.take() {
            self.map.insert(id, key, Arc::clone(&new));
        }
        order.insert(id, tick, Arc::clone(&new));
        drop(order);
        Inserted {
            found: Ok(new),
            evicted: evicted
                .and_then(|evicted| (!evicted.clean).then_some(evicted.entry.machine_ref)),
        }
    }

    /// Removes the machine of `key`, whatever its state. The results of calls in flight go to that
    /// machine, and nobody sees them.
    pub(crate) fn forget<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let lookup = self.map.lookup(key);
        let _pin = self.map.pin();
        let mut order = lock(&self.order);
        let Some(machine_ref) = self.map.get(&lookup) else {
            return false;
        };
        if let Some(id) = order.remove(&machine_ref) {
            self.map.remove(id);
        }
        drop(order);
        machine_ref.machine().retire_now();
        true
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        self.map.keys()
    }

    /// Marks a machine as used: gives it the next tick.
    fn touch(&self, machine: &SharedMachine<M>) {
        // Relaxed: callers at the same time may get the same tick, or set the tick back a little.
        // That costs a machine its exact place in the order, and nothing else.
        let tick = self.tick.load(Ordering::Relaxed);
        let last_used = machine.last_used().load(Ordering::Relaxed);
        if last_used == tick {
            return;
        }
        let next = tick + u64::from(tick & LOOKUPS != LOOKUPS);
        if next != tick {
            self.tick.store(next, Ordering::Relaxed);
        }
        if last_used & PARKED == 0 {
            machine.last_used().store(next, Ordering::Relaxed);
        } else if machine.last_used().swap(next, Ordering::Relaxed) & PARKED != 0 {
            // Release, after the tick: a caller that sees this flag also sees the cleared parked
            // bit. It is a swap, not a store, because loom lets a store go past the swap of an
            // insertion.
            self.touched.swap(1, Ordering::Release);
        }
    }
}

impl<K, M: Machine> fmt::Debug for Store<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("len", &lock(&self.order).len())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
