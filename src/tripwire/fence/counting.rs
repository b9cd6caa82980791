//! How a call is counted: its turn, the identical streak, cycles, and compared answers.

use super::Fence;
use super::call::CallFacts;
use super::rules::Rules;
use crate::tripwire::digest::Digest;

impl Fence {
    // ===== turns =====

    /// Whether the call belongs to a planner's turn that an earlier call has already spent.
    pub(super) fn has_spent_turn_of(&self, facts: &CallFacts) -> bool {
        match (facts.turn, &self.memory) {
            (Some(turn), Some(memory)) => memory.has_spent(turn),
            _ => false,
        }
    }

    pub(super) fn spend_turn(&mut self, facts: &CallFacts) {
        self.turns += 1;
        if let (Some(turn), Some(memory)) = (facts.turn, &mut self.memory) {
            memory.spend(turn);
        }
    }

    /// Whether the identical streak was last counted in the call's own turn.
    ///
    /// Parallel calls of one turn are no repetition in time.
    pub(super) fn has_counted_turn_of(&self, facts: &CallFacts) -> bool {
        let memory = self.memory.as_ref();
        facts.turn.is_some() && memory.is_some_and(|memory| memory.was_counted_in(facts.turn))
    }

    // ===== streaks and cycles =====

    /// Counts a call in the identical streak, unless it is exempt. Returns its number.
    pub(super) fn count_call(&mut self, rules: &Rules, facts: &CallFacts, streak: u32) -> u32 {
        let Some(digest) = facts.digest else {
            return 0;
        };
        let number = self.append_to_streak(digest, streak);
        if let Some(memory) = &mut self.memory {
            memory.count(rules, digest, facts.turn, number);
        }
        number
    }

    /// How long the identical streak is with one more call of this digest.
    #[inline]
    pub(super) fn streak_with(&self, digest: Digest) -> u32 {
        if self.last_digest == Some(digest) {
            self.identical.saturating_add(1)
        } else {
            1
        }
    }

    /// Makes a call the last of the identical streak, which is then `streak` long. Returns the
    /// call's number.
    #[inline]
    pub(super) fn append_to_streak(&mut self, digest: Digest, streak: u32) -> u32 {
        // 0 is the number of exempt calls.
        self.last_number = self.last_number.checked_add(1).unwrap_or(1);
        if self.last_digest != Some(digest) {
            self.last_digest = Some(digest);
            self.streak_start = self.last_number;
            self.last_answer = None;
        }
        self.identical = streak;
        self.last_number
    }

    /// The repeats and the period of the cycle that this call would complete, if any.
    pub(super) fn completes_cycle(
        &self,
        rules: &Rules,
        digest: Digest,
        facts: &CallFacts,
    ) -> Option<(u32, u32)> {
        let memory = self.memory.as_ref()?;
        let period = memory.completes_cycle(rules.cycles?, digest, facts.turn)?;
        // The setter bounds both.
        let count = u32::try_from(rules.cycles?.repeats).ok()?;
        Some((count, u32::try_from(period).ok()?))
    }

    // ===== answers =====

    /// Compares an answer with the last one to the same call.
    ///
    /// Another answer is progress: the call is then the first of its streak.
    pub(super) fn compare_answer(&mut self, number: u32, answer: Digest) {
        // The answer to an exempt call says nothing.
        if number == 0 {
            return;
        }
        // Numbers wrap, so a call is in the streak if it is no further from the start than the
        // last.
        let since_start = |number: u32| number.wrapping_sub(self.streak_start);
        if since_start(number) <= since_start(self.last_number) {
            if self.last_answer.is_some_and(|before| before != answer) {
                self.identical = 1;
            }
            self.last_answer = Some(answer);
        }
        if let Some(memory) = &mut self.memory {
            memory.compare_answer(number, answer);
        }
    }
}
