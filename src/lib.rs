//! Tower middleware that keeps an agent's calls to tools and models from failing for ever.
//!
//! An agent calls tools and models in a loop, and retries have no memory: call 500 into a dead
//! service gets the same eager retry as call 2. The layers of this crate give the loop a memory.
//!
//! | layer | guards | what it does when things go wrong |
//! | --- | --- | --- |
//! | [`CircuitBreakerLayer`] | a tool | refuses calls at once, until one probe has proved recovery |
//! | [`FallbackLayer`] | a model | routes to a chain of backups, until probes have proved the primary |
//! | [`TripwireLayer`] | an agent's loop | stops the run at its turn budget, at identical calls or at a streak of errors, and tells the model why |
//! | [`HealthRouter`], for a keyed [`CircuitBreakerLayer`] | a tool with substitutes | sends the call to a healthy substitute instead of refusing it |
//!
//! # Examples
//!
//! A tool that is down. After three failures in a row its circuit refuses calls at once:
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
//! # Order of the layers
//!
//! ```text
//! tripwire ─► fallback ─► breaker ─► retry ─► timeout ─► the model's client
//! tripwire ─► breaker (per key) ─► retry ─► timeout ─► the tools' client
//! ```
//!
//! Leave out what you do not need; the order of the rest stays. Retries handle transient failures,
//! and the breaker around them handles sustained ones. A timeout goes inside, where it is an error
//! that the breaker counts. [`guide::order`] has the reasons, and the other order of breaker and
//! retry.
//!
//! # Guide
//!
//! - [`guide::order`]: which layer goes outside of which
//! - [`guide::circuit_breaker`], [`guide::fallback`], [`guide::tripwire`]: how each layer moves,
//!   its defaults with their reasons, recipes
//! - [`guide::streams`]: what HTTP and gRPC responses say, and what a stream says at its end
//! - [`guide::clients`]: hyper, reqwest, tonic, axum, async-openai, MCP, and any function
//! - [`guide::testing`]: your stack with a paused clock, handles and mocks
//! - [`guide::tuning`]: which values for which traffic
//! - [`guide::pitfalls`]: symptom, cause, remedy
//! - [`guide::performance`]: what a call costs, and how to measure it
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `http` | `http::StatusClassifier`, `http::EndOfBody`, `http::SoftRefusal`: statuses and hints of an `http::Response`, verdicts at the end of its body, refusals as responses |
//! | `grpc` | `grpc::Codes`, `grpc::SoftRefusal`: the same for gRPC, whose status may come in trailers; turns `http` on |
//! | `json` | `JsonDigest`: canonical digests of JSON arguments, and of anything `Serialize` |
//! | `retry` | `retry::SkipRefusals`: any `tower::retry::Policy`, without attempts spent on refusals |
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
#[cfg(any(doc, doctest))]
pub mod guide;
/// Names and their substitutes: where a call goes while its own tool is refused.
///
/// See [`HealthRouter`].
pub mod health_router {
    pub use crate::circuit_breaker::health_router::HealthRouter;
}
#[cfg(feature = "http")]
pub mod http;
mod machinery;
#[cfg(feature = "retry")]
pub mod retry;
pub mod tripwire;
mod vocabulary;

pub use self::circuit_breaker::health_router::HealthRouter;
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
