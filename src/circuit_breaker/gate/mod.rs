//! How a service asks its circuit before a call.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod` | the trait; the oracle and the gate of one shared circuit; denied calls |
//! | `one` | one circuit for all calls |
//! | `per_key` | one circuit for each key |
//! | `routed` | one circuit for each key, with substitutes |

mod one;
mod per_key;
mod routed;

use std::task::{Context, Poll};

pub use self::one::One;
pub(super) use self::per_key::Circuits;
pub use self::per_key::PerKey;
pub use self::routed::Routed;
use super::circuit::{Circuit, Rules, Ticket};
use super::permit::CallPermit;
use crate::machinery::clock::Timestamp;
use crate::machinery::denied::Denied;
use crate::machinery::shared_machine::{Environment, MachineRef, Retired, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::{Event, Failure, Name, Reason, Refusal};

type CircuitRef = Arc<MachineRef<Circuit>>;

/// The questions that a service asks before a call.
pub(super) trait Gate<Req> {
    /// Asks the oracle anew. After `true`, inner readiness is polled; after `false`, the next call
    /// is refused.
    fn poll_ask(&mut self, cx: &mut Context<'_>) -> Poll<bool>;

    /// Has `cx` woken at every transition, while inner readiness is pending. Ready if the next
    /// call is to be refused.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The inner service is ready for one call.
    fn readied(&mut self);

    /// The inner service failed to become ready.
    fn readiness_failed(&mut self, failure: Failure);

    /// Admits a call by the packed state alone, without the request. `None` if
    /// [`admit`](Self::admit) must be asked.
    fn admit_lock_free(&mut self) -> Option<CallPermit>;

    /// Refuses a call to which [`poll_ask`](Self::poll_ask) said no, if that answer still holds
    /// and there is no observer. `None` if [`admit`](Self::admit) must be asked.
    fn refuse_lock_free(&mut self) -> Option<Refusal>;

    /// Asks the gate.
    fn admit(&mut self, req: &mut Req) -> Result<CallPermit, Refusal>;
}

/// A gate of a layer, to which a setter gives state of its own.
pub(super) trait Renew {
    /// This gate with new circuits.
    #[must_use]
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>, seed: u64) -> Self;
}

/// The time, read at most once, and only if it is asked for.
struct LazyNow<'a> {
    machine: &'a SharedMachine<Circuit>,
    read: Option<Timestamp>,
}

impl<'a> LazyNow<'a> {
    /// The time of the clock of `machine`, not read yet.
    fn of(machine: &'a SharedMachine<Circuit>) -> Self {
        Self {
            machine,
            read: None,
        }
    }

    /// A time that was read before.
    fn at(machine: &'a SharedMachine<Circuit>, now: Timestamp) -> Self {
        let read = Some(now);
        Self { machine, read }
    }

    fn get(&mut self) -> Timestamp {
        *self.read.get_or_insert_with(|| self.machine.now())
    }
}

// ===== the oracle =====

/// Whether the oracle would allow a call.
pub(super) fn would_allow(machine: &SharedMachine<Circuit>) -> bool {
    machine.rules().observe_only || ask(machine, &mut LazyNow::of(machine)).is_ok()
}

/// Asks the oracle. It reads the clock only if the answer depends on the time.
#[inline]
fn ask(machine: &SharedMachine<Circuit>, now: &mut LazyNow<'_>) -> Result<(), Denied> {
    if machine.packed().admits_all() {
        return Ok(());
    }
    ask_slow(machine, now)
}

fn ask_slow(machine: &SharedMachine<Circuit>, now: &mut LazyNow<'_>) -> Result<(), Denied> {
    let packed = machine.packed_before_deadline();
    if let Some(answer) =
        Circuit::try_acquire_lock_free(packed, || machine.deadline(packed), || now.get())
    {
        return answer.map(|_| ());
    }
    let now = now.get();
    machine.read(|circuit, _, rules| circuit.would_allow(rules, now))
}

// ===== the gate =====

/// Asks the gate of a circuit that is in no store.
#[inline]
pub(super) fn acquire(machine: &SharedMachine<Circuit>) -> Result<Ticket, Denied> {
    // Only a store retires a circuit, so this does not happen. The fallback answer lets the caller
    // come again at once.
    acquire_unless_retired(machine).unwrap_or(Err(Denied::NOT_READY))
}

/// Asks the gate of a circuit that its store may have evicted since it was looked up.
#[inline]
fn acquire_unless_retired(
    machine: &SharedMachine<Circuit>,
) -> Result<Result<Ticket, Denied>, Retired> {
    let packed = machine.packed();
    if packed.admits_all() {
        return Ok(Ok(Ticket::ordinary(packed)));
    }
    acquire_slow(machine)
}

fn acquire_slow(machine: &SharedMachine<Circuit>) -> Result<Result<Ticket, Denied>, Retired> {
    let mut now = LazyNow::of(machine);
    let packed = machine.packed_before_deadline();
    if let Some(answer) =
        Circuit::try_acquire_lock_free(packed, || machine.deadline(packed), || now.get())
    {
        return Ok(answer);
    }
    let now = now.get();
    machine.step_unless_retired(|circuit, rules, events| circuit.try_acquire(rules, now, events))
}

// ===== denied calls =====

/// Answers a call that the gate denies: with a refusal, or under `observe_only` with an empty
/// permit.
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
