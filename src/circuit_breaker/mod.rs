//! A circuit breaker: refuses calls at once while a tool is down, and tests recovery with one leased probe.
//!
//! ```text
//!                failure_threshold failures in a row,
//!                failure_rate, or a fatal one
//!      ┌────────┐ ───────────────────────────────────► ┌────────┐
//!      │ Closed │                                      │  Open  │ ◄─┐
//!      └────────┘                                      └────────┘   │
//!          ▲                                               │        │ the probe fails,
//!          │ success_threshold                  a call when│        │ or its lease ends
//!          │ probes succeed                     the cooldown        │
//!          │                                    is over    ▼        │
//!          │                                           ┌──────────┐ │
//!          └────────────────────────────────────────── │ HalfOpen │─┘
//!                                                      └──────────┘
//! ```
//!
//! # The table
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | Closed | success | streak = 0 |
//! | Closed | failure | streak + 1; at `failure_threshold` → Open, the cooldown counts from now. A fatal one trips at once |
//! | Closed | a result from an older generation | stale: changes nothing, success or failure |
//! | Open | call, cooldown not over | refused, with the time that is left |
//! | Open | call, cooldown over | → `HalfOpen`; this caller is the probe, its lease starts |
//! | Open | stale success | ignored: it describes the time before the trip |
//! | Open | stale failure | the cooldown restarts from now (each admitted call once; refusals never) |
//! | `HalfOpen` | call, slot taken | refused ([`Reason::ProbeInFlight`](crate::Reason::ProbeInFlight)), with the rest of the lease |
//! | `HalfOpen` | the probe succeeds, lease live | → Closed (or the next probe, until `success_threshold`) |
//! | `HalfOpen` | the probe fails | → Open, the cooldown counts from now |
//! | `HalfOpen` | lease over | → Open, the cooldown counts from the lease's end, however late it is noticed |
//! | `HalfOpen` | the probe is neutral | the slot is free; the next call is the probe |
//! | `HalfOpen` | any other result | stale: changes nothing |
//!
//! A call is admitted in a *generation*, and every transition begins a new one: a result that comes from an older generation is
//! stale. A `retry_after` that a failure carries lengthens the cooldown, up to
//! [`retry_after_cap`](CircuitBreakerLayer::retry_after_cap); of two deadlines the later one wins.
//!
//! # Examples
//!
//! The defaults: one circuit, three failures in a row, 30 s.
//!
//! ```
//! use tower::{BoxError, ServiceBuilder, service_fn};
//! use tower_breaker::CircuitBreakerLayer;
//!
//! let search = ServiceBuilder::new()
//!     .layer(CircuitBreakerLayer::new().name("search"))
//!     .service(service_fn(|query: String| async move { Ok::<_, BoxError>(query) }));
//! # let _ = search;
//! ```
//!
//! One circuit per tool, with answers that the model can read instead of errors:
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//! use tower::{ServiceBuilder, service_fn};
//! use tower_breaker::{CircuitBreakerLayer, Failure, Outcome, Refusal};
//!
//! struct ToolCall { name: String }
//! struct ToolResult { text: String, is_error: bool }
//!
//! let layer = CircuitBreakerLayer::new()
//!     .failure_threshold(5)
//!     .recovery_duration(Duration::from_secs(10))
//!     .backoff(2, Duration::from_secs(300))
//!     .jitter(0.2)
//!     .classify(|result: Result<&ToolResult, &Infallible>| match result {
//!         Ok(ToolResult { is_error: true, .. }) => Failure::transient().into(),
//!         _ => Outcome::Success,
//!     })
//!     .refuse_with(|_call: ToolCall, refusal: Refusal| {
//!         Ok::<_, Infallible>(ToolResult { text: refusal.to_string(), is_error: true })
//!     })
//!     .per_key(|call: &ToolCall| call.name.as_str(), 1_000);
//! let tools = ServiceBuilder::new().layer(&layer).service(service_fn(|call: ToolCall| async move {
//!     Ok::<_, Infallible>(ToolResult { text: call.name, is_error: false })
//! }));
//! # let _ = tools;
//! ```
//!
//! # Readiness
//!
//! With one circuit, `poll_ready` asks the oracle. If the circuit would refuse, the inner service is not asked, `poll_ready` is ready, and the call is
//! refused at once; it is never `Ready(Err)` for an open circuit, which would kill a `Buffer`. If it would allow, inner readiness is polled, and a caller
//! who waits there is woken by every transition, to be refused if the circuit has tripped. The probe's slot is taken in `call`
//! alone. With [`WhenOpen::NotReady`] a circuit that would refuse is not ready instead.
//!
//! The answer of no that `poll_ready` gave holds for one call, and so does the wait that it read: `call` reads the clock again only if less than a second of
//! that wait was left, or the circuit has moved since. A caller who lets much time pass between the two is told the wait of then, even if the circuit
//! is due by now.
//!
//! A call that the circuit would let through, but whose inner service was not polled ready, is refused with [`Reason::NotReady`](crate::Reason::NotReady) and
//! takes no probe: nobody asked, or the circuit refused when they did and no longer does. It may be polled and called again at once.
//!
//! With a circuit per key, the key is not known when readiness is asked for: it passes through, and the gate is asked in `call`.
//!
//! An inner service that fails to become ready has failed (the probe, when one is due); per key that counts for no key.
//!
//! # Streams
//!
//! A call is judged when its response is there. A response whose body streams may fail after that: with the feature `http`,
//! [`judge`](CircuitBreakerLayer::judge) moves the permit into the body, and the verdict comes at its end. A body that is dropped before is a dropped call; each
//! frame starts a probe's lease anew.
//!
//! # Panics and dropped calls
//!
//! A panic in the inner service's `call` or in its future is a failure, whoever catches it. A panic in a classifier is a
//! cancelled call. What a cancelled call says is set by [`on_cancel`](CircuitBreakerLayer::on_cancel), a [`Cancelled`]. The
//! slot is never lost.

