//! The rows of the module's table, each a test named after it, and the rules that stand beside the table.

#![allow(clippy::unchecked_time_subtraction)] // One that went wrong would panic, and be a failed test.

use super::driver::Driver;
use super::*;
use crate::machinery::event_queue::Queued;

const NS: Duration = Duration::from_nanos(1);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Just before, at, and just after, each with what has become of a comparison with the edge: before it, or not.
fn around(edge: Duration) -> [(Duration, bool); 3] {
    [(edge - NS, true), (edge, false), (edge + NS, false)]
}

fn ruled(f: impl FnOnce(&mut Rules)) -> Rules {
    let mut rules = Rules::default();
    f(&mut rules);
    rules
}

fn hinted(wait: Duration) -> Failure {
    Failure::rate_limited().with_retry_after(wait)
}

impl Driver {
    fn defaults() -> Self {
        Self::new(Rules::default())
    }

    /// One call, admitted and judged at once.
    fn call(&mut self, outcome: impl Into<Outcome>) -> Recorded {
        let ticket = self.try_acquire().expect("admitted");
        self.record(ticket, outcome)
    }

    fn fail(&mut self) {
        assert_eq!(self.call(Failure::transient()), Recorded::Applied);
    }

    fn succeed(&mut self) {
        assert_eq!(self.call(Outcome::Success), Recorded::Applied);
    }

    /// Fails until it is open, with nothing left to tell.
    fn tripped(rules: Rules) -> Self {
        let mut driver = Self::new(rules);
        driver.trip();
        driver.events();
        driver
    }

    fn trip(&mut self) {
        for _ in 0..100 {
            self.fail();
            if self.state() != State::Closed {
                return;
            }
        }
        panic!("it never trips");
    }

    /// Open until 30 s, then half-open with the probe out since then.
    fn probing(rules: Rules) -> (Self, Ticket) {
        let mut driver = Self::tripped(rules);
        let cooldown = driver.rules.recovery_duration;
        let probe = driver.at(cooldown).try_acquire().expect("the probe");
        assert_eq!(probe.role, Role::Probe);
        driver.events();
        (driver, probe)
    }

    fn refused(&mut self, reason: Reason, wait: Duration) {
        let denied = self.try_acquire().expect_err("refused");
        assert_eq!((denied.reason, denied.wait), (reason, Some(wait)));
        let left = self.snapshot().time_left;
        assert_eq!(left, Some(wait), "the snapshot says so too");
    }

    /// Open until `end`, at which exactly one call may go.
    fn is_open_until(&self, end: Duration) {
        for (now, refused) in around(end) {
            let mut driver = self.clone();
            driver.at(now);
            assert_eq!(driver.snapshot().due, !refused, "{now:?}");
            assert_eq!(driver.state(), State::Open);
            if refused {
                driver.refused(Reason::CircuitOpen, NS);
            } else {
                assert_eq!(driver.try_acquire().map(|t| t.role), Ok(Role::Probe));
                assert!(driver.try_acquire().is_err(), "never two probes");
            }
        }
    }
}

fn moved(from: State, to: State, reason: TransitionReason, generation: u32) -> PendingEvent {
    PendingEvent::Transition {
        from,
        to,
        reason,
        generation,
    }
}

// ===== the table =====

#[test]
fn closed_success_makes_the_streak_zero() {
    let mut driver = Driver::defaults();
    for _ in 0..1_000 {
        driver.fail();
        driver.fail();
        assert_eq!(driver.snapshot().streak, 2);
        driver.succeed();
        assert_eq!(driver.snapshot().streak, 0);
    }
    assert_eq!(driver.state(), State::Closed);
    assert_eq!(driver.events(), []);
    assert_eq!(driver.snapshot().trips, 0);
    assert_eq!(
        driver.snapshot().last_failure,
        Some(FailureKind::Transient),
        "a success does not unsay it"
    );
}

