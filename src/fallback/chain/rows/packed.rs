//! The packed state, from which callers without the lock decide.

use std::time::Duration;

use super::super::driver::{A, ASIDE, B, Driver, PRIMARY, PROBE, rate_limited, timestamp};
use super::super::{Chain, Ticket};
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Machine;
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{Failure, Outcome};

#[test]
fn the_packed_state_shows_waiters_every_transition_and_every_change_of_liveness() {
    let mut driver = Driver::with(|rules| rules.bench = Some(Duration::from_secs(30)));
    let mut seen = driver.chain.packed();
    let mut changed = |driver: &Driver| {
        let packed = driver.chain.packed();
        let differs = seen.differs_for_waiters(packed);
        seen = packed;
        differs
    };
    driver.fails(PRIMARY);
    assert!(!changed(&driver));
    driver.fails(PRIMARY);
    driver.fails(PRIMARY);
    assert!(changed(&driver));
    driver.fails(A);
    assert!(!changed(&driver));
    driver.fails(A);
    assert!(changed(&driver), "spent");
    driver.set_disabled(1, true);
    assert!(changed(&driver), "disabled");
    driver.set_disabled(1, true);
    assert!(!changed(&driver), "nothing new");
    driver.set_disabled(1, false);
    assert!(changed(&driver), "enabled");
    driver.turn(B, Failure::fatal());
    assert!(changed(&driver), "spent");
    driver.at(30);
    driver.served_by(A);
    assert!(changed(&driver), "both back from the bench");
}

#[test]
fn a_verdict_is_recorded_lock_free_exactly_where_only_the_streak_and_the_last_failure_change() {
    let outcomes = [
        Outcome::Success,
        Outcome::Neutral,
        Failure::transient().into(),
        Failure::rate_limited().into(),
        rate_limited(1).into(),
        Failure::fatal().into(),
    ];
    for failures in 0..3 {
        for outcome in outcomes {
            let mut driver = Driver::new();
            for _ in 0..failures {
                driver.fails(PRIMARY);
            }
            let ticket = driver.served_by(PRIMARY);
            let begun = Chain::begin_lock_free(driver.chain.packed()).unwrap();
            assert_eq!(begun.server, ticket.server);
            assert_eq!(begun.since.generation(), ticket.since.generation());
            let packed = driver.chain.packed();
            let recorded = Chain::record_lock_free(packed, ticket, outcome, &driver.rules);
            let (generation, hint) = (driver.chain.generation, driver.chain.hint);
            driver.record(ticket, outcome);
            let unmoved = (generation, hint) == (driver.chain.generation, driver.chain.hint);
            assert_eq!(
                recorded,
                unmoved.then(|| driver.chain.packed()),
                "{failures} {outcome:?}"
            );
            for server in [PROBE, ASIDE, A] {
                let ticket = Ticket { server, ..ticket };
                assert_eq!(
                    Chain::record_lock_free(packed, ticket, outcome, &driver.rules),
                    None
                );
            }
        }
    }
    let mut driver = Driver::new();
    driver.trip();
    assert_eq!(Chain::begin_lock_free(driver.chain.packed()), None);
    assert_eq!(Chain::begin_lock_free(PackedState::BUSY), None);
}

#[test]
fn the_machine_sees_every_result_after_a_hint_and_in_every_phase_but_primary() {
    let mut driver = Driver::new();
    let ticket = driver.served_by(PRIMARY);
    let counted = |driver: &Driver, outcome| {
        let packed = driver.chain.packed();
        Chain::record_lock_free(packed, ticket, outcome, &driver.rules).is_some()
    };
    assert!(counted(&driver, Outcome::Success));
    driver.turn(PRIMARY, rate_limited(200));
    assert!(!counted(&driver, Outcome::Success));
    assert!(!counted(&driver, Failure::transient().into()));
    driver.succeeds(PRIMARY);
    assert!(counted(&driver, Outcome::Success));

    let is_clean = |driver: &Driver| driver.chain.packed().is_clean_in(driver.chain.generation);
    assert!(is_clean(&driver));
    driver.trip();
    assert!(!is_clean(&driver), "fallback");
    let probe = driver.at(60).served_by(PROBE);
    assert!(
        !is_clean(&driver),
        "the machine must see a success of the probe"
    );
    driver.record(probe, Outcome::Neutral);
    assert!(!is_clean(&driver), "the slot is free");
}

#[test]
fn the_deadline_is_when_the_phase_runs_out() {
    let mut driver = Driver::new();
    assert_eq!(driver.chain.deadline(), Timestamp::NEVER);
    driver.trip();
    assert_eq!(driver.chain.deadline(), timestamp(60));
    let probe = driver.at(70).served_by(PROBE);
    assert_eq!(driver.chain.deadline(), timestamp(190));
    driver.record(probe, Outcome::Neutral);
    assert_eq!(driver.chain.deadline(), Timestamp::NEVER);
}

#[test]
fn the_machine_counts_a_streak_that_no_longer_fits_into_the_packed_state() {
    let mut driver = Driver::with(|rules| rules.trip_threshold = u32::MAX);
    driver.chain.streak = PackedState::FULL - 1;
    for streak in PackedState::FULL..PackedState::FULL + 3 {
        let packed = driver.chain.packed();
        driver.chain.take_over(packed, driver.chain.deadline());
        driver.fails(PRIMARY);
        assert_eq!(driver.snapshot().consecutive_failures, streak);
    }
    driver
        .chain
        .take_over(PackedState::new(0, 0).with_streak(7), Timestamp::NEVER);
    assert_eq!(driver.snapshot().consecutive_failures, 7);
}
