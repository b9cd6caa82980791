//! The handle, permits by hand, pins, resets, snapshots, clones, and observing only.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Event, Failure, FailureKind, Outcome,
    Reason, Recorded, State,
};

use super::CANCELLED;
use crate::support::{Ask, Tool, ask, hold, pass, refused, secs, status, trip};

fn fail(handle: &CircuitBreakerHandle, times: u32) {
    for _ in 0..times {
        assert_eq!(handle.try_acquire().unwrap().failure(), Recorded::Applied);
    }
}

// ===== permits =====

#[tokio::test(start_paused = true)]
async fn a_permit_by_hand_ends_in_its_verdict() {
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
async fn a_permit_that_is_dropped_is_a_cancelled_call_and_while_panicking_a_failure() {
    for rule in CANCELLED {
        let handle = CircuitBreakerLayer::new().on_cancel(rule).handle();
        drop(handle.try_acquire().unwrap());
        assert_eq!(
            handle.snapshot().streak,
            u32::from(rule == Cancelled::Failure)
        );
        let permit = handle.try_acquire().unwrap();
        pass(secs(5)).await;
        drop(permit);
        let failed = matches!(rule, Cancelled::FailureAfter(_) | Cancelled::Failure);
        let streak = u32::from(rule == Cancelled::Failure) + u32::from(failed);
        assert_eq!(handle.snapshot().streak, streak, "{rule:?}");
        handle.reset();

        // The same holds for a probe.
        fail(&handle, 3);
        pass(secs(30)).await;
        drop(handle.try_acquire().unwrap());
        let (state, allowed) = match rule {
            Cancelled::Ignore => (State::HalfOpen, false),
            Cancelled::Failure => (State::Open, false),
            _ => (State::HalfOpen, true),
        };
        assert_eq!(
            (handle.state(), handle.would_allow()),
            (state, allowed),
            "{rule:?}"
        );
        handle.reset();
        fail(&handle, 3);
        pass(secs(30)).await;
        let probe = handle.try_acquire().unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _probe = probe;
            std::panic::panic_any("work");
        }));
        assert!(unwound.is_err());
        assert_eq!(
            (handle.state(), handle.snapshot().time_left),
            (State::Open, Some(secs(30)))
        );
    }
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

        // Neither late results, also that of the probe, nor time change anything.
        held.send(status(503)).unwrap();
        old.await.unwrap_err();
        if let Some((probe, held)) = probe {
            held.send(crate::support::ok()).unwrap();
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
        .classify(crate::support::by_status)
        .backoff(2, secs(1_000));
    let handle = layer.handle();
    let fresh = handle.snapshot();
    let mut service = layer.layer(Tool::new());
    for depth in 0..5 {
        let (before, _held) = hold(&mut service, "").await;
        let mut out = None;
        match depth {
            // A streak with a hint.
            0 => {
                let hinted = Ask::answer(crate::support::busy_for(secs(200)));
                ask(&mut service, hinted).await.unwrap_err();
            }
            1 => trip(&mut service).await,
            // Failed probes lengthened the cooldown.
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
        // The streak, the hint and the growth begin anew.
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

// ===== whose state it is =====

/// A layer made per request, and every clone, shares one circuit.
#[tokio::test(start_paused = true)]
async fn layers_services_and_their_clones_share_one_circuit() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let copy = layer.clone();
    for service in [
        layer.layer(tool.clone()),
        copy.layer(tool.clone()),
        copy.clone().layer(tool.clone()),
    ] {
        // A clone of it per request.
        let mut clone = service.clone();
        ask(&mut clone, Ask::fail()).await.unwrap_err();
    }
    assert_eq!(handle.state(), State::Open);
    assert_eq!(copy.handle().snapshot(), handle.clone().snapshot());
    refused(ask(&mut layer.layer(tool.clone()), Ask::ok()).await);
    assert_eq!(tool.calls(), 3);
}

/// A clone that is configured further has a circuit of its own, so a handle is taken last.
#[tokio::test(start_paused = true)]
async fn a_setter_gives_the_layer_state_of_its_own() {
    let layer = CircuitBreakerLayer::new();
    let early = layer.handle();
    let copy = layer.clone();
    early.force_open();
    assert_eq!(copy.handle().state(), State::Open, "a clone shares it");
    let named = copy.clone().name("search");
    assert_eq!(
        named.handle().state(),
        State::Closed,
        "one configured further does not"
    );
    assert_eq!(
        copy.handle().state(),
        State::Open,
        "and leaves the other's alone"
    );

    // Each setter does so, also those of the classifier and of the policy.
    let silent = |_: &Event<'_>| {};
    for handle in [
        copy.clone().failure_threshold(3).handle(),
        copy.clone().recovery_duration(secs(30)).handle(),
        copy.clone().observe_only().handle(),
        copy.clone().observe(silent).handle(),
        copy.clone().jitter_seed(1).handle(),
        copy.clone().classify(crate::support::by_status).handle(),
        copy.clone().refuse(tower_breaker::IntoError).handle(),
    ] {
        assert_eq!(handle.state(), State::Closed);
        handle.force_open();
    }
    early.reset();
    assert_eq!(copy.handle().state(), State::Closed);

    // The same holds for a circuit per key. Earlier settings stay.
    let keyed = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .per_key(|ask: &Ask| ask.name.as_str(), 7);
    keyed.handle().force_open("a");
    let further = keyed.clone().recovery_duration(secs(1));
    assert_eq!(keyed.clone().handle().state("a"), State::Open);
    assert_eq!(further.handle().state("a"), State::Closed);
    let _ = further.handle().try_acquire("a").unwrap().failure();
    assert_eq!(further.handle().state("a"), State::Open);
    for key in 0..100 {
        let _ = further.handle().try_acquire(key.to_string().as_str());
    }
    assert_eq!(further.handle().keys().len(), 7);
}

// ===== observing only =====

#[tokio::test(start_paused = true)]
async fn observing_only_refuses_nothing_and_moves_as_if_it_did() {
    let tool = Tool::new();
    let refusing = CircuitBreakerLayer::new();
    let observing = CircuitBreakerLayer::new().observe_only();
    let (model, handle) = (refusing.handle(), observing.handle());
    let mut service = observing.layer(tool.clone());
    for round in 0..200_u32 {
        // Both layers record a call that would be admitted. A call that would be refused runs, and
        // neither records it.
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
async fn observing_only_the_handle_grants_a_permit_that_records_nothing() {
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
    // A call without a permit that outlasts the cooldown is no probe.
    let without = handle.try_acquire().unwrap();
    pass(secs(30)).await;
    let probe = handle.try_acquire().unwrap();
    assert!(probe.is_probe());
    without.success();
    assert_eq!(handle.state(), State::HalfOpen);
    probe.success();
    assert_eq!(handle.state(), State::Closed);
}

/// A layer that only observes does not call an unready inner service either.
#[tokio::test(start_paused = true)]
async fn observing_only_calls_no_service_that_is_not_ready() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new().observe_only();
    layer.handle().force_open();
    let mut service = layer.layer(tool.clone());
    assert_eq!(
        refused(service.call(Ask::ok()).await).reason(),
        Reason::NotReady
    );
    service
        .ready()
        .await
        .unwrap()
        .call(Ask::ok())
        .await
        .unwrap();
    assert_eq!(tool.calls(), 1);
}