mod circuit;
#[cfg(test)]
mod costs;
pub mod future;
mod gate;
mod handle;
pub mod health_router;
mod layer;
/// The interleaving models; see `tests/loom`.
#[cfg(tower_breaker_loom)]
#[doc(hidden)]
#[path = "../../tests/loom/models.rs"]
pub mod models;
mod permit;
mod service;

pub use self::circuit::CircuitBreakerSnapshot;
pub use self::circuit::Window;
pub use self::gate::{One, PerKey, Routed};
pub use self::handle::{CircuitBreakerHandle, KeyedCircuitBreakerHandle};
pub use self::layer::CircuitBreakerLayer;
pub use self::permit::Permit;
pub use self::service::CircuitBreaker;
pub use crate::machinery::keyed::{Borrowed, Owned};
pub use crate::vocabulary::{Cancelled, Recorded};

/// What `poll_ready` does while the circuit would refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenOpen {
    /// It is ready, and the call is refused at once.
    Refuse,
    /// It is pending while a call would be refused: until the cooldown is over, the probe's slot is free, or the circuit is closed. So `tower::balance` and
    /// its like choose another endpoint. It needs a tokio runtime with time.
    NotReady,
}

#[cfg(test)]
mod tests {
    use super::circuit::{Circuit, Rules};
    use crate::machinery::clock::{Clock, Timestamp};
    use crate::machinery::observers::Observers;
    use crate::machinery::shared_machine::{Environment, MachineRef, Retirement, SharedMachine};
    use crate::machinery::sync::Arc;
    use crate::vocabulary::Failure;
    use std::time::Duration;

    /// Else the store would look at a circuit again at each new key, from the end of its lease to the end of the cooldown after it.
    #[test]
    fn a_circuit_whose_lease_is_over_is_live_until_the_end_of_the_cooldown_after_it() {
        let environment = Arc::new(Environment {
            rules: Rules::default(),
            clock: Clock::start(),
            observers: Observers::default(),
        });
        let circuit = Circuit::new(&environment.rules, 0);
        let machine_ref = Arc::new(MachineRef::new(SharedMachine::new(
            circuit,
            None,
            environment,
        )));
        let at = |secs| Timestamp::START.saturating_add(Duration::from_secs(secs));
        machine_ref.machine().step(|circuit, rules, events| {
            let ticket = circuit.try_acquire(rules, at(0), events).unwrap();
            let fatal = Failure::fatal().into();
            circuit.record(rules, at(0), ticket, fatal, events);
            circuit.try_acquire(rules, at(30), events).unwrap();
        });
        for (now, deadline) in [(30, 60), (59, 60), (60, 90), (89, 90)] {
            assert_eq!(
                SharedMachine::retire(&machine_ref, 1, true, at(now)),
                Retirement::Live(at(deadline)),
                "at {now} s"
            );
        }
        assert_eq!(
            SharedMachine::retire(&machine_ref, 1, true, at(90)),
            Retirement::Done { clean: false }
        );
    }

    #[test]
    fn a_circuit_takes_no_more_than_its_192_bytes() {
        let size = size_of::<SharedMachine<Circuit>>();
        assert!(size <= 192, "{size}");
    }
}
