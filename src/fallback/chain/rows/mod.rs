//! The rows of the module's tables, each a test named after its row.

mod backup;
mod begin;
mod by_hand;
mod packed;
mod primary;
mod probe;
mod time;

use super::driver::{A, B, Driver, PROBE};
use crate::vocabulary::{Failure, FallbackState};

#[test]
fn the_outage_goes_as_the_guide_describes_it() {
    let mut driver = Driver::with(|rules| rules.probation_limit = Some(3));
    driver.trip();
    driver.at(5).succeeds(A);
    driver.at(20).fails(A);
    driver.fails(A);
    driver.at(30).succeeds(B);
    let probe = driver.at(60).served_by(PROBE);
    driver.at(65).succeeds(B);
    driver.at(70).record(probe, Failure::transient());
    assert_eq!(driver.state(), FallbackState::Recovering);
    driver.at(72).fails(PROBE);
    driver.fails(PROBE);
    assert_eq!(driver.state(), FallbackState::Fallback);
    driver.at(80).succeeds(B);
    driver.at(131).succeeds(B);
    driver.at(132).succeeds(PROBE);
    assert_eq!(driver.snapshot().probe_successes, 1);
    driver.at(135).succeeds(PROBE);
    assert_eq!(driver.state(), FallbackState::Primary);
    assert_eq!(driver.strikes(), [0, 0]);
}
