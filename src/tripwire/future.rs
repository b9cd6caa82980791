//! The future of a guarded call.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::digest::Answers;
use super::permit::Admission;
use crate::outcome::{Classify, Failure, Outcome};
use crate::refusal::Refuse;

pin_project! {
    /// Response future of [`Tripwire`](super::Tripwire).
    ///
    /// It carries the call's permit. Dropped before the answer is there, it is a cancelled call: its turn stays spent, and a probe's fence opens
    /// again.
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready with a refusal; other futures of ours do as the inner one does.
    pub struct ResponseFuture<F, C, A, R, Req, T> {
        #[pin]
        state: State<F, C, A, T>,
        _refuse: PhantomData<fn(Req) -> R>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, C, A, T> {
        Called {
            #[pin]
            future: F,
            // Dropped without a verdict, it gives the one of a cancelled call.
            admission: Admission,
            classify: C,
            answers: A,
        },
        Refused {
            answer: Option<T>,
        },
    }
}

impl<F, C, A, R, Req, T> ResponseFuture<F, C, A, R, Req, T> {
    pub(super) fn called(future: F, admission: Admission, classify: C, answers: A) -> Self {
        Self::of(State::Called {
            future,
            admission,
            classify,
            answers,
        })
    }

    pub(super) fn refused(answer: T) -> Self {
        let answer = Some(answer);
        Self::of(State::Refused { answer })
    }

    fn of(state: State<F, C, A, T>) -> Self {
        Self {
            state,
            _refuse: PhantomData,
        }
    }
}

#[allow(private_bounds)] // How answers are compared is ours.
impl<F, C, A, R, Req, Res, E, Err> Future for ResponseFuture<F, C, A, R, Req, Result<Res, Err>>
where
    F: Future<Output = Result<Res, E>>,
    C: Classify<Res, E>,
    A: Answers<Res>,
    R: Refuse<Req, Res, E, Error = Err>,
{
    type Output = Result<Res, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called {
                future,
                admission,
                classify,
                answers,
            } => {
                let result = ready!(failing_if_unwound(admission, || future.poll(cx)));
                // Taken out first: if the classifier panics, the call is a cancelled one now, and not when the future is dropped.
                let mut admission = mem::replace(admission, Admission::none());
                if admission.is_guarded() {
                    let outcome = classify.classify(result.as_ref());
                    // A failure is never progress, so what it answered does not matter.
                    let answer = match (outcome, &result) {
                        (Outcome::Success, Ok(answer)) => answers.digest_of(answer),
                        _ => None,
                    };
                    admission.record(outcome, answer);
                }
                Poll::Ready(result.map_err(R::convert))
            }
            StateProj::Refused { answer } => match answer.take() {
                Some(answer) => Poll::Ready(answer),
                #[allow(clippy::panic)] // Documented, as everywhere in the futures of tower.
                None => panic!("`ResponseFuture` polled after it was ready"),
            },
        }
    }
}

/// Runs code of the inner service. Should it unwind, the call has failed, whoever catches the panic later.
pub(super) fn failing_if_unwound<T>(admission: &mut Admission, f: impl FnOnce() -> T) -> T {
    struct Unwound<'a>(&'a mut Admission);

    impl Drop for Unwound<'_> {
        fn drop(&mut self) {
            self.0.record(Failure::transient().into(), None);
        }
    }

    let unwound = Unwound(admission);
    let value = f();
    mem::forget(unwound);
    value
}

impl<F: fmt::Debug, C, A, R, Req, T> fmt::Debug for ResponseFuture<F, C, A, R, Req, T> {
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
