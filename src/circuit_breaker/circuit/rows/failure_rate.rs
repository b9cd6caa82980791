//! The failure rate.

use super::{NS, retry_after, rules_with, secs, transition};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{PendingEvent, Rate, Window};
use crate::vocabulary::{Failure, Outcome, State, TransitionReason};

fn with_rate(fraction: f64, window: Window, minimum: u32) -> Driver {
    Driver::new(rules_with(|rules| {
        rules.failure_threshold = u32::MAX;
        rules.rate = Some(Rate { fraction, window });
        rules.minimum_calls = minimum;
    }))
}

#[test]
fn failure_rate_counts_once_the_window_holds_the_minimum_of_calls() {
    let mut driver = with_rate(0.5, Window::Calls(20), 10);
    for _ in 0..9 {
        driver.fail();
        assert_eq!(driver.state(), State::Closed);
    }
    driver.events();
    driver.fail();
    assert_eq!(driver.state(), State::Open);
    let (closed, open) = (State::Closed, State::Open);
    let tripped = transition(closed, open, TransitionReason::FailureRate, 1);
    assert_eq!(driver.events(), [tripped]);
}

#[test]
fn failure_rate_trips_by_a_success_that_completes_the_minimum() {
    let mut driver = with_rate(0.5, Window::Calls(20), 4);
    driver.call(retry_after(secs(100)));
    driver.fail();
    driver.succeed();
    assert_eq!(driver.state(), State::Closed);
    driver.at(secs(1)).succeed();
    let snapshot = driver.snapshot();
    assert_eq!((snapshot.state, snapshot.streak), (State::Open, 0));
    driver.assert_open_until(secs(31));
}

#[test]
fn failure_rate_is_reached_at_its_fraction_exactly() {
    for (failures, trips) in [(2, false), (3, true), (4, true)] {
        let mut driver = with_rate(0.3, Window::Calls(10), 10);
        for n in 0..10 {
            let failed = n < failures;
            let failure = Failure::transient().into();
            driver.call(if failed { failure } else { Outcome::Success });
        }
        assert_eq!(driver.state() == State::Open, trips, "{failures} of 10");
    }
}

#[test]
fn failure_rate_forgets_the_calls_that_left_the_window() {
    let mut driver = with_rate(0.5, Window::Calls(4), 4);
    for _ in 0..100 {
        driver.fail();
        for _ in 0..3 {
            driver.succeed();
        }
    }
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(
        driver.state(),
        State::Closed,
        "the call that it replaced failed too"
    );
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_over_a_window_smaller_than_the_minimum_needs_a_full_window() {
    let mut driver = with_rate(0.5, Window::Calls(3), 10);
    driver.fail();
    driver.fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_over_a_time_forgets_older_calls() {
    let mut driver = with_rate(0.5, Window::Time(secs(60)), 3);
    driver.fail();
    driver.fail();
    driver.at(secs(60)).fail();
    assert_eq!(driver.state(), State::Closed);
    driver.at(secs(119)).fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_over_a_time_needs_the_minimum_however_short_the_window() {
    let mut driver = with_rate(0.5, Window::Time(NS), 3);
    driver.fail();
    driver.fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_starts_with_an_empty_window_after_a_close() {
    let mut driver = with_rate(0.5, Window::Calls(4), 4);
    driver.trip();
    driver.at(secs(30)).succeed();
    for _ in 0..3 {
        driver.fail();
        assert_eq!(driver.state(), State::Closed);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_and_threshold_at_once_trip_by_the_threshold() {
    let mut driver = with_rate(0.5, Window::Calls(4), 4);
    driver.rules.failure_threshold = 4;
    driver.trip();
    let reasons = |events: Vec<PendingEvent>| match events[..] {
        [PendingEvent::Transition { reason, .. }] => reason,
        _ => unreachable!("{events:?}"),
    };
    let reason = TransitionReason::FailureThreshold;
    assert_eq!(reasons(driver.events()), reason);
}

#[test]
fn failure_rate_never_trips_without_a_failure() {
    let mut driver = with_rate(f64::MIN_POSITIVE, Window::Calls(2), 1);
    for _ in 0..10 {
        driver.succeed();
    }
    assert_eq!(driver.state(), State::Closed);
}
