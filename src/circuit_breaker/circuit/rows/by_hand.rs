//! The rows of any phase: a pin and a reset by hand.

use super::{in_every_phase, retry_after, rules_with, secs, transition};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Circuit, Rate, Window};
use crate::circuit_breaker::snapshot::CircuitBreakerSnapshot;
use crate::machinery::clock::Timestamp;
use crate::machinery::denied::Denied;
use crate::machinery::machine::Retention;
use crate::vocabulary::{Failure, Outcome, Reason, Recorded, State, TransitionReason};

#[test]
fn any_phase_pinned_open_by_hand_refuses_until_a_reset_and_results_change_nothing() {
    for (phase, mut driver, old, probe) in in_every_phase() {
        let before = driver.snapshot();
        driver.force_open();
        let pinned = driver.snapshot();
        let trips = before.trips + u64::from(before.state != State::Open);
        let expected = CircuitBreakerSnapshot {
            state: State::Open,
            due: false,
            forced: true,
            time_left: None,
            trips,
            ..before.clone()
        };
        assert_eq!(pinned, expected, "{phase}");
        let mut events = driver.events();
        if phase == "forced" {
            assert_eq!(events, [], "it was pinned already");
        } else {
            let reason = TransitionReason::ForcedOpen;
            let generation = driver.synced().generation;
            let last = transition(before.state, State::Open, reason, generation);
            assert_eq!(events.pop(), Some(last), "{phase}");
            let unnoticed = if phase == "expired" { 2 } else { 0 };
            assert_eq!(events.len(), unnoticed, "{phase}");
        }
        driver.force_open();
        let synced = driver.synced();
        for ticket in [Some(old), probe].into_iter().flatten() {
            for outcome in [
                Outcome::Success,
                retry_after(secs(9)).into(),
                Outcome::Neutral,
            ] {
                assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
            }
        }
        driver.advance(secs(1_000_000));
        let denied = driver.try_acquire().unwrap_err();
        let (reason, last) = (Reason::ForcedOpen, before.last_failure);
        let wait = None;
        assert_eq!(denied, Denied { reason, wait, last });
        assert_eq!(driver.synced(), synced);
        assert_eq!(driver.retention(), Retention::Live);
        assert_eq!(driver.events(), []);
        driver.reset();
        driver.succeed();
    }
}

#[test]
fn any_phase_pinned_open_and_reset_forgets_the_retry_deadline() {
    let mut driver = Driver::defaults();
    driver.call(retry_after(secs(200)));
    driver.force_open();
    driver.reset();
    driver.trip();
    driver.assert_open_until(secs(30));
}

#[test]
fn any_phase_reset_is_as_new_in_a_new_generation() {
    for (phase, mut driver, old, probe) in in_every_phase() {
        let before = driver.snapshot();
        driver.reset();
        let mut events = driver.events();
        let generation = driver.synced().generation;
        let reason = TransitionReason::Reset;
        let last = transition(before.state, State::Closed, reason, generation);
        assert_eq!(events.pop(), Some(last), "{phase}");
        let unnoticed = if phase == "expired" { 2 } else { 0 };
        assert_eq!(events.len(), unnoticed, "{phase}");

        let mut as_new = Circuit::new(&driver.rules, 0);
        as_new.generation = generation;
        assert_eq!(driver.synced(), as_new, "{phase}");
        assert_eq!(driver.retention(), Retention::Clean);
        for ticket in [Some(old), probe].into_iter().flatten() {
            assert_ne!(ticket.generation, generation);
            for outcome in [Outcome::Success, Failure::fatal().into(), Outcome::Neutral] {
                assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
            }
        }
        assert_eq!(driver.synced(), as_new, "{phase}");
        // The growth of the cooldown is forgotten too.
        let now = driver.now.duration_since(Timestamp::START);
        driver.trip();
        driver.assert_open_until(now + secs(30));
    }
}

#[test]
fn any_phase_reset_empties_the_window() {
    let mut driver = Driver::new(rules_with(|rules| {
        rules.failure_threshold = 100;
        rules.minimum_calls = 4;
        let window = Window::Calls(4);
        let fraction = 0.5;
        rules.rate = Some(Rate { fraction, window });
    }));
    for _ in 0..3 {
        driver.fail();
    }
    driver.reset();
    for _ in 0..3 {
        driver.fail();
        assert_eq!(driver.state(), State::Closed);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}
