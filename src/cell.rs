//! A state machine that many threads share: its lock, the atomic word that mirrors it, the callers that wait for it to move, and the
//! delivery of its events.
//!
//! # How the word and the lock live together
//!
//! The machine stands under a mutex. Whoever changes it first swaps [`Word::BUSY`] into the word, which sends every lock-free caller to the
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

use crate::clock::{Clock, Moment};
use crate::event::{Event, Observers};
use crate::machine::{Machine, Notes, Rest, Told, Word};
use crate::refusal::Name;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence, lock};

/// A machine that many threads share.
pub(crate) struct Cell<M: Machine> {
    word: AtomicU64,
    until: AtomicU64,
    /// The store's mark of when it was last looked up; nobody else reads or writes it.
    used: AtomicU64,
    name: Option<Name>,
    shared: Arc<Shared<M::Rules>>,
    inside: Mutex<Inside<M>>,
}

/// What all cells of a layer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Shared<R> {
    pub(crate) rules: R,
    pub(crate) clock: Clock,
    pub(crate) observers: Observers,
}

struct Inside<M: Machine> {
    machine: M,
    /// Gone from its store: nobody is admitted here any more.
    retired: bool,
    waiters: Vec<Seat>,
    notes: Notes<M::Note>,
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
    Live(Moment),
}

impl<M: Machine> Cell<M> {
    pub(crate) fn new(machine: M, name: Option<Name>, shared: Arc<Shared<M::Rules>>) -> Self {
        Self {
            word: AtomicU64::new(machine.word().bits()),
            until: AtomicU64::new(machine.until().as_nanos()),
            used: AtomicU64::new(0),
            name,
            shared,
            inside: Mutex::new(Inside {
                machine,
                retired: false,
                waiters: Vec::new(),
                notes: Notes::default(),
            }),
        }
    }

