//! Proves that late results change nothing but a running cooldown: from before a trip, before a
//! recovery, or after a lease.

use tower::Layer;
use tower_breaker::{Cancelled, CircuitBreakerLayer, Failure, FailureKind, Recorded, State};

use crate::support::events::Recorder;
use crate::support::tool::{Ask, Tool, ask, busy_for, by_status, hold, ok, status, trip};
use crate::support::{pass, refused, secs};
use crate::{CANCELLED, fail};

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
async fn stale_failures_and_dropped_calls_leave_the_probe_alone() {
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
async fn late_failures_restart_the_cooldown_and_are_no_new_trip() {
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

    // Open until 50 s; refusals never move it.
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

/// Case 13: a call that is dropped late restarts the cooldown only where the rule makes it a
/// failure.
#[tokio::test(start_paused = true)]
async fn a_call_dropped_after_the_trip_counts_by_the_rule() {
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

/// A probe whose lease is over is stale, so its failure restarts the cooldown.
#[tokio::test(start_paused = true)]
async fn the_late_failure_of_an_expired_probe_restarts_the_cooldown() {
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

/// Case 6: a late neutral result moves no cooldown, in any state.
#[tokio::test(start_paused = true)]
async fn a_late_neutral_result_moves_nothing() {
    let layer = CircuitBreakerLayer::new().classify(by_status);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let (while_open, first) = hold(&mut service, "").await;
    let (while_half_open, second) = hold(&mut service, "").await;
    trip(&mut service).await;
    pass(secs(10)).await;
    first.send(status(401)).unwrap();
    while_open.await.unwrap_err();
    assert_eq!(handle.snapshot().time_left, Some(secs(20)));
    pass(secs(20)).await;
    let _probe = hold(&mut service, "").await;
    second.send(status(401)).unwrap();
    while_half_open.await.unwrap_err();
    assert!(!handle.would_allow(), "the slot is still the probe's");
}

/// Late fatal failures and late hints change no more than other late failures.
#[tokio::test(start_paused = true)]
async fn a_late_fatal_failure_with_a_hint_is_stale_like_any_other() {
    let handle = CircuitBreakerLayer::new().handle();
    let late: Vec<_> = (0..3).map(|_| handle.try_acquire().unwrap()).collect();
    let patient = Failure::fatal().with_retry_after(secs(100));
    fail(&handle, 3);
    pass(secs(30)).await;
    let probe = handle.try_acquire().unwrap();
    let mut late = late.into_iter();
    let mut say = || late.next().unwrap().record(patient);

    // Half-open: nothing changes, and the probe's failure opens for the usual cooldown.
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
    fail(&handle, 3);
    assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    // Open: it moves the cooldown and nothing else.
    let trips = handle.snapshot().trips;
    assert_eq!(say(), Recorded::Stale);
    let seen = handle.snapshot();
    assert_eq!((seen.time_left, seen.trips), (Some(secs(100)), trips));
    assert_eq!(seen.last_failure, Some(FailureKind::Fatal));
}

// ===== from before a recovery =====

/// Case 45.
#[tokio::test(start_paused = true)]
async fn failures_from_before_a_recovery_change_nothing_after_it() {
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

/// Case 45, for a success.
#[tokio::test(start_paused = true)]
async fn a_success_from_before_a_recovery_ends_no_streak_after_it() {
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
