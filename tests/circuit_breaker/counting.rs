//! The results that count towards a trip: streaks, classifiers, rates, slow calls.

use std::time::Duration;

use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_breaker::{
    BoxError, Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Classify, ErrorsAsFailures,
    Failure, FailureKind, Outcome, Reason, State, Window,
};

use crate::support::{
    Answer, Ask, Fault, NS, Recorder, Reply, Tool, ask, by_status, pass, refused, secs, status,
    trip,
};

/// Case 14.
#[tokio::test(start_paused = true)]
async fn a_success_ends_the_streak() {
    for threshold in [2, 3, 5] {
        let layer = CircuitBreakerLayer::new().failure_threshold(threshold);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        for _ in 0..1_000 {
            for _ in 1..threshold {
                ask(&mut service, Ask::fail()).await.unwrap_err();
            }
            ask(&mut service, Ask::ok()).await.unwrap();
        }
        let snapshot = handle.snapshot();
        assert_eq!(
            (snapshot.state, snapshot.streak, snapshot.trips),
            (State::Closed, 0, 0)
        );
    }
}

/// Case 14.
#[tokio::test(start_paused = true)]
async fn a_million_successes_allow_no_extra_failure() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    for _ in 0..1_000_000 {
        handle.try_acquire().unwrap().success();
    }
    let tool = Tool::new();
    let mut service = layer.layer(tool.clone());
    trip(&mut service).await;
    assert_eq!(handle.state(), State::Open);
    refused(ask(&mut service, Ask::ok()).await);
    assert_eq!(tool.calls(), 3);
}

/// Case 14, for other thresholds.
#[tokio::test(start_paused = true)]
async fn the_threshold_is_exact() {
    for threshold in [1, 2, 3, 4, 100] {
        let tool = Tool::new();
        let layer = CircuitBreakerLayer::new().failure_threshold(threshold);
        let handle = layer.handle();
        let mut service = layer.layer(tool.clone());
        for streak in 0..threshold {
            assert_eq!(
                (handle.state(), handle.snapshot().streak),
                (State::Closed, streak)
            );
            ask(&mut service, Ask::fail()).await.unwrap_err();
        }
        assert_eq!(handle.state(), State::Open);
        refused(ask(&mut service, Ask::ok()).await);
        assert_eq!(tool.calls(), threshold as usize);
    }
}

#[allow(clippy::unnecessary_wraps)] // The type of an answer.
fn flagged() -> Answer {
    Ok(Reply {
        by: String::new(),
        is_error: true,
    })
}

/// Case 18.
#[tokio::test(start_paused = true)]
async fn an_error_inside_a_success_counts_where_the_classifier_says_so() {
    let plain = CircuitBreakerLayer::new();
    let handle = plain.handle();
    let mut service = plain.layer(Tool::new());
    for _ in 0..100 {
        assert!(
            ask(&mut service, Ask::answer(flagged()))
                .await
                .unwrap()
                .is_error
        );
    }
    assert_eq!(
        (handle.state(), handle.snapshot().streak),
        (State::Closed, 0)
    );

    let looking =
        CircuitBreakerLayer::new()
            .name("search")
            .classify(|result: Result<&Reply, &Fault>| match result {
                Ok(reply) if reply.is_error => Failure::transient().into(),
                other => ErrorsAsFailures.classify(other),
            });
    let mut service = looking.layer(Tool::new());
    for _ in 0..3 {
        let reply = ask(&mut service, Ask::answer(flagged())).await.unwrap();
        assert!(reply.is_error, "the answer is handed on as it is");
    }
    let refusal = refused(ask(&mut service, Ask::ok()).await);
    assert_eq!(
        refusal.to_string(),
        "tool `search` temporarily unavailable: circuit breaker open"
    );
    assert_eq!(
        (refusal.reason(), refusal.last_failure()),
        (Reason::CircuitOpen, Some(FailureKind::Transient))
    );
}

