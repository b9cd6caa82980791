//! Each row of the table.

use super::*;
use crate::vocabulary::Failure;

const PRIMARY: Server = Server::Primary(Role::Ordinary);
const PROBE: Server = Server::Primary(Role::Probe);
const ASIDE: Server = Server::Primary(Role::Aside);
const A: Server = Server::Entry(0);
const B: Server = Server::Entry(1);

/// A chain with its rules, its notes, and the time in seconds.
struct Bench {
    chain: Chain,
    rules: Rules,
    events: EventQueue<PendingEvent>,
    now: u64,
}

impl Bench {
    fn with(set: impl FnOnce(&mut Rules)) -> Self {
        let mut rules = Rules::new("p".into());
        rules.entries = vec!["a".into(), "b".into()];
        set(&mut rules);
        Self {
            chain: Chain::new(&rules),
            rules,
            events: EventQueue::default(),
            now: 0,
        }
    }

    fn new() -> Self {
        Self::with(|_| {})
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        assert!(seconds >= self.now);
        self.now = seconds;
        self
    }

    fn now(&self) -> Timestamp {
        Timestamp::START.saturating_add(Duration::from_secs(self.now))
    }

    /// Begins a turn as a caller does whose primary is ready, and checks the oracle by the way.
    fn begin(&mut self) -> Result<Ticket, Denied> {
        let now = self.now();
        let oracle = self.chain.would_serve(&self.rules, now);
        let gate = self
            .chain
            .begin(&self.rules, now, Readied::Primary, &mut self.events);
        assert_eq!(gate.map(|ticket| ticket.server), oracle);
        gate
    }

    /// Begins a turn that `server` is to serve.
    fn on(&mut self, server: Server) -> Ticket {
        let ticket = self.begin().expect("admitted");
        assert_eq!(ticket.server, server);
        ticket
    }

    fn record(&mut self, ticket: Ticket, outcome: impl Into<Outcome>) -> Recorded {
        let now = self.now();
        self.chain
            .record(&self.rules, now, ticket, outcome.into(), &mut self.events)
    }

    /// A frame of the turn whose ticket this is.
    fn renew(&mut self, ticket: Ticket) -> bool {
        let now = self.now();
        renew(&mut self.chain, &self.rules, now, ticket)
    }

    fn turn(&mut self, server: Server, outcome: impl Into<Outcome>) -> Recorded {
        let ticket = self.on(server);
        self.record(ticket, outcome)
    }

    fn fails(&mut self, server: Server) -> Recorded {
        self.turn(server, Failure::transient())
    }

    fn succeeds(&mut self, server: Server) -> Recorded {
        self.turn(server, Outcome::Success)
    }

    /// Trips at the present time.
    fn trip(&mut self) -> &mut Self {
        for _ in 0..self.rules.trip_threshold {
            self.fails(PRIMARY);
        }
        assert_eq!(self.state(), FallbackState::Fallback);
        self
    }

    /// Begins a turn that is refused; answers why, and the seconds that are left.
    fn refused(&mut self) -> (Reason, Option<u64>) {
        let denied = self.begin().expect_err("refused");
        (denied.reason, denied.wait.map(|wait| wait.as_secs()))
    }

    fn snapshot(&self) -> FallbackSnapshot {
        self.chain
            .snapshot(self.chain.packed(), &self.rules, self.now())
    }

    fn state(&self) -> FallbackState {
        self.snapshot().state
    }

    fn strikes(&self) -> Vec<u32> {
        let entries = self.snapshot().entries;
        entries.iter().map(|entry| entry.strikes).collect()
    }

    fn told(&mut self) -> Vec<PendingEvent> {
        let mut all = Vec::new();
        if self.events.begin() {
            while let Some(crate::machinery::event_queue::Queued::Event(pending)) =
                self.events.next()
            {
                all.push(pending);
            }
        }
        all
    }

    fn transitions(&mut self) -> Vec<(FallbackState, FallbackState, TransitionReason)> {
        let told = self.told().into_iter();
        told.filter_map(|pending| match pending {
            PendingEvent::Transition {
                from, to, reason, ..
            } => Some((from, to, reason)),
            _ => None,
        })
        .collect()
    }
}

/// A frame of the turn whose ticket this is. Answers whether its lease started anew, as it must if and only if the machine would take its verdict for
/// that of the probe that is out.
pub(super) fn renew(chain: &mut Chain, rules: &Rules, now: Timestamp, ticket: Ticket) -> bool {
    let packed = chain.packed();
    let was = chain.deadline();
    let renewed = Chain::renewed(packed, was, ticket, rules, now);
    let lives = chain.phase == Phase::Probing
        && ticket.server == PROBE
        && chain.clone().record(
            rules,
            now,
            ticket,
            Outcome::Neutral,
            &mut EventQueue::default(),
        ) == Recorded::Applied;
    assert_eq!(renewed.is_some(), lives, "the machine tells otherwise");
    let Some(deadline) = renewed else {
        return false;
    };
    assert!(deadline >= was, "a frame shortened the lease");
    assert_eq!(deadline, now.saturating_add(rules.probe_timeout));
    // Nothing but the moment is another.
    let expected = Chain {
        deadline,
        ..chain.clone()
    };
    chain.take_over(packed, deadline);
    assert_eq!(*chain, expected);
    assert_eq!(chain.packed(), packed, "a frame moved the packed");
    true
}

fn rate_limited(seconds: u64) -> Failure {
    Failure::rate_limited().with_retry_after(Duration::from_secs(seconds))
}

