//! Each row of the fence's tables, and each of its rules.

use std::time::Duration;

use super::Fence;
use super::call::{CallFacts, Denied, Role};
use super::driver::{Run, exempt, facts};
use super::packed::PendingEvent;
use super::rules::{Cycles, Rules};
use crate::machinery::event_queue::Queued;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::tripwire::snapshot::TripwireSnapshot;
use crate::vocabulary::{Failure, FailureKind, Outcome, Reason, State, TransitionReason};

// ===== a call comes =====

#[test]
fn closed_with_turns_left_and_a_new_call_executes_and_spends_a_turn() {
    let mut run = Run::new();
    run.ok(1);
    run.ok(2);
    let now = run.snapshot();
    assert_eq!(
        (now.state, now.turns, now.turns_left),
        (State::Closed, 2, 6)
    );
    assert_eq!((now.identical, now.reason, now.trips), (1, None, 0));
}

#[test]
fn closed_the_identical_limit_th_identical_call_in_a_row_opens_and_is_refused() {
    let mut run = Run::new();
    run.ok(1);
    run.ok(1);
    let denied = run.call(1).unwrap_err();
    assert_eq!(denied.reason, Reason::IdenticalCall);
    assert_eq!(denied.trip.unwrap().count, Some(3));
    let now = run.snapshot();
    assert_eq!((now.state, now.turns, now.identical), (State::Open, 2, 3));
    assert_eq!(now.reason, Some(Reason::IdenticalCall));
    assert_eq!(
        run.transitions(),
        [(State::Closed, State::Open, TransitionReason::IdenticalCall)]
    );
}

#[test]
fn closed_with_max_turns_spent_opens_and_refuses() {
    let mut run = Run::new();
    for call in 0..8 {
        run.ok(call);
    }
    assert_eq!(run.state(), State::Closed);
    let before = run.snapshot();
    assert_eq!(run.reason_of(7), Reason::MaxTurns);
    let now = run.snapshot();
    assert_eq!((now.state, now.turns), (State::Open, 8));
    assert_eq!(
        now.identical, before.identical,
        "refused before its digest is looked at"
    );
    assert_eq!(now.reason, Some(Reason::MaxTurns));
}

#[test]
fn open_with_the_cooldown_not_over_refuses_and_counts() {
    let mut run = Run::new();
    for call in 0..3 {
        run.fail(call);
    }
    let before = run.snapshot();
    assert_eq!(before.rejects_left, 4);
    let denied = run.call(2).unwrap_err();
    assert_eq!(denied.reason, Reason::TripwireOpen);
    assert_eq!(denied.trip.unwrap().reason, Reason::ErrorStreak);
    let after = TripwireSnapshot {
        rejects_left: 3,
        ..before
    };
    assert_eq!(
        run.snapshot(),
        after,
        "neither the digest nor the streaks move"
    );
}

#[test]
fn open_the_open_cooldown_rejects_th_refused_call_arms_one_probe() {
    let mut run = Run::new();
    for call in 0..3 {
        run.fail(call);
    }
    run.refused(3);
    assert_eq!(run.state(), State::Open);
    run.refused(1);
    assert_eq!(run.state(), State::HalfOpen);
    assert!(!run.snapshot().probing);
    assert!(run.call(9).is_ok());
    assert!(run.snapshot().probing);
}

#[test]
fn half_open_the_next_call_is_the_probe_and_the_identical_check_applies_to_it() {
    let mut run = Run::new();
    run.ok(1);
    run.ok(1);
    assert_eq!(run.reason_of(1), Reason::IdenticalCall);
    run.refused(4);
    let denied = run.call(1).unwrap_err();
    assert_eq!(denied.reason, Reason::IdenticalCall);
    assert_eq!(denied.trip.unwrap().count, Some(4));
    assert_eq!((run.state(), run.snapshot().trips), (State::Open, 2));
    run.refused(4);
    let probe = run.call(2).unwrap();
    assert_eq!(probe.role, Role::Probe);
    assert_eq!(run.snapshot().turns, 3, "a probe spends its turn");
}

