//! How a turn goes on after a failed attempt, with a clone of its request.

use std::fmt;

use super::backends::{Models, NoBackups, Services};

/// One attempt a turn: a request is not replayed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Once;

/// A failed attempt goes on down the chain, with a clone of the request.
#[derive(Clone)]
pub struct SameTurn<F> {
    clone: F,
}

impl<F> SameTurn<F> {
    pub(super) fn new(clone: F) -> Self {
        Self { clone }
    }
}

impl<F> fmt::Debug for SameTurn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SameTurn")
    }
}

/// Whether and how a turn goes on.
pub trait Replay<S, K, Req> {
    /// The request and the services that a turn keeps for further attempts.
    type Spare;

    fn spare(&self, primary: &S, backends: &K, req: &Req) -> Self::Spare;
}

/// The request and the services that a turn keeps for further attempts.
pub trait Spare<B, Req> {
    /// The state of a turn that makes no further attempt.
    fn none() -> Self;

    /// A request, and the service of `entry`, called `name`, which has not been polled ready.
    fn next(&mut self, entry: usize, name: &str) -> Option<(B, Req)>;

    /// Whether there is a request for one more attempt.
    fn has_next(&self) -> bool;
}

// ===== no further attempt =====

impl<S, K, Req> Replay<S, K, Req> for Once {
    type Spare = ();

    fn spare(&self, _: &S, _: &K, _: &Req) {}
}

impl<S, F, Req> Replay<S, NoBackups, Req> for SameTurn<F> {
    type Spare = ();

    fn spare(&self, _: &S, _: &NoBackups, _: &Req) {}
}

impl<B, Req> Spare<B, Req> for () {
    fn none() -> Self {}

    fn next(&mut self, _: usize, _: &str) -> Option<(B, Req)> {
        None
    }

    fn has_next(&self) -> bool {
        false
    }
}

// ===== further attempts =====

/// A spare request, and the services that it may be sent to.
pub struct Kept<Req, F, K> {
    kept: Option<(Req, F, K)>,
}

impl<Req, F: Fn(&Req) -> Option<Req>, K> Kept<Req, F, K> {
    /// Makes a spare request, unless the closure makes none.
    fn of(req: &Req, clone: F, to: impl FnOnce() -> K) -> Self {
        let kept = clone(req).map(|req| (req, clone, to()));
        Self { kept }
    }

    /// Takes the spare request and the services, and makes another spare request of it for the
    /// attempt after this one.
    fn take(&mut self) -> Option<(Req, K)>
    where
        F: Clone,
        K: Clone,
    {
        let (req, clone, to) = self.kept.take()?;
        *self = Self::of(&req, clone, || to.clone());
        Some((req, to))
    }
}

impl<Req, F, K> fmt::Debug for Kept<Req, F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

impl<S, B, F, Req> Replay<S, Services<B>, Req> for SameTurn<F>
where
    B: Clone,
    F: Fn(&Req) -> Option<Req> + Clone,
{
    type Spare = Kept<Req, F, Services<B>>;

    fn spare(&self, _: &S, backends: &Services<B>, req: &Req) -> Self::Spare {
        Kept::of(req, self.clone.clone(), || backends.clone())
    }
}

impl<B, F, Req> Spare<B, Req> for Kept<Req, F, Services<B>>
where
    B: Clone,
    F: Fn(&Req) -> Option<Req> + Clone,
{
    fn none() -> Self {
        Self { kept: None }
    }

    fn next(&mut self, entry: usize, _: &str) -> Option<(B, Req)> {
        let (req, mut to) = self.take()?;
        (entry < to.backups.len()).then(|| (to.backups.swap_remove(entry), req))
    }

    fn has_next(&self) -> bool {
        self.kept.is_some()
    }
}

impl<S, W, F, Req> Replay<S, Models<W>, Req> for SameTurn<F>
where
    S: Clone,
    W: Clone,
    F: Fn(&Req) -> Option<Req> + Clone,
{
    type Spare = Kept<Req, F, (S, Models<W>)>;

    fn spare(&self, primary: &S, backends: &Models<W>, req: &Req) -> Self::Spare {
        let to = || (primary.clone(), backends.clone());
        Kept::of(req, self.clone.clone(), to)
    }
}

impl<S, W, F, Req> Spare<S, Req> for Kept<Req, F, (S, Models<W>)>
where
    S: Clone,
    W: Fn(&mut Req, &str) + Clone,
    F: Fn(&Req) -> Option<Req> + Clone,
{
    fn none() -> Self {
        Self { kept: None }
    }

    fn next(&mut self, _: usize, name: &str) -> Option<(S, Req)> {
        let (mut req, (primary, models)) = self.take()?;
        (models.rewrite)(&mut req, name);
        Some((primary, req))
    }

    fn has_next(&self) -> bool {
        self.kept.is_some()
    }
}
