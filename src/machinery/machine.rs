//! What a state machine is made of: the word that mirrors it, and the notes of what it did.
//!
//! The machines themselves are pure. They take the time as an argument, return decisions, and leave notes; [`shared_machine`](crate::machinery::shared_machine)
//! locks them, publishes their word, wakes, and delivers.

use super::clock::Timestamp;
use super::packed_state::PackedState;
use crate::vocabulary::Event;

/// A pure state machine that a [`SharedMachine`](crate::machinery::shared_machine::SharedMachine) can hold.
pub(crate) trait Machine {
    /// How it decides; the same for all machines of one layer.
    type Rules;
    /// What it leaves for observers.
    type Pending: Copy;

    /// The word that mirrors it.
    fn packed(&self) -> PackedState;

    /// The moment that belongs to the word: when its phase runs out.
    fn deadline(&self) -> Timestamp;

    /// Takes over what lock-free callers changed since it was published: what they counted in the word, and the moment, where the phase is
    /// one whose moment they may renew.
    fn take_over(&mut self, packed: PackedState, deadline: Timestamp);

    /// Whether the store may evict it.
    fn retention(&self, rules: &Self::Rules, now: Timestamp) -> Retention;

    /// Until when a machine that is [`Retention::Live`] stays so, if nobody calls.
    fn live_until(&self, _: &Self::Rules, _: Timestamp) -> Timestamp {
        self.deadline()
    }

    /// A note as observers see it.
    fn event<'a>(
        pending: Self::Pending,
        name: Option<&'a str>,
        rules: &'a Self::Rules,
    ) -> Event<'a>;
}

/// Whether the store may evict a machine, calls in flight left aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// As new: nothing is lost with it.
    Clean,
    /// It remembers something, but nothing that still runs.
    Unclean,
    /// A cooldown or a lease still runs, or it is pinned.
    Live,
}