#[test]
fn half_open_the_next_call_is_the_probe_and_the_turn_check_applies_to_it() {
    let mut run = Run::new();
    for call in 0..5 {
        run.ok(call);
    }
    for call in 5..8 {
        run.fail(call);
    }
    assert_eq!(run.snapshot().reason, Some(Reason::ErrorStreak));
    run.refused(4);
    assert_eq!(run.reason_of(1), Reason::MaxTurns);
    assert_eq!(run.snapshot().reason, Some(Reason::MaxTurns));
    for _ in 0..50 {
        assert!(run.call(1).is_err(), "a spent turn budget is final");
    }
}

#[test]
fn half_open_calls_while_the_probe_is_out_are_refused_and_after_enough_of_them_it_is_lost() {
    let mut run = Run::armed();
    let probe = run.call(1).unwrap();
    run.refused(3);
    assert_eq!(run.state(), State::HalfOpen);
    run.refused(1);
    let now = run.snapshot();
    assert_eq!((now.state, now.rejects_left), (State::Open, 4));
    assert_eq!(now.reason, Some(Reason::ErrorStreak));
    assert!(
        !run.tell(probe, Outcome::Success, None),
        "its late result says nothing"
    );
    assert_eq!(run.snapshot(), now);
    run.fence.lose_probe(probe, &mut run.events);
    assert_eq!(run.snapshot(), now);
    run.refused(4);
    assert_eq!(run.state(), State::HalfOpen);
}

#[test]
fn any_the_deadline_counts_from_the_first_admitted_call_and_is_final_until_a_reset() {
    let minute = Duration::from_secs(60);
    let mut run = Run::of(Rules {
        deadline: Some(minute),
        ..Rules::default()
    });
    run.now = run.now.saturating_add(minute * 10);
    assert_eq!(run.snapshot().time_left, None);
    run.ok(1);
    assert_eq!(run.snapshot().time_left, Some(minute));
    run.now = run.now.saturating_add(Duration::from_secs(59));
    run.ok(2);
    run.now = run.now.saturating_add(Duration::from_secs(1));
    let unnoticed = run.snapshot();
    assert_eq!(unnoticed.state, State::Open);
    assert_eq!(unnoticed.reason, Some(Reason::Deadline));
    for _ in 0..20 {
        assert_eq!(run.reason_of(3), Reason::Deadline);
        assert_eq!(run.snapshot(), unnoticed);
    }
    run.fence.reset(&run.rules, &mut run.events);
    run.ok(3);
    assert_eq!(run.snapshot().time_left, Some(minute));
}

#[test]
fn any_the_deadline_is_checked_before_any_other_rule() {
    let mut run = Run::of(Rules {
        deadline: Some(Duration::from_secs(1)),
        max_turns: 1,
        ..Rules::default()
    });
    run.ok(1);
    assert_eq!(run.reason_of(1), Reason::MaxTurns);
    run.now = run.now.saturating_add(Duration::from_secs(1));
    assert_eq!(run.reason_of(1), Reason::Deadline);
    run.fence.extend(5, &mut run.events);
    assert_eq!(run.reason_of(1), Reason::Deadline, "final until a reset");
    assert_eq!(run.snapshot().turns_left, 5);
}

// ===== a result comes =====

#[test]
fn closed_a_success_zeroes_the_error_streak() {
    let mut run = Run::new();
    run.fail(1);
    run.fail(2);
    run.ok(3);
    let now = run.snapshot();
    assert_eq!((now.state, now.errors), (State::Closed, 0));
    run.fail(4);
    run.fail(5);
    assert_eq!(run.state(), State::Closed);
}

