//! Proves that a layer that only observes refuses nothing and tells what it would have refused.

use std::sync::Arc;
use std::task::Poll;

use tower::{Layer, Service};
use tower_breaker::{CircuitBreakerLayer, Failure, Outcome, Recorded, State, WhenOpen};

use crate::fail;
use crate::readiness::{NOT_READY, poll};
use crate::substitutes::routed;
use crate::support::events::Recorder;
use crate::support::site::{Down, Site, ask_now, now};
use crate::support::tool::{Ask, Tool, ask, hold, ok, trip, trip_key};
use crate::support::{pass, reason_and_wait, secs};

#[tokio::test(start_paused = true)]
async fn observing_only_refuses_nothing_and_moves_as_a_refusing_circuit() {
    let tool = Tool::new();
    let refusing = CircuitBreakerLayer::new();
    let observing = CircuitBreakerLayer::new().observe_only();
    let (model, handle) = (refusing.handle(), observing.handle());
    let mut service = observing.layer(tool.clone());
    for round in 0..200_u32 {
        // Both record calls that would be admitted. Calls that would be refused run, and neither
        // records them.
        let fails = round % 7 < 4;
        let asked = if fails { Ask::fail() } else { Ask::ok() };
        let answer = ask(&mut service, asked).await;
        assert_eq!(answer.is_err(), fails, "always the tool's own answer");
        if let Ok(permit) = model.try_acquire() {
            let _ = if fails {
                permit.failure()
            } else {
                permit.success()
            };
        }
        assert_eq!(handle.snapshot(), model.snapshot(), "round {round}");
        pass(secs(7)).await;
    }
    assert_eq!(tool.calls(), 200);
    assert!(handle.snapshot().trips > 5);
}

#[tokio::test(start_paused = true)]
async fn observing_only_the_handle_grants_permits_that_record_nothing() {
    let handle = CircuitBreakerLayer::new().observe_only().handle();
    fail(&handle, 3);
    let before = handle.snapshot();
    assert_eq!(before.state, State::Open);
    assert!(handle.would_allow());
    for outcome in [Outcome::Success, Outcome::Neutral, Failure::fatal().into()] {
        let permit = handle.try_acquire().unwrap();
        assert!(!permit.is_probe());
        assert_eq!(permit.record(outcome), Recorded::Stale);
    }
    drop(handle.try_acquire().unwrap());
    assert_eq!(handle.snapshot(), before);
    // A call without a permit that runs past the cooldown's end is no probe.
    let without = handle.try_acquire().unwrap();
    pass(secs(30)).await;
    let probe = handle.try_acquire().unwrap();
    assert!(probe.is_probe());
    without.success();
    assert_eq!(handle.state(), State::HalfOpen);
    probe.success();
    assert_eq!(handle.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn observing_only_tells_what_would_have_been_refused() {
    let told = Recorder::new();
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new()
        .observe_only()
        .observe(told.clone());
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    trip(&mut service).await;
    pass(secs(10)).await;
    ask(&mut service, Ask::fail()).await.unwrap_err();
    ask(&mut service, Ask::ok()).await.unwrap();
    assert!(handle.would_allow());
    pass(secs(20)).await;
    let (probe, held) = hold(&mut service, "").await;
    ask(&mut service, Ask::fail()).await.unwrap_err();
    held.send(ok()).unwrap();
    probe.await.unwrap();
    handle.force_open();
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(tool.calls(), 8);
    assert_eq!(
        told.take(),
        [
            "closed -> open (failure_threshold) #1",
            "observed circuit_open for 20s",
            "observed circuit_open for 20s",
            "open -> half_open (cooldown_over) #2",
            "probe for 30s #2",
            "observed probe_in_flight for 30s",
            "half_open -> closed (probe_succeeded) #3",
            "closed -> open (forced_open) #4",
            "observed forced_open",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn observing_only_passes_readiness_through_and_calls_no_service_that_is_not_ready() {
    for when_open in [WhenOpen::Refuse, WhenOpen::NotReady] {
        let site = Arc::new(Site::default());
        let layer = CircuitBreakerLayer::new()
            .observe_only()
            .when_open(when_open);
        let handle = layer.handle();
        for _ in 0..3 {
            handle.try_acquire().unwrap().failure();
        }
        assert_eq!(handle.state(), State::Open);
        let mut service = layer.layer(site.tool());
        assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);

        // Calls that would be refused run, and their results say nothing.
        site.set_down(true);
        for _ in 0..5 {
            assert!(ask_now(&mut service).unwrap_err().is::<Down>());
        }
        pass(secs(10)).await;
        assert_eq!(handle.snapshot().time_left, Some(secs(20)));
        assert_eq!(handle.snapshot().trips, 1);
        assert_eq!((site.calls(), site.polls()), (5, 5));
        site.set_stuck(true);
        assert!(poll(&mut service).is_pending());
        site.set_stuck(false);
        site.set_lost(true);
        assert!(matches!(poll(&mut service), Poll::Ready(Err(err)) if err.is::<Down>()));
        assert_eq!(handle.snapshot().time_left, Some(secs(20)));

        // The circuit moves as if it refused: the first call after the cooldown is the probe.
        site.set_lost(false);
        site.set_down(false);
        pass(secs(20)).await;
        assert_eq!(ask_now(&mut service).unwrap(), "q");
        assert_eq!(handle.state(), State::Closed);

        // A pin does not hold up a call either.
        handle.force_open();
        assert_eq!(ask_now(&mut service).unwrap(), "q");
    }
}

/// The call goes to the tool that it names, and `resolve` says so.
#[tokio::test(start_paused = true)]
async fn observing_only_rewrites_no_call() {
    let told = Recorder::new();
    let tool = Tool::new();
    let (mut service, handle) = routed(
        CircuitBreakerLayer::new()
            .observe_only()
            .observe(told.clone()),
        &tool,
    );
    trip_key(&mut service, "search").await;
    told.take();
    assert_eq!(handle.resolve("search"), Some("search"));
    assert_eq!(
        ask(&mut service, Ask::ok().of("search")).await.unwrap().by,
        "search"
    );
    assert_eq!(told.take(), ["search: observed circuit_open for 30s"]);
}
