//! The rows of the module's table, each a test named after it, and the rules beside the table.

#![allow(clippy::unchecked_time_subtraction)] // A wrong subtraction panics, and fails its test.

mod by_hand;
mod closed;
mod cooldown;
mod dropped;
mod extremes;
mod failure_rate;
mod half_open;
mod lock_free;
mod looking;
mod open;
mod retry_deadline;

use std::time::Duration;

use crate::circuit_breaker::circuit::driver::Driver;
use crate::circuit_breaker::circuit::{Backoff, PendingEvent, Role, Rules, Ticket};
use crate::vocabulary::{Failure, Outcome, Reason, Recorded, State, TransitionReason};

const NS: Duration = Duration::from_nanos(1);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The instants just before, at and just after `edge`, each with whether it comes before the edge.
fn around(edge: Duration) -> [(Duration, bool); 3] {
    [(edge - NS, true), (edge, false), (edge + NS, false)]
}

/// The default rules, changed by `f`.
fn rules_with(f: impl FnOnce(&mut Rules)) -> Rules {
    let mut rules = Rules::default();
    f(&mut rules);
    rules
}

/// A rate-limited failure that carries a wait.
fn retry_after(wait: Duration) -> Failure {
    Failure::rate_limited().with_retry_after(wait)
}

impl Driver {
    pub(super) fn defaults() -> Self {
        Self::new(Rules::default())
    }

    /// Makes one call, and records its verdict at once.
    pub(super) fn call(&mut self, outcome: impl Into<Outcome>) -> Recorded {
        let ticket = self.try_acquire().expect("admitted");
        self.record(ticket, outcome)
    }

    pub(super) fn fail(&mut self) {
        assert_eq!(self.call(Failure::transient()), Recorded::Applied);
    }

    pub(super) fn succeed(&mut self) {
        assert_eq!(self.call(Outcome::Success), Recorded::Applied);
    }

    /// A circuit that has just tripped, whose events are taken.
    pub(super) fn tripped(rules: Rules) -> Self {
        let mut driver = Self::new(rules);
        driver.trip();
        driver.events();
        driver
    }

    pub(super) fn trip(&mut self) {
        for _ in 0..100 {
            self.fail();
            if self.state() != State::Closed {
                return;
            }
        }
        panic!("the circuit never trips");
    }

    /// A half-open circuit, and its probe, which started at the end of the cooldown.
    pub(super) fn probing(rules: Rules) -> (Self, Ticket) {
        let mut driver = Self::tripped(rules);
        let cooldown = driver.rules.recovery_duration;
        let probe = driver.at(cooldown).try_acquire().expect("the probe");
        assert_eq!(probe.role, Role::Probe);
        driver.events();
        (driver, probe)
    }

    pub(super) fn assert_refused(&mut self, reason: Reason, wait: Duration) {
        let denied = self.try_acquire().expect_err("refused");
        assert_eq!((denied.reason, denied.wait), (reason, Some(wait)));
        let left = self.snapshot().time_left;
        assert_eq!(left, Some(wait), "the snapshot agrees");
    }

    /// Asserts that the circuit is open until `end`, when it admits exactly one call.
    pub(super) fn assert_open_until(&self, end: Duration) {
        for (now, refused) in around(end) {
            let mut driver = self.clone();
            driver.at(now);
            assert_eq!(driver.snapshot().due, !refused, "{now:?}");
            assert_eq!(driver.state(), State::Open);
            if refused {
                driver.assert_refused(Reason::CircuitOpen, NS);
            } else {
                assert_eq!(driver.try_acquire().map(|t| t.role), Ok(Role::Probe));
                assert!(driver.try_acquire().is_err(), "never two probes");
            }
        }
    }
}

fn transition(from: State, to: State, reason: TransitionReason, generation: u32) -> PendingEvent {
    PendingEvent::Transition {
        from,
        to,
        reason,
        generation,
    }
}

/// A circuit in each phase; a call of the first generation, still in flight; and the probe, if
/// there is one.
fn in_every_phase() -> Vec<(&'static str, Driver, Ticket, Option<Ticket>)> {
    let mut closed = Driver::new(rules_with(|rules| {
        rules.backoff = Some(Backoff {
            factor: 2.0,
            max: secs(1_000),
        });
        rules.success_threshold = 2;
    }));
    let old = closed.try_acquire().unwrap();
    closed.call(retry_after(secs(200)));
    let mut open = closed.clone();
    open.trip();
    let mut due = open.clone();
    due.at(secs(200));
    let mut vacant = due.clone();
    vacant.succeed();
    let mut probing = vacant.clone();
    let probe = Some(probing.try_acquire().unwrap());
    let mut expired = probing.clone();
    expired.at(secs(231));
    let mut forced = expired.clone();
    forced.force_open();
    let mut all = vec![
        ("closed", closed, old, None),
        ("open", open, old, None),
        ("due", due, old, None),
        ("vacant", vacant, old, None),
        ("probing", probing, old, probe),
        ("expired", expired, old, probe),
        ("forced", forced, old, probe),
    ];
    for (_, driver, ..) in &mut all {
        driver.events();
    }
    all
}
