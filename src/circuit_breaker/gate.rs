//! How a service asks its circuit: the one it has, or the one of the request's key.

use std::borrow::Borrow;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::WhenOpen;
use super::circuit::{Circuit, Denied, Rules, Ticket};
use super::permit::Admission;
use crate::cell::{Anchor, Cell, Retired, Shared, Waiter};
use crate::clock::Moment;
use crate::event::Event;
use crate::health_router::HealthRouter;
use crate::outcome::Failure;
use crate::refusal::{Name, Reason, Refusal};
use crate::store::Store;
use crate::sync::Arc;

type CircuitAnchor = Arc<Anchor<Circuit>>;

/// An answer that was given when polled is looked at again, in `call`, if less than this was left of the wait.
const NEAR: Duration = Duration::from_secs(1);

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
    fn admit_at_once(&mut self) -> Option<Admission>;

    /// Asks the gate.
    fn admit(&mut self, req: &mut Req) -> Result<Admission, Refusal>;
}

/// A layer's gate, which a setter gives state of its own.
pub(super) trait Renew {
    #[must_use]
    fn renew(self, shared: &Arc<Shared<Rules>>, name: Option<&Name>, seed: u64) -> Self;
}

/// The time, read at most once.
struct Now<'a> {
    cell: &'a Cell<Circuit>,
    read: Option<Moment>,
}

impl<'a> Now<'a> {
    fn of(cell: &'a Cell<Circuit>) -> Self {
        Self { cell, read: None }
    }

    fn get(&mut self) -> Moment {
        *self.read.get_or_insert_with(|| self.cell.now())
    }
}

/// The oracle. It reads the clock only where the answer depends on it.
#[inline]
fn ask(cell: &Cell<Circuit>, now: &mut Now<'_>) -> Result<(), Denied> {
    if cell.word().lets_all_through() {
        return Ok(());
    }
    ask_closely(cell, now)
}

fn ask_closely(cell: &Cell<Circuit>, now: &mut Now<'_>) -> Result<(), Denied> {
    let word = cell.word_before_until();
    if let Some(answer) = Circuit::glance(word, || cell.until(word), || now.get()) {
        return answer.map(|_| ());
    }
    let now = now.get();
    cell.look(|circuit, _, rules| circuit.would_allow(rules, now))
}

pub(super) fn would_allow(cell: &Cell<Circuit>) -> bool {
    cell.rules().observe_only || ask(cell, &mut Now::of(cell)).is_ok()
}

/// The gate of a circuit outside a store.
#[inline]
pub(super) fn acquire(cell: &Cell<Circuit>) -> Result<Ticket, Denied> {
    // Only a store retires a circuit; were one retired all the same, the call may come again.
    acquire_stored(cell).unwrap_or(Err(Denied::NOT_READY))
}

/// The gate of a circuit in a store, which may have been evicted since it was looked up.
#[inline]
fn acquire_stored(cell: &Cell<Circuit>) -> Result<Result<Ticket, Denied>, Retired> {
    let word = cell.word();
    if word.lets_all_through() {
        return Ok(Ok(Ticket::ordinary(word)));
    }
    acquire_closely(cell)
}

fn acquire_closely(cell: &Cell<Circuit>) -> Result<Result<Ticket, Denied>, Retired> {
    let mut now = Now::of(cell);
    let word = cell.word_before_until();
    if let Some(answer) = Circuit::glance(word, || cell.until(word), || now.get()) {
        return Ok(answer);
    }
    let now = now.get();
    cell.step_unless_retired(|circuit, rules, notes| circuit.try_acquire(rules, now, notes))
}

/// What becomes of a call that the gate denies: a refusal, or under `observe_only` a call without a permit.
pub(super) fn deny(cell: &Cell<Circuit>, denied: Denied) -> Result<Admission, Refusal> {
    let refusal = denied.refusal(cell.name().cloned());
    let observe_only = cell.rules().observe_only && denied.reason != Reason::NotReady;
    if cell.observed() {
        cell.tell(&Event::Refused {
            refusal: &refusal,
            observe_only,
        });
    }
    if observe_only {
        Ok(Admission::none())
    } else {
        Err(refusal)
    }
}

// ===== one circuit =====

/// One circuit for all calls.
pub struct One {
    anchor: CircuitAnchor,
    waiting: Option<Box<Waiting>>,
    /// When the oracle answered, if it said no.
    asked: Moment,
    ready: Readiness,
    /// Whose count `anchor` is.
    count: Count,
}

/// Whose count a service's anchor is. Its own costs an allocation, so it is made when the service is called for the second time: a clone for a single
/// request pays nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// The layer's, or that of the service it is a clone of; it was not called yet.
    Shared,
    /// The same; it was called once.
    SharedOnce,
    Own,
}

