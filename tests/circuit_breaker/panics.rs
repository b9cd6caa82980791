//! Proves that a panic of the service or of user code gives a verdict, and never loses the slot.

use std::convert::Infallible;
use std::future::{Future, Ready, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt;
use tokio_test::task;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::{
    Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Classify, ErrorsAsFailures, Event,
    Failure, FailureKind, Outcome, Reason, State,
};

use crate::CANCELLED;
use crate::support::events::Recorder;
use crate::support::site::{Down, Query, now, trip_by_hand};
use crate::support::tool::{
    Answer, Ask, Fault, Reply, Tool, ask, by_status, call, hold, ok, status, trip, trip_key,
};
use crate::support::{pass, reason_and_wait, refused, secs};

// ===== listeners =====

/// Awaits a future that must panic, and returns the panic's text.
async fn panic_of<T>(future: impl Future<Output = T>) -> String {
    let panic = AssertUnwindSafe(future)
        .catch_unwind()
        .await
        .map(|_| ())
        .unwrap_err();
    (*panic.downcast_ref::<&str>().expect("a text")).to_owned()
}

/// Case 12: listeners that panic at every event, between two listeners that keep the events.
#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_harms_neither_the_state_nor_the_others() {
    let panics = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&panics);
    let panicking = move |_: &Event<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
        std::panic::panic_any("listener");
    };
    let (before, after) = (Recorder::new(), Recorder::new());
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new()
        .classify(by_status)
        .on_cancel(Cancelled::Failure)
        .observe(before.clone())
        .observe(panicking.clone())
        .observe(panicking)
        .observe(after.clone());
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());

    let (late, held) = hold(&mut service, "").await;
    trip(&mut service).await;
    refused(ask(&mut service, Ask::ok()).await);
    held.send(status(503)).unwrap();
    late.await.unwrap_err();
    pass(secs(30)).await;
    let _hung = hold(&mut service, "").await;
    pass(secs(60)).await;
    // A dropped probe tells its events from its destructor.
    drop(hold(&mut service, "").await);
    assert_eq!(handle.state(), State::Open);
    pass(secs(30)).await;
    // A permit whose destructor runs while its thread panics.
    let permit = handle.try_acquire().unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _permit = permit;
        std::panic::panic_any("mine");
    }));
    assert_eq!(
        panic.unwrap_err().downcast_ref(),
        Some(&"mine"),
        "the panic is the caller's own"
    );
    assert_eq!((handle.state(), handle.snapshot().trips), (State::Open, 4));
    // A response future, likewise.
    pass(secs(30)).await;
    let probe = hold(&mut service, "").await;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _probe = probe;
        std::panic::panic_any("mine");
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"mine"));
    assert_eq!((handle.state(), handle.snapshot().trips), (State::Open, 5));
    pass(secs(30)).await;
    ask(&mut service, Ask::ok()).await.unwrap();
    handle.force_open();
    handle.reset();
    assert_eq!(handle.state(), State::Closed);

    let events = before.take();
    assert_eq!(
        events,
        [
            "closed -> open (failure_threshold) #1",
            "refused circuit_open for 30s",
            "late transient failure #0",
            "open -> half_open (cooldown_over) #2",
            "probe for 30s #2",
            "lease expired #2",
            "half_open -> open (lease_expired) #3",
            "open -> half_open (cooldown_over) #4",
            "probe for 30s #4",
            "half_open -> open (probe_failed) #5",
            "open -> half_open (cooldown_over) #6",
            "probe for 30s #6",
            "half_open -> open (probe_failed) #7",
            "open -> half_open (cooldown_over) #8",
            "probe for 30s #8",
            "half_open -> open (probe_failed) #9",
            "open -> half_open (cooldown_over) #10",
            "probe for 30s #10",
            "half_open -> closed (probe_succeeded) #11",
            "closed -> open (forced_open) #12",
            "open -> closed (reset) #13",
        ]
    );
    assert_eq!(after.take(), events, "the other listener saw everything");
    assert_eq!(panics.load(Ordering::Relaxed), 2 * events.len());
}

