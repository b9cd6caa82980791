//! How a service asks its fence: the one it has, or the one of the request's session.

use std::fmt;
use std::hash::Hash;
use std::task::{Context, Poll};

use super::fence::{Asked, Denied, Fence, Rules, Ticket};
use super::permit::Admission;
use super::reader::Read;
use crate::cell::{Anchor, Cell, Count, Retired, Shared, Waiter};
use crate::clock::{Clock, Moment};
use crate::event::{Event, Observers, State};
use crate::keyed::{self, Keep, Keyed, Select};
use crate::machine::Word;
use crate::outcome::FailureKind;
use crate::refusal::{Name, Reason, Refusal};
use crate::sync::Arc;

pub(super) type FenceAnchor = Arc<Anchor<Fence>>;

/// What a service asks before a call.
pub(super) trait Gate<Req> {
    /// Asks the oracle anew whether any call may go. With `true`, inner readiness is polled; with `false`, the next call is refused.
    fn ask(&mut self) -> bool;

    /// Inner readiness is pending: has `cx` woken at every transition. Ready when the next call is to be refused.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The inner service is ready for one call.
    fn readied(&mut self);

    /// The inner service failed to become ready.
    fn readiness_failed(&mut self, kind: FailureKind);

    /// Asks the gate.
    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<Admission, Refusal>;
}

/// A layer's gate, which a setter gives state of its own.
pub(super) trait Renew {
    #[must_use]
    fn renew(self, shared: &Arc<Shared<Rules>>, name: Option<&Name>) -> Self;
}

/// The time, if it matters: without a deadline the clock is not read.
fn now(rules: &Rules, clock: impl FnOnce() -> Moment) -> Moment {
    if rules.deadline.is_some() {
        clock()
    } else {
        Moment::START
    }
}

pub(super) fn now_in(cell: &Cell<Fence>) -> Moment {
    now(cell.rules(), || cell.now())
}

/// Whether any call may go.
#[inline]
fn allows_some(cell: &Cell<Fence>) -> bool {
    // Closed, a turn left, and no time to measure.
    cell.word().lets_all_through() || would_allow_some(cell)
}

#[cold]
fn would_allow_some(cell: &Cell<Fence>) -> bool {
    let now = now_in(cell);
    let word = cell.word_before_until();
    Fence::glance(word, || cell.until(word), now)
        .unwrap_or_else(|| cell.look(|fence, _, _| fence.would_allow_some(now)))
}

/// The oracle.
pub(super) fn would_allow(cell: &Cell<Fence>, asked: &Asked) -> bool {
    let now = now_in(cell);
    cell.rules().observe_only || cell.look(|fence, _, rules| fence.would_allow(rules, now, asked))
}

/// The gate, for the plain case; `None`, with nothing changed, if there is more to it.
#[inline]
pub(super) fn acquire_quietly(cell: &Cell<Fence>, asked: &Asked) -> Option<Ticket> {
    cell.quietly(|fence, rules| fence.try_acquire_quietly(rules, asked))
}

/// The gate, and the fence may have been evicted since it was looked up.
#[cold]
pub(super) fn acquire(
    cell: &Cell<Fence>,
    asked: &Asked,
) -> Result<Result<Ticket, Denied>, Retired> {
    let now = now_in(cell);
    cell.step_unless_retired(|fence, rules, notes| fence.try_acquire(rules, now, asked, notes))
}

/// Refuses whatever is asked, if any call would be refused.
#[cold]
fn refuse_any(cell: &Cell<Fence>) -> Result<Option<Denied>, Retired> {
    let now = now_in(cell);
    cell.step_unless_retired(|fence, rules, notes| fence.refuse_any(rules, now, notes))
}

/// What becomes of a call that the gate denies: a refusal, or under `observe_only` a call without a permit.
#[cold]
fn deny(
    rules: &Rules,
    observers: &Observers,
    denied: Denied,
    name: impl FnOnce() -> Option<Name>,
) -> Result<Admission, Refusal> {
    let observe_only = rules.observe_only && denied.reason != Reason::NotReady;
    if observe_only && observers.is_empty() {
        return Ok(Admission::none());
    }
    let refusal = denied.refusal(name());
    observers.tell(&Event::Refused {
        refusal: &refusal,
        observe_only,
    });
    if observe_only {
        Ok(Admission::none())
    } else {
        Err(refusal)
    }
}

