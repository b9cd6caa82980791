//! One circuit for each key.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::mem;
use std::task::{Context, Poll};

use super::{CircuitRef, Gate, Renew, acquire_unless_retired, deny};
use crate::circuit_breaker::circuit::{Circuit, Rules};
use crate::circuit_breaker::health_router::HealthRouter;
use crate::circuit_breaker::permit::CallPermit;
use crate::machinery::denied::Denied;
use crate::machinery::keyed::{self, Borrowed, ExtractKey, KeyedMachines, Owned};
use crate::machinery::shared_machine::Environment;
use crate::machinery::sync::Arc;
use crate::vocabulary::{Event, Failure, Name, Refusal};

/// One circuit for each key, which `S` finds in the request.
pub struct PerKey<K, S> {
    circuits: Arc<Circuits<K>>,
    extract: S,
    /// Whether the inner service was polled ready for one call.
    ready: bool,
}

impl<K, S> PerKey<K, S> {
    pub(crate) fn new(circuits: Circuits<K>, extract: S) -> Self {
        Self {
            circuits: Arc::new(circuits),
            extract,
            ready: false,
        }
    }

    pub(crate) fn circuits(&self) -> &Arc<Circuits<K>> {
        &self.circuits
    }

    pub(crate) fn into_extract(self) -> S {
        self.extract
    }
}

impl<K, S, Req> Gate<Req> for PerKey<K, S>
where
    K: Hash + Eq,
    S: Route<K, Req>,
{
    fn poll_ask(&mut self, _: &mut Context<'_>) -> Poll<bool> {
        // The key is not known yet.
        self.ready = false;
        Poll::Ready(true)
    }

    fn poll_wait(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn readied(&mut self) {
        self.ready = true;
    }

    fn readiness_failed(&mut self, _: Failure) {}

    #[inline]
    fn admit_lock_free(&mut self) -> Option<CallPermit> {
        None
    }

    #[inline]
    fn refuse_lock_free(&mut self) -> Option<Refusal> {
        None
    }

    fn admit(&mut self, req: &mut Req) -> Result<CallPermit, Refusal> {
        if mem::take(&mut self.ready) {
            self.extract.admit(&self.circuits, req)
        } else {
            let key = self.extract.key().own(req);
            Err(self.circuits.not_ready(&key))
        }
    }
}

impl<K: Hash + Eq + Clone, S> Renew for PerKey<K, S> {
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>, seed: u64) -> Self {
        let circuits = Circuits {
            keyed: self.circuits.keyed.renew(environment, name, seed),
            router: self.circuits.router.clone(),
        };
        Self::new(circuits, self.extract)
    }
}

impl<K, S: Clone> Clone for PerKey<K, S> {
    fn clone(&self) -> Self {
        Self {
            circuits: Arc::clone(&self.circuits),
            extract: self.extract.clone(),
            // New clones shouldn't carry the readiness state.
            ready: false,
        }
    }
}

impl<K, S> fmt::Debug for PerKey<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerKey")
            .field("circuits", &self.circuits)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

// ===== the circuits =====

/// The circuits of a keyed layer, and the substitutes of its keys.
pub(crate) struct Circuits<K> {
    keyed: KeyedMachines<K, Circuit>,
    router: HealthRouter,
}

/// A circuit that denied a call, and why.
pub(super) struct DeniedBy {
    pub(super) machine_ref: CircuitRef,
    pub(super) denied: Denied,
}

impl<K: Hash + Eq> Circuits<K> {
    pub(crate) fn new(keyed: KeyedMachines<K, Circuit>) -> Self {
        Self {
            keyed,
            router: HealthRouter::default(),
        }
    }

    pub(crate) fn keyed(&self) -> &KeyedMachines<K, Circuit> {
        &self.keyed
    }

    pub(crate) fn router(&self) -> &HealthRouter {
        &self.router
    }

    /// New circuits, whose keys have the substitutes of `router`.
    pub(crate) fn with_router(&self, router: HealthRouter) -> Self {
        let keyed = self.keyed.anew();
        Self { keyed, router }
    }

    /// Asks the gate of the circuit that was `found` for a key, or of one that is made for the key
    /// to `own`. If every circuit in the store is live, the call runs without a permit.
    #[inline]
    pub(super) fn acquire(
        &self,
        found: Option<CircuitRef>,
        own: impl Fn() -> K,
    ) -> Result<CallPermit, DeniedBy> {
        if let Some(machine_ref) = found {
            let packed = machine_ref.machine().packed();
            if packed.admits_all() {
                return Ok(CallPermit::plain(machine_ref, packed));
            }
            return self.acquire_slow(Some(machine_ref), own);
        }
        self.acquire_slow(None, own)
    }

    /// The slow path of [`acquire`](Self::acquire): the circuit has yet to be made, or does not
    /// admit every call. Out of line, so that the fast path does not carry what this one needs.
    #[inline(never)]
    fn acquire_slow(
        &self,
        found: Option<CircuitRef>,
        own: impl Fn() -> K,
    ) -> Result<CallPermit, DeniedBy> {
        match self.keyed.ask(found, own, acquire_unless_retired) {
            Ok((machine_ref, Ok(ticket))) => Ok(CallPermit::new(machine_ref, ticket)),
            Ok((machine_ref, Err(denied))) => Err(DeniedBy {
                machine_ref,
                denied,
            }),
            Err(unguarded) => {
                keyed::tell_unguarded(unguarded.machine());
                Ok(CallPermit::none())
            }
        }
    }

    /// [`acquire`](Self::acquire), with the answer to a call that is denied.
    #[inline]
    pub(crate) fn admit(
        &self,
        found: Option<CircuitRef>,
        own: impl Fn() -> K,
    ) -> Result<CallPermit, Refusal> {
        self.acquire(found, own)
            .or_else(|by| deny(by.machine_ref.machine(), by.denied))
    }

    /// Refuses a call whose inner service was not polled ready. It makes no circuit.
    fn not_ready(&self, key: &K) -> Refusal {
        let refusal = Denied::NOT_READY.refusal(Refusal::breaker, self.keyed.name_of(key));
        let observers = self.keyed.observers();
        if !observers.is_empty() {
            observers.tell(&Event::Refused {
                refusal: &refusal,
                observe_only: false,
            });
        }
        refusal
    }
}

impl<K> fmt::Debug for Circuits<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.keyed.fmt(f)
    }
}

// ===== the key of a request =====

/// To which circuit a keyed gate sends a request.
pub(crate) trait Route<K: Hash + Eq, Req> {
    /// How the key of a request is found.
    fn key(&self) -> &impl ExtractKey<K, Req>;

    /// Asks the gate of the circuit of the request's own key.
    fn admit(&self, circuits: &Circuits<K>, req: &mut Req) -> Result<CallPermit, Refusal> {
        let key = self.key();
        let found = key.get(circuits.keyed.store(), req);
        circuits.admit(found, || key.own(req))
    }
}

impl<K, F, Q, Req> Route<K, Req> for Borrowed<F, Q>
where
    K: Hash + Eq + Borrow<Q>,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    F: Fn(&Req) -> &Q,
{
    fn key(&self) -> &impl ExtractKey<K, Req> {
        self
    }
}

impl<K, F, Req> Route<K, Req> for Owned<F>
where
    K: Hash + Eq,
    F: Fn(&Req) -> K,
{
    fn key(&self) -> &impl ExtractKey<K, Req> {
        self
    }
}
