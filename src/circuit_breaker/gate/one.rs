//! One circuit for all calls.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep};

use super::{CircuitRef, Gate, LazyNow, Renew, acquire, ask, deny};
use crate::circuit_breaker::WhenOpen;
use crate::circuit_breaker::circuit::{Circuit, Rules};
use crate::circuit_breaker::permit::CallPermit;
use crate::machinery::clock::{Timestamp, nanos};
use crate::machinery::denied::Denied;
use crate::machinery::shared_machine::{
    Environment, MachineRef, RefOwner, SharedMachine, WaiterGuard,
};
use crate::machinery::sync::Arc;
use crate::vocabulary::{Failure, Name, Reason, Refusal};

/// One circuit for all calls.
///
/// If `poll_ready` decides to refuse, then its answer holds for the next call, which need not read
/// the clock. The call decides anew if the deadline has moved since, or if less than a second of
/// the wait was left.
pub struct One {
    machine_ref: CircuitRef,
    waiting: Option<Box<Waiting>>,
    /// A time in nanoseconds that belongs to the refusal of `poll_ready`. `ready` says which time
    /// it is.
    refused_nanos: u64,
    /// The low half of the deadline by which `poll_ready` decided the refusal.
    deadline_low: u32,
    ready: Readiness,
    /// Whose reference count `machine_ref` is.
    ref_owner: RefOwner,
    /// Whether an open circuit may refuse without the slow path: nobody observes, `observe_only`
    /// is off, and `poll_ready` does not wait.
    refuses_lock_free: bool,
}

/// If fewer nanoseconds than this were left of the wait of a refusal, `call` decides anew.
const RECHECK_BELOW: u64 = 1_000_000_000;

/// The decision of the last `poll_ready` about the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    /// Nothing: it was not polled, or the answer is used up.
    Unknown,
    /// The call is refused. `refused_nanos` is when the oracle said so.
    Refused,
    /// The call is refused, lock-free. `refused_nanos` is what was left of the cooldown.
    RefusedLockFree,
    /// The inner service is ready. Holds the owner of the reference count at that time.
    Ready(RefOwner),
}

/// The timer and the waiter of a service that waits.
#[derive(Default)]
struct Waiting {
    waiter: Option<WaiterGuard>,
    /// Ends when the oracle's answer runs out. Only [`WhenOpen::NotReady`] needs it.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The low half of a deadline, to tell whether the deadline was moved. A service has no room for
/// the whole. Two deadlines with the same low half are at least four seconds apart.
#[inline]
#[allow(clippy::cast_possible_truncation)]
fn low_half(deadline: Timestamp) -> u32 {
    deadline.as_nanos() as u32
}

impl Denied {
    fn needs_recheck(self) -> bool {
        self.wait.is_some_and(|wait| nanos(wait) < RECHECK_BELOW)
    }
}

impl One {
    pub(crate) fn new(machine_ref: CircuitRef) -> Self {
        let rules = machine_ref.machine().rules();
        Self {
            refuses_lock_free: rules.when_open == WhenOpen::Refuse
                && !rules.observe_only
                && !machine_ref.machine().observed(),
            machine_ref,
            waiting: None,
            refused_nanos: 0,
            deadline_low: 0,
            ready: Readiness::Unknown,
            ref_owner: RefOwner::Shared,
        }
    }

    /// A gate with a new circuit.
    pub(crate) fn made(
        environment: &Arc<Environment<Rules>>,
        name: Option<&Name>,
        seed: u64,
    ) -> Self {
        let circuit = Circuit::new(&environment.rules, seed);
        let machine = SharedMachine::new(circuit, name.cloned(), Arc::clone(environment));
        Self::new(Arc::new(MachineRef::new(machine)))
    }

    pub(crate) fn machine_ref(&self) -> &CircuitRef {
        &self.machine_ref
    }

    /// The reference for one more permit.
    fn hold(&mut self) -> CircuitRef {
        self.ref_owner.hold(&mut self.machine_ref)
    }

    /// Whether the deadline has moved since `poll_ready` decided a refusal by it.
    #[inline]
    fn deadline_moved(&self) -> bool {
        low_half(self.machine_ref.machine().any_deadline()) != self.deadline_low
    }

    /// Why a call is refused whose inner service is not ready.
    fn why_not_ready(&self, ready: Readiness) -> Denied {
        let machine = self.machine_ref.machine();
        if machine.rules().observe_only {
            return Denied::NOT_READY;
        }
        let mut answer = None;
        if ready == Readiness::Refused && !self.deadline_moved() {
            // The answer of `poll_ready` holds for this call, at the time when it was given.
            let mut polled = LazyNow::at(machine, Timestamp::from_nanos(self.refused_nanos));
            answer = Some(ask(machine, &mut polled));
        }
        let answer = match answer {
            Some(answer) if !answer.is_err_and(Denied::needs_recheck) => answer,
            _ => ask(machine, &mut LazyNow::of(machine)),
        };
        let Err(denied) = answer else {
            return Denied::NOT_READY;
        };
        if denied.reason == Reason::CircuitOpen && !Circuit::is_open(machine.packed()) {
            // The probe's lease is over, and this refusal is the first to notice. Observers hear
            // of it, and the next caller needs no lock to be refused.
            let now = machine.now();
            machine.step(|circuit, rules, events| circuit.expire_lease(rules, now, events));
        }
        denied
    }