/// What a service keeps while it waits.
#[derive(Default)]
struct Waiting {
    waiter: Option<Waiter>,
    /// When the oracle's answer runs out; only with [`WhenOpen::NotReady`].
    timer: Option<Pin<Box<Sleep>>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            waiter.forget();
        }
    }
}

/// For whose call the last `poll_ready` was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Unknown,
    Refused,
    /// With whose count the call will be made.
    Ready(Count),
}

impl One {
    pub(super) fn new(anchor: CircuitAnchor) -> Self {
        Self {
            anchor,
            waiting: None,
            asked: Moment::START,
            ready: Readiness::Unknown,
            count: Count::Shared,
        }
    }

    /// A circuit of its own.
    pub(super) fn made(shared: &Arc<Shared<Rules>>, name: Option<&Name>, seed: u64) -> Self {
        let circuit = Circuit::new(&shared.rules, seed);
        let cell = Cell::new(circuit, name.cloned(), Arc::clone(shared));
        Self::new(Arc::new(Anchor::new(cell)))
    }

    pub(super) fn anchor(&self) -> &CircuitAnchor {
        &self.anchor
    }

    /// The anchor for one more permit.
    fn hold(&mut self) -> CircuitAnchor {
        match self.count {
            Count::Shared => self.count = Count::SharedOnce,
            Count::SharedOnce => {
                self.anchor = Arc::new(self.anchor.again());
                self.count = Count::Own;
            }
            Count::Own => {}
        }
        Arc::clone(&self.anchor)
    }

    /// Why a call is refused whose inner service is not ready.
    fn why_not_ready(&self, ready: Readiness) -> Denied {
        let cell = self.anchor.cell();
        if cell.rules().observe_only {
            return Denied::NOT_READY;
        }
        let mut now = Now::of(cell);
        if ready == Readiness::Refused {
            // The answer that was given then holds for this call; unless it was about to run out, the clock is not read again.
            now.read = Some(self.asked);
        }
        let mut answer = ask(cell, &mut now);
        if matches!(answer, Err(denied) if denied.wait.is_some_and(|wait| wait < NEAR)) {
            answer = ask(cell, &mut Now::of(cell));
        }
        answer.err().unwrap_or(Denied::NOT_READY)
    }

    fn poll_ask_closely(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.ready = Readiness::Unknown;
        let cell = self.anchor.cell();
        let rules = cell.rules();
        let mut now = Now::of(cell);
        match ask(cell, &mut now) {
            Ok(()) => Poll::Ready(true),
            Err(_) if rules.observe_only => Poll::Ready(true),
            Err(_) if rules.when_open == WhenOpen::Refuse => {
                self.asked = now.get();
                self.ready = Readiness::Refused;
                Poll::Ready(false)
            }
            Err(_) => self.poll_allowed(cx).map(|()| true),
        }
    }

    /// Waits while the oracle says no: for a transition, or for the end of what it said no for.
    fn poll_allowed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let cell = self.anchor.cell();
        let waiting = self.waiting.get_or_insert_default();
        loop {
            cell.wait(&mut waiting.waiter, cx);
            // Asked after the waker was left, so that no transition goes unnoticed.
            let Err(denied) = ask(cell, &mut Now::of(cell)) else {
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
        Self::new(Arc::clone(&self.anchor))
    }
}

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One")
            .field("circuit", &self.anchor)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Renew for One {
    fn renew(self, shared: &Arc<Shared<Rules>>, name: Option<&Name>, seed: u64) -> Self {
        Self::made(shared, name, seed)
    }
}

impl<Req> Gate<Req> for One {
    #[inline]
    fn poll_ask(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.anchor.cell().word().lets_all_through() {
            return Poll::Ready(true);
        }
        self.poll_ask_closely(cx)
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ready = Readiness::Unknown;
        let waiting = self.waiting.get_or_insert_default();
        self.anchor.cell().wait(&mut waiting.waiter, cx);
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
        if let Ok(ticket) = acquire(self.anchor.cell()) {
            Admission::new(self.hold(), ticket).record(failure.into());
        }
    }

    #[inline]
    fn admit_at_once(&mut self) -> Option<Admission> {
        let word = self.anchor.cell().word();
        if self.ready == Readiness::Ready(Count::Own) && word.lets_all_through() {
            self.ready = Readiness::Unknown;
            return Some(Admission::plain(Arc::clone(&self.anchor), word));
        }
        None
    }

