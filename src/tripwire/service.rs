//! The guarded service.

use std::fmt;
use std::task::{Context, Poll};

use tower_service::Service;

use super::digest::Answers;
use super::future::{Policies, ResponseFuture};
use super::gate::{Gate, One};
use super::permit::CallPermit;
use super::reader::{Read, Reader};
use crate::machinery::judge::{Head, Judge};
use crate::machinery::unwind::on_unwind;
use crate::vocabulary::{AsBoxError, Classify, ErrorsAsFailures, Refuse};

/// Guards a service with a fence, or with one fence per session.
///
/// See the [module documentation](super) for what it does.
///
/// The inner service needs no `Clone`, no `Send` and no `'static`. The inner service that was
/// polled ready is the one that is called. One that was not polled ready is never called.
///
/// When a call is refused, the inner service keeps what it reserved when it was polled ready, as
/// in tower's `Filter`. Use the service again, or drop it.
pub struct Tripwire<S, C = ErrorsAsFailures, R = AsBoxError, G = One, Q = Reader, A = (), J = Head>
{
    inner: S,
    gate: G,
    reader: Q,
    classify: C,
    refuse: R,
    answers: A,
    judge: J,
}

impl<S, C, R, G, Q, A, J> Tripwire<S, C, R, G, Q, A, J> {
    pub(super) fn new(
        inner: S,
        gate: G,
        reader: Q,
        (classify, refuse, answers, judge): (C, R, A, J),
    ) -> Self {
        Self {
            inner,
            gate,
            reader,
            classify,
            refuse,
            answers,
            judge,
        }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes the guard and returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

#[allow(private_bounds)] // The set of gates is closed.
impl<S, C, R, G, Q, A, J, Req> Service<Req> for Tripwire<S, C, R, G, Q, A, J>
where
    S: Service<Req>,
    C: Classify<S::Response, S::Error> + Clone,
    R: Refuse<Req, S::Response, S::Error>,
    G: Gate<Req>,
    Q: Read<Req>,
    A: Answers<S::Response> + Clone,
    J: Judge<S::Response> + Clone,
{
    type Response = J::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S::Future, C, A, R, Req, Result<J::Response, R::Error>, J>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if !self.gate.ask() {
            // The next call is refused. Inner readiness is not polled, so that a stuck inner
            // service cannot hold up the refusal.
            return Poll::Ready(Ok(()));
        }
        match self.inner.poll_ready(cx) {
            Poll::Ready(Ok(())) => {
                self.gate.readied();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(err)) => {
                let failure = self.classify.classify(Err(&err)).of_readiness();
                self.gate.readiness_failed(failure.kind());
                Poll::Ready(Err(R::convert(err)))
            }
            Poll::Pending => self.gate.poll_wait(cx).map(Ok),
        }
    }

    #[allow(clippy::inline_always)]
    // A program calls it in one place. A function call, and the moves for it, would cost a fifth
    // of the whole.
    #[inline(always)]
    fn call(&mut self, req: Req) -> Self::Future {
        match self.gate.admit(&self.reader, &req) {
            Ok(mut permit) => {
                let future = on_unwind(&mut permit, CallPermit::fail, || self.inner.call(req));
                let policies = Policies {
                    classify: self.classify.clone(),
                    answers: self.answers.clone(),
                    judge: self.judge.clone(),
                };
                ResponseFuture::called(future, permit, policies)
            }
            Err(refusal) => {
                let answer = self.refuse.refuse(req, refusal);
                ResponseFuture::refused(answer.map(|response| self.judge.pass(response)))
            }
        }
    }
}

/// Clones share the fence. New clones carry no readiness: poll each of them ready.
impl<S, C, R, G, Q, A, J> Clone for Tripwire<S, C, R, G, Q, A, J>
where
    S: Clone,
    C: Clone,
    R: Clone,
    G: Clone,
    Q: Clone,
    A: Clone,
    J: Clone,
{
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            gate: self.gate.clone(),
            reader: self.reader.clone(),
            classify: self.classify.clone(),
            refuse: self.refuse.clone(),
            answers: self.answers.clone(),
            judge: self.judge.clone(),
        }
    }
}

impl<S: fmt::Debug, C, R, G: fmt::Debug, Q, A, J> fmt::Debug for Tripwire<S, C, R, G, Q, A, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tripwire")
            .field("inner", &self.inner)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
