//! What a layer tells those who watch it.

use std::fmt;
use std::time::Duration;

use super::outcome::Outcome;
use super::refusal::Refusal;

/// The state of a circuit or of a fence. Displays in `snake_case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Calls are let through.
    Closed,
    /// Calls are refused.
    Open,
    /// One call at a time is let through, to test recovery.
    HalfOpen,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Closed => "closed",
            State::Open => "open",
            State::HalfOpen => "half_open",
        })
    }
}

/// The state of a fallback. Displays in `snake_case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FallbackState {
    /// The primary serves.
    Primary,
    /// The chain serves.
    Fallback,
    /// One turn at a time goes to the primary, to test recovery; the chain serves the others.
    Recovering,
}

impl fmt::Display for FallbackState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FallbackState::Primary => "primary",
            FallbackState::Fallback => "fallback",
            FallbackState::Recovering => "recovering",
        })
    }
}

/// What happened to an entry of a fallback's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryChange {
    /// A turn that it served failed, and its budget is not spent.
    Struck,
    /// A turn that it served failed, and its budget is spent.
    Spent,
    /// Its time on the bench is over, and it has a fresh budget.
    Restored,
    /// Somebody took it out of the chain by hand.
    Disabled,
    /// Somebody put it back.
    Enabled,
}

impl fmt::Display for EntryChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EntryChange::Struck => "struck",
            EntryChange::Spent => "spent",
            EntryChange::Restored => "restored",
            EntryChange::Disabled => "disabled",
            EntryChange::Enabled => "enabled",
        })
    }
}

/// Why a state changed. Displays in `snake_case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransitionReason {
    /// So many calls failed in a row.
    FailureThreshold,
    /// So large a part of the calls in the window failed.
    FailureRate,
    /// A call failed in a way that no later call would fare better.
    FatalFailure,
    /// The cooldown is over, and a call became the probe; in a tripwire, whose cooldown is counted in refusals, the next call will.
    CooldownOver,
    /// The probe succeeded, the last one that was asked for.
    ProbeSucceeded,
    /// The probe failed.
    ProbeFailed,
    /// The probe gave no verdict before its lease was over.
    LeaseExpired,
    /// Somebody pinned the circuit open.
    ForcedOpen,
    /// Somebody reset it.
    Reset,
    /// The run has spent its turns.
    MaxTurns,
    /// The same call came too often in a row.
    IdenticalCall,
    /// Too many calls failed in a row.
    ErrorStreak,
    /// The run has spent its time.
    Deadline,
    /// A tripwire's probe was dropped without a verdict, or so many calls were refused beside it that it counts as lost.
    ProbeLost,
    /// Somebody gave the run more turns.
    Extended,
}

impl fmt::Display for TransitionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TransitionReason::FailureThreshold => "failure_threshold",
            TransitionReason::FailureRate => "failure_rate",
            TransitionReason::FatalFailure => "fatal_failure",
            TransitionReason::CooldownOver => "cooldown_over",
            TransitionReason::ProbeSucceeded => "probe_succeeded",
            TransitionReason::ProbeFailed => "probe_failed",
            TransitionReason::LeaseExpired => "lease_expired",
            TransitionReason::ForcedOpen => "forced_open",
            TransitionReason::Reset => "reset",
            TransitionReason::MaxTurns => "max_turns",
            TransitionReason::IdenticalCall => "identical_call",
            TransitionReason::ErrorStreak => "error_streak",
            TransitionReason::Deadline => "deadline",
            TransitionReason::ProbeLost => "probe_lost",
            TransitionReason::Extended => "extended",
        })
    }
}

