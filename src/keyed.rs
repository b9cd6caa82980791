//! The cells of a layer by key: how a request's key is found, and what an insertion tells.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use crate::cell::{Anchor, Cell, Retired, Shared};
use crate::clock::{Clock, Moment};
use crate::event::{Event, Observers, State};
use crate::machine::{Machine, Word};
use crate::refusal::Name;
use crate::store::Store;
use crate::sync::Arc;

/// A machine of which a layer may have one for each key.
pub(crate) trait Keep: Machine {
    /// What it is made from beside the rules and its key.
    type Seed: Copy;

    /// The machine of a key that has none.
    fn made<K: Hash>(rules: &Self::Rules, seed: Self::Seed, key: &K) -> Self;

    /// The time, as far as it matters to it.
    fn now(rules: &Self::Rules, clock: &Clock) -> Moment;

    /// The state as it is at `now`; `word` holds what was counted without the lock.
    fn state(&self, word: Word, rules: &Self::Rules, now: Moment) -> State;
}

/// A cell and what it answered; or the cell that found no room.
pub(crate) type Asked<M, R> = Result<(Arc<Anchor<M>>, R), Arc<Anchor<M>>>;

/// The cells of a layer with one per key.
pub(crate) struct Keyed<K, M: Keep> {
    store: Store<K, M>,
    shared: Arc<Shared<M::Rules>>,
    /// What a key's cell is called, if not as the layer is.
    name_of: Option<fn(&K) -> Name>,
    name: Option<Name>,
    seed: M::Seed,
}

impl<K: Hash + Eq, M: Keep> Keyed<K, M> {
    pub(crate) fn new(
        capacity: usize,
        name_of: Option<fn(&K) -> Name>,
        shared: Arc<Shared<M::Rules>>,
        name: Option<Name>,
        seed: M::Seed,
    ) -> Self {
        Self {
            store: Store::new(capacity),
            shared,
            name_of,
            name,
            seed,
        }
    }

    /// Cells for the same keys, of which there are none yet, with what a setter has changed.
    pub(crate) fn renew(
        &self,
        shared: &Arc<Shared<M::Rules>>,
        name: Option<&Name>,
        seed: M::Seed,
    ) -> Self {
        let (capacity, shared) = (self.store.capacity(), Arc::clone(shared));
        Self::new(capacity, self.name_of, shared, name.cloned(), seed)
    }

    /// The same as [`renew`](Self::renew), with nothing changed.
    pub(crate) fn anew(&self) -> Self {
        self.renew(&self.shared, self.name.as_ref(), self.seed)
    }

    pub(crate) fn store(&self) -> &Store<K, M> {
        &self.store
    }

    pub(crate) fn rules(&self) -> &M::Rules {
        &self.shared.rules
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.shared.observers
    }

    pub(crate) fn now(&self) -> Moment {
        M::now(&self.shared.rules, &self.shared.clock)
    }

    /// What the layer is called.
    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// What the cell of `key` is called.
    pub(crate) fn name_of(&self, key: &K) -> Option<Name> {
        self.name_of
            .map(|name_of| name_of(key))
            .or_else(|| self.name.clone())
    }

    fn make(&self, key: &K) -> Cell<M> {
        let machine = M::made(&self.shared.rules, self.seed, key);
        Cell::new(machine, self.name_of(key), Arc::clone(&self.shared))
    }

    /// The cell of `key`, made if need be; or, since every cell is live, the one that found no room.
    pub(crate) fn get_or_insert(&self, key: K) -> Result<Arc<Anchor<M>>, Arc<Anchor<M>>> {
        let now = self.now();
        let inserted = self.store.get_or_insert(key, now, |key| self.make(key));
        if let Some(evicted) = inserted.evicted {
            let cell = evicted.cell();
            if cell.observed() {
                cell.tell(&Event::Evicted {
                    name: cell.name().map(Name::as_str),
                    state: cell.look(|machine, word, rules| machine.state(word, rules, now)),
                });
            }
        }
        inserted.found
    }

    /// Asks the cell of a key, which was `found` or is made of the key to `own`, until it is asked in one that is in the store. Answers with the
    /// cell, too; or, since every cell is live, with the one that found no room.
    #[inline]
    pub(crate) fn ask<R>(
        &self,
        mut found: Option<Arc<Anchor<M>>>,
        own: impl Fn() -> K,
        ask: impl Fn(&Cell<M>) -> Result<R, Retired>,
    ) -> Asked<M, R> {
        loop {
            let anchor = found.map_or_else(|| self.get_or_insert(own()), Ok)?;
            match ask(anchor.cell()) {
                Ok(answer) => return Ok((anchor, answer)),
                // It was evicted after it was found. Asking to insert waits for whoever did it.
                Err(Retired) => found = None,
            }
        }
    }
}

/// Tells that a call runs unguarded, since the `cell` of its key found no room.
pub(crate) fn tell_unguarded<M: Machine>(cell: &Cell<M>) {
    cell.tell(&Event::Unguarded {
        name: cell.name().map(Name::as_str),
    });
}

impl<K, M: Keep> fmt::Debug for Keyed<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// How the key of a request is found.
pub(crate) trait Select<K, Req> {
    /// The key's cell, marked as used.
    fn get<M: Machine>(&self, store: &Store<K, M>, req: &Req) -> Option<Arc<Anchor<M>>>;

    /// Asks the key's cell what changes nothing.
    fn look<M: Machine, R>(
        &self,
        store: &Store<K, M>,
        req: &Req,
        f: impl FnOnce(&Cell<M>) -> R,
    ) -> Option<R>;

    /// The key, to be kept.
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

impl<K, F, Q, Req> Select<K, Req> for Borrowed<F, Q>
where
    K: Hash + Eq + Borrow<Q>,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    F: Fn(&Req) -> &Q,
{
    #[inline]
    fn get<M: Machine>(&self, store: &Store<K, M>, req: &Req) -> Option<Arc<Anchor<M>>> {
        store.get(self.of(req))
    }

    fn look<M: Machine, R>(
        &self,
        store: &Store<K, M>,
        req: &Req,
        f: impl FnOnce(&Cell<M>) -> R,
    ) -> Option<R> {
        store.look(self.of(req), f)
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

impl<K, F, Req> Select<K, Req> for Owned<F>
where
    K: Hash + Eq,
    F: Fn(&Req) -> K,
{
    #[inline]
    fn get<M: Machine>(&self, store: &Store<K, M>, req: &Req) -> Option<Arc<Anchor<M>>> {
        let key = (self.f)(req);
        let found = store.get(&key);
        // Before it is returned: should the key panic when it is dropped, the hold on the cell would be leaked.
        drop(key);
        found
    }

    fn look<M: Machine, R>(
        &self,
        store: &Store<K, M>,
        req: &Req,
        f: impl FnOnce(&Cell<M>) -> R,
    ) -> Option<R> {
        store.look(&(self.f)(req), f)
    }

    fn own(&self, req: &Req) -> K {
        (self.f)(req)
    }
}
