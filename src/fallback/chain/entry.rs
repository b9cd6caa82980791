//! An entry of the chain: a backup, its strikes, and its time on the bench.
//!
//! An entry serves turns while it is *live*: it is not disabled, and its budget is not spent.

use super::event::PendingEvent;
use super::rules::Rules;
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::EventQueue;
use crate::vocabulary::{EntryChange, FailureKind, Outcome};

/// The state of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// The failed turns of the budget. At `max_fail_count` the budget is spent.
    pub(super) strikes: u32,
    /// Whether somebody took it out of the chain by hand.
    pub(crate) disabled: bool,
    /// When the budget was spent. It has no meaning while the budget is not spent.
    pub(super) spent_at: Timestamp,
}

impl Entry {
    pub(super) fn is_spent(&self, rules: &Rules) -> bool {
        self.strikes >= rules.max_fail_count
    }

    /// When a spent entry comes back from the bench.
    pub(crate) fn back_at(&self, rules: &Rules) -> Timestamp {
        rules.bench.map_or(Timestamp::NEVER, |bench| {
            self.spent_at.saturating_add(bench)
        })
    }

    /// The strikes as they are at `now`: none once the time on the bench is over.
    pub(crate) fn strikes_at(&self, rules: &Rules, now: Timestamp) -> u32 {
        if self.is_spent(rules) && now >= self.back_at(rules) {
            0
        } else {
            self.strikes
        }
    }

    pub(crate) fn is_live(&self, rules: &Rules, now: Timestamp) -> bool {
        !self.disabled && self.strikes_at(rules, now) < rules.max_fail_count
    }

    /// Takes the verdict of a turn that entry `index`, this one, served. Returns whether the
    /// verdict spent the budget.
    pub(super) fn record(
        &mut self,
        index: usize,
        rules: &Rules,
        now: Timestamp,
        outcome: Outcome,
        events: &mut EventQueue<PendingEvent>,
    ) -> bool {
        let was_spent = self.is_spent(rules);
        match outcome {
            Outcome::Neutral => false,
            Outcome::Success => {
                // A budget that is spent stays so: this turn began before it was.
                if rules.strikes_reset_on_success && !was_spent {
                    self.strikes = 0;
                }
                false
            }
            Outcome::Failure(failure) => {
                self.strikes = self.strikes.saturating_add(1);
                if failure.kind() == FailureKind::Fatal {
                    self.strikes = self.strikes.max(rules.max_fail_count);
                }
                let spent = !was_spent && self.is_spent(rules);
                let mut change = EntryChange::Struck;
                if spent {
                    change = EntryChange::Spent;
                    self.spent_at = now;
                }
                events.push(self.event(index, change));
                spent
            }
        }
    }

    /// Gives entry `index`, this one, a fresh budget if its time on the bench is over. Returns
    /// whether it did.
    pub(super) fn restore(
        &mut self,
        index: usize,
        rules: &Rules,
        now: Timestamp,
        events: &mut EventQueue<PendingEvent>,
    ) -> bool {
        let restored = self.is_spent(rules) && now >= self.back_at(rules);
        if restored {
            self.strikes = 0;
            events.push(self.event(index, EntryChange::Restored));
        }
        restored
    }

    /// Takes entry `index`, this one, out of the chain, or puts it back. Returns whether that
    /// changed anything.
    pub(super) fn set_disabled(
        &mut self,
        index: usize,
        disabled: bool,
        events: &mut EventQueue<PendingEvent>,
    ) -> bool {
        let changed = self.disabled != disabled;
        if changed {
            self.disabled = disabled;
            let change = if disabled {
                EntryChange::Disabled
            } else {
                EntryChange::Enabled
            };
            events.push(self.event(index, change));
        }
        changed
    }

    /// Forgets the strikes. A disabled entry stays disabled.
    pub(super) fn clear(&mut self) {
        self.strikes = 0;
        self.spent_at = Timestamp::START;
    }

    fn event(&self, index: usize, change: EntryChange) -> PendingEvent {
        PendingEvent::Entry {
            entry: index,
            change,
            strikes: self.strikes,
        }
    }
}
