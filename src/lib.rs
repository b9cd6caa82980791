//! Tower middleware that keeps an agent's calls to tools and models from failing for ever.

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
pub mod health_router;
mod machine;
mod outcome;
mod refusal;
#[cfg(feature = "retry")]
pub mod retry;
mod store;
mod sync;

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
pub use self::outcome::{
    Classify, ErrorsAsFailures, Failure, FailureKind, Outcome, RefusalsAsFailures,
};
pub use self::refusal::{AsBoxError, IntoError, Reason, Refusal, Refuse, RefuseWith};

/// A boxed error, as tower's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
