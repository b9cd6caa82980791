//! The memory of a fence beyond the last call. The rules for cycles and turns need it.

use std::collections::VecDeque;

use super::rules::{Cycles, Rules};
use crate::tripwire::digest::Digest;

/// The past calls and turns that some rules look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    /// The last calls, the latest last. Cycles are looked for among them.
    calls: VecDeque<PastCall>,
    /// The planner's turns that were spent, the latest last.
    spent_turns: VecDeque<Digest>,
    /// The planner's turn in which the identical streak was last counted.
    counted_in: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PastCall {
    digest: Digest,
    turn: Option<Digest>,
    number: u32,
    answer: Option<Digest>,
}

impl Memory {
    /// How many spent turns are remembered. A planner has one turn at a time, or few.
    const TURNS: usize = 64;

    // ===== turns =====

    pub(super) fn has_spent(&self, turn: Digest) -> bool {
        self.spent_turns.contains(&turn)
    }

    pub(super) fn spend(&mut self, turn: Digest) {
        if self.spent_turns.len() == Self::TURNS {
            self.spent_turns.pop_front();
        }
        self.spent_turns.push_back(turn);
    }

    /// Whether the identical streak was last counted in this turn.
    pub(super) fn was_counted_in(&self, turn: Option<Digest>) -> bool {
        self.counted_in == turn
    }

    // ===== cycles =====

    /// Remembers a call that was counted in the identical streak.
    pub(super) fn count(
        &mut self,
        rules: &Rules,
        digest: Digest,
        turn: Option<Digest>,
        number: u32,
    ) {
        self.counted_in = turn;
        let Some(cycles) = rules.cycles else {
            return;
        };
        if self.holds(digest, turn) {
            return;
        }
        if self.calls.len() == cycles.max_period * cycles.repeats {
            self.calls.pop_front();
        }
        self.calls.push_back(PastCall {
            digest,
            turn,
            number,
            answer: None,
        });
    }

    /// The period of the shortest cycle that this call would complete as often as `cycles`
    /// allows.
    ///
    /// A cycle has at least two different calls.
    pub(super) fn completes_cycle(
        &self,
        cycles: Cycles,
        digest: Digest,
        turn: Option<Digest>,
    ) -> Option<usize> {
        if self.holds(digest, turn) {
            return None;
        }
        // 0 is this call, 1 the latest of the past ones.
        let call = |back: usize| match back {
            0 => Some(digest),
            _ => Some(self.calls.get(self.calls.len().checked_sub(back)?)?.digest),
        };
        (2..=cycles.max_period).find(|period| {
            let length = period * cycles.repeats;
            length <= self.calls.len() + 1
                && (*period..length).all(|back| call(back) == call(back - period))
                && (1..*period).any(|back| call(back) != call(0))
        })
    }

    /// Whether the same call of the same turn is remembered already.
    ///
    /// Within one turn a call counts once. Calls without a turn always count.
    fn holds(&self, digest: Digest, turn: Option<Digest>) -> bool {
        turn.is_some()
            && self
                .calls
                .iter()
                .any(|call| call.digest == digest && call.turn == turn)
    }

    // ===== answers =====

    /// Remembers an answer.
    ///
    /// If the same call got another answer before, the calls before this one are no part of a
    /// cycle.
    pub(super) fn compare_answer(&mut self, number: u32, answer: Digest) {
        let Some(at) = self.calls.iter().position(|call| call.number == number) else {
            return;
        };
        self.calls[at].answer = Some(answer);
        let digest = self.calls[at].digest;
        let before = self
            .calls
            .range(..at)
            .rev()
            .find_map(|call| call.answer.filter(|_| call.digest == digest));
        if before.is_some_and(|before| before != answer) {
            self.calls.drain(..at);
        }
    }

    /// Forgets the calls, and keeps the spent turns.
    pub(super) fn clear_calls(&mut self) {
        self.calls.clear();
        self.counted_in = None;
    }
}
