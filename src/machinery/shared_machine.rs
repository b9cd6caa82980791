//! A state machine that many threads share: its lock, the atomic word that mirrors it, the callers that wait for it to move, and the
//! delivery of its events.
//!
//! # How the word and the lock live together
//!
//! The machine stands under a mutex. Whoever changes it first swaps [`PackedState::BUSY`] into the word, which sends every lock-free caller to the
//! mutex; takes over what the word had counted; lets the machine move; and publishes first the moment, then the new word.
//! So between two steps the word is the truth for the streak and the last failure (lock-free callers count there, by
//! compare-and-swap), the moment is the truth for a lease (its probe renews it there, likewise), and the machine is the truth for everything else.
//!
//! A lock-free reader takes the word, the moment, and the word again. Two equal words, not busy, are of one generation, and the moment
//! between them belongs to it.
//!
//! # How a lease is renewed
//!
//! By a compare-and-swap on the moment, from the one that was read with the word. A step first marks the word, then reads the moment by a write, so
//! that every renewal is either before that write, and the step finds the lease renewed; or after it. Then the step has not seen it, and who
//! sees it sees the busy mark as well. If the step leaves the moment alone, the renewal stays, and the next step takes it over; if it
//! moves the moment, the lease has ended, and the renewal is gone as one that came too late.
//!
//! # Waiting
//!
//! A caller that waits leaves its waker, then looks at the word once more. A step publishes the word, then takes the
//! wakers. Both pass through the waker's own mutex, so one of the two sees the other, and no wake-up is lost.
//!
//! Wakers are code of the executor's. They are cloned, dropped and woken outside the machine's lock, since what they hold may come back to
//! this very cell.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Waker};

use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::event_queue::{EventQueue, Queued};
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::observers::Observers;
use crate::machinery::packed_state::PackedState;
use crate::machinery::sync::{Arc, AtomicU64, Mutex, Ordering, fence, lock};
use crate::vocabulary::Event;
use crate::vocabulary::Name;

/// A machine that many threads share.
pub(crate) struct SharedMachine<M: Machine> {
    packed: AtomicU64,
    deadline: AtomicU64,
    /// The store's mark of when it was last looked up; nobody else reads or writes it.
    used: AtomicU64,
    name: Option<Name>,
    environment: Arc<Environment<M::Rules>>,
    inside: Mutex<Inside<M>>,
}

/// What all cells of a layer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Environment<R> {
    pub(crate) rules: R,
    pub(crate) clock: Clock,
    pub(crate) observers: Observers,
}

struct Inside<M: Machine> {
    machine: M,
    /// Gone from its store: nobody is admitted here any more.
    retired: bool,
    waiters: Vec<Waiter>,
    events: EventQueue<M::Pending>,
}

/// A cell that was evicted or forgotten between the look-up and the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired;

/// Whether the store could evict a cell, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retirement {
    /// It is gone for good.
    Done { clean: bool },
    /// It could go, but is not clean.
    Unclean,
    /// A call is in flight.
    Held,
    /// Its machine is live, at least until this moment if nobody calls.
    Live(Timestamp),
}

impl<M: Machine> SharedMachine<M> {
    pub(crate) fn new(
        machine: M,
        name: Option<Name>,
        environment: Arc<Environment<M::Rules>>,
    ) -> Self {
        Self {
            packed: AtomicU64::new(machine.packed().bits()),
            deadline: AtomicU64::new(machine.deadline().as_nanos()),
            used: AtomicU64::new(0),
            name,
            environment,
            inside: Mutex::new(Inside {
                machine,
                retired: false,
                waiters: Vec::new(),
                events: EventQueue::default(),
            }),
        }
    }

