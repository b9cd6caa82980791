//! When the inner service is polled, and what a readiness error means.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceExt};
use tower_breaker::{Reason, State, TripwireLayer};

use super::fixture::{Call, armed, call, reason, refusal, search};

// ===== readiness =====

/// A service that may be stuck. It panics if it is called but was not polled ready.
#[derive(Clone, Debug, Default)]
struct Strict {
    stuck: Arc<AtomicBool>,
    readied: bool,
}

impl Service<Call> for Strict {
    type Response = u64;
    type Error = BoxError;
    type Future = std::future::Ready<Result<u64, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.stuck.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.readied = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (name, argument): Call) -> Self::Future {
        assert!(
            std::mem::take(&mut self.readied),
            "called without being ready"
        );
        ready(match name {
            "down" => Err("the tool's own error".into()),
            _ => Ok(argument),
        })
    }
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_an_inner_service_that_is_never_ready() {
    let layer = TripwireLayer::new().max_turns(9);
    let handle = layer.handle();
    let inner = Strict::default();
    let mut tool = layer.layer(inner.clone());
    for n in 0..3 {
        call(&mut tool, ("down", n)).await.unwrap_err();
    }
    inner.stuck.store(true, Ordering::SeqCst);
    // Open.
    for n in 0..4 {
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    // Armed: a probe may go, so the inner service is polled. A transition wakes a waiting caller.
    let mut waiting = tokio_test::task::spawn(tool.ready());
    tokio_test::assert_pending!(waiting.poll());
    inner.stuck.store(false, Ordering::SeqCst);
    let mut other = layer.layer(Strict::default());
    let probe = other.ready().await.unwrap().call(search(1));
    assert!(waiting.is_woken(), "the probe is out");
    inner.stuck.store(true, Ordering::SeqCst);
    tokio_test::assert_ready!(waiting.poll()).unwrap();
    drop(waiting);
    assert_eq!(reason(tool.call(search(2)).await), Reason::TripwireOpen);
    probe.await.unwrap();
    assert_eq!(handle.state(), State::Closed);
    // All turns are spent.
    for n in 10..15 {
        call(&mut other, search(n)).await.unwrap();
    }
    assert_eq!((handle.turns(), handle.state()), (9, State::Closed));
    assert_eq!(reason(call(&mut tool, search(1)).await), Reason::MaxTurns);
}

#[tokio::test]
async fn a_call_without_readiness_is_refused_and_not_counted() {
    let layer = TripwireLayer::new();
    let handle = layer.handle();
    let mut tool = layer.layer(Strict::default());
    for n in 0..20 {
        let refused = refusal(tool.call(search(n)).await);
        assert_eq!(refused.reason(), Reason::NotReady);
        assert_eq!(refused.retry_after(), Some(Duration::ZERO));
    }
    assert_eq!((handle.turns(), handle.state()), (0, State::Closed));

    // A service that was polled while open, and is called while armed, takes no probe.
    armed(&mut tool).await;
    let probe = tool.ready().await.unwrap().call(("search", 9));
    let mut late = tool.clone();
    late.ready().await.unwrap();
    drop(probe);
    for n in 0..4 {
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    assert_eq!(handle.state(), State::HalfOpen);
    assert_eq!(reason(late.call(search(1)).await), Reason::NotReady);
    assert_eq!(handle.state(), State::HalfOpen);
    assert!(!handle.snapshot().probing);

    let mut sessions = TripwireLayer::new()
        .per_owned_session(|call: &Call| call.1, 10)
        .layer(Strict::default());
    assert_eq!(reason(sessions.call(search(1)).await), Reason::NotReady);
}

#[tokio::test]
async fn readiness_holds_for_one_call_and_a_clone_carries_none() {
    let layer = TripwireLayer::new();
    let mut tool = layer.layer(Strict::default());
    tool.ready().await.unwrap();
    let mut clone = tool.clone();
    assert_eq!(reason(clone.call(search(1)).await), Reason::NotReady);
    tool.call(search(1)).await.unwrap();
    assert_eq!(reason(tool.call(search(2)).await), Reason::NotReady);
}

#[tokio::test]
async fn an_error_of_readiness_is_an_error_of_the_streak_and_is_passed_on() {
    #[derive(Clone)]
    struct Broken;
    impl Service<Call> for Broken {
        type Response = u64;
        type Error = BoxError;
        type Future = std::future::Ready<Result<u64, BoxError>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Err("broken".into()))
        }
        fn call(&mut self, _: Call) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let layer = TripwireLayer::new();
    let mut tool = layer.layer(Broken);
    for _ in 0..3 {
        let err = call(&mut tool, search(1)).await.unwrap_err();
        assert_eq!(err.to_string(), "broken");
    }
    assert_eq!(layer.handle().turns(), 0, "no call was admitted");
    assert_eq!(
        reason(call(&mut tool, search(1)).await),
        Reason::TripwireOpen
    );
    assert_eq!(layer.handle().reason(), Some(Reason::ErrorStreak));
}
