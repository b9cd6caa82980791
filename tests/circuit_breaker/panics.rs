//! Listeners, calls and classifiers that panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    Cancelled, CircuitBreakerLayer, Classify, ErrorsAsFailures, Event, Failure, FailureKind,
    Outcome, Reason, State,
};

use super::CANCELLED;
use crate::support::{
    Answer, Ask, Fault, Recorder, Reply, Tool, ask, by_status, call, hold, ok, pass, refused, secs,
    status, trip, trip_key,
};

/// Awaits a future that must panic, and returns the message of the panic.
async fn panic_of<T>(future: impl Future<Output = T>) -> String {
    let panic = AssertUnwindSafe(future)
        .catch_unwind()
        .await
        .map(|_| ())
        .unwrap_err();
    (*panic.downcast_ref::<&str>().expect("a text")).to_owned()
}

/// Case 12: a listener that panics at every event, before and after one that keeps them.
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
    // A dropped probe: its destructor sends the events.
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
    // A response future whose destructor runs while its thread panics.
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

/// Case 12, for the events of a keyed layer.
#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_harms_no_store() {
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

/// Case 12: three panics trip, as three failures do, once each.
#[tokio::test(start_paused = true)]
async fn an_ordinary_call_that_panics_is_a_failure() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    panic_of(ask(&mut service, Ask::panic_in_call())).await;
    assert_eq!(handle.snapshot().streak, 1);
    panic_of(ask(&mut service, Ask::panic_in_poll())).await;
    assert_eq!(handle.snapshot().streak, 2);
    panic_of(ask(&mut service, Ask::panic_in_poll())).await;
    assert_eq!(
        refused(ask(&mut service, Ask::ok()).await).reason(),
        Reason::CircuitOpen
    );
}

/// A guard around the future sees the panic after the failure was recorded.
#[tokio::test(start_paused = true)]
async fn a_panic_is_recorded_before_anybody_outside_catches_it() {
    let layer = CircuitBreakerLayer::new().failure_threshold(1);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let future = service.ready().await.unwrap().call(Ask::panic_in_poll());
    let mut future = tokio_test::task::spawn(future);
    let caught = catch_unwind(AssertUnwindSafe(|| future.poll().is_ready()));
    assert!(caught.is_err());
    // The future still lives.
    assert_eq!(handle.state(), State::Open);
    drop(future);
    assert_eq!(handle.snapshot().trips, 1);
}

/// A panic in a classifier is a cancelled call, by the rule for those.
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

/// The call is cancelled at once, not when the future is dropped.
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
    // Another call takes the slot. The drop of the old future does not free that slot.
    let _next = hold(&mut service, "").await;
    drop(probe);
    assert!(!handle.would_allow());
}

/// Only a permit taken by hand asks whether its thread is panicking.
#[tokio::test(start_paused = true)]
async fn a_future_that_somebody_elses_panic_drops_is_a_cancelled_call() {
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

/// A refusal policy that panics changes no state.
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