/// Case 12, for a keyed layer.
#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_harms_no_keyed_circuit() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .observe(|_: &Event<'_>| std::panic::panic_any("listener"))
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 1);
    let handle = layer.handle();
    let tool = Tool::new();
    let mut service = layer.layer(tool.clone());
    trip_key(&mut service, "a").await;
    ask(&mut service, Ask::ok().of("b")).await.unwrap();
    pass(secs(30)).await;
    ask(&mut service, Ask::ok().of("b")).await.unwrap();
    assert_eq!(
        told.take(),
        [
            "a: closed -> open (failure_threshold) #1",
            "b: unguarded",
            "a: evicted open"
        ]
    );
    assert_eq!(handle.keys(), ["b"]);
    trip_key(&mut service, "b").await;
    assert_eq!(handle.state("b"), State::Open);
}

// ===== calls =====

/// Where a call panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Call,
    Poll,
}

#[derive(Clone, Copy)]
struct Panics(At);

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

struct Panicking(At);

impl Future for Panicking {
    type Output = Result<Query, Down>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if self.0 == At::Poll {
            panic_any("in poll");
        }
        Poll::Ready(Ok("q"))
    }
}

/// One call, with a guard around it that catches panics, as in a server.
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

/// Case 12.
#[tokio::test(start_paused = true)]
async fn a_call_that_panics_is_a_failure_under_every_rule_for_dropped_calls() {
    for at in [At::Call, At::Poll] {
        for rule in CANCELLED {
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
            assert_eq!(
                reason_and_wait(answer),
                (Reason::CircuitOpen, Some(secs(30)))
            );

            // The probe panics: open, and the slot is free after the cooldown.
            pass(secs(30)).await;
            assert!(guarded(&mut service, "q").is_err());
            let snapshot = handle.snapshot();
            assert_eq!(
                (snapshot.state, snapshot.time_left),
                (State::Open, Some(secs(30)))
            );
            assert_eq!(snapshot.trips, 2);
            pass(secs(30)).await;
            assert_eq!(guarded(&mut service, "well").unwrap().unwrap(), "q");
            assert_eq!(handle.state(), State::Closed);
        }
    }
}

/// Case 12: a probe that panics, in `call` and in its future.
#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_opens_and_its_slot_is_free_after_the_cooldown() {
    for rule in CANCELLED {
        for in_call in [true, false] {
            let tool = Tool::new();
            let layer = CircuitBreakerLayer::new().on_cancel(rule);
            let handle = layer.handle();
            let mut service = layer.layer(tool.clone());
            trip(&mut service).await;
            pass(secs(30)).await;
            for round in 0..10 {
                let asked = if in_call {
                    Ask::panic_in_call()
                } else {
                    Ask::panic_in_poll()
                };
                let panic = panic_of(ask(&mut service, asked)).await;
                assert_eq!(panic, if in_call { "in call" } else { "in poll" });
                let snapshot = handle.snapshot();
                assert_eq!(
                    (snapshot.state, snapshot.time_left),
                    (State::Open, Some(secs(30)))
                );
                assert_eq!(snapshot.last_failure, Some(FailureKind::Transient));
                refused(ask(&mut service, Ask::ok()).await);
                assert_eq!(tool.calls(), 3 + round + 1);
                pass(secs(30)).await;
            }
            ask(&mut service, Ask::ok()).await.unwrap();
            assert_eq!(handle.state(), State::Closed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_recorded_before_anybody_outside_catches_it_and_only_once() {
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
async fn a_panic_caught_by_a_task_is_a_failure() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    for streak in 1..=3 {
        let service = layer.layer(Panics(At::Poll));
        let task = tokio::spawn(tower::ServiceExt::oneshot(service, "q"));
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!(handle.snapshot().streak, streak);
    }
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

/// Only a permit taken by hand asks whether its thread is panicking.
#[tokio::test(start_paused = true)]
async fn a_future_dropped_by_somebody_elses_panic_is_a_cancelled_call() {
    for rule in CANCELLED {
        let layer = CircuitBreakerLayer::new().on_cancel(rule);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let call = hold(&mut service, "").await;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _call = call;
            std::panic::panic_any("somebody else");
        }));
        assert!(unwound.is_err());
        let expected = u32::from(rule == Cancelled::Failure);
        assert_eq!(handle.snapshot().streak, expected, "{rule:?}");

        let permit = handle.try_acquire().unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _permit = permit;
            std::panic::panic_any("mine");
        }));
        assert!(unwound.is_err());
        assert_eq!(handle.snapshot().streak, expected + 1, "{rule:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_inner_future_panics_when_dropped_loses_no_slot() {
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
    trip_by_hand(&handle);
    pass(secs(30)).await;
    let mut service = layer.layer(service_fn(|_: Query| Bomb));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let future = service.call("q");
    assert!(!handle.would_allow());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(future))).is_err());
    assert!(handle.would_allow(), "given back");
}

