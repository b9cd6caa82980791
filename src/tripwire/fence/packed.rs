//! The fence as a shared machine: its packed state, and what is decided from that alone.

use std::time::Duration;

use super::call::Ticket;
use super::rules::Rules;
use super::{Fence, Phase};
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{Event, Outcome, State, TransitionReason};

/// The packed state's mark for a spent budget: every call is refused, even while closed or armed.
pub(super) const NO_TURN_LEFT: u8 = 4;

/// An event of a fence that waits for the observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingEvent {
    Transition {
        from: State,
        to: State,
        reason: TransitionReason,
        generation: u32,
    },
    ProbeStarted {
        generation: u32,
    },
    Warned {
        turns: u32,
        budget: u32,
    },
}

impl Fence {
    /// [`would_allow_some`](Self::would_allow_some) without the lock, from the packed state and
    /// its deadline alone.
    ///
    /// `None` if the machine must be asked under the lock.
    #[inline]
    pub(crate) fn would_allow_some_lock_free(
        packed: PackedState,
        deadline: impl FnOnce() -> Option<Timestamp>,
        now: Timestamp,
    ) -> Option<bool> {
        if packed.is_busy() {
            return None;
        }
        let passes = packed.phase() == Phase::Closed as u8 || packed.phase() == Phase::Armed as u8;
        Some(passes && (!packed.is_timed() || now < deadline()?))
    }

    /// Whether a verdict is a success that changes nothing, as most are.
    #[inline]
    pub(crate) fn is_clean_success(packed: PackedState, generation: u32, outcome: Outcome) -> bool {
        outcome == Outcome::Success && packed.is_clean_in(generation)
    }

    /// [`record`](Self::record) without the lock, where a verdict changes no more than the error
    /// streak and the last failure. Returns the packed state after it.
    ///
    /// `None` if the machine must record the verdict under the lock.
    pub(crate) fn record_lock_free(
        packed: PackedState,
        ticket: Ticket,
        outcome: Outcome,
        rules: &Rules,
    ) -> Option<PackedState> {
        if !packed.is_lock_free_in(ticket.generation) {
            return None;
        }
        packed.counting(outcome, rules.error_limit)
    }
}

impl Machine for Fence {
    type Rules = Rules;
    type Pending = PendingEvent;

    fn packed(&self) -> PackedState {
        let mut phase = self.phase as u8;
        if self.has_no_turn_left() {
            phase |= NO_TURN_LEFT;
        }
        PackedState::new(self.generation, phase)
            .with_last(self.last_failure)
            .with_streak(self.errors)
            .lock_free(self.phase == Phase::Closed)
            .timed(self.has_deadline)
    }

    fn deadline(&self) -> Timestamp {
        self.deadline
    }

    fn take_over(&mut self, packed: PackedState, _: Timestamp) {
        self.errors = packed.streak_or(self.errors);
        self.last_failure = packed.last();
    }

    fn retention(&self, rules: &Rules, now: Timestamp) -> Retention {
        // Never `Live`: the cooldown is counted in refused calls, so nothing runs but the calls.
        let is_clean = self.phase == Phase::Closed
            && self.errors == 0
            && self.identical <= 1
            && self.budget == rules.max_turns
            && !self.is_expired(now);
        if is_clean {
            Retention::Clean
        } else {
            Retention::Unclean
        }
    }

    fn event<'a>(pending: PendingEvent, name: Option<&'a str>, _: &Rules) -> Event<'a> {
        match pending {
            PendingEvent::Transition {
                from,
                to,
                reason,
                generation,
            } => Event::Transition {
                name,
                from,
                to,
                reason,
                generation,
            },
            PendingEvent::ProbeStarted { generation } => Event::ProbeStarted {
                name,
                generation,
                // Refused calls end it, not time.
                lease: Duration::MAX,
            },
            PendingEvent::Warned { turns, budget } => Event::Warned {
                name,
                turns,
                max_turns: budget,
            },
        }
    }
}
