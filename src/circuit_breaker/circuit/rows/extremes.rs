//! Settings, generations and streaks at their ends.

use std::time::Duration;

use super::{NS, retry_after, rules_with, secs};
use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Backoff, Circuit, Role, Rules};
use crate::machinery::event_queue::{EventQueue, Queued};
use crate::machinery::machine::Machine;
use crate::vocabulary::{Failure, Reason, Recorded, State};

#[test]
fn zero_and_max_for_each_time_have_a_meaning_and_never_overflow() {
    // Case 17. The setters let neither a zero lease nor a zero `slow_call` pass.
    let zero = Duration::ZERO;
    let max = Duration::MAX;
    let instants = [zero, secs(1), Duration::from_nanos(u64::MAX - 1)];
    for recovery_duration in [zero, max] {
        for probe_timeout in [NS, max] {
            for retry_after_cap in [zero, max] {
                for backoff_max in [zero, max] {
                    for hint in [zero, max] {
                        for now in instants {
                            extremes(
                                &rules_with(|rules| {
                                    rules.recovery_duration = recovery_duration;
                                    rules.probe_timeout = probe_timeout;
                                    rules.retry_after_cap = retry_after_cap;
                                    rules.jitter = 2.0;
                                    rules.backoff = Some(Backoff {
                                        factor: 2.0,
                                        max: backoff_max,
                                    });
                                }),
                                hint,
                                now,
                            );
                        }
                    }
                }
            }
        }
    }
}

fn extremes(rules: &Rules, hint: Duration, now: Duration) {
    let mut driver = Driver::new(rules.clone());
    let late = driver.at(now).try_acquire().unwrap();
    driver.call(retry_after(hint));
    driver.trip();
    let for_ever = [rules.recovery_duration, hint.min(rules.retry_after_cap)];
    if for_ever.contains(&Duration::MAX) {
        let denied = driver.try_acquire().unwrap_err();
        assert_eq!((denied.reason, denied.wait), (Reason::CircuitOpen, None));
        assert_eq!(driver.snapshot().time_left, None);
        driver.record(late, retry_after(hint));
        driver.reset();
        driver.succeed();
        return;
    }
    let probe = driver.try_acquire().expect("the very next call");
    assert_eq!(probe.role, Role::Probe);
    let mut expired = driver.clone();
    expired.advance(NS);
    if rules.probe_timeout == NS && now < Duration::from_nanos(u64::MAX - 1) {
        assert_eq!(expired.state(), State::Open, "and due");
        assert_eq!(expired.try_acquire().map(|t| t.generation), Ok(4));
    }
    driver.record(late, retry_after(hint));
    driver.record(probe, Failure::transient());
    driver.try_acquire().expect("the very next call");
    driver.reset();
    driver.succeed();
}

#[test]
fn a_generation_wraps() {
    let mut driver = Driver::defaults();
    driver.circuit.generation = u32::MAX;
    driver.packed = driver.circuit.packed();
    driver.succeed();
    let old = driver.try_acquire().unwrap();
    driver.reset();
    assert_eq!(driver.synced().generation, 0);
    assert_eq!(driver.record(old, Failure::fatal()), Recorded::Stale);
    driver.succeed();
}

#[test]
fn a_driver_keeps_all_events_in_order() {
    // About the driver: if it lost an event, no test would notice.
    let mut events = EventQueue::default();
    let mut driver = Driver::defaults();
    driver.trip();
    let mut circuit = Circuit::new(&driver.rules, 0);
    for _ in 0..3 {
        let ticket = circuit.ticket(Role::Ordinary);
        let failure = Failure::transient().into();
        circuit.record(&driver.rules, driver.now, ticket, failure, &mut events);
    }
    assert_eq!(events.next(), driver.events().pop().map(Queued::Event));
}

#[test]
fn the_streak_saturates() {
    let mut driver = Driver::new(rules_with(|rules| rules.failure_threshold = u32::MAX));
    driver.circuit.streak = u32::MAX - 1;
    driver.packed = driver.circuit.packed();
    let ticket = driver.try_acquire().unwrap();
    driver.record(ticket, Failure::transient());
    assert_eq!(driver.snapshot().streak, u32::MAX);
    assert_eq!(driver.state(), State::Open);
}
