//! How a request becomes a digest.

mod answers;
mod hasher;
#[cfg(feature = "json")]
mod json;

use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU64;

pub(super) use self::answers::Answers;
pub use self::answers::SameResult;
use self::hasher::KeyedHasher;
#[cfg(feature = "json")]
pub use self::json::JsonDigest;

/// Stands for a request, or for an answer: 128 bits, equal for equal ones.
///
/// A digest is keyed by a random seed of the process, and its `Debug` shows no bits. So nobody, a
/// model included, can search for two requests that only look alike. It means nothing in another
/// process: do not store it or send it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
// The first half is never zero, so that an `Option` of a digest is no larger.
pub struct Digest(NonZeroU64, u64);

impl Digest {
    /// Makes the digest of anything that can be hashed.
    ///
    /// Equal values have equal digests. Equal digests can also come from values of different
    /// types.
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

    /// Both halves as one number, for sums of digests.
    #[cfg(feature = "json")]
    fn as_number(self) -> u128 {
        u128::from(self.0.get()) << 64 | u128::from(self.1)
    }
}

// The bits stay hidden: they would let a reader search for collisions.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// Makes a digest of a request.
///
/// A closure over `&Request` is a digester. It returns a [`Digest`] or an `Option` of one.
/// Annotate its argument. It runs outside every lock, once for each call that might be let
/// through.
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
    /// Makes the digest of `req`.
    ///
    /// With `None` the call is exempt: it is no repeat, and it ends no streak. It still spends a
    /// turn.
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

/// The default digester: the request's own [`Hash`].
#[derive(Clone, Copy, Debug, Default)]
pub struct HashDigest;

impl<Req: Hash + ?Sized> Digester<Req> for HashDigest {
    fn digest(&self, req: &Req) -> Option<Digest> {
        Some(Digest::of(req))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "json")]
    #[test]
    fn a_digest_as_a_number_holds_both_halves() {
        let digest = Digest(NonZeroU64::new(5).unwrap(), 7);
        assert_eq!(digest.as_number(), 5 << 64 | 7);
    }

    #[test]
    fn a_digest_shows_nothing_and_an_option_of_one_is_no_larger() {
        assert_eq!(format!("{:?}", Digest::of(&1)), "Digest(..)");
        assert_eq!(size_of::<Option<Digest>>(), 16);
    }

    #[test]
    fn closures_may_return_a_digest_or_an_option_of_one() {
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
