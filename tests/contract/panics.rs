//! Panics of the guarded service and of the user's closures. Each gives a verdict, and the slot is
//! never lost.

use std::future::{Future, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use tower::{Layer, Service, service_fn};
use tower_breaker::{
    BoxError, Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Event, Outcome, Reason,
    Refusal, State,
};

use crate::site::{Down, Query, advance_secs, now, refused, secs, trip};

/// Where a call panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Call,
    Poll,
}

#[derive(Clone, Copy)]
struct Panics(At);

struct Panicking(At);

impl Service<Query> for Panics {
    type Response = Query;
    type Error = Down;
    type Future = Panicking;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Down>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, query: Query) -> Panicking {
        if query != "well" && self.0 == At::Call {
            panic_any("in call");
        }
        Panicking(if query == "well" { At::Call } else { self.0 })
    }
}

impl Future for Panicking {
    type Output = Result<Query, Down>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if self.0 == At::Poll {
            panic_any("in poll");
        }
        Poll::Ready(Ok("q"))
    }
}

/// Makes one call, and catches its panic as a server does.
fn guarded<S>(service: &mut S, query: Query) -> std::thread::Result<Result<S::Response, S::Error>>
where
    S: Service<Query>,
{
    catch_unwind(AssertUnwindSafe(|| {
        now(poll_fn(|cx| service.poll_ready(cx)))?;
        now(AssertUnwindSafe(service.call(query)).catch_unwind()).unwrap_or_else(|panic| {
            std::panic::resume_unwind(panic);
        })
    }))
}

