//! Tower middleware that keeps an agent's calls to tools and models from failing for ever.
//!
//! An agent calls tools and models in a loop, and retries have no memory: call 500 into a dead service gets the same eager retry as call 2.
//! The layers of this crate give the loop a memory.
//!
//! | layer | guards | what it does when things go wrong |
//! | --- | --- | --- |
//! | [`CircuitBreakerLayer`] | a tool: one circuit, or one per key | refuses calls at once, until one probe has proved recovery |
//! | [`FallbackLayer`] | a model | routes to a chain of backups, until probes have proved the primary |
//! | [`TripwireLayer`] | an agent's loop | refuses to go on: turn budget, identical calls, error streak, and tells the model why |
//! | [`HealthRouter`], a table for a keyed [`CircuitBreakerLayer`] | a tool with substitutes | sends the call to a healthy substitute instead of refusing |
//!
//! # Order of the layers
//!
//! Retries handle transient failures, then the breaker handles sustained ones:
//!
//! ```text
//! breaker ─► retry ─► timeout ─► service     one call is one turn: only what the ladder could not save
//!                                            reaches the breaker (the default advice)
//! retry ─► breaker ─► timeout ─► service     every attempt counts, and an open circuit stops the
//!                                            ladder; wrap the policy in `retry::SkipRefusals`
//!
//! tripwire ─► fallback ─► breaker ─► retry ─► timeout ─► the model's client
//! tripwire ─► breaker (per key) ─► retry ─► timeout ─► the tools' client
//! ```
//!
//! A timeout goes inside, where it is an error that the breaker sees. Outside, it drops the call: then use
//! [`Cancelled::FailureAfter`].
//!
//! ```
//! use std::time::Duration;
//! use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_breaker::{CircuitBreakerLayer, Refusal, State};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let breaker = CircuitBreakerLayer::new().name("search");
//! let circuit = breaker.handle();
//! let mut search = ServiceBuilder::new()
//!     .layer(breaker)
//!     .timeout(Duration::from_secs(10))
//!     .service(service_fn(|_query: &str| async { Err::<String, BoxError>("down".into()) }));
//!
//! for _ in 0..3 {
//!     let _ = search.ready().await.unwrap().call("rust").await;
//! }
//! assert_eq!(circuit.state(), State::Open);
//! let refused = search.ready().await.unwrap().call("rust").await.unwrap_err();
//! let refusal = Refusal::find(&*refused).expect("refused at once");
//! assert_eq!(refusal.to_string(), "tool `search` temporarily unavailable: circuit breaker open");
//! # }
//! ```
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `http` | `http::StatusClassifier`, `http::EndOfBody`: statuses and hints of an `http::Response`, verdicts at the end of its body, soft refusals |
//! | `grpc` | `grpc::Codes`, `grpc::SoftRefusal`: the same for gRPC, whose status may come in trailers; turns `http` on |
//! | `json` | `JsonDigest`: canonical digests of JSON arguments, and of anything `Serialize` |
//! | `retry` | `retry::SkipRefusals`: any `tower::retry::Policy` that spends no attempt on a refusal |
//!
//! None is needed for the layers.

#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod cell;
pub mod circuit_breaker;
mod clock;
mod event;
pub mod fallback;
#[cfg(feature = "grpc")]
pub mod grpc;
#[cfg(any(doc, doctest))]
pub mod guide;
pub mod health_router;
#[cfg(feature = "http")]
pub mod http;
mod judge;
mod keyed;
mod machine;
mod outcome;
mod refusal;
#[cfg(feature = "retry")]
pub mod retry;
mod store;
mod sync;
pub mod tripwire;
mod unwind;

pub use self::circuit_breaker::{
    Cancelled, CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer, CircuitBreakerSnapshot,
    KeyedCircuitBreakerHandle, Permit, Recorded, WhenOpen, Window,
};
pub use self::event::{EntryChange, Event, FallbackState, Observe, State, TransitionReason};
pub use self::fallback::{
    EntrySnapshot, Exhausted, Fallback, FallbackHandle, FallbackLayer, FallbackSnapshot,
    UnknownEntry,
};
pub use self::health_router::HealthRouter;
#[cfg(feature = "http")]
pub use self::http::EndOfBody;
pub use self::judge::Head;
pub use self::outcome::{
    Classify, ErrorsAsFailures, Failure, FailureKind, Outcome, RefusalsAsFailures,
};
pub use self::refusal::{AsBoxError, IntoError, Reason, Refusal, Refuse, RefuseWith};
#[cfg(feature = "json")]
pub use self::tripwire::JsonDigest;
pub use self::tripwire::{
    Digest, Digester, HashDigest, KeyedTripwireHandle, Limit, Tripwire, TripwireHandle,
    TripwireLayer, TripwireSnapshot,
};

/// A boxed error, as tower's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The README's code, compiled and run with the tests; some of it is about HTTP.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct Readme;