#[test]
fn closed_a_neutral_result_changes_nothing() {
    let mut run = Run::new();
    run.fail(1);
    run.fail(2);
    for call in 3..5 {
        let ticket = run.call(call).unwrap();
        assert!(run.tell(ticket, Outcome::Neutral, None));
    }
    run.fail(6);
    assert_eq!(run.state(), State::Open);
}

#[test]
fn closed_error_limit_consecutive_errors_open() {
    let mut run = Run::new();
    run.fail(1);
    run.fail(2);
    run.ok(3);
    assert_eq!(run.snapshot().errors, 0, "a success breaks the streak");
    for call in 4..7 {
        assert_eq!(run.state(), State::Closed);
        run.fail(call);
    }
    let now = run.snapshot();
    assert_eq!((now.state, now.errors), (State::Open, 3));
    assert_eq!(now.reason, Some(Reason::ErrorStreak));
    assert_eq!(now.last_failure, Some(FailureKind::Transient));
    assert_eq!(
        run.transitions(),
        [(State::Closed, State::Open, TransitionReason::ErrorStreak)]
    );
}

#[test]
fn half_open_the_probe_succeeds_and_closes_with_both_streaks_zeroed() {
    let mut run = Run::armed();
    run.ok(1);
    let now = run.snapshot();
    assert_eq!((now.state, now.reason), (State::Closed, None));
    assert_eq!((now.errors, now.identical, now.turns), (0, 0, 4));
    run.ok(1);
    assert_eq!(
        run.snapshot().identical,
        1,
        "the same call again is number 1"
    );
    run.ok(1);
    assert_eq!(run.reason_of(1), Reason::IdenticalCall);
}

#[test]
fn half_open_the_probe_is_neutral_and_the_next_call_is_the_probe() {
    let mut run = Run::armed();
    for call in 1..4 {
        let probe = run.call(call).unwrap();
        assert_eq!(probe.role, Role::Probe);
        run.refused(2);
        assert!(run.tell(probe, Outcome::Neutral, None));
        assert_eq!(run.state(), State::HalfOpen);
    }
}

#[test]
fn half_open_the_probe_fails_and_opens_with_a_new_cooldown() {
    let mut run = Run::new();
    run.ok(1);
    run.ok(1);
    assert_eq!(run.reason_of(1), Reason::IdenticalCall);
    run.refused(4);
    run.transitions();
    run.fail(2);
    let now = run.snapshot();
    assert_eq!((now.state, now.rejects_left), (State::Open, 4));
    assert_eq!((now.reason, now.trips), (Some(Reason::ErrorStreak), 2));
    assert_eq!(now.errors, 1);
    assert_eq!(
        run.transitions(),
        [(State::HalfOpen, State::Open, TransitionReason::ProbeFailed)]
    );
}

#[test]
fn half_open_the_probe_is_dropped_and_opens_with_the_old_reason() {
    let mut run = Run::armed();
    let probe = run.call(1).unwrap();
    run.transitions();
    run.fence.lose_probe(probe, &mut run.events);
    let now = run.snapshot();
    assert_eq!((now.state, now.rejects_left), (State::Open, 4));
    assert_eq!((now.reason, now.trips), (Some(Reason::ErrorStreak), 1));
    assert_eq!(
        run.transitions(),
        [(State::HalfOpen, State::Open, TransitionReason::ProbeLost)]
    );
    run.refused(4);
    assert!(run.call(1).is_ok());
}

#[test]
fn any_a_result_from_an_older_generation_is_stale() {
    let mut run = Run::new();
    let old: Vec<_> = (0..3).map(|call| run.call(call).unwrap()).collect();
    for call in 3..6 {
        run.fail(call);
    }
    let now = run.snapshot();
    let outcomes = [
        Outcome::Success,
        Outcome::Neutral,
        Failure::transient().into(),
    ];
    for (ticket, outcome) in old.into_iter().zip(outcomes) {
        assert!(!run.tell(ticket, outcome, Some(1)));
        assert_eq!(run.snapshot(), now);
    }
}