// ===== one fence =====

/// One fence for all calls: one run.
pub struct One {
    anchor: FenceAnchor,
    waiter: Option<Waiter>,
    ready: Readiness,
    /// Whose count `anchor` is.
    count: Count,
}

/// For whose call the last `poll_ready` was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Unknown,
    Ready,
    Refused,
}

impl One {
    /// A fence of its own.
    pub(super) fn made(shared: &Arc<Shared<Rules>>, name: Option<&Name>) -> Self {
        let fence = Fence::new(&shared.rules);
        let cell = Cell::new(fence, name.cloned(), Arc::clone(shared));
        Self::new(Arc::new(Anchor::new(cell)))
    }

    fn new(anchor: FenceAnchor) -> Self {
        Self {
            anchor,
            waiter: None,
            ready: Readiness::Unknown,
            count: Count::Shared,
        }
    }

    pub(super) fn anchor(&self) -> &FenceAnchor {
        &self.anchor
    }

    /// The anchor for one more permit.
    #[inline]
    fn hold(&mut self) -> FenceAnchor {
        if self.count == Count::Own {
            Arc::clone(&self.anchor)
        } else {
            self.hold_early()
        }
    }

    /// The anchor while the service is new.
    #[cold]
    fn hold_early(&mut self) -> FenceAnchor {
        self.count.hold(&mut self.anchor)
    }

    /// The gate, where there is more to it than the plain case.
    #[cold]
    fn admit_slowly(&mut self, asked: &Asked) -> Result<Admission, Denied> {
        match acquire(self.anchor.cell(), asked) {
            Ok(Ok(ticket)) => Ok(Admission::new(self.hold(), ticket)),
            Ok(Err(denied)) => Err(denied),
            // A fence outside a store is never evicted.
            Err(Retired) => Err(Denied::NOT_READY),
        }
    }

    /// Refuses a call that comes without a ready inner service. If some call may go by now, this one is neither admitted nor counted.
    #[cold]
    fn refuse(&self, ready: Readiness) -> Denied {
        match ready {
            Readiness::Refused => match refuse_any(self.anchor.cell()) {
                Ok(Some(denied)) => denied,
                Ok(None) | Err(Retired) => Denied::NOT_READY,
            },
            Readiness::Unknown | Readiness::Ready => Denied::NOT_READY,
        }
    }
}

impl Clone for One {
    fn clone(&self) -> Self {
        // New clones carry neither readiness nor a place among those who wait, and count on their own once they are called again.
        Self::new(Arc::clone(&self.anchor))
    }
}

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One")
            .field("fence", &self.anchor)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Renew for One {
    fn renew(self, shared: &Arc<Shared<Rules>>, name: Option<&Name>) -> Self {
        Self::made(shared, name)
    }
}

impl<Req> Gate<Req> for One {
    fn ask(&mut self) -> bool {
        let cell = self.anchor.cell();
        let asks = allows_some(cell) || cell.rules().observe_only;
        self.ready = if asks {
            Readiness::Unknown
        } else {
            Readiness::Refused
        };
        asks
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.anchor.cell().wait(&mut self.waiter, cx);
        // Anything that moved before the waker was there woke nobody.
        if Gate::<Req>::ask(self) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn readied(&mut self) {
        self.ready = Readiness::Ready;
    }

    fn readiness_failed(&mut self, kind: FailureKind) {
        let cell = self.anchor.cell();
        let now = now_in(cell);
        cell.step(|fence, rules, notes| fence.readiness_failed(rules, now, kind, notes));
    }

    #[inline]
    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<Admission, Refusal> {
        let denied = match std::mem::replace(&mut self.ready, Readiness::Unknown) {
            Readiness::Ready => {
                let asked = reader.read(req);
                if let Some(ticket) = acquire_quietly(self.anchor.cell(), &asked) {
                    return Ok(Admission::new(self.hold(), ticket));
                }
                match self.admit_slowly(&asked) {
                    Ok(admission) => return Ok(admission),
                    Err(denied) => denied,
                }
            }
            ready => self.refuse(ready),
        };
        let cell = self.anchor.cell();
        deny(cell.rules(), cell.observers(), denied, || {
            reader.name_of(req).or_else(|| cell.name().cloned())
        })
    }
}

// ===== one fence per session =====

/// One fence for each session, found by `S`.
pub struct PerSession<K, S> {
    sessions: Arc<Sessions<K>>,
    select: S,
    /// The inner service was polled ready for one call.
    ready: bool,
}

impl<K, S> PerSession<K, S> {
    pub(super) fn new(sessions: Sessions<K>, select: S) -> Self {
        Self {
            sessions: Arc::new(sessions),
            select,
            ready: false,
        }
    }

