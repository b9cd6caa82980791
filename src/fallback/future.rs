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

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (mut result, admission, ready) = match this.state.as_mut().project() {
                StateProj::Primary { future, admission } => {
                    let result = ready!(failing_if_unwound(admission, || future.poll(cx)));
                    (result, admission.take(), true)
                }
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
                            this.state.set(State::Backup { future, admission });
                            continue;
                        }
                        (Ok(()), None) => polled_again(),
                        (Err(err), _) => {
                            let admission = admission.take();
                            this.state.set(State::Refused { answer: None });
                            (Err(err), admission, false)
                        }
                    }
                }
                StateProj::Refused { answer } => match answer.take() {
                    Some(answer) => return Poll::Ready(answer),
                    None => polled_again(),
                },
            };
            // Taken out first: if the classifier panics, the turn is a cancelled one now, and not when the future is dropped.
            let mut admission = admission;
            if let Some(policies) = this.policies {
                let mut outcome = policies.classify.classify(result.as_ref());
                if !ready && !matches!(outcome, Outcome::Failure(_)) {
                    // A service that will never be ready has failed, whatever its error says; the classifier may say how.
                    outcome = Failure::transient().into();
                }
                if let Some(settled) = admission.record(outcome) {
                    if matches!(outcome, Outcome::Failure(_)) && policies.spare.has_next() {
                        if let Some((entry, ticket)) = settled.go_on() {
                            let name = settled.name_of(ticket);
                            if let Some((backup, req)) = policies.spare.next(entry, name) {
                                settled.tell_moved_on(ticket);
                                let admission = settled.admit(ticket);
                                this.state.set(State::Readying {
                                    backup,
                                    req: Some(req),
                                    admission,
                                });
                                continue;
                            }
                        }
                    }
                    if let Ok(response) = &mut result {
                        policies.served.served(response, settled.name());
                    }
                    settled.tell(outcome);
                }
            }
            return Poll::Ready(result.map_err(R::convert));
        }
    }
}

#[allow(clippy::panic)] // Documented, as everywhere in the futures of tower.
fn polled_again() -> ! {
    panic!("`ResponseFuture` polled after it was ready")
}

/// Runs code of the inner service. Should it unwind, the turn has failed, whoever catches the panic later.
pub(super) fn failing_if_unwound<T>(admission: &mut Admission, f: impl FnOnce() -> T) -> T {
    struct Unwound<'a>(&'a mut Admission);

    impl Drop for Unwound<'_> {
        fn drop(&mut self) {
            self.0.record(Failure::transient().into());
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