#[test]
fn primary_success_zeroes_the_consecutive_failures() {
    let mut bench = Bench::new();
    for _ in 0..1000 {
        bench.fails(PRIMARY);
        bench.fails(PRIMARY);
        assert_eq!(bench.snapshot().consecutive_failures, 2);
        assert_eq!(bench.succeeds(PRIMARY), Recorded::Applied);
        assert_eq!(bench.snapshot().consecutive_failures, 0);
    }
    assert_eq!(bench.state(), FallbackState::Primary);
    assert!(!bench.snapshot().fallback_activated);
}

#[test]
fn primary_failure_trips_at_the_threshold() {
    let mut bench = Bench::new();
    bench.at(5);
    assert_eq!(bench.fails(PRIMARY), Recorded::Applied);
    bench.fails(PRIMARY);
    assert_eq!(bench.state(), FallbackState::Primary);
    assert_eq!(bench.told(), []);
    bench.fails(PRIMARY);
    let snapshot = bench.snapshot();
    assert_eq!(snapshot.state, FallbackState::Fallback);
    assert!(snapshot.fallback_activated);
    assert!(!snapshot.due);
    assert_eq!(
        (snapshot.consecutive_failures, snapshot.probe_successes),
        (0, 0)
    );
    assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(60)));
    assert_eq!(snapshot.trips, 1);
    assert_eq!(snapshot.last_failure, Some(FailureKind::Transient));
    assert_eq!(
        bench.told(),
        [PendingEvent::Transition {
            from: FallbackState::Primary,
            to: FallbackState::Fallback,
            reason: TransitionReason::FailureThreshold,
            generation: 1,
            first: Some(0),
        }]
    );
}

#[test]
fn primary_fatal_failure_trips_at_once() {
    let mut bench = Bench::new();
    bench.turn(PRIMARY, Failure::fatal());
    assert_eq!(
        bench.transitions(),
        [(
            FallbackState::Primary,
            FallbackState::Fallback,
            TransitionReason::FatalFailure
        )]
    );
    assert_eq!(bench.snapshot().last_failure, Some(FailureKind::Fatal));
}

#[test]
fn primary_rate_limit_counts_as_one_failure() {
    let mut bench = Bench::new();
    bench.turn(PRIMARY, Failure::rate_limited());
    assert_eq!(bench.state(), FallbackState::Primary);
    assert_eq!(bench.snapshot().consecutive_failures, 1);
}

#[test]
fn primary_neutral_neither_raises_nor_resets_the_streak() {
    let mut bench = Bench::new();
    bench.fails(PRIMARY);
    bench.fails(PRIMARY);
    for _ in 0..5 {
        bench.turn(PRIMARY, Outcome::Neutral);
        assert_eq!(bench.snapshot().consecutive_failures, 2);
    }
    bench.fails(PRIMARY);
    assert_eq!(bench.state(), FallbackState::Fallback);
}

#[test]
fn fallback_moves_to_recovering_before_a_turn_when_the_cooldown_is_over() {
    let mut bench = Bench::new();
    bench.trip().at(59);
    bench.succeeds(A);
    assert_eq!(bench.state(), FallbackState::Fallback);
    bench.at(60);
    let snapshot = bench.snapshot();
    assert_eq!(
        snapshot.state,
        FallbackState::Fallback,
        "deadline a turn moves it"
    );
    assert!(snapshot.due);
    assert_eq!(snapshot.time_until_probe, Some(Duration::ZERO));
    bench.told();
    bench.on(PROBE);
    assert_eq!(bench.state(), FallbackState::Recovering);
    assert_eq!(
        bench.told(),
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
    let mut bench = Bench::new();
    bench.trip().at(60);
    let now = bench.now();
    let ticket = bench
        .chain
        .begin(&bench.rules, now, Readied::Entry(0), &mut bench.events);
    assert_eq!(ticket.map(|ticket| ticket.server), Ok(A));
    let snapshot = bench.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.due),
        (FallbackState::Recovering, true)
    );
    bench.on(PROBE);
}

#[test]
fn fallback_turn_goes_to_the_first_entry_that_is_not_failed() {
    let mut bench = Bench::new();
    bench.trip();
    bench.succeeds(A);
    bench.chain.set_disabled(0, true, &mut bench.events);
    bench.succeeds(B);
    bench.chain.set_disabled(0, false, &mut bench.events);
    bench.fails(A);
    bench.succeeds(A);
    bench.fails(A);
    for _ in 0..10 {
        bench.succeeds(B);
    }
    let entries = bench.snapshot().entries;
    assert_eq!((entries[0].failed, entries[0].disabled), (true, false));
    assert_eq!((entries[1].failed, entries[1].disabled), (false, false));
}

#[test]
fn fallback_turn_with_no_live_entry_is_refused_with_the_time_until_the_probe() {
    let mut bench = Bench::new();
    bench.trip();
    bench.turn(A, Failure::fatal());
    bench.turn(B, Failure::fatal());
    bench.at(20);
    assert_eq!(bench.refused(), (Reason::FallbackExhausted, Some(40)));
    assert_eq!(bench.begin().unwrap_err().last, Some(FailureKind::Fatal));
    bench.at(59);
    assert_eq!(bench.refused(), (Reason::FallbackExhausted, Some(1)));
    bench.at(60);
    bench.on(PROBE);
}

