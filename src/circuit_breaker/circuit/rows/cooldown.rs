//! Back-off and jitter.

use std::time::Duration;

use super::{retry_after, rules_with, secs};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Backoff, Ticket};
use crate::vocabulary::{Failure, Reason};

#[test]
fn backoff_doubles_the_cooldown_up_to_its_max_and_starts_anew_after_a_close() {
    // Case 15.
    let mut driver = Driver::new(rules_with(|rules| {
        rules.recovery_duration = secs(1);
        let (factor, max) = (2.0, secs(60));
        rules.backoff = Some(Backoff { factor, max });
    }));
    let mut now = secs(0);
    driver.trip();
    for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60, 60] {
        driver.assert_open_until(now + secs(wait));
        now += secs(wait);
        driver.at(now).fail();
    }
    assert_eq!(driver.snapshot().trips, 11);
    driver.at(now + secs(60)).succeed();
    driver.trip();
    driver.assert_open_until(now + secs(61));
}

#[test]
fn backoff_grows_after_a_lease_that_is_over_but_not_after_a_stale_failure() {
    let mut driver = Driver::new(rules_with(|rules| {
        let (factor, max) = (1.5, Duration::MAX);
        rules.backoff = Some(Backoff { factor, max });
    }));
    let late = driver.try_acquire().unwrap();
    driver.trip();
    driver.at(secs(10)).record(late, Failure::transient());
    driver.assert_open_until(secs(40));
    driver.at(secs(40)).try_acquire().expect("the probe");
    driver.at(secs(70)).assert_open_until(secs(70 + 45));
    driver.at(secs(115)).fail();
    let left = driver.snapshot().time_left;
    assert_eq!(left, Some(Duration::from_millis(67_500)));
}

#[test]
fn backoff_with_a_max_below_the_recovery_duration_does_not_grow() {
    for max in [secs(0), secs(29), secs(30)] {
        let mut driver = Driver::tripped(rules_with(|rules| {
            let factor = 2.0;
            rules.backoff = Some(Backoff { factor, max });
        }));
        driver.at(secs(30)).fail();
        driver.assert_open_until(secs(60));
    }
}

#[test]
fn backoff_never_shortens_a_cooldown_that_a_float_rounds_down() {
    let cooldown = Duration::from_nanos((1 << 53) + 1);
    let mut driver = Driver::tripped(rules_with(|rules| {
        rules.recovery_duration = cooldown;
        let (factor, max) = (1.0, Duration::MAX);
        rules.backoff = Some(Backoff { factor, max });
    }));
    driver.at(cooldown).fail();
    driver.assert_open_until(cooldown * 2);
}

#[test]
fn backoff_of_any_factor_saturates() {
    let mut driver = Driver::new(rules_with(|rules| {
        let (factor, max) = (f64::MAX, Duration::MAX);
        rules.backoff = Some(Backoff { factor, max });
    }));
    driver.trip();
    driver.at(secs(30)).fail();
    let denied = driver.try_acquire().unwrap_err();
    assert_eq!((denied.reason, denied.wait), (Reason::CircuitOpen, None));
}

#[test]
fn jitter_spreads_the_probes_over_the_range_and_never_leaves_it() {
    // Case 15.
    let rules = rules_with(|rules| {
        rules.failure_threshold = 1;
        rules.recovery_duration = secs(100);
        rules.jitter = 0.15;
    });
    let waits = || {
        (0..1_000).map(|seed| {
            let mut driver = Driver::with_seed(rules.clone(), seed);
            driver.trip();
            let wait = driver.snapshot().time_left.unwrap();
            driver.assert_open_until(wait);
            wait
        })
    };
    let (least, most) = (waits().min().unwrap(), waits().max().unwrap());
    assert!(
        least >= secs(100) && most <= secs(115),
        "{least:?} {most:?}"
    );
    assert!(most - least >= secs(12), "{least:?} {most:?}");
    let middle = waits().filter(|wait| *wait < Duration::from_millis(107_500));
    assert!((400..600).contains(&middle.count()), "evenly");
    assert!(waits().eq(waits()), "the same seeds give the same times");
}

#[test]
fn jitter_differs_at_every_trip_and_is_not_part_of_the_growth() {
    let mut driver = Driver::new(rules_with(|rules| {
        rules.recovery_duration = secs(1);
        rules.jitter = 0.5;
        let (factor, max) = (2.0, secs(8));
        rules.backoff = Some(Backoff { factor, max });
    }));
    driver.trip();
    let mut parts = Vec::new();
    for base in [1, 2, 4, 8, 8, 8] {
        let left = driver.snapshot().time_left.unwrap();
        let part = left.as_secs_f64() / secs(base).as_secs_f64();
        assert!((1.0..=1.5).contains(&part), "{base}: {left:?}");
        parts.push(part);
        driver.advance(left).fail();
    }
    parts.sort_by(f64::total_cmp);
    parts.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
    assert_eq!(parts.len(), 6, "{parts:?}");
}

#[test]
fn jitter_after_a_lease_that_is_over_agrees_with_the_oracle() {
    let (mut driver, _hung) = Driver::probing_jittered();
    let unnoticed = driver.snapshot();
    let predicted = driver.would_allow().unwrap_err();
    assert!(
        predicted.wait.unwrap() > secs(29),
        "a second of the cooldown has passed"
    );
    assert_eq!(driver.try_acquire(), Err(predicted));
    assert_eq!(driver.snapshot(), unnoticed);
}

impl Driver {
    /// A lease that ended a second ago, unnoticed.
    fn probing_jittered() -> (Self, Ticket) {
        let mut driver = Self::tripped(rules_with(|rules| rules.jitter = 0.5));
        let probe = driver.at(secs(45)).try_acquire().unwrap();
        driver.at(secs(76));
        (driver, probe)
    }
}

#[test]
fn jitter_never_goes_below_a_retry_after() {
    for seed in 0..100 {
        let mut driver = Driver::with_seed(rules_with(|rules| rules.jitter = 0.15), seed);
        driver.fail();
        driver.fail();
        driver.call(retry_after(secs(33)));
        let left = driver.snapshot().time_left.unwrap();
        assert!(left >= secs(33) && left < Duration::from_millis(34_500));
    }
}