#[test]
fn closed_success_a_million_times_saves_nothing_up() {
    let mut driver = Driver::defaults();
    let ticket = driver.try_acquire().unwrap();
    for _ in 0..1_000_000 {
        let mut events = EventQueue::default();
        let (rules, now) = (&driver.rules, driver.now);
        let circuit = &mut driver.circuit;
        circuit.record(rules, now, ticket, Outcome::Success, &mut events);
    }
    driver.fail();
    driver.fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn closed_failure_at_the_threshold_opens_and_the_cooldown_counts_from_now() {
    for threshold in [1, 2, 3, 7] {
        let mut driver = Driver::new(ruled(|rules| rules.failure_threshold = threshold));
        for streak in 0..threshold {
            assert_eq!(driver.state(), State::Closed);
            assert_eq!(driver.snapshot().streak, streak);
            driver.at(secs(100 + u64::from(streak))).fail();
        }
        let tripped_at = secs(100 + u64::from(threshold) - 1);
        assert_eq!(driver.state(), State::Open);
        assert_eq!(driver.snapshot().streak, threshold);
        assert_eq!(driver.snapshot().trips, 1);
        driver.refused(Reason::CircuitOpen, secs(30));
        driver.is_open_until(tripped_at + secs(30));
        let (closed, open) = (State::Closed, State::Open);
        let tripped = moved(closed, open, TransitionReason::FailureThreshold, 1);
        assert_eq!(driver.events(), [tripped]);
    }
}

#[test]
fn closed_failure_that_is_fatal_trips_at_once() {
    let mut driver = Driver::new(ruled(|rules| rules.failure_threshold = u32::MAX));
    driver.at(secs(5));
    assert_eq!(driver.call(Failure::fatal()), Recorded::Applied);
    driver.is_open_until(secs(35));
    let last = driver.try_acquire().unwrap_err().last;
    assert_eq!(last, Some(FailureKind::Fatal));
    assert_eq!(driver.snapshot().streak, 1);
    let (closed, open) = (State::Closed, State::Open);
    let tripped = moved(closed, open, TransitionReason::FatalFailure, 1);
    assert_eq!(driver.events(), [tripped]);
}

#[test]
fn closed_failure_that_is_fatal_and_reaches_the_threshold_is_told_as_fatal() {
    let mut driver = Driver::new(ruled(|rules| rules.failure_threshold = 1));
    driver.call(Failure::fatal());
    let (closed, open) = (State::Closed, State::Open);
    let tripped = moved(closed, open, TransitionReason::FatalFailure, 1);
    assert_eq!(driver.events(), [tripped]);
}

#[test]
fn closed_result_from_an_older_generation_is_stale_and_changes_nothing() {
    let mut driver = Driver::defaults();
    let old = [(); 5].map(|()| driver.try_acquire().unwrap());
    driver.trip();
    driver.at(secs(30)).succeed();
    driver.fail();
    let before = (driver.settled(), driver.events());
    let hint = hinted(secs(60));
    let outcomes = [
        Outcome::Success,
        Failure::transient().into(),
        Failure::fatal().into(),
        hint.into(),
        Outcome::Neutral,
    ];
    for (ticket, outcome) in old.into_iter().zip(outcomes) {
        assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
        assert_eq!(driver.settled(), before.0);
    }
    assert_eq!(driver.events(), []);
    assert_eq!(driver.snapshot().streak, 1);
}

#[test]
fn open_call_before_the_cooldown_is_over_is_refused_with_what_is_left() {
    let mut driver = Driver::tripped(Rules::default());
    for (now, left) in [
        (secs(0), secs(30)),
        (NS, secs(30) - NS),
        (secs(10), secs(20)),
        (secs(30) - NS, NS),
    ] {
        driver.at(now).refused(Reason::CircuitOpen, left);
        assert_eq!(driver.state(), State::Open);
        assert!(!driver.snapshot().due);
    }
    assert_eq!(driver.events(), []);
}

#[test]
fn open_call_once_the_cooldown_is_over_is_the_probe_and_its_lease_starts() {
    for (now, refused) in around(secs(30)) {
        let mut driver = Driver::tripped(ruled(|rules| rules.probe_timeout = secs(7)));
        driver.at(now);
        assert_eq!(driver.snapshot().due, !refused);
        assert_eq!(driver.state(), State::Open, "deadline a call comes");
        if refused {
            driver.refused(Reason::CircuitOpen, NS);
            assert_eq!(driver.events(), []);
            continue;
        }
        assert_eq!(driver.snapshot().time_left, Some(Duration::ZERO));
        let probe = driver.try_acquire().unwrap();
        assert_eq!(probe.role, Role::Probe);
        assert_eq!(driver.state(), State::HalfOpen);
        driver.refused(Reason::ProbeInFlight, secs(7));
        let (open, half_open) = (State::Open, State::HalfOpen);
        assert_eq!(
            driver.events(),
            [
                moved(open, half_open, TransitionReason::CooldownOver, 2),
                PendingEvent::ProbeStarted { generation: 2 },
            ]
        );
    }
}

#[test]
fn open_stale_success_is_ignored() {
    let mut driver = Driver::defaults();
    let slow = driver.try_acquire().unwrap();
    let neutral = driver.try_acquire().unwrap();
    driver.trip();
    driver.events();
    let before = driver.settled();
    for now in [secs(29), secs(31)] {
        let mut driver = driver.clone();
        driver.at(now);
        assert_eq!(driver.record(slow, Outcome::Success), Recorded::Stale);
        assert_eq!(driver.record(neutral, Outcome::Neutral), Recorded::Stale);
        assert_eq!(driver.settled(), before);
        driver.is_open_until(secs(30));
        assert_eq!(driver.events(), []);
    }
}

#[test]
fn open_stale_failure_restarts_the_cooldown() {
    let mut driver = Driver::defaults();
    let stragglers = [(); 20].map(|()| driver.try_acquire().unwrap());
    driver.trip();
    for (second, ticket) in (1..).zip(stragglers) {
        driver.at(secs(second));
        assert!(driver.try_acquire().is_err());
        assert_eq!(driver.record(ticket, hinted(NS)), Recorded::Stale);
        driver.refused(Reason::CircuitOpen, secs(30));
        let denied = driver.try_acquire().unwrap_err();
        assert_eq!(denied.last, Some(FailureKind::RateLimited));
        driver.is_open_until(secs(second + 30));
    }
    let snapshot = driver.snapshot();
    assert_eq!((snapshot.trips, snapshot.streak), (1, 3));
    assert_eq!(snapshot.last_failure, Some(FailureKind::RateLimited));
    assert_eq!(driver.events().len(), 1, "one trip");
}

#[test]
fn open_stale_failure_restarts_a_cooldown_that_is_over_as_well() {
    for (now, _) in around(secs(30)) {
        let mut driver = Driver::defaults();
        let straggler = driver.try_acquire().unwrap();
        driver.trip();
        driver.at(now).record(straggler, Failure::transient());
        driver.is_open_until(now + secs(30));
    }
}

#[test]
fn open_stale_failure_restarts_the_cooldown_that_runs_with_its_growth_and_jitter() {
    let mut driver = Driver::new(ruled(|rules| {
        rules.backoff = Some(Backoff {
            factor: 3.0,
            max: secs(1_000),
        });
        rules.jitter = 0.5;
    }));
    let straggler = driver.try_acquire().unwrap();
    driver.trip();
    driver.at(secs(100)).call(Failure::transient());
    let left = driver.snapshot().time_left.unwrap();
    assert!(left >= secs(90) && left < secs(135), "{left:?}");
    driver.at(secs(120));
    driver.record(straggler, Failure::transient());
    assert_eq!(driver.snapshot().time_left, Some(left));
}

#[test]
fn open_stale_failure_never_shortens_the_wait() {
    let mut driver = Driver::defaults();
    let stragglers = [(); 2].map(|()| driver.try_acquire().unwrap());
    driver.trip();
    driver.record(stragglers[0], hinted(secs(60)));
    driver.is_open_until(secs(60));
    driver.at(secs(10));
    driver.record(stragglers[1], Failure::transient());
    driver.is_open_until(secs(60));
}

#[test]
fn open_refusals_never_move_the_cooldown() {
    let mut driver = Driver::tripped(Rules::default());
    for second in 0..30 {
        driver.at(secs(second));
        driver.refused(Reason::CircuitOpen, secs(30 - second));
    }
    driver.is_open_until(secs(30));
}

#[test]
fn half_open_call_with_the_slot_taken_is_refused_with_the_rest_of_the_lease() {
    let (mut driver, _probe) = Driver::probing(ruled(|rules| rules.probe_timeout = secs(7)));
    for (now, left) in [
        (secs(30), secs(7)),
        (secs(31), secs(6)),
        (secs(37) - NS, NS),
    ] {
        driver.at(now).refused(Reason::ProbeInFlight, left);
        assert_eq!(driver.state(), State::HalfOpen);
    }
    assert_eq!(driver.events(), []);
}

#[test]
fn half_open_the_probe_succeeds_while_its_lease_is_live() {
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
                [moved(
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
            driver.is_open_until(secs(90));
        }
    }
}

#[test]
fn half_open_the_probe_succeeds_and_so_must_the_next_until_the_success_threshold() {
    let rules = ruled(|rules| rules.success_threshold = 3);
    for fails_at in [Some(0), Some(1), Some(2), None] {
        let mut driver = Driver::tripped(rules.clone());
        driver.at(secs(30));
        for n in 0..3 {
            let probe = driver.try_acquire().unwrap();
            assert_eq!(probe, driver.settled().ticket(Role::Probe));
            driver.refused(Reason::ProbeInFlight, secs(30));
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
            assert_eq!(probes.len(), 5, "one way out, three probes, one way back");
            continue;
        };
        let opened = secs(30 + fails_at + 1);
        driver.is_open_until(opened + secs(30));
        // Those that succeeded before are forgotten.
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
    let mut driver = Driver::tripped(ruled(|rules| rules.success_threshold = 2));
    driver.at(secs(30)).succeed();
    driver.at(secs(1_000));
    let probe = driver.try_acquire().unwrap();
    driver.refused(Reason::ProbeInFlight, secs(30));
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
        driver.is_open_until(secs(75));
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.trips, snapshot.streak), (2, 3));
        assert_eq!(snapshot.last_failure, Some(failure.kind()));
        let (half_open, open) = (State::HalfOpen, State::Open);
        let tripped = moved(half_open, open, TransitionReason::ProbeFailed, 3);
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
            driver.refused(Reason::ProbeInFlight, secs(30));
            assert_eq!(
                (driver.state(), driver.snapshot().trips),
                (State::HalfOpen, 1)
            );
            driver.at(now + secs(30) - NS);
            driver.refused(Reason::ProbeInFlight, NS);
            assert_eq!(driver.events(), [], "nobody hears of a frame");
            // The cooldown counts from the end of the lease as it was renewed.
            let mut lost = driver.clone();
            lost.at(now + secs(30));
            lost.is_open_until(now + secs(60));
            assert_eq!(lost.record(probe, Outcome::Success), Recorded::Stale);
            assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
            assert_eq!(driver.state(), State::Closed);
        } else {
            driver.is_open_until(secs(90));
            assert_eq!(driver.record(probe, Outcome::Success), Recorded::Stale);
            assert!(!driver.renew(probe), "noticed, it is over all the same");
            driver.is_open_until(secs(90));
        }
    }
}

