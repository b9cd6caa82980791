//! The last calls of a circuit, for the failure-rate rule.

use std::time::Duration;

use crate::machinery::clock::{Timestamp, nanos};

/// Over which calls a failure rate is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// The last so many calls. It takes one bit of memory a call, as the calls come.
    Calls(u32),
    /// The calls of the last so long, in ten buckets: a call is forgotten as a whole bucket is, when it is between nine tenths of
    /// this time and this time old.
    Time(Duration),
}

/// Calls and failures in the window. Counts are exact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant)] // It lives in a box of its own, one a circuit.
pub(super) enum Tally {
    Ring(Ring),
    Buckets(Buckets),
}

impl Tally {
    pub(super) fn new(window: Window) -> Self {
        match window {
            Window::Calls(calls) => Tally::Ring(Ring::new(calls)),
            Window::Time(time) => Tally::Buckets(Buckets::new(time)),
        }
    }

    /// Counts a call.
    pub(super) fn count(&mut self, failed: bool, now: Timestamp) {
        match self {
            Tally::Ring(ring) => ring.count(failed),
            Tally::Buckets(buckets) => buckets.count(failed, now),
        }
    }

    /// How many calls are in the window at `now`, and how many of them failed.
    pub(super) fn totals(&self, now: Timestamp) -> (u64, u64) {
        match self {
            Tally::Ring(ring) => (u64::from(ring.len), u64::from(ring.failures)),
            Tally::Buckets(buckets) => buckets.totals(now),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Tally::Ring(ring) => *ring = Ring::new(ring.size),
            Tally::Buckets(buckets) => buckets.all = [Bucket::default(); BUCKETS],
        }
    }
}

/// A bit a call, overwritten round and round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ring {
    size: u32,
    len: u32,
    /// Where the next call goes, which is where the oldest one is once the ring is full.
    next: u32,
    failures: u32,
    bits: Vec<u64>,
}

impl Ring {
    fn new(size: u32) -> Self {
        Self {
            size,
            len: 0,
            next: 0,
            failures: 0,
            bits: Vec::new(),
        }
    }

    fn count(&mut self, failed: bool) {
        let (packed, bit) = ((self.next / 64) as usize, 1 << (self.next % 64));
        if packed == self.bits.len() {
            self.bits.push(0);
        }
        if self.len == self.size {
            self.failures -= u32::from(self.bits[packed] & bit != 0);
        } else {
            self.len += 1;
        }
        if failed {
            self.bits[packed] |= bit;
            self.failures += 1;
        } else {
            self.bits[packed] &= !bit;
        }
        self.next = (self.next + 1) % self.size;
    }
}

const BUCKETS: usize = 10;

/// A tenth of the time a bucket; a bucket is cleared when its turn comes again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Buckets {
    width: u64,
    all: [Bucket; BUCKETS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Bucket {
    /// Which tenth it counts, from the clock's start.
    turn: u64,
    calls: u64,
    failures: u64,
}

impl Buckets {
    fn new(time: Duration) -> Self {
        Self {
            width: (nanos(time) / BUCKETS as u64).max(1),
            all: [Bucket::default(); BUCKETS],
        }
    }

    fn turn(&self, now: Timestamp) -> u64 {
        now.as_nanos() / self.width
    }

    fn count(&mut self, failed: bool, now: Timestamp) {
        let turn = self.turn(now);
        #[allow(clippy::cast_possible_truncation)] // A remainder of ten.
        let bucket = &mut self.all[(turn % BUCKETS as u64) as usize];
        if bucket.turn < turn {
            *bucket = Bucket {
                turn,
                ..Bucket::default()
            };
        }
        bucket.calls += 1;
        bucket.failures += u64::from(failed);
    }

    fn totals(&self, now: Timestamp) -> (u64, u64) {
        let turn = self.turn(now);
        self.all
            .iter()
            .filter(|bucket| turn.saturating_sub(bucket.turn) < BUCKETS as u64)
            .fold((0, 0), |(calls, failures), bucket| {
                (calls + bucket.calls, failures + bucket.failures)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_ring_counts_the_last_calls_exactly_whatever_its_size() {
        for size in [1, 2, 63, 64, 65, 200] {
            let mut tally = Tally::new(Window::Calls(size));
            let mut model = VecDeque::new();
            for i in 0..1_000_u32 {
                let failed = i % 7 < 3 || i % 11 == 0;
                tally.count(failed, Timestamp::START);
                model.push_back(failed);
                if model.len() > size as usize {
                    model.pop_front();
                }
                let failures = model.iter().filter(|failed| **failed).count() as u64;
                assert_eq!(
                    tally.totals(Timestamp::START),
                    (model.len() as u64, failures)
                );
            }
            tally.clear();
            assert_eq!(tally, Tally::new(Window::Calls(size)));
        }
    }

    #[test]
    fn a_ring_takes_memory_as_the_calls_come() {
        let mut tally = Tally::new(Window::Calls(u32::MAX));
        for _ in 0..1_000 {
            tally.count(true, Timestamp::START);
        }
        let Tally::Ring(ring) = &tally else {
            unreachable!()
        };
        assert_eq!(ring.bits.len(), 16);
        assert_eq!(tally.totals(Timestamp::START), (1_000, 1_000));
    }

    #[test]
    fn a_bucket_is_forgotten_as_a_whole_when_its_time_is_over() {
        let at = |millis| Timestamp::START.saturating_add(Duration::from_millis(millis));
        let mut tally = Tally::new(Window::Time(Duration::from_secs(10)));
        tally.count(true, at(500));
        tally.count(false, at(999));
        tally.count(true, at(1_000));
        assert_eq!(tally.totals(at(1_000)), (3, 2));
        assert_eq!(tally.totals(at(9_999)), (3, 2));
        assert_eq!(tally.totals(at(10_000)), (1, 1));
        assert_eq!(tally.totals(at(11_000)), (0, 0));
        tally.count(true, at(10_000));
        assert_eq!(
            tally.totals(at(10_000)),
            (2, 2),
            "the first bucket's turn came again"
        );
        tally.clear();
        assert_eq!(tally.totals(at(10_000)), (0, 0));
    }

    #[test]
    fn a_window_of_any_length_neither_panics_nor_forgets_too_early() {
        for time in [Duration::from_nanos(1), Duration::MAX] {
            let mut tally = Tally::new(Window::Time(time));
            for now in [Timestamp::START, Timestamp::from_nanos(1), Timestamp::NEVER] {
                tally.count(true, now);
                assert!(tally.totals(now).1 >= 1);
            }
        }
    }

    #[test]
    fn a_call_that_comes_with_an_older_time_still_counts() {
        let at = |secs| Timestamp::START.saturating_add(Duration::from_secs(secs));
        let mut tally = Tally::new(Window::Time(Duration::from_secs(10)));
        tally.count(true, at(12));
        tally.count(true, at(2));
        assert_eq!(tally.totals(at(12)), (2, 2));
    }
}
