//! The rows of the closed circuit, and neutral results.

use super::{retry_after, rules_with, secs, transition};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Rate, Window};
use crate::machinery::event_queue::EventQueue;
use crate::vocabulary::{Failure, FailureKind, Outcome, Reason, Recorded, State, TransitionReason};

#[test]
fn closed_success_sets_the_streak_to_zero() {
    let mut driver = Driver::defaults();
    for _ in 0..1_000 {
        driver.fail();
        driver.fail();
        assert_eq!(driver.snapshot().streak, 2);
        driver.succeed();
        assert_eq!(driver.snapshot().streak, 0);
    }
    assert_eq!(driver.state(), State::Closed);
    assert_eq!(driver.events(), []);
    assert_eq!(driver.snapshot().trips, 0);
    assert_eq!(
        driver.snapshot().last_failure,
        Some(FailureKind::Transient),
        "a success does not clear it"
    );
}

#[test]
fn closed_success_a_million_times_forgives_no_later_failure() {
    let mut driver = Driver::defaults();
    let ticket = driver.try_acquire().unwrap();
    for _ in 0..1_000_000 {
        let mut events = EventQueue::default();
        let (rules, now) = (&driver.rules, driver.now);
        let circuit = &mut driver.circuit;
        circuit.record(rules, now, ticket, Outcome::Success, &mut events);
    }
    driver.fail();
    driver.fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn closed_failure_at_the_threshold_opens_and_the_cooldown_counts_from_now() {
    for threshold in [1, 2, 3, 7] {
        let mut driver = Driver::new(rules_with(|rules| rules.failure_threshold = threshold));
        for streak in 0..threshold {
            assert_eq!(driver.state(), State::Closed);
            assert_eq!(driver.snapshot().streak, streak);
            driver.at(secs(100 + u64::from(streak))).fail();
        }
        let tripped_at = secs(100 + u64::from(threshold) - 1);
        assert_eq!(driver.state(), State::Open);
        assert_eq!(driver.snapshot().streak, threshold);
        assert_eq!(driver.snapshot().trips, 1);
        driver.assert_refused(Reason::CircuitOpen, secs(30));
        driver.assert_open_until(tripped_at + secs(30));
        let (closed, open) = (State::Closed, State::Open);
        let tripped = transition(closed, open, TransitionReason::FailureThreshold, 1);
        assert_eq!(driver.events(), [tripped]);
    }
}

#[test]
fn closed_failure_that_is_fatal_trips_at_once() {
    let mut driver = Driver::new(rules_with(|rules| rules.failure_threshold = u32::MAX));
    driver.at(secs(5));
    assert_eq!(driver.call(Failure::fatal()), Recorded::Applied);
    driver.assert_open_until(secs(35));
    let last = driver.try_acquire().unwrap_err().last;
    assert_eq!(last, Some(FailureKind::Fatal));
    assert_eq!(driver.snapshot().streak, 1);
    let (closed, open) = (State::Closed, State::Open);
    let tripped = transition(closed, open, TransitionReason::FatalFailure, 1);
    assert_eq!(driver.events(), [tripped]);
}

#[test]
fn closed_failure_that_is_fatal_and_reaches_the_threshold_trips_as_fatal() {
    let mut driver = Driver::new(rules_with(|rules| rules.failure_threshold = 1));
    driver.call(Failure::fatal());
    let (closed, open) = (State::Closed, State::Open);
    let tripped = transition(closed, open, TransitionReason::FatalFailure, 1);
    assert_eq!(driver.events(), [tripped]);
}

#[test]
fn closed_result_from_an_older_generation_is_stale_and_changes_nothing() {
    let mut driver = Driver::defaults();
    let old = [(); 5].map(|()| driver.try_acquire().unwrap());
    driver.trip();
    driver.at(secs(30)).succeed();
    driver.fail();
    let before = (driver.synced(), driver.events());
    let hint = retry_after(secs(60));
    let outcomes = [
        Outcome::Success,
        Failure::transient().into(),
        Failure::fatal().into(),
        hint.into(),
        Outcome::Neutral,
    ];
    for (ticket, outcome) in old.into_iter().zip(outcomes) {
        assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
        assert_eq!(driver.synced(), before.0);
    }
    assert_eq!(driver.events(), []);
    assert_eq!(driver.snapshot().streak, 1);
}

#[test]
fn neutral_results_neither_raise_nor_end_a_streak() {
    // Case 6.
    let mut driver = Driver::defaults();
    driver.fail();
    driver.fail();
    for _ in 0..5 {
        driver.call(Outcome::Neutral);
        assert_eq!(driver.snapshot().streak, 2);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn neutral_results_keep_the_retry_deadline_and_are_not_counted_in_the_window() {
    let mut driver = Driver::new(rules_with(|rules| {
        rules.minimum_calls = 3;
        rules.failure_threshold = 100;
        let window = Window::Calls(10);
        let fraction = 0.5;
        rules.rate = Some(Rate { fraction, window });
    }));
    driver.call(retry_after(secs(100)));
    for _ in 0..10 {
        driver.call(Outcome::Neutral);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Closed, "two of three");
    driver.fail();
    driver.assert_open_until(secs(100));
}
