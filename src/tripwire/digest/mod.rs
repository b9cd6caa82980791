//! How a request becomes a digest.

#[cfg(feature = "json")]
mod json;

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::num::NonZeroU64;
use std::sync::LazyLock;

#[cfg(feature = "json")]
pub use self::json::JsonDigest;

/// What stands for a request, or for an answer: 128 bits that are equal for equal ones.
///
/// It is keyed by a random seed of the process, and shows itself to nobody: so nobody, a model included, can search for two requests that
/// only look alike. It means nothing in another process; do not store it or send it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
// The first half is never zero, so that an `Option` of one is no larger.
pub struct Digest(NonZeroU64, u64);

impl Digest {
    /// The digest of anything that can be hashed. Values that are equal have equal digests; values of different types may, too.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_breaker::Digest;
    ///
    /// assert_eq!(Digest::of(&("search", 7)), Digest::of(&("search", 7)));
    /// assert_ne!(Digest::of(&("search", 7)), Digest::of(&("search", 8)));
    /// ```
    #[must_use]
    #[inline]
    pub fn of<T: Hash + ?Sized>(value: &T) -> Self {
        let mut hasher = KeyedHasher::new();
        value.hash(&mut hasher);
        hasher.digest()
    }

    /// The two halves. The first one is never zero.
    #[cfg(feature = "http")]
    pub(super) fn into_parts(self) -> [u64; 2] {
        [self.0.get(), self.1]
    }

    /// The digest with these halves; `None` if the first one is zero.
    #[cfg(feature = "http")]
    pub(super) fn from_parts([first, second]: [u64; 2]) -> Option<Self> {
        Some(Self(NonZeroU64::new(first)?, second))
    }

    /// The two halves, for sums of digests.
    #[cfg(feature = "json")]
    fn as_number(self) -> u128 {
        u128::from(self.0.get()) << 64 | u128::from(self.1)
    }
}

/// Its bits stay hidden: who knew them could search for collisions.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// The random keys of the process, for two lanes that have none in common.
struct Keys {
    start: [u64; 2],
    step: [u64; 2],
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    // The standard library's random keys are the operating system's randomness, behind `SipHash`.
    let random = || RandomState::new().build_hasher().finish();
    let pair = || [random(), random()];
    Keys {
        start: pair(),
        step: pair(),
    }
});

/// A hasher with 128 bits of state in two lanes of 64, each a chain of folded multiplications as in `foldhash`, with keys of its own.
///
/// It is no cryptographic hash. A keyed one is all that is needed against somebody who never sees a digest: two requests that
/// collide would have to do so under both lanes' keys, which nobody knows. Two rounds of `SipHash` over a short request would cost more than the rest
/// of the call; two hashers of `foldhash` twice as much as this one, which reads the request once.
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

    /// Takes in 128 bits.
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

/// The two halves of the product, one upon the other.
#[inline]
#[allow(clippy::cast_possible_truncation)] // Both halves are taken.
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

