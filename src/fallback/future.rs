//! The future of a turn.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::backends::{Served, Spare};
use super::permit::Admission;
use crate::outcome::{Classify, Failure, Outcome};
use crate::refusal::Refuse;

pin_project! {
    /// Response future of [`Fallback`](super::Fallback).
    ///
    /// It carries the turn's permit. Dropped before the answer is there, it is a cancelled turn of the one that was serving it.
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready with a refusal, or with the error of a backup that failed to become ready; other futures of ours
    /// do as the inner one does.
    pub struct ResponseFuture<F, G, B, P, R, Req, T> {
        #[pin]
        state: State<F, G, B, Req, T>,
        // What a turn needs when its answer is there; a refused one needs nothing.
        policies: Option<P>,
        _refuse: PhantomData<fn(Req) -> R>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, G, B, Req, T> {
        // The service that was readied for the primary was called.
        Primary {
            #[pin]
            future: F,
            // Dropped without a verdict, it gives the one of a cancelled turn.
            admission: Admission,
        },
        // A backup was called.
        Backup {
            #[pin]
            future: G,
            admission: Admission,
        },
        // A backup is readied, to be called.
        Readying {
            backup: B,
            req: Option<Req>,
            admission: Admission,
        },
        Refused {
            answer: Option<T>,
        },
    }
}

/// What a turn needs when its answer is there.
#[derive(Clone, Copy)]
pub struct Policies<C, V, Q> {
    pub(super) classify: C,
    pub(super) served: V,
    pub(super) spare: Q,
}

impl<F, G, B, P, R, Req, T> ResponseFuture<F, G, B, P, R, Req, T> {
    #[inline]
    pub(super) fn primary(future: F, admission: Admission, policies: P) -> Self {
        Self::of(State::Primary { future, admission }, Some(policies))
    }

    pub(super) fn backup(future: G, admission: Admission, policies: P) -> Self {
        Self::of(State::Backup { future, admission }, Some(policies))
    }

    pub(super) fn readying(backup: B, req: Req, admission: Admission, policies: P) -> Self {
        let state = State::Readying {
            backup,
            req: Some(req),
            admission,
        };
        Self::of(state, Some(policies))
    }

    pub(super) fn refused(answer: T) -> Self {
        let answer = Some(answer);
        Self::of(State::Refused { answer }, None)
    }

    #[inline]
    fn of(state: State<F, G, B, Req, T>, policies: Option<P>) -> Self {
        Self {
            state,
            policies,
            _refuse: PhantomData,
        }
    }
}

impl<F, B, C, V, Q, R, Req, Res, E, Err> Future
    for ResponseFuture<F, B::Future, B, Policies<C, V, Q>, R, Req, Result<Res, Err>>
where
    F: Future<Output = Result<Res, E>>,
    B: Service<Req, Response = Res, Error = E>,
    C: Classify<Res, E>,
    V: Served<Res>,
    Q: Spare<B, Req>,
    R: Refuse<Req, Res, E, Error = Err>,
{
    type Output = Result<Res, Err>;

    #[allow(clippy::inline_always)] // It is polled in one place of a program; the call would cost a good part of the whole.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let (StateProj::Primary { future, admission }, Some(policies)) =
            (this.state.as_mut().project(), this.policies.as_mut())
        {
            let mut result = ready!(failing_if_unwound(admission, || future.poll(cx)));
            let classify = &policies.classify;
            let outcome = cancelled_if_unwound(admission, || classify.classify(result.as_ref()));
            if outcome == Outcome::Success {
                if let Some(settled) = admission.pass() {
                    if let Ok(response) = &mut result {
                        policies.served.served(response, settled.name());
                    }
                    return Poll::Ready(result.map_err(R::convert));
                }
            }
            let admission = admission.take();
            let state = this.state.as_mut();
            if let Some(result) = conclude(state, policies, admission, result, outcome) {
                return Poll::Ready(result.map_err(R::convert));
            }
        }
        poll_closely::<_, _, _, _, _, R, _, _, _, _>(this.state, this.policies, cx)
    }
}

