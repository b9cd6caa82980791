//! The trait of the state machines.
//!
//! The machines are pure. They take the time as an argument, return decisions, and leave pending
//! events. A [`SharedMachine`](crate::machinery::shared_machine::SharedMachine) does the rest: it
//! locks its machine, publishes the packed state, wakes the waiters, and delivers the events.

use super::clock::Timestamp;
use super::packed_state::PackedState;
use crate::vocabulary::Event;

/// A pure state machine that a [`SharedMachine`](crate::machinery::shared_machine::SharedMachine)
/// can hold.
pub(crate) trait Machine {
    /// How it decides. All machines of one layer have the same rules.
    type Rules;
    /// An event that waits to be delivered.
    type Pending: Copy;

    /// Returns the 64 bits that mirror the machine.
    fn packed(&self) -> PackedState;

    /// Returns the deadline that belongs to the packed state: when the phase runs out.
    fn deadline(&self) -> Timestamp;

    /// Takes over what lock-free callers have changed since the packed state was published.
    ///
    /// They may have counted in the packed state. In a phase whose deadline they may renew, they
    /// may also have moved the deadline.
    fn take_over(&mut self, packed: PackedState, deadline: Timestamp);

    /// Says whether the store may evict the machine.
    fn retention(&self, rules: &Self::Rules, now: Timestamp) -> Retention;

    /// Returns until when a machine that is [`Retention::Live`] stays live, if nobody calls.
    fn live_until(&self, _: &Self::Rules, _: Timestamp) -> Timestamp {
        self.deadline()
    }

    /// Turns a pending event into the event that observers get.
    fn event<'a>(
        pending: Self::Pending,
        name: Option<&'a str>,
        rules: &'a Self::Rules,
    ) -> Event<'a>;
}

/// Whether the store may evict a machine. Calls in flight are not considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// It is as new, so an eviction loses nothing.
    Clean,
    /// It remembers something, but no cooldown or lease runs.
    Unclean,
    /// A cooldown or a lease runs, or somebody has forced its state by hand.
    Live,
}
