//! A model breaker: routes to a chain of backups while the primary is down, until probes succeed.
//!
//! ```text
//!                trip_threshold failures in a row,
//!                or a fatal one
//!   ┌─────────┐ ───────────────────────────────────► ┌──────────┐
//!   │ Primary │                                      │ Fallback │ ◄─┐
//!   └─────────┘                                      └──────────┘   │ a probe is rate limited
//!        ▲                                              │           │ or fatal, or the
//!        │ recovery_successes_needed        a turn, when│           │ probation_limit-th in a row
//!        │ probes succeed in a row          the cooldown            │ fails or outlives its lease
//!        │                                  is over     ▼           │
//!        │                                           ┌────────────┐ │
//!        └────────────────────────────────────────── │ Recovering │─┘
//!                                                    └────────────┘
//!                                                      ▲        │ a probe fails transiently,
//!                                                      └────────┘ or outlives its lease: the
//!                                                                 count of successes is zeroed
//! ```
//!
//! [The guide](crate::guide::fallback) has the whole table, one outage turn by turn, and the
//! reasons for the defaults. This page is the summary.
//!
//! # How it moves
//!
//! - **Primary.** The primary serves every turn. `trip_threshold` failures in a row trip it, and
//!   so does one fatal failure.
//! - **Fallback.** The first live entry of the chain serves. An entry is failed while it is
//!   disabled by hand, or its budget is spent; otherwise it is live. With no live entry a turn is
//!   refused with [`Reason::FallbackExhausted`](crate::Reason::FallbackExhausted).
//! - **Recovering.** One turn at a time is the probe, and goes to the primary. The chain serves
//!   the other turns. With no live entry they are refused with
//!   [`Reason::ProbeInFlight`](crate::Reason::ProbeInFlight).
//!
//! A `retry_after` of the primary lengthens the cooldown, at most to
//! [`retry_after_cap`](FallbackLayer::retry_after_cap). Without a chain no turn is refused: the
//! layer trips for the record, and the primary still serves.
//!
//! # What to set
//!
//! **Set [`probation_limit`](FallbackLayer::probation_limit)** to 2 or 3, or use
//! [`same_turn`](FallbackLayer::same_turn). With neither, a lone caller spends every turn on a
//! dead primary. Put a `timeout` inside, for the primary and for the backups. The lease,
//! [`probe_timeout`](FallbackLayer::probe_timeout), must be longer than the longest call that may
//! succeed.
//!
//! # Examples
//!
//! A chain of services, and a response that tells who served it:
//!
//! ```
//! use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
//! use tower_breaker::{FallbackLayer, FallbackState};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! struct Answer { text: String, model: Option<String> }
//!
//! let claude = service_fn(|prompt: String| async move {
//!     Ok::<_, BoxError>(Answer { text: format!("you said: {prompt}"), model: None })
//! });
//! let layer = FallbackLayer::new("gpt-5")
//!     .backup("claude", claude)
//!     .probation_limit(3)
//!     .on_fallback(|from: &str, to: Option<&str>| eprintln!("{from} is down, next is {to:?}"))
//!     .served_by(|answer: &mut Answer, name: &str| answer.model = Some(name.to_owned()));
//! let fallback = layer.handle();
//! let model = ServiceBuilder::new()
//!     .layer(layer)
//!     .service(service_fn(|_: String| async { Err::<Answer, BoxError>("503".into()) }));
//!
//! for _ in 0..3 {
//!     assert!(model.clone().oneshot("hello".to_owned()).await.is_err());
//! }
//! assert_eq!(fallback.state(), FallbackState::Fallback);
//! let answer = model.clone().oneshot("hello".to_owned()).await?;
//! assert_eq!(answer.text, "you said: hello");
//! assert_eq!(answer.model.as_deref(), Some("claude"));
//! # Ok(())
//! # }
//! ```
//!
//! A chain of models behind one service is made with [`FallbackLayer::rewriting`].
//!
//! # Readiness
//!
//! `poll_ready` asks who would serve, changes nothing, and polls that service. The service that
//! was polled ready is the one that is called. When a probe is due and the primary is not ready,
//! the first live entry is readied instead. A call of a service that was not polled ready is
//! refused with [`Reason::NotReady`](crate::Reason::NotReady), and takes no probe.
//!
//! # Streams
//!
//! A turn is judged when its response is there. With the feature `http`,
//! [`judge`](FallbackLayer::judge) moves the permit into the response's body, and the verdict
//! comes at its end: a model that breaks off in the midst of its answer has a failed turn. After
//! the first byte there is no silent switch to a backup: the error surfaces, the strike counts,
//! and the next turn routes on. Each frame starts a probe's lease anew, so the lease must be
//! longer than the longest silence of a model, but not as long as its whole answer.
//!
//! # Panics and dropped calls
//!
//! A panic in a model's `call` or in its future is a failure of that model, even if somebody
//! catches it. A panic in a classifier, or in another closure that the layer was given, is a
//! cancelled call. [`on_cancel`](FallbackLayer::on_cancel) sets what a cancelled call says. The
//! probe's slot is never lost.

mod backends;
mod chain;
#[cfg(test)]
mod costs;
pub mod future;
mod gate;
mod handle;
mod layer;
/// The interleaving models. See `tests/loom`.
#[cfg(tower_breaker_loom)]
#[doc(hidden)]
#[path = "../../tests/loom/fallback.rs"]
pub mod models;
mod permit;
mod same_turn;
mod served_by;
mod service;
mod snapshot;

pub use self::backends::{Models, NoBackups, Services};
pub use self::handle::{FallbackHandle, UnknownEntry};
pub use self::layer::FallbackLayer;
pub use self::same_turn::{Kept, Once, SameTurn};
pub use self::served_by::ServedBy;
pub use self::service::Fallback;
pub use self::snapshot::{EntrySnapshot, FallbackSnapshot};

/// Decides what happens to a turn while the primary is down and no entry of its chain is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exhausted {
    /// It is refused.
    Refuse,
    /// The primary serves it, and its result says nothing. This also holds while a probe is in
    /// flight.
    LastResort,
}
