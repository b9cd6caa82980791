//! Proves who is polled, who is called, and what readiness a clone has.

use std::task::{Context, Poll};
use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceExt};
use tower_breaker::{Reason, State, TripwireLayer};

use crate::support::calls::{Call, Tool, armed, call, search};
use crate::support::refused;

#[tokio::test]
async fn a_fence_that_refuses_every_call_refuses_though_the_inner_service_is_never_ready() {
    let layer = TripwireLayer::new().max_turns(9);
    let handle = layer.handle();
    let inner = Tool::default();
    let mut tool = layer.layer(inner.clone());
    for n in 0..3 {
        call(&mut tool, ("down", n)).await.unwrap_err();
    }
    inner.set_stuck(true);
    // Open.
    for n in 0..4 {
        assert_eq!(
            refused(call(&mut tool, search(n)).await).reason(),
            Reason::TripwireOpen
        );
    }
    // Armed: a probe may go, so inner readiness is polled. The waiting caller is woken when that
    // changes.
    let mut waiting = tokio_test::task::spawn(tool.ready());
    tokio_test::assert_pending!(waiting.poll());
    inner.set_stuck(false);
    let mut other = layer.layer(Tool::default());
    let probe = other.ready().await.unwrap().call(search(1));
    assert!(waiting.is_woken(), "the probe is out");
    inner.set_stuck(true);
    tokio_test::assert_ready!(waiting.poll()).unwrap();
    drop(waiting);
    assert_eq!(
        refused(tool.call(search(2)).await).reason(),
        Reason::TripwireOpen
    );
    probe.await.unwrap();
    assert_eq!(handle.state(), State::Closed);
    // Spent.
    for n in 10..15 {
        call(&mut other, search(n)).await.unwrap();
    }
    assert_eq!((handle.turns(), handle.state()), (9, State::Closed));
    assert_eq!(
        refused(call(&mut tool, search(1)).await).reason(),
        Reason::MaxTurns
    );
}

#[tokio::test]
async fn a_call_without_readiness_is_refused_and_takes_no_turn_and_no_probe() {
    let layer = TripwireLayer::new();
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    for n in 0..20 {
        let refusal = refused(tool.call(search(n)).await);
        assert_eq!(refusal.reason(), Reason::NotReady);
        assert_eq!(refusal.retry_after(), Some(Duration::ZERO));
    }
    assert_eq!((handle.turns(), handle.state()), (0, State::Closed));

    // Polled while open and called when armed, a service takes no probe.
    armed(&mut tool).await;
    let probe = tool.ready().await.unwrap().call(("search", 9));
    let mut late = tool.clone();
    late.ready().await.unwrap();
    drop(probe);
    for n in 0..4 {
        assert_eq!(
            refused(call(&mut tool, search(n)).await).reason(),
            Reason::TripwireOpen
        );
    }
    assert_eq!(handle.state(), State::HalfOpen);
    assert_eq!(
        refused(late.call(search(1)).await).reason(),
        Reason::NotReady
    );
    assert_eq!(handle.state(), State::HalfOpen);
    assert!(!handle.snapshot().probing);

    let mut sessions = TripwireLayer::new()
        .per_owned_session(|call: &Call| call.1, 10)
        .layer(Tool::default());
    assert_eq!(
        refused(sessions.call(search(1)).await).reason(),
        Reason::NotReady
    );
}

#[tokio::test]
async fn readiness_holds_for_one_call_and_a_clone_carries_none() {
    let layer = TripwireLayer::new();
    let mut tool = layer.layer(Tool::default());
    tool.ready().await.unwrap();
    let mut clone = tool.clone();
    assert_eq!(
        refused(clone.call(search(1)).await).reason(),
        Reason::NotReady
    );
    tool.call(search(1)).await.unwrap();
    assert_eq!(
        refused(tool.call(search(2)).await).reason(),
        Reason::NotReady
    );
}

#[tokio::test]
async fn a_readiness_error_is_an_error_of_the_streak_and_is_passed_on() {
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
        refused(call(&mut tool, search(1)).await).reason(),
        Reason::TripwireOpen
    );
    assert_eq!(layer.handle().reason(), Some(Reason::ErrorStreak));
}
