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
//! Candidates wait in a heap by their mark, and a mark that has moved on puts its cell back. One that turns out to be unclean or live is filed
//! elsewhere: the unclean by their mark too, the cooling by the moment at which they no longer are, and those with a call in flight in
//! a list. Nothing but time changes a filed cell unless somebody looks it up, and whoever does leaves word that the files are out of date. So an
//! insertion looks again only at what may have changed, and at a count for each call in flight.
//!
//! # Code of the user's
//!
//! A key's `Hash` runs once for each question, and its `Eq` before anything is changed; inside, keys go by their hash and a number. So a
//! key that panics breaks nothing. Nothing of the user's is dropped under the lock.

use std::borrow::Borrow;
use std::cmp::{Ordering as Cmp, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt;
use std::hash::Hash;

use crate::cell::{Anchor, Cell, Retirement, settle};
use crate::clock::Moment;
use crate::machine::Machine;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

use map::Map;

/// Who holds an idle cell: the map, and the entry in the order.
const HELD: usize = 2;

/// Cells by key, at most `capacity` of them.
pub(crate) struct Store<K, M: Machine> {
    map: Map<K, Arc<Anchor<M>>>,
    order: Mutex<Order<M>>,
    /// The last mark given: insertions in the upper 48 bits, of which [`FILED`] is never reached; look-ups since then in the lower 16.
    tick: AtomicU64,
    /// Not zero once a filed cell was looked up: the files are out of date.
    stirred: AtomicU64,
    capacity: usize,
}

/// What came of looking for a cell, or making one.
pub(crate) struct Inserted<M: Machine> {
    /// The cell; or, since every cell in the store is live, the one that found no room.
    pub(crate) found: Result<Arc<Anchor<M>>, Arc<Anchor<M>>>,
    /// The cell that was not clean and made room.
    pub(crate) evicted: Option<Arc<Anchor<M>>>,
}

impl<K: Hash + Eq, M: Machine> Store<K, M> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            map: Map::new(),
            order: Mutex::new(Order::new()),
            tick: AtomicU64::new(0),
            stirred: AtomicU64::new(0),
            capacity,
        }
    }

    /// The cell of `key`, marked as used; its word is still to be looked at.
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<Arc<Anchor<M>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let anchor = self.map.get(&self.map.look(key))?;
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
        self.map.get(&self.map.look(key))
    }

    /// The cell of `key`; made if there is none, and if there is room or something to evict. Waits for insertions and evictions of
    /// others, so it also serves a caller that met a retired cell.
    pub(crate) fn get_or_insert(
        &self,
        key: K,
        now: Moment,
        make: impl FnOnce(&K) -> Cell<M>,
    ) -> Inserted<M> {
        // Made before the lock is taken: a key's `Hash` and `Display` are the user's.
        let hash = self.map.look(&key).hash;
        let made = Arc::new(Anchor::Cell(make(&key)));
        // What the map drops, evicted keys among it, it drops after the lock is free.
        let _pin = self.map.pin();
        let mut order = lock(&self.order);
        if let Some(found) = self.map.get(&Look { hash, key: &key }) {
            settle();
            self.touch(found.cell());
            return Inserted {
                found: Ok(found),
                evicted: None,
            };
        }

        let mut gone = None;
        if order.len() >= self.capacity {
            // Acquire: who sees that a cell was stirred sees which one.
            if self.stirred.swap(0, Ordering::Acquire) != 0 {
                order.refile_stirred();
            }
            let Some(evicted) = order.evict(now) else {
                return Inserted {
                    found: Err(made),
                    evicted: None,
                };
            };
            self.map.remove(evicted.entry.id);
            gone = Some(evicted);
        }

        // All look-ups before this insertion are older than it, and all after it are newer.
        let mark = (self.tick.load(Ordering::Relaxed) | LOOKS) + 1;
        self.tick.store(mark, Ordering::Relaxed);
        made.cell().used().store(mark, Ordering::Relaxed);
        let id = order.next_id(hash);
        self.map.insert(id, key, Arc::clone(&made));
        order.waiting.push(Reverse(Entry {
            at: mark,
            id,
            anchor: Arc::clone(&made),
        }));
        drop(order);
        Inserted {
            found: Ok(made),
            evicted: gone.and_then(|gone| (!gone.clean).then_some(gone.entry.anchor)),
        }
    }

    /// Takes the cell of `key` out, whatever its state. Calls in flight end in it unseen.
    pub(crate) fn forget<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let look = self.map.look(key);
        let _pin = self.map.pin();
        let mut order = lock(&self.order);
        let Some(anchor) = self.map.get(&look) else {
            return false;
        };
        if let Some(id) = order.take(&anchor) {
            self.map.remove(id);
        }
        drop(order);
        anchor.cell().retire_now();
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

    /// Marks a cell as used. The order is kept as exact as it has to be; see the module.
    fn touch(&self, cell: &Cell<M>) {
        // Relaxed: callers at the same time may be given one mark, or set the tick back a little. It costs a cell its exact place in the
        // order, no more.
        let tick = self.tick.load(Ordering::Relaxed);
        let used = cell.used().load(Ordering::Relaxed);
        if used == tick {
            return;
        }
        let mark = tick + u64::from(tick & LOOKS != LOOKS);
        if mark != tick {
            self.tick.store(mark, Ordering::Relaxed);
        }
        if used & FILED == 0 {
            cell.used().store(mark, Ordering::Relaxed);
        } else if cell.used().swap(mark, Ordering::Relaxed) & FILED != 0 {
            // Release, after the mark: who sees this sees that the cell is no longer as it was filed.
            self.stirred.swap(1, Ordering::Release);
        }
    }
}

