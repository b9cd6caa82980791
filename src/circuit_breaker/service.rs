//! The guarded service.

use std::fmt;
use std::task::{Context, Poll, ready};

use tower_service::Service;

use super::future::ResponseFuture;
use super::gate::{Gate, One};
use super::permit::CallPermit;
use crate::machinery::judge::{Head, Judge};
use crate::machinery::unwind::on_unwind;
use crate::vocabulary::{AsBoxError, Refusal, Refuse};
use crate::vocabulary::{Classify, ErrorsAsFailures};

/// Guards a service with a circuit, or with one circuit for each key.
///
/// See the [module documentation](super) for what it does.
///
/// The inner service need not be `Clone`, `Send` or `'static`. The inner service that was polled
/// ready is the one that is called, and it is never called without having been polled ready.
///
/// If a call is refused, the service keeps what its inner service reserved when it was polled
/// ready, as in tower's `Filter`. Use the service or drop it.
///
/// # Cancel safety
///
/// A caller that stops waiting for readiness leaves the circuit as it was, and so does one that is
/// ready and makes no call: the probe's slot is taken in `call` alone. For a call that is dropped
/// see [`ResponseFuture`].
pub struct CircuitBreaker<S, C = ErrorsAsFailures, R = AsBoxError, G = One, J = Head> {
    inner: S,
    gate: G,
    classify: C,
    refuse: R,
    judge: J,
}

impl<S, C, R, G, J> CircuitBreaker<S, C, R, G, J> {
    pub(super) fn new(inner: S, gate: G, classify: C, refuse: R, judge: J) -> Self {
        Self {
            inner,
            gate,
            classify,
            refuse,
            judge,
        }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, mutably.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Takes the inner service out.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Makes an admitted call.
    #[inline]
    fn run<Req, T>(
        &mut self,
        req: Req,
        mut permit: CallPermit,
    ) -> ResponseFuture<S::Future, C, R, Req, T, J>
    where
        S: Service<Req>,
        C: Clone,
        J: Clone,
    {
        let future = on_unwind(&mut permit, CallPermit::fail, || self.inner.call(req));
        ResponseFuture::called(future, permit, self.classify.clone(), self.judge.clone())
    }

    /// Answers a refused call.
    #[allow(clippy::type_complexity)] // A type alias would have as many parameters.
    #[inline]
    fn answer<Req>(
        &self,
        req: Req,
        refusal: Refusal,
    ) -> ResponseFuture<S::Future, C, R, Req, Result<J::Response, R::Error>, J>
    where
        S: Service<Req>,
        R: Refuse<Req, S::Response, S::Error>,
        J: Judge<S::Response>,
    {
        let answer = self.refuse.refuse(req, refusal);
        ResponseFuture::refused(answer.map(|response| self.judge.pass(response)))
    }
}

#[allow(private_bounds)] // Users write no gates of their own.
impl<S, C, R, G, J, Req> Service<Req> for CircuitBreaker<S, C, R, G, J>
where
    S: Service<Req>,
    C: Classify<S::Response, S::Error> + Clone,
    R: Refuse<Req, S::Response, S::Error>,
    G: Gate<Req>,
    J: Judge<S::Response> + Clone,
{
    type Response = J::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S::Future, C, R, Req, Result<J::Response, R::Error>, J>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if !ready!(self.gate.poll_ask(cx)) {
            // The next call is refused. Inner readiness is not polled, so that a stuck service
            // cannot hold up the refusal.
            return Poll::Ready(Ok(()));
        }
        match self.inner.poll_ready(cx) {
            Poll::Ready(Ok(())) => {
                self.gate.readied();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(err)) => {
                let failure = self.classify.classify(Err(&err)).of_readiness();
                self.gate.readiness_failed(failure);
                Poll::Ready(Err(R::convert(err)))
            }
            Poll::Pending => self.gate.poll_wait(cx).map(Ok),
        }
    }

    // A program calls it in one place, and the call itself would cost a third of the whole.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn call(&mut self, mut req: Req) -> Self::Future {
        if let Some(permit) = self.gate.admit_lock_free() {
            return self.run(req, permit);
        }
        if let Some(refusal) = self.gate.refuse_lock_free() {
            return self.answer(req, refusal);
        }
        match self.gate.admit(&mut req) {
            Ok(permit) => self.run(req, permit),
            Err(refusal) => self.answer(req, refusal),
        }
    }
}

/// Clones share the circuit. New clones don't carry the readiness state: each is polled ready for
/// itself.
impl<S: Clone, C: Clone, R: Clone, G: Clone, J: Clone> Clone for CircuitBreaker<S, C, R, G, J> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            gate: self.gate.clone(),
            classify: self.classify.clone(),
            refuse: self.refuse.clone(),
            judge: self.judge.clone(),
        }
    }
}

impl<S: fmt::Debug, C, R, G: fmt::Debug, J> fmt::Debug for CircuitBreaker<S, C, R, G, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("inner", &self.inner)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
