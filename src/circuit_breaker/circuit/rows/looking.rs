//! The views of a circuit that change nothing: snapshots, retention, events, and the oracle.

use super::{around, in_every_phase, rules_with, secs, transition};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Circuit, PendingEvent, Rate, Rules, Window};
use crate::circuit_breaker::snapshot::CircuitBreakerSnapshot;
use crate::machinery::machine::{Machine, Retention};
use crate::vocabulary::{Event, Failure, FailureKind, State, TransitionReason};

#[test]
fn a_snapshot_shows_every_phase() {
    let limited = Some(FailureKind::RateLimited);
    let transient = Some(FailureKind::Transient);
    let (closed, open, half_open) = (State::Closed, State::Open, State::HalfOpen);
    for (phase, driver, ..) in in_every_phase() {
        let (state, due, forced, streak, time_left, trips, last_failure) = match phase {
            "closed" => (closed, false, false, 1, None, 0, limited),
            "open" => (open, false, false, 3, Some(secs(200)), 1, transient),
            "due" => (open, true, false, 3, Some(secs(0)), 1, transient),
            "probing" => (half_open, false, false, 3, Some(secs(30)), 1, transient),
            "vacant" => (half_open, false, false, 3, None, 1, transient),
            // The lease was over at 230 s, and this is the second cooldown.
            "expired" => (open, false, false, 3, Some(secs(59)), 2, transient),
            _ => (open, false, true, 3, None, 2, transient),
        };
        let expected = CircuitBreakerSnapshot {
            state,
            due,
            forced,
            streak,
            time_left,
            trips,
            last_failure,
        };
        assert_eq!(driver.snapshot(), expected, "{phase}");
    }
}

#[test]
fn a_snapshot_of_a_lease_that_is_over_shows_a_transient_failure() {
    let (mut driver, _hung) = Driver::probing(rules_with(|rules| rules.failure_threshold = 1));
    driver.reset();
    driver.call(Failure::rate_limited());
    driver.advance(secs(30)).try_acquire().expect("the probe");
    let limited = Some(FailureKind::RateLimited);
    assert_eq!(driver.snapshot().last_failure, limited);
    driver.advance(secs(30));
    let transient = Some(FailureKind::Transient);
    assert_eq!(driver.snapshot().last_failure, transient);
    assert_eq!(driver.would_allow().unwrap_err().last, transient);
    driver.force_open();
    assert_eq!(driver.snapshot().last_failure, transient);
    let mut due = driver;
    due.reset();
    assert_eq!(due.snapshot().last_failure, None);
}

#[test]
fn the_retention_follows_the_phase() {
    for (phase, driver, ..) in in_every_phase() {
        let expected = match phase {
            "closed" | "due" | "vacant" => Retention::Unclean,
            _ => Retention::Live,
        };
        assert_eq!(driver.retention(), expected, "{phase}");
    }
    let mut driver = Driver::defaults();
    assert_eq!(driver.retention(), Retention::Clean);
    driver.fail();
    assert_eq!(driver.retention(), Retention::Unclean);
    driver.succeed();
    assert_eq!(driver.retention(), Retention::Clean);
    driver.trip();
    for (now, live) in around(secs(30)) {
        driver.at(now);
        assert_eq!(driver.retention() == Retention::Live, live, "{now:?}");
    }
    driver.at(secs(30)).try_acquire().expect("the probe");
    for (now, live) in around(secs(90)) {
        driver.at(now);
        assert_eq!(driver.retention() == Retention::Live, live, "{now:?}");
    }
    driver.at(secs(90)).succeed();
    assert_eq!(driver.retention(), Retention::Clean, "closed again");
}

#[test]
fn the_retention_is_unclean_while_the_window_holds_a_failure() {
    let window = Window::Time(secs(10));
    let fraction = 1.0;
    let mut driver = Driver::new(rules_with(|rules| {
        rules.rate = Some(Rate { fraction, window });
    }));
    driver.succeed();
    assert_eq!(driver.retention(), Retention::Clean);
    driver.fail();
    driver.succeed();
    for (now, unclean) in around(secs(10)) {
        driver.at(now);
        assert_eq!(driver.retention() == Retention::Unclean, unclean, "{now:?}");
    }
}

#[test]
fn pending_events_become_events_with_the_name_and_the_lease() {
    let rules = rules_with(|rules| rules.probe_timeout = secs(7));
    let event = |pending| format!("{:?}", Circuit::event(pending, Some("search"), &rules));
    let reason = TransitionReason::Reset;
    let (from, to) = (State::Open, State::Closed);
    let generation = 5;
    let name = Some("search");
    let moved = Event::Transition {
        name,
        from,
        to,
        reason,
        generation,
    };
    assert_eq!(
        event(transition(from, to, reason, generation)),
        format!("{moved:?}")
    );
    let started = Event::ProbeStarted {
        name,
        generation,
        lease: secs(7),
    };
    assert_eq!(
        event(PendingEvent::ProbeStarted { generation }),
        format!("{started:?}")
    );
    let expired = Event::LeaseExpired { name, generation };
    assert_eq!(
        event(PendingEvent::LeaseExpired { generation }),
        format!("{expired:?}")
    );
}

#[test]
fn asking_a_thousand_times_changes_nothing_across_every_edge() {
    for edge in [secs(30), secs(60), secs(90)] {
        for (now, _) in around(edge) {
            let (mut driver, _probe) = Driver::probing(Rules::default());
            driver.at(now);
            let before = driver.synced();
            let answers = (driver.would_allow(), driver.snapshot(), driver.retention());
            for _ in 0..1_000 {
                let again = (driver.would_allow(), driver.snapshot(), driver.retention());
                assert_eq!(again, answers);
            }
            assert_eq!(driver.synced(), before);
            assert_eq!(driver.events(), []);
            assert_eq!(driver.try_acquire().map(|_| ()), answers.0);
        }
    }
}
