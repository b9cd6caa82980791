//! Cells by key: bounded, and what is live is never evicted.
//!
//! # Looking up
//!
//! The map is read without a lock. A caller that found a cell holds it, then looks at its word; [`Cell::retire`] marks the word, then
//! counts the holders. One of the two sees the other, so no call runs in a cell that is gone from the map.
//!
//! # Who goes first
//!
//! Each cell carries a mark of when it was last looked up, from a tick that moves with insertions and, for the first
//! 65,535 look-ups after one, with look-ups too. That order is exact where it matters, since only insertions evict; and a
//! store that has seen all its keys is read without a shared write.
//!
//! Candidates wait in a heap by their mark, and a mark that has moved on puts its cell back. Cells that turn out to be live or unclean are
//! set aside, where every insertion looks at a few again and only a store without a clean cell looks at all of them.

use std::borrow::Borrow;
use std::cmp::{Ordering as Cmp, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::hash::Hash;

use crate::cell::{Anchor, Cell, Retirement, settle};
use crate::clock::Moment;
use crate::machine::Machine;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

use map::Map;

/// How many of the cells set aside an insertion looks at again.
const LOOKED_AT: usize = 8;

/// Who holds an idle cell: the map, and the entry in the order.
const HELD: usize = 2;

/// Cells by key, at most `capacity` of them.
pub(crate) struct Store<K, M: Machine> {
    map: Map<K, Arc<Anchor<M>>>,
    order: Mutex<Order<K, M>>,
    /// The last mark given: insertions in the upper 48 bits, look-ups since then in the lower 16.
    tick: AtomicU64,
    capacity: usize,
}

/// What came of looking for a cell, or making one.
pub(crate) struct Inserted<M: Machine> {
    /// The cell; or, since every cell in the store is live, the one that found no room.
    pub(crate) found: Result<Arc<Anchor<M>>, Arc<Anchor<M>>>,
    /// The cell that was not clean and made room.
    pub(crate) evicted: Option<Arc<Anchor<M>>>,
}

impl<K: Hash + Eq + Clone, M: Machine> Store<K, M> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            map: Map::new(),
            order: Mutex::new(Order {
                waiting: BinaryHeap::new(),
                aside: VecDeque::new(),
            }),
            tick: AtomicU64::new(0),
            capacity,
        }
    }

    /// The cell of `key`, marked as used; its word is still to be looked at.
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<Arc<Anchor<M>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let anchor = self.map.get(key)?;
        settle();
        self.touch(anchor.cell());
        Some(anchor)
    }

    /// The cell of `key` for a question that changes nothing, not even the order.
    pub(crate) fn peek<Q>(&self, key: &Q) -> Option<Arc<Anchor<M>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.map.get(key)
    }

    /// The cell of `key`; made if there is none, and if there is room or something to evict. Waits for insertions and evictions of
    /// others, so it also serves a caller that met a retired cell.
    pub(crate) fn get_or_insert(
        &self,
        key: K,
        now: Moment,
        make: impl FnOnce(&K) -> Cell<M>,
    ) -> Inserted<M> {
        // Made before the lock is taken: a key's `Display` is the user's.
        let anchor = Arc::new(Anchor::new(make(&key)));
        let mut order = lock(&self.order);
        if let Some(anchor) = self.map.get(&key) {
            settle();
            self.touch(anchor.cell());
            return Inserted {
                found: Ok(anchor),
                evicted: None,
            };
        }

        let mut evicted = None;
        let mut gone = None;
        if order.len() >= self.capacity {
            let Some(entry) = order.evict(now) else {
                return Inserted {
                    found: Err(anchor),
                    evicted: None,
                };
            };
            self.map.remove(&entry.entry.key);
            evicted = entry.unclean.then(|| Arc::clone(&entry.entry.anchor));
            gone = Some(entry);
        }

        let mark = self.tick.load(Ordering::Relaxed);
        anchor.cell().mark_used(mark);
        // All look-ups before this insertion are older than all after it.
        self.tick.store((mark | LOOKS) + 1, Ordering::Relaxed);
        self.map.insert(key.clone(), Arc::clone(&anchor));
        order.waiting.push(Reverse(Entry {
            mark,
            key,
            anchor: Arc::clone(&anchor),
        }));
        drop(order);
        // The evicted key's destructor is the user's, and runs outside the lock.
        drop(gone);
        Inserted {
            found: Ok(anchor),
            evicted,
        }
    }

    /// Takes the cell of `key` out, whatever its state. Calls in flight end in it unseen.
    pub(crate) fn forget<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut order = lock(&self.order);
        let Some(anchor) = self.map.get(key) else {
            return false;
        };
        self.map.remove(key);
        let entry = order.take(&anchor);
        drop(order);
        drop(entry);
        anchor.cell().retire_now();
        true
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn keys(&self) -> Vec<K> {
        lock(&self.order)
            .entries()
            .map(|entry| entry.key.clone())
            .collect()
    }

    /// Marks a cell as used. The order is kept as exact as it has to be; see the module.
    fn touch(&self, cell: &Cell<M>) {
        // Relaxed: a lost tick makes two cells of one moment equal, no more.
        let tick = self.tick.load(Ordering::Relaxed);
        if cell.used() == tick {
            return;
        }
        let mark = if tick & LOOKS == LOOKS {
            tick
        } else {
            tick + 1
        };
        if mark != tick {
            self.tick.store(mark, Ordering::Relaxed);
        }
        cell.mark_used(mark);
    }
}