#[test]
fn half_open_the_probe_shows_signs_of_life_for_as_long_as_it_likes() {
    let (mut driver, probe) = Driver::probing(Rules::default());
    for _ in 0..1_000 {
        driver.advance(secs(30) - NS);
        assert!(driver.renew(probe));
        assert!(driver.renew(probe), "two in one instant are as one");
        driver.refused(Reason::ProbeInFlight, secs(30));
    }
    assert_eq!(
        driver.record(probe, Failure::transient()),
        Recorded::Applied
    );
    let now = driver.now.duration_since(Timestamp::START);
    driver.is_open_until(now + secs(30));
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
        driver.refused(Reason::ProbeInFlight, secs(20));
    }
    assert!(driver.renew(next));
    driver.refused(Reason::ProbeInFlight, secs(30));
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
        let before = driver.settled();
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
        assert_eq!(driver.settled().deadline, Timestamp::NEVER);
    }
}

#[test]
fn half_open_a_sign_of_life_of_a_probe_whose_lease_has_no_end_leaves_it_so() {
    let (mut driver, probe) = Driver::probing(ruled(|rules| rules.probe_timeout = Duration::MAX));
    for now in [secs(31), secs(9_000_000_000)] {
        assert!(driver.at(now).renew(probe));
        assert_eq!(driver.snapshot().time_left, None);
        assert_eq!(driver.try_acquire().unwrap_err().wait, None);
    }
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
}

#[test]
fn half_open_the_next_probe_of_a_generation_has_a_lease_that_it_renews_itself() {
    let (mut driver, first) = Driver::probing(ruled(|rules| rules.success_threshold = 2));
    driver.at(secs(59)).renew(first);
    driver.record(first, Outcome::Success);
    let second = driver.try_acquire().unwrap();
    assert_eq!(second.generation, first.generation);
    driver.at(secs(80));
    driver.refused(Reason::ProbeInFlight, secs(9));
    assert!(driver.renew(second));
    driver.refused(Reason::ProbeInFlight, secs(30));
}

#[test]
fn half_open_lease_over_without_any_cooldown_leaves_a_moment_that_no_late_frame_takes_for_its_own()
{
    let rules = ruled(|rules| rules.recovery_duration = Duration::ZERO);
    let mut driver = Driver::new(rules);
    let stale = driver.try_acquire().unwrap();
    driver.trip();
    let hung = driver.try_acquire().unwrap();
    let end = driver.settled().deadline;
    driver.advance(secs(31));
    // Whoever notices it and is not the next probe.
    assert_eq!(driver.record(stale, Outcome::Success), Recorded::Stale);
    assert!(driver.settled().deadline < end);
    assert!(driver.snapshot().due);
    assert_eq!(driver.snapshot().time_left, Some(Duration::ZERO));
    assert!(!driver.renew(hung));
    assert_eq!(driver.try_acquire().unwrap().role, Role::Probe);
}

#[test]
fn half_open_lease_over_opens_and_the_cooldown_counts_from_the_leases_end() {
    // Case 1: whenever it is noticed, and whoever notices it.
    for noticed in [secs(60), secs(60) + NS, secs(75), secs(90) - NS] {
        let (mut driver, hung) = Driver::probing(Rules::default());
        driver.at(secs(60) - NS);
        assert_eq!(driver.state(), State::HalfOpen);
        driver.refused(Reason::ProbeInFlight, NS);
        assert_eq!(driver.snapshot().trips, 1);

        driver.at(noticed);
        let unnoticed = driver.snapshot();
        driver.refused(Reason::CircuitOpen, secs(90) - noticed);
        assert_eq!(driver.snapshot(), unnoticed);
        assert_eq!(unnoticed.state, State::Open);
        assert_eq!((unnoticed.trips, unnoticed.streak), (2, 3));
        assert_eq!(unnoticed.last_failure, Some(FailureKind::Transient));
        let (half_open, open) = (State::HalfOpen, State::Open);
        assert_eq!(
            driver.events(),
            [
                PendingEvent::LeaseExpired { generation: 2 },
                moved(half_open, open, TransitionReason::LeaseExpired, 3),
            ]
        );
        driver.is_open_until(secs(90));
        assert_eq!(driver.record(hung, Outcome::Success), Recorded::Stale);
        driver.is_open_until(secs(90));
    }
}

#[test]
fn half_open_lease_over_is_seen_by_one_call_that_may_be_the_next_probe() {
    for (now, refused) in around(secs(90)) {
        let (mut driver, hung) = Driver::probing(Rules::default());
        driver.at(now);
        assert_eq!(driver.snapshot().due, !refused);
        if refused {
            driver.refused(Reason::CircuitOpen, NS);
            continue;
        }
        let next = driver.try_acquire().unwrap();
        assert_eq!((next.role, next.generation), (Role::Probe, 4));
        driver.refused(Reason::ProbeInFlight, secs(30));
        let (half_open, open) = (State::HalfOpen, State::Open);
        assert_eq!(
            driver.events(),
            [
                PendingEvent::LeaseExpired { generation: 2 },
                moved(half_open, open, TransitionReason::LeaseExpired, 3),
                moved(open, half_open, TransitionReason::CooldownOver, 4),
                PendingEvent::ProbeStarted { generation: 4 },
            ]
        );
        // The hung one comes back, beside the new one.
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
        let recorded = driver.record(probe, hinted(NS));
        let stale = if live {
            Recorded::Applied
        } else {
            Recorded::Stale
        };
        assert_eq!(recorded, stale);
        driver.is_open_until(now + secs(30));
        let snapshot = driver.snapshot();
        assert_eq!(snapshot.trips, 2);
        assert_eq!(snapshot.last_failure, Some(FailureKind::RateLimited));
    }
}

