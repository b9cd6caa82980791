//! How a service asks its circuit: the one it has, or the one of the request's key.

use std::borrow::Borrow;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::WhenOpen;
use super::circuit::{Circuit, Rules, Ticket};
use super::permit::CallPermit;
use crate::circuit_breaker::health_router::HealthRouter;
use crate::machinery::clock::{Clock, Timestamp, nanos};
use crate::machinery::denied::Denied;
use crate::machinery::keyed::{self, Borrowed, ExtractKey, KeyedMachine, KeyedMachines, Owned};
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{
    Environment, MachineRef, RefOwner, Retired, SharedMachine, WaiterGuard,
};
use crate::machinery::sync::Arc;
use crate::vocabulary::Failure;
use crate::vocabulary::{Event, State};
use crate::vocabulary::{Name, Reason, Refusal};

type CircuitRef = Arc<MachineRef<Circuit>>;

/// An answer that was given when polled is looked at again, in `call`, if less than so many nanoseconds were left of the wait.
const NEAR: u64 = 1_000_000_000;

impl Denied {
    fn is_near(self) -> bool {
        self.wait.is_some_and(|wait| nanos(wait) < NEAR)
    }
}

/// What a service asks before a call.
pub(super) trait Gate<Req> {
    /// Asks the oracle anew. With `true`, inner readiness is polled; with `false`, the next call is refused.
    fn poll_ask(&mut self, cx: &mut Context<'_>) -> Poll<bool>;

    /// Inner readiness is pending: has `cx` woken at every transition. Ready when the next call is to be refused.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The inner service is ready for one call.
    fn readied(&mut self);

    /// The inner service failed to become ready.
    fn readiness_failed(&mut self, failure: Failure);

    /// Admits a call that is let through with all others, so that nothing of the request has to be known.
    fn admit_at_once(&mut self) -> Option<CallPermit>;

    /// Refuses a call to which [`poll_ask`](Self::poll_ask) said no, as far as that answer still holds and nobody else has to be told.
    fn refuse_at_once(&mut self) -> Option<Refusal>;

    /// Asks the gate.
    fn admit(&mut self, req: &mut Req) -> Result<CallPermit, Refusal>;
}

/// A layer's gate, which a setter gives state of its own.
pub(super) trait Renew {
    #[must_use]
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>, seed: u64) -> Self;
}

/// The time, read at most once.
struct Now<'a> {
    machine: &'a SharedMachine<Circuit>,
    read: Option<Timestamp>,
}

impl<'a> Now<'a> {
    fn of(machine: &'a SharedMachine<Circuit>) -> Self {
        Self {
            machine,
            read: None,
        }
    }

    fn at(machine: &'a SharedMachine<Circuit>, now: Timestamp) -> Self {
        let read = Some(now);
        Self { machine, read }
    }

    fn get(&mut self) -> Timestamp {
        *self.read.get_or_insert_with(|| self.machine.now())
    }
}

/// The oracle. It reads the clock only where the answer depends on it.
#[inline]
fn ask(machine: &SharedMachine<Circuit>, now: &mut Now<'_>) -> Result<(), Denied> {
    if machine.packed().admits_all() {
        return Ok(());
    }
    ask_slow(machine, now)
}

fn ask_slow(machine: &SharedMachine<Circuit>, now: &mut Now<'_>) -> Result<(), Denied> {
    let packed = machine.packed_before_deadline();
    if let Some(answer) =
        Circuit::try_acquire_lock_free(packed, || machine.deadline(packed), || now.get())
    {
        return answer.map(|_| ());
    }
    let now = now.get();
    machine.read(|circuit, _, rules| circuit.would_allow(rules, now))
}

pub(super) fn would_allow(machine: &SharedMachine<Circuit>) -> bool {
    machine.rules().observe_only || ask(machine, &mut Now::of(machine)).is_ok()
}

/// The gate of a circuit outside a store.
#[inline]
pub(super) fn acquire(machine: &SharedMachine<Circuit>) -> Result<Ticket, Denied> {
    // Only a store retires a circuit; were one retired all the same, the call may come again.
    acquire_stored(machine).unwrap_or(Err(Denied::NOT_READY))
}

