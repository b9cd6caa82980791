//! The phase of a circuit.

use crate::machinery::packed_state::PackedState;
use crate::vocabulary::State;

/// The phase of a circuit: its state, and what else decides over a call. The packed state carries
/// it as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Phase {
    Closed = 0,
    /// Half-open, and the probe's slot is free.
    Vacant = 1,
    /// Half-open, and the slot is taken. The deadline is the end of the lease.
    Probing = 2,
    /// Pinned open by hand.
    Forced = 3,
    /// The deadline is when a probe may go. The phase has a bit of its own, since most refusals
    /// look at nothing else.
    Open = 4,
}

impl Phase {
    pub(super) fn of(packed: PackedState) -> Self {
        match packed.phase() {
            0 => Phase::Closed,
            1 => Phase::Vacant,
            2 => Phase::Probing,
            3 => Phase::Forced,
            _ => Phase::Open,
        }
    }

    pub(crate) fn state(self) -> State {
        match self {
            Phase::Closed => State::Closed,
            Phase::Open | Phase::Forced => State::Open,
            Phase::Probing | Phase::Vacant => State::HalfOpen,
        }
    }
}
