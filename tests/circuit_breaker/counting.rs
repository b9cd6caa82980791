//! Proves what counts towards a trip: streaks, classifiers, rates and slow calls.

use std::time::Duration;

use tower::{BoxError, Layer, ServiceExt};
use tower_breaker::{
    CircuitBreakerLayer, Classify, ErrorsAsFailures, Failure, FailureKind, Outcome, Reason, State,
    Window,
};

use crate::fail;
use crate::support::events::Recorder;
use crate::support::tool::{Answer, Ask, Fault, Reply, Tool, ask, by_status, status, trip};
use crate::support::{NS, pass, refused, secs};

/// Case 14.
#[tokio::test(start_paused = true)]
async fn consecutive_means_consecutive() {
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

/// Case 6.
#[tokio::test(start_paused = true)]
async fn neutral_results_neither_raise_nor_reset_a_streak() {
    for threshold in [2, 3, 10] {
        for neutrals in [1, 5, 100] {
            let layer = CircuitBreakerLayer::new()
                .failure_threshold(threshold)
                .classify(by_status);
            let handle = layer.handle();
            let mut service = layer.layer(Tool::new());
            for failures in 1..threshold {
                ask(&mut service, Ask::fail()).await.unwrap_err();
                for _ in 0..neutrals {
                    ask(&mut service, Ask::neutral()).await.unwrap_err();
                }
                assert_eq!(
                    (handle.state(), handle.snapshot().streak),
                    (State::Closed, failures)
                );
            }
            ask(&mut service, Ask::fail()).await.unwrap_err();
            assert_eq!(handle.state(), State::Open);
        }
    }
}

// ===== classifiers =====

#[allow(clippy::unnecessary_wraps)] // It is an answer.
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

/// Case 18: the classifier may be a type, and sees errors too.
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
async fn the_callers_own_mistakes_do_not_trip_the_circuit() {
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

// ===== failure rate =====

/// Every other call fails: half of all calls, and never two in a row.
#[tokio::test(start_paused = true)]
async fn a_failure_rate_trips_without_a_streak() {
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

/// Counts are exact, also for fractions that no float holds exactly: 7 % of 100 calls is 7
/// failures.
#[test]
fn a_failure_rate_is_met_by_exactly_its_share_of_the_calls() {
    for calls in [1, 3, 7, 20, 25, 50, 100, 365] {
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
            fail(&handle, failures - 1);
            assert_eq!(handle.state(), State::Closed, "{failures} of {calls}");
            fail(&handle, 1);
            assert_eq!(handle.state(), State::Open, "{failures} of {calls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_of_calls_holds_only_the_last_calls() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .failure_rate(0.5, Window::Calls(20))
        .minimum_calls(20);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..1_000 {
        ask(&mut service, Ask::ok()).await.unwrap();
    }
    // Ten of the last twenty.
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
    // The window forgets them after a minute. The next three calls are not yet enough, the fourth
    // is.
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
async fn the_window_holds_no_neutral_results_and_a_recovery_empties_it() {
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

/// Either rule trips.
#[tokio::test(start_paused = true)]
async fn a_streak_trips_also_where_a_rate_is_set() {
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
        // By hand the edge is exact.
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
        // A result that is no success keeps its meaning, however long it took.
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
