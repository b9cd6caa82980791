//! The rows of the half-open circuit.

use std::time::Duration;

use super::{NS, around, retry_after, rules_with, secs, transition};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Circuit, PendingEvent, Role, Rules};
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Retention;
use crate::vocabulary::{Failure, FailureKind, Outcome, Reason, Recorded, State, TransitionReason};

#[test]
fn half_open_call_with_the_slot_taken_is_refused_with_the_rest_of_the_lease() {
    let (mut driver, _probe) = Driver::probing(rules_with(|rules| rules.probe_timeout = secs(7)));
    for (now, left) in [
        (secs(30), secs(7)),
        (secs(31), secs(6)),
        (secs(37) - NS, NS),
    ] {
        driver.at(now).assert_refused(Reason::ProbeInFlight, left);
        assert_eq!(driver.state(), State::HalfOpen);
    }
    assert_eq!(driver.events(), []);
}

#[test]
fn half_open_the_probe_succeeds_within_its_lease() {
    for (now, live) in around(secs(60)) {
        let (mut driver, probe) = Driver::probing(Rules::default());
        driver.at(now);
        let recorded = driver.record(probe, Outcome::Success);
        let half_open = State::HalfOpen;
        if live {
            assert_eq!(recorded, Recorded::Applied);
            let snapshot = driver.snapshot();
            assert_eq!(snapshot.state, State::Closed);
            assert_eq!((snapshot.streak, snapshot.trips), (0, 1));
            assert_eq!(snapshot.time_left, None);
            let closed = State::Closed;
            assert_eq!(
                driver.events(),
                [transition(
                    half_open,
                    closed,
                    TransitionReason::ProbeSucceeded,
                    3
                )]
            );
            let ticket = driver.try_acquire().unwrap();
            assert_eq!((ticket.role, ticket.generation), (Role::Ordinary, 3));
        } else {
            assert_eq!(recorded, Recorded::Stale, "the lease is over at {now:?}");
            driver.assert_open_until(secs(90));
        }
    }
}

#[test]
fn half_open_the_probe_succeeds_and_more_follow_until_the_success_threshold() {
    let rules = rules_with(|rules| rules.success_threshold = 3);
    for fails_at in [Some(0), Some(1), Some(2), None] {
        let mut driver = Driver::tripped(rules.clone());
        driver.at(secs(30));
        for n in 0..3 {
            let probe = driver.try_acquire().unwrap();
            assert_eq!(probe, driver.synced().ticket(Role::Probe));
            driver.assert_refused(Reason::ProbeInFlight, secs(30));
            driver.advance(secs(1));
            if fails_at == Some(n) {
                let failed = driver.record(probe, Failure::transient());
                assert_eq!(failed, Recorded::Applied);
                break;
            }
            assert_eq!(
                driver.record(probe, Outcome::Success),
                Recorded::Applied,
                "of {n}"
            );
            if n < 2 {
                let snapshot = driver.snapshot();
                assert_eq!(snapshot.state, State::HalfOpen);
                assert_eq!(snapshot.time_left, None, "no lease runs");
                assert_eq!(driver.retention(), Retention::Unclean);
            }
        }
        let Some(fails_at) = fails_at else {
            assert_eq!(driver.state(), State::Closed);
            let probes = driver.events();
            assert_eq!(probes.len(), 5, "two transitions, three probes");
            continue;
        };
        let opened = secs(30 + fails_at + 1);
        driver.assert_open_until(opened + secs(30));
        // The successes before are forgotten.
        driver.at(opened + secs(30));
        driver.succeed();
        driver.succeed();
        assert_eq!(driver.state(), State::HalfOpen);
        driver.succeed();
        assert_eq!(driver.state(), State::Closed);
    }
}

#[test]
fn half_open_each_probe_has_a_lease_of_its_own() {
    let mut driver = Driver::tripped(rules_with(|rules| rules.success_threshold = 2));
    driver.at(secs(30)).succeed();
    driver.at(secs(1_000));
    let probe = driver.try_acquire().unwrap();
    driver.assert_refused(Reason::ProbeInFlight, secs(30));
    driver.at(secs(1_030) - NS);
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
    assert_eq!(driver.state(), State::Closed);
}