/// Case 18: a classifier may be a type that implements the trait. It sees errors too.
#[tokio::test(start_paused = true)]
async fn a_classifier_may_call_an_error_a_success() {
    #[derive(Clone)]
    struct NothingFails;
    impl<T, E> Classify<T, E> for NothingFails {
        fn classify(&self, _: Result<&T, &E>) -> Outcome {
            Outcome::Success
        }
    }
    let layer = CircuitBreakerLayer::new().classify(NothingFails);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..10 {
        ask(&mut service, Ask::fail()).await.unwrap_err();
    }
    assert_eq!(handle.state(), State::Closed);
}

/// Case 19.
#[tokio::test(start_paused = true)]
async fn the_callers_own_mistakes_trip_nothing() {
    let layer = CircuitBreakerLayer::new().classify(by_status);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..100 {
        ask(&mut service, Ask::answer(status(401)))
            .await
            .unwrap_err();
    }
    let snapshot = handle.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.streak, snapshot.last_failure),
        (State::Closed, 0, None)
    );
    for _ in 0..3 {
        ask(&mut service, Ask::answer(status(503)))
            .await
            .unwrap_err();
    }
    assert_eq!(handle.state(), State::Open);
}

/// A fatal failure trips at once, whatever the threshold.
#[tokio::test(start_paused = true)]
async fn a_fatal_failure_trips_at_once() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .classify(by_status)
        .observe(told.clone());
    let mut service = layer.layer(Tool::new());
    ask(&mut service, Ask::answer(status(402)))
        .await
        .unwrap_err();
    let refusal = refused(ask(&mut service, Ask::ok()).await);
    assert_eq!(refusal.last_failure(), Some(FailureKind::Fatal));
    assert_eq!(told.take()[0], "closed -> open (fatal_failure) #1");
}

/// Case 22.
#[tokio::test(start_paused = true)]
async fn calls_that_a_timeout_outside_drops_count_if_they_ran_long_enough() {
    for (timeout, least, state) in [
        (10, 5, State::Open),
        (5, 5, State::Open),
        (1, 5, State::Closed),
        (4, 5, State::Closed),
    ] {
        let tool = Tool::new();
        let layer = CircuitBreakerLayer::new().on_cancel(Cancelled::FailureAfter(secs(least)));
        let handle = layer.handle();
        let mut service = ServiceBuilder::new()
            .timeout(secs(timeout))
            .layer(layer)
            .service(tool.clone());
        for _ in 0..3 {
            let err = ask(&mut service, Ask::slow(secs(60))).await.unwrap_err();
            assert!(err.is::<tower::timeout::error::Elapsed>());
        }
        assert_eq!(handle.state(), state, "dropped at {timeout} s");
        assert_eq!(tool.running(), 0);
        assert_eq!(
            ask(&mut service, Ask::ok()).await.is_err(),
            state == State::Open
        );
    }
}

/// Case 22: inside, an elapsed timeout is an error like any other.
#[tokio::test(start_paused = true)]
async fn a_timeout_inside_is_a_failure() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .timeout(secs(1))
        .service(Tool::new());
    for _ in 0..3 {
        ask(&mut service, Ask::slow(secs(60))).await.unwrap_err();
    }
    assert_eq!(handle.state(), State::Open);
}

// ===== failure rate =====

