//! The future of a turn.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::permit::CallPermit;
use super::same_turn::Spare;
use super::served_by::Served;
use crate::machinery::judge::{Head, Judge};
use crate::vocabulary::Refuse;
use crate::vocabulary::{Classify, Outcome};

pin_project! {
    /// Response future of [`Fallback`](super::Fallback).
    ///
    /// It carries the turn's permit.
    ///
    /// # Cancel safety
    ///
    /// Dropped before its response is there, it is a cancelled turn of the model that was serving
    /// it, and [`on_cancel`](super::FallbackLayer::on_cancel) says what that means.
    ///
    /// # Panics
    ///
    /// If it is polled again after it was ready with a refusal, or with the error of a backup that
    /// failed to become ready. After an inner response, it does what the inner future does.
    pub struct ResponseFuture<F, G, B, P, R, Req, T> {
        #[pin]
        state: State<F, G, B, Req, T>,
        policies: P,
        _refuse: PhantomData<fn(Req) -> R>,
    }
}

pin_project! {
    // The rare states are an enum of their own. So the drop of a healthy primary's turn makes one
    // check.
    #[project = StateProj]
    enum State<F, G, B, Req, T> {
        // The service that was readied for the primary was called.
        Primary {
            #[pin]
            future: F,
                // Needed for its `Drop`: without a verdict, it is a cancelled turn.
            permit: CallPermit,
        },
        Other {
            #[pin]
            other: Other<G, B, Req, T>,
        },
    }
}

pin_project! {
    #[project = OtherProj]
    enum Other<G, B, Req, T> {
        // A backup was called.
        Backup {
            #[pin]
            future: G,
            permit: CallPermit,
        },
        // A backup is polled until it is ready to be called.
        Readying {
            backup: B,
            req: Option<Req>,
            permit: CallPermit,
        },
        Refused {
            answer: Option<T>,
        },
    }
}

/// The parts of the layer that a turn needs once its response is there.
#[derive(Clone, Copy)]
pub struct Policies<C, V, Q, J = Head> {
    pub(super) classify: C,
    pub(super) served: V,
    pub(super) spare: Q,
    pub(super) judge: J,
}

impl<F, G, B, P, R, Req, T> ResponseFuture<F, G, B, P, R, Req, T> {
    #[inline]
    pub(super) fn primary(future: F, permit: CallPermit, policies: P) -> Self {
        Self::of(State::Primary { future, permit }, policies)
    }

    pub(super) fn backup(future: G, permit: CallPermit, policies: P) -> Self {
        Self::other(Other::Backup { future, permit }, policies)
    }

    pub(super) fn readying(backup: B, req: Req, permit: CallPermit, policies: P) -> Self {
        let other = Other::Readying {
            backup,
            req: Some(req),
            permit,
        };
        Self::other(other, policies)
    }

    pub(super) fn refused(answer: T, policies: P) -> Self {
        let answer = Some(answer);
        Self::other(Other::Refused { answer }, policies)
    }

    fn other(other: Other<G, B, Req, T>, policies: P) -> Self {
        Self::of(State::Other { other }, policies)
    }

    #[inline]
    fn of(state: State<F, G, B, Req, T>, policies: P) -> Self {
        Self {
            state,
            policies,
            _refuse: PhantomData,
        }
    }
}

impl<F, B, C, V, Q, R, Req, Res, E, Out, Err, J> Future
    for ResponseFuture<F, B::Future, B, Policies<C, V, Q, J>, R, Req, Result<Out, Err>>
where
    F: Future<Output = Result<Res, E>>,
    B: Service<Req, Response = Res, Error = E>,
    C: Classify<Res, E>,
    V: Served<Res>,
    Q: Spare<B, Req>,
    R: Refuse<Req, Res, E, Error = Err>,
    J: Judge<Res, Response = Out>,
{
    type Output = Result<Out, Err>;

    // A program polls it in one place. If it were not inlined, the call would cost a good part of
    // the whole.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let policies = this.policies;
        if let StateProj::Primary { future, permit } = this.state.as_mut().project() {
            let mut result = ready!(failing_if_unwound(permit, || future.poll(cx)));
            let classify = &policies.classify;
            let outcome = cancelled_if_unwound(permit, || classify.classify(result.as_ref()));
            if J::AT_HEAD && outcome == Outcome::Success {
                if let Some(passed) = permit.pass() {
                    if let Ok(response) = &mut result {
                        policies.served.served(response, passed.name());
                    }
                    let result = result.map(|response| policies.judge.pass(response));
                    return Poll::Ready(result.map_err(R::convert));
                }
            }
            let permit = permit.take();
            match conclude(policies, permit, result, outcome) {
                Ok(result) => return Poll::Ready(result.map_err(R::convert)),
                Err(other) => this.state.set(State::Other { other }),
            }
        }
        match this.state.project() {
            StateProj::Other { other } => {
                poll_other::<_, _, _, _, R, _, _, _, _, _, _>(other, policies, cx)
            }
            StateProj::Primary { .. } => polled_again(),
        }
    }
}

