//! A turn of the primary ends, on time or late.

use std::time::Duration;

use super::super::driver::{Driver, PRIMARY, PROBE, rate_limited};
use super::super::event::PendingEvent;
use crate::vocabulary::{Failure, FailureKind, FallbackState, Outcome, Recorded, TransitionReason};

#[test]
fn primary_success_zeroes_the_consecutive_failures() {
    let mut driver = Driver::new();
    for _ in 0..1000 {
        driver.fails(PRIMARY);
        driver.fails(PRIMARY);
        assert_eq!(driver.snapshot().consecutive_failures, 2);
        assert_eq!(driver.succeeds(PRIMARY), Recorded::Applied);
        assert_eq!(driver.snapshot().consecutive_failures, 0);
    }
    assert_eq!(driver.state(), FallbackState::Primary);
    assert!(!driver.snapshot().fallback_activated);
}

#[test]
fn primary_failure_trips_at_the_threshold() {
    let mut driver = Driver::new();
    driver.at(5);
    assert_eq!(driver.fails(PRIMARY), Recorded::Applied);
    driver.fails(PRIMARY);
    assert_eq!(driver.state(), FallbackState::Primary);
    assert_eq!(driver.events(), []);
    driver.fails(PRIMARY);
    let snapshot = driver.snapshot();
    assert_eq!(snapshot.state, FallbackState::Fallback);
    assert!(snapshot.fallback_activated);
    assert!(!snapshot.due);
    assert_eq!(
        (snapshot.consecutive_failures, snapshot.probe_successes),
        (0, 0)
    );
    assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(60)));
    assert_eq!(snapshot.trips, 1);
    assert_eq!(snapshot.last_failure, Some(FailureKind::Transient));
    assert_eq!(
        driver.events(),
        [PendingEvent::Transition {
            from: FallbackState::Primary,
            to: FallbackState::Fallback,
            reason: TransitionReason::FailureThreshold,
            generation: 1,
            first: Some(0),
        }]
    );
}

#[test]
fn primary_fatal_failure_trips_at_once() {
    let mut driver = Driver::new();
    driver.turn(PRIMARY, Failure::fatal());
    assert_eq!(
        driver.transitions(),
        [(
            FallbackState::Primary,
            FallbackState::Fallback,
            TransitionReason::FatalFailure
        )]
    );
    assert_eq!(driver.snapshot().last_failure, Some(FailureKind::Fatal));
}

#[test]
fn primary_rate_limit_counts_as_one_failure() {
    let mut driver = Driver::new();
    driver.turn(PRIMARY, Failure::rate_limited());
    assert_eq!(driver.state(), FallbackState::Primary);
    assert_eq!(driver.snapshot().consecutive_failures, 1);
}

#[test]
fn primary_neutral_neither_raises_nor_resets_the_streak() {
    let mut driver = Driver::new();
    driver.fails(PRIMARY);
    driver.fails(PRIMARY);
    for _ in 0..5 {
        driver.turn(PRIMARY, Outcome::Neutral);
        assert_eq!(driver.snapshot().consecutive_failures, 2);
    }
    driver.fails(PRIMARY);
    assert_eq!(driver.state(), FallbackState::Fallback);
}

#[test]
fn primary_failure_hints_of_one_streak_are_all_kept_and_the_later_deadline_wins() {
    let mut driver = Driver::new();
    driver.turn(PRIMARY, rate_limited(200));
    driver.turn(PRIMARY, rate_limited(1));
    driver.at(10);
    driver.fails(PRIMARY);
    assert_eq!(driver.until_probe(), Some(190));

    let mut ended = Driver::new();
    ended.turn(PRIMARY, rate_limited(200));
    ended.succeeds(PRIMARY);
    ended.trip();
    assert_eq!(ended.until_probe(), Some(60));

    let mut probing = Driver::with(|rules| rules.probation_limit = Some(2));
    probing.trip().at(60);
    let hint = Failure::transient().with_retry_after(Duration::from_secs(200));
    probing.turn(PROBE, hint);
    probing.fails(PROBE);
    assert_eq!(probing.until_probe(), Some(200));
}

#[test]
fn fallback_stale_failure_of_the_primary_restarts_the_cooldown_and_a_success_does_not() {
    let mut driver = Driver::new();
    let late = [
        driver.served_by(PRIMARY),
        driver.served_by(PRIMARY),
        driver.served_by(PRIMARY),
    ];
    driver.trip().at(20);
    assert_eq!(driver.record(late[0], Outcome::Success), Recorded::Stale);
    assert_eq!(driver.until_probe(), Some(40));
    assert_eq!(
        driver.record(late[1], Failure::transient()),
        Recorded::Stale
    );
    assert_eq!(driver.until_probe(), Some(60));
    driver.record(late[2], rate_limited(90));
    assert_eq!(driver.until_probe(), Some(90));
    assert_eq!(
        driver.snapshot().last_failure,
        Some(FailureKind::RateLimited)
    );
    assert_eq!(driver.strikes(), [0, 0]);
    assert_eq!(driver.transitions().len(), 1);
}

#[test]
fn any_other_stale_result_of_the_primary_changes_nothing() {
    let mut driver = Driver::new();
    let old = [
        driver.served_by(PRIMARY),
        driver.served_by(PRIMARY),
        driver.served_by(PRIMARY),
    ];
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    let before = driver.snapshot();
    assert_eq!(driver.record(old[0], Failure::fatal()), Recorded::Stale);
    assert_eq!(driver.record(old[1], Outcome::Success), Recorded::Stale);
    assert_eq!(driver.snapshot(), before);
    driver.record(probe, Outcome::Success);
    driver.succeeds(PROBE);
    let before = driver.snapshot();
    assert_eq!(driver.record(old[2], Failure::fatal()), Recorded::Stale);
    assert_eq!(driver.snapshot(), before);
}