/// Polls a turn that a backup serves, or nobody.
#[inline(never)]
fn poll_closely<F, B, C, V, Q, R, Req, Res, E, Err>(
    mut state: Pin<&mut State<F, B::Future, B, Req, Result<Res, Err>>>,
    policies: &mut Option<Policies<C, V, Q>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Res, Err>>
where
    B: Service<Req, Response = Res, Error = E>,
    C: Classify<Res, E>,
    V: Served<Res>,
    Q: Spare<B, Req>,
    R: Refuse<Req, Res, E, Error = Err>,
{
    loop {
        let (result, mut admission, ready) = match state.as_mut().project() {
            StateProj::Backup { future, admission } => {
                let result = ready!(failing_if_unwound(admission, || future.poll(cx)));
                (result, admission.take(), true)
            }
            StateProj::Readying {
                backup,
                req,
                admission,
            } => {
                let polled = failing_if_unwound(admission, || backup.poll_ready(cx));
                match (ready!(polled), req.take()) {
                    (Ok(()), Some(req)) => {
                        let mut admission = admission.take();
                        let future = failing_if_unwound(&mut admission, || backup.call(req));
                        state.set(State::Backup { future, admission });
                        continue;
                    }
                    (Ok(()), None) => polled_again(),
                    (Err(err), _) => {
                        let admission = admission.take();
                        state.set(State::Refused { answer: None });
                        (Err(err), admission, false)
                    }
                }
            }
            StateProj::Refused { answer } => match answer.take() {
                Some(answer) => return Poll::Ready(answer),
                None => polled_again(),
            },
            StateProj::Primary { .. } => polled_again(),
        };
        let Some(policies) = policies else {
            return Poll::Ready(result.map_err(R::convert));
        };
        let classify = &policies.classify;
        let mut outcome =
            cancelled_if_unwound(&mut admission, || classify.classify(result.as_ref()));
        if !ready && !matches!(outcome, Outcome::Failure(_)) {
            // A service that will never be ready has failed, whatever its error says; the classifier may say how.
            outcome = Failure::transient().into();
        }
        if let Some(result) = conclude(state.as_mut(), policies, admission, result, outcome) {
            return Poll::Ready(result.map_err(R::convert));
        }
    }
}

/// Gives an attempt's verdict. Answers with the turn's result, or with nothing if the turn goes on.
#[inline(never)]
fn conclude<F, G, B, C, V, Q, Req, T, Res, E>(
    mut state: Pin<&mut State<F, G, B, Req, T>>,
    policies: &mut Policies<C, V, Q>,
    mut admission: Admission,
    mut result: Result<Res, E>,
    outcome: Outcome,
) -> Option<Result<Res, E>>
where
    V: Served<Res>,
    Q: Spare<B, Req>,
{
    // The verdict was given if a future is polled again after its answer.
    let Some(settled) = admission.record(outcome) else {
        return Some(result);
    };
    if matches!(outcome, Outcome::Failure(_)) && policies.spare.has_next() {
        if let Some((entry, ticket)) = settled.go_on() {
            let next = policies.spare.next(entry, settled.name_of(ticket));
            if let Some((backup, req)) = next {
                settled.tell_moved_on(ticket);
                state.set(State::Readying {
                    backup,
                    req: Some(req),
                    admission: settled.admit(ticket),
                });
                return None;
            }
        }
    }
    if let Ok(response) = &mut result {
        policies.served.served(response, settled.name());
    }
    settled.tell(outcome);
    Some(result)
}

#[allow(clippy::panic)] // Documented, as everywhere in the futures of tower.
fn polled_again() -> ! {
    panic!("`ResponseFuture` polled after it was ready")
}

/// Runs code of the inner service. Should it unwind, the turn has failed, whoever catches the panic later.
#[inline]
pub(super) fn failing_if_unwound<T>(admission: &mut Admission, f: impl FnOnce() -> T) -> T {
    struct Unwound<'a>(&'a mut Admission);

    impl Drop for Unwound<'_> {
        fn drop(&mut self) {
            self.0.fail();
        }
    }

    let unwound = Unwound(admission);
    let value = f();
    mem::forget(unwound);
    value
}

/// Runs a classifier. Should it unwind, the turn is a cancelled one now, and not when the future is dropped.
#[inline]
fn cancelled_if_unwound<T>(admission: &mut Admission, f: impl FnOnce() -> T) -> T {
    struct Unwound<'a>(&'a mut Admission);

    impl Drop for Unwound<'_> {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }

    let unwound = Unwound(admission);
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
            State::Primary { future, admission } => {
                debug.field("future", future).field("permit", admission)
            }
            State::Backup { future, admission } => {
                debug.field("future", future).field("permit", admission)
            }
            State::Readying { admission, .. } => debug.field("permit", admission),
            State::Refused { .. } => debug.field("refused", &true),
        };
        debug.finish_non_exhaustive()
    }
}

impl<C, V, Q> fmt::Debug for Policies<C, V, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Policies")
    }
}