/// The lower bits of a tick: look-ups since the last insertion.
const LOOKS: u64 = 0xffff;

impl<K, M: Machine> fmt::Debug for Store<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("len", &lock(&self.order).len())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// The cells in the order in which they may be evicted.
struct Order<K, M: Machine> {
    /// Least recently used first, by the mark that was seen last.
    waiting: BinaryHeap<Reverse<Entry<K, M>>>,
    /// Found live or unclean when their turn came.
    aside: VecDeque<Entry<K, M>>,
}

struct Evicted<K, M: Machine> {
    entry: Entry<K, M>,
    unclean: bool,
}

impl<K, M: Machine> Order<K, M> {
    fn len(&self) -> usize {
        self.waiting.len() + self.aside.len()
    }

    fn entries(&self) -> impl Iterator<Item = &Entry<K, M>> {
        self.waiting
            .iter()
            .map(|Reverse(entry)| entry)
            .chain(&self.aside)
    }

    /// The least recently used clean and idle cell; or else, of those that are not live, the least recently used.
    fn evict(&mut self, now: Moment) -> Option<Evicted<K, M>> {
        self.look_again(LOOKED_AT);
        if let Some(entry) = self.evict_clean(now) {
            return Some(entry);
        }
        // Nothing clean is in sight. Look at all that were set aside, the least recently used first.
        self.look_again(self.aside.len());
        if let Some(entry) = self.evict_clean(now) {
            return Some(entry);
        }
        let mut aside: Vec<_> = self.aside.drain(..).collect();
        aside.sort();
        let found = aside
            .iter()
            .position(|entry| Cell::retire(&entry.anchor, HELD, true, now) == Retirement::Done);
        let evicted = found.map(|at| Evicted {
            entry: aside.remove(at),
            unclean: true,
        });
        self.aside.extend(aside);
        evicted
    }

    /// Pops what waits until something clean comes up; the others are set aside.
    fn evict_clean(&mut self, now: Moment) -> Option<Evicted<K, M>> {
        while let Some(Reverse(mut entry)) = self.waiting.pop() {
            let used = entry.anchor.cell().used();
            if used != entry.mark {
                entry.mark = used;
                self.waiting.push(Reverse(entry));
            } else if Cell::retire(&entry.anchor, HELD, false, now) == Retirement::Done {
                let unclean = false;
                return Some(Evicted { entry, unclean });
            } else {
                self.aside.push_back(entry);
            }
        }
        None
    }