/// Something that happened in a layer, lent to an [`Observe`].
///
/// Transitions, started probes, expired leases and changes of entries of one circuit or fallback come in their order, one at a time.
/// Everything else comes on the thread of the call it concerns, unordered against them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A circuit changed its state.
    #[non_exhaustive]
    Transition {
        /// The circuit's name.
        name: Option<&'a str>,
        /// The state before.
        from: State,
        /// The state after.
        to: State,
        /// Why.
        reason: TransitionReason,
        /// The generation that begins with it.
        generation: u32,
    },
    /// A fallback changed its state.
    #[non_exhaustive]
    FallbackTransition {
        /// The primary's name.
        name: Option<&'a str>,
        /// The state before.
        from: FallbackState,
        /// The state after.
        to: FallbackState,
        /// Why.
        reason: TransitionReason,
        /// The generation that begins with it.
        generation: u32,
        /// The first live entry of the chain, when it begins to serve.
        first: Option<&'a str>,
    },
    /// Something happened to an entry of a fallback's chain.
    #[non_exhaustive]
    Entry {
        /// The primary's name.
        name: Option<&'a str>,
        /// The entry's name.
        entry: &'a str,
        /// What happened.
        change: EntryChange,
        /// How many strikes it has now.
        strikes: u32,
    },
    /// A turn of a fallback is over. It is told once a turn, with what the caller gets.
    #[non_exhaustive]
    Served {
        /// The primary's name.
        name: Option<&'a str>,
        /// The name of the model that served it: the primary's or an entry's.
        by: &'a str,
        /// What its result said.
        outcome: Outcome,
    },
    /// An attempt of a fallback's turn failed, and the turn went on to the next live entry.
    #[non_exhaustive]
    MovedOn {
        /// The primary's name.
        name: Option<&'a str>,
        /// The name of the model that failed.
        from: &'a str,
        /// The name of the entry that is tried next.
        to: &'a str,
    },
    /// A call was admitted to test recovery.
    #[non_exhaustive]
    ProbeStarted {
        /// The circuit's name, or that of the primary.
        name: Option<&'a str>,
        /// The generation in which it was admitted.
        generation: u32,
        /// How long it may take; [`Duration::MAX`] in a tripwire, where refusals end it and no time.
        lease: Duration,
    },
    /// A probe gave no verdict before its lease was over; it counts as failed.
    #[non_exhaustive]
    LeaseExpired {
        /// The circuit's name, or that of the primary.
        name: Option<&'a str>,
        /// The generation in which it was admitted.
        generation: u32,
    },
    /// A verdict came from an older generation. A failure while open and not pinned, or of the primary while the chain serves, restarts the cooldown; nothing else changes.
    #[non_exhaustive]
    LateVerdict {
        /// The circuit's name, or that of the model that served.
        name: Option<&'a str>,
        /// The generation in which the call was admitted.
        generation: u32,
        /// What its result said.
        outcome: Outcome,
    },
    /// A call was refused, or would have been.
    #[non_exhaustive]
    Refused {
        /// What the caller is told.
        refusal: &'a Refusal,
        /// Whether the call ran all the same, because the layer only observes.
        observe_only: bool,
    },
    /// A call with a new key ran unguarded, because every circuit in the store is live.
    #[non_exhaustive]
    Unguarded {
        /// The name that the key's circuit would have had.
        name: Option<&'a str>,
    },
    /// A circuit that was not clean made room for another.
    #[non_exhaustive]
    Evicted {
        /// The circuit's name.
        name: Option<&'a str>,
        /// The state it was in.
        state: State,
    },
    /// A run has spent so many of its turns that somebody wanted to know.
    #[non_exhaustive]
    Warned {
        /// The fence's name.
        name: Option<&'a str>,
        /// How many turns it has spent.
        turns: u32,
        /// How many it may spend.
        max_turns: u32,
    },
    /// Listeners were too slow for so many transitions that some of them were not kept.
    #[non_exhaustive]
    Missed {
        /// The circuit's name.
        name: Option<&'a str>,
        /// How many events are missing before the next one.
        count: u64,
    },
}

impl<'a> Event<'a> {
    /// The name of the circuit that it concerns, or of the primary or the model.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        match *self {
            Event::Transition { name, .. }
            | Event::FallbackTransition { name, .. }
            | Event::Entry { name, .. }
            | Event::Served { name, .. }
            | Event::MovedOn { name, .. }
            | Event::ProbeStarted { name, .. }
            | Event::LeaseExpired { name, .. }
            | Event::LateVerdict { name, .. }
            | Event::Unguarded { name }
            | Event::Evicted { name, .. }
            | Event::Warned { name, .. }
            | Event::Missed { name, .. } => name,
            Event::Refused { refusal, .. } => refusal.name(),
        }
    }
}

/// Watches a layer. Closures of the same shape are observers; annotate their argument. One that is shared, behind an `Arc`, is lent to
/// a closure: `move |event: &Event<'_>| shared.observe(event)`.
///
/// Observers run after the new state is stored and outside every lock, so they may call back into the layer. They run on
/// the thread of some call: keep them short. A panic in one is caught, and harms neither the state nor the other
/// observers.
pub trait Observe {
    /// Takes note of `event`.
    fn observe(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>)> Observe for F {
    fn observe(&self, event: &Event<'_>) {
        self(event);
    }
}

#[cfg(test)]
mod tests {
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
}
