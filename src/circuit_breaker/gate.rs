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
use super::permit::Admission;
use crate::cell::{Anchor, Cell, Count, Retired, Shared, Waiter};
use crate::clock::{Clock, Moment, nanos};
use crate::event::{Event, State};
use crate::health_router::HealthRouter;
use crate::keyed::{self, Borrowed, Keep, Keyed, Owned, Select};
use crate::machine::Word;
use crate::outcome::Failure;
use crate::refusal::{Denied, Name, Reason, Refusal};
use crate::sync::Arc;

type CircuitAnchor = Arc<Anchor<Circuit>>;

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
    fn admit_at_once(&mut self) -> Option<Admission>;

    /// Refuses a call to which [`poll_ask`](Self::poll_ask) said no, as far as that answer still holds and nobody else has to be told.
    fn refuse_at_once(&mut self) -> Option<Refusal>;

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

    fn at(cell: &'a Cell<Circuit>, now: Moment) -> Self {
        let read = Some(now);
        Self { cell, read }
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
    let refusal = denied.refusal(Refusal::breaker, cell.name().cloned());
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
    /// What the next call has to know of an answer of no.
    noted: u64,
    /// The print of the moment that it came from.
    print: u32,
    ready: Readiness,
    /// Whose count `anchor` is.
    count: Count,
    /// Whether it refuses at once: nobody has to be told, and neither does it only observe nor wait until the circuit closes.
    at_once: bool,
}

/// What a service keeps while it waits.
#[derive(Default)]
struct Waiting {
    waiter: Option<Waiter>,
    /// When the oracle's answer runs out; only with [`WhenOpen::NotReady`].
    timer: Option<Pin<Box<Sleep>>>,
}

/// The lower half of a moment, to tell whether it was moved: there is no room for more in a service. Two moments that have it in common are at least four
/// seconds apart.
#[inline]
#[allow(clippy::cast_possible_truncation)]
fn print(moment: Moment) -> u32 {
    moment.as_nanos() as u32
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
    Ready(Count),
}