#[test]
fn fallback_without_a_chain_keeps_serving_the_primary_whose_results_say_nothing() {
    let mut bench = Bench::with(|rules| rules.entries.clear());
    bench.trip();
    assert_eq!(
        bench.told().last(),
        Some(&PendingEvent::Transition {
            from: FallbackState::Primary,
            to: FallbackState::Fallback,
            reason: TransitionReason::FailureThreshold,
            generation: 1,
            first: None,
        })
    );
    bench.at(30);
    assert_eq!(bench.fails(ASIDE), Recorded::Applied);
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(30))
    );
    bench.succeeds(ASIDE);
    bench.turn(ASIDE, Failure::fatal());
    bench.at(60);
    bench.succeeds(PROBE);
    bench.succeeds(PROBE);
    assert_eq!(bench.state(), FallbackState::Primary);
}

#[test]
fn fallback_with_no_live_entry_serves_the_primary_as_a_last_resort() {
    let mut bench = Bench::with(|rules| rules.when_exhausted = Exhausted::LastResort);
    bench.trip();
    bench.turn(A, Failure::fatal());
    bench.succeeds(B);
    bench.turn(B, Failure::fatal());
    bench.at(30);
    bench.fails(ASIDE);
    bench.succeeds(ASIDE);
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(30))
    );
    bench.at(60);
    let probe = bench.on(PROBE);
    bench.succeeds(ASIDE);
    assert_eq!(bench.snapshot().probe_successes, 0);
    bench.record(probe, Outcome::Success);
    assert_eq!(bench.snapshot().probe_successes, 1);
}

#[test]
fn fallback_backup_failure_is_the_strike_of_that_entry_and_a_success_changes_nothing() {
    let mut bench = Bench::new();
    bench.trip();
    bench.told();
    bench.fails(A);
    bench.succeeds(A);
    assert_eq!(bench.strikes(), [1, 0]);
    bench.turn(A, Outcome::Neutral);
    assert_eq!(bench.strikes(), [1, 0]);
    bench.fails(A);
    bench.fails(B);
    assert_eq!(bench.strikes(), [2, 1]);
    let change = |entry, change, strikes| PendingEvent::Entry {
        entry,
        change,
        strikes,
    };
    assert_eq!(
        bench.told(),
        [
            change(0, EntryChange::Struck, 1),
            change(0, EntryChange::Spent, 2),
            change(1, EntryChange::Struck, 1)
        ]
    );
}

#[test]
fn fallback_backup_hint_never_moves_the_primarys_cooldown() {
    let mut bench = Bench::new();
    bench.trip();
    bench.turn(A, rate_limited(200));
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(60))
    );
}

#[test]
fn fallback_fatal_backup_failure_spends_its_budget() {
    let mut bench = Bench::with(|rules| rules.max_fail_count = 5);
    bench.trip();
    bench.turn(A, Failure::fatal());
    assert_eq!(bench.strikes(), [5, 0]);
    bench.on(B);
}

#[test]
fn fallback_stale_failure_of_the_primary_restarts_the_cooldown_and_a_success_does_not() {
    let mut bench = Bench::new();
    let late = [bench.on(PRIMARY), bench.on(PRIMARY), bench.on(PRIMARY)];
    bench.trip().at(20);
    assert_eq!(bench.record(late[0], Outcome::Success), Recorded::Stale);
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(40))
    );
    assert_eq!(bench.record(late[1], Failure::transient()), Recorded::Stale);
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(60))
    );
    bench.record(late[2], rate_limited(90));
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(90))
    );
    assert_eq!(
        bench.snapshot().last_failure,
        Some(FailureKind::RateLimited)
    );
    assert_eq!(bench.strikes(), [0, 0]);
    assert_eq!(bench.transitions().len(), 1);
}

#[test]
fn recovering_turn_is_the_probe_and_while_it_is_in_flight_the_others_go_to_the_chain() {
    let mut bench = Bench::new();
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    assert_eq!(bench.snapshot().lease_left, Some(Duration::from_secs(120)));
    assert_eq!(bench.snapshot().time_until_probe, None);
    for _ in 0..3 {
        bench.succeeds(A);
    }
    bench.fails(A);
    bench.fails(A);
    bench.succeeds(B);
    bench.record(probe, Outcome::Success);
    assert_eq!(bench.snapshot().lease_left, None);
    bench.on(PROBE);
}

#[test]
fn recovering_turn_with_the_slot_taken_and_no_live_entry_is_refused() {
    let mut bench = Bench::new();
    bench.trip();
    bench.turn(A, Failure::fatal());
    bench.turn(B, Failure::fatal());
    bench.at(60);
    let probe = bench.on(PROBE);
    bench.at(100);
    assert_eq!(bench.refused(), (Reason::ProbeInFlight, Some(80)));
    bench.record(probe, Outcome::Neutral);
    bench.on(PROBE);
}

#[test]
fn recovering_turn_with_the_slot_taken_and_no_chain_is_served_by_the_primary() {
    let mut bench = Bench::with(|rules| rules.entries.clear());
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    bench.succeeds(ASIDE);
    bench.turn(ASIDE, Failure::fatal());
    assert_eq!(bench.snapshot().probe_successes, 0);
    assert_eq!(bench.state(), FallbackState::Recovering);
    bench.record(probe, Outcome::Success);
    assert_eq!(bench.snapshot().probe_successes, 1);
}

