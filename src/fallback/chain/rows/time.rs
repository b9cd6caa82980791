//! Time passes: signs of life, the lease, and the bench.

use std::time::Duration;

use super::super::Chain;
use super::super::driver::{A, ASIDE, B, Driver, PRIMARY, PROBE};
use super::super::event::PendingEvent;
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Machine;
use crate::vocabulary::{
    EntryChange, Failure, FallbackState, Outcome, Reason, Recorded, TransitionReason,
};

#[test]
fn recovering_probe_shows_a_sign_of_life_and_the_lease_starts_anew() {
    for (second, live) in [(179, true), (180, false), (181, false)] {
        let mut driver = Driver::new();
        driver.trip().at(60);
        driver.succeeds(PROBE);
        let probe = driver.served_by(PROBE);
        driver.events();
        driver.at(second);
        assert_eq!(driver.renew(probe), live, "at {second} s");
        if live {
            assert_eq!(driver.snapshot().lease_left, Some(Duration::from_secs(120)));
            driver.at(298);
            driver.succeeds(A);
            assert_eq!(driver.snapshot().lease_left, Some(Duration::from_secs(1)));
            assert_eq!(driver.events(), [], "no event tells of a frame");
            assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
            assert_eq!(driver.state(), FallbackState::Primary);
        } else {
            assert_eq!(driver.snapshot().probe_failures, 1);
            assert_eq!(driver.record(probe, Outcome::Success), Recorded::Stale);
            assert!(
                !driver.renew(probe),
                "the lease stays over once it is noticed"
            );
            assert_eq!(driver.snapshot().lease_left, None);
        }
    }
}

#[test]
fn recovering_probe_shows_a_sign_of_life_to_the_nanosecond() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    let (packed, deadline, rules) = (
        driver.chain.packed(),
        driver.chain.deadline(),
        &driver.rules,
    );
    let end = deadline.as_nanos();
    for (now, live) in [(end - 1, true), (end, false), (end + 1, false)] {
        let now = Timestamp::from_nanos(now);
        let renewed = Chain::renewed(packed, deadline, probe, rules, now);
        assert_eq!(
            renewed,
            live.then(|| now.saturating_add(Duration::from_secs(120)))
        );
    }
}

#[test]
fn recovering_probe_that_shows_signs_of_life_is_lost_a_lease_after_the_last() {
    let mut driver = Driver::with(|rules| rules.probation_limit = Some(1));
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    for second in 1..=1_000 {
        driver.at(60 + second * 119);
        assert!(driver.renew(probe));
        assert!(
            driver.renew(probe),
            "a second one at the same time renews too"
        );
        driver.succeeds(A);
    }
    let last = driver.now;
    driver.at(last + 130);
    let snapshot = driver.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.trips),
        (FallbackState::Fallback, 2)
    );
    assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(50)));
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Stale);
}

#[test]
fn recovering_sign_of_life_of_any_other_turn_renews_nothing() {
    let mut driver = Driver::new();
    let ordinary = driver.served_by(PRIMARY);
    assert!(
        !driver.renew(ordinary),
        "there is no lease in state Primary"
    );
    driver.trip();
    let backup = driver.served_by(A);
    assert!(!driver.renew(ordinary), "nor in state Fallback");
    let hung = driver.at(60).served_by(PROBE);
    let next = driver.at(180).served_by(PROBE);
    let beside = driver.served_by(A);
    let aside = driver.chain.ticket(ASIDE);
    driver.at(200);
    for other in [ordinary, backup, hung, beside, aside] {
        assert!(!driver.renew(other), "{other:?}");
        assert_eq!(driver.snapshot().lease_left, Some(Duration::from_secs(100)));
    }
    assert!(driver.renew(next));
    assert_eq!(driver.snapshot().lease_left, Some(Duration::from_secs(120)));
    // A change of an entry flips a bit of the packed phase.
    driver.set_disabled(0, true);
    assert!(driver.renew(next));
    driver.set_disabled(1, true);
    assert!(driver.renew(next));
}

#[test]
fn recovering_sign_of_life_after_the_verdict_renews_nothing() {
    let outcomes = [
        Outcome::Success,
        Outcome::Neutral,
        Failure::transient().into(),
        Failure::fatal().into(),
    ];
    for outcome in outcomes {
        let mut driver = Driver::new();
        driver.trip().at(60);
        let probe = driver.served_by(PROBE);
        driver.record(probe, outcome);
        let deadline = driver.chain.deadline();
        let (packed, now) = (driver.chain.packed(), driver.now());
        let renewed = Chain::renewed(packed, deadline, probe, &driver.rules, now);
        assert_eq!(renewed, None, "{outcome:?}");
    }
    let mut driver = Driver::new();
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    driver.reset();
    assert!(!driver.renew(probe));
    assert_eq!(driver.chain.deadline(), Timestamp::NEVER);
}

#[test]
fn recovering_sign_of_life_of_a_probe_whose_lease_has_no_end_leaves_it_so() {
    let mut driver = Driver::with(|rules| rules.probe_timeout = Duration::MAX);
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    for second in [61, 9_000_000_000] {
        assert!(driver.at(second).renew(probe));
        assert_eq!(driver.snapshot().lease_left, None);
        driver.succeeds(A);
    }
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
}