const ALL: [Cancelled; 4] = [
    Cancelled::Ignore,
    Cancelled::Release,
    Cancelled::Failure,
    Cancelled::FailureAfter(Duration::from_secs(5)),
];

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_is_a_failure_whatever_the_rule_for_dropped_calls() {
    for at in [At::Call, At::Poll] {
        for rule in ALL {
            let layer = CircuitBreakerLayer::new().on_cancel(rule);
            let handle = layer.handle();
            let mut service = layer.layer(Panics(at));
            for streak in 1..=3 {
                assert!(
                    guarded(&mut service, "q").is_err(),
                    "the panic is passed on"
                );
                assert_eq!(handle.snapshot().streak, streak, "{at:?} {rule:?}");
            }
            let answer = guarded(&mut service, "q").unwrap();
            assert_eq!(refused(answer), (Reason::CircuitOpen, secs(30)));

            // The probe panics. The circuit opens, and the slot is free after the cooldown.
            advance_secs(30).await;
            assert!(guarded(&mut service, "q").is_err());
            let snapshot = handle.snapshot();
            assert_eq!(
                (snapshot.state, snapshot.time_left),
                (State::Open, secs(30))
            );
            assert_eq!(snapshot.trips, 2);
            advance_secs(30).await;
            assert_eq!(guarded(&mut service, "well").unwrap().unwrap(), "q");
            assert_eq!(handle.state(), State::Closed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_around_the_future_sees_the_failure_and_dropping_it_later_adds_nothing() {
    let layer = CircuitBreakerLayer::new().on_cancel(Cancelled::Failure);
    let handle = layer.handle();
    let mut service = layer.layer(Panics(At::Poll));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let mut future = Box::pin(service.call("q"));
    let caught = now(AssertUnwindSafe(future.as_mut()).catch_unwind());
    assert!(caught.is_err());
    assert_eq!(
        handle.snapshot().streak,
        1,
        "seen before anything is dropped"
    );
    drop(future);
    assert_eq!(handle.snapshot().streak, 1);
}

#[tokio::test(start_paused = true)]
async fn a_keyed_call_that_panics_is_its_keys_failure() {
    for at in [At::Call, At::Poll] {
        let layer = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
        let handle = layer.handle();
        let mut service = layer.layer(Panics(at));
        for _ in 0..3 {
            assert!(guarded(&mut service, "q").is_err());
        }
        assert_eq!(handle.state("q"), State::Open);
        assert_eq!(guarded(&mut service, "well").unwrap().unwrap(), "q");
        assert_eq!(handle.state("well"), State::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_is_a_failure_too() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    for streak in 1..=3 {
        let service = layer.layer(Panics(At::Poll));
        let task = tokio::spawn(tower::ServiceExt::oneshot(service, "q"));
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!(handle.snapshot().streak, streak);
    }
}

/// Sends the probe of a due circuit, under `rule`. A panic prevents its verdict.
async fn probe_with_a_panicking_classifier(
    rule: Cancelled,
    runs: u64,
) -> (CircuitBreakerHandle, Result<Query, BoxError>) {
    let layer = CircuitBreakerLayer::new()
        .on_cancel(rule)
        .classify(|_: Result<&Query, &Down>| -> Outcome { panic_any("in the classifier") });
    let handle = layer.handle();
    trip(&handle);
    advance_secs(30).await;
    let mut service = layer.layer(service_fn(|query: Query| ready(Ok::<_, Down>(query))));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let mut future = Box::pin(service.call("q"));
    assert_eq!(handle.state(), State::HalfOpen);
    advance_secs(runs).await;
    let caught = now(AssertUnwindSafe(future.as_mut()).catch_unwind());
    assert!(caught.is_err(), "the panic is passed on");
    // The verdict is there before the future is dropped.
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let next = now(AssertUnwindSafe(service.call("q")).catch_unwind());
    drop(future);
    (handle, next.unwrap_or(Ok("went")))
}

#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_makes_a_cancelled_call_by_the_rule() {
    // Ignored: the probe keeps its slot until the lease ends, 30 s after it began.
    let (handle, next) = probe_with_a_panicking_classifier(Cancelled::Ignore, 10).await;
    assert_eq!(refused(next), (Reason::ProbeInFlight, secs(20)));
    advance_secs(20).await;
    assert_eq!(handle.snapshot().time_left, secs(30));
    assert_eq!(handle.state(), State::Open);

    // Released: the next call is the probe.
    let (handle, next) = probe_with_a_panicking_classifier(Cancelled::Release, 10).await;
    assert_eq!(next.unwrap(), "went");
    assert_eq!(handle.state(), State::HalfOpen);

    let (handle, next) = probe_with_a_panicking_classifier(Cancelled::Failure, 10).await;
    assert_eq!(refused(next), (Reason::CircuitOpen, secs(30)));
    assert_eq!(handle.snapshot().trips, 2);

    let rule = Cancelled::FailureAfter(Duration::from_secs(5));
    let (_, next) = probe_with_a_panicking_classifier(rule, 5).await;
    assert_eq!(refused(next), (Reason::CircuitOpen, secs(30)));
    let (handle, next) = probe_with_a_panicking_classifier(rule, 4).await;
    assert_eq!(next.unwrap(), "went");
    assert_eq!(handle.state(), State::HalfOpen);
}

#[test]
fn an_ordinary_call_whose_classifier_panics_says_nothing_by_default() {
    let layer = CircuitBreakerLayer::new()
        .classify(|_: Result<&Query, &Down>| -> Outcome { panic_any("in the classifier") });
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|query: Query| ready(Ok::<_, Down>(query))));
    for _ in 0..10 {
        assert!(guarded(&mut service, "q").is_err());
    }
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.state, snapshot.streak), (State::Closed, 0));
}

/// Only a permit taken by hand asks whether its thread panics.
#[test]
fn a_future_dropped_by_somebody_elses_panic_is_a_cancelled_call() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|_: Query| {
        std::future::pending::<Result<Query, Down>>()
    }));
    for _ in 0..5 {
        now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
        let future = service.call("q");
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _future = future;
            panic_any("somebody else's");
        }));
        assert!(caught.is_err());
    }
    assert_eq!(handle.snapshot().streak, 0);

    let permit = handle.try_acquire().unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _permit = permit;
        panic_any("mine");
    }));
    assert!(caught.is_err());
    assert_eq!(handle.snapshot().streak, 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_policy_or_a_key_function_that_panics_harms_nothing() {
    let layer = CircuitBreakerLayer::new()
        .refuse_with(|_: Query, _: Refusal| -> Result<Query, Down> { panic_any("in the policy") });
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|query: Query| ready(Ok::<_, Down>(query))));
    trip(&handle);
    assert!(guarded(&mut service, "q").is_err());
    advance_secs(30).await;
    assert_eq!(guarded(&mut service, "q").unwrap(), Ok("q"));

    let layer = CircuitBreakerLayer::new().per_key(
        |query: &Query| -> &str {
            assert_ne!(*query, "bad", "in the key function");
            query
        },
        10,
    );
    let mut service = layer.layer(service_fn(|query: Query| ready(Ok::<_, Down>(query))));
    assert!(guarded(&mut service, "bad").is_err());
    assert_eq!(guarded(&mut service, "q").unwrap().unwrap(), "q");
    assert_eq!(layer.handle().keys(), ["q"]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_inner_future_panics_in_its_destructor_loses_no_slot() {
    struct Bomb;
    impl Future for Bomb {
        type Output = Result<Query, Down>;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Pending
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic_any("in the destructor");
        }
    }
    let layer = CircuitBreakerLayer::new().on_cancel(Cancelled::Release);
    let handle = layer.handle();
    trip(&handle);
    advance_secs(30).await;
    let mut service = layer.layer(service_fn(|_: Query| Bomb));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let future = service.call("q");
    assert!(!handle.would_allow());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(future))).is_err());
    assert!(handle.would_allow(), "given back");
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_while_a_call_panics_aborts_nothing() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .observe(|_: &Event<'_>| panic_any("in the listener"));
    let handle = layer.handle();
    for at in [At::Call, At::Poll] {
        handle.reset();
        let mut service = layer.layer(Panics(at));
        assert!(guarded(&mut service, "q").is_err());
        assert_eq!(handle.state(), State::Open);
    }
}

#[test]
#[should_panic(expected = "`ResponseFuture` polled after it was ready")]
fn a_refusal_that_is_polled_again_panics_as_documented() {
    let layer = CircuitBreakerLayer::new();
    layer.handle().force_open();
    let mut service = layer.layer(Panics(At::Poll));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let mut future = tokio_test::task::spawn(service.call("q"));
    assert!(future.poll().is_ready());
    drop(future.poll());
}
