//! The snapshot of a circuit.

use std::time::Duration;

use super::circuit::{Circuit, Phase, Rules};
use crate::machinery::clock::Timestamp;
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{FailureKind, State};

/// A circuit as it is at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitBreakerSnapshot {
    /// The state. A probe whose lease is over has opened the circuit, noticed or not.
    pub state: State,
    /// Whether the circuit is open and its cooldown is over: the next call is the probe.
    pub due: bool,
    /// Whether the circuit is pinned open by hand, until a reset.
    pub forced: bool,
    /// How many calls failed in a row while the circuit was closed. A trip keeps the number until
    /// the circuit closes again.
    pub streak: u32,
    /// The rest of the cooldown, zero once a probe is due; or the rest of the probe's lease.
    /// `None` if neither runs, or if it has no end.
    pub time_left: Option<Duration>,
    /// How often the circuit has tripped or was pinned open, since it was made or reset.
    pub trips: u64,
    /// The kind of the last failure since the circuit was made or reset.
    pub last_failure: Option<FailureKind>,
}

impl Circuit {
    /// The circuit as it is at `now`. The streak and the last failure are those of `packed`, where
    /// lock-free callers count.
    pub(super) fn snapshot(
        &self,
        packed: PackedState,
        rules: &Rules,
        now: Timestamp,
    ) -> CircuitBreakerSnapshot {
        let (phase, deadline) = self.phase_at(rules, now);
        // A lease that is over, and that nobody has noticed yet.
        let lease_over = phase != self.phase;
        CircuitBreakerSnapshot {
            state: phase.state(),
            due: phase == Phase::Open && now >= deadline,
            forced: phase == Phase::Forced,
            streak: packed.streak_or(self.streak),
            time_left: deadline.remaining(now),
            trips: self.trips + u64::from(lease_over),
            last_failure: if lease_over {
                self.last_failure_at(phase)
            } else {
                packed.last()
            },
        }
    }
}
