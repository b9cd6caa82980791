//! Proves the defaults, and that a setting has a documented meaning or panics with its name.

use std::time::Duration;

use tower::Layer;
use tower_breaker::{
    Cancelled, CircuitBreakerLayer, Failure, FailureKind, Reason, State, WhenOpen, Window,
};

use crate::fail;
use crate::support::tool::{Ask, Tool, ask, busy_for, by_status, hold, ok, status, trip};
use crate::support::{NS, panic_message, pass, refused, secs};

#[tokio::test(start_paused = true)]
async fn the_defaults_are_the_documented_ones() {
    let handle = CircuitBreakerLayer::new().handle();
    fail(&handle, 2);
    assert_eq!(handle.state(), State::Closed, "three failures in a row");
    fail(&handle, 1);
    // The cooldown is 30 s after the first trip and after a failed probe. The lease is 30 s.
    for _ in 0..3 {
        assert_eq!(handle.snapshot().time_left, Some(secs(30)));
        pass(secs(30) - NS).await;
        assert!(!handle.would_allow());
        pass(NS).await;
        handle.try_acquire().unwrap().failure();
    }
    pass(secs(30)).await;
    // A probe that is dropped keeps its slot until its lease ends.
    drop(handle.try_acquire().unwrap());
    let refusal = handle.try_acquire().unwrap_err();
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (Reason::ProbeInFlight, Some(secs(30)))
    );
    assert_eq!(refusal.name(), None);
    pass(secs(60)).await;
    handle.try_acquire().unwrap().success();
    assert_eq!(handle.state(), State::Closed, "one good probe");
    let patient = Failure::fatal().with_retry_after(secs(3_600));
    handle.try_acquire().unwrap().record(patient);
    assert_eq!(handle.snapshot().time_left, Some(secs(5 * 60)));

    // No rate is set by default. A rate needs ten calls by default.
    let handle = CircuitBreakerLayer::new().handle();
    for _ in 0..1_000 {
        fail(&handle, 2);
        handle.try_acquire().unwrap().success();
    }
    assert_eq!(handle.state(), State::Closed);
    for window in [Window::Calls(20), Window::Time(secs(60))] {
        let handle = CircuitBreakerLayer::new()
            .failure_rate(0.5, window)
            .handle();
        for call in 1..=10 {
            assert_eq!(handle.state(), State::Closed, "before call {call}");
            let permit = handle.try_acquire().unwrap();
            if call % 2 == 1 {
                permit.failure();
            } else {
                permit.success();
            }
        }
        assert_eq!(handle.state(), State::Open);
    }
}

// ===== nonsense settings =====

/// Checks that the setter panics, and that the message names it.
#[track_caller]
fn panics_with_its_name<T>(setter: &str, set: impl FnOnce(CircuitBreakerLayer) -> T) {
    let text = panic_message(|| set(CircuitBreakerLayer::new()));
    assert!(text.contains(&format!("`{setter}`")), "{text}");
}

/// Case 17.
#[test]
fn a_nonsense_setting_panics_and_names_its_setter() {
    panics_with_its_name("failure_threshold", |layer| layer.failure_threshold(0));
    panics_with_its_name("success_threshold", |layer| layer.success_threshold(0));
    panics_with_its_name("minimum_calls", |layer| layer.minimum_calls(0));
    panics_with_its_name("probe_timeout", |layer| layer.probe_timeout(Duration::ZERO));
    panics_with_its_name("slow_call", |layer| layer.slow_call(Duration::ZERO));
    panics_with_its_name("capacity", |layer| {
        layer.per_key(|key: &String| key.as_str(), 0)
    });
    panics_with_its_name("capacity", |layer| layer.per_owned_key(|key: &u8| *key, 0));
    for factor in [0.0, 0.999, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        panics_with_its_name("backoff", |layer| layer.backoff(factor, secs(1)));
    }
    for fraction in [-0.1, f64::NAN, f64::INFINITY] {
        panics_with_its_name("jitter", |layer| layer.jitter(fraction));
    }
    for fraction in [0.0, -0.5, 1.001, f64::NAN, f64::INFINITY] {
        panics_with_its_name("failure_rate", |layer| {
            layer.failure_rate(fraction, Window::Calls(5))
        });
    }
    for window in [Window::Calls(0), Window::Time(Duration::ZERO)] {
        panics_with_its_name("failure_rate", |layer| layer.failure_rate(0.5, window));
    }
}

