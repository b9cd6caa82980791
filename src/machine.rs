//! What a state machine is made of: the word that mirrors it, and the notes of what it did.
//!
//! The machines themselves are pure. They take the time as an argument, return decisions, and leave notes; [`cell`](crate::cell)
//! locks them, publishes their word, wakes, and delivers.

use std::collections::VecDeque;
use std::fmt;

use crate::clock::Moment;
use crate::event::Event;
use crate::outcome::{FailureKind, Outcome};

/// A pure state machine that a [`Cell`](crate::cell::Cell) can hold.
pub(crate) trait Machine {
    /// How it decides; the same for all machines of one layer.
    type Rules;
    /// What it leaves for observers.
    type Note: Copy;

    /// The word that mirrors it.
    fn word(&self) -> Word;

    /// The moment that belongs to the word: when its phase runs out.
    fn until(&self) -> Moment;

    /// Takes over what lock-free callers changed since it was published: what they counted in the word, and the moment, where the phase is
    /// one whose moment they may renew.
    fn adopt(&mut self, word: Word, until: Moment);

    /// Whether the store may evict it.
    fn rest(&self, rules: &Self::Rules, now: Moment) -> Rest;

    /// Until when a machine that is [`Rest::Live`] stays so, if nobody calls.
    fn live_until(&self, _: &Self::Rules, _: Moment) -> Moment {
        self.until()
    }

    /// A note as observers see it.
    fn event<'a>(note: Self::Note, name: Option<&'a str>, rules: &'a Self::Rules) -> Event<'a>;
}

/// Whether the store may evict a machine, calls in flight left aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// As new: nothing is lost with it.
    Clean,
    /// It remembers something, but nothing that still runs.
    Unclean,
    /// A cooldown or a lease still runs, or it is pinned.
    Live,
}

/// The 64 bits that mirror a machine: its generation, its phase, its streak and the kind of its last failure.
///
/// | bits | what |
/// | --- | --- |
/// | 0 | *busy*: the machine's lock is held by somebody who may change it; ask under the lock |
/// | 1 | *plain*: a success, or a failure below the threshold, changes the streak and the last failure alone |
/// | 2–4 | the phase; 0 lets every call through, what the others mean is the machine's |
/// | 5–6 | the kind of the last failure |
/// | 7 | *timed*: whoever is admitted reads the clock, since a verdict may depend on how long the call ran |
/// | 8–31 | the streak, which stops at [`Word::FULL`] |
/// | 32–63 | the generation |
///
/// A generation wraps after 2³² transitions; a call would have to be in flight across exactly as many to be taken for
/// a current one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    /// The streak from which on only the machine counts.
    pub(crate) const FULL: u32 = (1 << 24) - 1;
    pub(crate) const BUSY: Self = Self(1);

    const PLAIN: u64 = 1 << 1;
    const PHASE: u64 = 0b111 << 2;
    const KIND: u64 = 0b11 << 5;
    const TIMED: u64 = 1 << 7;
    const STREAK: u64 = (Self::FULL as u64) << 8;
    const GENERATION: u64 = (u32::MAX as u64) << 32;

    pub(crate) fn new(generation: u32, phase: u8) -> Self {
        Self(u64::from(generation) << 32 | (u64::from(phase) << 2 & Self::PHASE))
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn plain(self, plain: bool) -> Self {
        Self(self.0 & !Self::PLAIN | u64::from(plain) << 1)
    }

    pub(crate) fn timed(self, timed: bool) -> Self {
        Self(self.0 & !Self::TIMED | u64::from(timed) << 7)
    }

    #[inline]
    pub(crate) fn with_streak(self, streak: u32) -> Self {
        Self(self.0 & !Self::STREAK | u64::from(streak.min(Self::FULL)) << 8)
    }

    #[inline]
    pub(crate) fn with_last(self, kind: Option<FailureKind>) -> Self {
        let kind = kind.map_or(0, |kind| kind as u64);
        Self(self.0 & !Self::KIND | kind << 5)
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) fn phase(self) -> u8 {
        ((self.0 & Self::PHASE) >> 2) as u8
    }

    #[inline]
    pub(crate) fn streak(self) -> u32 {
        ((self.0 & Self::STREAK) >> 8) as u32
    }

    /// This word, which is plain, with `outcome` counted in it; `None` if that reaches `threshold`, or more than a word can count.
    #[inline]
    pub(crate) fn counting(self, outcome: Outcome, threshold: u32) -> Option<Self> {
        match outcome {
            Outcome::Success => Some(self.with_streak(0)),
            Outcome::Neutral => Some(self),
            Outcome::Failure(failure) => {
                let streak = self.streak() + 1;
                (streak < threshold.min(Self::FULL))
                    .then(|| self.with_streak(streak).with_last(Some(failure.kind())))
            }
        }
    }

    /// The streak, of which the machine knows `counted`: the word counts on, and once it is full the machine does.
    pub(crate) fn streak_or(self, counted: u32) -> u32 {
        if self.streak() < Self::FULL {
            self.streak()
        } else {
            counted
        }
    }

    #[inline]
    pub(crate) fn last(self) -> Option<FailureKind> {
        match (self.0 & Self::KIND) >> 5 {
            0 => None,
            1 => Some(FailureKind::Transient),
            2 => Some(FailureKind::RateLimited),
            _ => Some(FailureKind::Fatal),
        }
    }

    /// Whether every call is let through, and there is no more to it: no step of the machine, no clock.
    #[inline]
    pub(crate) fn lets_all_through(self) -> bool {
        self.0 & (Self::PHASE | Self::TIMED | Self::BUSY.0) == 0
    }

    /// Whether a success from `generation` is current, however long it took, and changes nothing.
    #[inline]
    pub(crate) fn is_clean_in(self, generation: u32) -> bool {
        let mask = Self::GENERATION | Self::STREAK | Self::TIMED | Self::PLAIN | Self::BUSY.0;
        (self.0 ^ u64::from(generation) << 32) & mask == Self::PLAIN
    }

    #[inline]
    pub(crate) fn is_timed(self) -> bool {
        self.0 & Self::TIMED != 0
    }

    #[inline]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }

    /// Whether a result from `generation` is current, and changes the streak and the last failure alone.
    #[inline]
    pub(crate) fn is_plain_in(self, generation: u32) -> bool {
        let mask = Self::GENERATION | Self::PLAIN | Self::BUSY.0;
        self.0 & mask == u64::from(generation) << 32 | Self::PLAIN
    }

    /// Whether callers who wait for a transition have something new to see.
    pub(crate) fn differs_for_waiters(self, other: Self) -> bool {
        (self.0 ^ other.0) & (Self::GENERATION | Self::PHASE | Self::BUSY.0) != 0
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word")
            .field("generation", &self.generation())
            .field("phase", &self.phase())
            .field("streak", &self.streak())
            .field("last", &self.last())
            .field("plain", &(self.0 & Self::PLAIN != 0))
            .field("timed", &self.is_timed())
            .field("busy", &self.is_busy())
            .finish()
    }
}