/// The gate of a circuit in a store, which may have been evicted since it was looked up.
#[inline]
fn acquire_stored(machine: &SharedMachine<Circuit>) -> Result<Result<Ticket, Denied>, Retired> {
    let packed = machine.packed();
    if packed.admits_all() {
        return Ok(Ok(Ticket::ordinary(packed)));
    }
    acquire_slow(machine)
}

fn acquire_slow(machine: &SharedMachine<Circuit>) -> Result<Result<Ticket, Denied>, Retired> {
    let mut now = Now::of(machine);
    let packed = machine.packed_before_deadline();
    if let Some(answer) =
        Circuit::try_acquire_lock_free(packed, || machine.deadline(packed), || now.get())
    {
        return Ok(answer);
    }
    let now = now.get();
    machine.step_unless_retired(|circuit, rules, events| circuit.try_acquire(rules, now, events))
}

/// What becomes of a call that the gate denies: a refusal, or under `observe_only` a call without a permit.
pub(super) fn deny(
    machine: &SharedMachine<Circuit>,
    denied: Denied,
) -> Result<CallPermit, Refusal> {
    let refusal = denied.refusal(Refusal::breaker, machine.name().cloned());
    let observe_only = machine.rules().observe_only && denied.reason != Reason::NotReady;
    if machine.observed() {
        machine.tell(&Event::Refused {
            refusal: &refusal,
            observe_only,
        });
    }
    if observe_only {
        Ok(CallPermit::none())
    } else {
        Err(refusal)
    }
}

// ===== one circuit =====

/// One circuit for all calls.
pub struct One {
    machine_ref: CircuitRef,
    waiting: Option<Box<Waiting>>,
    /// What the next call has to know of an answer of no.
    noted: u64,
    /// The print of the moment that it came from.
    print: u32,
    ready: Readiness,
    /// Whose count `anchor` is.
    count: RefOwner,
    /// Whether it refuses at once: nobody has to be told, and neither does it only observe nor wait until the circuit closes.
    at_once: bool,
}

/// What a service keeps while it waits.
#[derive(Default)]
struct Waiting {
    waiter: Option<WaiterGuard>,
    /// When the oracle's answer runs out; only with [`WhenOpen::NotReady`].
    timer: Option<Pin<Box<Sleep>>>,
}

/// The lower half of a moment, to tell whether it was moved: there is no room for more in a service. Two moments that have it in common are at least four
/// seconds apart.
#[inline]
#[allow(clippy::cast_possible_truncation)]
fn print(timestamp: Timestamp) -> u32 {
    timestamp.as_nanos() as u32
}

/// For whose call the last `poll_ready` was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Unknown,
    /// For nobody's: the next one is refused. `noted` is when the oracle said no.
    Refused,
    /// The same, and `noted` is how many nanoseconds were left of the cooldown.
    RefusedAtOnce,
    /// With whose count the call will be made.
    Ready(RefOwner),
}

impl One {
    pub(super) fn new(machine_ref: CircuitRef) -> Self {
        let rules = machine_ref.machine().rules();
        Self {
            at_once: rules.when_open == WhenOpen::Refuse
                && !rules.observe_only
                && !machine_ref.machine().observed(),
            machine_ref,
            waiting: None,
            noted: 0,
            print: 0,
            ready: Readiness::Unknown,
            count: RefOwner::Shared,
        }
    }

    /// A circuit of its own.
    pub(super) fn made(
        environment: &Arc<Environment<Rules>>,
        name: Option<&Name>,
        seed: u64,
    ) -> Self {
        let circuit = Circuit::new(&environment.rules, seed);
        let machine = SharedMachine::new(circuit, name.cloned(), Arc::clone(environment));
        Self::new(Arc::new(MachineRef::new(machine)))
    }

    pub(super) fn machine_ref(&self) -> &CircuitRef {
        &self.machine_ref
    }

    /// The anchor for one more permit.
    fn hold(&mut self) -> CircuitRef {
        self.count.hold(&mut self.machine_ref)
    }