#[test]
fn recovering_probe_success_counts_and_at_the_number_needed_everything_is_zeroed() {
    let mut bench = Bench::new();
    bench.trip();
    bench.fails(A);
    bench.fails(A);
    bench.fails(B);
    bench.at(60);
    bench.succeeds(PROBE);
    assert_eq!(bench.state(), FallbackState::Recovering);
    assert_eq!(bench.strikes(), [2, 1]);
    bench.told();
    bench.succeeds(PROBE);
    let snapshot = bench.snapshot();
    assert_eq!(snapshot.state, FallbackState::Primary);
    assert_eq!(snapshot.probe_successes, 0);
    assert_eq!(snapshot.time_until_probe, None);
    assert!(snapshot.fallback_activated, "for good");
    assert_eq!(bench.strikes(), [0, 0]);
    assert_eq!(
        bench.transitions(),
        [(
            FallbackState::Recovering,
            FallbackState::Primary,
            TransitionReason::ProbeSucceeded
        )]
    );
    bench.fails(PRIMARY);
    bench.fails(PRIMARY);
    assert_eq!(bench.state(), FallbackState::Primary);
}

#[test]
fn recovering_rate_limited_probe_trips_at_once_with_a_new_cooldown() {
    for failure in [Failure::rate_limited(), Failure::fatal()] {
        let mut bench = Bench::new();
        bench.trip().at(60);
        bench.succeeds(PROBE);
        bench.at(70);
        bench.told();
        bench.turn(PROBE, failure);
        let snapshot = bench.snapshot();
        assert_eq!(snapshot.state, FallbackState::Fallback);
        assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(60)));
        assert_eq!((snapshot.probe_successes, snapshot.trips), (0, 2));
        assert_eq!(
            bench.told().pop(),
            Some(PendingEvent::Transition {
                from: FallbackState::Recovering,
                to: FallbackState::Fallback,
                reason: TransitionReason::ProbeFailed,
                generation: 3,
                first: Some(0),
            })
        );
    }
}

#[test]
fn recovering_rate_limited_probe_hint_lengthens_the_cooldown_within_the_cap() {
    let mut bench = Bench::new();
    bench.trip().at(60);
    bench.turn(PROBE, rate_limited(100));
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(100))
    );
    bench.at(160);
    bench.turn(PROBE, rate_limited(u64::MAX));
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(300))
    );
    bench.at(460);
    bench.turn(PROBE, rate_limited(1));
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(60))
    );
}

#[test]
fn recovering_transient_probe_failure_zeroes_the_success_count_and_stays() {
    let mut bench = Bench::new();
    bench.trip().at(60);
    bench.succeeds(PROBE);
    assert_eq!(bench.snapshot().probe_successes, 1);
    bench.fails(PROBE);
    let snapshot = bench.snapshot();
    assert_eq!(snapshot.state, FallbackState::Recovering);
    assert_eq!((snapshot.probe_successes, snapshot.probe_failures), (0, 1));
    assert_eq!(snapshot.time_until_probe, Some(Duration::ZERO));
    for _ in 0..100 {
        bench.fails(PROBE);
    }
    bench.succeeds(PROBE);
    assert_eq!(bench.state(), FallbackState::Recovering);
    assert_eq!(bench.snapshot().probe_failures, 0);
    bench.succeeds(PROBE);
    assert_eq!(bench.state(), FallbackState::Primary);
}

#[test]
fn recovering_probation_limit_trips_at_that_many_transient_failures_in_a_row() {
    let mut bench = Bench::with(|rules| rules.probation_limit = Some(3));
    bench.trip().at(60);
    bench.fails(PROBE);
    bench.fails(PROBE);
    bench.succeeds(PROBE);
    bench.fails(PROBE);
    bench.turn(PROBE, Outcome::Neutral);
    bench.fails(PROBE);
    assert_eq!(bench.state(), FallbackState::Recovering);
    bench.at(61);
    bench.fails(PROBE);
    assert_eq!(bench.state(), FallbackState::Fallback);
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(60))
    );
    assert_eq!(bench.snapshot().probe_failures, 0);
    bench.at(121);
    bench.fails(PROBE);
    assert_eq!(bench.state(), FallbackState::Recovering, "counts anew");
}

#[test]
fn recovering_probe_shows_a_sign_of_life_and_the_lease_starts_anew() {
    for (second, live) in [(179, true), (180, false), (181, false)] {
        let mut bench = Bench::new();
        bench.trip().at(60);
        bench.succeeds(PROBE);
        let probe = bench.on(PROBE);
        bench.told();
        bench.at(second);
        assert_eq!(bench.renew(probe), live, "at {second} s");
        if live {
            assert_eq!(bench.snapshot().lease_left, Some(Duration::from_secs(120)));
            bench.at(298);
            bench.succeeds(A);
            assert_eq!(bench.snapshot().lease_left, Some(Duration::from_secs(1)));
            assert_eq!(bench.told(), [], "nobody hears of a frame");
            assert_eq!(bench.record(probe, Outcome::Success), Recorded::Applied);
            assert_eq!(bench.state(), FallbackState::Primary);
        } else {
            assert_eq!(bench.snapshot().probe_failures, 1);
            assert_eq!(bench.record(probe, Outcome::Success), Recorded::Stale);
            assert!(!bench.renew(probe), "noticed, it is over all the same");
            assert_eq!(bench.snapshot().lease_left, None);
        }
    }
}

