//! Decisions from the packed state alone.

use std::time::Duration;

use super::{around, in_every_phase, retry_after, rules_with, secs};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Circuit, Rate, Role, Rules, Ticket, Window};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{Failure, Outcome, State};

#[test]
fn acquire_lock_free_answers_unless_the_machine_has_to_move() {
    for (phase, driver, ..) in in_every_phase() {
        let enough = !matches!(phase, "due" | "vacant" | "expired");
        assert_eq!(driver.try_acquire_lock_free().is_some(), enough, "{phase}");
    }
    let (mut driver, _probe) = Driver::probing(Rules::default());
    for (now, enough) in around(secs(60)) {
        driver.at(now);
        assert_eq!(driver.try_acquire_lock_free().is_some(), enough, "{now:?}");
    }
    // A cooldown without end, and a lease without end.
    let rules = rules_with(|rules| rules.recovery_duration = Duration::MAX);
    assert!(Driver::tripped(rules).try_acquire_lock_free().is_some());
    let rules = rules_with(|rules| rules.probe_timeout = Duration::MAX);
    let (driver, _probe) = Driver::probing(rules);
    assert!(driver.try_acquire_lock_free().is_some());
}

#[test]
fn acquire_lock_free_reads_no_clock_while_closed_and_uses_no_deadline_that_moved() {
    let driver = Driver::defaults();
    let unread = || unreachable!("neither the timestamp nor the clock");
    let answer =
        Circuit::try_acquire_lock_free(driver.packed(), || unreachable!("the timestamp"), unread);
    assert_eq!(answer, Some(Ok(driver.synced().ticket(Role::Ordinary))));
    let open = Driver::tripped(Rules::default());
    let answer = Circuit::try_acquire_lock_free(open.packed(), || None, || open.now);
    assert_eq!(answer, None);
}

#[test]
fn record_lock_free_takes_results_that_change_the_streak_alone() {
    let mut driver = Driver::defaults();
    let transient = Outcome::from(Failure::transient());
    let limited = Outcome::from(Failure::rate_limited());
    let taken = [
        transient,
        limited,
        Outcome::Success,
        Outcome::Neutral,
        transient,
    ];
    let streaks = [1, 2, 0, 0, 1];
    for (outcome, streak) in taken.into_iter().zip(streaks) {
        let before = driver.lock_free;
        driver.call(outcome);
        assert_eq!(driver.lock_free, before + 2, "permit and verdict");
        assert_eq!(driver.snapshot().streak, streak);
    }
    let ticket = driver.try_acquire().unwrap();
    let packed = driver.packed();
    let is_taken = |packed, ticket, outcome: Outcome| {
        Circuit::record_lock_free(packed, ticket, outcome, &Rules::default()).is_some()
    };
    assert!(
        is_taken(packed, ticket, transient),
        "the last below the threshold"
    );
    assert!(
        !is_taken(packed.with_streak(2), ticket, transient),
        "a trip"
    );
    assert!(!is_taken(packed, ticket, Failure::fatal().into()));
    assert!(!is_taken(
        packed,
        ticket,
        retry_after(Duration::ZERO).into()
    ));
    assert!(!is_taken(PackedState::BUSY, ticket, Outcome::Success));
    let generation = ticket.generation + 1;
    let stale = Ticket {
        generation,
        ..ticket
    };
    for outcome in [Outcome::Success, Outcome::Neutral, transient] {
        assert!(!is_taken(packed, stale, outcome));
    }
}

#[test]
fn record_lock_free_answers_none_with_a_retry_deadline_or_a_window() {
    let mut driver = Driver::defaults();
    driver.at(secs(1)).call(retry_after(secs(1)));
    let ticket = driver.try_acquire().unwrap();
    let packed = driver.packed();
    let rules = Rules::default();
    let record = |packed, outcome| Circuit::record_lock_free(packed, ticket, outcome, &rules);
    assert_eq!(record(packed, Outcome::Success), None);
    driver.record(ticket, Outcome::Success);
    let packed = driver.packed();
    assert_eq!(record(packed, Outcome::Success), Some(packed));

    let window = Window::Calls(20);
    let fraction = 0.5;
    let driver = Driver::new(rules_with(|rules| {
        rules.rate = Some(Rate { fraction, window });
    }));
    assert_eq!(record(driver.packed(), Outcome::Success), None);
}

#[test]
fn record_lock_free_stops_at_a_full_streak_and_the_machine_counts_on() {
    for threshold in [
        PackedState::FULL,
        PackedState::FULL + 1,
        PackedState::FULL + 3,
    ] {
        let mut driver = Driver::new(rules_with(|rules| rules.failure_threshold = threshold));
        let ticket = driver.try_acquire().unwrap();
        driver.packed = driver.packed.with_streak(PackedState::FULL - 2);
        for streak in PackedState::FULL - 1..threshold {
            driver.record(ticket, Failure::transient());
            assert_eq!(driver.state(), State::Closed, "{streak} of {threshold}");
            assert_eq!(driver.snapshot().streak, streak);
        }
        let mut cleared = driver.clone();
        cleared.record(ticket, Outcome::Success);
        assert_eq!(cleared.snapshot().streak, 0);
        driver.record(ticket, Failure::transient());
        assert_eq!(driver.state(), State::Open);
        assert_eq!(driver.snapshot().streak, threshold);
    }
}