/// Every other call fails, so the rate is one half, and there is no streak.
#[tokio::test(start_paused = true)]
async fn a_failure_rate_trips_where_no_streak_does() {
    for (fraction, minimum, calls) in [
        (0.5, 10, 10),
        (0.5, 4, 4),
        (0.5, 20, 20),
        (0.5, 1_000, 20),
        (0.6, 10, 0),
    ] {
        let told = Recorder::new();
        let layer = CircuitBreakerLayer::new()
            .failure_rate(fraction, Window::Calls(20))
            .minimum_calls(minimum)
            .observe(told.clone());
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let mut done = 0;
        for call in 1..=100 {
            let fails = call % 2 == 0;
            let _ = ask(&mut service, if fails { Ask::fail() } else { Ask::ok() }).await;
            if handle.state() == State::Open {
                done = call;
                break;
            }
        }
        assert_eq!(done, calls, "{fraction} of at least {minimum}");
        if calls > 0 {
            assert_eq!(told.take(), ["closed -> open (failure_rate) #1"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_of_calls_holds_the_last_ones_only() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .failure_rate(0.5, Window::Calls(20))
        .minimum_calls(20);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..1_000 {
        ask(&mut service, Ask::ok()).await.unwrap();
    }
    // The tenth failure makes ten of the last twenty calls.
    for failed in 1..=10 {
        assert_eq!(handle.state(), State::Closed, "{failed}");
        ask(&mut service, Ask::fail()).await.unwrap_err();
    }
    assert_eq!(handle.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_window_of_time_slides() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .failure_rate(0.5, Window::Time(secs(60)))
        .minimum_calls(4);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..3 {
        ask(&mut service, Ask::fail()).await.unwrap_err();
    }
    // The window forgets them after a minute. The next three calls are too few, and the fourth
    // completes the minimum.
    pass(secs(60)).await;
    for _ in 0..3 {
        assert_eq!(handle.state(), State::Closed);
        ask(&mut service, Ask::fail()).await.unwrap_err();
    }
    pass(secs(53)).await;
    assert_eq!(handle.state(), State::Closed);
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(
        handle.state(),
        State::Open,
        "three of four, though the last one is good"
    );
}

#[tokio::test(start_paused = true)]
async fn neutral_results_are_not_in_the_window_and_a_recovery_empties_it() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .failure_rate(0.5, Window::Calls(10))
        .classify(by_status);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..2 {
        for failed in 0..10 {
            assert_eq!(handle.state(), State::Closed, "after {failed}");
            for _ in 0..5 {
                ask(&mut service, Ask::neutral()).await.unwrap_err();
            }
            ask(&mut service, Ask::fail()).await.unwrap_err();
        }
        assert_eq!(handle.state(), State::Open);
        pass(secs(30)).await;
        ask(&mut service, Ask::ok()).await.unwrap();
        assert_eq!(handle.state(), State::Closed);
    }
}

/// Either rule trips the circuit.
#[tokio::test(start_paused = true)]
async fn the_streak_counts_beside_the_rate() {
    let layer = CircuitBreakerLayer::new().failure_rate(1.0, Window::Calls(100));
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..50 {
        ask(&mut service, Ask::ok()).await.unwrap();
    }
    trip(&mut service).await;
    assert_eq!(handle.state(), State::Open);
}

// ===== slow calls =====

#[tokio::test(start_paused = true)]
async fn a_success_that_took_too_long_is_a_failure() {
    for (took, streak) in [
        (secs(2) - Duration::from_millis(1), 0),
        (secs(2), 1),
        (secs(60), 1),
    ] {
        let layer = CircuitBreakerLayer::new()
            .slow_call(secs(2))
            .classify(by_status);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        ask(&mut service, Ask::slow(took)).await.unwrap();
        assert_eq!(handle.snapshot().streak, streak, "{took:?}");
        // A permit taken by hand meets the limit to the nanosecond.
        handle.reset();
        let permit = handle.try_acquire().unwrap();
        pass(secs(2) - NS).await;
        permit.success();
        assert_eq!(handle.snapshot().streak, 0);
        let permit = handle.try_acquire().unwrap();
        pass(secs(2)).await;
        permit.success();
        assert_eq!(handle.snapshot().streak, 1);
        assert_eq!(handle.snapshot().last_failure, Some(FailureKind::Transient));
        // Only a success can become a slow call. Other outcomes stay as they are.
        let permit = handle.try_acquire().unwrap();
        pass(secs(60)).await;
        permit.record(Outcome::Neutral);
        assert_eq!(handle.snapshot().streak, 1);
        let permit = handle.try_acquire().unwrap();
        pass(secs(60)).await;
        permit.record(Failure::rate_limited());
        assert_eq!(
            handle.snapshot().last_failure,
            Some(FailureKind::RateLimited)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_probe_opens_again() {
    let layer = CircuitBreakerLayer::new().slow_call(secs(2));
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..3 {
        let reply: Result<Reply, BoxError> = ask(&mut service, Ask::slow(secs(3))).await;
        assert!(reply.is_ok(), "its caller gets the answer");
    }
    assert_eq!(handle.state(), State::Open);
    pass(secs(30)).await;
    ask(&mut service, Ask::slow(secs(3))).await.unwrap();
    assert_eq!(
        (handle.state(), handle.snapshot().time_left),
        (State::Open, Some(secs(30)))
    );
    pass(secs(30)).await;
    service.ready().await.unwrap();
    ask(&mut service, Ask::slow(secs(1))).await.unwrap();
    assert_eq!(handle.state(), State::Closed);
}

fn fail_times(handle: &CircuitBreakerHandle, times: u32) {
    for _ in 0..times {
        handle.try_acquire().unwrap().failure();
    }
}

fn fail_once(handle: &CircuitBreakerHandle) {
    handle.try_acquire().unwrap().failure();
}

fn succeed_once(handle: &CircuitBreakerHandle) {
    handle.try_acquire().unwrap().success();
}

/// Counts are exact: the circuit trips at the failure that reaches the fraction, even if a float
/// cannot hold the fraction.
#[test]
fn a_failure_rate_is_reached_at_its_exact_count_in_any_window() {
    for calls in [1, 3, 7, 20, 50, 100, 365] {
        for failures in 1..=calls {
            let fraction = f64::from(failures) / f64::from(calls);
            let handle = CircuitBreakerLayer::new()
                .failure_threshold(u32::MAX)
                .failure_rate(fraction, Window::Calls(calls))
                .minimum_calls(calls)
                .handle();
            for _ in failures..calls {
                handle.try_acquire().unwrap().success();
            }
            fail_times(&handle, failures - 1);
            assert_eq!(handle.state(), State::Closed, "{failures} of {calls}");
            fail_times(&handle, 1);
            assert_eq!(handle.state(), State::Open, "{failures} of {calls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_success_counts_in_the_window_too() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .slow_call(secs(2))
        .failure_rate(0.5, Window::Calls(4))
        .observe(told.clone());
    let mut service = layer.layer(Tool::new());
    for took in [1, 2, 1, 2] {
        assert_eq!(layer.handle().state(), State::Closed);
        ask(&mut service, Ask::slow(secs(took))).await.unwrap();
    }
    assert_eq!(told.take(), ["closed -> open (failure_rate) #1"]);
}

/// No float holds this fraction exactly, and the count is right all the same: 7 % of 100 calls are
/// 7 failures, though 0.07 × 100 is more than 7.
#[test]
fn a_failure_rate_is_reached_by_exactly_its_fraction_of_the_calls() {
    for (percent, calls) in [(7, 100), (14, 50), (28, 25), (55, 100), (56, 100)] {
        let failures = percent * calls / 100;
        let handle = CircuitBreakerLayer::new()
            .failure_threshold(u32::MAX)
            .failure_rate(f64::from(percent) / 100.0, Window::Calls(calls))
            .minimum_calls(calls)
            .handle();
        for _ in 0..calls - failures {
            succeed_once(&handle);
        }
        for _ in 0..failures - 1 {
            fail_once(&handle);
        }
        assert_eq!(handle.state(), State::Closed, "{percent} % of {calls}");
        fail_once(&handle);
        assert_eq!(handle.state(), State::Open, "{percent} % of {calls}");
    }
}
