//! What all test binaries share: time, refusals, panics, and scripted services in a file each.

#![allow(dead_code)] // Each test binary uses its part.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tower_breaker::{BoxError, Reason, Refusal};

pub mod allocator;
pub mod body;
pub mod calls;
pub mod events;
pub mod mocks;
pub mod model;
pub mod site;
pub mod tool;

// ===== time =====

pub const NS: Duration = Duration::from_nanos(1);

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Lets time pass on the paused clock.
pub async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

/// Runs `future` on a paused clock, for tests that are not async themselves.
pub fn paused<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// Runs `future` on eight threads, for at most a minute: a fault fails the test and does not hang
/// it.
pub fn on_threads<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(8)
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(secs(60), future).await })
        .expect("done within a minute")
}

// ===== refusals =====

/// The refusal inside an error.
#[track_caller]
pub fn refusal_in(err: &BoxError) -> &Refusal {
    Refusal::find(&**err).unwrap_or_else(|| panic!("not refused: {err}"))
}

/// The refusal that a call was answered with.
#[track_caller]
pub fn refused<T: fmt::Debug>(result: Result<T, BoxError>) -> Refusal {
    refusal_in(&result.expect_err("refused")).clone()
}

/// Why a call was refused, and how long to wait.
#[track_caller]
pub fn reason_and_wait<T: fmt::Debug>(result: Result<T, BoxError>) -> (Reason, Option<Duration>) {
    let refusal = refused(result);
    (refusal.reason(), refusal.retry_after())
}

// ===== panics =====

/// Whether `f` panics.
pub fn panics<T>(f: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// The text of the panic that `f` ends in.
#[track_caller]
pub fn panic_message<T>(f: impl FnOnce() -> T) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else {
        panic!("no panic");
    };
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
        .expect("a text")
}
