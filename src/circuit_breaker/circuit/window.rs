//! The last calls of a circuit, which the failure rate is taken over.

use std::time::Duration;

use crate::machinery::clock::{Timestamp, nanos};

/// The calls that a failure rate is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// The last calls, as many as given. Each takes one bit of memory, once it has come.
    Calls(u32),
    /// The calls of the time that has just passed, as long as given.
    ///
    /// The time is divided into ten buckets, and a bucket is forgotten as a whole. So a call is
    /// forgotten when it is between nine tenths of the time and the whole time old.
    Time(Duration),
}

/// The calls and the failures in the window. The counts are exact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant)] // Each circuit has one, in a box.
pub(super) enum WindowCounts {
    Ring(Ring),
    Buckets(Buckets),
}

impl WindowCounts {
    pub(super) fn new(window: Window) -> Self {
        match window {
            Window::Calls(calls) => WindowCounts::Ring(Ring::new(calls)),
            Window::Time(time) => WindowCounts::Buckets(Buckets::new(time)),
        }
    }

    /// Counts a call.
    pub(super) fn count(&mut self, failed: bool, now: Timestamp) {
        match self {
            WindowCounts::Ring(ring) => ring.count(failed),
            WindowCounts::Buckets(buckets) => buckets.count(failed, now),
        }
    }

    /// How many calls are in the window at `now`, and how many of them failed.
    pub(super) fn totals(&self, now: Timestamp) -> (u64, u64) {
        match self {
            WindowCounts::Ring(ring) => (u64::from(ring.len), u64::from(ring.failures)),
            WindowCounts::Buckets(buckets) => buckets.totals(now),
        }
    }

    /// Forgets all calls.
    pub(super) fn clear(&mut self) {
        match self {
            WindowCounts::Ring(ring) => *ring = Ring::new(ring.size),
            WindowCounts::Buckets(buckets) => buckets.all = [Bucket::default(); BUCKETS],
        }
    }
}

/// The last calls, one bit each. A new call overwrites the oldest one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ring {
    size: u32,
    len: u32,
    /// The place of the next call. Once the ring is full, it is the place of the oldest call.
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
        let (index, bit) = ((self.next / 64) as usize, 1 << (self.next % 64));
        if index == self.bits.len() {
            self.bits.push(0);
        }
        if self.len == self.size {
            self.failures -= u32::from(self.bits[index] & bit != 0);
        } else {
            self.len += 1;
        }
        if failed {
            self.bits[index] |= bit;
            self.failures += 1;
        } else {
            self.bits[index] &= !bit;
        }
        self.next = (self.next + 1) % self.size;
    }
}

const BUCKETS: usize = 10;

/// The calls of the last time, in buckets of a tenth each. A bucket is cleared when it is used
/// again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Buckets {
    width: u64,
    all: [Bucket; BUCKETS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Bucket {
    /// The number of the tenth that it counts, from the start of the clock.
    tenth: u64,
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

    fn tenth(&self, now: Timestamp) -> u64 {
        now.as_nanos() / self.width
    }

    fn count(&mut self, failed: bool, now: Timestamp) {
        let tenth = self.tenth(now);
        #[allow(clippy::cast_possible_truncation)] // It is less than ten.
        let bucket = &mut self.all[(tenth % BUCKETS as u64) as usize];
        if bucket.tenth < tenth {
            *bucket = Bucket {
                tenth,
                ..Bucket::default()
            };
        }
        bucket.calls += 1;
        bucket.failures += u64::from(failed);
    }

    fn totals(&self, now: Timestamp) -> (u64, u64) {
        let tenth = self.tenth(now);
        self.all
            .iter()
            .filter(|bucket| tenth.saturating_sub(bucket.tenth) < BUCKETS as u64)
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
            let mut counts = WindowCounts::new(Window::Calls(size));
            let mut model = VecDeque::new();
            for i in 0..1_000_u32 {
                let failed = i % 7 < 3 || i % 11 == 0;
                counts.count(failed, Timestamp::START);
                model.push_back(failed);
                if model.len() > size as usize {
                    model.pop_front();
                }
                let failures = model.iter().filter(|failed| **failed).count() as u64;
                assert_eq!(
                    counts.totals(Timestamp::START),
                    (model.len() as u64, failures)
                );
            }
            counts.clear();
            assert_eq!(counts, WindowCounts::new(Window::Calls(size)));
        }
    }

    #[test]
    fn a_ring_grows_as_calls_come() {
        let mut counts = WindowCounts::new(Window::Calls(u32::MAX));
        for _ in 0..1_000 {
            counts.count(true, Timestamp::START);
        }
        let WindowCounts::Ring(ring) = &counts else {
            unreachable!()
        };
        assert_eq!(ring.bits.len(), 16);
        assert_eq!(counts.totals(Timestamp::START), (1_000, 1_000));
    }

    #[test]
    fn a_bucket_is_forgotten_as_a_whole() {
        let at = |millis| Timestamp::START.saturating_add(Duration::from_millis(millis));
        let mut counts = WindowCounts::new(Window::Time(Duration::from_secs(10)));
        counts.count(true, at(500));
        counts.count(false, at(999));
        counts.count(true, at(1_000));
        assert_eq!(counts.totals(at(1_000)), (3, 2));
        assert_eq!(counts.totals(at(9_999)), (3, 2));
        assert_eq!(counts.totals(at(10_000)), (1, 1));
        assert_eq!(counts.totals(at(11_000)), (0, 0));
        counts.count(true, at(10_000));
        assert_eq!(
            counts.totals(at(10_000)),
            (2, 2),
            "the first bucket is used again"
        );
        counts.clear();
        assert_eq!(counts.totals(at(10_000)), (0, 0));
    }

    #[test]
    fn a_window_of_any_length_neither_panics_nor_forgets_too_early() {
        for time in [Duration::from_nanos(1), Duration::MAX] {
            let mut counts = WindowCounts::new(Window::Time(time));
            for now in [Timestamp::START, Timestamp::from_nanos(1), Timestamp::NEVER] {
                counts.count(true, now);
                assert!(counts.totals(now).1 >= 1);
            }
        }
    }

    #[test]
    fn a_call_with_an_older_time_still_counts() {
        let at = |secs| Timestamp::START.saturating_add(Duration::from_secs(secs));
        let mut counts = WindowCounts::new(Window::Time(Duration::from_secs(10)));
        counts.count(true, at(12));
        counts.count(true, at(2));
        assert_eq!(counts.totals(at(12)), (2, 2));
    }
}
