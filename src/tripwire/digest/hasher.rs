//! The keyed hasher that digests are made with.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU64;
use std::sync::LazyLock;

use super::Digest;

/// The random keys of the process. The two lanes share no key.
struct Keys {
    start: [u64; 2],
    step: [u64; 2],
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    // The standard library seeds `SipHash` with randomness of the operating system.
    let random = || RandomState::new().build_hasher().finish();
    let pair = || [random(), random()];
    Keys {
        start: pair(),
        step: pair(),
    }
});

/// A hasher with 128 bits of state, in two lanes of 64.
///
/// Each lane is a chain of folded multiplications as in `foldhash`, with keys of its own.
///
/// It is no cryptographic hash. A keyed hash is enough against somebody who never sees a digest:
/// two requests would have to collide under both lanes' keys, which nobody knows. Two rounds of
/// `SipHash` over a short request would cost more than the rest of the call. Two hashers of
/// `foldhash` would cost twice as much as this one, which reads the request once.
pub(super) struct KeyedHasher {
    lanes: [u64; 2],
    keys: &'static Keys,
}

impl KeyedHasher {
    #[inline]
    pub(super) fn new() -> Self {
        let keys = &*KEYS;
        Self {
            lanes: keys.start,
            keys,
        }
    }

    /// Mixes 128 bits into both lanes.
    #[inline]
    fn step(&mut self, low: u64, high: u64) {
        let [one, other] = self.lanes;
        let [key, other_key] = self.keys.step;
        self.lanes = [
            fold(one ^ low, key ^ high),
            fold(other ^ low, other_key ^ high),
        ];
    }

    #[inline]
    pub(super) fn digest(&self) -> Digest {
        let [one, other] = self.lanes;
        Digest(NonZeroU64::new(one).unwrap_or(NonZeroU64::MIN), other)
    }
}

/// Multiplies, and folds the upper half of the product onto the lower one.
#[inline]
#[allow(clippy::cast_possible_truncation)] // Both halves are taken.
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

