//! The probe ends.

use std::time::Duration;

use super::super::driver::{A, B, Driver, PRIMARY, PROBE, rate_limited};
use super::super::event::PendingEvent;
use crate::vocabulary::{Failure, FallbackState, Outcome, TransitionReason};

#[test]
fn recovering_probe_success_counts_and_at_the_number_needed_everything_is_zeroed() {
    let mut driver = Driver::new();
    driver.trip();
    driver.fails(A);
    driver.fails(A);
    driver.fails(B);
    driver.at(60);
    driver.succeeds(PROBE);
    assert_eq!(driver.state(), FallbackState::Recovering);
    assert_eq!(driver.strikes(), [2, 1]);
    driver.events();
    driver.succeeds(PROBE);
    let snapshot = driver.snapshot();
    assert_eq!(snapshot.state, FallbackState::Primary);
    assert_eq!(snapshot.probe_successes, 0);
    assert_eq!(snapshot.time_until_probe, None);
    assert!(snapshot.fallback_activated, "for good");
    assert_eq!(driver.strikes(), [0, 0]);
    assert_eq!(
        driver.transitions(),
        [(
            FallbackState::Recovering,
            FallbackState::Primary,
            TransitionReason::ProbeSucceeded
        )]
    );
    driver.fails(PRIMARY);
    driver.fails(PRIMARY);
    assert_eq!(driver.state(), FallbackState::Primary);
}

#[test]
fn recovering_rate_limited_probe_trips_at_once_with_a_new_cooldown() {
    for failure in [Failure::rate_limited(), Failure::fatal()] {
        let mut driver = Driver::new();
        driver.trip().at(60);
        driver.succeeds(PROBE);
        driver.at(70);
        driver.events();
        driver.turn(PROBE, failure);
        let snapshot = driver.snapshot();
        assert_eq!(snapshot.state, FallbackState::Fallback);
        assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(60)));
        assert_eq!((snapshot.probe_successes, snapshot.trips), (0, 2));
        assert_eq!(
            driver.events().pop(),
            Some(PendingEvent::Transition {
                from: FallbackState::Recovering,
                to: FallbackState::Fallback,
                reason: TransitionReason::ProbeFailed,
                generation: 3,
                first: Some(0),
            })
        );
    }
}

#[test]
fn recovering_rate_limited_probe_hint_lengthens_the_cooldown_within_the_cap() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    driver.turn(PROBE, rate_limited(100));
    assert_eq!(driver.until_probe(), Some(100));
    driver.at(160);
    driver.turn(PROBE, rate_limited(u64::MAX));
    assert_eq!(driver.until_probe(), Some(300));
    driver.at(460);
    driver.turn(PROBE, rate_limited(1));
    assert_eq!(driver.until_probe(), Some(60));
}

#[test]
fn recovering_transient_probe_failure_zeroes_the_success_count_and_stays() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    driver.succeeds(PROBE);
    assert_eq!(driver.snapshot().probe_successes, 1);
    driver.fails(PROBE);
    let snapshot = driver.snapshot();
    assert_eq!(snapshot.state, FallbackState::Recovering);
    assert_eq!((snapshot.probe_successes, snapshot.probe_failures), (0, 1));
    assert_eq!(snapshot.time_until_probe, Some(Duration::ZERO));
    for _ in 0..100 {
        driver.fails(PROBE);
    }
    driver.succeeds(PROBE);
    assert_eq!(driver.state(), FallbackState::Recovering);
    assert_eq!(driver.snapshot().probe_failures, 0);
    driver.succeeds(PROBE);
    assert_eq!(driver.state(), FallbackState::Primary);
}

#[test]
fn recovering_probation_limit_trips_at_that_many_transient_failures_in_a_row() {
    let mut driver = Driver::with(|rules| rules.probation_limit = Some(3));
    driver.trip().at(60);
    driver.fails(PROBE);
    driver.fails(PROBE);
    driver.succeeds(PROBE);
    driver.fails(PROBE);
    driver.turn(PROBE, Outcome::Neutral);
    driver.fails(PROBE);
    assert_eq!(driver.state(), FallbackState::Recovering);
    driver.at(61);
    driver.fails(PROBE);
    assert_eq!(driver.state(), FallbackState::Fallback);
    assert_eq!(driver.until_probe(), Some(60));
    assert_eq!(driver.snapshot().probe_failures, 0);
    driver.at(121);
    driver.fails(PROBE);
    assert_eq!(driver.state(), FallbackState::Recovering, "counts anew");
}

#[test]
fn recovering_neutral_probe_frees_the_slot() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    driver.succeeds(PROBE);
    driver.turn(PROBE, Outcome::Neutral);
    assert_eq!(driver.snapshot().probe_successes, 1);
    driver.served_by(PROBE);
}
