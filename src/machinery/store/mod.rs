//! Cells by key: bounded, and what is live is never evicted.
//!
//! # Looking up
//!
//! The map is read without a lock. A caller that found a cell holds it, then looks at its word; [`SharedMachine::retire`] marks the word, then
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
//! A key's `Hash` runs before the lock is taken, its `Eq` and `Borrow` under it, but before anything is changed; inside, keys go by their hash and a number. So a
//! key that panics breaks nothing. Nothing of the user's is dropped under the lock.

use std::borrow::Borrow;
use std::cmp::{Ordering as Cmp, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt;
use std::hash::Hash;

use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Machine;
use crate::machinery::shared_machine::{MachineRef, Retirement, SharedMachine, settle};
use crate::machinery::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

use map::Map;

/// Who holds an idle cell: the map, and the entry in the order.
const HELD: usize = 2;

/// Cells by key, at most `capacity` of them.
pub(crate) struct Store<K, M: Machine> {
    map: Map<K, Arc<MachineRef<M>>>,
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
    pub(crate) found: Result<Arc<MachineRef<M>>, Arc<MachineRef<M>>>,
    /// The cell that was not clean and made room.
    pub(crate) evicted: Option<Arc<MachineRef<M>>>,
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
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<Arc<MachineRef<M>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let machine_ref = self.map.get(&self.map.lookup(key))?;
        settle();
        self.touch(machine_ref.machine());
        Some(machine_ref)
    }

    /// Asks the cell of `key` what changes nothing, not even the order. The cell is not held: one that is only looked at may be evicted
    /// meanwhile.
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

    #[cfg(any(test, tower_breaker_loom))]
    pub(crate) fn peek<Q>(&self, key: &Q) -> Option<Arc<MachineRef<M>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.map.get(&self.map.lookup(key))
    }

    /// The cell of `key`; made if there is none, and if there is room or something to evict. Waits for insertions and evictions of
    /// others, so it also serves a caller that met a retired cell.
    pub(crate) fn get_or_insert(
        &self,
        key: K,
        now: Timestamp,
        make: impl FnOnce(&K) -> SharedMachine<M>,
    ) -> Inserted<M> {
        // Made before the lock is taken: a key's `Hash` and `Display` are the user's.
        let hash = self.map.lookup(&key).hash;
        let fresh = Arc::new(MachineRef::new(make(&key)));
        let mut key = Some(key);
        // What the map drops, evicted keys among it, it drops after the lock is free; and before anything is returned, as in the map's `get`.
        let pin = self.map.pin();
        let inserted = self.find_or_insert(hash, &mut key, fresh, now);
        drop(pin);
        drop(key);
        inserted
    }

    /// Takes the key if the cell is inserted.
    fn find_or_insert(
        &self,
        hash: u64,
        key: &mut Option<K>,
        fresh: Arc<MachineRef<M>>,
        now: Timestamp,
    ) -> Inserted<M> {
        let mut order = lock(&self.order);
        let look = key.as_ref().map(|key| Look { hash, key });
        if let Some(found) = look.and_then(|look| self.map.get(&look)) {
            // Nothing to settle: whoever evicts comes to this lock, and counts the caller.
            self.touch(found.machine());
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
                    found: Err(fresh),
                    evicted: None,
                };
            };
            self.map.remove(evicted.entry.id);
            gone = Some(evicted);
        }

        // All look-ups before this insertion are older than it, and all after it are newer.
        let mark = (self.tick.load(Ordering::Relaxed) | LOOKS) + 1;
        self.tick.store(mark, Ordering::Relaxed);
        fresh.machine().used().store(mark, Ordering::Relaxed);
        let id = order.next_id(hash);
        if let Some(key) = key.take() {
            self.map.insert(id, key, Arc::clone(&fresh));
        }
        order.waiting.push(Reverse(Entry {
            at: mark,
            id,
            machine_ref: Arc::clone(&fresh),
        }));
        drop(order);
        Inserted {
            found: Ok(fresh),
            evicted: gone.and_then(|gone| (!gone.clean).then_some(gone.entry.machine_ref)),
        }
    }

    /// Takes the cell of `key` out, whatever its state. Calls in flight end in it unseen.
    pub(crate) fn forget<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let look = self.map.lookup(key);
        let _pin = self.map.pin();
        let mut order = lock(&self.order);
        let Some(machine_ref) = self.map.get(&look) else {
            return false;
        };
        if let Some(id) = order.take(&machine_ref) {
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

    /// Marks a cell as used. The order is kept as exact as it has to be; see the module.
    fn touch(&self, machine: &SharedMachine<M>) {
        // Relaxed: callers at the same time may be given one mark, or set the tick back a little. It costs a cell its exact place in the
        // order, no more.
        let tick = self.tick.load(Ordering::Relaxed);
        let used = machine.used().load(Ordering::Relaxed);
        if used == tick {
            return;
        }
        let mark = tick + u64::from(tick & LOOKS != LOOKS);
        if mark != tick {
            self.tick.store(mark, Ordering::Relaxed);
        }
        if used & FILED == 0 {
            machine.used().store(mark, Ordering::Relaxed);
        } else if machine.used().swap(mark, Ordering::Relaxed) & FILED != 0 {
            // Release, after the mark: who sees this sees that the cell is no longer as it was filed. A swap rather than a store, because
            // loom holds it possible that a store goes by the swap of an insertion.
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
    fn evict(&mut self, now: Timestamp) -> Option<Evicted<M>> {
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
    fn examine(
        &mut self,
        mut entry: Entry<M>,
        unclean: bool,
        now: Timestamp,
    ) -> Option<Evicted<M>> {
        match SharedMachine::retire(&entry.machine_ref, HELD, unclean, now) {
            Retirement::Done { clean } => return Some(Evicted { entry, clean }),
            Retirement::Unclean => self.unclean.push(Reverse(entry)),
            Retirement::Held => {
                entry.take_out();
                self.held.push(entry);
            }
            Retirement::Live(deadline) => {
                entry.at = deadline.as_nanos();
                self.cooling.push(Reverse(entry));
            }
        }
        None
    }

    /// Back to those that wait: the cells whose last call has ended, and those whose time is over.
    fn refile_changed(&mut self, now: Timestamp) {
        let mut at = 0;
        while at < self.held.len() {
            if Arc::strong_count(&self.held[at].machine_ref) > HELD {
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
    fn take(&mut self, machine_ref: &Arc<MachineRef<M>>) -> Option<Id> {
        let mut taken = None;
        // No cell ends here under the lock: the caller holds it.
        let mut keep = |entry: &Entry<M>| {
            let found = Arc::ptr_eq(&entry.machine_ref, machine_ref);
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
    machine_ref: Arc<MachineRef<M>>,
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
        self.machine_ref.machine().used()
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
        machines: papaya::HashMap<Stored<K>, V, BuildHasherDefault<AsItIs>>,
    }

    struct Stored<K> {
        id: Id,
        key: K,
    }

    impl<K: Hash + Eq, V: Clone> Map<K, V> {
        pub(super) fn new() -> Self {
            Self {
                keyed: foldhash::fast::RandomState::default(),
                machines: papaya::HashMap::default(),
            }
        }

        pub(super) fn lookup<'a, Q: Hash + ?Sized>(&self, key: &'a Q) -> Look<'a, Q> {
            let hash = self.keyed.hash_one(key);
            Look { hash, key }
        }

        /// While it lives, nothing that is removed is dropped by this thread.
        pub(super) fn pin(&self) -> impl Sized {
            self.machines.guard()
        }

        pub(super) fn get<Q>(&self, look: &Look<'_, Q>) -> Option<V>
        where
            K: Borrow<Q>,
            Q: Eq + ?Sized,
        {
            let machines = self.machines.pin();
            let value = machines.get(look).cloned();
            // Keys that were removed may be dropped here. Should one of them panic, a local value is let go of; one that is being returned
            // would be leaked, and its cell be held for good.
            drop(machines);
            value
        }

        pub(super) fn with<Q, R>(&self, look: &Look<'_, Q>, f: impl FnOnce(&V) -> R) -> Option<R>
        where
            K: Borrow<Q>,
            Q: Eq + ?Sized,
        {
            self.machines.pin().get(look).map(f)
        }

        pub(super) fn insert(&self, id: Id, key: K, value: V) {
            self.machines.pin().insert(Stored { id, key }, value);
        }

        pub(super) fn remove(&self, id: Id) {
            self.machines.pin().remove(&id);
        }

        pub(super) fn keys(&self) -> Vec<K>
        where
            K: Clone,
        {
            let machines = self.machines.pin();
            machines.keys().map(|stored| stored.key.clone()).collect()
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

        /// Never asked for: only whole hashes are written. Any answer would do.
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
            }
        }
    }
}

/// What stands in for it under loom: the same, under a lock that loom watches.
#[cfg(tower_breaker_loom)]
mod map {
    use std::borrow::Borrow;
    use std::hash::{DefaultHasher, Hash, Hasher};

    use super::{Id, Look};
    use crate::machinery::sync::{Mutex, lock};

    pub(super) struct Map<K, V>(Mutex<Vec<(Id, K, V)>>);

    impl<K: Hash + Eq, V: Clone> Map<K, V> {
        pub(super) fn new() -> Self {
            Self(Mutex::new(Vec::new()))
        }

        pub(super) fn lookup<'a, Q: Hash + ?Sized>(&self, key: &'a Q) -> Look<'a, Q> {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            let hash = hasher.finish();
            Look { hash, key }
        }

        #[allow(clippy::unused_self)] // The real one has something to pin.
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

        pub(super) fn with<Q, R>(&self, look: &Look<'_, Q>, f: impl FnOnce(&V) -> R) -> Option<R>
        where
            K: Borrow<Q>,
            Q: Eq + ?Sized,
        {
            let found = self.get(look)?;
            Some(f(&found))
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hasher;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;
    use crate::machinery::machine::Retention;
    use crate::machinery::observers::Observers;
    use crate::machinery::shared_machine::tests::{TestMachine, examined, machine};

    type TestRef = Arc<MachineRef<TestMachine>>;

    const NOW: Timestamp = Timestamp::START;

    fn timestamp(at: u64) -> Timestamp {
        Timestamp::from_nanos(at)
    }

    fn insert<K: Hash + Eq>(
        store: &Store<K, TestMachine>,
        key: K,
        now: Timestamp,
    ) -> Inserted<TestMachine> {
        store.get_or_insert(key, now, |_| machine(Observers::default()))
    }

    /// A call with `key` that leaves its circuit in `rest`, until `until`.
    fn call(store: &Store<u32, TestMachine>, key: u32, rest: Retention, deadline: Timestamp) {
        let found = store
            .get(&key)
            .map_or_else(|| insert(store, key, NOW).found, Ok);
        set(
            &found.unwrap_or_else(|_| panic!("no room for {key}")),
            rest,
            deadline,
        );
    }

    fn set(machine_ref: &TestRef, rest: Retention, deadline: Timestamp) {
        machine_ref.machine().step(|lamp, (), _| {
            lamp.rest = rest;
            lamp.deadline = deadline;
        });
    }

    fn sorted(store: &Store<u32, TestMachine>) -> Vec<u32> {
        let mut keys = store.keys();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_store_finds_what_was_inserted_and_nothing_else() {
        let store = Store::<String, TestMachine>::new(2);
        assert_eq!(store.capacity(), 2);
        assert!(store.get("a").is_none());
        assert!(store.peek("a").is_none());
        let made = insert(&store, "a".to_owned(), NOW).found.ok().unwrap();
        let again = insert(&store, "a".to_owned(), NOW).found.ok().unwrap();
        for found in [store.get("a").unwrap(), store.peek("a").unwrap(), again] {
            assert!(Arc::ptr_eq(&made, &found));
        }
        assert!(store.get("b").is_none());
        assert_eq!(store.keys(), ["a"]);
        assert_eq!(format!("{store:?}"), "Store { len: 1, capacity: 2, .. }");
    }

    #[test]
    fn the_clean_go_first_least_recently_used_first() {
        let store = Store::new(3);
        for key in [1, 2, 3] {
            call(&store, key, Retention::Clean, NOW);
        }
        store.get(&1);
        store.peek(&2);
        call(&store, 4, Retention::Clean, NOW);
        assert_eq!(
            sorted(&store),
            [1, 3, 4],
            "a look without a call moves nothing"
        );
        call(&store, 3, Retention::Unclean, NOW);
        store.get(&1);
        store.get(&4);
        call(&store, 5, Retention::Clean, NOW);
        assert_eq!(
            sorted(&store),
            [3, 4, 5],
            "the unclean one stays, though it is older"
        );
    }

    #[test]
    fn the_one_inserted_last_goes_after_the_one_looked_up_before() {
        let store = Store::new(2);
        call(&store, 1, Retention::Clean, NOW);
        store.get(&1);
        call(&store, 2, Retention::Clean, NOW);
        call(&store, 3, Retention::Clean, NOW);
        assert_eq!(sorted(&store), [2, 3]);
    }

    #[test]
    fn an_eviction_is_reported_of_the_unclean_only() {
        let store = Store::new(1);
        call(&store, 1, Retention::Clean, NOW);
        assert!(insert(&store, 2, NOW).evicted.is_none());
        call(&store, 2, Retention::Unclean, NOW);
        let two = store.peek(&2).map(|machine_ref| Arc::as_ptr(&machine_ref));
        let inserted = insert(&store, 3, NOW);
        assert!(inserted.found.is_ok());
        assert_eq!(
            inserted
                .evicted
                .map(|machine_ref| Arc::as_ptr(&machine_ref)),
            two
        );
        assert_eq!(sorted(&store), [3]);
    }

    #[test]
    fn what_is_live_stays_and_a_new_key_finds_no_room() {
        let store = Store::new(2);
        call(&store, 1, Retention::Live, timestamp(10));
        call(&store, 2, Retention::Clean, NOW);
        let in_flight = store.get(&2).unwrap();
        let full = insert(&store, 3, NOW);
        assert!(full.found.is_err() && full.evicted.is_none());
        drop(full);
        assert!(insert(&store, 3, timestamp(9)).found.is_err());
        assert_eq!(sorted(&store), [1, 2]);
        assert!(
            insert(&store, 1, NOW).found.is_ok(),
            "a key that is there needs no room"
        );

        assert!(
            insert(&store, 3, timestamp(10)).evicted.is_some(),
            "its time is over"
        );
        assert_eq!(sorted(&store), [2, 3]);
        drop(in_flight);
        insert(&store, 4, timestamp(10));
        assert_eq!(sorted(&store), [3, 4], "and so is that call");
    }

    #[test]
    fn a_cell_that_a_call_made_clean_is_clean_again_for_the_store() {
        for (rest, deadline) in [
            (Retention::Unclean, NOW),
            (Retention::Live, Timestamp::NEVER),
        ] {
            let store = Store::new(2);
            call(&store, 1, rest, deadline);
            call(&store, 2, Retention::Live, Timestamp::NEVER);
            assert!(insert(&store, 3, NOW).found.is_ok() == (rest == Retention::Unclean));
            let store = Store::new(3);
            call(&store, 1, rest, deadline);
            call(&store, 2, Retention::Unclean, NOW);
            call(&store, 3, Retention::Live, Timestamp::NEVER);
            // Files all three, and takes the second or the first.
            let gone = if rest == Retention::Unclean { 1 } else { 2 };
            insert(&store, 4, NOW);
            assert!(store.peek(&gone).is_none());
            call(&store, 3, Retention::Clean, NOW);
            call(&store, 4, Retention::Unclean, NOW);
            insert(&store, 5, NOW);
            assert!(
                store.peek(&3).is_none(),
                "the clean one goes, though it is newer"
            );
        }
    }

    #[test]
    fn only_the_first_look_up_of_a_filed_cell_leaves_word() {
        let store = Store::new(3);
        call(&store, 1, Retention::Unclean, NOW);
        call(&store, 2, Retention::Live, Timestamp::NEVER);
        call(&store, 3, Retention::Clean, NOW);
        let in_flight = store.get(&3).unwrap();
        insert(&store, 4, NOW);
        let stirred_by = |key| {
            store.stirred.store(0, Ordering::Relaxed);
            store.get(&key);
            store.stirred.load(Ordering::Relaxed) != 0
        };
        assert!(!stirred_by(3), "a call in flight is looked at again anyway");
        assert!(!stirred_by(4), "it was never filed");
        assert!(stirred_by(2));
        assert!(!stirred_by(3) && !stirred_by(2));
        drop(in_flight);
    }

    /// What a store must do, in the plainest words: a list, least recently used first.
    #[derive(Default)]
    struct Plain {
        machines: Vec<PlainCell>,
    }

    struct PlainCell {
        key: u32,
        rest: Retention,
        deadline: u64,
        held: Vec<TestRef>,
    }

    impl Plain {
        fn evict(&mut self, now: u64) -> Option<(u32, Retention)> {
            let rest = |machine: &PlainCell| match machine.rest {
                _ if !machine.held.is_empty() => Retention::Live,
                Retention::Live if machine.deadline <= now => Retention::Unclean,
                rest => rest,
            };
            let find = |wanted| {
                self.machines
                    .iter()
                    .position(|machine| rest(machine) == wanted)
            };
            let at = find(Retention::Clean).or_else(|| find(Retention::Unclean))?;
            let machine = self.machines.remove(at);
            Some((machine.key, rest(&machine)))
        }
    }

    #[test]
    fn any_serial_history_evicts_as_the_plain_list_does() {
        for seed in 0..40_u64 {
            let mut state = seed;
            let mut random = move |below: u64| {
                // Knuth's multiplier; the upper bits are good enough.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) % below
            };
            let capacity = 1 + usize::try_from(seed % 7).unwrap();
            let store = Store::<u32, TestMachine>::new(capacity);
            let mut plain = Plain::default();
            let mut now = 0;
            for step in 0..2000 {
                now += random(3);
                let key = u32::try_from(random(12)).unwrap();
                let known = plain.machines.iter().position(|machine| machine.key == key);
                match (random(8), known) {
                    (0, _) => {
                        assert_eq!(store.peek(&key).is_some(), known.is_some());
                    }
                    (1, Some(at)) => {
                        // A call begins.
                        let mut machine = plain.machines.remove(at);
                        machine.held.push(store.get(&key).unwrap());
                        plain.machines.push(machine);
                    }
                    (2, Some(at)) => {
                        // Calls end, and what they say changes the cell.
                        let machine = &mut plain.machines[at];
                        machine.deadline = now + random(9);
                        machine.rest = [Retention::Clean, Retention::Unclean, Retention::Live]
                            [usize::try_from(random(3)).unwrap()];
                        if let Some(machine_ref) = machine.held.first() {
                            set(machine_ref, machine.rest, timestamp(machine.deadline));
                        } else {
                            set(
                                &store.get(&key).unwrap(),
                                machine.rest,
                                timestamp(machine.deadline),
                            );
                            let machine = plain.machines.remove(at);
                            plain.machines.push(machine);
                        }
                    }
                    (3, Some(at)) => plain.machines[at].held.clear(),
                    (4, _) if random(20) == 0 => {
                        assert_eq!(store.forget(&key), known.is_some());
                        plain.machines.retain(|machine| machine.key != key);
                    }
                    _ => {
                        let inserted = insert(&store, key, timestamp(now));
                        if let Some(at) = known {
                            let machine = plain.machines.remove(at);
                            plain.machines.push(machine);
                            assert!(inserted.found.is_ok() && inserted.evicted.is_none());
                        } else {
                            let full = plain.machines.len() == capacity;
                            let gone = full.then(|| plain.evict(now)).flatten();
                            assert_eq!(
                                inserted.found.is_err(),
                                full && gone.is_none(),
                                "seed {seed} step {step}"
                            );
                            let unclean = matches!(gone, Some((_, Retention::Unclean)));
                            assert_eq!(
                                inserted.evicted.is_some(),
                                unclean,
                                "seed {seed} step {step}"
                            );
                            if inserted.found.is_ok() {
                                plain.machines.push(PlainCell {
                                    key,
                                    rest: Retention::Clean,
                                    deadline: 0,
                                    held: Vec::new(),
                                });
                            }
                        }
                    }
                }
                let mut keys: Vec<_> = plain.machines.iter().map(|machine| machine.key).collect();
                keys.sort_unstable();
                assert_eq!(sorted(&store), keys, "seed {seed} step {step}");
                assert_eq!(lock(&store.order).len(), keys.len());
            }
        }
    }

    #[test]
    fn forgetting_takes_a_cell_out_whatever_its_state() {
        let store = Store::new(4);
        call(&store, 1, Retention::Clean, NOW);
        call(&store, 2, Retention::Unclean, NOW);
        call(&store, 3, Retention::Live, Timestamp::NEVER);
        call(&store, 4, Retention::Unclean, NOW);
        let four = store.get(&4).unwrap();
        insert(&store, 5, NOW);
        insert(&store, 6, NOW);
        // Now one is unclean, one live, one held, and one waits.
        assert_eq!(sorted(&store), [2, 3, 4, 6]);
        for key in [2, 3, 4, 6] {
            let machine_ref = store.get(&key).unwrap();
            assert!(store.forget(&key));
            assert!(!store.forget(&key));
            assert!(
                machine_ref.machine().packed().is_busy(),
                "nobody is admitted there any more"
            );
            assert!(
                machine_ref
                    .machine()
                    .step_unless_retired(|_, (), _| ())
                    .is_err()
            );
        }
        assert!(store.keys().is_empty());
        assert_eq!(lock(&store.order).len(), 0);
        call(&store, 4, Retention::Clean, NOW);
        assert!(!Arc::ptr_eq(&four, &store.get(&4).unwrap()));
    }

    #[test]
    fn a_capacity_of_one_is_enough_for_one() {
        let store = Store::new(1);
        for key in 0..100 {
            call(&store, key, Retention::Clean, NOW);
            assert_eq!(sorted(&store), [key]);
        }
    }

    #[test]
    fn a_cell_that_comes_after_very_many_look_ups_is_newer_than_all_that_were_looked_up() {
        let store = Store::new(2);
        for key in [1, 2] {
            assert!(insert(&store, key, NOW).found.is_ok());
        }
        for _ in 0..LOOKS {
            store.get(&1);
            store.get(&2);
        }
        for key in [3, 4, 5] {
            assert!(insert(&store, key, NOW).found.is_ok());
        }
        assert_eq!(sorted(&store), [4, 5]);
    }

    #[test]
    fn look_ups_past_what_the_tick_counts_keep_working_without_a_shared_write() {
        let store = Store::new(3);
        for key in [1, 2, 3] {
            call(&store, key, Retention::Clean, NOW);
        }
        for _ in 0..40_000 {
            store.get(&1);
            store.get(&3);
        }
        let tick = store.tick.load(Ordering::Relaxed);
        assert_eq!(tick & LOOKS, LOOKS);
        store.get(&1);
        store.get(&3);
        assert_eq!(store.tick.load(Ordering::Relaxed), tick);
        call(&store, 4, Retention::Clean, NOW);
        assert_eq!(
            sorted(&store),
            [1, 3, 4],
            "who was not looked up goes first"
        );
        store.get(&1);
        call(&store, 5, Retention::Clean, NOW);
        assert_eq!(sorted(&store), [1, 4, 5], "and the order is exact again");
    }

    #[test]
    fn a_crowd_of_the_dead_or_the_cooling_is_not_looked_at_again_for_each_new_key() {
        const CROWD: u32 = 1000;
        for (rest, deadline) in [
            (Retention::Unclean, NOW),
            (Retention::Live, timestamp(1000)),
        ] {
            let store = Store::new(CROWD as usize);
            for key in 0..CROWD {
                call(&store, key, rest, deadline);
            }
            let before = examined();
            for key in CROWD..3 * CROWD {
                let found = insert(&store, key, NOW).found;
                assert_eq!(found.is_ok(), rest == Retention::Unclean);
                if let Ok(machine_ref) = found {
                    set(&machine_ref, rest, deadline);
                }
            }
            let looks = examined() - before;
            assert!(looks <= 3 * 2 * u64::from(CROWD), "{looks} looks");
            assert!(
                insert(&store, 0, timestamp(1000)).found.is_ok(),
                "the dead make room"
            );
        }
    }

    #[test]
    fn many_keys_pass_through_a_small_store_and_the_live_stay() {
        let store = Store::new(1000);
        for key in 0..10 {
            call(&store, key, Retention::Live, Timestamp::NEVER);
        }
        for key in 10..50_000 {
            call(&store, key, Retention::Clean, NOW);
        }
        let keys = sorted(&store);
        assert_eq!(keys.len(), 1000);
        assert_eq!(keys[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(keys[10..], *(49_010..50_000).collect::<Vec<_>>());
    }

    thread_local!(static FUSE: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) });

    /// Code of the user's: panics when the fuse has burnt down.
    fn burn() {
        let left = FUSE.get();
        FUSE.set(left.map(|left| left.saturating_sub(1)));
        assert_ne!(left, Some(0), "a key's");
    }

    #[derive(Debug)]
    struct Hostile(u32);

    impl Hash for Hostile {
        fn hash<H: Hasher>(&self, state: &mut H) {
            burn();
            // Few hashes, so that `Eq` has work.
            state.write_u32(self.0 % 2);
        }
    }

    impl PartialEq for Hostile {
        fn eq(&self, other: &Self) -> bool {
            burn();
            self.0 == other.0
        }
    }

    impl Eq for Hostile {}

    impl Clone for Hostile {
        fn clone(&self) -> Self {
            burn();
            Self(self.0)
        }
    }

    #[test]
    fn a_key_that_panics_anywhere_wedges_nothing() {
        let ops: [fn(&Store<Hostile, TestMachine>); 5] = [
            |store| drop(store.get(&Hostile(1))),
            |store| drop(insert(store, Hostile(9), NOW)),
            |store| drop(insert(store, Hostile(2), NOW)),
            |store| assert!(store.forget(&Hostile(3))),
            |store| drop(store.keys()),
        ];
        let mut panics = 0;
        for op in ops {
            for fuse in 0.. {
                let store = Store::new(4);
                for key in 0..4 {
                    insert(&store, Hostile(key), NOW);
                }
                FUSE.set(Some(fuse));
                let result = catch_unwind(AssertUnwindSafe(|| op(&store)));
                FUSE.set(None);

                let keys: HashSet<_> = store.keys().into_iter().map(|key| key.0).collect();
                assert_eq!(keys.len(), lock(&store.order).len(), "{keys:?}");
                for key in &keys {
                    let machine_ref = store.get(&Hostile(*key)).unwrap();
                    assert!(
                        !machine_ref.machine().packed().is_busy(),
                        "no retired machine is left"
                    );
                }
                for key in 10..20 {
                    insert(&store, Hostile(key), NOW);
                    assert!(store.peek(&Hostile(key)).is_some());
                    assert!(store.keys().len() <= 4);
                }
                if result.is_ok() {
                    break;
                }
                panics += 1;
            }
        }
        assert!(panics >= 10, "{panics} places were tried");
    }

    #[test]
    fn a_cell_that_cannot_be_made_changes_nothing() {
        let store = Store::<u32, TestMachine>::new(1);
        call(&store, 1, Retention::Clean, NOW);
        let make = |_: &u32| -> SharedMachine<TestMachine> { panic!("a key's `Display`") };
        assert!(catch_unwind(AssertUnwindSafe(|| store.get_or_insert(2, NOW, make))).is_err());
        assert_eq!(store.keys(), [1]);
        call(&store, 2, Retention::Clean, NOW);
        assert_eq!(store.keys(), [2]);
    }

    #[test]
    fn a_key_may_come_back_to_the_store_when_it_is_dropped() {
        struct Back(u32, std::rc::Weak<Store<Back, TestMachine>>);
        impl Hash for Back {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }
        impl PartialEq for Back {
            fn eq(&self, other: &Self) -> bool {
                self.0 == other.0
            }
        }
        impl Eq for Back {}
        impl Drop for Back {
            fn drop(&mut self) {
                if let Some(store) = self.1.upgrade() {
                    assert!(!format!("{store:?}").is_empty());
                }
            }
        }
        let store = Rc::new(Store::new(2));
        for key in 0..5000 {
            insert(&store, Back(key, Rc::downgrade(&store)), NOW);
            insert(&store, Back(key, Rc::downgrade(&store)), NOW);
        }
    }
}