#[test]
fn recovering_probe_shows_a_sign_of_life_to_the_nanosecond() {
    let mut bench = Bench::new();
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    let (packed, deadline, rules) = (bench.chain.packed(), bench.chain.deadline(), &bench.rules);
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
    let mut bench = Bench::with(|rules| rules.probation_limit = Some(1));
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    for second in 1..=1_000 {
        bench.at(60 + second * 119);
        assert!(bench.renew(probe));
        assert!(bench.renew(probe), "two in one instant are as one");
        bench.succeeds(A);
    }
    let last = bench.now;
    bench.at(last + 130);
    let snapshot = bench.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.trips),
        (FallbackState::Fallback, 2)
    );
    assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(50)));
    assert_eq!(bench.record(probe, Outcome::Success), Recorded::Stale);
}

#[test]
fn recovering_sign_of_life_of_any_other_turn_renews_nothing() {
    let mut bench = Bench::new();
    let ordinary = bench.on(PRIMARY);
    assert!(
        !bench.renew(ordinary),
        "while the primary serves there is no lease"
    );
    bench.trip();
    let backup = bench.on(A);
    assert!(!bench.renew(ordinary), "nor in a fallback");
    let hung = bench.at(60).on(PROBE);
    let next = bench.at(180).on(PROBE);
    let beside = bench.on(A);
    let aside = bench.chain.ticket(ASIDE);
    bench.at(200);
    for other in [ordinary, backup, hung, beside, aside] {
        assert!(!bench.renew(other), "{other:?}");
        assert_eq!(bench.snapshot().lease_left, Some(Duration::from_secs(100)));
    }
    assert!(bench.renew(next));
    assert_eq!(bench.snapshot().lease_left, Some(Duration::from_secs(120)));
    // Whatever an entry's change does to the word.
    bench.chain.set_disabled(0, true, &mut bench.events);
    assert!(bench.renew(next));
    bench.chain.set_disabled(1, true, &mut bench.events);
    assert!(bench.renew(next));
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
        let mut bench = Bench::new();
        bench.trip().at(60);
        let probe = bench.on(PROBE);
        bench.record(probe, outcome);
        let deadline = bench.chain.deadline();
        let (packed, now) = (bench.chain.packed(), bench.now());
        let renewed = Chain::renewed(packed, deadline, probe, &bench.rules, now);
        assert_eq!(renewed, None, "{outcome:?}");
    }
    let mut bench = Bench::new();
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    let now = bench.now();
    bench.chain.reset(&bench.rules, now, &mut bench.events);
    assert!(!bench.renew(probe));
    assert_eq!(bench.chain.deadline(), Timestamp::NEVER);
}

#[test]
fn recovering_sign_of_life_of_a_probe_whose_lease_has_no_end_leaves_it_so() {
    let mut bench = Bench::with(|rules| rules.probe_timeout = Duration::MAX);
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    for second in [61, 9_000_000_000] {
        assert!(bench.at(second).renew(probe));
        assert_eq!(bench.snapshot().lease_left, None);
        bench.succeeds(A);
    }
    assert_eq!(bench.record(probe, Outcome::Success), Recorded::Applied);
}

#[test]
fn recovering_lease_over_without_any_cooldown_leaves_a_moment_that_no_late_frame_takes_for_its_own()
{
    for outcome in [Outcome::Success, Failure::transient().into()] {
        let mut bench = Bench::with(|rules| {
            rules.probation_limit = Some(1);
            rules.recovery_timeout = Duration::ZERO;
        });
        let stale = bench.on(PRIMARY);
        bench.trip();
        let hung = bench.on(PROBE);
        let end = bench.chain.deadline();
        // Whoever notices it at once, and is not the next probe.
        bench.at(120);
        assert_eq!(bench.record(stale, outcome), Recorded::Stale);
        assert!(bench.chain.deadline() < end, "{outcome:?}");
        assert!(bench.snapshot().due);
        assert!(!bench.renew(hung));
        bench.on(PROBE);
    }
}

#[test]
fn recovering_lease_over_is_a_transient_failure_however_late_it_is_noticed() {
    let mut bench = Bench::new();
    bench.trip().at(60);
    bench.succeeds(PROBE);
    let probe = bench.on(PROBE);
    bench.at(179);
    bench.succeeds(A);
    assert_eq!(bench.snapshot().probe_successes, 1);
    bench.told();
    bench.at(180);
    let snapshot = bench.snapshot();
    assert_eq!((snapshot.probe_successes, snapshot.probe_failures), (0, 1));
    assert!(snapshot.due);
    assert_eq!(bench.record(probe, Outcome::Success), Recorded::Stale);
    assert_eq!(bench.snapshot(), snapshot);
    assert_eq!(bench.told(), [PendingEvent::LeaseExpired { generation: 2 }]);
    let next = bench.on(PROBE);
    bench.at(1000);
    let another = bench.on(PROBE);
    assert_eq!(bench.record(next, Failure::fatal()), Recorded::Stale);
    assert_eq!(bench.state(), FallbackState::Recovering);
    assert_eq!(bench.record(another, Outcome::Success), Recorded::Applied);
    assert_eq!(bench.snapshot().probe_successes, 1);
}

