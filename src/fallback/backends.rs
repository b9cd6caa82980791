//! The services that serve the entries of a chain.

use std::fmt;

use tower_service::Service;

/// No backups: the chain is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBackups;

/// A chain of services of one type.
#[derive(Clone)]
pub struct Services<B> {
    pub(super) backups: Vec<B>,
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
    pub(super) rewrite: W,
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

/// The services behind a chain whose primary is `S`.
pub trait Backends<S: Service<Req>, Req> {
    type Backup: Service<Req, Response = S::Response, Error = S::Error>;

    /// The service of an entry. `None` if the primary's own service serves every entry.
    fn backup(&mut self, entry: usize) -> Option<&mut Self::Backup>;

    /// A clone of an entry's service, which has not been polled ready.
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