#[test]
fn half_open_the_probe_fails_and_the_cooldown_counts_from_now() {
    let outcomes = [
        Failure::transient(),
        Failure::rate_limited(),
        Failure::fatal(),
    ];
    for failure in outcomes {
        let (mut driver, probe) = Driver::probing(Rules::default());
        driver.at(secs(45));
        assert_eq!(driver.record(probe, failure), Recorded::Applied);
        driver.assert_open_until(secs(75));
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.trips, snapshot.streak), (2, 3));
        assert_eq!(snapshot.last_failure, Some(failure.kind()));
        let (half_open, open) = (State::HalfOpen, State::Open);
        let tripped = transition(half_open, open, TransitionReason::ProbeFailed, 3);
        assert_eq!(driver.events(), [tripped]);
    }
}

#[test]
fn half_open_the_probe_shows_a_sign_of_life_and_the_lease_starts_anew() {
    for (now, live) in around(secs(60)) {
        let (mut driver, probe) = Driver::probing(Rules::default());
        driver.at(now);
        assert_eq!(driver.renew(probe), live, "{now:?}");
        if live {
            driver.assert_refused(Reason::ProbeInFlight, secs(30));
            assert_eq!(
                (driver.state(), driver.snapshot().trips),
                (State::HalfOpen, 1)
            );
            driver.at(now + secs(30) - NS);
            driver.assert_refused(Reason::ProbeInFlight, NS);
            assert_eq!(driver.events(), [], "a frame is no event");
            // The cooldown counts from the end of the renewed lease.
            let mut lost = driver.clone();
            lost.at(now + secs(30));
            lost.assert_open_until(now + secs(60));
            assert_eq!(lost.record(probe, Outcome::Success), Recorded::Stale);
            assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
            assert_eq!(driver.state(), State::Closed);
        } else {
            driver.assert_open_until(secs(90));
            assert_eq!(driver.record(probe, Outcome::Success), Recorded::Stale);
            assert!(!driver.renew(probe), "it stays over once it is noticed");
            driver.assert_open_until(secs(90));
        }
    }
}

#[test]
fn half_open_the_probe_may_show_signs_of_life_without_end() {
    let (mut driver, probe) = Driver::probing(Rules::default());
    for _ in 0..1_000 {
        driver.advance(secs(30) - NS);
        assert!(driver.renew(probe));
        assert!(
            driver.renew(probe),
            "a second one at the same instant changes nothing"
        );
        driver.assert_refused(Reason::ProbeInFlight, secs(30));
    }
    assert_eq!(
        driver.record(probe, Failure::transient()),
        Recorded::Applied
    );
    let now = driver.now.duration_since(Timestamp::START);
    driver.assert_open_until(now + secs(30));
    assert_eq!(driver.snapshot().trips, 2);
}

#[test]
fn half_open_a_sign_of_life_of_any_other_call_renews_nothing() {
    let mut driver = Driver::defaults();
    let ordinary = driver.try_acquire().unwrap();
    assert!(!driver.renew(ordinary), "closed, there is no lease");
    driver.trip();
    assert!(!driver.renew(ordinary), "nor while open");
    let hung = driver.at(secs(30)).try_acquire().unwrap();
    let next = driver.at(secs(90)).try_acquire().unwrap();
    assert_eq!((hung.role, next.role), (Role::Probe, Role::Probe));
    driver.events();
    driver.at(secs(100));
    for other in [ordinary, hung] {
        assert!(!driver.renew(other));
        driver.assert_refused(Reason::ProbeInFlight, secs(20));
    }
    assert!(driver.renew(next));
    driver.assert_refused(Reason::ProbeInFlight, secs(30));
}

#[test]
fn half_open_a_sign_of_life_after_the_verdict_renews_nothing() {
    let outcomes = [
        Outcome::Success,
        Outcome::Neutral,
        Failure::transient().into(),
    ];
    for outcome in outcomes {
        let (mut driver, probe) = Driver::probing(Rules::default());
        driver.record(probe, outcome);
        let before = driver.synced();
        let renewed = Circuit::renewed(
            driver.packed(),
            before.deadline,
            probe,
            &driver.rules,
            driver.now,
        );
        assert_eq!(renewed, None, "{outcome:?}");
    }
    for by_hand in [Driver::force_open, Driver::reset] {
        let (mut driver, probe) = Driver::probing(Rules::default());
        by_hand(&mut driver);
        assert!(!driver.renew(probe));
        assert_eq!(driver.synced().deadline, Timestamp::NEVER);
    }
}

