use super::*;
use crate::vocabulary::{Name, Reason};

#[test]
fn every_event_knows_its_name() {
    let refusal = Refusal::breaker(Reason::CircuitOpen).with_name(Some(Name::Static("x")));
    let name = Some("x");
    let events = [
        Event::Transition {
            name,
            from: State::Closed,
            to: State::Open,
            reason: TransitionReason::Reset,
            generation: 1,
        },
        Event::FallbackTransition {
            name,
            from: FallbackState::Primary,
            to: FallbackState::Fallback,
            reason: TransitionReason::Reset,
            generation: 1,
            first: None,
        },
        Event::Entry {
            name,
            entry: "a",
            change: EntryChange::Spent,
            strikes: 2,
        },
        Event::Served {
            name,
            by: "a",
            outcome: Outcome::Neutral,
        },
        Event::MovedOn {
            name,
            from: "x",
            to: "a",
        },
        Event::ProbeStarted {
            name,
            generation: 1,
            lease: Duration::ZERO,
        },
        Event::LeaseExpired {
            name,
            generation: 1,
        },
        Event::LateVerdict {
            name,
            generation: 1,
            outcome: Outcome::Neutral,
        },
        Event::Refused {
            refusal: &refusal,
            observe_only: false,
        },
        Event::Unguarded { name },
        Event::Evicted {
            name,
            state: State::Open,
        },
        Event::Warned {
            name,
            turns: 6,
            max_turns: 8,
        },
        Event::Missed { name, count: 1 },
    ];
    for event in events {
        assert_eq!(event.name(), name, "{event:?}");
    }
}

#[test]
fn states_and_transition_reasons_display_in_snake_case() {
    assert_eq!(State::Closed.to_string(), "closed");
    assert_eq!(State::Open.to_string(), "open");
    assert_eq!(State::HalfOpen.to_string(), "half_open");
    assert_eq!(FallbackState::Primary.to_string(), "primary");
    assert_eq!(FallbackState::Fallback.to_string(), "fallback");
    assert_eq!(FallbackState::Recovering.to_string(), "recovering");
    for (change, text) in [
        (EntryChange::Struck, "struck"),
        (EntryChange::Spent, "spent"),
        (EntryChange::Restored, "restored"),
        (EntryChange::Disabled, "disabled"),
        (EntryChange::Enabled, "enabled"),
    ] {
        assert_eq!(change.to_string(), text);
    }
    for (reason, text) in [
        (TransitionReason::FailureThreshold, "failure_threshold"),
        (TransitionReason::FailureRate, "failure_rate"),
        (TransitionReason::FatalFailure, "fatal_failure"),
        (TransitionReason::CooldownOver, "cooldown_over"),
        (TransitionReason::ProbeSucceeded, "probe_succeeded"),
        (TransitionReason::ProbeFailed, "probe_failed"),
        (TransitionReason::LeaseExpired, "lease_expired"),
        (TransitionReason::ForcedOpen, "forced_open"),
        (TransitionReason::Reset, "reset"),
        (TransitionReason::MaxTurns, "max_turns"),
        (TransitionReason::IdenticalCall, "identical_call"),
        (TransitionReason::ErrorStreak, "error_streak"),
        (TransitionReason::Deadline, "deadline"),
        (TransitionReason::ProbeLost, "probe_lost"),
        (TransitionReason::Extended, "extended"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}
