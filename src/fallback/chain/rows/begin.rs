//! A turn begins: the gate and the oracle.

use std::time::Duration;

use super::super::Readied;
use super::super::driver::{A, ASIDE, B, Driver, PRIMARY, PROBE};
use super::super::event::PendingEvent;
use crate::fallback::Exhausted;
use crate::machinery::denied::Denied;
use crate::vocabulary::{
    Failure, FailureKind, FallbackState, Outcome, Reason, Recorded, TransitionReason,
};

#[test]
fn primary_turn_is_served_by_the_primary() {
    let mut driver = Driver::new();
    driver.set_disabled(0, true);
    driver.set_disabled(1, true);
    for _ in 0..3 {
        driver.served_by(PRIMARY);
    }
    assert_eq!(driver.state(), FallbackState::Primary);
}

#[test]
fn fallback_moves_to_recovering_before_a_turn_when_the_cooldown_is_over() {
    let mut driver = Driver::new();
    driver.trip().at(59);
    driver.succeeds(A);
    assert_eq!(driver.state(), FallbackState::Fallback);
    driver.at(60);
    let snapshot = driver.snapshot();
    assert_eq!(
        snapshot.state,
        FallbackState::Fallback,
        "until a turn moves it"
    );
    assert!(snapshot.due);
    assert_eq!(snapshot.time_until_probe, Some(Duration::ZERO));
    driver.events();
    driver.served_by(PROBE);
    assert_eq!(driver.state(), FallbackState::Recovering);
    assert_eq!(
        driver.events(),
        [
            PendingEvent::Transition {
                from: FallbackState::Fallback,
                to: FallbackState::Recovering,
                reason: TransitionReason::CooldownOver,
                generation: 2,
                first: None,
            },
            PendingEvent::ProbeStarted { generation: 2 },
        ]
    );
}

#[test]
fn fallback_moves_to_recovering_even_before_a_turn_of_a_backup_that_was_readied() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    let ticket = driver.begin_with(Readied::Entry(0));
    assert_eq!(ticket.map(|ticket| ticket.server), Ok(A));
    let snapshot = driver.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.due),
        (FallbackState::Recovering, true)
    );
    driver.served_by(PROBE);
}

#[test]
fn fallback_turn_goes_to_the_first_entry_that_is_not_failed() {
    let mut driver = Driver::new();
    driver.trip();
    driver.succeeds(A);
    driver.set_disabled(0, true);
    driver.succeeds(B);
    driver.set_disabled(0, false);
    driver.fails(A);
    driver.succeeds(A);
    driver.fails(A);
    for _ in 0..10 {
        driver.succeeds(B);
    }
    let entries = driver.snapshot().entries;
    assert_eq!((entries[0].failed, entries[0].disabled), (true, false));
    assert_eq!((entries[1].failed, entries[1].disabled), (false, false));
}

#[test]
fn recovering_turn_is_the_probe_and_while_it_is_in_flight_the_others_go_to_the_chain() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    assert_eq!(driver.snapshot().lease_left, Some(Duration::from_secs(120)));
    assert_eq!(driver.snapshot().time_until_probe, None);
    for _ in 0..3 {
        driver.succeeds(A);
    }
    driver.fails(A);
    driver.fails(A);
    driver.succeeds(B);
    driver.record(probe, Outcome::Success);
    assert_eq!(driver.snapshot().lease_left, None);
    driver.served_by(PROBE);
}

#[test]
fn fallback_turn_with_no_live_entry_is_refused_with_the_time_until_the_probe() {
    let mut driver = Driver::new();
    driver.trip();
    driver.turn(A, Failure::fatal());
    driver.turn(B, Failure::fatal());
    driver.at(20);
    assert_eq!(driver.refused(), (Reason::FallbackExhausted, Some(40)));
    assert_eq!(driver.begin().unwrap_err().last, Some(FailureKind::Fatal));
    driver.at(59);
    assert_eq!(driver.refused(), (Reason::FallbackExhausted, Some(1)));
    driver.at(60);
    driver.served_by(PROBE);
}

