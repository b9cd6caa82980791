//! How the key of a request is found.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use crate::machinery::machine::Machine;
use crate::machinery::shared_machine::{MachineRef, SharedMachine};
use crate::machinery::store::Store;
use crate::machinery::sync::Arc;

/// Finds the key of a request.
pub(crate) trait ExtractKey<K, Req> {
    /// Returns the machine of the key, and marks it as used.
    fn get<M: Machine>(&self, store: &Store<K, M>, req: &Req) -> Option<Arc<MachineRef<M>>>;

    /// Reads the machine of the key. Changes nothing.
    fn read<M: Machine, R>(
        &self,
        store: &Store<K, M>,
        req: &Req,
        f: impl FnOnce(&SharedMachine<M>) -> R,
    ) -> Option<R>;

    /// Returns the key, to be kept.
    fn own(&self, req: &Req) -> K;
}

/// The key is part of the request.
pub struct Borrowed<F, Q: ?Sized> {
    f: F,
    _key: PhantomData<fn(&Q)>,
}

impl<F, Q: ?Sized> Borrowed<F, Q> {
    pub(crate) fn new(f: F) -> Self {
        Self {
            f,
            _key: PhantomData,
        }
    }

    /// The key of a request.
    pub(crate) fn of<'a, Req>(&self, req: &'a Req) -> &'a Q
    where
        F: Fn(&Req) -> &Q,
    {
        (self.f)(req)
    }
}

impl<F: Clone, Q: ?Sized> Clone for Borrowed<F, Q> {
    fn clone(&self) -> Self {
        Self::new(self.f.clone())
    }
}

impl<F, Q: ?Sized> fmt::Debug for Borrowed<F, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Borrowed")
    }
}

impl<K, F, Q, Req> ExtractKey<K, Req> for Borrowed<F, Q>
where
    K: Hash + Eq + Borrow<Q>,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    F: Fn(&Req) -> &Q,
{
    #[inline]
    fn get<M: Machine>(&self, store: &Store<K, M>, req: &Req) -> Option<Arc<MachineRef<M>>> {
        store.get(self.of(req))
    }

    fn read<M: Machine, R>(
        &self,
        store: &Store<K, M>,
        req: &Req,
        f: impl FnOnce(&SharedMachine<M>) -> R,
    ) -> Option<R> {
        store.read(self.of(req), f)
    }

    fn own(&self, req: &Req) -> K {
        self.of(req).to_owned()
    }
}

/// The key is made from the request.
#[derive(Clone)]
pub struct Owned<F> {
    f: F,
}

impl<F> Owned<F> {
    pub(crate) fn new(f: F) -> Self {
        Self { f }
    }
}

impl<F> fmt::Debug for Owned<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owned")
    }
}

impl<K, F, Req> ExtractKey<K, Req> for Owned<F>
where
    K: Hash + Eq,
    F: Fn(&Req) -> K,
{
    #[inline]
    fn get<M: Machine>(&self, store: &Store<K, M>, req: &Req) -> Option<Arc<MachineRef<M>>> {
        let key = (self.f)(req);
        let found = store.get(&key);
        // The key is dropped before the reference is returned. If the key panics when it is
        // dropped, then a reference that was being returned would be leaked.
        drop(key);
        found
    }

    fn read<M: Machine, R>(
        &self,
        store: &Store<K, M>,
        req: &Req,
        f: impl FnOnce(&SharedMachine<M>) -> R,
    ) -> Option<R> {
        store.read(&(self.f)(req), f)
    }

    fn own(&self, req: &Req) -> K {
        (self.f)(req)
    }
}
