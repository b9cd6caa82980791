//! A recorder of events.

use std::sync::{Arc, Mutex};

use tower_breaker::{Event, Observe, Outcome};

/// Keeps each event as a line of text.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    pub fn new() -> Self {
        Self::default()
    }

    /// The events since this was last asked.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observe for Recorder {
    fn observe(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(line(event));
    }
}

/// An event in a line: `search: closed -> open (failure_threshold) #1`.
pub fn line(event: &Event<'_>) -> String {
    let name = event
        .name()
        .map(|name| format!("{name}: "))
        .unwrap_or_default();
    let text = match event {
        Event::Transition {
            from,
            to,
            reason,
            generation,
            ..
        } => {
            format!("{from} -> {to} ({reason}) #{generation}")
        }
        Event::ProbeStarted {
            generation, lease, ..
        } => format!("probe for {lease:?} #{generation}"),
        Event::LeaseExpired { generation, .. } => format!("lease expired #{generation}"),
        Event::LateVerdict {
            generation,
            outcome,
            ..
        } => match outcome {
            Outcome::Failure(failure) => format!("late {} failure #{generation}", failure.kind()),
            outcome => format!("late {outcome:?} #{generation}").to_lowercase(),
        },
        Event::Refused {
            refusal,
            observe_only,
            ..
        } => {
            let done = if *observe_only { "observed" } else { "refused" };
            match refusal.retry_after() {
                Some(wait) => format!("{done} {} for {wait:?}", refusal.reason()),
                None => format!("{done} {}", refusal.reason()),
            }
        }
        Event::Unguarded { .. } => "unguarded".to_owned(),
        Event::Evicted { state, .. } => format!("evicted {state}"),
        Event::Missed { count, .. } => format!("missed {count}"),
        other => format!("{other:?}"),
    };
    name + &text
}
