//! The machines of a layer by key, and the events that an insertion causes.

use std::fmt;
use std::hash::Hash;

use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::machine::Machine;
use crate::machinery::observers::Observers;
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{Environment, MachineRef, Retired, SharedMachine};
use crate::machinery::store::Store;
use crate::machinery::sync::Arc;
use crate::vocabulary::{Event, Name, State};

pub(crate) use crate::machinery::extract_key::ExtractKey;
pub use crate::machinery::extract_key::{Borrowed, Owned};

/// A machine of which a layer may have one for each key.
pub(crate) trait KeyedMachine: Machine {
    /// The value from which a machine is made, besides the rules and its key.
    type Seed: Copy;

    /// Makes the machine of a key that has none.
    fn made<K: Hash>(rules: &Self::Rules, seed: Self::Seed, key: &K) -> Self;

    /// Returns the time, if the machine depends on it.
    fn now(rules: &Self::Rules, clock: &Clock) -> Timestamp;

    /// Returns the state as it is at `now`. `packed` holds what was counted without the lock.
    fn state(&self, packed: PackedState, rules: &Self::Rules, now: Timestamp) -> State;
}

/// A machine and its answer. If every machine in the store is live, then `Err` holds the new one,
/// which found no room.
pub(crate) type AskResult<M, R> = Result<(Arc<MachineRef<M>>, R), Arc<MachineRef<M>>>;

/// The machines of a layer that has one for each key.
pub(crate) struct KeyedMachines<K, M: KeyedMachine> {
    store: Store<K, M>,
    environment: Arc<Environment<M::Rules>>,
    /// Names the machine of a key. Without it, the machine has the name of the layer.
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

    /// Returns an empty set of machines for the same kind of key, with what a setter has changed.
    pub(crate) fn renew(
        &self,
        environment: &Arc<Environment<M::Rules>>,
        name: Option<&Name>,
        seed: M::Seed,
    ) -> Self {
        let (capacity, environment) = (self.store.capacity(), Arc::clone(environment));
        Self::new(capacity, self.name_of, environment, name.cloned(), seed)
    }

    /// Does what [`renew`](Self::renew) does, with nothing changed.
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

    /// The name of the layer.
    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// The name of the machine of `key`.
    pub(crate) fn name_of(&self, key: &K) -> Option<Name> {
        self.name_of
            .map(|name_of| name_of(key))
            .or_else(|| self.name.clone())
    }

    fn make(&self, key: &K) -> SharedMachine<M> {
        let machine = M::made(&self.environment.rules, self.seed, key);
        SharedMachine::new(machine, self.name_of(key), Arc::clone(&self.environment))
    }

    /// Returns the machine of `key`, and makes it if there is none. If every machine in the store
    /// is live, then `Err` holds the new one, which found no room.
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

    /// Asks the machine of a key until the machine that answers is in the store.
    ///
    /// The machine is the one that was `found`. If none was found, it is looked up or made under
    /// the key that `own` returns. Returns the machine together with its answer.
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
                // The machine was evicted after it was found. The insertion waits for that
                // eviction.
                Err(Retired) => found = None,
            }
        }
    }
}

/// Tells the observers that a call runs unguarded, because the machine of its key found no room.
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
