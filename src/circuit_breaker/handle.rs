//! Handles, which read and move a circuit from outside the service.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;

use super::circuit::Circuit;
use super::gate::{self, Circuits};
use super::permit::{CallPermit, Permit};
use super::snapshot::CircuitBreakerSnapshot;
use crate::machinery::machine::Machine;
use crate::machinery::shared_machine::{MachineRef, Retired, SharedMachine};
use crate::machinery::store::Store;
use crate::machinery::sync::Arc;
use crate::vocabulary::{Refusal, State};

/// Reads and moves the circuit of a [`CircuitBreakerLayer`](super::CircuitBreakerLayer), and
/// guards code that is not a service.
///
/// # Examples
///
/// ```
/// # use tower_breaker::{CircuitBreakerLayer, Refusal};
/// # fn ask_the_tool() -> Result<u32, std::io::Error> { Ok(42) }
/// # fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let breaker = CircuitBreakerLayer::new().name("search").handle();
///
/// let permit = breaker.try_acquire()?;
/// match ask_the_tool() {
///     Ok(answer) => {
///         permit.success();
///         println!("{answer}");
///     }
///     Err(err) => {
///         permit.failure();
///         return Err(err.into());
///     }
/// }
/// # Ok(())
/// # }
/// # run().unwrap();
/// ```
#[derive(Clone)]
pub struct CircuitBreakerHandle {
    machine_ref: Arc<MachineRef<Circuit>>,
}

impl CircuitBreakerHandle {
    pub(super) fn new(machine_ref: &Arc<MachineRef<Circuit>>) -> Self {
        Self {
            machine_ref: Arc::clone(machine_ref),
        }
    }

    fn machine(&self) -> &SharedMachine<Circuit> {
        self.machine_ref.machine()
    }

    /// Asks the oracle: whether [`try_acquire`](Self::try_acquire) would grant a permit now. The
    /// question changes nothing, however often it is asked.
    #[must_use]
    pub fn would_allow(&self) -> bool {
        gate::would_allow(self.machine())
    }

    /// Asks the gate: grants a permit for one call. Once the cooldown is over, the permit is that
    /// of the probe.
    ///
    /// Under `observe_only`, a permit that records nothing takes the place of a refusal.
    ///
    /// # Errors
    ///
    /// The refusal, if the circuit is open or another call is the probe.
    pub fn try_acquire(&self) -> Result<Permit, Refusal> {
        let machine = self.machine();
        match gate::acquire(machine) {
            Ok(ticket) => Ok(CallPermit::new(Arc::clone(&self.machine_ref), ticket)),
            Err(denied) => gate::deny(machine, denied),
        }
        .map(Permit::new)
    }

    /// The state as it is now. A probe whose lease is over has opened the circuit, noticed or not.
    #[must_use]
    pub fn state(&self) -> State {
        self.snapshot().state
    }

    /// The circuit as it is now.
    #[must_use]
    pub fn snapshot(&self) -> CircuitBreakerSnapshot {
        snapshot(self.machine())
    }

    /// Closes the circuit and forgets everything, whatever the state. The results of calls in
    /// flight are stale.
    pub fn reset(&self) {
        reset(self.machine());
    }

    /// Pins the circuit open, until [`reset`](Self::reset).
    pub fn force_open(&self) {
        // A circuit that is in no store is never retired.
        let _ = force_open(self.machine());
    }
}

impl fmt::Debug for CircuitBreakerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerHandle")
            .field("circuit", &self.machine_ref)
            .finish()
    }
}

fn snapshot(machine: &SharedMachine<Circuit>) -> CircuitBreakerSnapshot {
    let now = machine.now();
    machine.read(|circuit, packed, rules| circuit.snapshot(packed, rules, now))
}

fn reset(machine: &SharedMachine<Circuit>) {
    let now = machine.now();
    machine.step(|circuit, rules, events| circuit.reset(rules, now, events));
}

fn force_open(machine: &SharedMachine<Circuit>) -> Result<(), Retired> {
    let now = machine.now();
    machine.step_unless_retired(|circuit, rules, events| circuit.force_open(rules, now, events))
}

/// Reads and moves the circuits of a layer that has one for each key.
///
/// Every method takes a key. Questions make no circuit.
pub struct KeyedCircuitBreakerHandle<K> {
    circuits: Arc<Circuits<K>>,
}

