//! The circuit breaker, as its users see it. Unless a test says otherwise: 3 failures, 30 s, 30 s
//! lease.

// A test whose subtraction of times goes below zero is to panic.
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