#[test]
#[should_panic(expected = "`ResponseFuture` polled after it was ready")]
fn a_refusals_future_polled_after_it_was_ready_panics() {
    let layer = CircuitBreakerLayer::new();
    layer.handle().force_open();
    let mut service = layer.layer(Panics(At::Poll));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let mut future = tokio_test::task::spawn(service.call("q"));
    assert!(future.poll().is_ready());
    drop(future.poll());
}

// ===== classifiers, policies, key functions, rewrites =====

/// A panic in a classifier is a cancelled call: the rule for dropped calls decides.
#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_makes_a_cancelled_call() {
    let judge = |result: Result<&Reply, &Fault>| -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(fault) if fault.status == 500 => std::panic::panic_any("classifier"),
            Err(_) => Failure::transient().into(),
        }
    };
    let confusing = || -> Answer { status(500) };
    for rule in CANCELLED {
        let layer = CircuitBreakerLayer::new().on_cancel(rule).classify(judge);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let panic = panic_of(ask(&mut service, Ask::answer(confusing()))).await;
        assert_eq!(panic, "classifier", "the panic goes on to the caller");
        let expected = u32::from(rule == Cancelled::Failure);
        assert_eq!(handle.snapshot().streak, expected, "{rule:?}");
        handle.reset();

        trip(&mut service).await;
        pass(secs(30)).await;
        panic_of(ask(&mut service, Ask::answer(confusing()))).await;
        match rule {
            Cancelled::Ignore => {
                assert!(!handle.would_allow(), "the slot is kept");
                pass(secs(60)).await;
            }
            Cancelled::Failure => {
                assert_eq!(handle.state(), State::Open);
                pass(secs(30)).await;
            }
            _ => assert!(handle.would_allow(), "the slot is free at once"),
        }
        ask(&mut service, Ask::ok()).await.unwrap();
        assert_eq!(handle.state(), State::Closed, "never lost: {rule:?}");
    }
}