/// Polls a turn that a backup serves, or that is refused.
// A name for the type would have as many parameters.
#[allow(clippy::type_complexity)]
#[inline(never)]
fn poll_other<B, C, V, Q, R, Req, Res, E, Out, Err, J>(
    mut other: Pin<&mut Other<B::Future, B, Req, Result<Out, Err>>>,
    policies: &mut Policies<C, V, Q, J>,
    cx: &mut Context<'_>,
) -> Poll<Result<Out, Err>>
where
    B: Service<Req, Response = Res, Error = E>,
    C: Classify<Res, E>,
    V: Served<Res>,
    Q: Spare<B, Req>,
    R: Refuse<Req, Res, E, Error = Err>,
    J: Judge<Res, Response = Out>,
{
    loop {
        let (result, mut permit, ready) = match other.as_mut().project() {
            OtherProj::Backup { future, permit } => {
                let result = ready!(failing_if_unwound(permit, || future.poll(cx)));
                (result, permit.take(), true)
            }
            OtherProj::Readying {
                backup,
                req,
                permit,
            } => {
                let polled = failing_if_unwound(permit, || backup.poll_ready(cx));
                match (ready!(polled), req.take()) {
                    (Ok(()), Some(req)) => {
                        let mut permit = permit.take();
                        let future = failing_if_unwound(&mut permit, || backup.call(req));
                        other.set(Other::Backup { future, permit });
                        continue;
                    }
                    (Ok(()), None) => polled_again(),
                    (Err(err), _) => {
                        let permit = permit.take();
                        other.set(Other::Refused { answer: None });
                        (Err(err), permit, false)
                    }
                }
            }
            OtherProj::Refused { answer } => match answer.take() {
                Some(answer) => return Poll::Ready(answer),
                None => polled_again(),
            },
        };
        let classify = &policies.classify;
        let mut outcome = cancelled_if_unwound(&mut permit, || classify.classify(result.as_ref()));
        if !ready {
            outcome = outcome.of_readiness().into();
        }
        match conclude(policies, permit, result, outcome) {
            Ok(result) => return Poll::Ready(result.map_err(R::convert)),
            Err(next) => other.set(next),
        }
    }
}

/// Gives an attempt's verdict. Answers with the turn's result, or with the turn's next state.
#[inline(never)]
// A name for the type would have as many parameters.
#[allow(clippy::type_complexity)]
fn conclude<G, B, C, V, Q, Req, T, Res, E, J>(
    policies: &mut Policies<C, V, Q, J>,
    mut permit: CallPermit,
    mut result: Result<Res, E>,
    outcome: Outcome,
) -> Result<Result<J::Response, E>, Other<G, B, Req, T>>
where
    V: Served<Res>,
    Q: Spare<B, Req>,
    J: Judge<Res>,
{
    let judge = &policies.judge;
    #[cfg(feature = "http")]
    if !J::AT_HEAD && outcome == Outcome::Success {
        match (result, permit.name()) {
            (Ok(mut response), Some(name)) => {
                policies.served.served(&mut response, name);
                return Ok(Ok(judge.hold(response, permit.hand_over())));
            }
            (other, _) => result = other,
        }
    }
    // The permit is empty if a future is polled again after its response.
    let Some(settled) = permit.record(outcome) else {
        return Ok(result.map(|response| judge.pass(response)));
    };
    if matches!(outcome, Outcome::Failure(_)) && policies.spare.has_next() {
        if let Some((entry, ticket)) = settled.go_on() {
            let next = policies.spare.next(entry, settled.name_of(ticket));
            if let Some((backup, req)) = next {
                settled.tell_moved_on(ticket);
                return Err(Other::Readying {
                    backup,
                    req: Some(req),
                    permit: settled.admit(ticket),
                });
            }
        }
    }
    if let Ok(response) = &mut result {
        policies.served.served(response, settled.name());
    }
    settled.tell(outcome);
    Ok(result.map(|response| policies.judge.pass(response)))
}

// Documented, as in the futures of tower.
#[allow(clippy::panic)]
fn polled_again() -> ! {
    panic!("`ResponseFuture` polled after it was ready")
}

// The two guards below do not use `machinery::unwind::on_unwind`: with it every turn of a healthy
// primary costs two more instructions.

/// Runs code of the inner service. If it unwinds, the turn has failed.
#[inline]
pub(super) fn failing_if_unwound<T>(permit: &mut CallPermit, f: impl FnOnce() -> T) -> T {
    struct Unwound<'a>(&'a mut CallPermit);

    impl Drop for Unwound<'_> {
        fn drop(&mut self) {
            self.0.fail();
        }
    }

    let unwound = Unwound(permit);
    let value = f();
    mem::forget(unwound);
    value
}

/// Runs a classifier. If it unwinds, the turn is cancelled now, not when the future is dropped.
#[inline]
fn cancelled_if_unwound<T>(permit: &mut CallPermit, f: impl FnOnce() -> T) -> T {
    struct Unwound<'a>(&'a mut CallPermit);

    impl Drop for Unwound<'_> {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }

    let unwound = Unwound(permit);
    let value = f();
    mem::forget(unwound);
    value
}

impl<F: fmt::Debug, G: fmt::Debug, B, P, R, Req, T> fmt::Debug
    for ResponseFuture<F, G, B, P, R, Req, T>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ResponseFuture");
        match &self.state {
            State::Primary { future, permit } => {
                debug.field("future", future).field("permit", permit)
            }
            State::Other { other } => match other {
                Other::Backup { future, permit } => {
                    debug.field("future", future).field("permit", permit)
                }
                Other::Readying { permit, .. } => debug.field("permit", permit),
                Other::Refused { .. } => debug.field("refused", &true),
            },
        };
        debug.finish_non_exhaustive()
    }
}

impl<C, V, Q, J> fmt::Debug for Policies<C, V, Q, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Policies")
    }
}