    /// Puts the next few that were set aside back into the order.
    fn look_again(&mut self, most: usize) {
        for _ in 0..most.min(self.aside.len()) {
            if let Some(mut entry) = self.aside.pop_front() {
                entry.mark = entry.anchor.cell().used();
                self.waiting.push(Reverse(entry));
            }
        }
    }

    /// Takes out the entry of `anchor`.
    fn take(&mut self, anchor: &Arc<Anchor<M>>) -> Option<Entry<K, M>> {
        let mut entries: Vec<_> = std::mem::take(&mut self.waiting).into_vec();
        let at = entries
            .iter()
            .position(|Reverse(entry)| Arc::ptr_eq(&entry.anchor, anchor));
        let found = at.map(|at| entries.swap_remove(at).0);
        self.waiting = entries.into();
        found.or_else(|| {
            let at = self
                .aside
                .iter()
                .position(|entry| Arc::ptr_eq(&entry.anchor, anchor))?;
            self.aside.remove(at)
        })
    }
}

/// A cell and its key, ordered by the mark alone.
struct Entry<K, M: Machine> {
    mark: u64,
    key: K,
    anchor: Arc<Anchor<M>>,
}

impl<K, M: Machine> Ord for Entry<K, M> {
    fn cmp(&self, other: &Self) -> Cmp {
        self.mark.cmp(&other.mark)
    }
}

impl<K, M: Machine> PartialOrd for Entry<K, M> {
    fn partial_cmp(&self, other: &Self) -> Option<Cmp> {
        Some(self.cmp(other))
    }
}

impl<K, M: Machine> PartialEq for Entry<K, M> {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

impl<K, M: Machine> Eq for Entry<K, M> {}

/// The map itself: a concurrent one whose reads take no lock. Keys come from models, so the hash is keyed.
#[cfg(not(tower_breaker_loom))]
mod map {
    use std::borrow::Borrow;
    use std::hash::Hash;

    pub(super) struct Map<K, V>(papaya::HashMap<K, V, foldhash::fast::RandomState>);

    impl<K: Hash + Eq, V: Clone> Map<K, V> {
        pub(super) fn new() -> Self {
            Self(papaya::HashMap::default())
        }

        pub(super) fn get<Q>(&self, key: &Q) -> Option<V>
        where
            K: Borrow<Q>,
            Q: Hash + Eq + ?Sized,
        {
            self.0.pin().get(key).cloned()
        }

        pub(super) fn insert(&self, key: K, value: V) {
            self.0.pin().insert(key, value);
        }

        pub(super) fn remove<Q>(&self, key: &Q)
        where
            K: Borrow<Q>,
            Q: Hash + Eq + ?Sized,
        {
            self.0.pin().remove(key);
        }
    }
}

/// What stands in for it under loom: the same, under a lock that loom watches.
#[cfg(tower_breaker_loom)]
mod map {
    use std::borrow::Borrow;
    use std::collections::HashMap;
    use std::hash::Hash;

    use crate::sync::{Mutex, lock};

    pub(super) struct Map<K, V>(Mutex<HashMap<K, V>>);

    impl<K: Hash + Eq, V: Clone> Map<K, V> {
        pub(super) fn new() -> Self {
            Self(Mutex::new(HashMap::new()))
        }

        pub(super) fn get<Q>(&self, key: &Q) -> Option<V>
        where
            K: Borrow<Q>,
            Q: Hash + Eq + ?Sized,
        {
            lock(&self.0).get(key).cloned()
        }

        pub(super) fn insert(&self, key: K, value: V) {
            lock(&self.0).insert(key, value);
        }

        pub(super) fn remove<Q>(&self, key: &Q)
        where
            K: Borrow<Q>,
            Q: Hash + Eq + ?Sized,
        {
            lock(&self.0).remove(key);
        }
    }
}