#[test]
fn half_open_a_sign_of_life_leaves_a_lease_without_end_as_it_is() {
    let (mut driver, probe) =
        Driver::probing(rules_with(|rules| rules.probe_timeout = Duration::MAX));
    for now in [secs(31), secs(9_000_000_000)] {
        assert!(driver.at(now).renew(probe));
        assert_eq!(driver.snapshot().time_left, None);
        assert_eq!(driver.try_acquire().unwrap_err().wait, None);
    }
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
}

#[test]
fn half_open_the_next_probe_of_a_generation_renews_its_own_lease() {
    let (mut driver, first) = Driver::probing(rules_with(|rules| rules.success_threshold = 2));
    driver.at(secs(59)).renew(first);
    driver.record(first, Outcome::Success);
    let second = driver.try_acquire().unwrap();
    assert_eq!(second.generation, first.generation);
    driver.at(secs(80));
    driver.assert_refused(Reason::ProbeInFlight, secs(9));
    assert!(driver.renew(second));
    driver.assert_refused(Reason::ProbeInFlight, secs(30));
}

#[test]
fn half_open_lease_over_without_a_cooldown_leaves_another_deadline() {
    let rules = rules_with(|rules| rules.recovery_duration = Duration::ZERO);
    let mut driver = Driver::new(rules);
    let stale = driver.try_acquire().unwrap();
    driver.trip();
    let hung = driver.try_acquire().unwrap();
    let end = driver.synced().deadline;
    driver.advance(secs(31));
    // A stale result notices it, and is not the next probe.
    assert_eq!(driver.record(stale, Outcome::Success), Recorded::Stale);
    assert!(driver.synced().deadline < end);
    assert!(driver.snapshot().due);
    assert_eq!(driver.snapshot().time_left, Some(Duration::ZERO));
    assert!(!driver.renew(hung));
    assert_eq!(driver.try_acquire().unwrap().role, Role::Probe);
}

#[test]
fn half_open_lease_over_opens_and_the_cooldown_counts_from_the_leases_end() {
    // Case 1: at whatever time it is noticed.
    for noticed in [secs(60), secs(60) + NS, secs(75), secs(90) - NS] {
        let (mut driver, hung) = Driver::probing(Rules::default());
        driver.at(secs(60) - NS);
        assert_eq!(driver.state(), State::HalfOpen);
        driver.assert_refused(Reason::ProbeInFlight, NS);
        assert_eq!(driver.snapshot().trips, 1);

        driver.at(noticed);
        let unnoticed = driver.snapshot();
        driver.assert_refused(Reason::CircuitOpen, secs(90) - noticed);
        assert_eq!(driver.snapshot(), unnoticed);
        assert_eq!(unnoticed.state, State::Open);
        assert_eq!((unnoticed.trips, unnoticed.streak), (2, 3));
        assert_eq!(unnoticed.last_failure, Some(FailureKind::Transient));
        let (half_open, open) = (State::HalfOpen, State::Open);
        assert_eq!(
            driver.events(),
            [
                PendingEvent::LeaseExpired { generation: 2 },
                transition(half_open, open, TransitionReason::LeaseExpired, 3),
            ]
        );
        driver.assert_open_until(secs(90));
        assert_eq!(driver.record(hung, Outcome::Success), Recorded::Stale);
        driver.assert_open_until(secs(90));
    }
}

#[test]
fn half_open_lease_over_is_noticed_by_a_call_that_may_be_the_next_probe() {
    for (now, refused) in around(secs(90)) {
        let (mut driver, hung) = Driver::probing(Rules::default());
        driver.at(now);
        assert_eq!(driver.snapshot().due, !refused);
        if refused {
            driver.assert_refused(Reason::CircuitOpen, NS);
            continue;
        }
        let next = driver.try_acquire().unwrap();
        assert_eq!((next.role, next.generation), (Role::Probe, 4));
        driver.assert_refused(Reason::ProbeInFlight, secs(30));
        let (half_open, open) = (State::HalfOpen, State::Open);
        assert_eq!(
            driver.events(),
            [
                PendingEvent::LeaseExpired { generation: 2 },
                transition(half_open, open, TransitionReason::LeaseExpired, 3),
                transition(open, half_open, TransitionReason::CooldownOver, 4),
                PendingEvent::ProbeStarted { generation: 4 },
            ]
        );
        // The hung probe answers while the new one is in flight.
        assert_eq!(driver.record(hung, Outcome::Success), Recorded::Stale);
        assert_eq!(driver.state(), State::HalfOpen);
        assert_eq!(driver.record(next, Outcome::Success), Recorded::Applied);
        assert_eq!(driver.state(), State::Closed);
    }
}