impl One {
    pub(super) fn new(anchor: CircuitAnchor) -> Self {
        let rules = anchor.cell().rules();
        Self {
            at_once: rules.when_open == WhenOpen::Refuse
                && !rules.observe_only
                && !anchor.cell().observed(),
            anchor,
            waiting: None,
            noted: 0,
            print: 0,
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
        self.count.hold(&mut self.anchor)
    }

    /// Why a call is refused whose inner service is not ready.
    fn why_not_ready(&self, ready: Readiness) -> Denied {
        let cell = self.anchor.cell();
        if cell.rules().observe_only {
            return Denied::NOT_READY;
        }
        let mut answer = None;
        if ready == Readiness::Refused && !self.is_moved() {
            // The answer that was given then holds for this call; unless it was about to run out, the clock is not read again.
            let mut asked = Now::at(cell, Moment::from_nanos(self.noted));
            answer = Some(ask(cell, &mut asked));
        }
        let answer = match answer {
            Some(answer) if !answer.is_err_and(Denied::is_near) => answer,
            _ => ask(cell, &mut Now::of(cell)),
        };
        let Err(denied) = answer else {
            return Denied::NOT_READY;
        };
        if denied.reason == Reason::CircuitOpen && !Circuit::is_open(cell.word()) {
            // The probe's lease is over. Whoever is refused for it says so: observers hear of it, and the next one needs no lock to be refused.
            let now = cell.now();
            cell.step(|circuit, rules, notes| circuit.expire(rules, now, notes));
        }
        denied
    }

    /// Whether the moment of an answer of no has been moved since.
    #[inline]
    fn is_moved(&self) -> bool {
        print(self.anchor.cell().any_until()) != self.print
    }

    // What `poll_ask` does not answer itself. Two functions, so that it has nothing to prepare for either.

    #[cold]
    #[inline(never)]
    fn poll_ask_closely(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.poll_ask_at(cx, None)
    }

    /// [`poll_ask_closely`](Self::poll_ask_closely) for a caller who has read the time.
    #[cold]
    #[inline(never)]
    fn poll_ask_again(&mut self, cx: &mut Context<'_>, now: Moment) -> Poll<bool> {
        self.poll_ask_at(cx, Some(now))
    }

    fn poll_ask_at(&mut self, cx: &mut Context<'_>, read: Option<Moment>) -> Poll<bool> {
        self.ready = Readiness::Unknown;
        let cell = self.anchor.cell();
        let rules = cell.rules();
        // Before the question: should it move now, the answer will not be held.
        self.print = print(cell.any_until());
        let mut now = Now { cell, read };
        match ask(cell, &mut now) {
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
        let cell = self.anchor.cell();
        let word = cell.word_before_until();
        if word.lets_all_through() {
            // What an earlier poll found must not outlive this one, even should the inner service or the classifier unwind.
            self.ready = Readiness::Unknown;
            return Poll::Ready(true);
        }
        if !self.at_once || !Circuit::is_open(word) {
            return self.poll_ask_closely(cx);
        }
        let now = cell.now();
        match cell.until(word) {
            Some(until) if now < until => {
                self.noted = until.nanos_left(now);
                self.print = print(until);
                self.ready = Readiness::RefusedAtOnce;
                Poll::Ready(false)
            }
            _ => self.poll_ask_again(cx, now),
        }
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
        if self.ready != Readiness::Ready(Count::Own) {
            return None;
        }
        let word = self.anchor.cell().word();
        if !word.lets_all_through() {
            return None;
        }
        self.ready = Readiness::Unknown;
        Some(Admission::plain(Arc::clone(&self.anchor), word))
    }

    #[allow(clippy::inline_always)] // Made where it is handed over, a refusal is not moved.
    #[inline(always)]
    fn refuse_at_once(&mut self) -> Option<Refusal> {
        if self.ready != Readiness::RefusedAtOnce {
            return None;
        }
        let (cell, left) = (self.anchor.cell(), self.noted);
        let word = cell.word();
        if !Circuit::is_open(word) || self.is_moved() || left < NEAR {
            return None;
        }
        self.ready = Readiness::Unknown;
        let name = cell.name().cloned();
        Some(Refusal::open(name, left, word.last()))
    }

    #[cold]
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
        let circuits = Circuits {
            keyed: self.circuits.keyed.renew(shared, name, seed),
            router: self.circuits.router.clone(),
        };
        Self::new(circuits, self.select)
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
    fn admit_at_once(&mut self) -> Option<Admission> {
        None
    }

    #[inline]
    fn refuse_at_once(&mut self) -> Option<Refusal> {
        None
    }

    fn admit(&mut self, req: &mut Req) -> Result<Admission, Refusal> {
        if std::mem::take(&mut self.ready) {
            self.select.admit(&self.circuits, req)
        } else {
            let key = self.select.key().own(req);
            Err(self.circuits.not_ready(&key))
        }
    }
}

/// The circuits of a keyed layer.
pub(super) struct Circuits<K> {
    keyed: Keyed<K, Circuit>,
    router: HealthRouter,
}

impl Keep for Circuit {
    /// Of the jitter.
    type Seed = u64;

    fn made<K: Hash>(rules: &Rules, seed: u64, key: &K) -> Self {
        // The same seed and key jitter alike, in whatever order the keys come.
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        key.hash(&mut hasher);
        Self::new(rules, hasher.finish())
    }

    fn now(_: &Rules, clock: &Clock) -> Moment {
        clock.now()
    }

    fn state(&self, word: Word, rules: &Rules, now: Moment) -> State {
        self.snapshot(word, rules, now).state
    }
}

/// Why a call by key is not admitted: by which circuit, and what it said.
struct Kept {
    anchor: CircuitAnchor,
    denied: Denied,
}

impl<K: Hash + Eq> Circuits<K> {
    pub(super) fn new(keyed: Keyed<K, Circuit>) -> Self {
        Self {
            keyed,
            router: HealthRouter::default(),
        }
    }

    pub(super) fn keyed(&self) -> &Keyed<K, Circuit> {
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
    fn acquire(
        &self,
        found: Option<CircuitAnchor>,
        own: impl Fn() -> K,
    ) -> Result<Admission, Kept> {
        if let Some(anchor) = found {
            let word = anchor.cell().word();
            if word.lets_all_through() {
                return Ok(Admission::plain(anchor, word));
            }
            return self.acquire_closely(Some(anchor), own);
        }
        self.acquire_closely(None, own)
    }

    /// [`acquire`](Self::acquire) for a key whose circuit has yet to be made, or does not let all calls through. Out of line, so that a call that is let
    /// through does not carry what the others need.
    #[inline(never)]
    fn acquire_closely(
        &self,
        found: Option<CircuitAnchor>,
        own: impl Fn() -> K,
    ) -> Result<Admission, Kept> {
        match self.keyed.ask(found, own, acquire_stored) {
            Ok((anchor, Ok(ticket))) => Ok(Admission::new(anchor, ticket)),
            Ok((anchor, Err(denied))) => Err(Kept { anchor, denied }),
            Err(unguarded) => {
                keyed::tell_unguarded(unguarded.cell());
                Ok(Admission::none())
            }
        }
    }

    /// [`acquire`](Self::acquire), and what becomes of a call that is denied.
    #[inline]
    pub(super) fn admit(
        &self,
        found: Option<CircuitAnchor>,
        own: impl Fn() -> K,
    ) -> Result<Admission, Refusal> {
        self.acquire(found, own)
            .or_else(|kept| deny(kept.anchor.cell(), kept.denied))
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
    fn key(&self) -> &impl Select<K, Req>;

    /// Asks the gate: that of the request's own key, unless there are others.
    fn admit(&self, circuits: &Circuits<K>, req: &mut Req) -> Result<Admission, Refusal> {
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
    fn key(&self) -> &impl Select<K, Req> {
        self
    }
}

impl<K, F, Req> Route<K, Req> for Owned<F>
where
    K: Hash + Eq,
    F: Fn(&Req) -> K,
{
    fn key(&self) -> &impl Select<K, Req> {
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
    fn key(&self) -> &impl Select<String, Req> {
        &self.key
    }

    fn admit(&self, circuits: &Circuits<String>, req: &mut Req) -> Result<Admission, Refusal> {
        let (key, store) = (self.key.of(req), circuits.keyed.store());
        let mut kept = match circuits.acquire(store.get(key), || key.to_owned()) {
            Ok(admission) => return Ok(admission),
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
                Ok(admission) => {
                    (self.rewrite)(req, name);
                    return Ok(admission);
                }
                Err(other) => kept.denied.wait = shortest(kept.denied.wait, other.denied.wait),
            }
        }
        deny(kept.anchor.cell(), kept.denied)
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
    use crate::clock::reads;
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
