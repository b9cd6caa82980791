//! Time as the state machines see it.

use std::time::Duration;

use tokio::time::Instant;

/// An instant, in nanoseconds since its layer was made.
///
/// It has half the size of an `Instant`, and fits into an atomic.
///
/// Sums saturate at [`Timestamp::NEVER`], 584 years away, which no clock reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Timestamp(u64);

impl Timestamp {
    pub(crate) const START: Self = Self(0);
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the timestamp that is `wait` later.
    #[inline]
    pub(crate) fn saturating_add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(nanos(wait)))
    }

    /// Returns this timestamp, or the one just before it if it equals `other`.
    ///
    /// Use it for past timestamps that must differ, and that are only compared with each other.
    pub(crate) fn distinct_from(self, other: Self) -> Self {
        if self == other {
            Self(self.0.saturating_sub(1))
        } else {
            self
        }
    }

    /// Returns how much time has passed since `earlier`.
    #[inline]
    pub(crate) fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time from `now` to this timestamp, or `None` if it never comes.
    #[inline]
    pub(crate) fn remaining(self, now: Self) -> Option<Duration> {
        (self != Self::NEVER).then(|| self.duration_since(now))
    }

    /// Returns the same in nanoseconds: zero if it is past, and `u64::MAX` if it never comes.
    #[inline]
    pub(crate) const fn nanos_remaining(self, now: Self) -> u64 {
        if self.0 == Self::NEVER.0 {
            return u64::MAX;
        }
        self.0.saturating_sub(now.0)
    }
}

/// Converts a duration to whole nanoseconds, at most `u64::MAX`.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(duration.subsec_nanos()))
}

/// Reads the time. It is tokio's time, so that a paused clock drives every test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            epoch: Instant::now(),
        }
    }

    #[allow(clippy::inline_always)] // It contains two calls already.
    #[inline(always)]
    pub(crate) fn now(&self) -> Timestamp {
        #[cfg(test)]
        reads::count();
        let Some(passed) = Instant::now().checked_duration_since(self.epoch) else {
            return Timestamp::START;
        };
        // The product is signed. If it fits into an `i64`, then the sum fits into a `u64`. No two
        // instants are further apart than an `i64` counts seconds.
        #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)]
        match (passed.as_secs() as i64).checked_mul(1_000_000_000) {
            Some(nanos) => Timestamp(nanos as u64 + u64::from(passed.subsec_nanos())),
            None => stopped(),
        }
    }
}

/// The time from 292 years on: a second before [`Timestamp::NEVER`]. The code is out of line,
/// because nobody ever runs it.
#[cold]
#[inline(never)]
fn stopped() -> Timestamp {
    Timestamp(Timestamp::NEVER.0 - 1_000_000_000)
}

/// Counts clock reads, so that tests can bound them.
#[cfg(test)]
pub(crate) mod reads {
    use std::cell::Cell;

    thread_local!(static READS: Cell<u64> = const { Cell::new(0) });

    pub(super) fn count() {
        READS.set(READS.get() + 1);
    }

    /// Returns how often this thread has read the clock while `f` ran.
    pub(crate) fn during(f: impl FnOnce()) -> u64 {
        let before = READS.get();
        f();
        READS.get() - before
    }
}

// The loom models have no runtime.
#[cfg(all(test, not(tower_breaker_loom)))]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_and_never_stays_never() {
        let second = Timestamp::START.saturating_add(Duration::from_secs(1));
        assert_eq!(second, Timestamp::from_nanos(1_000_000_000));
        assert_eq!(second.as_nanos(), 1_000_000_000);
        assert_eq!(second.saturating_add(Duration::MAX), Timestamp::NEVER);
        assert_eq!(
            Timestamp::NEVER.saturating_add(Duration::from_secs(1)),
            Timestamp::NEVER
        );
        assert_eq!(nanos(Duration::new(1, 5)), 1_000_000_005);
    }

    #[test]
    fn a_timestamp_that_must_differ_from_itself_is_the_one_before() {
        let (one, two) = (Timestamp::from_nanos(1), Timestamp::from_nanos(2));
        assert_eq!((two.distinct_from(two), two.distinct_from(one)), (one, two));
        assert_eq!(
            Timestamp::START.distinct_from(Timestamp::START),
            Timestamp::START
        );
    }

    #[test]
    fn the_time_left_is_exact_and_zero_when_past_and_none_when_it_never_comes() {
        let now = Timestamp::from_nanos(3_000_000_000);
        assert_eq!(
            Timestamp::from_nanos(5_000_000_001).remaining(now),
            Some(Duration::from_nanos(2_000_000_001))
        );
        assert_eq!(Timestamp::START.remaining(now), Some(Duration::ZERO));
        assert_eq!(Timestamp::NEVER.remaining(now), None);
        assert_eq!(
            Timestamp::from_nanos(5_000_000_001).nanos_remaining(now),
            2_000_000_001
        );
        assert_eq!(Timestamp::START.nanos_remaining(now), 0);
        assert_eq!(Timestamp::NEVER.nanos_remaining(now), u64::MAX);
        assert_eq!(now.duration_since(Timestamp::START), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_stops_short_of_never() {
        let clock = Clock::start();
        tokio::time::advance(Duration::from_secs(9_000_000_000)).await;
        assert_eq!(
            clock.now(),
            Timestamp::from_nanos(9_000_000_000_000_000_000)
        );
        for secs in [1_000_000_000, 10_000_000_000] {
            tokio::time::advance(Duration::from_secs(secs)).await;
            let late = clock.now();
            assert!(
                late < Timestamp::NEVER
                    && late.saturating_add(Duration::from_secs(2)) == Timestamp::NEVER
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_the_paused_clock_of_tokio() {
        let clock = Clock::start();
        assert_eq!(clock.now(), Timestamp::START);
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now(), Timestamp::from_nanos(1_500_000_000));
        let reads = reads::during(|| {
            clock.now();
            clock.now();
        });
        assert_eq!(reads, 2);
    }
}
