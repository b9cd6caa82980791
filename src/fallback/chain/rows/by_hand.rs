//! The rows of resets, and of entries that are disabled or enabled.

use super::super::driver::{A, B, Driver, PRIMARY, PROBE};
use super::super::event::PendingEvent;
use crate::vocabulary::{EntryChange, Failure, FallbackState, Recorded};

#[test]
fn any_entry_that_is_disabled_serves_no_turn_until_it_is_enabled_and_keeps_its_strikes() {
    let mut driver = Driver::new();
    driver.trip();
    driver.fails(A);
    driver.events();
    driver.set_disabled(0, true);
    driver.succeeds(B);
    let entries = driver.snapshot().entries;
    assert_eq!((entries[0].failed, entries[0].disabled), (true, true));
    driver.set_disabled(0, false);
    driver.succeeds(A);
    assert_eq!(driver.strikes(), [1, 0]);
    let change = |change| PendingEvent::Entry {
        entry: 0,
        change,
        strikes: 1,
    };
    let changes = [EntryChange::Disabled, EntryChange::Enabled].map(change);
    assert_eq!(driver.events(), changes);
}

#[test]
fn any_reset_is_as_new_and_keeps_disabled_entries_disabled() {
    let mut driver = Driver::new();
    let old = driver.served_by(PRIMARY);
    driver.trip();
    let backup = driver.served_by(A);
    driver.fails(A);
    driver.set_disabled(1, true);
    driver.at(60);
    let probe = driver.served_by(PROBE);
    driver.reset();
    let fresh = driver.snapshot();
    assert_eq!(fresh.state, FallbackState::Primary);
    assert!(!fresh.fallback_activated);
    assert_eq!((fresh.trips, fresh.last_failure), (0, None));
    assert_eq!(driver.strikes(), [0, 0]);
    assert!(fresh.entries[1].disabled);
    for ticket in [old, backup, probe] {
        assert_eq!(driver.record(ticket, Failure::fatal()), Recorded::Stale);
    }
    assert_eq!(driver.snapshot(), fresh);
    driver.served_by(PRIMARY);
}

#[test]
fn an_entry_is_found_by_its_name_and_the_primary_is_not_an_entry() {
    let rules = Driver::new().rules;
    assert_eq!((rules.entry("a"), rules.entry("b")), (Some(0), Some(1)));
    assert_eq!((rules.entry("p"), rules.entry("")), (None, None));
}
