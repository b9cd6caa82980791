//! The circuit breaker, as its users see it. Unless a test sets them, the threshold is 3 failures,
//! and the cooldown and the lease are 30 s.

// A test panics if a subtraction of times goes below zero.
#![allow(clippy::unchecked_time_subtraction)]

#[path = "../support/mod.rs"]
mod support;

use tower_breaker::Cancelled;

use crate::support::secs;

mod cooldown;
mod counting;
mod events;
mod handle;
mod hostile_keys;
mod keys;
mod oracle;
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