#[test]
fn any_a_failed_readiness_is_an_error_that_spends_no_turn() {
    let mut run = Run::new();
    for _ in 0..3 {
        run.fence
            .readiness_failed(&run.rules, run.now, FailureKind::Transient, &mut run.events);
    }
    let now = run.snapshot();
    assert_eq!((now.state, now.turns), (State::Open, 0));
    assert_eq!(now.reason, Some(Reason::ErrorStreak));
    run.fence
        .readiness_failed(&run.rules, run.now, FailureKind::Transient, &mut run.events);
    assert_eq!(run.snapshot(), now, "while open it counts for nothing");
    run.refused(4);
    run.fence
        .readiness_failed(&run.rules, run.now, FailureKind::Transient, &mut run.events);
    assert_eq!((run.state(), run.snapshot().trips), (State::Open, 2));
}

// ===== by hand =====

#[test]
fn any_extend_after_max_turns_closes_with_streaks_kept() {
    let mut run = Run::new();
    for call in 0..5 {
        run.ok(call);
    }
    run.fail(5);
    run.fail(6);
    run.ok(7);
    assert_eq!(run.reason_of(7), Reason::MaxTurns);
    run.refused(4);
    run.fence.extend(0, &mut run.events);
    assert_eq!(run.state(), State::HalfOpen, "no turn is given");
    run.fence.extend(2, &mut run.events);
    let now = run.snapshot();
    assert_eq!((now.state, now.turns_left), (State::Closed, 2));
    assert_eq!((now.identical, now.reason), (1, None));
    run.ok(7);
    assert_eq!(run.reason_of(7), Reason::IdenticalCall);
}

#[test]
fn any_extend_after_another_trip_grows_the_budget_alone() {
    let mut run = Run::armed();
    run.fence.extend(u32::MAX, &mut run.events);
    let now = run.snapshot();
    assert_eq!((now.state, now.turns_left), (State::HalfOpen, u32::MAX - 3));
    assert_eq!(now.reason, Some(Reason::ErrorStreak));
}

#[test]
fn any_reset_begins_a_new_run_in_a_new_generation() {
    let mut run = Run::armed();
    let probe = run.call(1).unwrap();
    run.fence.extend(7, &mut run.events);
    run.transitions();
    run.fence.reset(&run.rules, &mut run.events);
    assert_eq!(run.snapshot(), Run::new().snapshot());
    assert_eq!(
        run.transitions(),
        [(State::HalfOpen, State::Closed, TransitionReason::Reset)]
    );
    assert!(!run.tell(probe, Failure::transient().into(), None));
    assert_eq!(run.snapshot(), Run::new().snapshot());
}

// ===== the rules =====

#[test]
fn a_fatal_failure_is_one_error() {
    let mut run = Run::new();
    let ticket = run.call(1).unwrap();
    run.tell(ticket, Failure::fatal().into(), None);
    assert_eq!((run.state(), run.snapshot().errors), (State::Closed, 1));
}

#[test]
fn with_no_turns_every_call_is_refused() {
    let mut run = Run::of(Rules {
        max_turns: 0,
        ..Rules::default()
    });
    assert_eq!(run.reason_of(1), Reason::MaxTurns);
    for _ in 0..20 {
        assert!(run.call(1).is_err());
    }
}

#[test]
fn an_exempt_call_spends_a_turn_and_is_neither_a_repeat_nor_the_end_of_a_streak() {
    let mut run = Run::new();
    run.ok(1);
    run.ask(&exempt()).unwrap();
    run.ok(1);
    run.ask(&exempt()).unwrap();
    assert_eq!(run.snapshot().turns, 4);
    assert_eq!(run.reason_of(1), Reason::IdenticalCall);
}