#[test]
fn recovering_lease_over_is_a_transient_failure_however_late_it_is_noticed() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    driver.succeeds(PROBE);
    let probe = driver.served_by(PROBE);
    driver.at(179);
    driver.succeeds(A);
    assert_eq!(driver.snapshot().probe_successes, 1);
    driver.events();
    driver.at(180);
    let snapshot = driver.snapshot();
    assert_eq!((snapshot.probe_successes, snapshot.probe_failures), (0, 1));
    assert!(snapshot.due);
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Stale);
    assert_eq!(driver.snapshot(), snapshot);
    assert_eq!(
        driver.events(),
        [PendingEvent::LeaseExpired { generation: 2 }]
    );
    let next = driver.served_by(PROBE);
    driver.at(1000);
    let another = driver.served_by(PROBE);
    assert_eq!(driver.record(next, Failure::fatal()), Recorded::Stale);
    assert_eq!(driver.state(), FallbackState::Recovering);
    assert_eq!(driver.record(another, Outcome::Success), Recorded::Applied);
    assert_eq!(driver.snapshot().probe_successes, 1);
}

#[test]
fn recovering_lease_over_at_the_probation_limit_trips_from_the_leases_end() {
    let mut driver = Driver::with(|rules| rules.probation_limit = Some(1));
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    driver.at(190);
    let snapshot = driver.snapshot();
    assert_eq!(snapshot.state, FallbackState::Fallback);
    assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(50)));
    assert_eq!((snapshot.trips, snapshot.probe_failures), (2, 0));
    driver.events();
    driver.succeeds(A);
    assert_eq!(driver.snapshot(), snapshot);
    assert_eq!(
        driver.transitions(),
        [(
            FallbackState::Recovering,
            FallbackState::Fallback,
            TransitionReason::LeaseExpired
        )]
    );
    assert_eq!(driver.record(probe, Failure::transient()), Recorded::Stale);
    assert_eq!(
        driver.until_probe(),
        Some(60),
        "a stale failure like any other"
    );

    let mut late = Driver::with(|rules| rules.probation_limit = Some(1));
    late.trip().at(60);
    late.served_by(PROBE);
    late.at(240);
    late.served_by(PROBE);
    assert_eq!(late.snapshot().trips, 2);
}

#[test]
fn recovering_lease_over_without_a_cooldown_leaves_a_deadline_that_no_late_frame_renews() {
    for outcome in [Outcome::Success, Failure::transient().into()] {
        let mut driver = Driver::with(|rules| {
            rules.probation_limit = Some(1);
            rules.recovery_timeout = Duration::ZERO;
        });
        let stale = driver.served_by(PRIMARY);
        driver.trip();
        let hung = driver.served_by(PROBE);
        let end = driver.chain.deadline();
        // A verdict notices it at once. The turn is not the next probe.
        driver.at(120);
        assert_eq!(driver.record(stale, outcome), Recorded::Stale);
        assert!(driver.chain.deadline() < end, "{outcome:?}");
        assert!(driver.snapshot().due);
        assert!(!driver.renew(hung));
        driver.served_by(PROBE);
    }
}

#[test]
fn any_spent_entry_has_a_fresh_budget_after_its_time_on_the_bench() {
    let mut driver = Driver::with(|rules| {
        rules.bench = Some(Duration::from_secs(30));
        rules.max_fail_count = 1;
    });
    driver.trip();
    driver.at(10);
    let late = driver.served_by(A);
    driver.fails(A);
    driver.at(20);
    driver.record(late, Failure::transient());
    assert_eq!(driver.strikes(), [2, 0]);
    assert_eq!(
        driver.snapshot().entries[0].bench_left,
        Some(Duration::from_secs(20)),
        "it counts from when the budget was spent"
    );
    driver.at(39);
    driver.served_by(B);
    driver.at(40);
    let entries = driver.snapshot().entries;
    assert_eq!((entries[0].strikes, entries[0].failed), (0, false));
    assert_eq!(entries[0].bench_left, None);
    driver.events();
    driver.succeeds(A);
    assert_eq!(
        driver.events(),
        [PendingEvent::Entry {
            entry: 0,
            change: EntryChange::Restored,
            strikes: 0
        }]
    );
    driver.fails(A);
    driver.served_by(B);
}

#[test]
fn times_without_end_do_not_overflow() {
    let mut driver = Driver::with(|rules| {
        rules.recovery_timeout = Duration::MAX;
        rules.probe_timeout = Duration::MAX;
        rules.bench = Some(Duration::MAX);
        rules.retry_after_cap = Duration::MAX;
    });
    driver.trip();
    driver.turn(A, Failure::fatal());
    driver.turn(B, Failure::fatal());
    driver.at(1_000_000_000);
    assert_eq!(driver.refused(), (Reason::FallbackExhausted, None));
    assert_eq!(driver.snapshot().time_until_probe, None);
    assert_eq!(driver.snapshot().entries[0].bench_left, None);

    let mut no_cooldown = Driver::with(|rules| rules.recovery_timeout = Duration::ZERO);
    no_cooldown.trip();
    no_cooldown.succeeds(PROBE);
    no_cooldown.succeeds(PROBE);
    assert_eq!(no_cooldown.state(), FallbackState::Primary);
}
