//! The future of a guarded call.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::permit::CallPermit;
use crate::machinery::judge::{Head, Judge};
use crate::machinery::unwind::on_unwind;
use crate::vocabulary::Classify;
use crate::vocabulary::Refuse;

pin_project! {
    /// Response future of [`CircuitBreaker`](super::CircuitBreaker).
    ///
    /// It carries the call's permit.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before its response is there, the call is cancelled, and
    /// [`on_cancel`](super::CircuitBreakerLayer::on_cancel) decides the outcome. The probe's slot
    /// is not lost. The drop does not undo the work that the inner service has already done.
    ///
    /// # Panics
    ///
    /// If it is polled again after it was ready with a refusal. After an inner response, it does
    /// what the inner future does.
    pub struct ResponseFuture<F, C, R, Req, T, J = Head> {
        #[pin]
        state: State<F, C, J, T>,
        _refuse: PhantomData<fn(Req) -> R>,
    }
}

pin_project! {
    // Three variants take less room than an `Option` in two. The future is never larger than the
    // larger of the inner one plus 24 bytes, and of the answer plus 8.
    #[project = StateProj]
    #[project_replace = StateOwned]
    enum State<F, C, J, T> {
        Called {
            #[pin]
            future: F,
            // Needed for its `Drop`: without a verdict, it is a cancelled call.
            permit: CallPermit,
            classify: C,
            judge: J,
        },
        Refused {
            answer: T,
        },
        Answered,
    }
}

impl<F, C, R, Req, T, J> ResponseFuture<F, C, R, Req, T, J> {
    #[inline]
    pub(super) fn called(future: F, permit: CallPermit, classify: C, judge: J) -> Self {
        Self::of(State::Called {
            future,
            permit,
            classify,
            judge,
        })
    }

    pub(super) fn refused(answer: T) -> Self {
        Self::of(State::Refused { answer })
    }

    fn of(state: State<F, C, J, T>) -> Self {
        Self {
            state,
            _refuse: PhantomData,
        }
    }
}

// `Judge` is private: users choose among the judges of this crate.
#[allow(private_bounds)]
impl<F, C, R, Req, Res, E, Out, Err, J> Future for ResponseFuture<F, C, R, Req, Result<Out, Err>, J>
where
    F: Future<Output = Result<Res, E>>,
    C: Classify<Res, E>,
    R: Refuse<Req, Res, E, Error = Err>,
    J: Judge<Res, Response = Out>,
{
    type Output = Result<Out, Err>;

    // A program polls it in one place. A call that is not inlined would cost a third of the whole.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        match state.as_mut().project() {
            StateProj::Called {
                future,
                permit,
                classify,
                judge,
            } => {
                let result = ready!(on_unwind(permit, CallPermit::fail, || future.poll(cx)));
                if !permit.is_guarded() {
                    let result = result.map(|response| judge.pass(response));
                    return Poll::Ready(result.map_err(R::convert));
                }
                let outcome = on_unwind(permit, CallPermit::cancel, || {
                    classify.classify(result.as_ref())
                });
                #[cfg(feature = "http")]
                if !J::AT_HEAD && outcome == crate::vocabulary::Outcome::Success {
                    if let Ok(response) = result {
                        return Poll::Ready(Ok(judge.hold(response, permit.hand_over())));
                    }
                }
                // The error is converted before the verdict is given. The code for errors then
                // stands in one place.
                let result = on_unwind(
                    permit,
                    |permit| permit.record_unwinding(outcome),
                    || result.map_err(R::convert),
                );
                permit.record(outcome);
                Poll::Ready(result.map(|response| judge.pass(response)))
            }
            StateProj::Refused { .. } | StateProj::Answered => {
                match state.project_replace(State::Answered) {
                    StateOwned::Refused { answer } => Poll::Ready(answer),
                    // Documented, as in the futures of tower.
                    #[allow(clippy::panic)]
                    _ => panic!("`ResponseFuture` polled after it was ready"),
                }
            }
        }
    }
}

impl<F: fmt::Debug, C, R, Req, T, J> fmt::Debug for ResponseFuture<F, C, R, Req, T, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ResponseFuture");
        match &self.state {
            State::Called { future, permit, .. } => {
                debug.field("future", future).field("permit", permit)
            }
            State::Refused { .. } | State::Answered => debug.field("refused", &true),
        };
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tokio_test::{assert_ready_ok, task};
    use tower_layer::Layer;
    use tower_service::Service;

    use super::*;
    use crate::{CircuitBreakerLayer, Refusal};

    struct Down;

    impl Service<()> for Down {
        type Response = ();
        type Error = u8;
        type Future = Ready<Result<(), u8>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), u8>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            ready(Err(7))
        }
    }

    #[derive(Clone)]
    struct Panics;

    impl Refuse<(), (), u8> for Panics {
        type Error = Infallible;

        fn refuse(&self, (): (), _: Refusal) -> Result<(), Infallible> {
            Ok(())
        }

        fn convert(_: u8) -> Infallible {
            panic!("convert")
        }
    }

    #[test]
    fn an_error_counts_though_its_conversion_panics() {
        let layer = CircuitBreakerLayer::new().refuse(Panics);
        let handle = layer.handle();
        let mut service = layer.layer(Down);
        // The first call uses the layer's reference count, the others the service's own.
        for failures in 1..=3 {
            assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
            let mut call = task::spawn(service.call(()));
            assert!(catch_unwind(AssertUnwindSafe(|| call.poll())).is_err());
            assert_eq!(handle.snapshot().streak, failures);
        }
        assert_eq!(handle.state(), crate::State::Open);
    }
}