#[test]
fn a_tool_has_its_own_limit() {
    let mut run = Run::new();
    let own = CallFacts {
        limit: Some(5),
        ..facts(1)
    };
    for _ in 0..4 {
        run.ask(&own).unwrap();
    }
    assert_eq!(run.ask(&own).unwrap_err().reason, Reason::IdenticalCall);
}

#[test]
fn the_warning_comes_once_in_a_run() {
    let mut run = Run::of(Rules {
        warn_at: Some(6),
        ..Rules::default()
    });
    let warned = |run: &mut Run| {
        run.events.begin();
        std::iter::from_fn(|| run.events.next())
            .filter(|pending| {
                matches!(
                    pending,
                    Queued::Event(PendingEvent::Warned {
                        turns: 6,
                        budget: 8
                    })
                )
            })
            .count()
    };
    for call in 0..5 {
        run.ok(call);
    }
    assert_eq!(warned(&mut run), 0);
    run.ok(5);
    assert_eq!(warned(&mut run), 1);
    run.ok(6);
    run.ok(7);
    assert_eq!(warned(&mut run), 0);
    run.fence.reset(&run.rules, &mut run.events);
    for call in 0..6 {
        run.ok(call);
    }
    assert_eq!(warned(&mut run), 1);
}

fn cycling() -> Run {
    Run::of(Rules {
        max_turns: 100,
        cycles: Some(Cycles {
            max_period: 3,
            repeats: 3,
        }),
        ..Rules::default()
    })
}

#[test]
fn a_cycle_of_calls_that_repeats_opens_as_identical() {
    for cycle in [&[1, 2][..], &[1, 2, 3], &[1, 1, 2]] {
        let mut run = cycling();
        for call in [7, 8] {
            run.ok(call);
        }
        let mut calls = cycle.repeat(3);
        let last = calls.pop().unwrap();
        for call in calls {
            run.ok(call);
        }
        let denied = run.call(last).unwrap_err();
        assert_eq!(denied.reason, Reason::IdenticalCall, "{cycle:?}");
        let trip = denied.trip.unwrap();
        assert_eq!(trip.count, Some(3));
        assert_eq!(trip.period as usize, cycle.len());
        run.refused(4);
        assert_eq!(
            run.reason_of(cycle[0]),
            Reason::IdenticalCall,
            "the cycle goes on"
        );
        run.refused(4);
        run.ok(50);
        assert_eq!(run.state(), State::Closed);
        for _ in 0..2 {
            for call in cycle {
                run.ok(*call);
            }
        }
    }
}

#[test]
fn a_cycle_that_changes_and_a_single_repeated_call_are_no_cycle() {
    let mut run = cycling();
    for call in [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4] {
        run.ok(call);
    }
    let mut run = Run::of(Rules {
        identical_limit: 100,
        ..cycling().rules
    });
    for _ in 0..50 {
        run.ok(1);
    }
}

#[test]
fn another_answer_is_progress_and_the_same_answer_is_not() {
    let mut run = Run::of(Rules {
        max_turns: 100,
        ..Rules::default()
    });
    for answer in 0..10 {
        run.answered(1, answer);
    }
    run.answered(1, 9);
    assert_eq!(
        run.reason_of(1),
        Reason::IdenticalCall,
        "a third call after two equal answers"
    );
}

#[test]
fn failures_are_never_progress() {
    let mut run = Run::new();
    run.answered(1, 1);
    run.fail(1);
    assert_eq!(run.reason_of(1), Reason::IdenticalCall);
}

#[test]
fn an_answer_to_another_call_is_no_progress_of_this_one() {
    let mut run = Run::new();
    let early = run.call(1).unwrap();
    run.answered(2, 20);
    run.answered(2, 20);
    run.tell(early, Outcome::Success, Some(99));
    assert_eq!(run.snapshot().identical, 2);
    assert_eq!(run.reason_of(2), Reason::IdenticalCall);
}

