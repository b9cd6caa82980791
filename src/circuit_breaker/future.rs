//! The future of a guarded call.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::permit::Admission;
use crate::outcome::Classify;
use crate::refusal::Refuse;

pin_project! {
    /// Response future of [`CircuitBreaker`](super::CircuitBreaker).
    ///
    /// It carries the call's permit. Dropped before the answer is there, it is a cancelled call.
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready with a refusal; other futures of ours do as the inner one does.
    pub struct ResponseFuture<F, C, R, Req, T> {
        #[pin]
        state: State<F, C, T>,
        _refuse: PhantomData<fn(Req) -> R>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, C, T> {
        Called {
            #[pin]
            future: F,
            // Dropped without a verdict, it gives the one of a cancelled call.
            admission: Admission,
            classify: C,
        },
        Refused {
            answer: Option<T>,
        },
    }
}

impl<F, C, R, Req, T> ResponseFuture<F, C, R, Req, T> {
    #[inline]
    pub(super) fn called(future: F, admission: Admission, classify: C) -> Self {
        Self::of(State::Called {
            future,
            admission,
            classify,
        })
    }

    pub(super) fn refused(answer: T) -> Self {
        let answer = Some(answer);
        Self::of(State::Refused { answer })
    }

    fn of(state: State<F, C, T>) -> Self {
        Self {
            state,
            _refuse: PhantomData,
        }
    }
}

impl<F, C, R, Req, Res, E, Err> Future for ResponseFuture<F, C, R, Req, Result<Res, Err>>
where
    F: Future<Output = Result<Res, E>>,
    C: Classify<Res, E>,
    R: Refuse<Req, Res, E, Error = Err>,
{
    type Output = Result<Res, Err>;

    #[allow(clippy::inline_always)] // It is polled in one place of a program; the call would cost a third of the whole.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called {
                future,
                admission,
                classify,
            } => {
                let result = ready!(failing_if_unwound(admission, || future.poll(cx)));
                if admission.is_guarded() {
                    let outcome =
                        cancelled_if_unwound(admission, || classify.classify(result.as_ref()));
                    admission.record(outcome);
                }
                Poll::Ready(result.map_err(R::convert))
            }
            StateProj::Refused { answer } => Poll::Ready(take_refused(answer)),
        }
    }
}

#[cold]
fn take_refused<T>(answer: &mut Option<T>) -> T {
    match answer.take() {
        Some(answer) => answer,
        #[allow(clippy::panic)] // Documented, as everywhere in the futures of tower.
        None => panic!("`ResponseFuture` polled after it was ready"),
    }
}

/// Runs code of the inner service. Should it unwind, the call has failed, whoever catches the panic later.
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

/// Runs a classifier. Should it unwind, the call is a cancelled one now, and not when the future is dropped.
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

impl<F: fmt::Debug, C, R, Req, T> fmt::Debug for ResponseFuture<F, C, R, Req, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ResponseFuture");
        match &self.state {
            State::Called {
                future, admission, ..
            } => debug.field("future", future).field("permit", admission),
            State::Refused { .. } => debug.field("refused", &true),
        };
        debug.finish_non_exhaustive()
    }
}
