//! How a request becomes a digest.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::LazyLock;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// What stands for a request, or for an answer: 128 bits that are equal for equal ones.
///
/// It is keyed by a random seed of the process, and shows itself to nobody: so nobody, a model included, can search for two requests that
/// only look alike. It means nothing in another process; do not store it or send it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(u64, u64);

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
    pub fn of<T: Hash + ?Sized>(value: &T) -> Self {
        let mut hasher = Keyed::new();
        value.hash(&mut hasher);
        hasher.digest()
    }

    /// The two halves, for sums of digests.
    #[cfg(feature = "json")]
    pub(super) fn as_number(self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }
}

/// Its bits stay hidden: who knew them could search for collisions.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// The keys of one hasher.
struct Key {
    shared: SharedSeed,
    own: u64,
}

impl Key {
    /// The standard library's random keys are the operating system's randomness, behind `SipHash`.
    fn random() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        Self {
            shared: SharedSeed::from_u64(random()),
            own: random(),
        }
    }

    fn hasher(&self) -> FoldHasher<'_> {
        FoldHasher::with_seed(self.own, &self.shared)
    }
}

static KEYS: LazyLock<(Key, Key)> = LazyLock::new(|| (Key::random(), Key::random()));

/// 128 bits out of two hashers with unrelated keys.
///
/// A keyed hash is all that is needed against somebody who never sees a digest, and this one takes a tenth of what two rounds of `SipHash` over a
/// short request would.
pub(super) struct Keyed(FoldHasher<'static>, FoldHasher<'static>);

impl Keyed {
    pub(super) fn new() -> Self {
        let (one, other) = &*KEYS;
        Self(one.hasher(), other.hasher())
    }

    pub(super) fn digest(&self) -> Digest {
        Digest(self.0.finish(), self.1.finish())
    }
}

macro_rules! write_to_both {
    ($($write:ident: $type:ty),*) => {
        $(
            #[inline]
            fn $write(&mut self, value: $type) {
                self.0.$write(value);
                self.1.$write(value);
            }
        )*
    };
}

impl Hasher for Keyed {
    write_to_both! {
        write: &[u8], write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64, write_u128: u128, write_usize: usize
    }

    fn finish(&self) -> u64 {
        self.0.finish()
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
