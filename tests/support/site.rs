//! Shared by the tests of the contract.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::advance;
use tokio_test::task;
use tower::Service;
use tower_breaker::{BoxError, CircuitBreakerHandle, Reason, Refusal};
use tower_test::mock::Spawn;

pub type Query = &'static str;

/// The error of a broken tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tool is down")
    }
}

impl std::error::Error for Down {}

/// A tool that answers at once and counts its calls. It panics if it is called but was not polled
/// ready.
pub struct Tool {
    site: Arc<Site>,
    ready: bool,
}

/// The state that all clones of a tool share.
#[derive(Default)]
pub struct Site {
    calls: AtomicUsize,
    polls: AtomicUsize,
    down: AtomicBool,
    stuck: AtomicBool,
    lost: AtomicBool,
}

impl Site {
    pub fn tool(self: &Arc<Self>) -> Tool {
        let site = Arc::clone(self);
        Tool { site, ready: false }
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// How often `poll_ready` was called.
    pub fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }

    /// Sets whether every call fails.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Sets whether it is never ready. Wakes nobody.
    pub fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::SeqCst);
    }

    /// Sets whether readiness is an error.
    pub fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::SeqCst);
    }
}

impl Clone for Tool {
    fn clone(&self) -> Self {
        self.site.tool()
    }
}

impl Service<Query> for Tool {
    type Response = Query;
    type Error = Down;
    type Future = Ready<Result<Query, Down>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Down>> {
        self.site.polls.fetch_add(1, Ordering::SeqCst);
        if self.site.lost.load(Ordering::SeqCst) {
            return Poll::Ready(Err(Down));
        }
        if self.site.stuck.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, query: Query) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without having been polled ready"
        );
        self.site.calls.fetch_add(1, Ordering::SeqCst);
        ready(if self.site.down.load(Ordering::SeqCst) {
            Err(Down)
        } else {
            Ok(query)
        })
    }
}

/// Trips the circuit: fails three calls by hand.
pub fn trip(handle: &CircuitBreakerHandle) {
    for _ in 0..3 {
        handle.try_acquire().expect("closed").failure();
    }
    assert!(!handle.would_allow());
}

pub async fn advance_secs(secs: u64) {
    advance(Duration::from_secs(secs)).await;
}

/// Polls a service's readiness as its own task.
pub fn poll<S: Service<Query>>(service: &mut Spawn<S>) -> Poll<Result<(), S::Error>> {
    service.poll_ready::<Query>()
}

/// The output of a future that is ready at once.
pub fn now<F: Future>(future: F) -> F::Output {
    match task::spawn(future).poll() {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("not ready at once"),
    }
}

/// Polls the service ready and calls it. Both must be ready at once.
pub fn ask<S: Service<Query>>(service: &mut S) -> Result<S::Response, S::Error> {
    now(std::future::poll_fn(|cx| service.poll_ready(cx)))?;
    now(service.call("q"))
}

/// Returns why a call was refused, and how long to wait.
pub fn refused<T: fmt::Debug>(result: Result<T, BoxError>) -> (Reason, Option<Duration>) {
    let err = result.expect_err("not refused");
    let refusal = Refusal::find(&*err).unwrap_or_else(|| panic!("failed, not refused: {err}"));
    (refusal.reason(), refusal.retry_after())
}

#[allow(clippy::unnecessary_wraps)] // The type of `Refusal::retry_after`.
pub const fn secs(secs: u64) -> Option<Duration> {
    Some(Duration::from_secs(secs))
}
