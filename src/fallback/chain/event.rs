//! The events of a chain, from the machine to the observers.

use super::rules::Rules;
use crate::vocabulary::{EntryChange, Event, FallbackState, TransitionReason};

/// An event as the machine leaves it: without names, and small enough to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingEvent {
    Transition {
        from: FallbackState,
        to: FallbackState,
        reason: TransitionReason,
        generation: u32,
        /// The first live entry, if the chain comes to serve.
        first: Option<usize>,
    },
    ProbeStarted {
        generation: u32,
    },
    LeaseExpired {
        generation: u32,
    },
    Entry {
        entry: usize,
        change: EntryChange,
        strikes: u32,
    },
}

impl PendingEvent {
    /// The event as observers see it. `name` is the primary's.
    pub(super) fn named<'a>(self, name: Option<&'a str>, rules: &'a Rules) -> Event<'a> {
        match self {
            PendingEvent::Transition {
                from,
                to,
                reason,
                generation,
                first,
            } => Event::FallbackTransition {
                name,
                from,
                to,
                reason,
                generation,
                first: first.map(|entry| &*rules.entries[entry]),
            },
            PendingEvent::ProbeStarted { generation } => Event::ProbeStarted {
                name,
                generation,
                lease: rules.probe_timeout,
            },
            PendingEvent::LeaseExpired { generation } => Event::LeaseExpired { name, generation },
            PendingEvent::Entry {
                entry,
                change,
                strikes,
            } => Event::Entry {
                name,
                entry: &rules.entries[entry],
                change,
                strikes,
            },
        }
    }
}
