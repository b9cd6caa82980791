//! A turn of a backup ends.

use super::super::Readied;
use super::super::driver::{A, B, Driver, PROBE, rate_limited};
use super::super::event::PendingEvent;
use crate::vocabulary::{EntryChange, Failure, Outcome, Recorded};

#[test]
fn any_backup_failure_is_its_strike_and_a_success_changes_nothing() {
    let mut driver = Driver::new();
    driver.trip();
    driver.events();
    driver.fails(A);
    driver.succeeds(A);
    assert_eq!(driver.strikes(), [1, 0]);
    driver.turn(A, Outcome::Neutral);
    assert_eq!(driver.strikes(), [1, 0]);
    driver.fails(A);
    driver.fails(B);
    assert_eq!(driver.strikes(), [2, 1]);
    let change = |entry, change, strikes| PendingEvent::Entry {
        entry,
        change,
        strikes,
    };
    assert_eq!(
        driver.events(),
        [
            change(0, EntryChange::Struck, 1),
            change(0, EntryChange::Spent, 2),
            change(1, EntryChange::Struck, 1)
        ]
    );
}

#[test]
fn any_backup_hint_never_moves_the_primarys_cooldown() {
    let mut driver = Driver::new();
    driver.trip();
    driver.turn(A, rate_limited(200));
    assert_eq!(driver.until_probe(), Some(60));
}

#[test]
fn any_fatal_backup_failure_spends_its_budget() {
    let mut driver = Driver::with(|rules| rules.max_fail_count = 5);
    driver.trip();
    driver.turn(A, Failure::fatal());
    assert_eq!(driver.strikes(), [5, 0]);
    driver.served_by(B);
}

#[test]
fn any_backup_failure_is_stale_if_the_chain_was_cleared_since() {
    let mut driver = Driver::new();
    driver.trip();
    let late = [
        driver.served_by(A),
        driver.served_by(A),
        driver.served_by(A),
    ];
    driver.at(60);
    driver.succeeds(PROBE);
    assert_eq!(
        driver.record(late[0], Failure::transient()),
        Recorded::Applied
    );
    assert_eq!(driver.strikes(), [1, 0]);
    assert_eq!(driver.record(late[1], Outcome::Success), Recorded::Applied);
    assert_eq!(driver.snapshot().probe_successes, 1, "never the primary's");
    driver.succeeds(PROBE);
    assert_eq!(
        driver.record(late[2], Failure::transient()),
        Recorded::Stale
    );
    assert_eq!(driver.strikes(), [0, 0]);
}

#[test]
fn a_backups_failures_are_strikes_again_after_the_chain_was_cleared() {
    let mut driver = Driver::new();
    driver.trip().at(60);
    driver.succeeds(PROBE);
    driver.succeeds(PROBE);
    driver.trip();
    assert_eq!(driver.fails(A), Recorded::Applied);
    assert_eq!(driver.strikes(), [1, 0]);
    let ticket = driver.served_by(A);
    assert_eq!(
        (ticket.since.generation(), ticket.since.epoch()),
        (driver.chain.generation, 1)
    );
    assert_eq!(format!("{:?}", ticket.since), "4, 1");
}

#[test]
fn any_backup_that_was_readied_serves_in_state_primary_and_its_failure_is_its_strike() {
    let mut driver = Driver::new();
    let ticket = driver.begin_with(Readied::Entry(1)).unwrap();
    assert_eq!(ticket.server, B);
    driver.record(ticket, Failure::transient());
    assert_eq!(driver.strikes(), [0, 1]);
    assert_eq!(driver.snapshot().consecutive_failures, 0);
}

#[test]
fn any_backup_success_clears_its_strikes_if_so_set_unless_the_budget_is_spent() {
    let mut driver = Driver::with(|rules| rules.strikes_reset_on_success = true);
    driver.trip();
    driver.fails(A);
    driver.succeeds(A);
    assert_eq!(driver.strikes(), [0, 0]);
    let late = driver.served_by(A);
    driver.fails(A);
    driver.fails(A);
    driver.record(late, Outcome::Success);
    assert_eq!(driver.strikes(), [2, 0]);
}
