//! Tests of waiting and waking.

use std::sync::Mutex as StdMutex;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Wake, Waker};

use super::*;
use crate::machinery::sync::lock;
use crate::machinery::test_machine::{TestMachine, machine, machine_ref, transition};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Woken {
    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits at `machine` with a new waker.
fn wait(machine: &SharedMachine<TestMachine>, waiter: &mut Option<WaiterGuard>) -> Arc<Woken> {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    machine.wait(waiter, &mut Context::from_waker(&waker));
    woken
}

#[test]
fn waiters_are_woken_by_each_transition_and_by_nothing_else() {
    let machine = machine(Observers::default());
    let mut waiter = None;
    let quiet = wait(&machine, &mut waiter);
    machine.update(count_one);
    machine.step(|inner, (), _| inner.streak = 5);
    machine.step(|inner, (), _| inner.deadline = Timestamp::START);
    assert_eq!(quiet.times(), 0);
    transition(&machine);
    assert_eq!(quiet.times(), 1);
    transition(&machine);
    assert_eq!(quiet.times(), 1, "one wait is woken once");

    let phase = wait(&machine, &mut waiter);
    machine.step(|inner, (), _| inner.phase = 1);
    let gone = wait(&machine, &mut waiter);
    machine.retire_now();
    assert_eq!((quiet.times(), phase.times(), gone.times()), (1, 1, 1));
}

#[test]
fn the_last_waker_of_a_waiter_is_the_one_that_is_woken() {
    let machine = machine(Observers::default());
    let mut waiter = None;
    let first = wait(&machine, &mut waiter);
    let second = wait(&machine, &mut waiter);
    assert_eq!(Arc::strong_count(&first), 1, "the first waker was dropped");
    transition(&machine);
    assert_eq!((first.times(), second.times()), (0, 1));
}

#[test]
fn all_waiters_are_woken() {
    let machine = machine(Observers::default());
    let mut waiters: Vec<_> = (0..100).map(|_| None).collect();
    let woken: Vec<_> = waiters
        .iter_mut()
        .map(|waiter| wait(&machine, waiter))
        .collect();
    waiters.truncate(90);
    transition(&machine);
    for (at, woken) in woken.iter().enumerate() {
        assert_eq!(woken.times(), usize::from(at < 90));
    }
    assert_eq!(lock(&machine.inside).waiters.len(), 90);
    drop(waiters);
    transition(&machine);
    assert_eq!(lock(&machine.inside).waiters.len(), 0);
}

#[test]
fn services_that_come_and_go_do_not_pile_up() {
    let machine = machine(Observers::default());
    let mut stays = None;
    let woken = wait(&machine, &mut stays);
    for _ in 0..10_000 {
        wait(&machine, &mut None);
        assert!(lock(&machine.inside).waiters.capacity() <= 8);
    }
    transition(&machine);
    assert_eq!(woken.times(), 1, "and no waiter is forgotten");
}

#[test]
fn a_waker_may_come_back_to_the_machine_when_it_is_dropped() {
    struct Back(Arc<MachineRef<TestMachine>>, Arc<AtomicUsize>);
    impl Wake for Back {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Back {
        fn drop(&mut self) {
            self.0.machine().read(|_, _, ()| ());
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let machine_ref = machine_ref();
    let drops = Arc::new(AtomicUsize::new(0));
    let wait = |waiter: &mut Option<WaiterGuard>| {
        let back = Back(Arc::clone(&machine_ref), Arc::clone(&drops));
        let waker = Waker::from(Arc::new(back));
        machine_ref
            .machine()
            .wait(waiter, &mut Context::from_waker(&waker));
    };
    let mut waiter = None;
    wait(&mut waiter);
    wait(&mut waiter);
    assert_eq!(drops.load(Ordering::Relaxed), 1, "replaced");
    transition(machine_ref.machine());
    assert_eq!(drops.load(Ordering::Relaxed), 2, "woken");
    for _ in 0..10 {
        let mut waiter = None;
        wait(&mut waiter);
    }
    assert_eq!(
        drops.load(Ordering::Relaxed),
        12,
        "dropped with their services"
    );
    transition(machine_ref.machine());
}

#[test]
fn a_waker_may_end_its_service_when_it_is_woken() {
    struct Ends(StdMutex<Option<WaiterGuard>>);
    impl Wake for Ends {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let machine = machine(Observers::default());
    let ends = Arc::new(Ends(StdMutex::new(None)));
    let waker = Waker::from(Arc::clone(&ends));
    let mut waiter = None;
    machine.wait(&mut waiter, &mut Context::from_waker(&waker));
    *ends.0.lock().unwrap() = waiter;
    transition(&machine);
    assert!(ends.0.lock().unwrap().is_none());
}

#[test]
fn a_waker_that_panics_keeps_nobody_asleep_and_holds_back_no_event() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic!("a waker's");
        }
    }
    let seen = Seen::default();
    let mut observers = Observers::default();
    observers.add(Arc::new(listener(&seen)));
    let machine = machine(observers);
    let (mut bomb, mut waiter) = (None, None);
    let waker = Waker::from(Arc::new(Bomb));
    machine.wait(&mut bomb, &mut Context::from_waker(&waker));
    let woken = wait(&machine, &mut waiter);
    transition(&machine);
    assert_eq!(woken.times(), 1);
    assert_eq!(*seen.lock().unwrap(), ["1"]);
}
