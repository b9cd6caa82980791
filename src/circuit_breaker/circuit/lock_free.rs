//! Decisions taken from the packed state alone, for callers that do not hold the lock.
//!
//! Each answers what the machine itself would answer, or `None` if the machine has to be asked.
//! The driver of the tests compares the two at every step.

use std::time::Duration;

use super::rules::Rules;
use super::{Circuit, Phase, Role, Ticket};
use crate::machinery::clock::Timestamp;
use crate::machinery::denied::Denied;
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::Outcome;

impl Circuit {
    /// The oracle, and the gate where admission changes nothing. `deadline` answers with `None` if
    /// the machine has moved since `packed` was read.
    pub(crate) fn try_acquire_lock_free(
        packed: PackedState,
        deadline: impl FnOnce() -> Option<Timestamp>,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Result<Ticket, Denied>> {
        if packed.is_busy() {
            return None;
        }
        let phase = Phase::of(packed);
        let role = match phase {
            Phase::Closed => Role::Ordinary,
            Phase::Vacant => return None,
            Phase::Open | Phase::Probing | Phase::Forced => {
                match Self::decide(phase, deadline()?, packed.last(), now()) {
                    Err(denied) if denied.wait != Some(Duration::ZERO) => return Some(Err(denied)),
                    // A probe is due, or the lease is over: the machine has to move.
                    _ => return None,
                }
            }
        };
        let generation = packed.generation();
        Some(Ok(Ticket { generation, role }))
    }

    /// Whether the phase is [`Phase::Open`], so that the deadline is when a probe may go. `false`
    /// for a busy packed state.
    #[inline]
    pub(crate) fn is_open(packed: PackedState) -> bool {
        packed.phase() & Phase::Open as u8 != 0
    }

    /// The packed state after a verdict that changes the streak and the last failure alone.
    #[inline]
    pub(crate) fn record_lock_free(
        packed: PackedState,
        ticket: Ticket,
        outcome: Outcome,
        rules: &Rules,
    ) -> Option<PackedState> {
        if !packed.is_lock_free_in(ticket.generation) {
            return None;
        }
        match outcome {
            Outcome::Failure(failure) if !failure.is_plain() => None,
            _ => packed.counting(outcome, rules.failure_threshold),
        }
    }

    /// The new end of the lease, for a probe that shows a sign of life now. `None` if `ticket` is
    /// not that of the probe in flight, or if its lease is over.
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    pub(crate) fn renewed(
        packed: PackedState,
        deadline: Timestamp,
        ticket: Ticket,
        rules: &Rules,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let in_flight =
            Phase::of(packed) == Phase::Probing && packed.generation() == ticket.generation;
        (in_flight && now < deadline).then(|| now.saturating_add(rules.probe_timeout))
    }
}