#[test]
fn half_open_lease_over_and_the_probes_late_failure_is_a_stale_failure_like_any_other() {
    for (now, live) in around(secs(60)) {
        let (mut driver, probe) = Driver::probing(Rules::default());
        driver.at(now);
        let recorded = driver.record(probe, retry_after(NS));
        let stale = if live {
            Recorded::Applied
        } else {
            Recorded::Stale
        };
        assert_eq!(recorded, stale);
        driver.assert_open_until(now + secs(30));
        let snapshot = driver.snapshot();
        assert_eq!(snapshot.trips, 2);
        assert_eq!(snapshot.last_failure, Some(FailureKind::RateLimited));
    }
}

#[test]
fn half_open_lease_over_forgets_the_probes_that_succeeded() {
    let mut driver = Driver::tripped(rules_with(|rules| rules.success_threshold = 2));
    driver.at(secs(30)).succeed();
    driver.try_acquire().expect("the second probe, which hangs");
    driver.at(secs(90)).succeed();
    assert_eq!(driver.state(), State::HalfOpen, "one of two");
    driver.succeed();
    assert_eq!(driver.state(), State::Closed);
}

#[test]
fn half_open_the_probe_is_neutral_and_the_next_call_is_the_probe() {
    let (mut driver, probe) = Driver::probing(Rules::default());
    driver.at(secs(59));
    assert_eq!(driver.record(probe, Outcome::Neutral), Recorded::Applied);
    let snapshot = driver.snapshot();
    assert_eq!(snapshot.state, State::HalfOpen);
    assert_eq!((snapshot.time_left, snapshot.due), (None, false));
    assert_eq!(driver.events(), []);
    driver.at(secs(10_000));
    assert_eq!(driver.state(), State::HalfOpen, "no lease runs");
    let next = driver.try_acquire().unwrap();
    assert_eq!((next.role, next.generation), (Role::Probe, 2));
    driver.assert_refused(Reason::ProbeInFlight, secs(30));
    assert_eq!(
        driver.events(),
        [PendingEvent::ProbeStarted { generation: 2 }]
    );
    assert_eq!(driver.record(next, Outcome::Success), Recorded::Applied);
    assert_eq!(driver.state(), State::Closed);
}

#[test]
fn half_open_the_probe_is_neutral_and_keeps_the_probes_that_succeeded() {
    let mut driver = Driver::tripped(rules_with(|rules| rules.success_threshold = 3));
    driver.at(secs(30)).succeed();
    driver.call(Outcome::Neutral);
    driver.succeed();
    assert_eq!(
        driver.state(),
        State::HalfOpen,
        "a neutral result is none of the three"
    );
    driver.succeed();
    assert_eq!(driver.state(), State::Closed);
}

#[test]
fn half_open_any_other_result_is_stale_and_changes_nothing() {
    let mut driver = Driver::defaults();
    let old = [(); 4].map(|()| driver.try_acquire().unwrap());
    driver.trip();
    let probe = driver.at(secs(30)).try_acquire().unwrap();
    driver.events();
    let before = driver.synced();
    driver.at(secs(31));
    let outcomes = [
        Failure::transient().into(),
        retry_after(secs(300)).into(),
        Outcome::Success,
        Outcome::Neutral,
    ];
    for (ticket, outcome) in old.into_iter().zip(outcomes) {
        assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
        assert_eq!(driver.synced(), before);
    }
    assert_eq!(driver.events(), []);
    driver.assert_refused(Reason::ProbeInFlight, secs(29));
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
    assert_eq!(driver.state(), State::Closed);
}

#[test]
fn half_open_and_vacant_any_other_result_is_stale_and_changes_nothing() {
    let mut driver = Driver::defaults();
    let old = driver.try_acquire().unwrap();
    driver.trip();
    driver.at(secs(30)).call(Outcome::Neutral);
    let before = driver.synced();
    assert_eq!(driver.record(old, Failure::fatal()), Recorded::Stale);
    assert_eq!(driver.synced(), before);
}