#[test]
fn half_open_lease_over_forgets_the_probes_that_succeeded() {
    let mut driver = Driver::tripped(ruled(|rules| rules.success_threshold = 2));
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
    driver.refused(Reason::ProbeInFlight, secs(30));
    assert_eq!(
        driver.events(),
        [PendingEvent::ProbeStarted { generation: 2 }]
    );
    assert_eq!(driver.record(next, Outcome::Success), Recorded::Applied);
    assert_eq!(driver.state(), State::Closed);
}

#[test]
fn half_open_the_probe_is_neutral_and_keeps_the_probes_that_succeeded() {
    let mut driver = Driver::tripped(ruled(|rules| rules.success_threshold = 3));
    driver.at(secs(30)).succeed();
    driver.call(Outcome::Neutral);
    driver.succeed();
    assert_eq!(driver.state(), State::HalfOpen, "it is none of the three");
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
    let before = driver.settled();
    driver.at(secs(31));
    let outcomes = [
        Failure::transient().into(),
        hinted(secs(300)).into(),
        Outcome::Success,
        Outcome::Neutral,
    ];
    for (ticket, outcome) in old.into_iter().zip(outcomes) {
        assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
        assert_eq!(driver.settled(), before);
    }
    assert_eq!(driver.events(), []);
    driver.refused(Reason::ProbeInFlight, secs(29));
    assert_eq!(driver.record(probe, Outcome::Success), Recorded::Applied);
    assert_eq!(driver.state(), State::Closed);
}

#[test]
fn half_open_and_vacant_any_other_result_is_stale_and_changes_nothing() {
    let mut driver = Driver::defaults();
    let old = driver.try_acquire().unwrap();
    driver.trip();
    driver.at(secs(30)).call(Outcome::Neutral);
    let before = driver.settled();
    assert_eq!(driver.record(old, Failure::fatal()), Recorded::Stale);
    assert_eq!(driver.settled(), before);
}