/// What a machine did, waiting to be told in order.
///
/// It keeps at most [`Notes::MOST`]; past that, with listeners slower than the transitions, further ones are only counted.
#[derive(Debug)]
pub(crate) struct Notes<N> {
    queue: Option<Box<Queue<N>>>,
}

#[derive(Debug)]
struct Queue<N> {
    notes: VecDeque<Told<N>>,
    missed: u64,
    /// Somebody is telling them, one after the other.
    delivering: bool,
}

/// What comes next for the observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told<N> {
    Note(N),
    Missed(u64),
}

impl<N> Default for Notes<N> {
    fn default() -> Self {
        Self { queue: None }
    }
}

impl<N: Copy> Notes<N> {
    pub(crate) const MOST: usize = 1024;

    pub(crate) fn push(&mut self, note: N) {
        let queue = self.queue.get_or_insert_with(|| {
            Box::new(Queue {
                notes: VecDeque::new(),
                missed: 0,
                delivering: false,
            })
        });
        if queue.notes.len() >= Self::MOST {
            queue.missed += 1;
            return;
        }
        if queue.missed > 0 {
            queue.notes.push_back(Told::Missed(queue.missed));
            queue.missed = 0;
        }
        queue.notes.push_back(Told::Note(note));
    }

    /// Throws away what nobody will be told.
    pub(crate) fn discard(&mut self) {
        self.queue = None;
    }

    /// Makes the caller the one who delivers, unless there is nothing to tell or somebody does it already.
    pub(crate) fn begin(&mut self) -> bool {
        match &mut self.queue {
            Some(queue) if !queue.delivering && !queue.notes.is_empty() => {
                queue.delivering = true;
                true
            }
            _ => false,
        }
    }