    #[inline]
    pub(crate) fn rules(&self) -> &M::Rules {
        &self.environment.rules
    }

    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        self.environment.clock.now()
    }

    #[inline]
    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.environment.observers
    }

    #[inline]
    pub(crate) fn observed(&self) -> bool {
        !self.environment.observers.is_empty()
    }

    /// Tells the observers of something that is not a step of the machine.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.environment.observers.tell(event);
    }

    /// The word. It may be busy.
    #[inline]
    pub(crate) fn packed(&self) -> PackedState {
        // Relaxed: who reads the word alone needs nothing else to be as new.
        PackedState::from_bits(self.packed.load(Ordering::Relaxed))
    }

    /// The word, to be followed by [`until`](Self::until).
    #[inline]
    pub(crate) fn packed_before_deadline(&self) -> PackedState {
        // Acquire: the moment that was published with it is there.
        PackedState::from_bits(self.packed.load(Ordering::Acquire))
    }

    /// The moment that belongs to `word`, or `None` if the machine has moved since `word` was read.
    #[inline]
    pub(crate) fn deadline(&self, packed: PackedState) -> Option<Timestamp> {
        // Acquire, so that the second look at the word comes after: it would see the busy mark of a step whose moment was read here.
        let deadline = self.deadline.load(Ordering::Acquire);
        (self.packed.load(Ordering::Relaxed) == packed.bits())
            .then(|| Timestamp::from_nanos(deadline))
    }

    /// The moment, whatever word it belongs to: to see whether it was moved.
    #[inline]
    pub(crate) fn any_deadline(&self) -> Timestamp {
        // Relaxed: who sees the old one could as well have come a little earlier.
        Timestamp::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    /// Changes the word without the lock, where `f` finds that enough and nobody else changes it at the same time. Answers `false`, with
    /// nothing changed, where not: then it takes a step.
    #[inline]
    pub(crate) fn update(&self, f: impl FnOnce(PackedState) -> Option<PackedState>) -> bool {
        // Relaxed: all that a count means is in the word itself, and a step takes it over by a swap, which reads the last value.
        let bits = self.packed.load(Ordering::Relaxed);
        let Some(new) = f(PackedState::from_bits(bits)) else {
            return false;
        };
        new.bits() == bits
            || self
                .packed
                .compare_exchange(bits, new.bits(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Lets the machine move, publishes what became of it, wakes those who wait, and delivers its notes.
    pub(crate) fn step<R>(
        &self,
        f: impl FnOnce(&mut M, &M::Rules, &mut EventQueue<M::Pending>) -> R,
    ) -> R {
        self.step_inside(|inside, rules| f(&mut inside.machine, rules, &mut inside.events))
    }

    /// [`step`](Self::step), unless the cell is gone from its store.
    pub(crate) fn step_unless_retired<R>(
        &self,
        f: impl FnOnce(&mut M, &M::Rules, &mut EventQueue<M::Pending>) -> R,
    ) -> Result<R, Retired> {
        self.step_inside(|inside, rules| {
            if inside.retired {
                return Err(Retired);
            }
            Ok(f(&mut inside.machine, rules, &mut inside.events))
        })
    }

    /// Lets the machine change what neither its word nor its moment mirrors, at the price of the lock alone: the word is not marked, and what
    /// it counted is not taken over. `None`, with nothing changed, where that is not enough, or the cell is gone from its store: then
    /// take a step.
    // Always, since what it is given is short, and a call of its own would cost a tenth of the whole.
    #[allow(clippy::inline_always)] // It stands on the tripwire's closed path, whose instructions are limited.
    #[inline(always)]
    pub(crate) fn update_unmirrored<R>(
        &self,
        f: impl FnOnce(&mut M, &M::Rules) -> Option<R>,
    ) -> Option<R> {
        let mut inside = lock(&self.inside);
        if inside.retired {
            return None;
        }
        f(&mut inside.machine, &self.environment.rules)
    }

    fn step_inside<R>(&self, f: impl FnOnce(&mut Inside<M>, &M::Rules) -> R) -> R {
        let mut inside = lock(&self.inside);
        let (before, was) = self.enter(&mut inside);
        let result = f(&mut inside, &self.environment.rules);
        let after = self.publish(&inside, was);

        let mut woken = Vec::new();
        if before.differs_for_waiters(after) {
            // Those whose service is gone are let go on the way; a service takes its waker along.
            inside.waiters.retain(Waiter::is_taken);
            woken.extend(inside.waiters.iter().cloned());
        }
        if !self.observed() {
            inside.events.discard();
        }
        let deliver = inside.events.begin();
        drop(inside);

        for seat in woken {
            seat.wake();
        }
        if deliver {
            self.deliver();
        }
        result
    }

    /// Sends lock-free callers to the lock, and takes over what they had changed. Answers with the word and the moment as they were.
    fn enter(&self, inside: &mut Inside<M>) -> (PackedState, Timestamp) {
        // Relaxed: the moment's and the word's own releases come after it.
        let packed = PackedState::from_bits(
            self.packed
                .swap(PackedState::BUSY.bits(), Ordering::Relaxed),
        );
        let mut deadline = self.any_deadline();
        if deadline != Timestamp::NEVER {
            // Read by a write, which has its place among the renewals: each is either read here, or comes after the busy mark, and who sees it
            // sees that mark, too. Release, for the latter. What never comes is not renewed.
            deadline = Timestamp::from_nanos(self.deadline.fetch_or(0, Ordering::Release));
        }
        if !packed.is_busy() {
            inside.machine.take_over(packed, deadline);
        }
        (packed, deadline)
    }

    /// Publishes what became of a machine whose moment was `was`.
    fn publish(&self, inside: &Inside<M>, was: Timestamp) -> PackedState {
        let packed = if inside.retired {
            PackedState::BUSY
        } else {
            inside.machine.packed()
        };
        let deadline = inside.machine.deadline();
        // A moment that the machine has not moved stays as it is: it may have been renewed since.
        if deadline != was {
            // Release, after the busy mark: who reads this moment sees that mark, or the word that follows. A swap, where a store would do, since loom
            // lets a store come before a renewal that it cannot come before.
            self.deadline.swap(deadline.as_nanos(), Ordering::Release);
        }
        // Release, after the moment: who reads this word sees its moment.
        self.packed.store(packed.bits(), Ordering::Release);
        packed
    }

    /// Moves the moment without the lock: `f` makes of the word, the moment and the time the new one, and never an earlier one, or `None`
    /// if this phase's moment is not the caller's to move.
    ///
    /// A caller that is slow to do so may find that the machine has moved in the meantime; then the moment is another, and stays as it is. That is
    /// the machine's to see to: whoever ends a lease but its own probe leaves another moment. (The same one may come again in a later generation,
    /// should the clock tell the same nanosecond twice or a cooldown end to the nanosecond where the lease would have; a renewal would have to be under
    /// way across all the steps to it.)
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    pub(crate) fn renew(&self, f: impl Fn(PackedState, Timestamp, Timestamp) -> Option<Timestamp>) {
        if self.try_renew(&f).is_none() {
            // A step is under way. When it is over, the word tells what became of it.
            let _inside = lock(&self.inside);
            self.try_renew(&f);
        }
    }

    /// Answers with `None` if a step is under way.
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    fn try_renew(
        &self,
        f: impl Fn(PackedState, Timestamp, Timestamp) -> Option<Timestamp>,
    ) -> Option<()> {
        // Relaxed: the caller, who holds the permit, has seen the step that gave it out, and no moment is older than that.
        let packed = self.packed();
        if packed.is_busy() {
            return None;
        }
        let deadline = self.deadline(packed)?;
        if let Some(renewed) = f(packed, deadline, self.now()) {
            // Relaxed: it carries on the release of the step whose moment it replaces, or of the one under way that has read it already. If it fails,
            // a step has moved the moment, and the caller's phase is over.
            let _ = self.deadline.compare_exchange(
                deadline.as_nanos(),
                renewed.as_nanos(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        Some(())
    }

    /// Looks at the machine, and at the word with what was counted in it, without changing anything.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&M, PackedState, &M::Rules) -> R) -> R {
        let mut inside = lock(&self.inside);
        let mut packed = PackedState::from_bits(self.packed.load(Ordering::Relaxed));
        if packed.is_busy() {
            packed = inside.machine.packed();
        } else {
            // Nothing that the next step would not take over in its turn.
            inside.machine.take_over(packed, self.any_deadline());
        }
        f(&inside.machine, packed, &self.environment.rules)
    }

    /// Tells the observers what the machine noted, in order and one at a time; what a listener sets off by calling back comes after.
    fn deliver(&self) {
        let name = self.name.as_ref().map(Name::as_str);
        loop {
            let told = lock(&self.inside).events.next();
            match told {
                Some(Queued::Event(pending)) => self.tell(&M::event(pending, name, self.rules())),
                Some(Queued::Missed(count)) => self.tell(&Event::Missed { name, count }),
                None => return,
            }
        }
    }

    /// Has `cx` woken at the next transition. The caller looks at the word once more before it trusts that it must wait.
    pub(crate) fn wait(&self, waiter: &mut Option<WaiterGuard>, cx: &mut Context<'_>) {
        let waiter = waiter.get_or_insert_with(|| {
            let waiter = WaiterGuard(Arc::new(Mutex::new(None)));
            let mut inside = lock(&self.inside);
            // Room for as many again as are awaited, so that services that come and go do not pile up here.
            if inside.waiters.len() == inside.waiters.capacity() {
                inside.waiters.retain(Waiter::is_taken);
                let room = inside.waiters.len() + 1;
                inside.waiters.reserve(room);
            }
            inside.waiters.push(Waiter(Arc::clone(&waiter.0)));
            waiter
        });
        waiter.set(Some(cx.waker().clone()));
    }

    /// Evicts the cell if it is not live, has no call in flight, and is clean unless `unclean` will do.
    ///
    /// A call is in flight while anybody but the store holds the cell; `held` is how often the store itself holds it. A caller first holds
    /// the cell, then looks at its word; here the word is marked first, and then the holders are counted, with a full
    /// fence on each side ([`settle`]). So either the caller sees the mark, and comes to the lock to learn
    /// whether the cell is still good, or it is counted here.
    pub(crate) fn retire(
        this: &Arc<MachineRef<M>>,
        held: usize,
        unclean: bool,
        now: Timestamp,
    ) -> Retirement {
        let machine = this.machine();
        let mut inside = lock(&machine.inside);
        let (_, was) = machine.enter(&mut inside);
        settle();
        let retirement = if Arc::strong_count(this) > held {
            Retirement::Held
        } else {
            let rest = inside.machine.retention(&machine.environment.rules, now);
            match rest {
                Retention::Live => {
                    Retirement::Live(inside.machine.live_until(&machine.environment.rules, now))
                }
                Retention::Unclean if !unclean => Retirement::Unclean,
                Retention::Clean | Retention::Unclean => {
                    inside.retired = true;
                    let clean = rest == Retention::Clean;
                    Retirement::Done { clean }
                }
            }
        };
        machine.publish(&inside, was);
        retirement
    }

    /// Takes the cell out of use whatever its state, for good.
    pub(crate) fn retire_now(&self) {
        self.step_inside(|inside, _| inside.retired = true);
    }

    /// The store's mark of when the cell was last looked up.
    pub(crate) fn used(&self) -> &AtomicU64 {
        &self.used
    }
}

/// Orders a hold on a cell before the look at its word, and the mark on the word before the count of the holders.
pub(crate) fn settle() {
    fence(Ordering::SeqCst);
}

impl<M: Machine> fmt::Debug for SharedMachine<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMachine")
            .field("name", &self.name)
            .field("packed", &self.packed())
            .finish_non_exhaustive()
    }
}

/// What a permit holds on to: a count of holders, and the cell behind it.
///
/// A service that is called again and again makes an anchor of its own on the shared cell, so that two threads with a clone each do not write
/// to the same count at every call; nor to the same cache line.
#[repr(align(64))]
pub(crate) struct MachineRef<M: Machine> {
    machine: Arc<SharedMachine<M>>,
}

impl<M: Machine> MachineRef<M> {
    pub(crate) fn new(machine: SharedMachine<M>) -> Self {
        Self {
            machine: Arc::new(machine),
        }
    }

    /// Another anchor on the same cell.
    pub(crate) fn again(&self) -> Self {
        Self {
            machine: Arc::clone(&self.machine),
        }
    }

    #[inline]
    pub(crate) fn machine(&self) -> &SharedMachine<M> {
        &self.machine
    }
}

impl<M: Machine> fmt::Debug for MachineRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.fmt(f)
    }
}

/// Whose count a service's anchor is. Its own costs an allocation, so it is made when the service is called for the second time: a clone for a single
/// request pays nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefOwner {
    /// The layer's, or that of the service it is a clone of; it was not called yet.
    Shared,
    /// The same; it was called once.
    SharedOnce,
    Own,
}