    #[inline]
    pub(crate) fn rules(&self) -> &M::Rules {
        &self.shared.rules
    }

    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    #[inline]
    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.shared.observers
    }

    #[inline]
    pub(crate) fn observed(&self) -> bool {
        !self.shared.observers.is_empty()
    }

    /// Tells the observers of something that is not a step of the machine.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.shared.observers.tell(event);
    }

    /// The word. It may be busy.
    #[inline]
    pub(crate) fn word(&self) -> Word {
        // Relaxed: who reads the word alone needs nothing else to be as new.
        Word::from_bits(self.word.load(Ordering::Relaxed))
    }

    /// The word, to be followed by [`until`](Self::until).
    #[inline]
    pub(crate) fn word_before_until(&self) -> Word {
        // Acquire: the moment that was published with it is there.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// The moment that belongs to `word`, or `None` if the machine has moved since `word` was read.
    #[inline]
    pub(crate) fn until(&self, word: Word) -> Option<Moment> {
        // Acquire, so that the second look at the word comes after: it would see the busy mark of a step whose moment was read here.
        let until = self.until.load(Ordering::Acquire);
        (self.word.load(Ordering::Relaxed) == word.bits()).then(|| Moment::from_nanos(until))
    }

    /// The moment, whatever word it belongs to: to see whether it was moved.
    #[inline]
    pub(crate) fn any_until(&self) -> Moment {
        // Relaxed: who sees the old one could as well have come a little earlier.
        Moment::from_nanos(self.until.load(Ordering::Relaxed))
    }

    /// Changes the word without the lock, where `f` finds that enough and nobody else changes it at the same time. Answers `false`, with
    /// nothing changed, where not: then it takes a step.
    #[inline]
    pub(crate) fn update(&self, f: impl FnOnce(Word) -> Option<Word>) -> bool {
        // Relaxed: all that a count means is in the word itself, and a step takes it over by a swap, which reads the last value.
        let bits = self.word.load(Ordering::Relaxed);
        let Some(new) = f(Word::from_bits(bits)) else {
            return false;
        };
        new.bits() == bits
            || self
                .word
                .compare_exchange(bits, new.bits(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Lets the machine move, publishes what became of it, wakes those who wait, and delivers its notes.
    pub(crate) fn step<R>(&self, f: impl FnOnce(&mut M, &M::Rules, &mut Notes<M::Note>) -> R) -> R {
        self.step_inside(|inside, rules| f(&mut inside.machine, rules, &mut inside.notes))
    }

    /// [`step`](Self::step), unless the cell is gone from its store.
    pub(crate) fn step_unless_retired<R>(
        &self,
        f: impl FnOnce(&mut M, &M::Rules, &mut Notes<M::Note>) -> R,
    ) -> Result<R, Retired> {
        self.step_inside(|inside, rules| {
            if inside.retired {
                return Err(Retired);
            }
            Ok(f(&mut inside.machine, rules, &mut inside.notes))
        })
    }

    /// Lets the machine change what neither its word nor its moment mirrors, at the price of the lock alone: the word is not marked, and what
    /// it counted is not taken over. `None`, with nothing changed, where that is not enough, or the cell is gone from its store: then
    /// take a step.
    // Always, since what it is given is short, and a call of its own would cost a tenth of the whole.
    #[allow(clippy::inline_always)] // It stands on the tripwire's closed path, whose instructions are limited.
    #[inline(always)]
    pub(crate) fn quietly<R>(&self, f: impl FnOnce(&mut M, &M::Rules) -> Option<R>) -> Option<R> {
        let mut inside = lock(&self.inside);
        if inside.retired {
            return None;
        }
        f(&mut inside.machine, &self.shared.rules)
    }

    fn step_inside<R>(&self, f: impl FnOnce(&mut Inside<M>, &M::Rules) -> R) -> R {
        let mut inside = lock(&self.inside);
        let (before, was) = self.enter(&mut inside);
        let result = f(&mut inside, &self.shared.rules);
        let after = self.publish(&inside, was);

        let mut woken = Vec::new();
        if before.differs_for_waiters(after) {
            // Those whose service is gone are let go on the way; a service takes its waker along.
            inside.waiters.retain(Seat::is_taken);
            woken.extend(inside.waiters.iter().cloned());
        }
        if !self.observed() {
            inside.notes.discard();
        }
        let deliver = inside.notes.begin();
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
    fn enter(&self, inside: &mut Inside<M>) -> (Word, Moment) {
        // Relaxed: the moment's and the word's own releases come after it.
        let word = Word::from_bits(self.word.swap(Word::BUSY.bits(), Ordering::Relaxed));
        let mut until = self.any_until();
        if until != Moment::NEVER {
            // Read by a write, which has its place among the renewals: each is either read here, or comes after the busy mark, and who sees it
            // sees that mark, too. Release, for the latter. What never comes is not renewed.
            until = Moment::from_nanos(self.until.fetch_or(0, Ordering::Release));
        }
        if !word.is_busy() {
            inside.machine.adopt(word, until);
        }
        (word, until)
    }

    /// Publishes what became of a machine whose moment was `was`.
    fn publish(&self, inside: &Inside<M>, was: Moment) -> Word {
        let word = if inside.retired {
            Word::BUSY
        } else {
            inside.machine.word()
        };
        let until = inside.machine.until();
        // A moment that the machine has not moved stays as it is: it may have been renewed since.
        if until != was {
            // Release, after the busy mark: who reads this moment sees that mark, or the word that follows. A swap, where a store would do, since loom
            // lets a store come before a renewal that it cannot come before.
            self.until.swap(until.as_nanos(), Ordering::Release);
        }
        // Release, after the moment: who reads this word sees its moment.
        self.word.store(word.bits(), Ordering::Release);
        word
    }

    /// Moves the moment without the lock: `f` makes of the word, the moment and the time the new one, and never an earlier one, or `None`
    /// if this phase's moment is not the caller's to move.
    ///
    /// A caller that is slow to do so may find that the machine has moved in the meantime; then the moment is another, and stays as it is. That is
    /// the machine's to see to: whoever ends a lease but its own probe leaves another moment. (The same one may come again in a later generation,
    /// should the clock tell the same nanosecond twice or a cooldown end to the nanosecond where the lease would have; a renewal would have to be under
    /// way across all the steps to it.)
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    pub(crate) fn renew(&self, f: impl Fn(Word, Moment, Moment) -> Option<Moment>) {
        if self.try_renew(&f).is_none() {
            // A step is under way. When it is over, the word tells what became of it.
            let _inside = lock(&self.inside);
            self.try_renew(&f);
        }
    }

    /// Answers with `None` if a step is under way.
    #[cfg(any(feature = "http", test, tower_breaker_loom))]
    fn try_renew(&self, f: impl Fn(Word, Moment, Moment) -> Option<Moment>) -> Option<()> {
        // Relaxed: the caller, who holds the permit, has seen the step that gave it out, and no moment is older than that.
        let word = self.word();
        if word.is_busy() {
            return None;
        }
        let until = self.until(word)?;
        if let Some(renewed) = f(word, until, self.now()) {
            // Relaxed: it carries on the release of the step whose moment it replaces, or of the one under way that has read it already. If it fails,
            // a step has moved the moment, and the caller's phase is over.
            let _ = self.until.compare_exchange(
                until.as_nanos(),
                renewed.as_nanos(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        Some(())
    }

    /// Looks at the machine, and at the word with what was counted in it, without changing anything.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&M, Word, &M::Rules) -> R) -> R {
        let mut inside = lock(&self.inside);
        let mut word = Word::from_bits(self.word.load(Ordering::Relaxed));
        if word.is_busy() {
            word = inside.machine.word();
        } else {
            // Nothing that the next step would not take over in its turn.
            inside.machine.adopt(word, self.any_until());
        }
        f(&inside.machine, word, &self.shared.rules)
    }

    /// Tells the observers what the machine noted, in order and one at a time; what a listener sets off by calling back comes after.
    fn deliver(&self) {
        let name = self.name.as_ref().map(Name::as_str);
        loop {
            let told = lock(&self.inside).notes.next();
            match told {
                Some(Told::Note(note)) => self.tell(&M::event(note, name, self.rules())),
                Some(Told::Missed(count)) => self.tell(&Event::Missed { name, count }),
                None => return,
            }
        }
    }

    /// Has `cx` woken at the next transition. The caller looks at the word once more before it trusts that it must wait.
    pub(crate) fn wait(&self, waiter: &mut Option<Waiter>, cx: &mut Context<'_>) {
        let waiter = waiter.get_or_insert_with(|| {
            let waiter = Waiter(Arc::new(Mutex::new(None)));
            let mut inside = lock(&self.inside);
            // Room for as many again as are awaited, so that services that come and go do not pile up here.
            if inside.waiters.len() == inside.waiters.capacity() {
                inside.waiters.retain(Seat::is_taken);
                let room = inside.waiters.len() + 1;
                inside.waiters.reserve(room);
            }
            inside.waiters.push(Seat(Arc::clone(&waiter.0)));
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
        this: &Arc<Anchor<M>>,
        held: usize,
        unclean: bool,
        now: Moment,
    ) -> Retirement {
        let cell = this.cell();
        let mut inside = lock(&cell.inside);
        let (_, was) = cell.enter(&mut inside);
        settle();
        let retirement = if Arc::strong_count(this) > held {
            Retirement::Held
        } else {
            let rest = inside.machine.rest(&cell.shared.rules, now);
            match rest {
                Rest::Live => Retirement::Live(inside.machine.live_until(&cell.shared.rules, now)),
                Rest::Unclean if !unclean => Retirement::Unclean,
                Rest::Clean | Rest::Unclean => {
                    inside.retired = true;
                    let clean = rest == Rest::Clean;
                    Retirement::Done { clean }
                }
            }
        };
        cell.publish(&inside, was);
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

impl<M: Machine> fmt::Debug for Cell<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell")
            .field("name", &self.name)
            .field("word", &self.word())
            .finish_non_exhaustive()
    }
}

/// What a permit holds on to: a count of holders, and the cell behind it.
///
/// A service that is called again and again makes an anchor of its own on the shared cell, so that two threads with a clone each do not write
/// to the same count at every call; nor to the same cache line.
#[repr(align(64))]
pub(crate) struct Anchor<M: Machine> {
    cell: Arc<Cell<M>>,
}

impl<M: Machine> Anchor<M> {
    pub(crate) fn new(cell: Cell<M>) -> Self {
        Self {
            cell: Arc::new(cell),
        }
    }

    /// Another anchor on the same cell.
    pub(crate) fn again(&self) -> Self {
        Self {
            cell: Arc::clone(&self.cell),
        }
    }

    #[inline]
    pub(crate) fn cell(&self) -> &Cell<M> {
        &self.cell
    }
}

impl<M: Machine> fmt::Debug for Anchor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell.fmt(f)
    }
}

/// Whose count a service's anchor is. Its own costs an allocation, so it is made when the service is called for the second time: a clone for a single
/// request pays nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// The layer's, or that of the service it is a clone of; it was not called yet.
    Shared,
    /// The same; it was called once.
    SharedOnce,
    Own,
}

impl Count {
    /// The anchor for one more permit of the service whose anchor and count these are.
    pub(crate) fn hold<M: Machine>(&mut self, anchor: &mut Arc<Anchor<M>>) -> Arc<Anchor<M>> {
        match self {
            Count::Shared => *self = Count::SharedOnce,
            Count::SharedOnce => {
                *anchor = Arc::new(anchor.again());
                *self = Count::Own;
            }
            Count::Own => {}
        }
        Arc::clone(anchor)
    }
}

/// A service's place among those who wait for a transition. It takes its waker along when it goes.
#[derive(Debug)]
pub(crate) struct Waiter(Arc<Mutex<Option<Waker>>>);

impl Waiter {
    fn set(&self, waker: Option<Waker>) {
        let old = std::mem::replace(&mut *lock(&self.0), waker);
        drop(old);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// The cell's end of a [`Waiter`].
#[derive(Clone, Debug)]
struct Seat(Arc<Mutex<Option<Waker>>>);

impl Seat {
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
    use crate::event::{State, TransitionReason};

    /// A machine that is moved by hand.
    pub(crate) struct Lamp {
        pub(crate) generation: u32,
        pub(crate) phase: u8,
        pub(crate) streak: u32,
        pub(crate) until: Moment,
        pub(crate) rest: Rest,
    }

    impl Lamp {
        pub(crate) fn new() -> Self {
            Self {
                generation: 0,
                phase: 0,
                streak: 0,
                until: Moment::NEVER,
                rest: Rest::Clean,
            }
        }

        /// A transition, and a note of it.
        fn go(&mut self, notes: &mut Notes<u32>) {
            self.generation += 1;
            notes.push(self.generation);
        }
    }

    thread_local!(static EXAMINED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

    /// How often lamps of this thread were asked whether they may be evicted.
    pub(crate) fn examined() -> u64 {
        EXAMINED.get()
    }

    impl Machine for Lamp {
        type Rules = ();
        type Note = u32;

        fn word(&self) -> Word {
            Word::new(self.generation, self.phase)
                .with_streak(self.streak)
                .plain(true)
        }

        fn until(&self) -> Moment {
            self.until
        }

        fn adopt(&mut self, word: Word, until: Moment) {
            self.streak = word.streak();
            self.until = until;
        }

        /// Live means until its moment; then it is unclean.
        fn rest(&self, (): &(), now: Moment) -> Rest {
            EXAMINED.set(EXAMINED.get() + 1);
            match self.rest {
                Rest::Live if now >= self.until => Rest::Unclean,
                rest => rest,
            }
        }

        fn event<'a>(note: u32, name: Option<&'a str>, (): &()) -> Event<'a> {
            Event::Transition {
                name,
                from: State::Closed,
                to: State::Closed,
                reason: TransitionReason::Reset,
                generation: note,
            }
        }
    }

    pub(crate) fn shared(observers: Observers) -> Arc<Shared<()>> {
        let clock = Clock::start();
        Arc::new(Shared {
            rules: (),
            clock,
            observers,
        })
    }

    pub(crate) fn cell(observers: Observers) -> Cell<Lamp> {
        Cell::new(Lamp::new(), Some(Name::Static("lamp")), shared(observers))
    }

    fn anchor() -> Arc<Anchor<Lamp>> {
        Arc::new(Anchor::new(cell(Observers::default())))
    }

    fn go(cell: &Cell<Lamp>) {
        cell.step(|lamp, (), notes| lamp.go(notes));
    }

    #[allow(clippy::unnecessary_wraps)] // It has the shape of an update.
    fn raise(word: Word) -> Option<Word> {
        Some(word.with_streak(word.streak() + 1))
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

    /// Waits in `cell` with a waker of its own.
    fn wait(cell: &Cell<Lamp>, waiter: &mut Option<Waiter>) -> Arc<Woken> {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        cell.wait(waiter, &mut Context::from_waker(&waker));
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
        let cell = cell(Observers::default());
        assert_eq!(cell.word(), Word::new(0, 0).plain(true));
        assert_eq!(cell.until(cell.word()), Some(Moment::NEVER));
        let old = cell.word();
        let answer = cell.step(|lamp, (), _| {
            lamp.phase = 3;
            lamp.until = Moment::from_nanos(7);
            "answer"
        });
        assert_eq!(answer, "answer");
        assert_eq!(cell.word(), Word::new(0, 3).plain(true));
        assert_eq!(cell.until(cell.word()), Some(Moment::from_nanos(7)));
        assert_eq!(cell.until(old), None, "the machine has moved since");
    }

    #[test]
    fn an_update_changes_the_word_only_where_its_function_finds_that_enough() {
        let cell = cell(Observers::default());
        assert!(cell.update(raise));
        assert_eq!(cell.word().streak(), 1);
        assert!(!cell.update(|_| None));
        assert_eq!(cell.word().streak(), 1);
        assert!(cell.update(Some), "nothing to change is no reason to lock");
        assert_eq!(cell.word().streak(), 1);
    }

    #[test]
    fn what_the_word_counted_is_taken_over_by_a_look_and_by_a_step() {
        let cell = cell(Observers::default());
        cell.update(raise);
        cell.update(raise);
        assert_eq!(
            cell.look(|lamp, word, ()| (lamp.streak, word.streak())),
            (2, 2)
        );
        cell.update(raise);
        assert_eq!(cell.step(|lamp, (), _| lamp.streak), 3);
        cell.step(|lamp, (), _| lamp.streak = 0);
        assert_eq!(cell.word().streak(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_is_renewed_without_a_step_and_taken_over_by_the_next() {
        let cell = cell(Observers::default());
        cell.step(|lamp, (), _| lamp.until = Moment::from_nanos(5));
        let word = cell.word();
        cell.renew(|seen, until, now| {
            assert_eq!(
                (seen, until, now),
                (word, Moment::from_nanos(5), Moment::START)
            );
            Some(Moment::from_nanos(9))
        });
        assert_eq!(cell.until(word), Some(Moment::from_nanos(9)));
        assert_eq!(cell.look(|lamp, _, ()| lamp.until), Moment::from_nanos(9));
        // A step that has nothing to do with it leaves it as it is.
        cell.step(|lamp, (), _| lamp.streak = 1);
        assert_eq!(cell.any_until(), Moment::from_nanos(9));
        cell.renew(|_, _, _| None);
        assert_eq!(cell.any_until(), Moment::from_nanos(9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_comes_late_never_moves_the_moment_of_another_generation() {
        for next in [Moment::from_nanos(9), Moment::from_nanos(4), Moment::NEVER] {
            let cell = cell(Observers::default());
            cell.step(|lamp, (), _| lamp.until = Moment::from_nanos(5));
            cell.renew(|_, _, _| {
                // The machine moves between the look at the moment and its renewal.
                cell.step(|lamp, (), notes| {
                    lamp.until = next;
                    lamp.go(notes);
                });
                Some(Moment::from_nanos(100))
            });
            assert_eq!(cell.until(cell.word()), Some(next));
            assert_eq!(cell.look(|lamp, _, ()| lamp.until), next);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_beside_a_step_that_does_not_move_the_moment_is_kept() {
        let cell = cell(Observers::default());
        cell.step(|lamp, (), _| lamp.until = Moment::from_nanos(5));
        cell.renew(|_, _, _| {
            cell.step(|lamp, (), _| lamp.streak += 1);
            Some(Moment::from_nanos(9))
        });
        assert_eq!(cell.until(cell.word()), Some(Moment::from_nanos(9)));
        cell.step(|lamp, (), _| assert_eq!(lamp.until, Moment::from_nanos(9)));
    }

    #[test]
    fn a_moment_that_two_generations_have_in_common_is_told_as_it_is() {
        let cell = cell(Observers::default());
        cell.step(|lamp, (), _| lamp.until = Moment::from_nanos(5));
        for _ in 0..2 {
            go(&cell);
            assert_eq!(cell.until(cell.word()), Some(Moment::from_nanos(5)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cell_that_is_retired_has_no_moment_to_renew() {
        let cell = cell(Observers::default());
        cell.retire_now();
        cell.renew(|_, _, _| unreachable!("nobody is admitted there"));
    }

    #[test]
    fn waiters_are_woken_by_each_transition_and_by_nothing_else() {
        let cell = cell(Observers::default());
        let mut waiter = None;
        let quiet = wait(&cell, &mut waiter);
        cell.update(raise);
        cell.step(|lamp, (), _| lamp.streak = 5);
        cell.step(|lamp, (), _| lamp.until = Moment::START);
        assert_eq!(quiet.times(), 0);
        go(&cell);
        assert_eq!(quiet.times(), 1);
        go(&cell);
        assert_eq!(quiet.times(), 1, "one wait is woken once");

        let phase = wait(&cell, &mut waiter);
        cell.step(|lamp, (), _| lamp.phase = 1);
        let gone = wait(&cell, &mut waiter);
        cell.retire_now();
        assert_eq!((quiet.times(), phase.times(), gone.times()), (1, 1, 1));
    }

    #[test]
    fn the_last_waker_of_a_waiter_is_the_one_that_is_woken() {
        let cell = cell(Observers::default());
        let mut waiter = None;
        let first = wait(&cell, &mut waiter);
        let second = wait(&cell, &mut waiter);
        assert_eq!(Arc::strong_count(&first), 1, "it was let go");
        go(&cell);
        assert_eq!((first.times(), second.times()), (0, 1));
    }

    #[test]
    fn all_who_wait_are_woken() {
        let cell = cell(Observers::default());
        let mut waiters: Vec<_> = (0..100).map(|_| None).collect();
        let woken: Vec<_> = waiters
            .iter_mut()
            .map(|waiter| wait(&cell, waiter))
            .collect();
        waiters.truncate(90);
        go(&cell);
        for (at, woken) in woken.iter().enumerate() {
            assert_eq!(woken.times(), usize::from(at < 90));
        }
        assert_eq!(lock(&cell.inside).waiters.len(), 90);
        drop(waiters);
        go(&cell);
        assert_eq!(lock(&cell.inside).waiters.len(), 0);
    }

    #[test]
    fn services_that_come_and_go_do_not_pile_up() {
        let cell = cell(Observers::default());
        let mut stays = None;
        let woken = wait(&cell, &mut stays);
        for _ in 0..10_000 {
            wait(&cell, &mut None);
            assert!(lock(&cell.inside).waiters.capacity() <= 8);
        }
        go(&cell);
        assert_eq!(woken.times(), 1, "and nobody is forgotten over it");
    }

    #[test]
    fn a_waker_may_come_back_to_the_cell_when_it_is_dropped() {
        struct Back(Arc<Anchor<Lamp>>, Arc<AtomicUsize>);
        impl Wake for Back {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Back {
            fn drop(&mut self) {
                self.0.cell().look(|_, _, ()| ());
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let anchor = anchor();
        let drops = Arc::new(AtomicUsize::new(0));
        let wait = |waiter: &mut Option<Waiter>| {
            let back = Back(Arc::clone(&anchor), Arc::clone(&drops));
            let waker = Waker::from(Arc::new(back));
            anchor.cell().wait(waiter, &mut Context::from_waker(&waker));
        };
        let mut waiter = None;
        wait(&mut waiter);
        wait(&mut waiter);
        assert_eq!(drops.load(Ordering::Relaxed), 1, "replaced");
        go(anchor.cell());
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
        go(anchor.cell());
    }

    #[test]
    fn a_waker_may_end_its_service_when_it_is_woken() {
        struct Ends(StdMutex<Option<Waiter>>);
        impl Wake for Ends {
            fn wake(self: Arc<Self>) {
                drop(self.0.lock().unwrap().take());
            }
        }
        let cell = cell(Observers::default());
        let ends = Arc::new(Ends(StdMutex::new(None)));
        let waker = Waker::from(Arc::clone(&ends));
        let mut waiter = None;
        cell.wait(&mut waiter, &mut Context::from_waker(&waker));
        *ends.0.lock().unwrap() = waiter;
        go(&cell);
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
        let cell = cell(observers);
        let (mut bomb, mut waiter) = (None, None);
        let waker = Waker::from(Arc::new(Bomb));
        cell.wait(&mut bomb, &mut Context::from_waker(&waker));
        let woken = wait(&cell, &mut waiter);
        go(&cell);
        assert_eq!(woken.times(), 1);
        assert_eq!(*seen.lock().unwrap(), ["1"]);
    }

    #[test]
    fn a_listener_that_panics_harms_neither_the_state_nor_the_others() {
        let seen = Seen::default();
        let mut observers = Observers::default();
        observers.add(Arc::new(|_: &Event<'_>| panic!("a listener's")));
        observers.add(Arc::new(listener(&seen)));
        let cell = cell(observers);
        go(&cell);
        go(&cell);
        assert_eq!(cell.word().generation(), 2);
        assert_eq!(*seen.lock().unwrap(), ["1", "2"]);
    }

    #[test]
    fn what_a_listener_sets_off_is_told_after_and_what_is_too_much_is_counted() {
        let seen = Seen::default();
        let back = Arc::new(StdMutex::new(None::<Arc<Anchor<Lamp>>>));
        let way = Arc::clone(&back);
        let list = listener(&seen);
        let mut observers = Observers::default();
        observers.add(Arc::new(move |event: &Event<'_>| {
            let way = way.lock().unwrap().take();
            if let Some(anchor) = way {
                for _ in 0..Notes::<u32>::MOST + 5 {
                    go(anchor.cell());
                }
            }
            list(event);
        }));
        let anchor = Arc::new(Anchor::new(cell(observers)));
        *back.lock().unwrap() = Some(Arc::clone(&anchor));
        go(anchor.cell());
        let seen = seen.lock().unwrap();
        let most = u32::try_from(Notes::<u32>::MOST).unwrap();
        let mut expected: Vec<_> = (1..=most + 1).map(|n| n.to_string()).collect();
        expected.push("missed 5".to_owned());
        assert_eq!(*seen, expected);
    }

    #[test]
    fn notes_that_nobody_will_be_told_are_not_kept() {
        let cell = cell(Observers::default());
        assert!(!cell.observed());
        go(&cell);
        assert_eq!(
            format!("{:?}", lock(&cell.inside).notes),
            "Notes { queue: None }"
        );
    }

    #[test]
    fn a_cell_retires_when_it_is_idle_not_live_and_clean_enough() {
        let done = |clean| Retirement::Done { clean };
        let moment = Moment::from_nanos(9);
        for (rest, unclean, expected) in [
            (Rest::Clean, false, done(true)),
            (Rest::Clean, true, done(true)),
            (Rest::Unclean, false, Retirement::Unclean),
            (Rest::Unclean, true, done(false)),
            (Rest::Live, false, Retirement::Live(moment)),
            (Rest::Live, true, Retirement::Live(moment)),
        ] {
            let anchor = anchor();
            anchor.cell().step(|lamp, (), _| {
                lamp.rest = rest;
                lamp.until = moment;
            });
            anchor.cell().update(raise);
            let caller = Arc::clone(&anchor);
            assert_eq!(
                Cell::retire(&anchor, 1, unclean, Moment::START),
                Retirement::Held
            );
            assert_eq!(anchor.cell().word().streak(), 1, "what was counted is kept");
            drop(caller);
            assert_eq!(Cell::retire(&anchor, 1, unclean, Moment::START), expected);
            let gone = matches!(expected, Retirement::Done { .. });
            assert_eq!(anchor.cell().word().is_busy(), gone);
            assert_eq!(
                anchor.cell().step_unless_retired(|_, (), _| ()).is_err(),
                gone
            );
        }
    }

    #[test]
    fn nobody_is_admitted_to_a_retired_cell() {
        let cell = cell(Observers::default());
        go(&cell);
        cell.retire_now();
        assert_eq!(cell.step_unless_retired(|_, (), _| ()), Err(Retired));
        assert!(cell.word().is_busy());
        assert!(!cell.update(|word| (!word.is_busy()).then_some(word)));
        go(&cell);
        assert!(cell.word().is_busy(), "for good");
        assert_eq!(
            cell.look(|lamp, word, ()| (lamp.generation, word.generation())),
            (2, 2)
        );
    }

    #[test]
    fn an_anchor_of_its_own_leads_to_the_cell() {
        let shared = anchor();
        let own = shared.again().again();
        assert!(std::ptr::eq(own.cell(), shared.cell()));
        assert_eq!(format!("{own:?}"), format!("{:?}", shared.cell()));
        assert_eq!(
            format!("{own:?}"),
            format!(
                "Cell {{ name: Some(Static(\"lamp\")), word: {:?}, .. }}",
                shared.cell().word()
            )
        );
    }
}
