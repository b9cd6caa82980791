//! The circuit breaker. Unless a test says otherwise it has the defaults: three failures, a
//! cooldown of 30 s and a lease of 30 s. "Case 9" and the like number the cases from the field.

#![allow(clippy::unchecked_time_subtraction)] // A test that goes below zero is to panic.

#[path = "../support/mod.rs"]
mod support;

mod cancelled;
mod cooldown;
mod counting;
mod events;
mod handle;
mod keys;
mod looking;
mod observe_only;
mod panics;
mod probe;
mod readiness;
mod refusal;
mod settings;
mod sharing;
mod stale;
mod substitutes;
mod waiting;
mod when_open;

use tower_breaker::{Cancelled, CircuitBreakerHandle, Recorded};

use crate::support::secs;

/// Every rule for dropped calls.
const CANCELLED: [Cancelled; 4] = [
    Cancelled::Ignore,
    Cancelled::Release,
    Cancelled::Failure,
    Cancelled::FailureAfter(secs(5)),
];

/// Fails `times` calls by hand.
fn fail(handle: &CircuitBreakerHandle, times: u32) {
    for _ in 0..times {
        assert_eq!(handle.try_acquire().unwrap().failure(), Recorded::Applied);
    }
}