#[test]
fn recovering_lease_over_at_the_probation_limit_trips_from_the_leases_end() {
    let mut bench = Bench::with(|rules| rules.probation_limit = Some(1));
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    bench.at(190);
    let snapshot = bench.snapshot();
    assert_eq!(snapshot.state, FallbackState::Fallback);
    assert_eq!(snapshot.time_until_probe, Some(Duration::from_secs(50)));
    assert_eq!((snapshot.trips, snapshot.probe_failures), (2, 0));
    bench.told();
    bench.succeeds(A);
    assert_eq!(bench.snapshot(), snapshot);
    assert_eq!(
        bench.transitions(),
        [(
            FallbackState::Recovering,
            FallbackState::Fallback,
            TransitionReason::LeaseExpired
        )]
    );
    assert_eq!(bench.record(probe, Failure::transient()), Recorded::Stale);
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(60)),
        "a stale failure like any other"
    );

    let mut late = Bench::with(|rules| rules.probation_limit = Some(1));
    late.trip().at(60);
    late.on(PROBE);
    late.at(240);
    late.on(PROBE);
    assert_eq!(late.snapshot().trips, 2);
}

#[test]
fn recovering_neutral_probe_frees_the_slot() {
    let mut bench = Bench::new();
    bench.trip().at(60);
    bench.succeeds(PROBE);
    bench.turn(PROBE, Outcome::Neutral);
    assert_eq!(bench.snapshot().probe_successes, 1);
    bench.on(PROBE);
}

#[test]
fn any_other_stale_result_of_the_primary_changes_nothing() {
    let mut bench = Bench::new();
    let old = [bench.on(PRIMARY), bench.on(PRIMARY), bench.on(PRIMARY)];
    bench.trip().at(60);
    let probe = bench.on(PROBE);
    let before = bench.snapshot();
    assert_eq!(bench.record(old[0], Failure::fatal()), Recorded::Stale);
    assert_eq!(bench.record(old[1], Outcome::Success), Recorded::Stale);
    assert_eq!(bench.snapshot(), before);
    bench.record(probe, Outcome::Success);
    bench.succeeds(PROBE);
    let before = bench.snapshot();
    assert_eq!(bench.record(old[2], Failure::fatal()), Recorded::Stale);
    assert_eq!(bench.snapshot(), before);
}

#[test]
fn any_backup_failure_is_its_strike_unless_the_chain_was_cleared_since() {
    let mut bench = Bench::new();
    bench.trip();
    let late = [bench.on(A), bench.on(A), bench.on(A)];
    bench.at(60);
    bench.succeeds(PROBE);
    assert_eq!(
        bench.record(late[0], Failure::transient()),
        Recorded::Applied
    );
    assert_eq!(bench.strikes(), [1, 0]);
    assert_eq!(bench.record(late[1], Outcome::Success), Recorded::Applied);
    assert_eq!(bench.snapshot().probe_successes, 1, "never the primary's");
    bench.succeeds(PROBE);
    assert_eq!(bench.record(late[2], Failure::transient()), Recorded::Stale);
    assert_eq!(bench.strikes(), [0, 0]);
}

#[test]
fn any_failure_of_a_backup_that_was_readied_is_its_strike_in_state_primary_too() {
    let mut bench = Bench::new();
    let now = bench.now();
    let ticket = bench
        .chain
        .begin(&bench.rules, now, Readied::Entry(1), &mut bench.events)
        .unwrap();
    assert_eq!(ticket.server, B);
    bench.record(ticket, Failure::transient());
    assert_eq!(bench.strikes(), [0, 1]);
    assert_eq!(bench.snapshot().consecutive_failures, 0);
}

#[test]
fn any_spent_entry_has_a_fresh_budget_after_its_time_on_the_bench() {
    let mut bench = Bench::with(|rules| {
        rules.bench = Some(Duration::from_secs(30));
        rules.max_fail_count = 1;
    });
    bench.trip();
    bench.at(10);
    let late = bench.on(A);
    bench.fails(A);
    bench.at(20);
    bench.record(late, Failure::transient());
    assert_eq!(bench.strikes(), [2, 0]);
    assert_eq!(
        bench.snapshot().entries[0].bench_left,
        Some(Duration::from_secs(20)),
        "it counts from when the budget was spent"
    );
    bench.at(39);
    bench.on(B);
    bench.at(40);
    let entries = bench.snapshot().entries;
    assert_eq!((entries[0].strikes, entries[0].failed), (0, false));
    assert_eq!(entries[0].bench_left, None);
    bench.told();
    bench.succeeds(A);
    assert_eq!(
        bench.told(),
        [PendingEvent::Entry {
            entry: 0,
            change: EntryChange::Restored,
            strikes: 0
        }]
    );
    bench.fails(A);
    bench.on(B);
}

#[test]
fn any_success_clears_the_strikes_of_its_entry_if_it_is_told_to_but_not_a_spent_budget() {
    let mut bench = Bench::with(|rules| rules.strikes_reset_on_success = true);
    bench.trip();
    bench.fails(A);
    bench.succeeds(A);
    assert_eq!(bench.strikes(), [0, 0]);
    let late = bench.on(A);
    bench.fails(A);
    bench.fails(A);
    bench.record(late, Outcome::Success);
    assert_eq!(bench.strikes(), [2, 0]);
}

#[test]
fn any_reset_is_a_new_life_and_keeps_what_is_disabled() {
    let mut bench = Bench::new();
    let old = bench.on(PRIMARY);
    bench.trip();
    let backup = bench.on(A);
    bench.fails(A);
    bench.chain.set_disabled(1, true, &mut bench.events);
    bench.at(60);
    let probe = bench.on(PROBE);
    let now = bench.now();
    bench.chain.reset(&bench.rules, now, &mut bench.events);
    let fresh = bench.snapshot();
    assert_eq!(fresh.state, FallbackState::Primary);
    assert!(!fresh.fallback_activated);
    assert_eq!((fresh.trips, fresh.last_failure), (0, None));
    assert_eq!(bench.strikes(), [0, 0]);
    assert!(fresh.entries[1].disabled);
    for ticket in [old, backup, probe] {
        assert_eq!(bench.record(ticket, Failure::fatal()), Recorded::Stale);
    }
    assert_eq!(bench.snapshot(), fresh);
    bench.on(PRIMARY);
}