/// A circuit in each phase, a call from before the first transition still in flight, and the probe if there is one.
fn in_every_phase() -> Vec<(&'static str, Driver, Ticket, Option<Ticket>)> {
    let mut closed = Driver::new(ruled(|rules| {
        rules.backoff = Some(Backoff {
            factor: 2.0,
            max: secs(1_000),
        });
        rules.success_threshold = 2;
    }));
    let old = closed.try_acquire().unwrap();
    closed.call(hinted(secs(200)));
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

#[test]
fn any_phase_pinned_open_by_hand_refuses_until_a_reset_and_results_move_nothing() {
    for (phase, mut driver, old, probe) in in_every_phase() {
        let before = driver.snapshot();
        driver.force_open();
        let pinned = driver.snapshot();
        let trips = before.trips + u64::from(before.state != State::Open);
        let expected = CircuitBreakerSnapshot {
            state: State::Open,
            due: false,
            forced: true,
            time_left: None,
            trips,
            ..before.clone()
        };
        assert_eq!(pinned, expected, "{phase}");
        let mut events = driver.events();
        if phase == "forced" {
            assert_eq!(events, [], "it was");
        } else {
            let reason = TransitionReason::ForcedOpen;
            let generation = driver.settled().generation;
            let last = moved(before.state, State::Open, reason, generation);
            assert_eq!(events.pop(), Some(last), "{phase}");
            let unnoticed = if phase == "expired" { 2 } else { 0 };
            assert_eq!(events.len(), unnoticed, "{phase}");
        }
        driver.force_open();
        let settled = driver.settled();
        for ticket in [Some(old), probe].into_iter().flatten() {
            for outcome in [Outcome::Success, hinted(secs(9)).into(), Outcome::Neutral] {
                assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
            }
        }
        driver.advance(secs(1_000_000));
        let denied = driver.try_acquire().unwrap_err();
        let (reason, last) = (Reason::ForcedOpen, before.last_failure);
        let wait = None;
        assert_eq!(denied, Denied { reason, wait, last });
        assert_eq!(driver.settled(), settled);
        assert_eq!(driver.retention(), Retention::Live);
        assert_eq!(driver.events(), []);
        driver.reset();
        driver.succeed();
    }
}

#[test]
fn any_phase_pinned_open_and_reset_is_as_new_with_its_hints_forgotten() {
    let mut driver = Driver::defaults();
    driver.call(hinted(secs(200)));
    driver.force_open();
    driver.reset();
    driver.trip();
    driver.is_open_until(secs(30));
}

#[test]
fn any_phase_reset_is_as_new_in_a_new_generation() {
    for (phase, mut driver, old, probe) in in_every_phase() {
        let before = driver.snapshot();
        driver.reset();
        let mut events = driver.events();
        let generation = driver.settled().generation;
        let reason = TransitionReason::Reset;
        let last = moved(before.state, State::Closed, reason, generation);
        assert_eq!(events.pop(), Some(last), "{phase}");
        let unnoticed = if phase == "expired" { 2 } else { 0 };
        assert_eq!(events.len(), unnoticed, "{phase}");

        let mut as_new = Circuit::new(&driver.rules, 0);
        as_new.generation = generation;
        assert_eq!(driver.settled(), as_new, "{phase}");
        assert_eq!(driver.retention(), Retention::Clean);
        for ticket in [Some(old), probe].into_iter().flatten() {
            assert_ne!(ticket.generation, generation);
            for outcome in [Outcome::Success, Failure::fatal().into(), Outcome::Neutral] {
                assert_eq!(driver.record(ticket, outcome), Recorded::Stale);
            }
        }
        assert_eq!(driver.settled(), as_new, "{phase}");
        // The growth of its cooldown is forgotten too.
        let now = driver.now.duration_since(Timestamp::START);
        driver.trip();
        driver.is_open_until(now + secs(30));
    }
}

#[test]
fn any_phase_reset_empties_the_window() {
    let mut driver = Driver::new(ruled(|rules| {
        rules.failure_threshold = 100;
        rules.minimum_calls = 4;
        let window = Window::Calls(4);
        let fraction = 0.5;
        rules.rate = Some(Rate { fraction, window });
    }));
    for _ in 0..3 {
        driver.fail();
    }
    driver.reset();
    for _ in 0..3 {
        driver.fail();
        assert_eq!(driver.state(), State::Closed);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

// ===== what it tells of itself =====

#[test]
fn a_snapshot_says_what_is_in_every_phase() {
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
fn a_snapshot_of_a_lease_that_is_over_tells_of_it_even_after_another_kind_of_failure() {
    let (mut driver, _hung) = Driver::probing(ruled(|rules| rules.failure_threshold = 1));
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
fn a_circuit_rests_as_its_phase_says() {
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
fn a_circuit_rests_unclean_while_its_window_holds_a_failure() {
    let window = Window::Time(secs(10));
    let fraction = 1.0;
    let mut driver = Driver::new(ruled(|rules| rules.rate = Some(Rate { fraction, window })));
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
fn notes_become_events_with_the_name_and_the_lease() {
    let rules = ruled(|rules| rules.probe_timeout = secs(7));
    let told = |pending| format!("{:?}", Circuit::event(pending, Some("search"), &rules));
    let reason = TransitionReason::Reset;
    let (from, to) = (State::Open, State::Closed);
    let generation = 5;
    let name = Some("search");
    let transition = Event::Transition {
        name,
        from,
        to,
        reason,
        generation,
    };
    assert_eq!(
        told(moved(from, to, reason, generation)),
        format!("{transition:?}")
    );
    let started = Event::ProbeStarted {
        name,
        generation,
        lease: secs(7),
    };
    assert_eq!(
        told(PendingEvent::ProbeStarted { generation }),
        format!("{started:?}")
    );
    let expired = Event::LeaseExpired { name, generation };
    assert_eq!(
        told(PendingEvent::LeaseExpired { generation }),
        format!("{expired:?}")
    );
}

// ===== the gate and the oracle =====

#[test]
fn asking_a_thousand_times_changes_nothing_across_every_edge() {
    for edge in [secs(30), secs(60), secs(90)] {
        for (now, _) in around(edge) {
            let (mut driver, _probe) = Driver::probing(Rules::default());
            driver.at(now);
            let before = driver.settled();
            let answers = (driver.would_allow(), driver.snapshot(), driver.retention());
            for _ in 0..1_000 {
                let again = (driver.would_allow(), driver.snapshot(), driver.retention());
                assert_eq!(again, answers);
            }
            assert_eq!(driver.settled(), before);
            assert_eq!(driver.events(), []);
            assert_eq!(driver.try_acquire().map(|_| ()), answers.0);
        }
    }
}

#[test]
fn a_glance_is_enough_wherever_the_machine_need_not_move() {
    for (phase, driver, ..) in in_every_phase() {
        let enough = !matches!(phase, "due" | "vacant" | "expired");
        assert_eq!(driver.try_acquire_lock_free().is_some(), enough, "{phase}");
    }
    let (mut driver, _probe) = Driver::probing(Rules::default());
    for (now, enough) in around(secs(60)) {
        driver.at(now);
        assert_eq!(driver.try_acquire_lock_free().is_some(), enough, "{now:?}");
    }
    // A cooldown without end, and a lease without end.
    let rules = ruled(|rules| rules.recovery_duration = Duration::MAX);
    assert!(Driver::tripped(rules).try_acquire_lock_free().is_some());
    let rules = ruled(|rules| rules.probe_timeout = Duration::MAX);
    let (driver, _probe) = Driver::probing(rules);
    assert!(driver.try_acquire_lock_free().is_some());
}

#[test]
fn a_glance_reads_no_clock_while_closed_and_trusts_no_moment_that_moved() {
    let driver = Driver::defaults();
    let unread = || unreachable!("neither the timestamp nor the clock");
    let answer =
        Circuit::try_acquire_lock_free(driver.packed(), || unreachable!("the timestamp"), unread);
    assert_eq!(answer, Some(Ok(driver.settled().ticket(Role::Ordinary))));
    let open = Driver::tripped(Rules::default());
    let moved = Circuit::try_acquire_lock_free(open.packed(), || None, || open.now);
    assert_eq!(moved, None);
}

// ===== the shortcut =====

#[test]
fn the_shortcut_takes_what_changes_the_streak_alone() {
    let mut driver = Driver::defaults();
    let transient = Outcome::from(Failure::transient());
    let limited = Outcome::from(Failure::rate_limited());
    let taken = [
        transient,
        limited,
        Outcome::Success,
        Outcome::Neutral,
        transient,
    ];
    let streaks = [1, 2, 0, 0, 1];
    for (outcome, streak) in taken.into_iter().zip(streaks) {
        let before = driver.lock_free;
        driver.call(outcome);
        assert_eq!(driver.lock_free, before + 2, "permit and verdict");
        assert_eq!(driver.snapshot().streak, streak);
    }
    let ticket = driver.try_acquire().unwrap();
    let packed = driver.packed();
    let is_taken = |packed, ticket, outcome: Outcome| {
        Circuit::record_lock_free(packed, ticket, outcome, &Rules::default()).is_some()
    };
    assert!(
        is_taken(packed, ticket, transient),
        "the last below the threshold"
    );
    assert!(
        !is_taken(packed.with_streak(2), ticket, transient),
        "a trip"
    );
    assert!(!is_taken(packed, ticket, Failure::fatal().into()));
    assert!(!is_taken(packed, ticket, hinted(Duration::ZERO).into()));
    assert!(!is_taken(PackedState::BUSY, ticket, Outcome::Success));
    let generation = ticket.generation + 1;
    let stale = Ticket {
        generation,
        ..ticket
    };
    for outcome in [Outcome::Success, Outcome::Neutral, transient] {
        assert!(!is_taken(packed, stale, outcome));
    }
}

#[test]
fn the_shortcut_is_closed_while_a_hint_is_remembered_and_with_a_window() {
    let mut driver = Driver::defaults();
    driver.at(secs(1)).call(hinted(secs(1)));
    let ticket = driver.try_acquire().unwrap();
    let packed = driver.packed();
    let rules = Rules::default();
    let short = |packed, outcome| Circuit::record_lock_free(packed, ticket, outcome, &rules);
    assert_eq!(short(packed, Outcome::Success), None);
    driver.record(ticket, Outcome::Success);
    let packed = driver.packed();
    assert_eq!(short(packed, Outcome::Success), Some(packed));

    let window = Window::Calls(20);
    let fraction = 0.5;
    let driver = Driver::new(ruled(|rules| rules.rate = Some(Rate { fraction, window })));
    assert_eq!(short(driver.packed(), Outcome::Success), None);
}

#[test]
fn the_shortcut_stops_at_a_full_word_and_the_machine_counts_on() {
    for threshold in [
        PackedState::FULL,
        PackedState::FULL + 1,
        PackedState::FULL + 3,
    ] {
        let mut driver = Driver::new(ruled(|rules| rules.failure_threshold = threshold));
        let ticket = driver.try_acquire().unwrap();
        driver.packed = driver.packed.with_streak(PackedState::FULL - 2);
        for streak in PackedState::FULL - 1..threshold {
            driver.record(ticket, Failure::transient());
            assert_eq!(driver.state(), State::Closed, "{streak} of {threshold}");
            assert_eq!(driver.snapshot().streak, streak);
        }
        let mut cleared = driver.clone();
        cleared.record(ticket, Outcome::Success);
        assert_eq!(cleared.snapshot().streak, 0);
        driver.record(ticket, Failure::transient());
        assert_eq!(driver.state(), State::Open);
        assert_eq!(driver.snapshot().streak, threshold);
    }
}

#[test]
fn the_streak_saturates() {
    let mut driver = Driver::new(ruled(|rules| rules.failure_threshold = u32::MAX));
    driver.circuit.streak = u32::MAX - 1;
    driver.packed = driver.circuit.packed();
    let ticket = driver.try_acquire().unwrap();
    driver.record(ticket, Failure::transient());
    assert_eq!(driver.snapshot().streak, u32::MAX);
    assert_eq!(driver.state(), State::Open);
}

// ===== neutral results =====

#[test]
fn neutral_results_neither_raise_nor_end_a_streak() {
    // Case 6.
    let mut driver = Driver::defaults();
    driver.fail();
    driver.fail();
    for _ in 0..5 {
        driver.call(Outcome::Neutral);
        assert_eq!(driver.snapshot().streak, 2);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn neutral_results_keep_a_hint_and_are_not_counted_in_the_window() {
    let mut driver = Driver::new(ruled(|rules| {
        rules.minimum_calls = 3;
        rules.failure_threshold = 100;
        let window = Window::Calls(10);
        let fraction = 0.5;
        rules.rate = Some(Rate { fraction, window });
    }));
    driver.call(hinted(secs(100)));
    for _ in 0..10 {
        driver.call(Outcome::Neutral);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Closed, "two of three");
    driver.fail();
    driver.is_open_until(secs(100));
}

// ===== retry_after =====

#[test]
fn retry_after_lengthens_the_cooldown_and_never_shortens_it() {
    for (asked, expected) in [(0, 30), (29, 30), (30, 30), (31, 31), (60, 60)] {
        let mut driver = Driver::defaults();
        driver.fail();
        driver.fail();
        driver.at(secs(5)).call(hinted(secs(asked)));
        driver.is_open_until(secs(5 + expected));
    }
}

#[test]
fn retry_after_is_capped() {
    for (asked, expected) in [
        (secs(299), 299),
        (secs(300), 300),
        (secs(301), 300),
        (secs(9_223_372_037), 300),
        (Duration::MAX, 300),
    ] {
        let mut driver = Driver::new(ruled(|rules| rules.failure_threshold = 1));
        let straggler = driver.try_acquire().unwrap();
        driver.call(hinted(asked));
        driver.is_open_until(secs(expected));
        // And so is that of a straggler, and that of a probe.
        driver.at(secs(10)).record(straggler, hinted(asked));
        driver.is_open_until(secs(10 + expected));
        driver.at(secs(1_000)).call(hinted(asked));
        driver.is_open_until(secs(1_000 + expected));
    }
}

#[test]
fn retry_after_heeds_none_with_a_cap_of_zero_and_all_with_one_of_max() {
    let mut driver = Driver::new(ruled(|rules| rules.retry_after_cap = Duration::ZERO));
    driver.call(hinted(secs(60)));
    driver.trip();
    driver.is_open_until(secs(30));
    let mut driver = Driver::new(ruled(|rules| rules.retry_after_cap = Duration::MAX));
    driver.call(hinted(secs(1_000_000)));
    driver.trip();
    driver.is_open_until(secs(1_000_000));
    let mut driver = Driver::new(ruled(|rules| rules.retry_after_cap = Duration::MAX));
    driver.at(secs(1)).call(hinted(Duration::MAX));
    driver.trip();
    assert_eq!(driver.try_acquire().unwrap_err().wait, None);
    assert!(driver.try_acquire_lock_free().is_some());
}

#[test]
fn retry_after_of_a_straggler_lengthens_a_cooldown_that_runs() {
    // Case 9.
    let mut driver = Driver::defaults();
    let late = [(); 2].map(|()| driver.try_acquire().unwrap());
    driver.fail();
    driver.fail();
    driver.call(hinted(secs(1)));
    driver.is_open_until(secs(30));
    driver.record(late[0], hinted(secs(60)));
    driver.is_open_until(secs(60));
    driver.at(secs(20)).record(late[1], hinted(secs(35)));
    driver.is_open_until(secs(60));
}

#[test]
fn retry_after_heard_earlier_in_the_streak_is_not_forgotten_at_the_trip() {
    let mut driver = Driver::defaults();
    driver.call(hinted(secs(100)));
    driver.at(secs(1)).call(hinted(secs(50)));
    driver.at(secs(2)).fail();
    driver.is_open_until(secs(100));
}

#[test]
fn retry_after_heard_earlier_is_forgotten_after_a_success_and_after_the_trip() {
    let mut driver = Driver::defaults();
    driver.call(hinted(secs(100)));
    driver.succeed();
    driver.trip();
    driver.is_open_until(secs(30));

    let mut driver = Driver::defaults();
    driver.call(hinted(secs(300)));
    driver.trip();
    driver.at(secs(300)).succeed();
    driver.trip();
    driver.is_open_until(secs(330));

    // With nothing but failed probes in between, too: the hint is of the first opening.
    let mut driver = Driver::new(ruled(|rules| rules.retry_after_cap = secs(1_000)));
    driver.call(hinted(secs(100)));
    driver.trip();
    driver.at(secs(100)).fail();
    driver.is_open_until(secs(130));
}

#[test]
fn retry_after_of_a_probe_counts_from_its_failure() {
    let (mut driver, probe) = Driver::probing(Rules::default());
    driver.at(secs(40)).record(probe, hinted(secs(100)));
    driver.is_open_until(secs(140));
    driver.at(secs(140)).fail();
    driver.is_open_until(secs(170));
}

// ===== backoff and jitter =====

#[test]
fn backoff_doubles_the_cooldown_up_to_its_max_and_starts_anew_after_a_close() {
    // Case 15.
    let mut driver = Driver::new(ruled(|rules| {
        rules.recovery_duration = secs(1);
        let (factor, max) = (2.0, secs(60));
        rules.backoff = Some(Backoff { factor, max });
    }));
    let mut now = secs(0);
    driver.trip();
    for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60, 60] {
        driver.is_open_until(now + secs(wait));
        now += secs(wait);
        driver.at(now).fail();
    }
    assert_eq!(driver.snapshot().trips, 11);
    driver.at(now + secs(60)).succeed();
    driver.trip();
    driver.is_open_until(now + secs(61));
}

#[test]
fn backoff_grows_by_a_lease_that_is_over_but_not_by_a_straggler() {
    let mut driver = Driver::new(ruled(|rules| {
        let (factor, max) = (1.5, Duration::MAX);
        rules.backoff = Some(Backoff { factor, max });
    }));
    let straggler = driver.try_acquire().unwrap();
    driver.trip();
    driver.at(secs(10)).record(straggler, Failure::transient());
    driver.is_open_until(secs(40));
    driver.at(secs(40)).try_acquire().expect("the probe");
    driver.at(secs(70)).is_open_until(secs(70 + 45));
    driver.at(secs(115)).fail();
    let left = driver.snapshot().time_left;
    assert_eq!(left, Some(Duration::from_millis(67_500)));
}

#[test]
fn backoff_with_a_max_below_the_recovery_duration_does_not_grow() {
    for max in [secs(0), secs(29), secs(30)] {
        let mut driver = Driver::tripped(ruled(|rules| {
            let factor = 2.0;
            rules.backoff = Some(Backoff { factor, max });
        }));
        driver.at(secs(30)).fail();
        driver.is_open_until(secs(60));
    }
}

#[test]
fn backoff_never_shortens_a_cooldown_that_a_float_rounds_down() {
    let cooldown = Duration::from_nanos((1 << 53) + 1);
    let mut driver = Driver::tripped(ruled(|rules| {
        rules.recovery_duration = cooldown;
        let (factor, max) = (1.0, Duration::MAX);
        rules.backoff = Some(Backoff { factor, max });
    }));
    driver.at(cooldown).fail();
    driver.is_open_until(cooldown * 2);
}

#[test]
fn backoff_of_any_factor_saturates() {
    let mut driver = Driver::new(ruled(|rules| {
        let (factor, max) = (f64::MAX, Duration::MAX);
        rules.backoff = Some(Backoff { factor, max });
    }));
    driver.trip();
    driver.at(secs(30)).fail();
    let denied = driver.try_acquire().unwrap_err();
    assert_eq!((denied.reason, denied.wait), (Reason::CircuitOpen, None));
}

#[test]
fn jitter_spreads_the_probes_over_the_range_and_never_leaves_it() {
    // Case 15.
    let rules = ruled(|rules| {
        rules.failure_threshold = 1;
        rules.recovery_duration = secs(100);
        rules.jitter = 0.15;
    });
    let waits = || {
        (0..1_000).map(|seed| {
            let mut driver = Driver::with_seed(rules.clone(), seed);
            driver.trip();
            let wait = driver.snapshot().time_left.unwrap();
            driver.is_open_until(wait);
            wait
        })
    };
    let (least, most) = (waits().min().unwrap(), waits().max().unwrap());
    assert!(
        least >= secs(100) && most <= secs(115),
        "{least:?} {most:?}"
    );
    assert!(most - least >= secs(12), "{least:?} {most:?}");
    let middle = waits().filter(|wait| *wait < Duration::from_millis(107_500));
    assert!((400..600).contains(&middle.count()), "evenly");
    assert!(waits().eq(waits()), "the same seeds, the same times");
}

#[test]
fn jitter_is_another_at_every_trip_and_comes_on_top_of_the_growth_unmixed() {
    let mut driver = Driver::new(ruled(|rules| {
        rules.recovery_duration = secs(1);
        rules.jitter = 0.5;
        let (factor, max) = (2.0, secs(8));
        rules.backoff = Some(Backoff { factor, max });
    }));
    driver.trip();
    let mut parts = Vec::new();
    for base in [1, 2, 4, 8, 8, 8] {
        let left = driver.snapshot().time_left.unwrap();
        let part = left.as_secs_f64() / secs(base).as_secs_f64();
        assert!((1.0..=1.5).contains(&part), "{base}: {left:?}");
        parts.push(part);
        driver.advance(left).fail();
    }
    parts.sort_by(f64::total_cmp);
    parts.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
    assert_eq!(parts.len(), 6, "{parts:?}");
}

#[test]
fn jitter_makes_a_lease_that_is_over_end_when_the_oracle_said() {
    let (mut driver, _hung) = Driver::probing_jittered();
    let unnoticed = driver.snapshot();
    let foretold = driver.would_allow().unwrap_err();
    assert!(
        foretold.wait.unwrap() > secs(29),
        "one second of it has passed"
    );
    assert_eq!(driver.try_acquire(), Err(foretold));
    assert_eq!(driver.snapshot(), unnoticed);
}

impl Driver {
    /// A lease that ended a second ago, unnoticed.
    fn probing_jittered() -> (Self, Ticket) {
        let mut driver = Self::tripped(ruled(|rules| rules.jitter = 0.5));
        let probe = driver.at(secs(45)).try_acquire().unwrap();
        driver.at(secs(76));
        (driver, probe)
    }
}

#[test]
fn jitter_never_goes_below_a_retry_after() {
    for seed in 0..100 {
        let mut driver = Driver::with_seed(ruled(|rules| rules.jitter = 0.15), seed);
        driver.fail();
        driver.fail();
        driver.call(hinted(secs(33)));
        let left = driver.snapshot().time_left.unwrap();
        assert!(left >= secs(33) && left < Duration::from_millis(34_500));
    }
}

// ===== the failure rate =====

fn rated(fraction: f64, window: Window, minimum: u32) -> Driver {
    Driver::new(ruled(|rules| {
        rules.failure_threshold = u32::MAX;
        rules.rate = Some(Rate { fraction, window });
        rules.minimum_calls = minimum;
    }))
}

#[test]
fn failure_rate_counts_once_the_window_holds_the_minimum_of_calls() {
    let mut driver = rated(0.5, Window::Calls(20), 10);
    for _ in 0..9 {
        driver.fail();
        assert_eq!(driver.state(), State::Closed);
    }
    driver.events();
    driver.fail();
    assert_eq!(driver.state(), State::Open);
    let (closed, open) = (State::Closed, State::Open);
    let tripped = moved(closed, open, TransitionReason::FailureRate, 1);
    assert_eq!(driver.events(), [tripped]);
}

#[test]
fn failure_rate_trips_by_a_success_that_completes_the_minimum() {
    let mut driver = rated(0.5, Window::Calls(20), 4);
    driver.call(hinted(secs(100)));
    driver.fail();
    driver.succeed();
    assert_eq!(driver.state(), State::Closed);
    driver.at(secs(1)).succeed();
    let snapshot = driver.snapshot();
    assert_eq!((snapshot.state, snapshot.streak), (State::Open, 0));
    driver.is_open_until(secs(31));
}

#[test]
fn failure_rate_is_reached_at_its_fraction_exactly() {
    for (failures, trips) in [(2, false), (3, true), (4, true)] {
        let mut driver = rated(0.3, Window::Calls(10), 10);
        for n in 0..10 {
            let failed = n < failures;
            let failure = Failure::transient().into();
            driver.call(if failed { failure } else { Outcome::Success });
        }
        assert_eq!(driver.state() == State::Open, trips, "{failures} of 10");
    }
}

#[test]
fn failure_rate_forgets_the_calls_that_left_the_window() {
    let mut driver = rated(0.5, Window::Calls(4), 4);
    for _ in 0..100 {
        driver.fail();
        for _ in 0..3 {
            driver.succeed();
        }
    }
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(
        driver.state(),
        State::Closed,
        "the one it replaced failed too"
    );
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_over_a_window_smaller_than_the_minimum_needs_it_full() {
    let mut driver = rated(0.5, Window::Calls(3), 10);
    driver.fail();
    driver.fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_over_a_time_forgets_what_is_older() {
    let mut driver = rated(0.5, Window::Time(secs(60)), 3);
    driver.fail();
    driver.fail();
    driver.at(secs(60)).fail();
    assert_eq!(driver.state(), State::Closed);
    driver.at(secs(119)).fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_over_a_time_keeps_its_minimum_whatever_the_window() {
    let mut driver = rated(0.5, Window::Time(NS), 3);
    driver.fail();
    driver.fail();
    assert_eq!(driver.state(), State::Closed);
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_starts_with_an_empty_window_after_a_close() {
    let mut driver = rated(0.5, Window::Calls(4), 4);
    driver.trip();
    driver.at(secs(30)).succeed();
    for _ in 0..3 {
        driver.fail();
        assert_eq!(driver.state(), State::Closed);
    }
    driver.fail();
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn failure_rate_beside_a_threshold_whichever_comes_first() {
    let mut driver = rated(0.5, Window::Calls(4), 4);
    driver.rules.failure_threshold = 4;
    driver.trip();
    let reasons = |events: Vec<PendingEvent>| match events[..] {
        [PendingEvent::Transition { reason, .. }] => reason,
        _ => unreachable!("{events:?}"),
    };
    let reason = TransitionReason::FailureThreshold;
    assert_eq!(reasons(driver.events()), reason);
}

#[test]
fn failure_rate_never_trips_without_a_failure() {
    let mut driver = rated(f64::MIN_POSITIVE, Window::Calls(2), 1);
    for _ in 0..10 {
        driver.succeed();
    }
    assert_eq!(driver.state(), State::Closed);
}

// ===== slow and dropped calls =====

#[test]
fn slow_call_counts_a_success_that_took_at_least_so_long_as_a_failure() {
    let rules = ruled(|rules| rules.slow_call = Some(secs(5)));
    assert!(rules.are_timed());
    for (ran, fast) in around(secs(5)) {
        let judged = rules.judge(Outcome::Success, || ran);
        let slow = Failure::transient().into();
        assert_eq!(judged, if fast { Outcome::Success } else { slow });
    }
    let unread = || unreachable!("only a success is timed");
    for outcome in [hinted(secs(9)).into(), Outcome::Neutral] {
        assert_eq!(rules.judge(outcome, unread), outcome);
    }
    let rules = Rules::default();
    assert!(!rules.are_timed());
    assert_eq!(rules.judge(Outcome::Success, unread), Outcome::Success);
    let rules = ruled(|rules| rules.slow_call = Some(Duration::MAX));
    let longest = || Timestamp::NEVER.duration_since(Timestamp::START);
    assert_eq!(rules.judge(Outcome::Success, longest), Outcome::Success);
}

#[test]
fn cancelled_ignore_says_nothing_and_a_probe_keeps_its_slot_until_its_lease_ends() {
    let (mut driver, probe) = Driver::probing(Rules::default());
    assert!(!driver.rules.are_timed());
    assert_eq!(driver.cancel(probe, secs(9)), None);
    driver.refused(Reason::ProbeInFlight, secs(30));
    driver.at(secs(61)).is_open_until(secs(90));
}

#[test]
fn cancelled_release_gives_the_slot_back_at_once() {
    let rules = ruled(|rules| rules.on_cancel = Cancelled::Release);
    assert!(!rules.are_timed());
    let (mut driver, probe) = Driver::probing(rules);
    for probe in [Some(probe), None, None] {
        let probe = probe.unwrap_or_else(|| driver.try_acquire().unwrap());
        assert_eq!(driver.cancel(probe, secs(9)), Some(Recorded::Applied));
        assert_eq!(driver.state(), State::HalfOpen);
    }
    driver.succeed();
    let ticket = driver.try_acquire().unwrap();
    driver.cancel(ticket, secs(9));
    assert_eq!(driver.snapshot().streak, 0);
}

#[test]
fn cancelled_failure_is_a_failure_now() {
    let rules = ruled(|rules| rules.on_cancel = Cancelled::Failure);
    assert!(!rules.are_timed());
    let (mut driver, probe) = Driver::probing(rules.clone());
    assert_eq!(driver.cancel(probe, NS), Some(Recorded::Applied));
    driver.is_open_until(secs(60));
    let mut driver = Driver::new(rules);
    for streak in 1..=3 {
        let ticket = driver.try_acquire().unwrap();
        driver.cancel(ticket, Duration::ZERO);
        assert_eq!(driver.snapshot().streak, streak);
    }
    assert_eq!(driver.state(), State::Open);
}

#[test]
fn cancelled_failure_after_is_a_failure_if_it_ran_at_least_so_long() {
    // Case 22.
    let rules = ruled(|rules| rules.on_cancel = Cancelled::FailureAfter(secs(5)));
    assert!(rules.are_timed());
    for (ran, early) in around(secs(5)) {
        let (mut driver, probe) = Driver::probing(rules.clone());
        assert_eq!(driver.cancel(probe, ran), Some(Recorded::Applied));
        let state = driver.state();
        assert_eq!(state == State::HalfOpen, early, "{ran:?}");
        let mut driver = Driver::new(rules.clone());
        for _ in 0..3 {
            let ticket = driver.try_acquire().unwrap();
            driver.cancel(ticket, ran);
        }
        assert_eq!(driver.state() == State::Closed, early, "{ran:?}");
    }
}

// ===== extreme settings =====

#[test]
fn zero_and_max_for_each_time_have_a_meaning_and_never_overflow() {
    // Case 17. A zero lease and a zero `slow_call` are no settings.
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
                                &ruled(|rules| {
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
    let straggler = driver.at(now).try_acquire().unwrap();
    driver.call(hinted(hint));
    driver.trip();
    let for_ever = [rules.recovery_duration, hint.min(rules.retry_after_cap)];
    if for_ever.contains(&Duration::MAX) {
        let denied = driver.try_acquire().unwrap_err();
        assert_eq!((denied.reason, denied.wait), (Reason::CircuitOpen, None));
        assert_eq!(driver.snapshot().time_left, None);
        driver.record(straggler, hinted(hint));
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
    driver.record(straggler, hinted(hint));
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
    assert_eq!(driver.settled().generation, 0);
    assert_eq!(driver.record(old, Failure::fatal()), Recorded::Stale);
    driver.succeed();
}

#[test]
fn a_driver_keeps_what_is_told_in_order() {
    // Of the helper: a lost event would blind the tests above.
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
