//! Events: what a layer tells its observers.

use std::fmt;
use std::time::Duration;

use super::outcome::Outcome;
use super::refusal::Refusal;

/// The state of a circuit or of a fence. Displays in `snake_case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Calls are admitted.
    Closed,
    /// Calls are refused.
    Open,
    /// One call at a time is admitted as the probe. The others are refused.
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
    /// One turn at a time goes to the primary as the probe. The chain serves the others.
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

/// A change of an entry of a fallback's chain. Displays in `snake_case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryChange {
    /// A turn that the entry served failed. Its budget of failures is not spent.
    Struck,
    /// A turn that the entry served failed. Its budget of failures is spent.
    Spent,
    /// The entry's time on the bench is over. It has a fresh budget of failures.
    Restored,
    /// Somebody took the entry out of the chain with `disable`.
    Disabled,
    /// Somebody put the entry back with `enable`.
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
    /// As many calls as the threshold says failed in a row.
    FailureThreshold,
    /// The failures in the window reached the failure rate.
    FailureRate,
    /// A call had a fatal failure.
    FatalFailure,
    /// The cooldown is over, and a call became the probe. In a tripwire, which counts its cooldown
    /// in refusals, the next call becomes the probe.
    CooldownOver,
    /// As many probes as asked for have succeeded.
    ProbeSucceeded,
    /// The probe failed.
    ProbeFailed,
    /// The probe gave no verdict before its lease was over.
    LeaseExpired,
    /// Somebody pinned the circuit open with `force_open`.
    ForcedOpen,
    /// Somebody called `reset`.
    Reset,
    /// The run has spent its turns.
    MaxTurns,
    /// The same call came too often in a row.
    IdenticalCall,
    /// Too many calls failed in a row.
    ErrorStreak,
    /// The run has spent its time.
    Deadline,
    /// A tripwire's probe was dropped without a verdict, or counts as lost because so many calls
    /// were refused beside it.
    ProbeLost,
    /// Somebody gave the run more turns with `extend`.
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

/// Something that happened in a layer, as an [`Observe`] sees it.
///
/// Transitions, started probes, expired leases and changes of entries of one circuit or fallback
/// come in their order, one at a time. Every other event comes on the thread of the call it
/// concerns, and has no order relative to these.
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
        /// Why the state changed.
        reason: TransitionReason,
        /// The generation that begins with the transition.
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
        /// Why the state changed.
        reason: TransitionReason,
        /// The generation that begins with the transition.
        generation: u32,
        /// The first live entry of the chain, if the chain begins to serve.
        first: Option<&'a str>,
    },
    /// Something happened to an entry of a fallback's chain.
    #[non_exhaustive]
    Entry {
        /// The primary's name.
        name: Option<&'a str>,
        /// The entry's name.
        entry: &'a str,
        /// The change.
        change: EntryChange,
        /// How many strikes the entry has now.
        strikes: u32,
    },
    /// A turn of a fallback is over. The event comes once a turn, for the result that the caller
    /// gets.
    #[non_exhaustive]
    Served {
        /// The primary's name.
        name: Option<&'a str>,
        /// The name of the model that served the turn: the primary's or an entry's.
        by: &'a str,
        /// The outcome of the turn.
        outcome: Outcome,
    },
    /// An attempt of a fallback's turn failed. The turn goes on to the next live entry.
    #[non_exhaustive]
    MovedOn {
        /// The primary's name.
        name: Option<&'a str>,
        /// The name of the model that failed.
        from: &'a str,
        /// The name of the entry that is tried next.
        to: &'a str,
    },
    /// A call was admitted as the probe.
    #[non_exhaustive]
    ProbeStarted {
        /// The circuit's or the primary's name.
        name: Option<&'a str>,
        /// The generation in which the probe was admitted.
        generation: u32,
        /// How long the probe may take. [`Duration::MAX`] in a tripwire, where refused calls end a
        /// probe, and time does not.
        lease: Duration,
    },
    /// A probe gave no verdict before its lease was over. It counts as failed.
    #[non_exhaustive]
    LeaseExpired {
        /// The circuit's or the primary's name.
        name: Option<&'a str>,
        /// The generation in which the probe was admitted.
        generation: u32,
    },
    /// A stale verdict came: the call was admitted in an older generation.
    ///
    /// A stale failure restarts the cooldown of a circuit that is open and not pinned, and that of
    /// a primary while the chain serves. Nothing else changes.
    #[non_exhaustive]
    LateVerdict {
        /// The circuit's name, or the name of the model that served.
        name: Option<&'a str>,
        /// The generation in which the call was admitted.
        generation: u32,
        /// The outcome of the call.
        outcome: Outcome,
    },
    /// A call was refused, or would have been.
    #[non_exhaustive]
    Refused {
        /// The refusal that the caller gets, or would have got.
        refusal: &'a Refusal,
        /// Whether the call ran anyway, because the layer is set to `observe_only`.
        observe_only: bool,
    },
    /// A call with a new key ran unguarded, because every circuit in the store is live.
    #[non_exhaustive]
    Unguarded {
        /// The name that the key's circuit would have had.
        name: Option<&'a str>,
    },
    /// The store evicted a circuit that was not clean, to make room for another.
    #[non_exhaustive]
    Evicted {
        /// The circuit's name.
        name: Option<&'a str>,
        /// The state that the circuit was in.
        state: State,
    },
    /// A run has spent as many turns as `warn_at` says.
    #[non_exhaustive]
    Warned {
        /// The fence's name.
        name: Option<&'a str>,
        /// How many turns the run has spent.
        turns: u32,
        /// How many turns the run may spend.
        max_turns: u32,
    },
    /// Some events were dropped, because the observers were too slow for the transitions.
    #[non_exhaustive]
    Missed {
        /// The circuit's name.
        name: Option<&'a str>,
        /// How many events are missing before the next event.
        count: u64,
    },
}

impl<'a> Event<'a> {
    /// Returns the name of the circuit, the primary, the model or the fence that the event
    /// concerns.
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

/// Watches a layer.
///
/// A closure of the same shape is an observer. Annotate its argument. To give an observer in an
/// `Arc` to several layers, wrap it in a closure:
/// `move |event: &Event<'_>| shared.observe(event)`.
///
/// Observers run after the new state is stored and outside every lock, so they may call back into
/// the layer. They run on the thread of some call, so keep them short.
///
/// # Panics
///
/// The layer catches a panic of an observer. It harms neither the state nor the other observers.
pub trait Observe {
    /// Receives an event.
    fn observe(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>)> Observe for F {
    fn observe(&self, event: &Event<'_>) {
        self(event);
    }
}

#[cfg(test)]
mod tests;
