//! The cells of a layer by key: how a request's key is found, and what an insertion tells.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::machine::Machine;
use crate::machinery::observers::Observers;
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{Environment, MachineRef, Retired, SharedMachine};
use crate::machinery::store::Store;
use crate::machinery::sync::Arc;
use crate::vocabulary::Name;
use crate::vocabulary::{Event, State};

/// A machine of which a layer may have one for each key.
pub(crate) trait KeyedMachine: Machine {
    /// What it is made from beside the rules and its key.
    type Seed: Copy;

    /// The machine of a key that has none.
    fn made<K: Hash>(rules: &Self::Rules, seed: Self::Seed, key: &K) -> Self;

    /// The time, as far as it matters to it.
    fn now(rules: &Self::Rules, clock: &Clock) -> Timestamp;

    /// The state as it is at `now`; `word` holds what was counted without the lock.
    fn state(&self, packed: PackedState, rules: &Self::Rules, now: Timestamp) -> State;
}

/// A cell and what it answered; or the cell that found no room.
pub(crate) type AskResult<M, R> = Result<(Arc<MachineRef<M>>, R), Arc<MachineRef<M>>>;

/// The cells of a layer with one per key.
pub(crate) struct KeyedMachines<K, M: KeyedMachine> {
    store: Store<K, M>,
    environment: Arc<Environment<M::Rules>>,
    /// What a key's cell is called, if not as the layer is.
    name_of: Option<fn(&K) -> Name>,
    name: Option<Name>,
    seed: M::Seed,
}

impl<K: Hash + Eq, M: KeyedMachine> KeyedMachines<K, M> {
    pub(crate) fn new(
        capacity: usize,
        name_of: Option<fn(&K) -> Name>,
        environment: Arc<Environment<M::Rules>>,
        name: Option<Name>,
        seed: M::Seed,
    ) -> Self {
        Self {
            store: Store::new(capacity),
            environment,
            name_of,
            name,
            seed,
        }
    }

    /// Cells for the same keys, of which there are none yet, with what a setter has changed.
    pub(crate) fn renew(
        &self,
        environment: &Arc<Environment<M::Rules>>,
        name: Option<&Name>,
        seed: M::Seed,
    ) -> Self {
        let (capacity, environment) = (self.store.capacity(), Arc::clone(environment));
        Self::new(capacity, self.name_of, environment, name.cloned(), seed)
    }

    /// The same as [`renew`](Self::renew), with nothing changed.
    pub(crate) fn anew(&self) -> Self {
        self.renew(&self.environment, self.name.as_ref(), self.seed)
    }

    pub(crate) fn store(&self) -> &Store<K, M> {
        &self.store
    }

    pub(crate) fn rules(&self) -> &M::Rules {
        &self.environment.rules
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.environment.observers
    }

    pub(crate) fn now(&self) -> Timestamp {
        M::now(&self.environment.rules, &self.environment.clock)
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

    fn make(&self, key: &K) -> SharedMachine<M> {
        let machine = M::made(&self.environment.rules, self.seed, key);
        SharedMachine::new(machine, self.name_of(key), Arc::clone(&self.environment))
    }

    /// The cell of `key`, made if need be; or, since every cell is live, the one that found no room.
    pub(crate) fn get_or_insert(&self, key: K) -> Result<Arc<MachineRef<M>>, Arc<MachineRef<M>>> {
        let now = self.now();
        let inserted = self.store.get_or_insert(key, now, |key| self.make(key));
        if let Some(evicted) = inserted.evicted {
            let machine = evicted.machine();
            if machine.observed() {
                machine.tell(&Event::Evicted {
                    name: machine.name().map(Name::as_str),
                    state: machine.read(|machine, packed, rules| machine.state(packed, rules, now)),
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
        mut found: Option<Arc<MachineRef<M>>>,
        own: impl Fn() -> K,
        ask: impl Fn(&SharedMachine<M>) -> Result<R, Retired>,
    ) -> AskResult<M, R> {
        loop {
            let machine_ref = found.map_or_else(|| self.get_or_insert(own()), Ok)?;
            match ask(machine_ref.machine()) {
                Ok(answer) => return Ok((machine_ref, answer)),
                // It was evicted after it was found. Asking to insert waits for whoever did it.
                Err(Retired) => found = None,
            }
        }
    }
}

/// Tells that a call runs unguarded, since the `shared_machine` of its key found no room.
pub(crate) fn tell_unguarded<M: Machine>(machine: &SharedMachine<M>) {
    machine.tell(&Event::Unguarded {
        name: machine.name().map(Name::as_str),
    });
}

impl<K, M: KeyedMachine> fmt::Debug for KeyedMachines<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// How the key of a request is found.
pub(crate) trait ExtractKey<K, Req> {
    /// The key's cell, marked as used.
    fn get<M: Machine>(&self, store: &Store<K, M>, req: &Req) -> Option<Arc<MachineRef<M>>>;

    /// Asks the key's cell what changes nothing.
    fn read<M: Machine, R>(
        &self,
        store: &Store<K, M>,
        req: &Req,
        f: impl FnOnce(&SharedMachine<M>) -> R,
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
        // Before it is returned: should the key panic when it is dropped, the hold on the cell would be leaked.
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