/// The eight bytes from `at` on as a number; zero if there are not so many.
#[inline]
fn eight(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|eight| eight.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// Up to seven bytes as a number.
fn up_to_seven(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Hasher for KeyedHasher {
    /// Mixes in the bytes and their length.
    ///
    /// Each lane is rotated by the length, so the same bytes hash differently in a write of
    /// another length.
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        // A rotation sees the length modulo 64 alone. Lengths that differ by 64 or more differ in
        // their number of blocks.
        #[allow(clippy::cast_possible_truncation)]
        let rotation = (bytes.len() as u32).wrapping_add(1);
        self.lanes = self.lanes.map(|lane| lane.rotate_right(rotation));
        let mut blocks = bytes.chunks_exact(16);
        for block in &mut blocks {
            self.step(eight(block, 0), eight(block, 8));
        }
        let rest = blocks.remainder();
        match rest.len() {
            0 => {}
            1..8 => self.step(up_to_seven(rest), 0),
            // The two numbers overlap if there are fewer than sixteen bytes.
            len => self.step(eight(rest, 0), eight(rest, len - 8)),
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.step(value.into(), 1);
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.step(value.into(), 2);
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.step(value.into(), 4);
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.step(value, 8);
    }

    #[inline]
    fn write_u128(&mut self, value: u128) {
        #[allow(clippy::cast_possible_truncation)] // Both halves are taken.
        self.step(value as u64, (value >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.step(value as u64, 16);
    }

    fn finish(&self) -> u64 {
        self.digest().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::Hash;

    /// The digest of these writes.
    fn of(writes: &[&[u8]]) -> Digest {
        let mut hasher = KeyedHasher::new();
        for bytes in writes {
            hasher.write(bytes);
        }
        hasher.digest()
    }

    #[test]
    fn every_byte_and_every_length_matters() {
        let mut seen = HashSet::new();
        for len in 0..70 {
            let zeros = vec![0; len];
            assert!(seen.insert(of(&[&zeros])), "{len}");
            for at in 0..len {
                for bit in 0..8 {
                    let mut one = zeros.clone();
                    one[at] = 1 << bit;
                    assert!(seen.insert(of(&[&one])), "{len} {at} {bit}");
                }
            }
        }
    }

    #[test]
    fn the_end_of_a_write_matters() {
        let text = b"0123456789abcdef0123456789abcdef";
        let mut seen = HashSet::new();
        for at in 0..=text.len() {
            let (one, other) = text.split_at(at);
            assert!(seen.insert(of(&[one, other])), "{at}");
        }
        assert_ne!(Digest::of(&("ab", "c")), Digest::of(&("a", "bc")));
        assert_ne!(
            Digest::of(&[[1_u8, 2], [3, 4]]),
            Digest::of(&[[1_u8], [2], [3], [4]])
        );
    }

    #[test]
    fn numbers_of_every_width_have_different_digests() {
        let mut seen = HashSet::new();
        for n in 0..=255_u8 {
            assert!(seen.insert(Digest::of(&n)));
            assert!(seen.insert(Digest::of(&u16::from(n))));
            assert!(seen.insert(Digest::of(&u32::from(n))));
            assert!(seen.insert(Digest::of(&u64::from(n))));
            assert!(seen.insert(Digest::of(&usize::from(n))));
        }
        let wide: HashSet<_> = (0..128)
            .flat_map(|shift| [1_u128 << shift, u128::MAX >> shift])
            .map(|n| Digest::of(&n))
            .collect();
        // 1 comes twice.
        assert_eq!(wide.len(), 255);
    }

    #[test]
    fn both_halves_distinguish_digests() {
        let digests: Vec<_> = (0..10_000_u32).map(|n| Digest::of(&n)).collect();
        let one: HashSet<_> = digests.iter().map(|digest| digest.0).collect();
        let other: HashSet<_> = digests.iter().map(|digest| digest.1).collect();
        assert_eq!((one.len(), other.len()), (10_000, 10_000));
        assert!(digests.iter().all(|digest| digest.0.get() != digest.1));
    }

    /// The digests of texts that differ in one bit, or in length.
    fn alike() -> Vec<Digest> {
        let mut all = Vec::new();
        for len in 0..40 {
            let zeros = vec![0; len];
            all.push(of(&[&zeros]));
            for at in 0..len * 8 {
                let mut one = zeros.clone();
                one[at / 8] = 1 << (at % 8);
                all.push(of(&[&one]));
            }
        }
        all
    }

    #[test]
    fn each_half_alone_depends_on_every_bit() {
        let all = alike();
        let one: HashSet<_> = all.iter().map(|digest| digest.0).collect();
        let other: HashSet<_> = all.iter().map(|digest| digest.1).collect();
        assert_eq!((one.len(), other.len()), (all.len(), all.len()));
    }

    #[test]
    fn each_half_has_about_as_many_ones_as_zeros() {
        let all: Vec<_> = (0..10_000_u32)
            .map(|n| Digest::of(&n.to_string()))
            .collect();
        let ones = |half: fn(&Digest) -> u64| all.iter().map(half).map(u64::count_ones).sum();
        let halves: [u32; 2] = [ones(|digest| digest.0.get()), ones(|digest| digest.1)];
        // There are 640 000 bits. If `fold` joins the halves by exclusive or, about 320 000 of
        // them are ones; by `or` half as many more, by `and` half as many fewer.
        for ones in halves {
            assert!((256_000..384_000).contains(&ones), "{ones}");
        }
    }

    #[test]
    fn a_value_may_call_finish_while_it_is_hashed() {
        struct Asks(u8);
        impl Hash for Asks {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
                let so_far = state.finish();
                assert_eq!(so_far, state.finish());
                self.0.hash(state);
                assert_ne!(so_far, state.finish());
            }
        }
        assert_eq!(Digest::of(&Asks(1)), Digest::of(&Asks(1)));
        assert_ne!(Digest::of(&Asks(1)), Digest::of(&Asks(2)));
    }
}