    fn admit(&mut self, _: &mut Req) -> Result<Admission, Refusal> {
        let ready = std::mem::replace(&mut self.ready, Readiness::Unknown);
        let denied = if matches!(ready, Readiness::Ready(_)) {
            match acquire(self.anchor.cell()) {
                Ok(ticket) => return Ok(Admission::new(self.hold(), ticket)),
                Err(denied) => denied,
            }
        } else {
            self.why_not_ready(ready)
        };
        deny(self.anchor.cell(), denied)
    }
}

// ===== one circuit per key =====

/// One circuit for each key, found by `S`.
pub struct PerKey<K, S> {
    circuits: Arc<Circuits<K>>,
    select: S,
    /// The inner service was polled ready for one call.
    ready: bool,
}

impl<K, S> PerKey<K, S> {
    pub(super) fn new(circuits: Circuits<K>, select: S) -> Self {
        Self {
            circuits: Arc::new(circuits),
            select,
            ready: false,
        }
    }

    pub(super) fn circuits(&self) -> &Arc<Circuits<K>> {
        &self.circuits
    }

    pub(super) fn into_select(self) -> S {
        self.select
    }
}

impl<K, S: Clone> Clone for PerKey<K, S> {
    fn clone(&self) -> Self {
        Self {
            circuits: Arc::clone(&self.circuits),
            select: self.select.clone(),
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
    fn renew(self, shared: &Arc<Shared<Rules>>, name: Option<&Name>, seed: u64) -> Self {
        let old = &*self.circuits;
        let circuits = Circuits {
            store: Store::new(old.store.capacity()),
            shared: Arc::clone(shared),
            name_of: old.name_of,
            name: name.cloned(),
            seed,
            router: old.router.clone(),
        };
        Self::new(circuits, self.select)
    }
}

impl<K, S, Req> Gate<Req> for PerKey<K, S>
where
    S: Select<K, Req>,
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
    fn admit_at_once(&mut self) -> Option<Admission> {
        None
    }

    fn admit(&mut self, req: &mut Req) -> Result<Admission, Refusal> {
        if std::mem::take(&mut self.ready) {
            self.select.admit(&self.circuits, req)
        } else {
            Err(self.select.not_ready(&self.circuits, req))
        }
    }
}

/// The circuits of a keyed layer.
pub(super) struct Circuits<K> {
    store: Store<K, Circuit>,
    shared: Arc<Shared<Rules>>,
    /// What a key's circuit is called, if not as the layer is.
    name_of: Option<fn(&K) -> Name>,
    name: Option<Name>,
    seed: u64,
    router: HealthRouter,
}

/// Why a call by key is not admitted: by which circuit, and what it said.
struct Kept {
    anchor: CircuitAnchor,
    denied: Denied,
}

impl<K: Hash + Eq + Clone> Circuits<K> {
    pub(super) fn new(
        capacity: usize,
        name_of: Option<fn(&K) -> Name>,
        shared: Arc<Shared<Rules>>,
        name: Option<Name>,
        seed: u64,
    ) -> Self {
        Self {
            store: Store::new(capacity),
            shared,
            name_of,
            name,
            seed,
            router: HealthRouter::default(),
        }
    }

    pub(super) fn router(&self) -> &HealthRouter {
        &self.router
    }

    /// As new, with `router` for its substitutes.
    pub(super) fn with_router(&self, router: HealthRouter) -> Self {
        let shared = Arc::clone(&self.shared);
        let capacity = self.store.capacity();
        let mut circuits = Self::new(capacity, self.name_of, shared, self.name.clone(), self.seed);
        circuits.router = router;
        circuits
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.shared.rules
    }

    pub(super) fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    pub(super) fn store(&self) -> &Store<K, Circuit> {
        &self.store
    }

    fn name_of(&self, key: &K) -> Option<Name> {
        self.name_of
            .map(|name_of| name_of(key))
            .or_else(|| self.name.clone())
    }

    fn make(&self, key: &K) -> Cell<Circuit> {
        // The same seed and key jitter alike, in whatever order the keys come.
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        key.hash(&mut hasher);
        let circuit = Circuit::new(&self.shared.rules, hasher.finish());
        Cell::new(circuit, self.name_of(key), Arc::clone(&self.shared))
    }

    /// The cell of `key`, made if need be; `None` if every cell is live.
    pub(super) fn get_or_insert(&self, key: K) -> Option<CircuitAnchor> {
        let now = self.shared.clock.now();
        let inserted = self.store.get_or_insert(key, now, |key| self.make(key));
        let observers = &self.shared.observers;
        if observers.is_empty() {
            return inserted.found.ok();
        }
        if let Some(evicted) = inserted.evicted {
            let cell = evicted.cell();
            observers.tell(&Event::Evicted {
                name: cell.name().map(Name::as_str),
                state: cell.look(|circuit, word, rules| circuit.snapshot(word, rules, now).state),
            });
        }
        inserted
            .found
            .map_err(|unguarded| {
                observers.tell(&Event::Unguarded {
                    name: unguarded.cell().name().map(Name::as_str),
                });
            })
            .ok()
    }

