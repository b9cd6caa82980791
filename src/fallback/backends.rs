//! What serves the entries of a chain, and how a turn goes on to the next of them.

use std::fmt;

use tower_service::Service;

/// No backups: the chain is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBackups;

/// A chain of services of one type.
#[derive(Clone)]
pub struct Services<B> {
    backups: Vec<B>,
}

impl<B> Services<B> {
    pub(super) fn first(backup: B) -> Self {
        Self {
            backups: vec![backup],
        }
    }

    pub(super) fn push(&mut self, backup: B) {
        self.backups.push(backup);
    }
}

impl<B> fmt::Debug for Services<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Services({})", self.backups.len())
    }
}

/// A chain of models behind the primary's own service.
#[derive(Clone)]
pub struct Models<W> {
    rewrite: W,
}

impl<W> Models<W> {
    pub(super) fn new(rewrite: W) -> Self {
        Self { rewrite }
    }
}

impl<W> fmt::Debug for Models<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Models")
    }
}

/// The services behind a chain, the primary's being `S`.
pub trait Backends<S: Service<Req>, Req> {
    type Backup: Service<Req, Response = S::Response, Error = S::Error>;

    /// The service of an entry; `None` where the primary's own serves every entry.
    fn backup(&mut self, entry: usize) -> Option<&mut Self::Backup>;

    /// A clone of an entry's service, which nobody has readied.
    fn fresh(&self, entry: usize) -> Option<Self::Backup>;

    /// Prepares a request for the model called `name`.
    fn address(&self, req: &mut Req, name: &str);
}

impl<S: Service<Req>, Req> Backends<S, Req> for NoBackups {
    type Backup = S;

    fn backup(&mut self, _: usize) -> Option<&mut S> {
        None
    }

    fn fresh(&self, _: usize) -> Option<S> {
        None
    }

    fn address(&self, _: &mut Req, _: &str) {}
}

impl<S, B, Req> Backends<S, Req> for Services<B>
where
    S: Service<Req>,
    B: Service<Req, Response = S::Response, Error = S::Error> + Clone,
{
    type Backup = B;

    fn backup(&mut self, entry: usize) -> Option<&mut B> {
        self.backups.get_mut(entry)
    }

    fn fresh(&self, entry: usize) -> Option<B> {
        self.backups.get(entry).cloned()
    }

    fn address(&self, _: &mut Req, _: &str) {}
}

impl<S, W, Req> Backends<S, Req> for Models<W>
where
    S: Service<Req>,
    W: Fn(&mut Req, &str),
{
    type Backup = S;

    fn backup(&mut self, _: usize) -> Option<&mut S> {
        None
    }

    fn fresh(&self, _: usize) -> Option<S> {
        None
    }

    fn address(&self, req: &mut Req, name: &str) {
        (self.rewrite)(req, name);
    }
}

// ===== going on within a turn =====

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
    /// What a turn keeps for its further attempts.
    type Spare;

    fn spare(&self, primary: &S, backends: &K, req: &Req) -> Self::Spare;
}

/// What a turn has kept for its further attempts.
pub trait Spare<B, Req> {
    /// What a turn keeps that makes no attempt.
    fn none() -> Self;

    /// The service of `entry`, called `name`, which nobody has readied, and a request for it.
    fn next(&mut self, entry: usize, name: &str) -> Option<(B, Req)>;

    /// Whether there is a request for one more attempt.
    fn has_next(&self) -> bool;
}

impl<S, K, Req> Replay<S, K, Req> for Once {
    type Spare = ();

    fn spare(&self, _: &S, _: &K, _: &Req) {}
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

/// A spare request, and where to send it.
pub struct Kept<Req, F, K> {
    kept: Option<(Req, F, K)>,
}

impl<Req, F: Fn(&Req) -> Option<Req>, K> Kept<Req, F, K> {
    /// Makes a spare request, unless the closure makes none.
    fn of(req: &Req, clone: F, to: impl FnOnce() -> K) -> Self {
        let kept = clone(req).map(|req| (req, clone, to()));
        Self { kept }
    }

    /// The spare request, and where to send it. One more is made of it, for the attempt after this.
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

impl<S, F, Req> Replay<S, NoBackups, Req> for SameTurn<F> {
    type Spare = ();

    fn spare(&self, _: &S, _: &NoBackups, _: &Req) {}
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

// ===== who served =====

/// Is told who served a response.
pub trait Served<Res> {
    fn served(&self, response: &mut Res, name: &str);
}

impl<Res> Served<Res> for () {
    fn served(&self, _: &mut Res, _: &str) {}
}

/// Writes into a response who served it.
#[derive(Clone)]
pub struct ServedBy<F> {
    f: F,
}

impl<F> ServedBy<F> {
    pub(super) fn new(f: F) -> Self {
        Self { f }
    }
}

impl<F, Res> Served<Res> for ServedBy<F>
where
    F: Fn(&mut Res, &str),
{
    fn served(&self, response: &mut Res, name: &str) {
        (self.f)(response, name);
    }
}

impl<F> fmt::Debug for ServedBy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServedBy")
    }
}