    /// Why a call is refused whose inner service is not ready.
    fn why_not_ready(&self, ready: Readiness) -> Denied {
        let machine = self.machine_ref.machine();
        if machine.rules().observe_only {
            return Denied::NOT_READY;
        }
        let mut answer = None;
        if ready == Readiness::Refused && !self.is_moved() {
            // The answer that was given then holds for this call; unless it was about to run out, the clock is not read again.
            let mut asked = Now::at(machine, Timestamp::from_nanos(self.noted));
            answer = Some(ask(machine, &mut asked));
        }
        let answer = match answer {
            Some(answer) if !answer.is_err_and(Denied::is_near) => answer,
            _ => ask(machine, &mut Now::of(machine)),
        };
        let Err(denied) = answer else {
            return Denied::NOT_READY;
        };
        if denied.reason == Reason::CircuitOpen && !Circuit::is_open(machine.packed()) {
            // The probe's lease is over. Whoever is refused for it says so: observers hear of it, and the next one needs no lock to be refused.
            let now = machine.now();
            machine.step(|circuit, rules, events| circuit.expire(rules, now, events));
        }
        denied
    }

    /// Whether the moment of an answer of no has been moved since.
    #[inline]
    fn is_moved(&self) -> bool {
        print(self.machine_ref.machine().any_deadline()) != self.print
    }

    // What `poll_ask` does not answer itself. Two functions, so that it has nothing to prepare for either.

    #[cold]
    #[inline(never)]
    fn poll_ask_slow(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.poll_ask_at(cx, None)
    }