impl RefOwner {
    /// The anchor for one more permit of the service whose anchor and count these are.
    pub(crate) fn hold<M: Machine>(
        &mut self,
        machine_ref: &mut Arc<MachineRef<M>>,
    ) -> Arc<MachineRef<M>> {
        match self {
            RefOwner::Shared => *self = RefOwner::SharedOnce,
            RefOwner::SharedOnce => {
                *machine_ref = Arc::new(machine_ref.again());
                *self = RefOwner::Own;
            }
            RefOwner::Own => {}
        }
        Arc::clone(machine_ref)
    }
}

/// A service's place among those who wait for a transition. It takes its waker along when it goes.
#[derive(Debug)]
pub(crate) struct WaiterGuard(Arc<Mutex<Option<Waker>>>);

impl WaiterGuard {
    fn set(&self, waker: Option<Waker>) {
        let old = std::mem::replace(&mut *lock(&self.0), waker);
        drop(old);
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// The cell's end of a [`WaiterGuard`].
#[derive(Clone, Debug)]
struct Waiter(Arc<Mutex<Option<Waker>>>);

impl Waiter {
    fn wake(&self) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            // A panic in one executor must not keep the others asleep and the notes untold.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                // Its destructor might panic in its turn.
                std::mem::forget(payload);
            }
        }
    }

    /// Whether the service still holds its end.
    fn is_taken(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex as StdMutex;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::vocabulary::{State, TransitionReason};

    /// A machine that is moved by hand.
    pub(crate) struct TestMachine {
        pub(crate) generation: u32,
        pub(crate) phase: u8,
        pub(crate) streak: u32,
        pub(crate) deadline: Timestamp,
        pub(crate) rest: Retention,
    }

    impl TestMachine {
        pub(crate) fn new() -> Self {
            Self {
                generation: 0,
                phase: 0,
                streak: 0,
                deadline: Timestamp::NEVER,
                rest: Retention::Clean,
            }
        }

        /// A transition, and a note of it.
        fn go(&mut self, events: &mut EventQueue<u32>) {
            self.generation += 1;
            events.push(self.generation);
        }
    }

    thread_local!(static EXAMINED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

    /// How often lamps of this thread were asked whether they may be evicted.
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

        /// Live means until its moment; then it is unclean.
        fn retention(&self, (): &(), now: Timestamp) -> Retention {
            EXAMINED.set(EXAMINED.get() + 1);
            match self.rest {
                Retention::Live if now >= self.deadline => Retention::Unclean,
                rest => rest,
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

    pub(crate) fn environment(observers: Observers) -> Arc<Environment<()>> {
        let clock = Clock::start();
        Arc::new(Environment {
            rules: (),
            clock,
            observers,
        })
    }

    pub(crate) fn machine(observers: Observers) -> SharedMachine<TestMachine> {
        SharedMachine::new(
            TestMachine::new(),
            Some(Name::Static("lamp")),
            environment(observers),
        )
    }

    fn machine_ref() -> Arc<MachineRef<TestMachine>> {
        Arc::new(MachineRef::new(machine(Observers::default())))
    }

    fn go(machine: &SharedMachine<TestMachine>) {
        machine.step(|lamp, (), events| lamp.go(events));
    }

    #[allow(clippy::unnecessary_wraps)] // It has the shape of an update.
    fn raise(packed: PackedState) -> Option<PackedState> {
        Some(packed.with_streak(packed.streak() + 1))
    }

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

    /// Waits in `shared_machine` with a waker of its own.
    fn wait(machine: &SharedMachine<TestMachine>, waiter: &mut Option<WaiterGuard>) -> Arc<Woken> {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        machine.wait(waiter, &mut Context::from_waker(&waker));
        woken
    }

    type Seen = Arc<StdMutex<Vec<String>>>;

    /// Writes down what it is told.
    fn listener(seen: &Seen) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        let seen = Arc::clone(seen);
        move |event| {
            let text = match event {
                Event::Transition {
                    name, generation, ..
                } => {
                    assert_eq!(*name, Some("lamp"));
                    generation.to_string()
                }
                Event::Missed { name, count } => {
                    assert_eq!(*name, Some("lamp"));
                    format!("missed {count}")
                }
                other => panic!("{other:?}"),
            };
            seen.lock().unwrap().push(text);
        }
    }

    #[test]
    fn a_step_publishes_the_word_and_its_moment() {
        let machine = machine(Observers::default());
        assert_eq!(machine.packed(), PackedState::new(0, 0).lock_free(true));
        assert_eq!(machine.deadline(machine.packed()), Some(Timestamp::NEVER));
        let old = machine.packed();
        let answer = machine.step(|lamp, (), _| {
            lamp.phase = 3;
            lamp.deadline = Timestamp::from_nanos(7);
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
    fn an_update_changes_the_word_only_where_its_function_finds_that_enough() {
        let machine = machine(Observers::default());
        assert!(machine.update(raise));
        assert_eq!(machine.packed().streak(), 1);
        assert!(!machine.update(|_| None));
        assert_eq!(machine.packed().streak(), 1);
        assert!(
            machine.update(Some),
            "nothing to change is no reason to lock"
        );
        assert_eq!(machine.packed().streak(), 1);
    }

    #[test]
    fn what_the_word_counted_is_taken_over_by_a_look_and_by_a_step() {
        let machine = machine(Observers::default());
        machine.update(raise);
        machine.update(raise);
        assert_eq!(
            machine.read(|lamp, packed, ()| (lamp.streak, packed.streak())),
            (2, 2)
        );
        machine.update(raise);
        assert_eq!(machine.step(|lamp, (), _| lamp.streak), 3);
        machine.step(|lamp, (), _| lamp.streak = 0);
        assert_eq!(machine.packed().streak(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_is_renewed_without_a_step_and_taken_over_by_the_next() {
        let machine = machine(Observers::default());
        machine.step(|lamp, (), _| lamp.deadline = Timestamp::from_nanos(5));
        let packed = machine.packed();
        machine.renew(|seen, deadline, now| {
            assert_eq!(
                (seen, deadline, now),
                (packed, Timestamp::from_nanos(5), Timestamp::START)
            );
            Some(Timestamp::from_nanos(9))
        });
        assert_eq!(machine.deadline(packed), Some(Timestamp::from_nanos(9)));
        assert_eq!(
            machine.read(|lamp, _, ()| lamp.deadline),
            Timestamp::from_nanos(9)
        );
        // A step that has nothing to do with it leaves it as it is.
        machine.step(|lamp, (), _| lamp.streak = 1);
        assert_eq!(machine.any_deadline(), Timestamp::from_nanos(9));
        machine.renew(|_, _, _| None);
        assert_eq!(machine.any_deadline(), Timestamp::from_nanos(9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_comes_late_never_moves_the_moment_of_another_generation() {
        for next in [
            Timestamp::from_nanos(9),
            Timestamp::from_nanos(4),
            Timestamp::NEVER,
        ] {
            let machine = machine(Observers::default());
            machine.step(|lamp, (), _| lamp.deadline = Timestamp::from_nanos(5));
            machine.renew(|_, _, _| {
                // The machine moves between the look at the moment and its renewal.
                machine.step(|lamp, (), events| {
                    lamp.deadline = next;
                    lamp.go(events);
                });
                Some(Timestamp::from_nanos(100))
            });
            assert_eq!(machine.deadline(machine.packed()), Some(next));
            assert_eq!(machine.read(|lamp, _, ()| lamp.deadline), next);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_beside_a_step_that_does_not_move_the_moment_is_kept() {
        let machine = machine(Observers::default());
        machine.step(|lamp, (), _| lamp.deadline = Timestamp::from_nanos(5));
        machine.renew(|_, _, _| {
            machine.step(|lamp, (), _| lamp.streak += 1);
            Some(Timestamp::from_nanos(9))
        });
        assert_eq!(
            machine.deadline(machine.packed()),
            Some(Timestamp::from_nanos(9))
        );
        machine.step(|lamp, (), _| assert_eq!(lamp.deadline, Timestamp::from_nanos(9)));
    }

    #[test]
    fn a_moment_that_two_generations_have_in_common_is_told_as_it_is() {
        let machine = machine(Observers::default());
        machine.step(|lamp, (), _| lamp.deadline = Timestamp::from_nanos(5));
        for _ in 0..2 {
            go(&machine);
            assert_eq!(
                machine.deadline(machine.packed()),
                Some(Timestamp::from_nanos(5))
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cell_that_is_retired_has_no_moment_to_renew() {
        let machine = machine(Observers::default());
        machine.retire_now();
        machine.renew(|_, _, _| unreachable!("nobody is admitted there"));
    }

    #[test]
    fn waiters_are_woken_by_each_transition_and_by_nothing_else() {
        let machine = machine(Observers::default());
        let mut waiter = None;
        let quiet = wait(&machine, &mut waiter);
        machine.update(raise);
        machine.step(|lamp, (), _| lamp.streak = 5);
        machine.step(|lamp, (), _| lamp.deadline = Timestamp::START);
        assert_eq!(quiet.times(), 0);
        go(&machine);
        assert_eq!(quiet.times(), 1);
        go(&machine);
        assert_eq!(quiet.times(), 1, "one wait is woken once");

        let phase = wait(&machine, &mut waiter);
        machine.step(|lamp, (), _| lamp.phase = 1);
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
        assert_eq!(Arc::strong_count(&first), 1, "it was let go");
        go(&machine);
        assert_eq!((first.times(), second.times()), (0, 1));
    }

    #[test]
    fn all_who_wait_are_woken() {
        let machine = machine(Observers::default());
        let mut waiters: Vec<_> = (0..100).map(|_| None).collect();
        let woken: Vec<_> = waiters
            .iter_mut()
            .map(|waiter| wait(&machine, waiter))
            .collect();
        waiters.truncate(90);
        go(&machine);
        for (at, woken) in woken.iter().enumerate() {
            assert_eq!(woken.times(), usize::from(at < 90));
        }
        assert_eq!(lock(&machine.inside).waiters.len(), 90);
        drop(waiters);
        go(&machine);
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
        go(&machine);
        assert_eq!(woken.times(), 1, "and nobody is forgotten over it");
    }

    #[test]
    fn a_waker_may_come_back_to_the_cell_when_it_is_dropped() {
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
        go(machine_ref.machine());
        assert_eq!(drops.load(Ordering::Relaxed), 2, "woken");
        for _ in 0..10 {
            let mut waiter = None;
            wait(&mut waiter);
        }
        assert_eq!(
            drops.load(Ordering::Relaxed),
            12,
            "gone with their services"
        );
        go(machine_ref.machine());
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
        go(&machine);
        assert!(ends.0.lock().unwrap().is_none());
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_asleep_and_no_event_back() {
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
        go(&machine);
        assert_eq!(woken.times(), 1);
        assert_eq!(*seen.lock().unwrap(), ["1"]);
    }

    #[test]
    fn a_listener_that_panics_harms_neither_the_state_nor_the_others() {
        let seen = Seen::default();
        let mut observers = Observers::default();
        observers.add(Arc::new(|_: &Event<'_>| panic!("a listener's")));
        observers.add(Arc::new(listener(&seen)));
        let machine = machine(observers);
        go(&machine);
        go(&machine);
        assert_eq!(machine.packed().generation(), 2);
        assert_eq!(*seen.lock().unwrap(), ["1", "2"]);
    }

    #[test]
    fn what_a_listener_sets_off_is_told_after_and_what_is_too_much_is_counted() {
        let seen = Seen::default();
        let back = Arc::new(StdMutex::new(None::<Arc<MachineRef<TestMachine>>>));
        let way = Arc::clone(&back);
        let list = listener(&seen);
        let mut observers = Observers::default();
        observers.add(Arc::new(move |event: &Event<'_>| {
            let way = way.lock().unwrap().take();
            if let Some(machine_ref) = way {
                for _ in 0..EventQueue::<u32>::MOST + 5 {
                    go(machine_ref.machine());
                }
            }
            list(event);
        }));
        let machine_ref = Arc::new(MachineRef::new(machine(observers)));
        *back.lock().unwrap() = Some(Arc::clone(&machine_ref));
        go(machine_ref.machine());
        let seen = seen.lock().unwrap();
        let most = u32::try_from(EventQueue::<u32>::MOST).unwrap();
        let mut expected: Vec<_> = (1..=most + 1).map(|n| n.to_string()).collect();
        expected.push("missed 5".to_owned());
        assert_eq!(*seen, expected);
    }

    #[test]
    fn notes_that_nobody_will_be_told_are_not_kept() {
        let machine = machine(Observers::default());
        assert!(!machine.observed());
        go(&machine);
        assert_eq!(
            format!("{:?}", lock(&machine.inside).events),
            "EventQueue { queue: None }"
        );
    }

    #[test]
    fn a_cell_retires_when_it_is_idle_not_live_and_clean_enough() {
        let done = |clean| Retirement::Done { clean };
        let timestamp = Timestamp::from_nanos(9);
        for (rest, unclean, expected) in [
            (Retention::Clean, false, done(true)),
            (Retention::Clean, true, done(true)),
            (Retention::Unclean, false, Retirement::Unclean),
            (Retention::Unclean, true, done(false)),
            (Retention::Live, false, Retirement::Live(timestamp)),
            (Retention::Live, true, Retirement::Live(timestamp)),
        ] {
            let machine_ref = machine_ref();
            machine_ref.machine().step(|lamp, (), _| {
                lamp.rest = rest;
                lamp.deadline = timestamp;
            });
            machine_ref.machine().update(raise);
            let caller = Arc::clone(&machine_ref);
            assert_eq!(
                SharedMachine::retire(&machine_ref, 1, unclean, Timestamp::START),
                Retirement::Held
            );
            assert_eq!(
                machine_ref.machine().packed().streak(),
                1,
                "what was counted is kept"
            );
            drop(caller);
            assert_eq!(
                SharedMachine::retire(&machine_ref, 1, unclean, Timestamp::START),
                expected
            );
            let gone = matches!(expected, Retirement::Done { .. });
            assert_eq!(machine_ref.machine().packed().is_busy(), gone);
            assert_eq!(
                machine_ref
                    .machine()
                    .step_unless_retired(|_, (), _| ())
                    .is_err(),
                gone
            );
        }
    }

    #[test]
    fn nobody_is_admitted_to_a_retired_cell() {
        let machine = machine(Observers::default());
        go(&machine);
        machine.retire_now();
        assert_eq!(machine.step_unless_retired(|_, (), _| ()), Err(Retired));
        assert!(machine.packed().is_busy());
        assert!(!machine.update(|packed| (!packed.is_busy()).then_some(packed)));
        go(&machine);
        assert!(machine.packed().is_busy(), "for good");
        assert_eq!(
            machine.read(|lamp, packed, ()| (lamp.generation, packed.generation())),
            (2, 2)
        );
    }

    #[test]
    fn an_anchor_of_its_own_leads_to_the_cell() {
        let environment = machine_ref();
        let own = environment.again().again();
        assert!(std::ptr::eq(own.machine(), environment.machine()));
        assert_eq!(format!("{own:?}"), format!("{:?}", environment.machine()));
        assert_eq!(
            format!("{own:?}"),
            format!(
                "SharedMachine {{ name: Some(Static(\"lamp\")), packed: {:?}, .. }}",
                environment.machine().packed()
            )
        );
    }
}
