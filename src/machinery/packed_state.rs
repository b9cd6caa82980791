//! The 64 bits that mirror a state machine.

use std::fmt;

use crate::vocabulary::{FailureKind, Outcome};

/// The 64 bits that mirror a machine: its generation, its phase, its streak, and the kind of its
/// last failure.
///
/// | bits | what they say |
/// | --- | --- |
/// | 0 | *busy*: a step is under way, or the machine is retired, so ask under the lock |
/// | 1 | *lock-free*: a success, or a failure below the threshold, changes only the streak and the last failure |
/// | 2–4 | the phase: 0 admits every call, and each machine gives the others their meaning |
/// | 5–6 | the kind of the last failure |
/// | 7 | *timed*: an admitted call reads the clock, because its verdict may depend on how long it ran |
/// | 8–31 | the streak, which stops at [`PackedState::FULL`] |
/// | 32–63 | the generation |
///
/// The generation wraps after 2³² transitions. A call would have to be in flight across exactly
/// that many transitions before its result is taken for a current one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedState(u64);

impl PackedState {
    /// The largest streak that fits. From here on only the machine counts.
    pub(crate) const FULL: u32 = (1 << 24) - 1;
    pub(crate) const BUSY: Self = Self(1);

    const LOCK_FREE: u64 = 1 << 1;
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

    pub(crate) fn lock_free(self, lock_free: bool) -> Self {
        Self(self.0 & !Self::LOCK_FREE | u64::from(lock_free) << 1)
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

    /// Returns this packed state, whose lock-free bit is set, with `outcome` counted in it.
    /// Returns `None` if the streak reaches `threshold`, or if it no longer fits.
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

    /// Returns the streak, where `counted` is the streak that the machine knows. The packed state
    /// is right until it is full, and the machine is right from then on.
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

    /// Whether every call is admitted, with no step of the machine and no look at the clock.
    #[inline]
    pub(crate) fn admits_all(self) -> bool {
        self.0 & (Self::PHASE | Self::TIMED | Self::BUSY.0) == 0
    }

    /// Whether a success from `generation` is current and changes nothing, whatever the duration
    /// of the call.
    #[inline]
    pub(crate) fn is_clean_in(self, generation: u32) -> bool {
        let mask = Self::GENERATION | Self::STREAK | Self::TIMED | Self::LOCK_FREE | Self::BUSY.0;
        (self.0 ^ u64::from(generation) << 32) & mask == Self::LOCK_FREE
    }

    #[inline]
    pub(crate) fn is_timed(self) -> bool {
        self.0 & Self::TIMED != 0
    }

    #[inline]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }

    /// Whether a result from `generation` is current, and changes only the streak and the last
    /// failure.
    #[inline]
    pub(crate) fn is_lock_free_in(self, generation: u32) -> bool {
        let mask = Self::GENERATION | Self::LOCK_FREE | Self::BUSY.0;
        self.0 & mask == u64::from(generation) << 32 | Self::LOCK_FREE
    }

    /// Whether waiters have something new to see: another generation, another phase or another
    /// busy bit.
    pub(crate) fn differs_for_waiters(self, other: Self) -> bool {
        (self.0 ^ other.0) & (Self::GENERATION | Self::PHASE | Self::BUSY.0) != 0
    }
}

impl fmt::Debug for PackedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedState")
            .field("generation", &self.generation())
            .field("phase", &self.phase())
            .field("streak", &self.streak())
            .field("last", &self.last())
            .field("lock_free", &(self.0 & Self::LOCK_FREE != 0))
            .field("timed", &self.is_timed())
            .field("busy", &self.is_busy())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_kept_apart_from_the_others() {
        let kinds = [
            None,
            Some(FailureKind::Transient),
            Some(FailureKind::RateLimited),
            Some(FailureKind::Fatal),
        ];
        for generation in [0, 1, u32::MAX] {
            for phase in 0..8 {
                for streak in [0, 1, PackedState::FULL] {
                    for last in kinds {
                        for (lock_free, timed) in
                            [(false, false), (true, false), (false, true), (true, true)]
                        {
                            let packed = PackedState::new(generation, phase)
                                .with_last(kinds[3])
                                .with_last(last)
                                .with_streak(PackedState::FULL)
                                .with_streak(streak)
                                .timed(!timed)
                                .timed(timed)
                                .lock_free(!lock_free)
                                .lock_free(lock_free);
                            assert_eq!(packed.generation(), generation);
                            assert_eq!(packed.phase(), phase);
                            assert_eq!(packed.streak(), streak);
                            assert_eq!(packed.last(), last);
                            assert_eq!(packed.is_lock_free_in(generation), lock_free);
                            assert!(!packed.is_lock_free_in(generation.wrapping_add(1)));
                            assert_eq!(packed.is_timed(), timed);
                            assert_eq!(packed.admits_all(), phase == 0 && !timed);
                            let clean = lock_free && !timed && streak == 0;
                            assert_eq!(packed.is_clean_in(generation), clean);
                            assert!(!packed.is_clean_in(generation.wrapping_add(1)));
                            assert!(!packed.is_busy());
                            assert_eq!(PackedState::from_bits(packed.bits()), packed);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_streak_stops_at_the_limit_of_the_packed_state() {
        let packed = PackedState::new(7, 2).with_streak(u32::MAX);
        assert_eq!(packed.streak(), PackedState::FULL);
        assert_eq!(packed.streak_or(u32::MAX), u32::MAX);
        let below = packed.with_streak(PackedState::FULL - 1);
        assert_eq!(below.streak_or(3), PackedState::FULL - 1);
        assert_eq!(
            (packed.generation(), packed.phase(), packed.last()),
            (7, 2, None)
        );
    }

    #[test]
    fn waiters_see_a_new_generation_or_phase_and_nothing_else() {
        let packed = PackedState::new(7, 2);
        assert!(packed.differs_for_waiters(PackedState::new(8, 2)));
        assert!(packed.differs_for_waiters(PackedState::new(7, 3)));
        assert!(packed.differs_for_waiters(PackedState::BUSY));
        let counted = packed
            .with_streak(1)
            .with_last(Some(FailureKind::Fatal))
            .lock_free(true);
        assert!(!packed.differs_for_waiters(counted));
    }

    #[test]
    fn a_busy_packed_state_is_never_lock_free() {
        assert!(PackedState::BUSY.is_busy());
        let busy = PackedState::from_bits(
            PackedState::new(3, 0).lock_free(true).bits() | PackedState::BUSY.bits(),
        );
        assert!(!busy.is_lock_free_in(3));
        assert!(!busy.is_clean_in(3));
        assert!(!busy.admits_all());
        assert_eq!(
            format!("{:?}", PackedState::new(1, 2).with_streak(3)),
            "PackedState { generation: 1, phase: 2, streak: 3, last: None, lock_free: false, timed: false, busy: false }"
        );
    }
}