    /// [`poll_ask_closely`](Self::poll_ask_closely) for a caller who has read the time.
    #[cold]
    #[inline(never)]
    fn poll_ask_again(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Poll<bool> {
        self.poll_ask_at(cx, Some(now))
    }

    fn poll_ask_at(&mut self, cx: &mut Context<'_>, read: Option<Timestamp>) -> Poll<bool> {
        self.ready = Readiness::Unknown;
        let machine = self.machine_ref.machine();
        let rules = machine.rules();
        // Before the question: should it move now, the answer will not be held.
        self.print = print(machine.any_deadline());
        let mut now = Now { machine, read };
        match ask(machine, &mut now) {
            Ok(()) => Poll::Ready(true),
            Err(_) if rules.observe_only => Poll::Ready(true),
            Err(_) if rules.when_open == WhenOpen::Refuse => {
                self.noted = now.get().as_nanos();
                self.ready = Readiness::Refused;
                Poll::Ready(false)
            }
            Err(_) => self.poll_allowed(cx).map(|()| true),
        }
    }

    /// Waits while the oracle says no: for a transition, or for the end of what it said no for.
    fn poll_allowed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let machine = self.machine_ref.machine();
        let waiting = self.waiting.get_or_insert_default();
        loop {
            machine.wait(&mut waiting.waiter, cx);
            // Asked after the waker was left, so that no transition goes unnoticed.
            let Err(denied) = ask(machine, &mut Now::of(machine)) else {
                waiting.timer = None;
                return Poll::Ready(());
            };
            let Some(wait) = denied.wait else {
                // Only a transition will end it.
                waiting.timer = None;
                return Poll::Pending;
            };
            let timer = match &mut waiting.timer {
                Some(timer) => {
                    timer.set(sleep(wait));
                    timer
                }
                none => none.insert(Box::pin(sleep(wait))),
            };
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Clone for One {
    fn clone(&self) -> Self {
        // New clones carry neither readiness nor a place among those who wait, and share the count until they are called twice.
        Self::new(Arc::clone(&self.machine_ref))
    }
}

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One")
            .field("circuit", &self.machine_ref)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Renew for One {
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>, seed: u64) -> Self {
        Self::made(environment, name, seed)
    }
}

impl<Req> Gate<Req> for One {
    #[inline]
    fn poll_ask(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let machine = self.machine_ref.machine();
        let packed = machine.packed_before_deadline();
        if packed.admits_all() {
            // What an earlier poll found must not outlive this one, even should the inner service or the classifier unwind.
            self.ready = Readiness::Unknown;
            return Poll::Ready(true);
        }
        if !self.at_once || !Circuit::is_open(packed) {
            return self.poll_ask_slow(cx);
        }
        let now = machine.now();
        match machine.deadline(packed) {
            Some(deadline) if now < deadline => {
                self.noted = deadline.nanos_remaining(now);
                self.print = print(deadline);
                self.ready = Readiness::RefusedAtOnce;
                Poll::Ready(false)
            }
            _ => self.poll_ask_again(cx, now),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ready = Readiness::Unknown;
        let waiting = self.waiting.get_or_insert_default();
        self.machine_ref.machine().wait(&mut waiting.waiter, cx);
        // Anything that moved before the waker was there woke nobody.
        match Gate::<Req>::poll_ask(self, cx) {
            Poll::Ready(false) => Poll::Ready(()),
            Poll::Ready(true) | Poll::Pending => Poll::Pending,
        }
    }

    #[inline]
    fn readied(&mut self) {
        self.ready = Readiness::Ready(self.count);
    }

    fn readiness_failed(&mut self, failure: Failure) {
        self.ready = Readiness::Unknown;
        if let Ok(ticket) = acquire(self.machine_ref.machine()) {
            CallPermit::new(self.hold(), ticket).record(failure.into());
        }
    }

    #[inline]
    fn admit_at_once(&mut self) -> Option<CallPermit> {
        if self.ready != Readiness::Ready(RefOwner::Own) {
            return None;
        }
        let packed = self.machine_ref.machine().packed();
        if !packed.admits_all() {
            return None;
        }
        self.ready = Readiness::Unknown;
        Some(CallPermit::plain(Arc::clone(&self.machine_ref), packed))
    }

    #[allow(clippy::inline_always)] // Made where it is handed over, a refusal is not moved.
    #[inline(always)]
    fn refuse_at_once(&mut self) -> Option<Refusal> {
        if self.ready != Readiness::RefusedAtOnce {
            return None;
        }
        let (machine, left) = (self.machine_ref.machine(), self.noted);
        let packed = machine.packed();
        if !Circuit::is_open(packed) || self.is_moved() || left < NEAR {
            return None;
        }
        self.ready = Readiness::Unknown;
        let name = machine.name().cloned();
        Some(Refusal::open(name, left, packed.last()))
    }

    #[cold]
    fn admit(&mut self, _: &mut Req) -> Result<CallPermit, Refusal> {
        let ready = std::mem::replace(&mut self.ready, Readiness::Unknown);
        let denied = if matches!(ready, Readiness::Ready(_)) {
            match acquire(self.machine_ref.machine()) {
                Ok(ticket) => return Ok(CallPermit::new(self.hold(), ticket)),
                Err(denied) => denied,
            }
        } else {
            self.why_not_ready(ready)
        };
        deny(self.machine_ref.machine(), denied)
    }
}

// ===== one circuit per key =====

/// One circuit for each key, found by `S`.
pub struct PerKey<K, S> {
    circuits: Arc<Circuits<K>>,
    extract: S,
    /// The inner service was polled ready for one call.
    ready: bool,
}

impl<K, S> PerKey<K, S> {
    pub(super) fn new(circuits: Circuits<K>, extract: S) -> Self {
        Self {
            circuits: Arc::new(circuits),
            extract,
            ready: false,
        }
    }

    pub(super) fn circuits(&self) -> &Arc<Circuits<K>> {
        &self.circuits
    }

    pub(super) fn into_extract(self) -> S {
        self.extract
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

impl<K: Hash + Eq + Clone, S> Renew for PerKey<K, S> {
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>, seed: u64) -> Self {
        let circuits = Circuits {
            keyed: self.circuits.keyed.renew(environment, name, seed),
            router: self.circuits.router.clone(),
        };
        Self::new(circuits, self.extract)
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
    fn admit_at_once(&mut self) -> Option<CallPermit> {
        None
    }

    #[inline]
    fn refuse_at_once(&mut self) -> Option<Refusal> {
        None
    }

    fn admit(&mut self, req: &mut Req) -> Result<CallPermit, Refusal> {
        if std::mem::take(&mut self.ready) {
            self.extract.admit(&self.circuits, req)
        } else {
            let key = self.extract.key().own(req);
            Err(self.circuits.not_ready(&key))
        }
    }
}

/// The circuits of a keyed layer.
pub(super) struct Circuits<K> {
    keyed: KeyedMachines<K, Circuit>,
    router: HealthRouter,
}

impl KeyedMachine for Circuit {
    /// Of the jitter.
    type Seed = u64;

    fn made<K: Hash>(rules: &Rules, seed: u64, key: &K) -> Self {
        // The same seed and key jitter alike, in whatever order the keys come.
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        key.hash(&mut hasher);
        Self::new(rules, hasher.finish())
    }

    fn now(_: &Rules, clock: &Clock) -> Timestamp {
        clock.now()
    }

    fn state(&self, packed: PackedState, rules: &Rules, now: Timestamp) -> State {
        self.snapshot(packed, rules, now).state
    }
}

/// Why a call by key is not admitted: by which circuit, and what it said.
struct Kept {
    machine_ref: CircuitRef,
    denied: Denied,
}

impl<K: Hash + Eq> Circuits<K> {
    pub(super) fn new(keyed: KeyedMachines<K, Circuit>) -> Self {
        Self {
            keyed,
            router: HealthRouter::default(),
        }
    }

    pub(super) fn keyed(&self) -> &KeyedMachines<K, Circuit> {
        &self.keyed
    }

    pub(super) fn router(&self) -> &HealthRouter {
        &self.router
    }

    /// As new, with `router` for its substitutes.
    pub(super) fn with_router(&self, router: HealthRouter) -> Self {
        let keyed = self.keyed.anew();
        Self { keyed, router }
    }

    /// Asks the gate of a key's circuit, if one was `found`, or of the one that is made. A call that finds every circuit live runs without a permit.
    #[inline]
    fn acquire(&self, found: Option<CircuitRef>, own: impl Fn() -> K) -> Result<CallPermit, Kept> {
        if let Some(machine_ref) = found {
            let packed = machine_ref.machine().packed();
            if packed.admits_all() {
                return Ok(CallPermit::plain(machine_ref, packed));
            }
            return self.acquire_slow(Some(machine_ref), own);
        }
        self.acquire_slow(None, own)
    }

    /// [`acquire`](Self::acquire) for a key whose circuit has yet to be made, or does not let all calls through. Out of line, so that a call that is let
    /// through does not carry what the others need.
    #[inline(never)]
    fn acquire_slow(
        &self,
        found: Option<CircuitRef>,
        own: impl Fn() -> K,
    ) -> Result<CallPermit, Kept> {
        match self.keyed.ask(found, own, acquire_stored) {
            Ok((machine_ref, Ok(ticket))) => Ok(CallPermit::new(machine_ref, ticket)),
            Ok((machine_ref, Err(denied))) => Err(Kept {
                machine_ref,
                denied,
            }),
            Err(unguarded) => {
                keyed::tell_unguarded(unguarded.machine());
                Ok(CallPermit::none())
            }
        }
    }

    /// [`acquire`](Self::acquire), and what becomes of a call that is denied.
    #[inline]
    pub(super) fn admit(
        &self,
        found: Option<CircuitRef>,
        own: impl Fn() -> K,
    ) -> Result<CallPermit, Refusal> {
        self.acquire(found, own)
            .or_else(|kept| deny(kept.machine_ref.machine(), kept.denied))
    }

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

/// To which circuit a keyed gate sends a request.
pub(super) trait Route<K: Hash + Eq, Req> {
    /// How the request's own key is found.
    fn key(&self) -> &impl ExtractKey<K, Req>;

    /// Asks the gate: that of the request's own key, unless there are others.
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

/// The key is part of the request, and has substitutes.
#[derive(Clone)]
pub struct Routed<F, W> {
    pub(super) key: Borrowed<F, str>,
    pub(super) rewrite: W,
}

impl<F, W> fmt::Debug for Routed<F, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Routed")
    }
}

impl<F, W, Req> Route<String, Req> for Routed<F, W>
where
    F: Fn(&Req) -> &str,
    W: Fn(&mut Req, &str),
{
    fn key(&self) -> &impl ExtractKey<String, Req> {
        &self.key
    }

    fn admit(&self, circuits: &Circuits<String>, req: &mut Req) -> Result<CallPermit, Refusal> {
        let (key, store) = (self.key.of(req), circuits.keyed.store());
        let mut kept = match circuits.acquire(store.get(key), || key.to_owned()) {
            Ok(permit) => return Ok(permit),
            Err(kept) => kept,
        };
        // A layer that only observes sends no call elsewhere, either.
        let substitutes = if circuits.keyed.rules().observe_only {
            &[]
        } else {
            circuits.router.substitutes(key)
        };
        for name in substitutes {
            match circuits.acquire(store.get(name), || name.to_owned()) {
                Ok(permit) => {
                    (self.rewrite)(req, name);
                    return Ok(permit);
                }
                Err(other) => kept.denied.wait = shortest(kept.denied.wait, other.denied.wait),
            }
        }
        deny(kept.machine_ref.machine(), kept.denied)
    }
}

/// The shorter of two waits; one that has no end is longer than any.
fn shortest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};

    use tokio::time::advance;
    use tokio_test::{assert_ready, assert_ready_ok, task};
    use tower_layer::Layer;
    use tower_service::Service;

    use super::*;
    use crate::machinery::clock::reads;
    use crate::{CircuitBreakerHandle, CircuitBreakerLayer, Permit};

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Debug)]
    struct Tool;

    impl Service<()> for Tool {
        type Response = Option<Refusal>;
        type Error = Infallible;
        type Future = Ready<Result<Option<Refusal>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            ready(Ok(None))
        }
    }