#[test]
fn a_hint_heard_earlier_in_the_same_streak_is_not_forgotten_and_the_later_deadline_wins() {
    let mut bench = Bench::new();
    bench.turn(PRIMARY, rate_limited(200));
    bench.turn(PRIMARY, rate_limited(1));
    bench.at(10);
    bench.fails(PRIMARY);
    assert_eq!(
        bench.snapshot().time_until_probe,
        Some(Duration::from_secs(190))
    );

    let mut ended = Bench::new();
    ended.turn(PRIMARY, rate_limited(200));
    ended.succeeds(PRIMARY);
    ended.trip();
    assert_eq!(
        ended.snapshot().time_until_probe,
        Some(Duration::from_secs(60))
    );

    let mut probing = Bench::with(|rules| rules.probation_limit = Some(2));
    probing.trip().at(60);
    let hint = Failure::transient().with_retry_after(Duration::from_secs(200));
    probing.turn(PROBE, hint);
    probing.fails(PROBE);
    assert_eq!(
        probing.snapshot().time_until_probe,
        Some(Duration::from_secs(200))
    );
}

#[test]
fn a_caller_with_nothing_ready_is_served_by_an_entry_or_not_at_all() {
    let mut bench = Bench::new();
    let begin = |bench: &mut Bench| {
        let now = bench.now();
        bench
            .chain
            .begin(&bench.rules, now, Readied::Nothing, &mut bench.events)
            .map(|ticket| ticket.server)
    };
    assert_eq!(begin(&mut bench), Err(Denied::NOT_READY));
    bench.trip();
    assert_eq!(begin(&mut bench), Ok(A));
    bench.at(60);
    let before = bench.chain.clone();
    assert_eq!(begin(&mut bench), Err(Denied::NOT_READY));
    assert_eq!(bench.chain, before, "no probe is taken");
}

#[test]
fn a_turn_goes_on_to_the_next_live_entry_only() {
    let mut bench = Bench::new();
    let go_on = |bench: &Bench, failed| {
        let ticket = bench.chain.go_on(&bench.rules, bench.now(), failed);
        ticket.map(|ticket| ticket.server)
    };
    assert_eq!(go_on(&bench, PRIMARY), Some(A));
    assert_eq!(go_on(&bench, A), Some(B));
    assert_eq!(go_on(&bench, B), None);
    bench.chain.set_disabled(0, true, &mut bench.events);
    assert_eq!(go_on(&bench, PROBE), Some(B));
}

#[test]
fn the_word_tells_waiters_of_every_transition_and_of_every_change_of_the_liveness_of_an_entry() {
    let mut bench = Bench::with(|rules| rules.bench = Some(Duration::from_secs(30)));
    let mut seen = bench.chain.packed();
    let mut told = |bench: &Bench| {
        let packed = bench.chain.packed();
        let differs = seen.differs_for_waiters(packed);
        seen = packed;
        differs
    };
    bench.fails(PRIMARY);
    assert!(!told(&bench));
    bench.fails(PRIMARY);
    bench.fails(PRIMARY);
    assert!(told(&bench));
    bench.fails(A);
    assert!(!told(&bench));
    bench.fails(A);
    assert!(told(&bench), "spent");
    bench.chain.set_disabled(1, true, &mut bench.events);
    assert!(told(&bench), "disabled");
    bench.chain.set_disabled(1, true, &mut bench.events);
    assert!(!told(&bench), "nothing new");
    bench.chain.set_disabled(1, false, &mut bench.events);
    assert!(told(&bench), "enabled");
    bench.turn(B, Failure::fatal());
    assert!(told(&bench), "spent");
    bench.at(30);
    bench.on(A);
    assert!(told(&bench), "both back from the bench");
}

#[test]
fn a_verdict_is_counted_in_the_word_alone_exactly_where_the_machine_would_change_no_more() {
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
            let mut bench = Bench::new();
            for _ in 0..failures {
                bench.fails(PRIMARY);
            }
            let ticket = bench.on(PRIMARY);
            let begin_lock_free = Chain::begin_lock_free(bench.chain.packed()).unwrap();
            assert_eq!(begin_lock_free.server, ticket.server);
            assert_eq!(
                begin_lock_free.since.generation(),
                ticket.since.generation()
            );
            let packed = bench.chain.packed();
            let short = Chain::record_lock_free(packed, ticket, outcome, &bench.rules);
            let (generation, hint) = (bench.chain.generation, bench.chain.hint);
            bench.record(ticket, outcome);
            let plain = (generation, hint) == (bench.chain.generation, bench.chain.hint);
            assert_eq!(
                short,
                plain.then(|| bench.chain.packed()),
                "{failures} {outcome:?}"
            );
            for server in [PROBE, ASIDE, A] {
                let ticket = Ticket { server, ..ticket };
                assert_eq!(
                    Chain::record_lock_free(packed, ticket, outcome, &bench.rules),
                    None
                );
            }
        }
    }
    let mut bench = Bench::new();
    bench.trip();
    assert_eq!(Chain::begin_lock_free(bench.chain.packed()), None);
    assert_eq!(Chain::begin_lock_free(PackedState::BUSY), None);
}