    /// The next thing to tell. With `None` the caller no longer delivers.
    pub(crate) fn next(&mut self) -> Option<Told<N>> {
        let queue = self.queue.as_mut()?;
        let next = queue.notes.pop_front().or_else(|| {
            let missed = std::mem::take(&mut queue.missed);
            (missed > 0).then_some(Told::Missed(missed))
        });
        queue.delivering = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_each_of_its_parts_apart() {
        let kinds = [
            None,
            Some(FailureKind::Transient),
            Some(FailureKind::RateLimited),
            Some(FailureKind::Fatal),
        ];
        for generation in [0, 1, u32::MAX] {
            for phase in 0..8 {
                for streak in [0, 1, Word::FULL] {
                    for last in kinds {
                        for (plain, timed) in
                            [(false, false), (true, false), (false, true), (true, true)]
                        {
                            let word = Word::new(generation, phase)
                                .with_last(kinds[3])
                                .with_last(last)
                                .with_streak(Word::FULL)
                                .with_streak(streak)
                                .timed(!timed)
                                .timed(timed)
                                .plain(!plain)
                                .plain(plain);
                            assert_eq!(word.generation(), generation);
                            assert_eq!(word.phase(), phase);
                            assert_eq!(word.streak(), streak);
                            assert_eq!(word.last(), last);
                            assert_eq!(word.is_plain_in(generation), plain);
                            assert!(!word.is_plain_in(generation.wrapping_add(1)));
                            assert_eq!(word.is_timed(), timed);
                            assert_eq!(word.lets_all_through(), phase == 0 && !timed);
                            let clean = plain && !timed && streak == 0;
                            assert_eq!(word.is_clean_in(generation), clean);
                            assert!(!word.is_clean_in(generation.wrapping_add(1)));
                            assert!(!word.is_busy());
                            assert_eq!(Word::from_bits(word.bits()), word);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_streak_stops_at_the_words_limit() {
        let word = Word::new(7, 2).with_streak(u32::MAX);
        assert_eq!(word.streak(), Word::FULL);
        assert_eq!(word.streak_or(u32::MAX), u32::MAX);
        let below = word.with_streak(Word::FULL - 1);
        assert_eq!(below.streak_or(3), Word::FULL - 1);
        assert_eq!((word.generation(), word.phase(), word.last()), (7, 2, None));
    }

    #[test]
    fn waiters_see_a_new_generation_or_phase_and_nothing_else() {
        let word = Word::new(7, 2);
        assert!(word.differs_for_waiters(Word::new(8, 2)));
        assert!(word.differs_for_waiters(Word::new(7, 3)));
        assert!(word.differs_for_waiters(Word::BUSY));
        let counted = word
            .with_streak(1)
            .with_last(Some(FailureKind::Fatal))
            .plain(true);
        assert!(!word.differs_for_waiters(counted));
    }

    #[test]
    fn a_busy_word_is_never_plain() {
        assert!(Word::BUSY.is_busy());
        let busy = Word::from_bits(Word::new(3, 0).plain(true).bits() | Word::BUSY.bits());
        assert!(!busy.is_plain_in(3));
        assert!(!busy.is_clean_in(3));
        assert!(!busy.lets_all_through());
        assert_eq!(
            format!("{:?}", Word::new(1, 2).with_streak(3)),
            "Word { generation: 1, phase: 2, streak: 3, last: None, plain: false, timed: false, busy: false }"
        );
    }

    #[test]
    fn notes_are_told_in_order_by_one_at_a_time() {
        let mut notes = Notes::default();
        assert!(!notes.begin());
        assert_eq!(notes.next(), None);
        notes.push(1);
        notes.push(2);
        assert!(notes.begin());
        assert!(!notes.begin(), "somebody delivers already");
        assert_eq!(notes.next(), Some(Told::Note(1)));
        notes.push(3);
        assert!(!notes.begin());
        assert_eq!(notes.next(), Some(Told::Note(2)));
        assert_eq!(notes.next(), Some(Told::Note(3)));
        assert_eq!(notes.next(), None);
        notes.push(4);
        assert!(notes.begin(), "the last one stopped when there was no more");
        notes.discard();
        assert!(!notes.begin());
    }

    #[test]
    fn notes_that_nobody_takes_are_bounded_and_counted() {
        let mut notes = Notes::default();
        for n in 0..Notes::<usize>::MOST + 10 {
            notes.push(n);
        }
        assert!(notes.begin());
        for n in 0..Notes::<usize>::MOST {
            assert_eq!(notes.next(), Some(Told::Note(n)));
        }
        notes.push(5000);
        assert_eq!(notes.next(), Some(Told::Missed(10)));
        assert_eq!(notes.next(), Some(Told::Note(5000)));
        assert_eq!(notes.next(), None);

        for n in 0..=Notes::<usize>::MOST {
            notes.push(n);
        }
        for n in 0..Notes::<usize>::MOST {
            assert_eq!(notes.next(), Some(Told::Note(n)));
        }
        assert_eq!(
            notes.next(),
            Some(Told::Missed(1)),
            "told even when nothing follows"
        );
        assert_eq!(notes.next(), None);
    }
}