/// Probes a due circuit with a classifier that panics, and calls once more.
async fn probe_with_a_panicking_classifier(
    rule: Cancelled,
    runs: u64,
) -> (CircuitBreakerHandle, Result<Query, BoxError>) {
    let layer = CircuitBreakerLayer::new()
        .on_cancel(rule)
        .classify(|_: Result<&Query, &Down>| -> Outcome { panic_any("in the classifier") });
    let handle = layer.handle();
    trip_by_hand(&handle);
    pass(secs(30)).await;
    let mut service = layer.layer(service_fn(|query: Query| ready(Ok::<_, Down>(query))));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let mut future = Box::pin(service.call("q"));
    assert_eq!(handle.state(), State::HalfOpen);
    pass(secs(runs)).await;
    let caught = now(AssertUnwindSafe(future.as_mut()).catch_unwind());
    assert!(caught.is_err(), "the panic is passed on");
    // The verdict is there before the future is dropped.
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let next = now(AssertUnwindSafe(service.call("q")).catch_unwind());
    drop(future);
    (handle, next.unwrap_or(Ok("went")))
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_classifier_panics_is_cancelled_before_its_future_is_dropped() {
    // Ignored: the probe keeps its slot until the lease ends, 30 s after it began.
    let (handle, next) = probe_with_a_panicking_classifier(Cancelled::Ignore, 10).await;
    assert_eq!(
        reason_and_wait(next),
        (Reason::ProbeInFlight, Some(secs(20)))
    );
    pass(secs(20)).await;
    assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    assert_eq!(handle.state(), State::Open);

    // Released: the next call is the probe.
    let (handle, next) = probe_with_a_panicking_classifier(Cancelled::Release, 10).await;
    assert_eq!(next.unwrap(), "went");
    assert_eq!(handle.state(), State::HalfOpen);

    let (handle, next) = probe_with_a_panicking_classifier(Cancelled::Failure, 10).await;
    assert_eq!(reason_and_wait(next), (Reason::CircuitOpen, Some(secs(30))));
    assert_eq!(handle.snapshot().trips, 2);

    let rule = Cancelled::FailureAfter(secs(5));
    let (_, next) = probe_with_a_panicking_classifier(rule, 5).await;
    assert_eq!(reason_and_wait(next), (Reason::CircuitOpen, Some(secs(30))));
    let (handle, next) = probe_with_a_panicking_classifier(rule, 4).await;
    assert_eq!(next.unwrap(), "went");
    assert_eq!(handle.state(), State::HalfOpen);
}

/// The call is cancelled at once, and not only when its future is dropped.
#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_gives_the_slot_back_though_the_future_lives() {
    let layer = CircuitBreakerLayer::new()
        .on_cancel(Cancelled::Release)
        .classify(|result: Result<&Reply, &Fault>| -> Outcome {
            match result {
                Err(fault) if fault.status == 500 => std::panic::panic_any("classifier"),
                other => ErrorsAsFailures.classify(other),
            }
        });
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    pass(secs(30)).await;
    let mut probe = call(&mut service, Ask::answer(status(500))).await;
    assert!(!handle.would_allow());
    assert!(catch_unwind(AssertUnwindSafe(|| probe.poll().is_ready())).is_err());
    assert!(handle.would_allow());
    // Another call takes the slot, and dropping the old future does not free it.
    let _next = hold(&mut service, "").await;
    drop(probe);
    assert!(!handle.would_allow());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_policy_that_panics_harms_no_state() {
    let layer = CircuitBreakerLayer::new()
        .refuse_with(|_: Ask, _| -> Answer { std::panic::panic_any("policy") });
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..3 {
        service
            .ready()
            .await
            .unwrap()
            .call(Ask::fail())
            .await
            .unwrap_err();
    }
    for _ in 0..3 {
        let service = service.ready().await.unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| service.call(Ask::ok()))).is_err());
    }
    assert_eq!(
        (handle.state(), handle.snapshot().time_left),
        (State::Open, Some(secs(30)))
    );
    pass(secs(30)).await;
    assert_eq!(
        service.ready().await.unwrap().call(Ask::answer(ok())).await,
        ok()
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_function_that_panics_harms_nothing() {
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

/// A tool that answers at once.
#[derive(Clone)]
struct Echo;

impl Service<String> for Echo {
    type Response = String;
    type Error = Infallible;
    type Future = Ready<Result<String, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: String) -> Self::Future {
        ready(Ok(req))
    }
}

/// The rewrite runs after the substitute's slot is taken. When it panics, the slot is not lost.
#[tokio::test(start_paused = true)]
async fn a_rewrite_that_panics_is_a_cancelled_call_of_the_substitute() {
    use tower_breaker::{Cancelled, HealthRouter};
    let layer = CircuitBreakerLayer::new()
        .classify(ErrorsAsFailures)
        .failure_threshold(1)
        .on_cancel(Cancelled::Release)
        .per_key(|call: &String| call.as_str(), 10)
        .substitute(
            HealthRouter::new().route("a", ["b"]),
            |_: &mut String, _: &str| panic!("rewrite"),
        );
    let handle = layer.handle();
    let mut service = layer.layer(Echo);
    handle.try_acquire("b").unwrap().failure();
    pass(secs(30)).await;
    handle.force_open("a");
    assert!(
        task::spawn(())
            .enter(|cx, _| service.poll_ready(cx))
            .is_ready()
    );
    assert!(catch_unwind(AssertUnwindSafe(|| drop(service.call("a".to_owned())))).is_err());
    assert!(handle.try_acquire("b").unwrap().is_probe());
}
