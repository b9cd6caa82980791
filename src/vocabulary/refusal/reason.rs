//! The reasons of refusals.

use std::fmt;

/// Why a call was not attempted. Displays in `snake_case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The circuit is open and its cooldown is not over.
    CircuitOpen,
    /// Another call holds the probe's slot. A probe that was dropped may keep the slot until its
    /// lease ends.
    ProbeInFlight,
    /// Somebody pinned the circuit open with `force_open`.
    ForcedOpen,
    /// The fallback's primary is down and no entry of its chain is live.
    FallbackExhausted,
    /// The tripwire had tripped before. [`Refusal::tripped_by`](crate::Refusal::tripped_by) says
    /// why.
    TripwireOpen,
    /// The run has spent its turns.
    MaxTurns,
    /// The same call came too often in a row.
    IdenticalCall,
    /// Too many calls failed in a row.
    ErrorStreak,
    /// The run has spent its time.
    Deadline,
    /// The service was called before `poll_ready` had said that it is ready. Poll it, and call it
    /// again at once.
    NotReady,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Reason::CircuitOpen => "circuit_open",
            Reason::ProbeInFlight => "probe_in_flight",
            Reason::ForcedOpen => "forced_open",
            Reason::FallbackExhausted => "fallback_exhausted",
            Reason::TripwireOpen => "tripwire_open",
            Reason::MaxTurns => "max_turns",
            Reason::IdenticalCall => "identical_call",
            Reason::ErrorStreak => "error_streak",
            Reason::Deadline => "deadline",
            Reason::NotReady => "not_ready",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_display_in_snake_case() {
        let all = [
            Reason::CircuitOpen,
            Reason::ProbeInFlight,
            Reason::ForcedOpen,
            Reason::FallbackExhausted,
            Reason::TripwireOpen,
            Reason::MaxTurns,
            Reason::IdenticalCall,
            Reason::ErrorStreak,
            Reason::Deadline,
            Reason::NotReady,
        ];
        for reason in all {
            let debug = format!("{reason:?}");
            let mut snake = String::new();
            for (i, c) in debug.chars().enumerate() {
                if c.is_uppercase() && i > 0 {
                    snake.push('_');
                }
                snake.extend(c.to_lowercase());
            }
            assert_eq!(reason.to_string(), snake);
        }
    }
}
