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

pub mod circuit_breaker;
pub mod fallback;
#[cfg(feature = "grpc")]
pub mod grpc;
#[cfg(feature = "http")]
pub mod http;
mod machinery;
#[cfg(feature = "retry")]
pub mod retry;
pub mod tripwire;
mod vocabulary;

pub use self::circuit_breaker::health_router::{self, HealthRouter};
pub use self::circuit_breaker::{
    CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer, CircuitBreakerSnapshot,
    KeyedCircuitBreakerHandle, Permit, WhenOpen, Window,
};
pub use self::fallback::{
    EntrySnapshot, Exhausted, Fallback, FallbackHandle, FallbackLayer, FallbackSnapshot,
    UnknownEntry,
};
#[cfg(feature = "http")]
pub use self::http::EndOfBody;
pub use self::machinery::judge::Head;
#[cfg(feature = "json")]
pub use self::tripwire::JsonDigest;
pub use self::tripwire::{
    Digest, Digester, HashDigest, KeyedTripwireHandle, Limit, Tripwire, TripwireHandle,
    TripwireLayer, TripwireSnapshot,
};
pub use self::vocabulary::{
    AsBoxError, BoxError, Cancelled, Classify, EntryChange, ErrorsAsFailures, Event, Failure,
    FailureKind, FallbackState, IntoError, Observe, Outcome, Reason, Recorded, Refusal,
    RefusalsAsFailures, Refuse, RefuseWith, State, TransitionReason,
};

/// The README's code, compiled and run with the tests; some of it is about HTTP.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct Readme;
