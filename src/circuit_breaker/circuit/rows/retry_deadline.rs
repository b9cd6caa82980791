//! How the wait that a failure carries lengthens a cooldown.

use std::time::Duration;

use super::{retry_after, rules_with, secs};
use crate::circuit_breaker::circuit::Rules;
use crate::circuit_breaker::circuit::driver::Driver;

#[test]
fn retry_after_lengthens_the_cooldown_and_never_shortens_it() {
    for (asked, expected) in [(0, 30), (29, 30), (30, 30), (31, 31), (60, 60)] {
        let mut driver = Driver::defaults();
        driver.fail();
        driver.fail();
        driver.at(secs(5)).call(retry_after(secs(asked)));
        driver.assert_open_until(secs(5 + expected));
    }
}

#[test]
fn retry_after_is_capped() {
    for (asked, expected) in [
        (secs(299), 299),
        (secs(300), 300),
        (secs(301), 300),
        (secs(9_223_372_037), 300),
        (Duration::MAX, 300),
    ] {
        let mut driver = Driver::new(rules_with(|rules| rules.failure_threshold = 1));
        let late = driver.try_acquire().unwrap();
        driver.call(retry_after(asked));
        driver.assert_open_until(secs(expected));
        // The cap also holds for a stale failure, and for a failed probe.
        driver.at(secs(10)).record(late, retry_after(asked));
        driver.assert_open_until(secs(10 + expected));
        driver.at(secs(1_000)).call(retry_after(asked));
        driver.assert_open_until(secs(1_000 + expected));
    }
}

#[test]
fn retry_after_is_ignored_with_a_cap_of_zero_and_unlimited_with_a_cap_of_max() {
    let mut driver = Driver::new(rules_with(|rules| rules.retry_after_cap = Duration::ZERO));
    driver.call(retry_after(secs(60)));
    driver.trip();
    driver.assert_open_until(secs(30));
    let mut driver = Driver::new(rules_with(|rules| rules.retry_after_cap = Duration::MAX));
    driver.call(retry_after(secs(1_000_000)));
    driver.trip();
    driver.assert_open_until(secs(1_000_000));
    let mut driver = Driver::new(rules_with(|rules| rules.retry_after_cap = Duration::MAX));
    driver.at(secs(1)).call(retry_after(Duration::MAX));
    driver.trip();
    assert_eq!(driver.try_acquire().unwrap_err().wait, None);
    assert!(driver.try_acquire_lock_free().is_some());
}

#[test]
fn retry_after_of_a_stale_failure_lengthens_the_running_cooldown() {
    // Case 9.
    let mut driver = Driver::defaults();
    let late = [(); 2].map(|()| driver.try_acquire().unwrap());
    driver.fail();
    driver.fail();
    driver.call(retry_after(secs(1)));
    driver.assert_open_until(secs(30));
    driver.record(late[0], retry_after(secs(60)));
    driver.assert_open_until(secs(60));
    driver.at(secs(20)).record(late[1], retry_after(secs(35)));
    driver.assert_open_until(secs(60));
}

#[test]
fn retry_after_from_earlier_in_the_streak_still_holds_at_the_trip() {
    let mut driver = Driver::defaults();
    driver.call(retry_after(secs(100)));
    driver.at(secs(1)).call(retry_after(secs(50)));
    driver.at(secs(2)).fail();
    driver.assert_open_until(secs(100));
}

#[test]
fn retry_after_is_forgotten_after_a_success_and_after_the_trip() {
    let mut driver = Driver::defaults();
    driver.call(retry_after(secs(100)));
    driver.succeed();
    driver.trip();
    driver.assert_open_until(secs(30));

    let mut driver = Driver::defaults();
    driver.call(retry_after(secs(300)));
    driver.trip();
    driver.at(secs(300)).succeed();
    driver.trip();
    driver.assert_open_until(secs(330));

    // Also with nothing but failed probes in between: the wait belongs to the first trip.
    let mut driver = Driver::new(rules_with(|rules| rules.retry_after_cap = secs(1_000)));
    driver.call(retry_after(secs(100)));
    driver.trip();
    driver.at(secs(100)).fail();
    driver.assert_open_until(secs(130));
}

#[test]
fn retry_after_of_a_probe_counts_from_its_failure() {
    let (mut driver, probe) = Driver::probing(Rules::default());
    driver.at(secs(40)).record(probe, retry_after(secs(100)));
    driver.assert_open_until(secs(140));
    driver.at(secs(140)).fail();
    driver.assert_open_until(secs(170));
}
