//! A run as it is now, for people and for tests.

use std::time::Duration;

use super::fence::{Fence, Phase, Rules};
use crate::machinery::clock::Timestamp;
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{FailureKind, Reason, State};

/// A run as it was when the snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TripwireSnapshot {
    /// The state. Once the run's time is over it is open, even before a call has noticed.
    pub state: State,
    /// Why the fence tripped last, if it has not closed since.
    pub reason: Option<Reason>,
    /// How many turns the run has spent.
    pub turns: u32,
    /// How many turns the run has left.
    pub turns_left: u32,
    /// How many identical calls came in a row.
    pub identical: u32,
    /// How many calls failed in a row.
    pub errors: u32,
    /// How many more refused calls arm a probe, or declare the probe that is out lost.
    ///
    /// It is 0 where refused calls are not counted.
    pub rejects_left: u32,
    /// Whether a probe is out.
    pub probing: bool,
    /// How much of the run's time is left; `None` without a deadline, or before the run begins.
    pub time_left: Option<Duration>,
    /// How often the fence has tripped in this run.
    pub trips: u64,
    /// The kind of this run's last failure.
    pub last_failure: Option<FailureKind>,
}

impl Fence {
    /// The run at `now`; `packed` holds what was counted without the lock.
    pub(super) fn snapshot(
        &self,
        packed: PackedState,
        rules: &Rules,
        now: Timestamp,
    ) -> TripwireSnapshot {
        let errors = packed.streak_or(self.errors);
        // The time is over, and no call has come since.
        let unnoticed = self.is_expired(now) && self.phase != Phase::Expired;
        let phase = if unnoticed {
            Phase::Expired
        } else {
            self.phase
        };
        let counts = matches!(phase, Phase::Open | Phase::Probing);
        TripwireSnapshot {
            state: phase.state(),
            reason: if unnoticed {
                Some(Reason::Deadline)
            } else {
                self.trip_reason()
            },
            turns: self.turns,
            turns_left: self.budget.saturating_sub(self.turns),
            identical: self.identical,
            errors,
            rejects_left: if counts {
                rules.open_cooldown_rejects - self.rejects
            } else {
                0
            },
            probing: phase == Phase::Probing,
            time_left: self.deadline.remaining(now),
            trips: self.trips + u64::from(unnoticed),
            last_failure: packed.last(),
        }
    }
}
