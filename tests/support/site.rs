//! A tool that answers at once, and whose site the test takes down, holds up or loses.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio_test::task;
use tower::Service;
use tower_breaker::CircuitBreakerHandle;
use tower_test::mock::Spawn;

pub type Query = &'static str;

/// The error of a tool that is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tool is down")
    }
}

impl std::error::Error for Down {}

/// A tool that answers at once, counts, and panics if it is called without having been polled
/// ready.
pub struct Tool {
    site: Arc<Site>,
    ready: bool,
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

/// What all clones of a tool share.
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

    /// Makes every call fail.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Makes the tool never ready. It wakes nobody.
    pub fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::SeqCst);
    }

    /// Makes `poll_ready` an error.
    pub fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::SeqCst);
    }
}

/// Fails three calls by hand, which trips a circuit with the default threshold.
pub fn trip_by_hand(handle: &CircuitBreakerHandle) {
    for _ in 0..3 {
        handle.try_acquire().expect("closed").failure();
    }
    assert!(!handle.would_allow());
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

/// Polls ready and calls. Both must be ready at once.
pub fn ask_now<S: Service<Query>>(service: &mut S) -> Result<S::Response, S::Error> {
    now(std::future::poll_fn(|cx| service.poll_ready(cx)))?;
    now(service.call("q"))
}
