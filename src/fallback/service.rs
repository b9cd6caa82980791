//! The service.

use std::fmt;
use std::task::{Context, Poll};

use tower_service::Service;

use super::backends::{Backends, NoBackups};
use super::chain::{Readied, Server};
use super::future::{Policies, ResponseFuture, failing_if_unwound};
use super::gate::Gate;
use super::permit::CallPermit;
use super::same_turn::{Once, Replay, Spare};
use super::served_by::Served;
use crate::machinery::denied::Denied;
use crate::machinery::judge::{Head, Judge};
use crate::vocabulary::{AsBoxError, Classify, RefusalsAsFailures, Refuse};

/// A model with a chain of backups.
///
/// See the [module documentation](super) for what it does.
///
/// The primary needs only to be a service: not `Clone`, not `Send`, not `'static`. Backups are
/// `Clone`. The service that was polled ready is the one that is called. A service that was not
/// polled ready is never called.
///
/// A turn may go to another service than the one that was readied for it. The readied service then
/// keeps what it has reserved, as in tower's `Filter`: use the service or drop it.
pub struct Fallback<
    S,
    K = NoBackups,
    C = RefusalsAsFailures,
    R = AsBoxError,
    V = (),
    Q = Once,
    J = Head,
> {
    primary: S,
    backends: K,
    gate: Gate,
    ready: Readiness,
    classify: C,
    refuse: R,
    served: V,
    replay: Q,
    judge: J,
}

/// The result of the last `poll_ready`, for the one call after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    /// `poll_ready` was not called since the last call, or was not ready.
    Unknown,
    Ready(Readied),
    /// The turn would have been refused.
    Refused,
}

impl<S, K, C, R, V, Q, J> Fallback<S, K, C, R, V, Q, J> {
    pub(super) fn new(
        primary: S,
        backends: K,
        gate: Gate,
        (classify, refuse, served, replay, judge): (C, R, V, Q, J),
    ) -> Self {
        Self {
            primary,
            backends,
            gate,
            ready: Readiness::Unknown,
            classify,
            refuse,
            served,
            replay,
            judge,
        }
    }

    /// The primary.
    pub fn get_ref(&self) -> &S {
        &self.primary
    }

    /// The primary, mutably.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.primary
    }

    /// Takes the primary out.
    pub fn into_inner(self) -> S {
        self.primary
    }
}

#[allow(private_bounds)] // Only this crate implements these traits.
impl<S, K, C, R, V, Q, J, Req> Service<Req> for Fallback<S, K, C, R, V, Q, J>
where
    S: Service<Req>,
    K: Backends<S, Req>,
    C: Classify<S::Response, S::Error> + Clone,
    R: Refuse<Req, S::Response, S::Error>,
    V: Served<S::Response> + Clone,
    Q: Replay<S, K, Req, Spare: Spare<K::Backup, Req>>,
    J: Judge<S::Response> + Clone,
{
    type Response = J::Response;
    type Error = R::Error;
    type Future = ResponseFuture<
        S::Future,
        <K::Backup as Service<Req>>::Future,
        K::Backup,
        Policies<C, V, Q::Spare, J>,
        R,
        Req,
        Result<J::Response, R::Error>,
    >;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut polled = None;
        if self.gate.admits_all() {
            let primary = self.primary.poll_ready(cx);
            if let Poll::Ready(Ok(())) = primary {
                self.ready = Readiness::Ready(Readied::Primary);
                return Poll::Ready(Ok(()));
            }
            polled = Some(primary);
        }
        self.poll_slow(polled, cx).map_err(R::convert)
    }

    #[inline]
    fn call(&mut self, req: Req) -> Self::Future {
        if self.ready == Readiness::Ready(Readied::Primary) {
            if let Some(permit) = self.gate.begin_lock_free() {
                self.ready = Readiness::Unknown;
                let spare = self.replay.spare(&self.primary, &self.backends, &req);
                return self.run(req, permit, spare);
            }
        }
        self.call_slow(req)
    }
}

impl<S, K, C, R, V, Q, J> Fallback<S, K, C, R, V, Q, J> {
    /// Runs an admitted turn through the primary's service.
    #[allow(clippy::type_complexity)] // A name for it would have as many parameters.
    #[inline]
    fn run<Req, G, B, T, P>(
        &mut self,
        mut req: Req,
        mut permit: CallPermit,
        spare: P,
    ) -> ResponseFuture<S::Future, G, B, Policies<C, V, P, J>, R, Req, T>
    where
        S: Service<Req>,
        K: Backends<S, Req>,
        C: Clone,
        V: Clone,
        J: Clone,
    {
        if let Some(name) = permit.name() {
            self.backends.address(&mut req, name);
        }
        let future = failing_if_unwound(&mut permit, || self.primary.call(req));
        ResponseFuture::primary(future, permit, self.policies(spare))
    }

    #[inline]
    fn policies<P>(&self, spare: P) -> Policies<C, V, P, J>
    where
        C: Clone,
        V: Clone,
        J: Clone,
    {
        Policies {
            classify: self.classify.clone(),
            served: self.served.clone(),
            spare,
            judge: self.judge.clone(),
        }
    }

