//! The map behind the store: values by key, read without a lock.
//!
//! The store asks for a key by a [`Lookup`], and removes it by its [`Id`]. So a removal runs none
//! of the key's own code.

#[cfg(not(tower_breaker_loom))]
pub(super) use self::concurrent::Map;
#[cfg(tower_breaker_loom)]
pub(super) use self::stand_in::Map;

/// The id of a key in the map: its hash, and a number that no other key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) hash: u64,
    pub(super) number: u64,
}

/// A question for the map: a key, which may be borrowed, and its hash.
pub(super) struct Lookup<'a, Q: ?Sized> {
    pub(super) hash: u64,
    pub(super) key: &'a Q,
}

/// The shipped map. Keys come from models, so the hash is keyed.
#[cfg(not(tower_breaker_loom))]
mod concurrent {
    use std::borrow::Borrow;
    use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

    use papaya::Equivalent;

    use super::{Id, Lookup};

    pub(crate) struct Map<K, V> {
        hash_builder: foldhash::fast::RandomState,
        entries: papaya::HashMap<StoredKey<K>, V, BuildHasherDefault<AsItIs>>,
    }

    struct StoredKey<K> {
        id: Id,
        key: K,
    }

    impl<K: Hash + Eq, V: Clone> Map<K, V> {
        pub(crate) fn new() -> Self {
            Self {
                hash_builder: foldhash::fast::RandomState::default(),
                entries: papaya::HashMap::default(),
            }
        }

        /// Hashes `key`.
        pub(crate) fn lookup<'a, Q: Hash + ?Sized>(&self, key: &'a Q) -> Lookup<'a, Q> {
            let hash = self.hash_builder.hash_one(key);
            Lookup { hash, key }
        }

        /// Keeps this thread from dropping what is removed, for as long as the pin lives.
        pub(crate) fn pin(&self) -> impl Sized {
            self.entries.guard()
        }

        pub(crate) fn get<Q>(&self, lookup: &Lookup<'_, Q>) -> Option<V>
        where
            K: Borrow<Q>,
            Q: Eq + ?Sized,
        {
            let entries = self.entries.pin();
            let value = entries.get(lookup).cloned();
            // This may drop keys that were removed, and one of them may panic. A local value is
            // then dropped. A value that was being returned would be leaked, and its machine would
            // be in use for good.
            drop(entries);
            value
        }

        /// Calls `f` with the value. The value is not cloned.
        pub(crate) fn with<Q, R>(
            &self,
            lookup: &Lookup<'_, Q>,
            f: impl FnOnce(&V) -> R,
        ) -> Option<R>
        where
            K: Borrow<Q>,
            Q: Eq + ?Sized,
        {
            self.entries.pin().get(lookup).map(f)
        }

        pub(crate) fn insert(&self, id: Id, key: K, value: V) {
            self.entries.pin().insert(StoredKey { id, key }, value);
        }

        pub(crate) fn remove(&self, id: Id) {
            self.entries.pin().remove(&id);
        }

        pub(crate) fn keys(&self) -> Vec<K>
        where
            K: Clone,
        {
            let entries = self.entries.pin();
            entries.keys().map(|stored| stored.key.clone()).collect()
        }
    }

    impl<K> Hash for StoredKey<K> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.id.hash(state);
        }
    }

    impl<K> PartialEq for StoredKey<K> {
        fn eq(&self, other: &Self) -> bool {
            self.id == other.id
        }
    }

    impl<K> Eq for StoredKey<K> {}

    impl Hash for Id {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write_u64(self.hash);
        }
    }

    impl<K> Equivalent<StoredKey<K>> for Id {
        fn equivalent(&self, stored: &StoredKey<K>) -> bool {
            *self == stored.id
        }
    }

    impl<Q: ?Sized> Hash for Lookup<'_, Q> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write_u64(self.hash);
        }
    }

    impl<K: Borrow<Q>, Q: Eq + ?Sized> Equivalent<StoredKey<K>> for Lookup<'_, Q> {
        fn equivalent(&self, stored: &StoredKey<K>) -> bool {
            self.hash == stored.id.hash && self.key == stored.key.borrow()
        }
    }

    /// A hasher whose input is a hash already.
    #[derive(Default)]
    struct AsItIs(u64);

    impl Hasher for AsItIs {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write_u64(&mut self, hash: u64) {
            self.0 = hash;
        }

        /// Nobody calls it, because only whole hashes are written. Any answer would do.
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
            }
        }
    }
}

/// The map of the loom models.
#[cfg(tower_breaker_loom)]
#[path = "map_for_loom.rs"]
mod stand_in;
