//! The circuit breaker's cases. Unless a test says otherwise: 3 failures, 30 s, 30 s lease.

use tower_breaker::Cancelled;

use crate::support::secs;

mod cooldown;
mod counting;
mod events;
mod handle;
mod keys;
mod looking;
mod panics;
mod probe;
mod readiness;
mod refusal;
mod router;
mod settings;
mod stale;

/// Every rule for dropped calls.
const CANCELLED: [Cancelled; 4] = [
    Cancelled::Ignore,
    Cancelled::Release,
    Cancelled::Failure,
    Cancelled::FailureAfter(secs(5)),
];
