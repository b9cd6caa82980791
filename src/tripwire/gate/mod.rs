//! How a service asks its fence: the one it has, or the one of the request's session.

use std::fmt;
use std::hash::Hash;
use std::task::{Context, Poll};

use super::fence::{CallFacts, Denied, Fence, Rules, Ticket};
use super::permit::CallPermit;
use super::reader::Read;
use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::keyed::{self, ExtractKey, KeyedMachine, KeyedMachines};
use crate::machinery::observers::Observers;
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{
    Environment, MachineRef, RefOwner, Retired, SharedMachine, WaiterGuard,
};
use crate::machinery::sync::Arc;
use crate::vocabulary::FailureKind;
use crate::vocabulary::{Event, State};
use crate::vocabulary::{Name, Reason, Refusal};

pub(super) type FenceRef = Arc<MachineRef<Fence>>;

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
    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<CallPermit, Refusal>;
}

/// A layer's gate, which a setter gives state of its own.
pub(super) trait Renew {
    #[must_use]
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>) -> Self;
}

/// The time, if it matters: without a deadline the clock is not read.
fn now(rules: &Rules, clock: impl FnOnce() -> Timestamp) -> Timestamp {
    if rules.deadline.is_some() {
        clock()
    } else {
        Timestamp::START
    }
}

pub(super) fn now_in(machine: &SharedMachine<Fence>) -> Timestamp {
    now(machine.rules(), || machine.now())
}

/// Whether any call may go.
#[inline]
fn allows_some(machine: &SharedMachine<Fence>) -> bool {
    // Closed, a turn left, and no time to measure.
    machine.packed().admits_all() || would_allow_some(machine)
}

#[cold]
fn would_allow_some(machine: &SharedMachine<Fence>) -> bool {
    let now = now_in(machine);
    let packed = machine.packed_before_deadline();
    Fence::would_allow_some_lock_free(packed, || machine.deadline(packed), now)
        .unwrap_or_else(|| machine.read(|fence, _, _| fence.would_allow_some(now)))
}

/// The oracle.
pub(super) fn would_allow(machine: &SharedMachine<Fence>, facts: &CallFacts) -> bool {
    let now = now_in(machine);
    machine.rules().observe_only
        || machine.read(|fence, _, rules| fence.would_allow(rules, now, facts))
}

/// The gate, for the plain case; `None`, with nothing changed, if there is more to it.
#[inline]
pub(super) fn acquire_fast(machine: &SharedMachine<Fence>, facts: &CallFacts) -> Option<Ticket> {
    machine.update_unmirrored(|fence, rules| fence.try_acquire_fast(rules, facts))
}

/// The gate, and the fence may have been evicted since it was looked up.
#[cold]
pub(super) fn acquire(
    machine: &SharedMachine<Fence>,
    facts: &CallFacts,
) -> Result<Result<Ticket, Denied>, Retired> {
    let now = now_in(machine);
    machine.step_unless_retired(|fence, rules, events| fence.try_acquire(rules, now, facts, events))
}

/// Refuses whatever is asked, if any call would be refused.
#[cold]
fn refuse_any(machine: &SharedMachine<Fence>) -> Result<Option<Denied>, Retired> {
    let now = now_in(machine);
    machine.step_unless_retired(|fence, rules, events| fence.refuse_any(rules, now, events))
}

/// What becomes of a call that the gate denies: a refusal, or under `observe_only` a call without a permit.
#[cold]
fn deny(
    rules: &Rules,
    observers: &Observers,
    denied: Denied,
    name: impl FnOnce() -> Option<Name>,
) -> Result<CallPermit, Refusal> {
    let observe_only = rules.observe_only && denied.reason != Reason::NotReady;
    if observe_only && observers.is_empty() {
        return Ok(CallPermit::none());
    }
    let refusal = denied.refusal(name());
    observers.tell(&Event::Refused {
        refusal: &refusal,
        observe_only,
    });
    if observe_only {
        Ok(CallPermit::none())
    } else {
        Err(refusal)
    }
}

// ===== one fence =====

/// One fence for all calls: one run.
pub struct One {
    machine_ref: FenceRef,
    waiter: Option<WaiterGuard>,
    ready: Readiness,
    /// Whose count `anchor` is.
    count: RefOwner,
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
    pub(super) fn made(environment: &Arc<Environment<Rules>>, name: Option<&Name>) -> Self {
        let fence = Fence::new(&environment.rules);
        let machine = SharedMachine::new(fence, name.cloned(), Arc::clone(environment));
        Self::new(Arc::new(MachineRef::new(machine)))
    }

    fn new(machine_ref: FenceRef) -> Self {
        Self {
            machine_ref,
            waiter: None,
            ready: Readiness::Unknown,
            count: RefOwner::Shared,
        }
    }

    pub(super) fn machine_ref(&self) -> &FenceRef {
        &self.machine_ref
    }

    /// The anchor for one more permit.
    #[inline]
    fn hold(&mut self) -> FenceRef {
        if self.count == RefOwner::Own {
            Arc::clone(&self.machine_ref)
        } else {
            self.hold_early()
        }
    }

    /// The anchor while the service is new.
    #[cold]
    fn hold_early(&mut self) -> FenceRef {
        self.count.hold(&mut self.machine_ref)
    }

