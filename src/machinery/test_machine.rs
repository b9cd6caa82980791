//! A state machine that unit tests move by hand.

use std::cell::Cell;

use super::clock::{Clock, Timestamp};
use super::event_queue::EventQueue;
use super::machine::{Machine, Retention};
use super::machine_ref::MachineRef;
use super::observers::Observers;
use super::packed_state::PackedState;
use super::shared_machine::{Environment, SharedMachine};
use super::sync::Arc;
use crate::vocabulary::{Event, Name, State, TransitionReason};

/// A machine that is moved by hand.
pub(crate) struct TestMachine {
    pub(crate) generation: u32,
    pub(crate) phase: u8,
    pub(crate) streak: u32,
    pub(crate) deadline: Timestamp,
    pub(crate) retention: Retention,
}

impl TestMachine {
    pub(crate) fn new() -> Self {
        Self {
            generation: 0,
            phase: 0,
            streak: 0,
            deadline: Timestamp::NEVER,
            retention: Retention::Clean,
        }
    }

    /// Begins the next generation, and leaves an event that says so.
    pub(crate) fn transition(&mut self, events: &mut EventQueue<u32>) {
        self.generation += 1;
        events.push(self.generation);
    }
}

thread_local!(static EXAMINED: Cell<u64> = const { Cell::new(0) });

/// How often the test machines of this thread were asked whether they may be evicted.
pub(crate) fn examined() -> u64 {
    EXAMINED.get()
}

impl Machine for TestMachine {
    type Rules = ();
    type Pending = u32;

    fn packed(&self) -> PackedState {
        PackedState::new(self.generation, self.phase)
            .with_streak(self.streak)
            .lock_free(true)
    }

    fn deadline(&self) -> Timestamp {
        self.deadline
    }

    fn take_over(&mut self, packed: PackedState, deadline: Timestamp) {
        self.streak = packed.streak();
        self.deadline = deadline;
    }

    /// A live machine is live until its deadline, and unclean from then on.
    fn retention(&self, (): &(), now: Timestamp) -> Retention {
        EXAMINED.set(EXAMINED.get() + 1);
        match self.retention {
            Retention::Live if now >= self.deadline => Retention::Unclean,
            retention => retention,
        }
    }

    fn event<'a>(pending: u32, name: Option<&'a str>, (): &()) -> Event<'a> {
        Event::Transition {
            name,
            from: State::Closed,
            to: State::Closed,
            reason: TransitionReason::Reset,
            generation: pending,
        }
    }
}

fn environment(observers: Observers) -> Arc<Environment<()>> {
    let clock = Clock::start();
    Arc::new(Environment {
        rules: (),
        clock,
        observers,
    })
}

/// A shared test machine with the name `test`.
pub(crate) fn machine(observers: Observers) -> SharedMachine<TestMachine> {
    SharedMachine::new(
        TestMachine::new(),
        Some(Name::Static("test")),
        environment(observers),
    )
}

/// A reference to a machine without observers.
pub(crate) fn machine_ref() -> Arc<MachineRef<TestMachine>> {
    Arc::new(MachineRef::new(machine(Observers::default())))
}

/// A step that is a transition.
pub(crate) fn transition(machine: &SharedMachine<TestMachine>) {
    machine.step(|inner, (), events| inner.transition(events));
}
