//! How a service asks its fence: the only one, or the one of the request's session.

mod one;
mod per_session;

use std::task::{Context, Poll};

pub use self::one::One;
pub use self::per_session::PerSession;
pub(super) use self::per_session::Sessions;
#[cfg(tower_breaker_loom)]
pub(super) use self::per_session::acquire_in;
use super::fence::{CallFacts, Denied, Fence, Rules, Ticket};
use super::permit::CallPermit;
use super::reader::Read;
use crate::machinery::clock::Timestamp;
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::{Environment, MachineRef, Retired, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::{Event, FailureKind, Name, Reason, Refusal};

pub(super) type FenceRef = Arc<MachineRef<Fence>>;

/// The questions that a service asks before a call.
pub(super) trait Gate<Req> {
    /// Asks the oracle anew whether some call would be let through.
    ///
    /// With `true` the service polls inner readiness. With `false` it refuses the next call.
    fn ask(&mut self) -> bool;

    /// Registers `cx` to be woken at every transition, because inner readiness is pending.
    ///
    /// Ready when the service is to refuse the next call.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The inner service is ready for one call.
    fn readied(&mut self);

    /// The inner service failed to become ready.
    fn readiness_failed(&mut self, kind: FailureKind);

    /// Asks the gate.
    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<CallPermit, Refusal>;
}

/// The gate of a layer. A setter renews it, so that the layer gets state of its own.
pub(super) trait Renew {
    #[must_use]
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>) -> Self;
}

// ===== the time =====

/// The time, if it matters: without a deadline the clock is not read.
fn now(rules: &Rules, clock: impl FnOnce() -> Timestamp) -> Timestamp {
    if rules.deadline.is_some() {
        clock()
    } else {
        Timestamp::START
    }
}

pub(super) fn now_of(machine: &SharedMachine<Fence>) -> Timestamp {
    now(machine.rules(), || machine.now())
}

// ===== the oracle =====

/// The oracle: whether this call would be let through.
pub(super) fn would_allow(machine: &SharedMachine<Fence>, facts: &CallFacts) -> bool {
    let now = now_of(machine);
    machine.rules().observe_only
        || machine.read(|fence, _, rules| fence.would_allow(rules, now, facts))
}

/// The oracle: whether some call would be let through.
#[inline]
fn would_allow_some(machine: &SharedMachine<Fence>) -> bool {
    // The packed state admits all calls: closed, a turn left, and no deadline.
    machine.packed().admits_all() || would_allow_some_slow(machine)
}

#[cold]
fn would_allow_some_slow(machine: &SharedMachine<Fence>) -> bool {
    let now = now_of(machine);
    let packed = machine.packed_before_deadline();
    Fence::would_allow_some_lock_free(packed, || machine.deadline(packed), now)
        .unwrap_or_else(|| machine.read(|fence, _, _| fence.would_allow_some(now)))
}

// ===== the gate =====

/// The gate's fast path. `None`, with nothing changed, if the call needs [`acquire`].
#[inline]
pub(super) fn acquire_fast(machine: &SharedMachine<Fence>, facts: &CallFacts) -> Option<Ticket> {
    machine.update_unmirrored(|fence, rules| fence.try_acquire_fast(rules, facts))
}

/// The gate.
///
/// [`Retired`] if the store has evicted the fence since it was looked up.
#[cold]
pub(super) fn acquire(
    machine: &SharedMachine<Fence>,
    facts: &CallFacts,
) -> Result<Result<Ticket, Denied>, Retired> {
    let now = now_of(machine);
    machine.step_unless_retired(|fence, rules, events| fence.try_acquire(rules, now, facts, events))
}

/// Refuses a call without reading it, if every call would be refused.
///
/// `None`, with nothing changed, if some call would be let through.
#[cold]
fn refuse_if_none_allowed(machine: &SharedMachine<Fence>) -> Result<Option<Denied>, Retired> {
    let now = now_of(machine);
    machine.step_unless_retired(|fence, rules, events| {
        fence.refuse_if_none_allowed(rules, now, events)
    })
}

/// Turns the denial of a call into a refusal, or under `observe_only` into an empty permit.
#[cold]
fn deny(
    rules: &Rules,
    observers: &Observers,
    denied: Denied,
    name: impl FnOnce() -> Option<Name>,
) -> Result<CallPermit, Refusal> {
    // A call on an unready inner service is refused all the same: it cannot run.
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