    /// The slow path of `call`: asks the gate, and calls the service that it sends the turn to.
    #[inline(never)]
    fn call_slow<Req>(&mut self, mut req: Req) -> <Self as Service<Req>>::Future
    where
        S: Service<Req>,
        K: Backends<S, Req>,
        C: Classify<S::Response, S::Error> + Clone,
        R: Refuse<Req, S::Response, S::Error>,
        V: Served<S::Response> + Clone,
        Q: Replay<S, K, Req, Spare: Spare<K::Backup, Req>>,
        J: Judge<S::Response> + Clone,
    {
        let readied = match std::mem::replace(&mut self.ready, Readiness::Unknown) {
            Readiness::Ready(readied) => Some(readied),
            // An entry that has become live since may serve, if it has a service of its own. The
            // future readies it.
            Readiness::Refused => self.backends.backup(0).map(|_| Readied::Nothing),
            Readiness::Unknown => None,
        };
        let admitted = match readied {
            Some(readied) => self.gate.begin(readied),
            // The gate is asked nevertheless, for the reason of the refusal. It also notices a
            // lease that is over.
            None => self.gate.begin(Readied::Nothing).and_then(|permit| {
                permit.discard();
                Err(Denied::NOT_READY)
            }),
        };
        let mut permit = match admitted {
            Ok(permit) => permit,
            Err(denied) => {
                let refusal = self.gate.refuse(denied);
                let answer = self.refuse.refuse(req, refusal);
                let answer = answer.map(|response| self.judge.pass(response));
                return ResponseFuture::refused(answer, self.policies(Spare::none()));
            }
        };
        let spare = self.replay.spare(&self.primary, &self.backends, &req);
        let Server::Entry(entry) = permit.server() else {
            return self.run(req, permit, spare);
        };
        if readied != Some(Readied::Entry(entry)) {
            // Another service was readied, so the future readies a clone of this entry's service.
            let Some(backup) = self.backends.fresh(entry) else {
                return self.run(req, permit, spare);
            };
            if let Some(name) = permit.name() {
                self.backends.address(&mut req, name);
            }
            return ResponseFuture::readying(backup, req, permit, self.policies(spare));
        }
        let Some(backup) = self.backends.backup(entry) else {
            return self.run(req, permit, spare);
        };
        let future = failing_if_unwound(&mut permit, || backup.call(req));
        ResponseFuture::backup(future, permit, self.policies(spare))
    }

    /// The slow path of `poll_ready`: asks who would serve, and polls that service.
    ///
    /// `primary` is what the primary answered, if it was polled already.
    #[inline(never)]
    fn poll_slow<Req>(
        &mut self,
        mut primary: Option<Poll<Result<(), S::Error>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), S::Error>>
    where
        S: Service<Req>,
        K: Backends<S, Req>,
        C: Classify<S::Response, S::Error>,
    {
        self.ready = Readiness::Unknown;
        loop {
            let Ok(server) = self.gate.would_serve() else {
                // The next call is refused.
                self.ready = Readiness::Refused;
                return Poll::Ready(Ok(()));
            };
            let stand_in = self.gate.stand_in(server);
            match self.poll_server(server, stand_in, primary.take(), cx) {
                Poll::Ready(Ok(readied)) => {
                    self.ready = Readiness::Ready(readied);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(err)) => return Poll::Ready(Err(err)),
                Poll::Pending => {}
            }
            self.gate.wait(cx);
            // A change before the waker was registered woke nobody, so ask again.
            if self.gate.would_serve() == Ok(server) && self.gate.stand_in(server) == stand_in {
                return Poll::Pending;
            }
        }
    }

    /// Polls the service of `server`, or that of the entry that stands in for it.
    fn poll_server<Req>(
        &mut self,
        server: Server,
        stand_in: Option<usize>,
        primary: Option<Poll<Result<(), S::Error>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Readied, S::Error>>
    where
        S: Service<Req>,
        K: Backends<S, Req>,
        C: Classify<S::Response, S::Error>,
    {
        if let Server::Entry(entry) = server {
            if let Some(backup) = self.backends.backup(entry) {
                let polled = backup.poll_ready(cx);
                return self.polled(polled, server, Readied::Entry(entry));
            }
        }
        let polled = match primary {
            Some(polled) => polled,
            None => self.primary.poll_ready(cx),
        };
        if polled.is_pending() {
            // A primary that is stuck must not block a backup.
            if let Some(entry) = stand_in {
                if let Some(backup) = self.backends.backup(entry) {
                    let polled = backup.poll_ready(cx);
                    return self.polled(polled, Server::Entry(entry), Readied::Entry(entry));
                }
            }
        }
        self.polled(polled, server, Readied::Primary)
    }

    /// Counts a service that failed to become ready as a failed turn of `server`.
    fn polled<Res, E>(
        &mut self,
        polled: Poll<Result<(), E>>,
        server: Server,
        readied: Readied,
    ) -> Poll<Result<Readied, E>>
    where
        C: Classify<Res, E>,
    {
        polled.map(|result| match result {
            Ok(()) => Ok(readied),
            Err(err) => {
                let failure = self.classify.classify(Err(&err)).of_readiness();
                self.gate.readiness_failed(server, failure);
                Err(err)
            }
        })
    }
}

/// Clones share the chain. New clones carry no readiness: each must be polled ready itself.
impl<S, K, C, R, V, Q, J> Clone for Fallback<S, K, C, R, V, Q, J>
where
    S: Clone,
    K: Clone,
    C: Clone,
    R: Clone,
    V: Clone,
    Q: Clone,
    J: Clone,
{
    fn clone(&self) -> Self {
        Self {
            primary: self.primary.clone(),
            backends: self.backends.clone(),
            gate: self.gate.clone(),
            ready: Readiness::Unknown,
            classify: self.classify.clone(),
            refuse: self.refuse.clone(),
            served: self.served.clone(),
            replay: self.replay.clone(),
            judge: self.judge.clone(),
        }
    }
}

impl<S: fmt::Debug, K: fmt::Debug, C, R, V, Q, J> fmt::Debug for Fallback<S, K, C, R, V, Q, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("primary", &self.primary)
            .field("backends", &self.backends)
            .field("chain", &self.gate)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}