/// Case 17: all settings at their limits at once, through trips, late failures, probes and a
/// reset.
#[tokio::test(start_paused = true)]
async fn settings_at_their_limits_overflow_nothing() {
    let ends = [Duration::ZERO, NS, secs(30), Duration::MAX];
    let longer_than_none = [NS, secs(30), Duration::MAX];
    for cooldown in ends {
        for lease in longer_than_none {
            for max in ends {
                for (factor, jitter) in [(1.0, 0.0), (2.0, 0.15), (f64::MAX, f64::MAX)] {
                    for end in longer_than_none {
                        let layer = CircuitBreakerLayer::new()
                            .recovery_duration(cooldown)
                            .probe_timeout(lease)
                            .backoff(factor, max)
                            .jitter(jitter)
                            .retry_after_cap(max)
                            .slow_call(end)
                            .failure_rate(1.0, Window::Time(end))
                            .on_cancel(Cancelled::FailureAfter(max))
                            .classify(by_status);
                        let handle = layer.handle();
                        let mut service = layer.layer(Tool::new());
                        let (late, held) = hold(&mut service, "").await;
                        let dropped = hold(&mut service, "").await;
                        for _ in 0..3 {
                            let _ = ask(&mut service, Ask::answer(busy_for(end))).await;
                        }
                        held.send(busy_for(Duration::MAX)).unwrap();
                        late.await.unwrap_err();
                        drop(dropped);
                        for step in 0..6 {
                            // A day is longer than every limit but the last.
                            pass(secs(24 * 60 * 60)).await;
                            let allowed = handle.would_allow();
                            let _ = format!("{:?}", handle.snapshot());
                            let Ok(permit) = handle.try_acquire() else {
                                assert!(!allowed);
                                continue;
                            };
                            assert!(allowed);
                            match step % 3 {
                                0 => drop(permit),
                                1 => {
                                    permit.record(Failure::fatal().with_retry_after(Duration::MAX));
                                }
                                _ => {
                                    permit.success();
                                }
                            }
                        }
                        handle.force_open();
                        handle.reset();
                        assert_eq!(handle.state(), State::Closed);
                    }
                }
            }
        }
    }
}

/// Case 17.
#[tokio::test(start_paused = true)]
async fn a_cooldown_of_zero_makes_the_next_call_the_probe_and_one_without_end_needs_a_reset() {
    let layer = CircuitBreakerLayer::new().recovery_duration(Duration::ZERO);
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    assert_eq!(layer.handle().state(), State::Open);
    assert!(layer.handle().snapshot().due);
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(layer.handle().state(), State::Closed);

    let layer = CircuitBreakerLayer::new().recovery_duration(Duration::MAX);
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    pass(secs(100 * 365 * 24 * 60 * 60)).await;
    let refusal = refused(ask(&mut service, Ask::ok()).await);
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (Reason::CircuitOpen, None)
    );
    assert_eq!(layer.handle().snapshot().time_left, None);
    layer.handle().reset();
    ask(&mut service, Ask::ok()).await.unwrap();
}

/// Case 17.
#[tokio::test(start_paused = true)]
async fn a_lease_without_end_holds_its_slot_until_a_reset() {
    let layer = CircuitBreakerLayer::new().probe_timeout(Duration::MAX);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    pass(secs(30)).await;
    let (probe, held) = hold(&mut service, "").await;
    pass(secs(100 * 365 * 24 * 60 * 60)).await;
    let refusal = refused(ask(&mut service, Ask::ok()).await);
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (Reason::ProbeInFlight, None)
    );
    handle.reset();
    ask(&mut service, Ask::ok()).await.unwrap();
    held.send(status(503)).unwrap();
    probe.await.unwrap_err();
    assert_eq!(
        (handle.state(), handle.snapshot().streak),
        (State::Closed, 0)
    );
}

/// Case 17.
#[tokio::test(start_paused = true)]
async fn settings_at_their_limits_mean_what_the_docs_say() {
    // With `Duration::MAX` no call is slow. A dropped call always ran for at least zero, and
    // never for `Duration::MAX`.
    for (rule, streak) in [
        (Cancelled::FailureAfter(Duration::ZERO), 1),
        (Cancelled::FailureAfter(Duration::MAX), 0),
    ] {
        let layer = CircuitBreakerLayer::new()
            .slow_call(Duration::MAX)
            .on_cancel(rule);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let (call, held) = hold(&mut service, "").await;
        pass(secs(1_000_000)).await;
        held.send(ok()).unwrap();
        call.await.unwrap();
        assert_eq!(handle.snapshot().streak, 0);
        drop(hold(&mut service, "").await);
        assert_eq!(handle.snapshot().streak, streak);
    }
    // A cap on growth below the cooldown allows no growth and shortens nothing.
    for max in [Duration::ZERO, secs(1), secs(30)] {
        let handle = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .backoff(5, max)
            .handle();
        for _ in 0..5 {
            handle.try_acquire().unwrap().failure();
            assert_eq!(handle.snapshot().time_left, Some(secs(30)));
            pass(secs(30)).await;
        }
    }
    // Counts at their limits.
    let handle = CircuitBreakerLayer::new()
        .failure_threshold(u32::MAX)
        .success_threshold(u32::MAX)
        .minimum_calls(u32::MAX)
        .failure_rate(1.0, Window::Calls(u32::MAX))
        .when_open(WhenOpen::NotReady)
        .handle();
    for _ in 0..1_000 {
        handle.try_acquire().unwrap().failure();
    }
    assert_eq!(
        (handle.state(), handle.snapshot().streak),
        (State::Closed, 1_000)
    );
    handle.try_acquire().unwrap().record(Failure::fatal());
    pass(secs(30)).await;
    for _ in 0..1_000 {
        handle.try_acquire().unwrap().success();
    }
    assert_eq!(handle.state(), State::HalfOpen);
    assert_eq!(handle.snapshot().last_failure, Some(FailureKind::Fatal));
}