/// The lower bits of a tick: look-ups since the last insertion.
const LOOKS: u64 = 0xffff;

/// Beside a cell's mark: it was filed, and nobody has looked it up since.
const FILED: u64 = 1 << 63;

impl<K, M: Machine> fmt::Debug for Store<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("len", &lock(&self.order).len())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// The cells, by when they may be evicted.
struct Order<M: Machine> {
    /// Clean for all that is known; least recently used first, by the mark that was seen last.
    waiting: Heap<M>,
    /// Neither clean nor live when they were filed; least recently used first.
    unclean: Heap<M>,
    /// Live when they were filed, with no call in flight; by the moment until which they are.
    cooling: Heap<M>,
    /// With a call in flight when last seen.
    held: Vec<Entry<M>>,
    /// How many were ever inserted.
    inserted: u64,
}

type Heap<M> = BinaryHeap<Reverse<Entry<M>>>;

struct Evicted<M: Machine> {
    entry: Entry<M>,
    clean: bool,
}

impl<M: Machine> Order<M> {
    fn new() -> Self {
        Self {
            waiting: BinaryHeap::new(),
            unclean: BinaryHeap::new(),
            cooling: BinaryHeap::new(),
            held: Vec::new(),
            inserted: 0,
        }
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.unclean.len() + self.cooling.len() + self.held.len()
    }

    fn next_id(&mut self, hash: u64) -> Id {
        self.inserted += 1;
        let number = self.inserted;
        Id { hash, number }
    }

    /// The least recently used clean and idle cell; or else, of those that are not live, the least recently used.
    fn evict(&mut self, now: Moment) -> Option<Evicted<M>> {
        self.refile_changed(now);
        while let Some(Reverse(entry)) = self.waiting.pop() {
            // Filed before its holders are counted: a caller whom that count misses finds it filed, and leaves word.
            let used = entry.file();
            if used == entry.at {
                if let Some(evicted) = self.examine(entry, false, now) {
                    return Some(evicted);
                }
            } else {
                self.wait(entry);
            }
        }
        while let Some(Reverse(entry)) = self.unclean.pop() {
            if let Some(evicted) = self.examine(entry, true, now) {
                return Some(evicted);
            }
        }
        None
    }

    /// Evicts a filed cell if it may go, and else puts it where it belongs.
    fn examine(&mut self, mut entry: Entry<M>, unclean: bool, now: Moment) -> Option<Evicted<M>> {
        match Cell::retire(&entry.anchor, HELD, unclean, now) {
            Retirement::Done { clean } => return Some(Evicted { entry, clean }),
            Retirement::Unclean => self.unclean.push(Reverse(entry)),
            Retirement::Held => {
                entry.take_out();
                self.held.push(entry);
            }
            Retirement::Live(until) => {
                entry.at = until.as_nanos();
                self.cooling.push(Reverse(entry));
            }
        }
        None
    }

