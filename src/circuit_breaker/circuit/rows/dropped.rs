//! Slow and dropped calls.

use std::time::Duration;

use super::{NS, around, retry_after, rules_with, secs};
use crate::circuit_breaker::circuit::Rules;
use crate::circuit_breaker::circuit::driver::Driver;
use crate::machinery::clock::Timestamp;
use crate::vocabulary::{Cancelled, Failure, Outcome, Reason, Recorded, State};

#[test]
fn slow_call_counts_a_success_that_took_at_least_the_limit_as_a_failure() {
    let rules = rules_with(|rules| rules.slow_call = Some(secs(5)));
    assert!(rules.are_timed());
    for (ran, fast) in around(secs(5)) {
        let judged = rules.judge(Outcome::Success, || ran);
        let slow = Failure::transient().into();
        assert_eq!(judged, if fast { Outcome::Success } else { slow });
    }
    let unread = || unreachable!("only a success is timed");
    for outcome in [retry_after(secs(9)).into(), Outcome::Neutral] {
        assert_eq!(rules.judge(outcome, unread), outcome);
    }
    let rules = Rules::default();
    assert!(!rules.are_timed());
    assert_eq!(rules.judge(Outcome::Success, unread), Outcome::Success);
    let rules = rules_with(|rules| rules.slow_call = Some(Duration::MAX));
    let longest = || Timestamp::NEVER.duration_since(Timestamp::START);
    assert_eq!(rules.judge(Outcome::Success, longest), Outcome::Success);
}

#[test]
fn cancelled_ignore_says_nothing_and_a_probe_keeps_its_slot_until_its_lease_ends() {
    let (mut driver, probe) = Driver::probing(Rules::default());
    assert!(!driver.rules.are_timed());
    assert_eq!(driver.cancel(probe, secs(9)), None);
    driver.assert_refused(Reason::ProbeInFlight, secs(30));
    driver.at(secs(61)).assert_open_until(secs(90));
}

#[test]
fn cancelled_release_gives_the_slot_back_at_once() {
    let rules = rules_with(|rules| rules.on_cancel = Cancelled::Release);
    assert!(!rules.are_timed());
    let (mut driver, probe) = Driver::probing(rules);
    for probe in [Some(probe), None, None] {
        let probe = probe.unwrap_or_else(|| driver.try_acquire().unwrap());
        assert_eq!(driver.cancel(probe, secs(9)), Some(Recorded::Applied));
        assert_eq!(driver.state(), State::HalfOpen);
    }
    driver.succeed();
    let ticket = driver.try_acquire().unwrap();
    driver.cancel(ticket, secs(9));
    assert_eq!(driver.snapshot().streak, 0);
}

#[test]
fn cancelled_failure_is_a_failure_now() {
    let rules = rules_with(|rules| rules.on_cancel = Cancelled::Failure);
    assert!(!rules.are_timed());
    let (mut driver, probe) = Driver::probing(rules.clone());
    assert_eq!(driver.cancel(probe, NS), Some(Recorded::Applied));
    driver.assert_open_until(secs(60));
    let mut driver = Driver::new(rules);
    for streak in 1..=3 {
        let ticket = driver.try_acquire().unwrap();
        driver.cancel(ticket, Duration::ZERO);
        assert_eq!(driver.snapshot().streak, streak);
    }
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn cancelled_failure_after_is_a_failure_if_the_call_ran_at_least_that_long() {
    // Case 22.
    let rules = rules_with(|rules| rules.on_cancel = Cancelled::FailureAfter(secs(5)));
    assert!(rules.are_timed());
    for (ran, early) in around(secs(5)) {
        let (mut driver, probe) = Driver::probing(rules.clone());
        assert_eq!(driver.cancel(probe, ran), Some(Recorded::Applied));
        let state = driver.state();
        assert_eq!(state == State::HalfOpen, early, "{ran:?}");
        let mut driver = Driver::new(rules.clone());
        for _ in 0..3 {
            let ticket = driver.try_acquire().unwrap();
            driver.cancel(ticket, ran);
        }
        assert_eq!(driver.state() == State::Closed, early, "{ran:?}");
    }
}