    // The slow path of `poll_ask`. There are two functions, so that `poll_ask` prepares no
    // argument for a call that it rarely makes.

    #[cold]
    #[inline(never)]
    fn poll_ask_slow(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.poll_ask_at(cx, None)
    }

    /// [`poll_ask_slow`](Self::poll_ask_slow) for a caller that has read the clock.
    #[cold]
    #[inline(never)]
    fn poll_ask_again(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Poll<bool> {
        self.poll_ask_at(cx, Some(now))
    }

    fn poll_ask_at(&mut self, cx: &mut Context<'_>, read: Option<Timestamp>) -> Poll<bool> {
        self.ready = Readiness::Unknown;
        let machine = self.machine_ref.machine();
        let rules = machine.rules();
        // Read before the oracle is asked: if the deadline moves in between, the answer is not
        // used.
        self.deadline_low = low_half(machine.any_deadline());
        let mut now = LazyNow { machine, read };
        match ask(machine, &mut now) {
            Ok(()) => Poll::Ready(true),
            Err(_) if rules.observe_only => Poll::Ready(true),
            Err(_) if rules.when_open == WhenOpen::Refuse => {
                self.refused_nanos = now.get().as_nanos();
                self.ready = Readiness::Refused;
                Poll::Ready(false)
            }
            Err(_) => self.poll_allowed(cx).map(|()| true),
        }
    }

    /// Waits until the oracle says yes: for a transition, or for the end of the wait in its
    /// answer.
    fn poll_allowed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let machine = self.machine_ref.machine();
        let waiting = self.waiting.get_or_insert_default();
        loop {
            machine.wait(&mut waiting.waiter, cx);
            // Asked after the waker is in place, so that no transition is missed.
            let Err(denied) = ask(machine, &mut LazyNow::of(machine)) else {
                waiting.timer = None;
                return Poll::Ready(());
            };
            let Some(wait) = denied.wait else {
                // Only a transition ends this wait.
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

impl<Req> Gate<Req> for One {
    #[inline]
    fn poll_ask(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let machine = self.machine_ref.machine();
        let packed = machine.packed_before_deadline();
        if packed.admits_all() {
            // The answer of an earlier poll must not outlive this one, even if the inner service
            // or the classifier unwinds.
            self.ready = Readiness::Unknown;
            return Poll::Ready(true);
        }
        if !self.refuses_lock_free || !Circuit::is_open(packed) {
            return self.poll_ask_slow(cx);
        }
        let now = machine.now();
        match machine.deadline(packed) {
            Some(deadline) if now < deadline => {
                self.refused_nanos = deadline.nanos_remaining(now);
                self.deadline_low = low_half(deadline);
                self.ready = Readiness::RefusedLockFree;
                Poll::Ready(false)
            }
            _ => self.poll_ask_again(cx, now),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ready = Readiness::Unknown;
        let waiting = self.waiting.get_or_insert_default();
        self.machine_ref.machine().wait(&mut waiting.waiter, cx);
        // A transition before the waker was in place woke nobody, so the oracle is asked again.
        match Gate::<Req>::poll_ask(self, cx) {
            Poll::Ready(false) => Poll::Ready(()),
            Poll::Ready(true) | Poll::Pending => Poll::Pending,
        }
    }

    #[inline]
    fn readied(&mut self) {
        self.ready = Readiness::Ready(self.ref_owner);
    }

    fn readiness_failed(&mut self, failure: Failure) {
        self.ready = Readiness::Unknown;
        if let Ok(ticket) = acquire(self.machine_ref.machine()) {
            CallPermit::new(self.hold(), ticket).record(failure.into());
        }
    }

    #[inline]
    fn admit_lock_free(&mut self) -> Option<CallPermit> {
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

    #[allow(clippy::inline_always)] // The caller builds the refusal in place, without a move.
    #[inline(always)]
    fn refuse_lock_free(&mut self) -> Option<Refusal> {
        if self.ready != Readiness::RefusedLockFree {
            return None;
        }
        let (machine, left) = (self.machine_ref.machine(), self.refused_nanos);
        let packed = machine.packed();
        if !Circuit::is_open(packed) || self.deadline_moved() || left < RECHECK_BELOW {
            return None;
        }
        self.ready = Readiness::Unknown;
        let name = machine.name().cloned();
        Some(Refusal::open(name, left, packed.last()))
    }

    #[cold]
    fn admit(&mut self, _: &mut Req) -> Result<CallPermit, Refusal> {
        let ready = mem::replace(&mut self.ready, Readiness::Unknown);
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

impl Renew for One {
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>, seed: u64) -> Self {
        Self::made(environment, name, seed)
    }
}

impl Clone for One {
    fn clone(&self) -> Self {
        // New clones shouldn't carry the readiness state, nor the waiter. They share the reference
        // count until their second call.
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

#[cfg(test)]
mod tests;