    /// Polls a service of an open circuit ready, lets `between` happen, and calls it: the refusal, and how often the call read the clock.
    fn refused(
        cooldown: Duration,
        between: impl FnOnce(&CircuitBreakerHandle, Permit),
    ) -> (Refusal, u64) {
        let layer = CircuitBreakerLayer::new();
        refused_by(layer.recovery_duration(cooldown), between)
    }

    fn refused_by(
        layer: CircuitBreakerLayer,
        between: impl FnOnce(&CircuitBreakerHandle, Permit),
    ) -> (Refusal, u64) {
        let layer = layer.refuse_with(|(), refusal| Ok(Some(refusal)));
        let handle = layer.handle();
        let late = handle.try_acquire().unwrap();
        for _ in 0..3 {
            handle.try_acquire().unwrap().failure();
        }
        let mut service = layer.layer(Tool);
        assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
        between(&handle, late);
        let mut answer = None;
        let count = reads::during(|| {
            let Ok(refusal) = assert_ready!(task::spawn(service.call(())).poll());
            answer = refusal;
        });
        (answer.expect("refused"), count)
    }

    fn told(refusal: &Refusal) -> (Reason, Option<Duration>) {
        (refusal.reason(), refusal.retry_after())
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_of_poll_ready_is_told_without_another_look_at_the_clock() {
        let (refusal, count) = refused(30 * SECOND, |_, late| drop(late));
        assert_eq!(told(&refusal), (Reason::CircuitOpen, Some(30 * SECOND)));
        assert_eq!(refusal.last_failure(), Some(Failure::transient().kind()));
        assert_eq!(count, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cooldown_that_was_moved_since_is_told_as_it_is_now() {
        let layer = CircuitBreakerLayer::new();
        let observed = layer.clone().observe(|_: &Event<'_>| ());
        for layer in [layer, observed] {
            let (refusal, count) = refused_by(layer, |_, late| {
                late.record(Failure::rate_limited().with_retry_after(60 * SECOND));
            });
            assert_eq!(told(&refusal), (Reason::CircuitOpen, Some(60 * SECOND)));
            assert_eq!(refusal.last_failure(), Some(Failure::rate_limited().kind()));
            assert_eq!(count, 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_circuit_that_is_open_no_longer_is_asked_anew() {
        // The moment of a cooldown without end is that of a circuit which is closed or pinned.
        for cooldown in [30 * SECOND, Duration::MAX] {
            let (refusal, _) = refused(cooldown, |handle, _| handle.force_open());
            assert_eq!(told(&refusal), (Reason::ForcedOpen, None));
            let (refusal, _) = refused(cooldown, |handle, _| handle.reset());
            assert_eq!(told(&refusal), (Reason::NotReady, Some(Duration::ZERO)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_about_to_run_out_is_not_held() {
        let milli = Duration::from_millis(1);
        for (left, reason) in [
            (SECOND, Reason::CircuitOpen),
            (SECOND.saturating_sub(milli), Reason::NotReady),
        ] {
            let layer = CircuitBreakerLayer::new()
                .recovery_duration(left)
                .refuse_with(|(), refusal| Ok(Some(refusal)));
            let handle = layer.handle();
            let mut service = layer.layer(Tool);
            for _ in 0..3 {
                handle.try_acquire().unwrap().failure();
            }
            assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
            advance(SECOND).await;
            let Ok(answer) = assert_ready!(task::spawn(service.call(())).poll());
            assert_eq!(answer.map(|refusal| refusal.reason()), Some(reason));
        }
    }
}