impl<K> KeyedCircuitBreakerHandle<K> {
    pub(super) fn new(circuits: &Arc<Circuits<K>>) -> Self {
        Self {
            circuits: Arc::clone(circuits),
        }
    }
}

impl<K: Hash + Eq + Clone> KeyedCircuitBreakerHandle<K> {
    fn store(&self) -> &Store<K, Circuit> {
        self.circuits.keyed().store()
    }

    /// Asks the oracle: whether [`try_acquire`](Self::try_acquire) would grant a permit now. The
    /// question changes nothing, however often it is asked.
    #[must_use]
    pub fn would_allow<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.store().read(key, gate::would_allow).unwrap_or(true)
    }

    /// Asks the gate: grants a permit for one call with this key. Once the cooldown is over, the
    /// permit is that of the probe.
    ///
    /// The permit records nothing in two cases: under `observe_only`, where it takes the place of
    /// a refusal; and for a new key while every circuit in the store is live.
    ///
    /// # Errors
    ///
    /// The refusal, if the circuit is open or another call is the probe.
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<Permit, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found = self.store().get(key);
        let admitted = self.circuits.admit(found, || key.to_owned());
        admitted.map(Permit::new)
    }

    /// The state as it is now. Closed, for a key without a circuit.
    #[must_use]
    pub fn state<Q>(&self, key: &Q) -> State
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.snapshot(key).state
    }

    /// The circuit as it is now. As new, for a key without a circuit.
    #[must_use]
    pub fn snapshot<Q>(&self, key: &Q) -> CircuitBreakerSnapshot
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(snapshot) = self.store().read(key, snapshot) {
            return snapshot;
        }
        let keyed = self.circuits.keyed();
        let circuit = Circuit::new(keyed.rules(), 0);
        circuit.snapshot(circuit.packed(), keyed.rules(), keyed.now())
    }

    /// Closes the key's circuit, if it has one, and forgets everything, whatever the state. The
    /// results of calls in flight are stale.
    pub fn reset<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // A look-up as for a call. It marks the circuit as touched, because it may be clean now.
        if let Some(machine_ref) = self.store().get(key) {
            reset(machine_ref.machine());
        }
    }

    /// Pins the key's circuit open, until [`reset`](Self::reset). A key without a circuit gets
    /// one.
    ///
    /// Answers with `false` if no circuit could be made, because every circuit in the store is
    /// live.
    pub fn force_open<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found = self.store().get(key);
        let keyed = self.circuits.keyed();
        keyed.ask(found, || key.to_owned(), force_open).is_ok()
    }

    /// Takes the key's circuit out of the store, whatever its state. The next call with the key
    /// gets a new circuit, and the results of calls in flight are lost.
    ///
    /// Answers with whether the key had a circuit.
    pub fn forget<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.store().forget(key)
    }

    /// The keys that have a circuit, in no particular order.
    #[must_use]
    pub fn keys(&self) -> Vec<K> {
        self.store().keys()
    }
}

impl KeyedCircuitBreakerHandle<String> {
    /// Answers where a call for `name` would go now: to `name` itself, or to the first of its
    /// substitutes whose circuit would allow it. `None` if all would refuse. The question changes
    /// nothing.
    #[must_use]
    pub fn resolve<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let substitutes = self.circuits.router().substitutes(name);
        std::iter::once(name)
            .chain(substitutes.iter().map(String::as_str))
            .find(|name| self.would_allow(*name))
    }
}

impl<K> Clone for KeyedCircuitBreakerHandle<K> {
    fn clone(&self) -> Self {
        Self::new(&self.circuits)
    }
}

impl<K> fmt::Debug for KeyedCircuitBreakerHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedCircuitBreakerHandle")
            .field("circuits", &self.circuits)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::CircuitBreakerLayer;

    #[test]
    fn the_store_learns_that_a_circuit_was_reset_or_pinned_by_hand() {
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .per_key(|key: &String| key.as_str(), 1);
        let handle = layer.handle();
        handle.try_acquire("a").unwrap().failure();
        handle.try_acquire("b").unwrap().success();
        assert_eq!(handle.keys(), ["a"], "it is live");
        handle.reset("a");
        handle.try_acquire("b").unwrap().success();
        assert_eq!(handle.keys(), ["b"]);

        assert!(handle.force_open("c"));
        assert_eq!(handle.keys(), ["c"]);
        assert!(!handle.force_open("d"), "a pinned circuit is live");
        handle.reset("c");
        assert!(handle.force_open("d"));
        assert_eq!(handle.keys(), ["d"]);
    }
}
