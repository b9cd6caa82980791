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

/// A service behind a circuit, or behind one circuit per key.
///
/// See the [module documentation](super) for what it does.
///
/// It asks nothing of the inner service but that it is one: not `Clone`, not `Send`, not `'static`. The inner service that was polled
/// ready is the one that is called, and one that was not is never called.
///
/// A service whose call is refused keeps what its inner service had reserved when it was polled ready, as in tower's
/// `Filter`. Use it or drop it.
///
/// # Cancel safety
///
/// A caller that stops waiting for readiness, or is ready and goes away, leaves the circuit as it was: the probe's slot is taken in `call`
/// alone. For a call that is dropped see [`ResponseFuture`].
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

    /// Makes a call that was admitted.
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

    /// Answers a call that was refused.
    #[allow(clippy::type_complexity)] // A name for it would have as many parameters.
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

#[allow(private_bounds)] // Which gates there are is ours.
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
            // Refused at the next call. Inner readiness is not asked for, so that a service that is stuck cannot hold up the answer.
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

    #[allow(clippy::inline_always)] // It is called in one place of a program; the call would cost a third of the whole.
    #[inline(always)]
    fn call(&mut self, mut req: Req) -> Self::Future {
        if let Some(permit) = self.gate.admit_at_once() {
            return self.run(req, permit);
        }
        if let Some(refusal) = self.gate.refuse_at_once() {
            return self.answer(req, refusal);
        }
        match self.gate.admit(&mut req) {
            Ok(permit) => self.run(req, permit),
            Err(refusal) => self.answer(req, refusal),
        }
    }
}

/// Clones share the circuit. New clones carry no readiness: each is polled ready for itself.
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
