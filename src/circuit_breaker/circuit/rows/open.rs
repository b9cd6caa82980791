//! The rows of the open circuit.

use std::time::Duration;

use super::{NS, around, retry_after, rules_with, secs, transition};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Backoff, PendingEvent, Role, Rules};
use crate::vocabulary::{Failure, FailureKind, Outcome, Reason, Recorded, State, TransitionReason};

#[test]
fn open_call_before_the_cooldown_is_over_is_refused_with_the_rest_of_it() {
    let mut driver = Driver::tripped(Rules::default());
    for (now, left) in [
        (secs(0), secs(30)),
        (NS, secs(30) - NS),
        (secs(10), secs(20)),
        (secs(30) - NS, NS),
    ] {
        driver.at(now).assert_refused(Reason::CircuitOpen, left);
        assert_eq!(driver.state(), State::Open);
        assert!(!driver.snapshot().due);
    }
    assert_eq!(driver.events(), []);
}

#[test]
fn open_call_once_the_cooldown_is_over_is_the_probe_and_its_lease_starts() {
    for (now, refused) in around(secs(30)) {
        let mut driver = Driver::tripped(rules_with(|rules| rules.probe_timeout = secs(7)));
        driver.at(now);
        assert_eq!(driver.snapshot().due, !refused);
        assert_eq!(driver.state(), State::Open, "until a call comes");
        if refused {
            driver.assert_refused(Reason::CircuitOpen, NS);
            assert_eq!(driver.events(), []);
            continue;
        }
        assert_eq!(driver.snapshot().time_left, Some(Duration::ZERO));
        let probe = driver.try_acquire().unwrap();
        assert_eq!(probe.role, Role::Probe);
        assert_eq!(driver.state(), State::HalfOpen);
        driver.assert_refused(Reason::ProbeInFlight, secs(7));
        let (open, half_open) = (State::Open, State::HalfOpen);
        assert_eq!(
            driver.events(),
            [
                transition(open, half_open, TransitionReason::CooldownOver, 2),
                PendingEvent::ProbeStarted { generation: 2 },
            ]
        );
    }
}

#[test]
fn open_stale_success_is_ignored() {
    let mut driver = Driver::defaults();
    let slow = driver.try_acquire().unwrap();
    let neutral = driver.try_acquire().unwrap();
    driver.trip();
    driver.events();
    let before = driver.synced();
    for now in [secs(29), secs(31)] {
        let mut driver = driver.clone();
        driver.at(now);
        assert_eq!(driver.record(slow, Outcome::Success), Recorded::Stale);
        assert_eq!(driver.record(neutral, Outcome::Neutral), Recorded::Stale);
        assert_eq!(driver.synced(), before);
        driver.assert_open_until(secs(30));
        assert_eq!(driver.events(), []);
    }
}

#[test]
fn open_stale_failure_restarts_the_cooldown() {
    let mut driver = Driver::defaults();
    let late = [(); 20].map(|()| driver.try_acquire().unwrap());
    driver.trip();
    for (second, ticket) in (1..).zip(late) {
        driver.at(secs(second));
        assert!(driver.try_acquire().is_err());
        assert_eq!(driver.record(ticket, retry_after(NS)), Recorded::Stale);
        driver.assert_refused(Reason::CircuitOpen, secs(30));
        let denied = driver.try_acquire().unwrap_err();
        assert_eq!(denied.last, Some(FailureKind::RateLimited));
        driver.assert_open_until(secs(second + 30));
    }
    let snapshot = driver.snapshot();
    assert_eq!((snapshot.trips, snapshot.streak), (1, 3));
    assert_eq!(snapshot.last_failure, Some(FailureKind::RateLimited));
    assert_eq!(driver.events().len(), 1, "one trip");
}

#[test]
fn open_stale_failure_restarts_a_cooldown_that_is_over_as_well() {
    for (now, _) in around(secs(30)) {
        let mut driver = Driver::defaults();
        let late = driver.try_acquire().unwrap();
        driver.trip();
        driver.at(now).record(late, Failure::transient());
        driver.assert_open_until(now + secs(30));
    }
}

#[test]
fn open_stale_failure_restarts_the_cooldown_with_its_growth_and_jitter() {
    let mut driver = Driver::new(rules_with(|rules| {
        rules.backoff = Some(Backoff {
            factor: 3.0,
            max: secs(1_000),
        });
        rules.jitter = 0.5;
    }));
    let late = driver.try_acquire().unwrap();
    driver.trip();
    driver.at(secs(100)).call(Failure::transient());
    let left = driver.snapshot().time_left.unwrap();
    assert!(left >= secs(90) && left < secs(135), "{left:?}");
    driver.at(secs(120));
    driver.record(late, Failure::transient());
    assert_eq!(driver.snapshot().time_left, Some(left));
}

#[test]
fn open_stale_failure_never_shortens_the_wait() {
    let mut driver = Driver::defaults();
    let late = [(); 2].map(|()| driver.try_acquire().unwrap());
    driver.trip();
    driver.record(late[0], retry_after(secs(60)));
    driver.assert_open_until(secs(60));
    driver.at(secs(10));
    driver.record(late[1], Failure::transient());
    driver.assert_open_until(secs(60));
}

#[test]
fn open_refusals_never_move_the_cooldown() {
    let mut driver = Driver::tripped(Rules::default());
    for second in 0..30 {
        driver.at(secs(second));
        driver.assert_refused(Reason::CircuitOpen, secs(30 - second));
    }
    driver.assert_open_until(secs(30));
}