    /// Back to those that wait: the cells whose last call has ended, and those whose time is over.
    fn refile_changed(&mut self, now: Moment) {
        let mut at = 0;
        while at < self.held.len() {
            if Arc::strong_count(&self.held[at].anchor) > HELD {
                at += 1;
            } else {
                let entry = self.held.swap_remove(at);
                self.wait(entry);
            }
        }
        while let Some(top) = self.cooling.peek_mut() {
            if top.0.at > now.as_nanos() {
                break;
            }
            let Reverse(entry) = PeekMut::pop(top);
            wait(&mut self.waiting, entry);
        }
    }

    /// Back to those that wait: the filed cells that were looked up.
    fn refile_stirred(&mut self) {
        for file in [&mut self.unclean, &mut self.cooling] {
            let (still, stirred): (Vec<_>, _) = std::mem::take(file)
                .into_iter()
                .partition(|Reverse(entry)| entry.is_filed());
            *file = still.into();
            for Reverse(entry) in stirred {
                wait(&mut self.waiting, entry);
            }
        }
    }

    fn wait(&mut self, entry: Entry<M>) {
        wait(&mut self.waiting, entry);
    }

    /// Takes out the entry of `anchor`.
    fn take(&mut self, anchor: &Arc<Anchor<M>>) -> Option<Id> {
        let mut taken = None;
        // No cell ends here under the lock: the caller holds it.
        let mut keep = |entry: &Entry<M>| {
            let found = Arc::ptr_eq(&entry.anchor, anchor);
            if found {
                taken = Some(entry.id);
            }
            !found
        };
        for heap in [&mut self.waiting, &mut self.unclean, &mut self.cooling] {
            heap.retain(|Reverse(entry)| keep(entry));
        }
        self.held.retain(keep);
        taken
    }
}

fn wait<M: Machine>(waiting: &mut Heap<M>, mut entry: Entry<M>) {
    entry.at = entry.take_out();
    waiting.push(Reverse(entry));
}

/// A cell by the names that the store has for it.
struct Entry<M: Machine> {
    /// Its mark, or the moment until which it is live; what it is ordered by.
    at: u64,
    id: Id,
    anchor: Arc<Anchor<M>>,
}

/// What the map knows a key by, so that none of the key's own code is needed to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    hash: u64,
    number: u64,
}

impl<M: Machine> Entry<M> {
    /// Marks the cell as filed, and answers when it was last looked up.
    fn file(&self) -> u64 {
        self.used().fetch_or(FILED, Ordering::Relaxed) & !FILED
    }

    /// The cell is filed no longer. Answers when it was last looked up.
    fn take_out(&self) -> u64 {
        self.used().fetch_and(!FILED, Ordering::Relaxed) & !FILED
    }

    fn is_filed(&self) -> bool {
        self.used().load(Ordering::Relaxed) & FILED != 0
    }

    fn used(&self) -> &AtomicU64 {
        self.anchor.cell().used()
    }
}

impl<M: Machine> Ord for Entry<M> {
    fn cmp(&self, other: &Self) -> Cmp {
        self.at.cmp(&other.at)
    }
}

impl<M: Machine> PartialOrd for Entry<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Cmp> {
        Some(self.cmp(other))
    }
}

impl<M: Machine> PartialEq for Entry<M> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<M: Machine> Eq for Entry<M> {}

/// A question for the map: a key that may be borrowed, and its hash.
struct Look<'a, Q: ?Sized> {
    hash: u64,
    key: &'a Q,
}

/// The map itself: a concurrent one whose reads take no lock. Keys come from models, so the hash is keyed.
#[cfg(not(tower_breaker_loom))]
mod map {
    use std::borrow::Borrow;
    use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

    use papaya::Equivalent;

    use super::{Id, Look};

    pub(super) struct Map<K, V> {
        keyed: foldhash::fast::RandomState,
        cells: papaya::HashMap<Stored<K>, V, BuildHasherDefault<AsItIs>>,
    }

    struct Stored<K> {
        id: Id,
        key: K,
    }