#[test]
fn recovering_turn_with_the_slot_taken_and_no_live_entry_is_refused() {
    let mut driver = Driver::new();
    driver.trip();
    driver.turn(A, Failure::fatal());
    driver.turn(B, Failure::fatal());
    driver.at(60);
    let probe = driver.served_by(PROBE);
    driver.at(100);
    assert_eq!(driver.refused(), (Reason::ProbeInFlight, Some(80)));
    driver.record(probe, Outcome::Neutral);
    driver.served_by(PROBE);
}

#[test]
fn fallback_without_a_chain_is_served_aside_by_the_primary() {
    let mut driver = Driver::with(|rules| rules.entries.clear());
    driver.trip();
    assert_eq!(
        driver.events().last(),
        Some(&PendingEvent::Transition {
            from: FallbackState::Primary,
            to: FallbackState::Fallback,
            reason: TransitionReason::FailureThreshold,
            generation: 1,
            first: None,
        })
    );
    driver.at(30);
    assert_eq!(driver.fails(ASIDE), Recorded::Applied);
    assert_eq!(driver.until_probe(), Some(30));
    driver.succeeds(ASIDE);
    driver.turn(ASIDE, Failure::fatal());
    driver.at(60);
    driver.succeeds(PROBE);
    driver.succeeds(PROBE);
    assert_eq!(driver.state(), FallbackState::Primary);
}

#[test]
fn fallback_with_no_live_entry_and_a_last_resort_is_served_aside_by_the_primary() {
    let mut driver = Driver::with(|rules| rules.when_exhausted = Exhausted::LastResort);
    driver.trip();
    driver.turn(A, Failure::fatal());
    driver.succeeds(B);
    driver.turn(B, Failure::fatal());
    driver.at(30);
    driver.fails(ASIDE);
    driver.succeeds(ASIDE);
    assert_eq!(driver.until_probe(), Some(30));
    driver.at(60);
    let probe = driver.served_by(PROBE);
    driver.succeeds(ASIDE);
    assert_eq!(driver.snapshot().probe_successes, 0);
    driver.record(probe, Outcome::Success);
    assert_eq!(driver.snapshot().probe_successes, 1);
}

#[test]
fn recovering_turn_with_the_slot_taken_and_no_chain_is_served_aside_by_the_primary() {
    let mut driver = Driver::with(|rules| rules.entries.clear());
    driver.trip().at(60);
    let probe = driver.served_by(PROBE);
    driver.succeeds(ASIDE);
    driver.turn(ASIDE, Failure::fatal());
    assert_eq!(driver.snapshot().probe_successes, 0);
    assert_eq!(driver.state(), FallbackState::Recovering);
    driver.record(probe, Outcome::Success);
    assert_eq!(driver.snapshot().probe_successes, 1);
}

#[test]
fn any_turn_with_nothing_readied_is_served_by_an_entry_or_refused() {
    let mut driver = Driver::new();
    let begin = |driver: &mut Driver| {
        driver
            .begin_with(Readied::Nothing)
            .map(|ticket| ticket.server)
    };
    assert_eq!(begin(&mut driver), Err(Denied::NOT_READY));
    driver.trip();
    assert_eq!(begin(&mut driver), Ok(A));
    driver.at(60);
    let before = driver.chain.clone();
    assert_eq!(begin(&mut driver), Err(Denied::NOT_READY));
    assert_eq!(driver.chain, before, "no probe is taken");
}

#[test]
fn a_turn_goes_on_to_the_next_live_entry_only() {
    let mut driver = Driver::new();
    let go_on = |driver: &Driver, failed| {
        let ticket = driver.chain.go_on(&driver.rules, driver.now(), failed);
        ticket.map(|ticket| ticket.server)
    };
    assert_eq!(go_on(&driver, PRIMARY), Some(A));
    assert_eq!(go_on(&driver, A), Some(B));
    assert_eq!(go_on(&driver, B), None);
    driver.set_disabled(0, true);
    assert_eq!(go_on(&driver, PROBE), Some(B));
}