#[test]
fn a_hint_that_was_heard_sees_every_result_and_so_does_every_phase_but_the_primarys() {
    let mut bench = Bench::new();
    let ticket = bench.on(PRIMARY);
    let counted = |bench: &Bench, outcome| {
        let packed = bench.chain.packed();
        Chain::record_lock_free(packed, ticket, outcome, &bench.rules).is_some()
    };
    assert!(counted(&bench, Outcome::Success));
    bench.turn(PRIMARY, rate_limited(200));
    assert!(!counted(&bench, Outcome::Success));
    assert!(!counted(&bench, Failure::transient().into()));
    bench.succeeds(PRIMARY);
    assert!(counted(&bench, Outcome::Success));

    let is_clean = |bench: &Bench| bench.chain.packed().is_clean_in(bench.chain.generation);
    assert!(is_clean(&bench));
    bench.trip();
    assert!(!is_clean(&bench), "fallback");
    let probe = bench.at(60).on(PROBE);
    assert!(!is_clean(&bench), "a success of the probe has to be heard");
    bench.record(probe, Outcome::Neutral);
    assert!(!is_clean(&bench), "the slot is free");
}

#[test]
fn the_moment_beside_the_word_is_when_its_phase_runs_out() {
    let mut bench = Bench::new();
    let seconds = |seconds| Timestamp::START.saturating_add(Duration::from_secs(seconds));
    assert_eq!(bench.chain.deadline(), Timestamp::NEVER);
    bench.trip();
    assert_eq!(bench.chain.deadline(), seconds(60));
    let probe = bench.at(70).on(PROBE);
    assert_eq!(bench.chain.deadline(), seconds(190));
    bench.record(probe, Outcome::Neutral);
    assert_eq!(bench.chain.deadline(), Timestamp::NEVER);
}

#[test]
fn a_backups_failures_are_strikes_again_after_the_chain_was_cleared() {
    let mut bench = Bench::new();
    bench.trip().at(60);
    bench.succeeds(PROBE);
    bench.succeeds(PROBE);
    bench.trip();
    assert_eq!(bench.fails(A), Recorded::Applied);
    assert_eq!(bench.strikes(), [1, 0]);
    let ticket = bench.on(A);
    assert_eq!(
        (ticket.since.generation(), ticket.since.epoch()),
        (bench.chain.generation, 1)
    );
    assert_eq!(format!("{:?}", ticket.since), "4, 1");
}

#[test]
fn an_entry_is_found_by_its_name_and_the_primary_is_none() {
    let rules = Bench::new().rules;
    assert_eq!((rules.entry("a"), rules.entry("b")), (Some(0), Some(1)));
    assert_eq!((rules.entry("p"), rules.entry("")), (None, None));
}

#[test]
fn the_outage_of_the_modules_documentation_goes_as_it_is_told_there() {
    let mut bench = Bench::with(|rules| rules.probation_limit = Some(3));
    bench.trip();
    bench.at(5).succeeds(A);
    bench.at(20).fails(A);
    bench.fails(A);
    bench.at(30).succeeds(B);
    let probe = bench.at(60).on(PROBE);
    bench.at(65).succeeds(B);
    bench.at(70).record(probe, Failure::transient());
    assert_eq!(bench.state(), FallbackState::Recovering);
    bench.at(72).fails(PROBE);
    bench.fails(PROBE);
    assert_eq!(bench.state(), FallbackState::Fallback);
    bench.at(80).succeeds(B);
    bench.at(131).succeeds(B);
    bench.at(132).succeeds(PROBE);
    assert_eq!(bench.snapshot().probe_successes, 1);
    bench.at(135).succeeds(PROBE);
    assert_eq!(bench.state(), FallbackState::Primary);
    assert_eq!(bench.strikes(), [0, 0]);
}

#[test]
fn a_streak_that_is_full_in_the_word_is_counted_by_the_machine() {
    let mut bench = Bench::with(|rules| rules.trip_threshold = u32::MAX);
    bench.chain.streak = PackedState::FULL - 1;
    for streak in PackedState::FULL..PackedState::FULL + 3 {
        let packed = bench.chain.packed();
        bench.chain.take_over(packed, bench.chain.deadline());
        bench.fails(PRIMARY);
        assert_eq!(bench.snapshot().consecutive_failures, streak);
    }
    bench
        .chain
        .take_over(PackedState::new(0, 0).with_streak(7), Timestamp::NEVER);
    assert_eq!(bench.snapshot().consecutive_failures, 7);
}

#[test]
fn times_without_end_do_not_overflow() {
    let mut bench = Bench::with(|rules| {
        rules.recovery_timeout = Duration::MAX;
        rules.probe_timeout = Duration::MAX;
        rules.bench = Some(Duration::MAX);
        rules.retry_after_cap = Duration::MAX;
    });
    bench.trip();
    bench.turn(A, Failure::fatal());
    bench.turn(B, Failure::fatal());
    bench.at(1_000_000_000);
    assert_eq!(bench.refused(), (Reason::FallbackExhausted, None));
    assert_eq!(bench.snapshot().time_until_probe, None);
    assert_eq!(bench.snapshot().entries[0].bench_left, None);

    let mut none = Bench::with(|rules| rules.recovery_timeout = Duration::ZERO);
    none.trip();
    none.succeeds(PROBE);
    none.succeeds(PROBE);
    assert_eq!(none.state(), FallbackState::Primary);
}