/// Eight bytes of `bytes` from `at`, or zeros past its end.
#[inline]
fn packed(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|packed| packed.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// Up to seven bytes as a number.
fn few(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Hasher for KeyedHasher {
    /// Each lane is turned by the length, so that nobody knows what the same bytes would be in a write of another one.
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        // The remainder by 64 is all that a rotation sees: with other lengths there are more blocks, or fewer.
        #[allow(clippy::cast_possible_truncation)]
        let turn = (bytes.len() as u32).wrapping_add(1);
        self.lanes = self.lanes.map(|lane| lane.rotate_right(turn));
        let mut blocks = bytes.chunks_exact(16);
        for block in &mut blocks {
            self.step(packed(block, 0), packed(block, 8));
        }
        let rest = blocks.remainder();
        match rest.len() {
            0 => {}
            1..8 => self.step(few(rest), 0),
            // The two overlap where there are fewer than sixteen.
            len => self.step(packed(rest, 0), packed(rest, len - 8)),
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

/// Makes a digest of a request. Closures of the same shape are digesters, and may also answer with a [`Digest`] itself; annotate their
/// argument.
///
/// It runs outside every lock, once for each call that might be let through.
///
/// # Examples
///
/// A tool whose calls carry an id of their own, which says nothing of what they ask:
///
/// ```
/// use tower_breaker::{Digest, TripwireLayer};
///
/// struct ToolCall { id: u64, name: String, query: String }
///
/// let layer = TripwireLayer::new()
///     .digest(|call: &ToolCall| Digest::of(&(&call.name, &call.query)));
/// # let _ = layer;
/// ```
pub trait Digester<Req: ?Sized> {
    /// The digest of `req`. With `None` the call is exempt: it is neither a repeat nor the end of a streak, and still spends a turn.
    fn digest(&self, req: &Req) -> Option<Digest>;
}

impl<F, Req: ?Sized, D> Digester<Req> for F
where
    F: Fn(&Req) -> D,
    D: Into<Option<Digest>>,
{
    fn digest(&self, req: &Req) -> Option<Digest> {
        self(req).into()
    }
}

/// The digester unless told otherwise: the request's own [`Hash`].
#[derive(Clone, Copy, Debug, Default)]
pub struct HashDigest;

impl<Req: Hash + ?Sized> Digester<Req> for HashDigest {
    fn digest(&self, req: &Req) -> Option<Digest> {
        Some(Digest::of(req))
    }
}

/// What a success answered, as a digest, if answers are compared.
pub(super) trait Answers<Res> {
    fn digest_of(&self, answer: &Res) -> Option<Digest>;
}

impl<Res> Answers<Res> for () {
    fn digest_of(&self, _: &Res) -> Option<Digest> {
        None
    }
}

/// Answers are compared by `D`; made by [`same_result`](super::TripwireLayer::same_result).
#[derive(Clone, Copy)]
pub struct SameResult<D> {
    pub(super) digest: D,
}

impl<D> fmt::Debug for SameResult<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SameResult")
    }
}

impl<D: Digester<Res>, Res> Answers<Res> for SameResult<D> {
    fn digest_of(&self, answer: &Res) -> Option<Digest> {
        self.digest.digest(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The digest of some writes.
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
    fn where_a_write_ends_matters() {
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
    fn numbers_of_all_widths_are_apart_and_no_two_alike() {
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
    fn both_halves_tell_digests_apart() {
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
    fn each_half_alone_hears_every_bit() {
        let all = alike();
        let one: HashSet<_> = all.iter().map(|digest| digest.0).collect();
        let other: HashSet<_> = all.iter().map(|digest| digest.1).collect();
        assert_eq!((one.len(), other.len()), (all.len(), all.len()));
    }

    #[test]
    fn in_each_half_there_are_about_as_many_ones_as_zeros() {
        let all: Vec<_> = (0..10_000_u32)
            .map(|n| Digest::of(&n.to_string()))
            .collect();
        let ones = |half: fn(&Digest) -> u64| all.iter().map(half).map(u64::count_ones).sum();
        let halves: [u32; 2] = [ones(|digest| digest.0.get()), ones(|digest| digest.1)];
        // Of 640 000 bits. A sum of the product's halves without carries has 320 000, and an `or` or an `and` of them half as many more or fewer.
        for ones in halves {
            assert!((256_000..384_000).contains(&ones), "{ones}");
        }
    }

    #[test]
    fn a_value_may_ask_the_hasher_for_what_it_has_so_far() {
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

    #[cfg(feature = "json")]
    #[test]
    fn a_digest_as_a_number_holds_both_halves() {
        let digest = Digest(NonZeroU64::new(5).unwrap(), 7);
        assert_eq!(digest.as_number(), 5 << 64 | 7);
    }

    #[test]
    fn answers_are_compared_by_the_digester_that_was_given_for_them_or_not_at_all() {
        let compared = SameResult {
            digest: |answer: &&str| Digest::of(&answer.len()),
        };
        assert_eq!(compared.digest_of(&"abc"), Some(Digest::of(&3_usize)));
        assert_eq!(().digest_of(&"abc"), None);
        assert_eq!(format!("{compared:?}"), "SameResult");
    }

    #[test]
    fn a_digest_shows_nothing_and_an_option_of_one_is_no_larger() {
        assert_eq!(format!("{:?}", Digest::of(&1)), "Digest(..)");
        assert_eq!(size_of::<Option<Digest>>(), 16);
    }

    #[test]
    fn closures_may_answer_with_a_digest_or_an_option_of_one() {
        fn digest(digester: &impl Digester<u8>) -> Option<Digest> {
            digester.digest(&7)
        }
        let seven = Some(Digest::of(&7_u8));
        assert_eq!(digest(&HashDigest), seven);
        assert_eq!(digest(&|n: &u8| Digest::of(n)), seven);
        assert_eq!(digest(&|n: &u8| Some(Digest::of(n))), seven);
        assert_eq!(digest(&|_: &u8| None::<Digest>), None);
    }
}
