//! Case 8. `tests/contract` tests the whole contract of tower.

use std::future::{Ready, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{BoxError, CircuitBreakerLayer, Outcome, Reason, Refusal, State, WhenOpen};
use tower_test::mock;

use crate::support::{Ask, NS, Tool, ask, pass, refused, secs, trip};

#[tokio::test(start_paused = true)]
async fn an_open_circuit_refuses_at_once_though_the_inner_service_is_never_ready() {
    let (inner, mut inner_handle) = mock::pair::<(), ()>();
    inner_handle.allow(0);
    let layer = CircuitBreakerLayer::new();
    layer.handle().force_open();
    let mut service = task::spawn(layer.layer(inner));
    for _ in 0..10 {
        assert_ready_ok!(service.enter(|cx, mut service| service.poll_ready(cx)));
        let refusal = refused(service.call(()).await);
        assert_eq!(refusal.reason(), Reason::ForcedOpen);
    }
}

#[tokio::test(start_paused = true)]
async fn clones_that_poll_ready_and_go_take_no_probe() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    trip(&mut service).await;
    pass(secs(30)).await;
    let mut clones: Vec<_> = (0..100).map(|_| service.clone()).collect();
    for clone in &mut clones {
        clone.ready().await.unwrap();
    }
    assert!(handle.snapshot().due, "still open and due");
    drop(clones);
    assert!(handle.would_allow(), "the probe is still to be had");
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(handle.state(), State::Closed);
}

/// The tool panics unless it was polled ready. If many callers polled while the circuit was due,
/// one of them is the probe.
#[tokio::test(start_paused = true)]
async fn no_inner_service_is_called_that_was_not_polled_ready() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new().probe_timeout(Duration::from_secs(1));
    let mut service = layer.layer(tool.clone());
    // Not polled at all.
    let refusal = refused(service.call(Ask::ok()).await);
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (Reason::NotReady, Some(Duration::ZERO))
    );
    // Polled once, called twice.
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(
        refused(service.call(Ask::ok()).await).reason(),
        Reason::NotReady
    );
    // A clone carries no readiness.
    service.ready().await.unwrap();
    assert_eq!(
        refused(service.clone().call(Ask::ok()).await).reason(),
        Reason::NotReady
    );
    assert_eq!(tool.calls(), 1);
    trip(&mut service).await;
    // Polled ready while open, called when due: the probe is not taken.
    pass(secs(30) - Duration::from_millis(1)).await;
    service.ready().await.unwrap();
    pass(Duration::from_millis(1)).await;
    assert_eq!(
        refused(service.call(Ask::ok()).await).reason(),
        Reason::NotReady
    );
    assert!(layer.handle().snapshot().due);
    assert_eq!(tool.calls(), 4);
}

/// A caller that polled while the circuit was open, and calls when it is due, may come again at
/// once. Its refusal does not repeat the old wait.
#[tokio::test(start_paused = true)]
async fn a_service_polled_while_open_and_called_when_due_is_refused_with_no_wait() {
    for polled_before in [NS, Duration::from_millis(1), secs(1) - NS] {
        let layer = CircuitBreakerLayer::new();
        let mut service = layer.layer(Tool::new());
        trip(&mut service).await;
        pass(secs(30) - polled_before).await;
        service.ready().await.unwrap();
        pass(polled_before).await;
        let refusal = refused(service.call(Ask::ok()).await);
        assert_eq!(
            (refusal.reason(), refusal.retry_after()),
            (Reason::NotReady, Some(Duration::ZERO))
        );
        assert!(layer.handle().snapshot().due, "and no probe is taken");
        // The same holds if another caller has closed the circuit meanwhile.
        layer.handle().force_open();
        service.ready().await.unwrap();
        layer.handle().reset();
        let refusal = refused(service.call(Ask::ok()).await);
        assert_eq!(refusal.reason(), Reason::NotReady);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_for_the_inner_service_is_woken_by_a_trip_and_refused() {
    let (inner, mut inner_handle) = mock::pair::<(), ()>();
    inner_handle.allow(0);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut waiting = task::spawn(layer.layer(inner));
    assert_pending!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
    let permit = handle.try_acquire().unwrap();
    handle.try_acquire().unwrap().failure();
    handle.try_acquire().unwrap().failure();
    assert!(!waiting.is_woken());
    permit.failure();
    assert!(waiting.is_woken());
    assert_ready_ok!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
    let answer: Result<(), BoxError> = waiting.call(()).await;
    assert_eq!(refused(answer).reason(), Reason::CircuitOpen);
}

type Readied = Poll<Result<(), BoxError>>;

/// A service that is ready once, and then answers `poll_ready` as the test says.
struct Fickle {
    ready: bool,
    polls: u32,
    second: fn() -> Readied,
}

impl Service<()> for Fickle {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.polls += 1;
        self.ready = self.polls == 1;
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        (self.second)()
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(self.ready, "called before it was ready");
        ready(Ok(()))
    }
}

// ===== readiness =====

/// A layer that only observes makes nobody wait.
#[tokio::test(start_paused = true)]
async fn a_circuit_that_only_observes_is_ready_though_it_is_to_be_not_ready_when_open() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new()
        .when_open(WhenOpen::NotReady)
        .observe_only();
    let mut service = layer.layer(tool.clone());
    trip(&mut service).await;
    layer.handle().force_open();
    assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
    service.call(Ask::ok()).await.unwrap();
    assert_eq!(tool.calls(), 4);
}

/// The readiness of an earlier `poll_ready` is gone after a later one, even if that one unwinds.
#[test]
fn a_readiness_that_is_asked_for_again_and_panics_is_gone() {
    let seconds: [fn() -> Readied; 2] = [
        || panic!("in poll_ready"),
        || Poll::Ready(Err("for the classifier".into())),
    ];
    for second in seconds {
        let layer =
            CircuitBreakerLayer::new().classify(|result: Result<&(), &BoxError>| -> Outcome {
                assert!(result.is_ok(), "in the classifier");
                Outcome::Success
            });
        let mut service = layer.layer(Fickle {
            ready: false,
            polls: 0,
            second,
        });
        let mut poll = || task::spawn(()).enter(|cx, _| service.poll_ready(cx));
        assert!(matches!(poll(), Poll::Ready(Ok(()))));
        assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
        let Poll::Ready(answer) = task::spawn(service.call(())).poll() else {
            panic!("refused at once")
        };
        assert!(Refusal::find(&*answer.unwrap_err()).is_some());
    }
}
