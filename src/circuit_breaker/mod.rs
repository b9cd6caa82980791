//! A circuit breaker: refuses calls while a tool is down, and tests recovery with one probe.
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
//! A success ends the streak of failures. While the circuit is open, calls are refused with the
//! time that is left. When the cooldown is over, the next call is the probe, and it has a lease:
//! if the lease ends before the probe does, the probe counts as failed. Every transition begins a
//! new *generation*, and a result from an older one is stale.
//!
//! [`crate::guide::circuit_breaker`] has the whole table, the defaults with their reasons, and
//! recipes: one circuit for each tool, substitutes, permits by hand, balancers.
//!
//! # Examples
//!
//! The defaults: one circuit, which three failures in a row trip, with a cooldown of 30 s.
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
//! # Readiness
//!
//! With one circuit, `poll_ready` asks the oracle. If the circuit would refuse, `poll_ready` is
//! ready, the inner service is not polled, and the next call is refused at once;
//! [`WhenOpen::NotReady`] makes `poll_ready` wait instead. A call whose inner service was not
//! polled ready is refused with [`Reason::NotReady`](crate::Reason::NotReady), and may be polled
//! and made again at once.
//!
//! With a circuit for each key, the key is not known yet. Inner readiness passes through, and the
//! gate is asked in `call`.
//!
//! # Streams
//!
//! A call is judged when its response is there. A response whose body streams may fail after that:
//! with the feature `http`, [`judge`](CircuitBreakerLayer::judge) moves the permit into the body,
//! and the verdict comes at its end. See [`crate::guide::streams`].
//!
//! # Panics and dropped calls
//!
//! A panic in the inner service's `call`, or in its future, is a failure, even if somebody catches
//! it. A panic in a classifier is a dropped call. [`on_cancel`](CircuitBreakerLayer::on_cancel)
//! sets what a dropped call says. The probe's slot is never lost.

mod circuit;
#[cfg(test)]
mod costs;
pub mod future;
mod gate;
mod handle;
pub(crate) mod health_router;
mod layer;
/// The models for loom; see `tests/loom`.
#[cfg(tower_breaker_loom)]
#[doc(hidden)]
#[path = "../../tests/loom/models.rs"]
pub mod models;
mod permit;
mod service;
mod snapshot;

pub use self::circuit::{WhenOpen, Window};
pub use self::gate::{One, PerKey, Routed};
pub use self::handle::{CircuitBreakerHandle, KeyedCircuitBreakerHandle};
pub use self::layer::CircuitBreakerLayer;
pub use self::permit::Permit;
pub use self::service::CircuitBreaker;
pub use self::snapshot::CircuitBreakerSnapshot;
pub use crate::machinery::keyed::{Borrowed, Owned};
pub use crate::vocabulary::{Cancelled, Recorded};