    pub(super) fn sessions(&self) -> &Arc<Sessions<K>> {
        &self.sessions
    }

    pub(super) fn select(&self) -> &S {
        &self.select
    }
}

impl<K, S: Clone> Clone for PerSession<K, S> {
    fn clone(&self) -> Self {
        Self {
            sessions: Arc::clone(&self.sessions),
            select: self.select.clone(),
            // New clones shouldn't carry the readiness state.
            ready: false,
        }
    }
}

impl<K, S> fmt::Debug for PerSession<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerSession")
            .field("sessions", &self.sessions)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone, S> Renew for PerSession<K, S> {
    fn renew(self, shared: &Arc<Shared<Rules>>, name: Option<&Name>) -> Self {
        Self::new(self.sessions.renew(shared, name, ()), self.select)
    }
}

impl<K, S, Req> Gate<Req> for PerSession<K, S>
where
    K: Hash + Eq + Clone,
    S: Select<K, Req>,
{
    fn ask(&mut self) -> bool {
        // The session is not known yet.
        self.ready = false;
        true
    }

    fn poll_wait(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn readied(&mut self) {
        self.ready = true;
    }

    fn readiness_failed(&mut self, _: FailureKind) {}

    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<Admission, Refusal> {
        let sessions = &*self.sessions;
        let denied = if std::mem::take(&mut self.ready) {
            match acquire_in(sessions, &self.select, reader, req) {
                Ok(admission) => return Ok(admission),
                Err(denied) => denied,
            }
        } else {
            Denied::NOT_READY
        };
        deny(sessions.rules(), sessions.observers(), denied, || {
            reader.name_of(req).or_else(|| sessions.name().cloned())
        })
    }
}

/// The fences of a layer with one per session.
pub(super) type Sessions<K> = Keyed<K, Fence>;

impl Keep for Fence {
    type Seed = ();

    fn made<K: Hash>(rules: &Rules, (): (), _: &K) -> Self {
        Self::new(rules)
    }

    fn now(rules: &Rules, clock: &Clock) -> Moment {
        now(rules, || clock.now())
    }

    fn state(&self, word: Word, rules: &Rules, now: Moment) -> State {
        self.snapshot(word, rules, now).state
    }
}

/// Asks the gate of the request's session. A call that finds every fence in use runs without a permit.
pub(super) fn acquire_in<K: Hash + Eq, Req>(
    sessions: &Sessions<K>,
    select: &impl Select<K, Req>,
    reader: &impl Read<Req>,
    req: &Req,
) -> Result<Admission, Denied> {
    let found = select.get(sessions.store(), req);
    let ask = |cell: &Cell<Fence>| acquire_stored(cell, || reader.read(req));
    match sessions.ask(found, || select.own(req), ask) {
        Ok((anchor, Ok(ticket))) => Ok(Admission::new(anchor, ticket)),
        Ok((_, Err(denied))) => Err(denied),
        Err(unguarded) => {
            keyed::tell_unguarded(unguarded.cell());
            Ok(Admission::none())
        }
    }
}

/// The gate of a fence in a store. What the request says is read only if it may matter.
#[inline]
fn acquire_stored(
    cell: &Cell<Fence>,
    read: impl FnOnce() -> Asked,
) -> Result<Result<Ticket, Denied>, Retired> {
    if !allows_some(cell) {
        if let Some(denied) = refuse_any(cell)? {
            return Ok(Err(denied));
        }
        // It has moved since.
    }
    let asked = read();
    match acquire_quietly(cell, &asked) {
        Some(ticket) => Ok(Ok(ticket)),
        None => acquire(cell, &asked),
    }
}