    /// Asks the gate of `key`'s circuit. A call that finds every circuit live runs without a permit.
    fn acquire<Q>(&self, key: &Q, own: impl Fn() -> K) -> Result<Admission, Kept>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut found = self.store.get(key);
        loop {
            let Some(anchor) = found.or_else(|| self.get_or_insert(own())) else {
                return Ok(Admission::none());
            };
            match acquire_stored(anchor.cell()) {
                Ok(Ok(ticket)) => return Ok(Admission::new(anchor, ticket)),
                Ok(Err(denied)) => return Err(Kept { anchor, denied }),
                // It was evicted after it was found. Asking to insert waits for whoever did it.
                Err(Retired) => found = None,
            }
        }
    }

    /// [`acquire`](Self::acquire), and what becomes of a call that is denied.
    pub(super) fn admit<Q>(&self, key: &Q, own: impl Fn() -> K) -> Result<Admission, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.acquire(key, own)
            .or_else(|kept| deny(kept.anchor.cell(), kept.denied))
    }

    fn not_ready(&self, key: &K) -> Refusal {
        let refusal = Denied::NOT_READY.refusal(self.name_of(key));
        if !self.shared.observers.is_empty() {
            self.shared.observers.tell(&Event::Refused {
                refusal: &refusal,
                observe_only: false,
            });
        }
        refusal
    }
}

impl<K> fmt::Debug for Circuits<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// How a keyed gate finds the key of a request.
pub(super) trait Select<K, Req> {
    fn admit(&self, circuits: &Circuits<K>, req: &mut Req) -> Result<Admission, Refusal>;

    fn not_ready(&self, circuits: &Circuits<K>, req: &Req) -> Refusal;
}

/// The key is part of the request.
pub struct Borrowed<F, Q: ?Sized> {
    f: F,
    _key: PhantomData<fn(&Q)>,
}

impl<F, Q: ?Sized> Borrowed<F, Q> {
    pub(super) fn new(f: F) -> Self {
        Self {
            f,
            _key: PhantomData,
        }
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
    K: Hash + Eq + Clone + Borrow<Q>,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    F: Fn(&Req) -> &Q,
{
    fn admit(&self, circuits: &Circuits<K>, req: &mut Req) -> Result<Admission, Refusal> {
        let key = (self.f)(req);
        circuits.admit(key, || key.to_owned())
    }

    fn not_ready(&self, circuits: &Circuits<K>, req: &Req) -> Refusal {
        circuits.not_ready(&(self.f)(req).to_owned())
    }
}

/// The key is made from the request.
#[derive(Clone)]
pub struct Owned<F> {
    f: F,
}

impl<F> Owned<F> {
    pub(super) fn new(f: F) -> Self {
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
    K: Hash + Eq + Clone,
    F: Fn(&Req) -> K,
{
    fn admit(&self, circuits: &Circuits<K>, req: &mut Req) -> Result<Admission, Refusal> {
        let key = (self.f)(req);
        circuits.admit(&key, || key.clone())
    }

    fn not_ready(&self, circuits: &Circuits<K>, req: &Req) -> Refusal {
        circuits.not_ready(&(self.f)(req))
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

impl<F, W, Req> Select<String, Req> for Routed<F, W>
where
    F: Fn(&Req) -> &str,
    W: Fn(&mut Req, &str),
{
    fn admit(&self, circuits: &Circuits<String>, req: &mut Req) -> Result<Admission, Refusal> {
        let key = (self.key.f)(req);
        let mut kept = match circuits.acquire(key, || key.to_owned()) {
            Ok(admission) => return Ok(admission),
            Err(kept) => kept,
        };
        for name in circuits.router.substitutes(key) {
            match circuits.acquire(name, || name.to_owned()) {
                Ok(admission) => {
                    (self.rewrite)(req, name);
                    return Ok(admission);
                }
                Err(other) => kept.denied.wait = shortest(kept.denied.wait, other.denied.wait),
            }
        }
        deny(kept.anchor.cell(), kept.denied)
    }

    fn not_ready(&self, circuits: &Circuits<String>, req: &Req) -> Refusal {
        self.key.not_ready(circuits, req)
    }
}

/// The shorter of two waits; one that has no end is longer than any.
fn shortest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
