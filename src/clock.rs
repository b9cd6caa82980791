//! Time as the state machines see it.

use std::time::Duration;

use tokio::time::Instant;

/// An instant, in nanoseconds since its layer was made; half the size of an `Instant`, and fit for an atomic.
///
/// Sums saturate at [`Moment::NEVER`], 584 years away, which no clock reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const START: Self = Self(0);
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment and `wait` more.
    #[inline]
    pub(crate) fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(nanos(wait)))
    }

    /// This moment; but if it is `other`, the one just before. For two moments that are past, and have to differ where they are compared alone.
    pub(crate) fn unlike(self, other: Self) -> Self {
        if self == other {
            Self(self.0.saturating_sub(1))
        } else {
            self
        }
    }

    /// How much time passed since `earlier`.
    #[inline]
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long it is from `now` to this moment; `None` if it never comes.
    #[inline]
    pub(crate) fn left(self, now: Self) -> Option<Duration> {
        (self != Self::NEVER).then(|| self.since(now))
    }

    /// The same in nanoseconds: zero when past, and `u64::MAX` if it never comes.
    #[inline]
    pub(crate) const fn nanos_left(self, now: Self) -> u64 {
        if self.0 == Self::NEVER.0 {
            return u64::MAX;
        }
        self.0.saturating_sub(now.0)
    }
}

/// A duration in whole nanoseconds, at most `u64::MAX`.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(duration.subsec_nanos()))
}

/// Reads the time, tokio's, so that a paused clock drives every test.
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

    #[allow(clippy::inline_always)] // Two calls are in it already.
    #[inline(always)]
    pub(crate) fn now(&self) -> Moment {
        #[cfg(test)]
        reads::count();
        let Some(passed) = Instant::now().checked_duration_since(self.epoch) else {
            return Moment::START;
        };
        // With a sign, since then the product itself tells whether it fits, and the sum does. No two instants are more seconds apart.
        #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)]
        match (passed.as_secs() as i64).checked_mul(1_000_000_000) {
            Some(nanos) => Moment(nanos as u64 + u64::from(passed.subsec_nanos())),
            None => stopped(),
        }
    }
}

/// The time from 292 years on, a second short of [`Moment::NEVER`]. Out of line, since it is never read.
#[cold]
#[inline(never)]
fn stopped() -> Moment {
    Moment(Moment::NEVER.0 - 1_000_000_000)
}

/// Counts clock reads, so that tests can bound them.
#[cfg(test)]
pub(crate) mod reads {
    use std::cell::Cell;

    thread_local!(static READS: Cell<u64> = const { Cell::new(0) });

    pub(super) fn count() {
        READS.set(READS.get() + 1);
    }

    /// How often this thread read the clock while `f` ran.
    pub(crate) fn during(f: impl FnOnce()) -> u64 {
        let before = READS.get();
        f();
        READS.get() - before
    }
}

// Loom's models bring no runtime.
#[cfg(all(test, not(tower_breaker_loom)))]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_and_never_stays_never() {
        let second = Moment::START.after(Duration::from_secs(1));
        assert_eq!(second, Moment::from_nanos(1_000_000_000));
        assert_eq!(second.as_nanos(), 1_000_000_000);
        assert_eq!(second.after(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::NEVER.after(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(nanos(Duration::new(1, 5)), 1_000_000_005);
    }

    #[test]
    fn a_moment_that_is_to_differ_from_itself_is_the_one_before() {
        let (one, two) = (Moment::from_nanos(1), Moment::from_nanos(2));
        assert_eq!((two.unlike(two), two.unlike(one)), (one, two));
        assert_eq!(Moment::START.unlike(Moment::START), Moment::START);
    }

    #[test]
    fn time_left_is_exact_zero_when_past_and_unknown_when_it_never_comes() {
        let now = Moment::from_nanos(3_000_000_000);
        assert_eq!(
            Moment::from_nanos(5_000_000_001).left(now),
            Some(Duration::from_nanos(2_000_000_001))
        );
        assert_eq!(Moment::START.left(now), Some(Duration::ZERO));
        assert_eq!(Moment::NEVER.left(now), None);
        assert_eq!(
            Moment::from_nanos(5_000_000_001).nanos_left(now),
            2_000_000_001
        );
        assert_eq!(Moment::START.nanos_left(now), 0);
        assert_eq!(Moment::NEVER.nanos_left(now), u64::MAX);
        assert_eq!(now.since(Moment::START), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_stops_short_of_never() {
        let clock = Clock::start();
        tokio::time::advance(Duration::from_secs(9_000_000_000)).await;
        assert_eq!(clock.now(), Moment::from_nanos(9_000_000_000_000_000_000));
        for secs in [1_000_000_000, 10_000_000_000] {
            tokio::time::advance(Duration::from_secs(secs)).await;
            let late = clock.now();
            assert!(late < Moment::NEVER && late.after(Duration::from_secs(2)) == Moment::NEVER);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_a_paused_one() {
        let clock = Clock::start();
        assert_eq!(clock.now(), Moment::START);
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now(), Moment::from_nanos(1_500_000_000));
        let reads = reads::during(|| {
            clock.now();
            clock.now();
        });
        assert_eq!(reads, 2);
    }
}
