//! A state machine that many threads share: its lock, the atomic word that mirrors it, the callers that wait for it to move, and the
//! delivery of its events.
//!
//! # How the word and the lock live together
//!
//! The machine stands under a mutex. Whoever changes it first swaps [`Word::BUSY`] into the word, which sends every lock-free caller to the
//! mutex; takes over what the word had counted; lets the machine move; and publishes first the moment, then the new word.
//! So between two steps the word is the truth for the streak and the last failure (lock-free callers count there, by
//! compare-and-swap), and the machine is the truth for everything else.
//!
//! A lock-free reader takes the word, the moment, and the word again. Two equal words, not busy, are of one generation, and the moment
//! between them belongs to it.
//!
//! # Waiting
//!
//! A caller that waits leaves its waker, then looks at the word once more. A step publishes the word, then takes the
//! wakers. Both pass through the waker's own mutex, so one of the two sees the other, and no wake-up is lost.

use std::fmt;
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
    /// When it was last looked up; kept for the store, which alone reads it.
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
    waiters: Vec<Waiter>,
    notes: Notes<M::Note>,
}

/// A cell that was evicted or forgotten between the look-up and the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired;

/// Why the store could not evict a cell, if it could not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retirement {
    Done,
    Unclean,
    Live,
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

    pub(crate) fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

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
    pub(crate) fn word_before_until(&self) -> Word {
        // Acquire: the moment that was published with it is there.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// The moment that belongs to `word`, or `None` if the machine has moved since `word` was read.
    pub(crate) fn until(&self, word: Word) -> Option<Moment> {
        // Acquire, so that the second look at the word comes after: it would see the busy mark of a step whose moment was read here.
        let until = self.until.load(Ordering::Acquire);
        (self.word.load(Ordering::Relaxed) == word.bits()).then(|| Moment::from_nanos(until))
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

    fn step_inside<R>(&self, f: impl FnOnce(&mut Inside<M>, &M::Rules) -> R) -> R {
        let mut inside = lock(&self.inside);
        let before = self.enter(&mut inside);
        let result = f(&mut inside, &self.shared.rules);
        let after = self.publish(&inside);

        let mut woken = Vec::new();
        if before.differs_for_waiters(after) {
            // Those whose service is gone are let go on the way.
            inside.waiters.retain(Waiter::is_awaited);
            woken.extend(inside.waiters.iter().cloned());
        }
        if !self.observed() {
            inside.notes.discard();
        }
        let deliver = inside.notes.begin();
        drop(inside);

        for waiter in woken {
            waiter.wake();
        }
        if deliver {
            self.deliver();
        }
        result
    }

    /// Sends lock-free callers to the lock, and takes over what they had counted.
    fn enter(&self, inside: &mut Inside<M>) -> Word {
        // Relaxed: the moment's and the word's own releases come after it.
        let word = Word::from_bits(self.word.swap(Word::BUSY.bits(), Ordering::Relaxed));
        if !word.is_busy() {
            inside.machine.adopt(word);
        }
        word
    }

    fn publish(&self, inside: &Inside<M>) -> Word {
        let word = if inside.retired {
            Word::BUSY
        } else {
            inside.machine.word()
        };
        // Release, after the busy mark: who reads this moment sees that mark, or the word that follows.
        self.until
            .store(inside.machine.until().as_nanos(), Ordering::Release);
        // Release, after the moment: who reads this word sees its moment.
        self.word.store(word.bits(), Ordering::Release);
        word
    }

    /// Looks at the machine, and at the word with what was counted in it, without changing anything.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&M, Word, &M::Rules) -> R) -> R {
        let inside = lock(&self.inside);
        let mut word = Word::from_bits(self.word.load(Ordering::Relaxed));
        if word.is_busy() {
            word = inside.machine.word();
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
                inside.waiters.retain(Waiter::is_awaited);
                let room = inside.waiters.len() + 1;
                inside.waiters.reserve(room);
            }
            inside.waiters.push(waiter.clone());
            waiter
        });
        waiter.set(cx.waker());
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
        cell.enter(&mut inside);
        settle();
        let retirement = if Arc::strong_count(this) > held {
            Retirement::Live
        } else {
            match inside.machine.rest(&cell.shared.rules, now) {
                Rest::Live => Retirement::Live,
                Rest::Unclean if !unclean => Retirement::Unclean,
                Rest::Clean | Rest::Unclean => {
                    inside.retired = true;
                    Retirement::Done
                }
            }
        };
        cell.publish(&inside);
        retirement
    }

    /// Takes the cell out of use whatever its state, for good.
    pub(crate) fn retire_now(&self) {
        self.step_inside(|inside, _| inside.retired = true);
    }

    /// The store's mark of when the cell was last looked up.
    pub(crate) fn used(&self) -> u64 {
        // Relaxed: a mark that is seen late costs a cell its place in the order, no more.
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_used(&self, mark: u64) {
        self.used.store(mark, Ordering::Relaxed);
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

/// The waker of a service that waits for a transition. The cell keeps one end, the service the other.
#[derive(Clone, Debug)]
pub(crate) struct Waiter(Arc<Mutex<Option<Waker>>>);

impl Waiter {
    /// Wakers are code of the executor's: they are cloned, dropped and woken outside the lock.
    fn set(&self, waker: &Waker) {
        let waker = Some(waker.clone());
        let old = std::mem::replace(&mut *lock(&self.0), waker);
        drop(old);
    }

    fn wake(&self) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Lets go of the waker: its service is gone, and nothing else would until the next transition.
    pub(crate) fn forget(&self) {
        let waker = lock(&self.0).take();
        drop(waker);
    }

    /// Whether the service still holds its end.
    fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
