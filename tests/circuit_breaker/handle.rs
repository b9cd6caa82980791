//! Proves the handle: permits by hand, pins, resets and snapshots.

use tower::Layer;
use tower_breaker::{CircuitBreakerLayer, Failure, FailureKind, Outcome, Reason, Recorded, State};

use crate::fail;
use crate::support::tool::{Ask, Tool, ask, busy_for, by_status, hold, ok, status, trip};
use crate::support::{pass, refused, secs};

#[tokio::test(start_paused = true)]
async fn a_permit_taken_by_hand_records_its_verdict() {
    let handle = CircuitBreakerLayer::new().handle();
    assert_eq!(handle.try_acquire().unwrap().success(), Recorded::Applied);
    fail(&handle, 2);
    assert_eq!(
        handle.try_acquire().unwrap().record(Outcome::Neutral),
        Recorded::Applied
    );
    assert_eq!(handle.snapshot().streak, 2);
    let (late_failure, late_success) =
        (handle.try_acquire().unwrap(), handle.try_acquire().unwrap());
    assert!(!late_failure.is_probe());
    let limited = Failure::rate_limited().with_retry_after(secs(40));
    assert_eq!(
        handle.try_acquire().unwrap().record(limited),
        Recorded::Applied
    );
    assert_eq!(handle.snapshot().time_left, Some(secs(40)));

    pass(secs(20)).await;
    assert_eq!(late_success.success(), Recorded::Stale);
    assert_eq!(handle.snapshot().time_left, Some(secs(20)));
    assert_eq!(
        late_failure.failure(),
        Recorded::Stale,
        "though it moved the cooldown"
    );
    assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    assert_eq!(handle.snapshot().last_failure, Some(FailureKind::Transient));

    pass(secs(30)).await;
    let probe = handle.try_acquire().unwrap();
    assert!(probe.is_probe());
    assert_eq!(
        handle.try_acquire().unwrap_err().reason(),
        Reason::ProbeInFlight
    );
    assert_eq!(probe.success(), Recorded::Applied);
    assert_eq!(handle.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_permit_outlives_its_handle_and_its_layer() {
    let handle = CircuitBreakerLayer::new().failure_threshold(1).handle();
    let permit = handle.clone().try_acquire().unwrap();
    drop(handle);
    assert_eq!(permit.failure(), Recorded::Applied);
}

// ===== pins and resets =====

#[tokio::test(start_paused = true)]
async fn a_pinned_circuit_stays_open_until_it_is_reset() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    for from in [State::Closed, State::Open, State::HalfOpen] {
        handle.reset();
        let (old, held) = hold(&mut service, "").await;
        let mut probe = None;
        if from != State::Closed {
            trip(&mut service).await;
        }
        if from == State::HalfOpen {
            pass(secs(30)).await;
            probe = Some(hold(&mut service, "").await);
        }
        assert_eq!(handle.state(), from);
        let calls = tool.calls();
        handle.force_open();
        let pinned = handle.snapshot();
        assert_eq!(
            (pinned.state, pinned.forced, pinned.due),
            (State::Open, true, false)
        );
        assert_eq!(pinned.time_left, None);

        // Neither late results, the probe's among them, nor time move anything.
        held.send(status(503)).unwrap();
        old.await.unwrap_err();
        if let Some((probe, held)) = probe {
            held.send(ok()).unwrap();
            probe.await.unwrap();
        }
        pass(secs(1_000_000)).await;
        assert_eq!(handle.snapshot(), pinned);
        assert!(!handle.would_allow());
        assert_eq!(
            refused(ask(&mut service, Ask::ok()).await).reason(),
            Reason::ForcedOpen
        );
        assert_eq!(tool.calls(), calls);

        handle.reset();
        assert!(handle.would_allow());
        ask(&mut service, Ask::ok()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_clears_everything_in_every_state() {
    let layer = CircuitBreakerLayer::new()
        .classify(by_status)
        .backoff(2, secs(1_000));
    let handle = layer.handle();
    let fresh = handle.snapshot();
    let mut service = layer.layer(Tool::new());
    for depth in 0..5 {
        let (before, _held) = hold(&mut service, "").await;
        let mut out = None;
        match depth {
            // A streak, with a hint.
            0 => {
                let hinted = Ask::answer(busy_for(secs(200)));
                ask(&mut service, hinted).await.unwrap_err();
            }
            1 => trip(&mut service).await,
            // Grown by failed probes.
            2 => {
                trip(&mut service).await;
                pass(secs(30)).await;
                ask(&mut service, Ask::fail()).await.unwrap_err();
            }
            3 => {
                trip(&mut service).await;
                pass(secs(30)).await;
                out = Some(hold(&mut service, "").await);
            }
            _ => handle.force_open(),
        }
        handle.reset();
        assert_eq!(handle.snapshot(), fresh, "depth {depth}");
        // Calls in flight are stale.
        if let Some((probe, held)) = out {
            held.send(status(503)).unwrap();
            probe.await.unwrap_err();
        }
        drop(before);
        assert_eq!(handle.snapshot(), fresh, "depth {depth}");
        // The streak, the hint and the growth start again.
        ask(&mut service, Ask::fail()).await.unwrap_err();
        ask(&mut service, Ask::fail()).await.unwrap_err();
        assert_eq!(handle.state(), State::Closed);
        ask(&mut service, Ask::fail()).await.unwrap_err();
        assert_eq!(handle.snapshot().time_left, Some(secs(30)));
        handle.reset();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_while_closed_makes_calls_in_flight_stale() {
    let handle = CircuitBreakerLayer::new().failure_threshold(1).handle();
    let permit = handle.try_acquire().unwrap();
    handle.reset();
    assert_eq!(permit.failure(), Recorded::Stale);
    assert_eq!(
        (handle.state(), handle.snapshot().streak),
        (State::Closed, 0)
    );
}

// ===== snapshots =====

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_the_circuit_as_it_is_now() {
    let handle = CircuitBreakerLayer::new().success_threshold(2).handle();
    let at = |state, due, streak, time_left, trips, last| {
        let seen = handle.snapshot();
        assert_eq!(handle.state(), state);
        assert_eq!(
            (
                seen.state,
                seen.due,
                seen.forced,
                seen.streak,
                seen.time_left,
                seen.trips,
                seen.last_failure
            ),
            (state, due, false, streak, time_left, trips, last)
        );
    };
    let (transient, limited) = (Some(FailureKind::Transient), Some(FailureKind::RateLimited));
    at(State::Closed, false, 0, None, 0, None);
    fail(&handle, 2);
    at(State::Closed, false, 2, None, 0, transient);
    handle.try_acquire().unwrap().success();
    at(State::Closed, false, 0, None, 0, transient);
    fail(&handle, 3);
    at(State::Open, false, 3, Some(secs(30)), 1, transient);
    pass(secs(12)).await;
    at(State::Open, false, 3, Some(secs(18)), 1, transient);
    pass(secs(18)).await;
    at(State::Open, true, 3, Some(secs(0)), 1, transient);
    pass(secs(1_000)).await;
    at(State::Open, true, 3, Some(secs(0)), 1, transient);
    let probe = handle.try_acquire().unwrap();
    pass(secs(10)).await;
    at(State::HalfOpen, false, 3, Some(secs(20)), 1, transient);
    probe.success();
    at(State::HalfOpen, false, 3, None, 1, transient);
    handle
        .try_acquire()
        .unwrap()
        .record(Failure::rate_limited());
    at(State::Open, false, 3, Some(secs(30)), 2, limited);
    pass(secs(30)).await;
    let _hung = handle.try_acquire().unwrap();
    pass(secs(30)).await;
    at(State::Open, false, 3, Some(secs(30)), 3, transient);
    pass(secs(30)).await;
    at(State::Open, true, 3, Some(secs(0)), 3, transient);
    handle.try_acquire().unwrap().success();
    handle.try_acquire().unwrap().success();
    at(State::Closed, false, 0, None, 3, transient);
}