    impl<K: Hash + Eq, V: Clone> Map<K, V> {
        pub(super) fn new() -> Self {
            Self {
                keyed: foldhash::fast::RandomState::default(),
                cells: papaya::HashMap::default(),
            }
        }

        pub(super) fn look<'a, Q: Hash + ?Sized>(&self, key: &'a Q) -> Look<'a, Q> {
            let hash = self.keyed.hash_one(key);
            Look { hash, key }
        }

        /// While it lives, nothing that is removed is dropped by this thread.
        pub(super) fn pin(&self) -> impl Sized {
            self.cells.guard()
        }

        pub(super) fn get<Q>(&self, look: &Look<'_, Q>) -> Option<V>
        where
            K: Borrow<Q>,
            Q: Eq + ?Sized,
        {
            self.cells.pin().get(look).cloned()
        }

        pub(super) fn insert(&self, id: Id, key: K, value: V) {
            self.cells.pin().insert(Stored { id, key }, value);
        }

        pub(super) fn remove(&self, id: Id) {
            self.cells.pin().remove(&id);
        }

        pub(super) fn keys(&self) -> Vec<K>
        where
            K: Clone,
        {
            let cells = self.cells.pin();
            cells.keys().map(|stored| stored.key.clone()).collect()
        }
    }

    impl<K> Hash for Stored<K> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.id.hash(state);
        }
    }

    impl<K> PartialEq for Stored<K> {
        fn eq(&self, other: &Self) -> bool {
            self.id == other.id
        }
    }

    impl<K> Eq for Stored<K> {}

    impl Hash for Id {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write_u64(self.hash);
        }
    }

    impl<K> Equivalent<Stored<K>> for Id {
        fn equivalent(&self, stored: &Stored<K>) -> bool {
            *self == stored.id
        }
    }

    impl<Q: ?Sized> Hash for Look<'_, Q> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write_u64(self.hash);
        }
    }

    impl<K: Borrow<Q>, Q: Eq + ?Sized> Equivalent<Stored<K>> for Look<'_, Q> {
        fn equivalent(&self, stored: &Stored<K>) -> bool {
            self.hash == stored.id.hash && self.key == stored.key.borrow()
        }
    }

    /// The hasher of what is a hash already.
    #[derive(Default)]
    pub(super) struct AsItIs(u64);

    impl Hasher for AsItIs {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write_u64(&mut self, hash: u64) {
            self.0 = hash;
        }

        fn write(&mut self, _: &[u8]) {
            unreachable!("only whole hashes are written")
        }
    }
}

/// What stands in for it under loom: the same, under a lock that loom watches.
#[cfg(tower_breaker_loom)]
mod map {
    use std::borrow::Borrow;
    use std::hash::{DefaultHasher, Hash, Hasher};

    use super::{Id, Look};
    use crate::sync::{Mutex, lock};

    pub(super) struct Map<K, V>(Mutex<Vec<(Id, K, V)>>);

    impl<K: Hash + Eq, V: Clone> Map<K, V> {
        pub(super) fn new() -> Self {
            Self(Mutex::new(Vec::new()))
        }

        pub(super) fn look<'a, Q: Hash + ?Sized>(&self, key: &'a Q) -> Look<'a, Q> {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            let hash = hasher.finish();
            Look { hash, key }
        }

        #[allow(clippy::unused_self)]
        pub(super) fn pin(&self) -> impl Sized {}

        pub(super) fn get<Q>(&self, look: &Look<'_, Q>) -> Option<V>
        where
            K: Borrow<Q>,
            Q: Eq + ?Sized,
        {
            lock(&self.0)
                .iter()
                .find(|(id, key, _)| id.hash == look.hash && key.borrow() == look.key)
                .map(|(_, _, value)| value.clone())
        }

        pub(super) fn insert(&self, id: Id, key: K, value: V) {
            lock(&self.0).push((id, key, value));
        }

        pub(super) fn remove(&self, id: Id) {
            lock(&self.0).retain(|(other, _, _)| *other != id);
        }

        pub(super) fn keys(&self) -> Vec<K>
        where
            K: Clone,
        {
            lock(&self.0)
                .iter()
                .map(|(_, key, _)| key.clone())
                .collect()
        }
    }
}
