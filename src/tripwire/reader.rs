//! Reads the facts of a request for a tripwire: its digest, its turn, its limit and its name.

use std::fmt;
use std::hash::Hash;

use super::digest::{Digest, Digester, HashDigest};
use super::fence::CallFacts;
use crate::vocabulary::Name;

/// Sets the limit of identical calls of one tool.
///
/// [`limit_of`](super::TripwireLayer::limit_of) takes a closure that returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// `None` for an exempt tool.
    identical: Option<u32>,
}

impl Limit {
    /// Replaces the layer's `identical_limit`: the identical call that comes so often in a row
    /// trips.
    ///
    /// # Panics
    ///
    /// If `calls` is less than 2: with 1 every call would be refused.
    #[must_use]
    pub const fn identical(calls: u32) -> Self {
        assert!(calls >= 2, "`Limit::identical` must be at least 2");
        Self {
            identical: Some(calls),
        }
    }

    /// Exempts a tool that is polled: its calls are no repeats, and they end no streak.
    ///
    /// They still spend their turns.
    #[must_use]
    pub const fn exempt() -> Self {
        Self { identical: None }
    }
}

/// Reads requests for a [`TripwireLayer`](super::TripwireLayer).
///
/// `D` makes a request's digest, `T` finds its planner's turn, `L` its tool's limit, and `N` its
/// tool's name.
#[derive(Clone, Copy, Default)]
pub struct Reader<D = HashDigest, T = (), L = (), N = ()> {
    pub(super) digest: D,
    pub(super) turn: T,
    pub(super) limit: L,
    pub(super) name: N,
}

impl<D, T, L, N> fmt::Debug for Reader<D, T, L, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

/// Reads a request.
pub(super) trait Read<Req> {
    fn read(&self, req: &Req) -> CallFacts;

    /// The tool's name, for a refusal.
    fn name_of(&self, req: &Req) -> Option<Name>;
}

impl<D, T, L, N, Req> Read<Req> for Reader<D, T, L, N>
where
    D: Digester<Req>,
    T: TurnOf<Req>,
    L: LimitOf<Req>,
    N: NameOf<Req>,
{
    #[inline]
    fn read(&self, req: &Req) -> CallFacts {
        let limit = self.limit.limit_of(req);
        let is_exempt = limit.is_some_and(|limit| limit.identical.is_none());
        CallFacts {
            digest: if is_exempt {
                None
            } else {
                self.digest.digest(req)
            },
            turn: self.turn.turn_of(req),
            limit: limit.and_then(|limit| limit.identical),
        }
    }

    fn name_of(&self, req: &Req) -> Option<Name> {
        self.name.name_of(req)
    }
}

/// Finds the planner's turn of a request. `()` finds none.
pub(super) trait TurnOf<Req> {
    fn turn_of(&self, req: &Req) -> Option<Digest>;
}

impl<Req> TurnOf<Req> for () {
    fn turn_of(&self, _: &Req) -> Option<Digest> {
        None
    }
}

impl<F, Req, T> TurnOf<Req> for F
where
    F: Fn(&Req) -> T,
    T: Hash,
{
    fn turn_of(&self, req: &Req) -> Option<Digest> {
        Some(Digest::of(&self(req)))
    }
}

/// Finds the limit of a request's tool. `()` finds none.
pub(super) trait LimitOf<Req> {
    fn limit_of(&self, req: &Req) -> Option<Limit>;
}

impl<Req> LimitOf<Req> for () {
    fn limit_of(&self, _: &Req) -> Option<Limit> {
        None
    }
}

impl<F: Fn(&Req) -> Option<Limit>, Req> LimitOf<Req> for F {
    fn limit_of(&self, req: &Req) -> Option<Limit> {
        self(req)
    }
}

/// Finds the name of a request's tool. `()` finds none.
pub(super) trait NameOf<Req> {
    fn name_of(&self, req: &Req) -> Option<Name>;
}

impl<Req> NameOf<Req> for () {
    fn name_of(&self, _: &Req) -> Option<Name> {
        None
    }
}

impl<F: Fn(&Req) -> &str, Req> NameOf<Req> for F {
    fn name_of(&self, req: &Req) -> Option<Name> {
        Some(Name::of_key(&self(req)))
    }
}