    /// The gate, where there is more to it than the plain case.
    #[cold]
    fn admit_slow(&mut self, facts: &CallFacts) -> Result<CallPermit, Denied> {
        match acquire(self.machine_ref.machine(), facts) {
            Ok(Ok(ticket)) => Ok(CallPermit::new(self.hold(), ticket)),
            Ok(Err(denied)) => Err(denied),
            // A fence outside a store is never evicted.
            Err(Retired) => Err(Denied::NOT_READY),
        }
    }

    /// Refuses a call that comes without a ready inner service. If some call may go by now, this one is neither admitted nor counted.
    #[cold]
    fn refuse(&self, ready: Readiness) -> Denied {
        match ready {
            Readiness::Refused => match refuse_any(self.machine_ref.machine()) {
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
        Self::new(Arc::clone(&self.machine_ref))
    }
}

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One")
            .field("fence", &self.machine_ref)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Renew for One {
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>) -> Self {
        Self::made(environment, name)
    }
}

impl<Req> Gate<Req> for One {
    fn ask(&mut self) -> bool {
        let machine = self.machine_ref.machine();
        let asks = allows_some(machine) || machine.rules().observe_only;
        self.ready = if asks {
            Readiness::Unknown
        } else {
            Readiness::Refused
        };
        asks
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.machine_ref.machine().wait(&mut self.waiter, cx);
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
        let machine = self.machine_ref.machine();
        let now = now_in(machine);
        machine.step(|fence, rules, events| fence.readiness_failed(rules, now, kind, events));
    }

    #[inline]
    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<CallPermit, Refusal> {
        let denied = match std::mem::replace(&mut self.ready, Readiness::Unknown) {
            Readiness::Ready => {
                let facts = reader.read(req);
                if let Some(ticket) = acquire_fast(self.machine_ref.machine(), &facts) {
                    return Ok(CallPermit::new(self.hold(), ticket));
                }
                match self.admit_slow(&facts) {
                    Ok(permit) => return Ok(permit),
                    Err(denied) => denied,
                }
            }
            ready => self.refuse(ready),
        };
        let machine = self.machine_ref.machine();
        deny(machine.rules(), machine.observers(), denied, || {
            reader.name_of(req).or_else(|| machine.name().cloned())
        })
    }
}

// ===== one fence per session =====

/// One fence for each session, found by `S`.
pub struct PerSession<K, S> {
    sessions: Arc<Sessions<K>>,
    extract: S,
    /// The inner service was polled ready for one call.
    ready: bool,
}

impl<K, S> PerSession<K, S> {
    pub(super) fn new(sessions: Sessions<K>, extract: S) -> Self {
        Self {
            sessions: Arc::new(sessions),
            extract,
            ready: false,
        }
    }

    pub(super) fn sessions(&self) -> &Arc<Sessions<K>> {
        &self.sessions
    }

    pub(super) fn extract(&self) -> &S {
        &self.extract
    }
}

impl<K, S: Clone> Clone for PerSession<K, S> {
    fn clone(&self) -> Self {
        Self {
            sessions: Arc::clone(&self.sessions),
            extract: self.extract.clone(),
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
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>) -> Self {
        Self::new(self.sessions.renew(environment, name, ()), self.extract)
    }
}

impl<K, S, Req> Gate<Req> for PerSession<K, S>
where
    K: Hash + Eq + Clone,
    S: ExtractKey<K, Req>,
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

    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<CallPermit, Refusal> {
        let sessions = &*self.sessions;
        let denied = if std::mem::take(&mut self.ready) {
            match acquire_in(sessions, &self.extract, reader, req) {
                Ok(permit) => return Ok(permit),
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
pub(super) type Sessions<K> = KeyedMachines<K, Fence>;

impl KeyedMachine for Fence {
    type Seed = ();

    fn made<K: Hash>(rules: &Rules, (): (), _: &K) -> Self {
        Self::new(rules)
    }

    fn now(rules: &Rules, clock: &Clock) -> Timestamp {
        now(rules, || clock.now())
    }

    fn state(&self, packed: PackedState, rules: &Rules, now: Timestamp) -> State {
        self.snapshot(packed, rules, now).state
    }
}

/// Asks the gate of the request's session. A call that finds every fence in use runs without a permit.
pub(super) fn acquire_in<K: Hash + Eq, Req>(
    sessions: &Sessions<K>,
    extract: &impl ExtractKey<K, Req>,
    reader: &impl Read<Req>,
    req: &Req,
) -> Result<CallPermit, Denied> {
    let found = extract.get(sessions.store(), req);
    let ask = |machine: &SharedMachine<Fence>| acquire_stored(machine, || reader.read(req));
    match sessions.ask(found, || extract.own(req), ask) {
        Ok((machine_ref, Ok(ticket))) => Ok(CallPermit::new(machine_ref, ticket)),
        Ok((_, Err(denied))) => Err(denied),
        Err(unguarded) => {
            keyed::tell_unguarded(unguarded.machine());
            Ok(CallPermit::none())
        }
    }
}

/// The gate of a fence in a store. What the request says is read only if it may matter.
#[inline]
fn acquire_stored(
    machine: &SharedMachine<Fence>,
    read: impl FnOnce() -> CallFacts,
) -> Result<Result<Ticket, Denied>, Retired> {
    if !allows_some(machine) {
        if let Some(denied) = refuse_any(machine)? {
            return Ok(Err(denied));
        }
        // It has moved since.
    }
    let facts = read();
    match acquire_fast(machine, &facts) {
        Some(ticket) => Ok(Ok(ticket)),
        None => acquire(machine, &facts),
    }
}
