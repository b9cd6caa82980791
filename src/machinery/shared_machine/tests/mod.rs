//! Tests of steps, of lock-free updates, and of the delivery of events.

use std::sync::Mutex as StdMutex;

use super::*;
use crate::machinery::sync::lock;
use crate::machinery::test_machine::{TestMachine, machine, transition};

mod renewal;
mod retirement;
mod waiting;

/// A lock-free update that counts one failure.
#[allow(clippy::unnecessary_wraps)] // It has the shape of an update.
fn count_one(packed: PackedState) -> Option<PackedState> {
    Some(packed.with_streak(packed.streak() + 1))
}

type Seen = Arc<StdMutex<Vec<String>>>;

/// Makes a listener that writes down the events that it gets.
fn listener(seen: &Seen) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    let seen = Arc::clone(seen);
    move |event| {
        let text = match event {
            Event::Transition {
                name, generation, ..
            } => {
                assert_eq!(*name, Some("test"));
                generation.to_string()
            }
            Event::Missed { name, count } => {
                assert_eq!(*name, Some("test"));
                format!("missed {count}")
            }
            other => panic!("{other:?}"),
        };
        seen.lock().unwrap().push(text);
    }
}

#[test]
fn a_step_publishes_the_packed_state_and_its_deadline() {
    let machine = machine(Observers::default());
    assert_eq!(machine.packed(), PackedState::new(0, 0).lock_free(true));
    assert_eq!(machine.deadline(machine.packed()), Some(Timestamp::NEVER));
    let old = machine.packed();
    let answer = machine.step(|inner, (), _| {
        inner.phase = 3;
        inner.deadline = Timestamp::from_nanos(7);
        "answer"
    });
    assert_eq!(answer, "answer");
    assert_eq!(machine.packed(), PackedState::new(0, 3).lock_free(true));
    assert_eq!(
        machine.deadline(machine.packed()),
        Some(Timestamp::from_nanos(7))
    );
    assert_eq!(machine.deadline(old), None, "the machine has moved since");
}

#[test]
fn an_update_changes_the_packed_state_only_where_its_function_allows_it() {
    let machine = machine(Observers::default());
    assert!(machine.update(count_one));
    assert_eq!(machine.packed().streak(), 1);
    assert!(!machine.update(|_| None));
    assert_eq!(machine.packed().streak(), 1);
    assert!(machine.update(Some), "no change needs no lock");
    assert_eq!(machine.packed().streak(), 1);
}

#[test]
fn a_read_and_a_step_take_over_the_counts_of_the_packed_state() {
    let machine = machine(Observers::default());
    machine.update(count_one);
    machine.update(count_one);
    assert_eq!(
        machine.read(|inner, packed, ()| (inner.streak, packed.streak())),
        (2, 2)
    );
    machine.update(count_one);
    assert_eq!(machine.step(|inner, (), _| inner.streak), 3);
    machine.step(|inner, (), _| inner.streak = 0);
    assert_eq!(machine.packed().streak(), 0);
}

#[test]
fn a_listener_that_panics_harms_neither_the_state_nor_the_others() {
    let seen = Seen::default();
    let mut observers = Observers::default();
    observers.add(Arc::new(|_: &Event<'_>| panic!("a listener's")));
    observers.add(Arc::new(listener(&seen)));
    let machine = machine(observers);
    transition(&machine);
    transition(&machine);
    assert_eq!(machine.packed().generation(), 2);
    assert_eq!(*seen.lock().unwrap(), ["1", "2"]);
}

#[test]
fn events_that_a_listener_causes_come_after_and_those_past_the_capacity_are_counted() {
    let seen = Seen::default();
    let back = Arc::new(StdMutex::new(None::<Arc<MachineRef<TestMachine>>>));
    let way = Arc::clone(&back);
    let list = listener(&seen);
    let mut observers = Observers::default();
    observers.add(Arc::new(move |event: &Event<'_>| {
        let way = way.lock().unwrap().take();
        if let Some(machine_ref) = way {
            for _ in 0..EventQueue::<u32>::CAPACITY + 5 {
                transition(machine_ref.machine());
            }
        }
        list(event);
    }));
    let machine_ref = Arc::new(MachineRef::new(machine(observers)));
    *back.lock().unwrap() = Some(Arc::clone(&machine_ref));
    transition(machine_ref.machine());
    let seen = seen.lock().unwrap();
    let capacity = u32::try_from(EventQueue::<u32>::CAPACITY).unwrap();
    let mut expected: Vec<_> = (1..=capacity + 1).map(|n| n.to_string()).collect();
    expected.push("missed 5".to_owned());
    assert_eq!(*seen, expected);
}

#[test]
fn events_without_observers_are_discarded() {
    let machine = machine(Observers::default());
    assert!(!machine.observed());
    transition(&machine);
    assert_eq!(
        format!("{:?}", lock(&machine.inside).events),
        "EventQueue { queue: None }"
    );
}
