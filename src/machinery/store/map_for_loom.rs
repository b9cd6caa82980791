//! The map under loom. It does the same under a lock that loom watches.

use std::borrow::Borrow;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Id, Lookup};
use crate::machinery::sync::{Mutex, lock};

pub(crate) struct Map<K, V>(Mutex<Vec<(Id, K, V)>>);

impl<K: Hash + Eq, V: Clone> Map<K, V> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn lookup<'a, Q: Hash + ?Sized>(&self, key: &'a Q) -> Lookup<'a, Q> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        Lookup { hash, key }
    }

    #[allow(clippy::unused_self)] // The shipped map has something to pin.
    pub(crate) fn pin(&self) -> impl Sized {}

    pub(crate) fn get<Q>(&self, lookup: &Lookup<'_, Q>) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        lock(&self.0)
            .iter()
            .find(|(id, key, _)| id.hash == lookup.hash && key.borrow() == lookup.key)
            .map(|(_, _, value)| value.clone())
    }

    pub(crate) fn with<Q, R>(&self, lookup: &Lookup<'_, Q>, f: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let found = self.get(lookup)?;
        Some(f(&found))
    }

    pub(crate) fn insert(&self, id: Id, key: K, value: V) {
        lock(&self.0).push((id, key, value));
    }

    pub(crate) fn remove(&self, id: Id) {
        lock(&self.0).retain(|(other, _, _)| *other != id);
    }

    pub(crate) fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        lock(&self.0)
            .iter()
            .map(|(_, key, _)| key.clone())
            .collect()
    }
}
