//! Results that come late: from before a trip, from before a recovery, from a probe whose lease is
//! over.

use tower::Layer;
use tower_breaker::{
    Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Failure, FailureKind, Recorded, State,
};

use super::CANCELLED;
use crate::support::{
    Ask, Recorder, Tool, ask, busy_for, by_status, hold, ok, pass, refused, secs, status, trip,
};

/// Case 3.
#[tokio::test(start_paused = true)]
async fn a_stale_success_changes_nothing_and_reaches_its_caller() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    let (while_open, first) = hold(&mut service, "").await;
    let (while_due, second) = hold(&mut service, "").await;
    let (while_half_open, third) = hold(&mut service, "").await;
    trip(&mut service).await;

    pass(secs(10)).await;
    let before = handle.snapshot();
    first.send(ok()).unwrap();
    assert!(while_open.await.is_ok());
    assert_eq!(handle.snapshot(), before);
    assert_eq!(
        refused(ask(&mut service, Ask::ok()).await).retry_after(),
        Some(secs(20))
    );

    pass(secs(20)).await;
    let before = handle.snapshot();
    second.send(ok()).unwrap();
    assert!(while_due.await.is_ok());
    assert_eq!(handle.snapshot(), before);

    let (probe, held) = hold(&mut service, "").await;
    let before = handle.snapshot();
    third.send(ok()).unwrap();
    assert!(while_half_open.await.is_ok());
    assert_eq!(handle.snapshot(), before);
    refused(ask(&mut service, Ask::ok()).await);

    held.send(status(503)).unwrap();
    probe.await.unwrap_err();
    assert_eq!(
        (handle.state(), handle.snapshot().time_left),
        (State::Open, Some(secs(30)))
    );
}

/// Case 4.
#[tokio::test(start_paused = true)]
async fn stale_failures_and_clean_ups_leave_the_probe_alone() {
    for rule in CANCELLED {
        let layer = CircuitBreakerLayer::new()
            .on_cancel(rule)
            .classify(by_status);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let (one, first) = hold(&mut service, "").await;
        let (two, second) = hold(&mut service, "").await;
        let (dropped, _held) = hold(&mut service, "").await;
        trip(&mut service).await;
        pass(secs(30)).await;
        let (probe, held) = hold(&mut service, "").await;
        pass(secs(1)).await;
        let before = handle.snapshot();

        first.send(busy_for(secs(60))).unwrap();
        one.await.unwrap_err();
        second.send(status(402)).unwrap();
        two.await.unwrap_err();
        drop(dropped);
        assert_eq!(handle.snapshot(), before, "{rule:?}");
        assert_eq!(handle.state(), State::HalfOpen);
        assert!(!handle.would_allow());

        held.send(ok()).unwrap();
        probe.await.unwrap();
        let snapshot = handle.snapshot();
        assert_eq!((snapshot.state, snapshot.streak), (State::Closed, 0));
    }
}

/// Case 13.
#[tokio::test(start_paused = true)]
async fn stragglers_restart_the_cooldown_and_trip_nothing_anew() {
    let recorder = Recorder::new();
    let layer = CircuitBreakerLayer::new().observe(recorder.clone());
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let mut stragglers = Vec::new();
    for _ in 0..20 {
        stragglers.push(hold(&mut service, "").await);
    }
    trip(&mut service).await;
    for (call, held) in stragglers {
        pass(secs(1)).await;
        held.send(status(503)).unwrap();
        call.await.unwrap_err();
        assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    }
    let mut expected = vec!["closed -> open (failure_threshold) #1".to_owned()];
    expected.extend(std::iter::repeat_n(
        "late transient failure #0".to_owned(),
        20,
    ));
    assert_eq!(recorder.take(), expected);
    assert_eq!((handle.snapshot().trips, handle.snapshot().streak), (1, 3));

    // The circuit is open until 50 s. Refusals never move that.
    for left in (1..=30).rev() {
        assert_eq!(
            refused(ask(&mut service, Ask::ok()).await).retry_after(),
            Some(secs(left))
        );
        pass(secs(1)).await;
    }
    assert!(handle.snapshot().due);
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(handle.state(), State::Closed);
}

/// Case 13: a call that is dropped late is a stale failure if the rule calls it a failure.
/// Otherwise it changes nothing.
#[tokio::test(start_paused = true)]
async fn a_straggler_that_is_dropped_counts_by_the_rule() {
    for rule in CANCELLED {
        let layer = CircuitBreakerLayer::new().on_cancel(rule);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let (call, _held) = hold(&mut service, "").await;
        trip(&mut service).await;
        pass(secs(10)).await;
        drop(call);
        let failed = matches!(rule, Cancelled::Failure | Cancelled::FailureAfter(_));
        let left = secs(if failed { 30 } else { 20 });
        assert_eq!(handle.snapshot().time_left, Some(left), "{rule:?}");
    }
}