#[test]
fn a_cycle_whose_answers_differ_is_progress() {
    let mut run = cycling();
    for round in 0..10 {
        run.answered(1, round);
        run.answered(2, 5);
    }
    for call in [1, 2, 1, 2] {
        run.answered(call, 5);
    }
    run.answered(1, 5);
    assert_eq!(run.reason_of(2), Reason::IdenticalCall);
}

#[test]
fn calls_of_one_planners_turn_spend_one_turn_and_are_no_repetition() {
    let mut run = Run::of(Rules {
        max_turns: 3,
        by_turn: true,
        cycles: cycling().rules.cycles,
        ..Rules::default()
    });
    for _ in 0..20 {
        run.call_in(1, 1).unwrap();
    }
    assert_eq!((run.snapshot().turns, run.snapshot().identical), (1, 1));
    for _ in 0..10 {
        run.call_in(2, 1).unwrap();
        run.call_in(2, 2).unwrap();
    }
    assert_eq!(run.snapshot().turns, 2);
    run.call_in(3, 5).unwrap();
    run.call_in(1, 6).unwrap();
    run.call_in(3, 7).unwrap();
    assert_eq!(run.call_in(4, 8).unwrap_err().reason, Reason::MaxTurns);
}

#[test]
fn the_same_call_in_several_turns_is_a_repetition() {
    let mut run = Run::of(Rules {
        by_turn: true,
        ..Rules::default()
    });
    for turn in [1, 1, 2, 2, 2] {
        run.call_in(turn, 1).unwrap();
    }
    assert_eq!(run.call_in(3, 1).unwrap_err().reason, Reason::IdenticalCall);
}

#[test]
fn a_refusal_has_its_reason_its_count_and_the_trip_before_it() {
    let mut run = Run::new();
    run.ok(1);
    run.ok(1);
    let first = run.call(1).unwrap_err().refusal(None);
    assert_eq!(first.reason(), Reason::IdenticalCall);
    assert_eq!((first.tripped_by(), first.count()), (None, Some(3)));
    let later = run.call(5).unwrap_err().refusal(None);
    assert_eq!(later.reason(), Reason::TripwireOpen);
    assert_eq!(later.tripped_by(), Some(Reason::IdenticalCall));
    assert_eq!((later.count(), later.retry_after()), (Some(3), None));
    let not_ready = Denied::NOT_READY.refusal(None);
    assert_eq!(not_ready.retry_after(), Some(Duration::ZERO));
    assert_eq!((not_ready.tripped_by(), not_ready.count()), (None, None));
}

// ===== the packed state =====

#[test]
fn the_packed_state_shows_whether_some_call_is_allowed() {
    let lock_free = |run: &Run| {
        let deadline = || Some(run.fence.deadline());
        Fence::would_allow_some_lock_free(run.fence.packed(), deadline, run.now)
    };
    let mut run = Run::of(Rules {
        max_turns: 4,
        deadline: Some(Duration::from_secs(9)),
        ..Rules::default()
    });
    let mut seen = Vec::new();
    let mut look = |run: &Run| {
        assert_eq!(lock_free(run), Some(run.fence.would_allow_some(run.now)));
        seen.push(lock_free(run).unwrap());
    };
    look(&run);
    for call in 0..3 {
        run.fail(call);
    }
    look(&run);
    run.refused(4);
    look(&run);
    run.call(7).unwrap();
    look(&run);
    run.refused(8);
    look(&run);
    run.now = run.now.saturating_add(Duration::from_secs(9));
    look(&run);
    assert_eq!(seen, [true, false, true, false, false, false]);
    assert_eq!(
        Fence::would_allow_some_lock_free(PackedState::BUSY, || None, run.now),
        None
    );
}