/// The late failure of a probe whose lease is over is a stale failure like any other.
#[tokio::test(start_paused = true)]
async fn the_late_failure_of_a_vanished_probe_restarts_the_cooldown() {
    for (late, left) in [(31, 30), (45, 30), (59, 30), (60, 30), (500, 30)] {
        let recorder = Recorder::new();
        let layer = CircuitBreakerLayer::new()
            .classify(by_status)
            .observe(recorder.clone());
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        trip(&mut service).await;
        pass(secs(30)).await;
        let (probe, held) = hold(&mut service, "").await;
        recorder.take();
        pass(secs(late)).await;
        held.send(status(503)).unwrap();
        probe.await.unwrap_err();
        assert_eq!(
            handle.snapshot().time_left,
            Some(secs(left)),
            "failed after {late} s"
        );
        assert_eq!(
            recorder.take(),
            [
                "lease expired #2",
                "half_open -> open (lease_expired) #3",
                "late transient failure #2",
            ]
        );
    }
}

/// A probe counts up to the last nanosecond of its lease, and no longer at the end.
#[tokio::test(start_paused = true)]
async fn a_probe_counts_until_its_lease_ends_and_not_at_the_end() {
    for (nanos, state) in [
        (29_999_999_999, State::Closed),
        (30_000_000_000, State::Open),
    ] {
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        trip(&mut service).await;
        pass(secs(30)).await;
        let (probe, held) = hold(&mut service, "").await;
        pass(std::time::Duration::from_nanos(nanos)).await;
        held.send(ok()).unwrap();
        assert!(probe.await.is_ok(), "its caller gets its answer either way");
        assert_eq!(handle.state(), state);
    }
}

/// Case 45.
#[tokio::test(start_paused = true)]
async fn calls_from_before_a_reset_change_nothing() {
    for outcome in [503, 402, 429] {
        let layer = CircuitBreakerLayer::new().classify(by_status);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let mut old = Vec::new();
        for _ in 0..3 {
            old.push(hold(&mut service, "").await);
        }
        trip(&mut service).await;
        pass(secs(30)).await;
        ask(&mut service, Ask::ok()).await.unwrap();
        let before = handle.snapshot();
        for (call, held) in old {
            held.send(status(outcome)).unwrap();
            call.await.unwrap_err();
        }
        assert_eq!(handle.snapshot(), before);
        assert_eq!((before.state, before.streak), (State::Closed, 0));
    }
}

/// Case 45: successes from before a reset end no streak after it.
#[tokio::test(start_paused = true)]
async fn a_success_from_an_old_life_ends_no_streak() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let (old, held) = hold(&mut service, "").await;
    trip(&mut service).await;
    pass(secs(30)).await;
    ask(&mut service, Ask::ok()).await.unwrap();
    ask(&mut service, Ask::fail()).await.unwrap_err();
    ask(&mut service, Ask::fail()).await.unwrap_err();
    held.send(ok()).unwrap();
    old.await.unwrap();
    assert_eq!(handle.snapshot().streak, 2);
    assert_eq!(handle.snapshot().last_failure, Some(FailureKind::Transient));
    ask(&mut service, Ask::fail()).await.unwrap_err();
    assert_eq!(handle.state(), State::Open);
}

fn fail_times(handle: &CircuitBreakerHandle, times: u32) {
    for _ in 0..times {
        handle.try_acquire().unwrap().failure();
    }
}

/// A stale result is stale whatever it says. Fatal failures and hints change no more than others.
#[tokio::test(start_paused = true)]
async fn a_late_fatal_failure_with_a_hint_is_stale_like_any_other() {
    let handle = CircuitBreakerLayer::new().handle();
    let late: Vec<_> = (0..3).map(|_| handle.try_acquire().unwrap()).collect();
    let patient = Failure::fatal().with_retry_after(secs(100));
    fail_times(&handle, 3);
    pass(secs(30)).await;
    let probe = handle.try_acquire().unwrap();
    let mut late = late.into_iter();
    let mut say = || late.next().unwrap().record(patient);

    // Half-open: nothing changes, and the cooldown after a failed probe is no longer.
    let before = handle.snapshot();
    assert_eq!(say(), Recorded::Stale);
    assert_eq!(handle.snapshot(), before);
    probe.failure();
    assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    // Closed again: nothing changes, and the next trip is like any other.
    pass(secs(30)).await;
    handle.try_acquire().unwrap().success();
    let before = handle.snapshot();
    assert_eq!(say(), Recorded::Stale);
    assert_eq!(handle.snapshot(), before);
    fail_times(&handle, 3);
    assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    // Open: the stale failure moves the cooldown, and does nothing else.
    let trips = handle.snapshot().trips;
    assert_eq!(say(), Recorded::Stale);
    let seen = handle.snapshot();
    assert_eq!((seen.time_left, seen.trips), (Some(secs(100)), trips));
    assert_eq!(seen.last_failure, Some(FailureKind::Fatal));
}