#[test]
fn a_verdict_is_recorded_lock_free_exactly_where_it_changes_no_more_than_the_packed_state() {
    let outcomes = [
        Outcome::Success,
        Outcome::Neutral,
        Failure::transient().into(),
        Failure::fatal().into(),
    ];
    for errors in 0..3 {
        for outcome in outcomes {
            let mut run = Run::new();
            for call in 0..errors {
                run.fail(call);
            }
            let ticket = run.call(9).unwrap();
            let packed = run.fence.packed();
            let lock_free = Fence::record_lock_free(packed, ticket, outcome, &run.rules);
            let settled = Fence::is_clean_success(packed, ticket.generation, outcome);
            let applied = run
                .fence
                .record(&run.rules, ticket, outcome, None, &mut run.events);
            assert!(applied);
            let trips = errors == 2 && matches!(outcome, Outcome::Failure(_));
            let counted = (!trips).then(|| run.fence.packed());
            assert_eq!(lock_free, counted, "{errors} {outcome:?}");
            let unchanged = outcome == Outcome::Success && errors == 0;
            assert_eq!(settled, unchanged, "{errors} {outcome:?}");
        }
    }
}

#[test]
fn the_fast_path_admits_an_ordinary_call_under_the_plain_rules_alone() {
    let is_fast = |rules: Rules, facts: &CallFacts| {
        let mut run = Run::of(rules);
        run.ok(1);
        run.fence.try_acquire_fast(&run.rules, facts).is_some()
    };
    assert!(is_fast(Rules::default(), &facts(2)));
    assert!(is_fast(Rules::default(), &exempt()));
    let deadline = Some(Duration::from_secs(1));
    let rules = Rules {
        deadline,
        ..Rules::default()
    };
    assert!(!is_fast(rules, &facts(2)), "the clock is needed");
    assert!(!is_fast(cycling().rules, &facts(2)), "the memory is needed");
    let by_turn = Rules {
        by_turn: true,
        ..Rules::default()
    };
    assert!(!is_fast(by_turn, &facts(2)));
    let last = Rules {
        max_turns: 2,
        ..Rules::default()
    };
    assert!(
        !is_fast(last, &facts(2)),
        "the packed state shows that none is left"
    );
    let warned = Rules {
        warn_at: Some(2),
        ..Rules::default()
    };
    assert!(!is_fast(warned, &facts(2)), "there is an event");
}

#[test]
fn an_error_streak_beyond_the_limit_of_the_packed_state_is_counted_all_the_same() {
    let mut run = Run::of(Rules {
        error_limit: u32::MAX,
        max_turns: u32::MAX,
        ..Rules::default()
    });
    run.fence.errors = PackedState::FULL - 1;
    for errors in PackedState::FULL..PackedState::FULL + 3 {
        run.fail(errors.into());
        assert_eq!(run.fence.packed().streak(), PackedState::FULL);
        assert_eq!(run.snapshot().errors, errors);
        let packed = run.fence.packed();
        run.fence.take_over(packed, run.fence.deadline());
        assert_eq!(
            run.fence.errors, errors,
            "a full packed state counts no further"
        );
    }
    run.ok(1);
    assert_eq!(run.snapshot().errors, 0);
}

#[test]
fn a_closed_fence_without_streaks_is_clean_and_no_fence_is_live() {
    let retention = |run: &Run| run.fence.retention(&run.rules, run.now);
    let mut run = Run::new();
    run.ok(1);
    assert_eq!(retention(&run), Retention::Clean);
    run.ok(1);
    assert_eq!(retention(&run), Retention::Unclean);
    run.fail(2);
    assert_eq!(retention(&run), Retention::Unclean);
    assert_eq!(retention(&Run::armed()), Retention::Unclean);
    let mut run = Run::of(Rules {
        deadline: Some(Duration::from_secs(1)),
        ..Rules::default()
    });
    run.ok(1);
    run.now = run.now.saturating_add(Duration::from_secs(1));
    assert_eq!(retention(&run), Retention::Unclean);
}
