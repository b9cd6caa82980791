//! The future of a guarded call.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::digest::Answers;
use super::permit::CallPermit;
use crate::machinery::judge::{Head, Judge};
use crate::machinery::unwind::on_unwind;
use crate::vocabulary::Refuse;
use crate::vocabulary::{Classify, Outcome};

pin_project! {
    /// Response future of [`Tripwire`](super::Tripwire).
    ///
    /// It carries the call's permit.
    ///
    /// # Cancel safety
    ///
    /// Dropped before its response is there, it is a cancelled call. Its turn stays spent. If it
    /// was the probe, the fence opens again.
    ///
    /// # Panics
    ///
    /// If it is polled again after it was ready with a refusal. After an inner response, it does
    /// what the inner future does.
    pub struct ResponseFuture<F, C, A, R, Req, T, J = Head> {
        #[pin]
        state: State<F, Policies<C, A, J>, T>,
        _refuse: PhantomData<fn(Req) -> R>,
    }
}

pin_project! {
    // Three variants take less room than an `Option` in two.
    #[project = StateProj]
    #[project_replace = StateOwned]
    enum State<F, P, T> {
        Called {
            #[pin]
            future: F,
            // Needed for its `Drop`: without a verdict, it is a cancelled call.
            permit: CallPermit,
            policies: P,
        },
        Refused {
            answer: T,
        },
        Answered,
    }
}

/// The parts of the layer that a call needs once its response is there.
pub(super) struct Policies<C, A, J> {
    pub(super) classify: C,
    pub(super) answers: A,
    pub(super) judge: J,
}

impl<F, C, A, R, Req, T, J> ResponseFuture<F, C, A, R, Req, T, J> {
    #[inline]
    pub(super) fn called(future: F, permit: CallPermit, policies: Policies<C, A, J>) -> Self {
        Self::of(State::Called {
            future,
            permit,
            policies,
        })
    }

    pub(super) fn refused(answer: T) -> Self {
        Self::of(State::Refused { answer })
    }

    fn of(state: State<F, Policies<C, A, J>, T>) -> Self {
        Self {
            state,
            _refuse: PhantomData,
        }
    }
}

// `Answers` and `Judge` are private: users choose among those of this crate.
#[allow(private_bounds)]
impl<F, C, A, R, Req, Res, E, Out, Err, J> Future
    for ResponseFuture<F, C, A, R, Req, Result<Out, Err>, J>
where
    F: Future<Output = Result<Res, E>>,
    C: Classify<Res, E>,
    A: Answers<Res>,
    R: Refuse<Req, Res, E, Error = Err>,
    J: Judge<Res, Response = Out>,
{
    type Output = Result<Out, Err>;

    // A program polls it in one place. If it were not inlined, the call and its moves would cost a
    // fifth of the whole.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        match state.as_mut().project() {
            StateProj::Called {
                future,
                permit,
                policies,
            } => {
                let Policies {
                    classify,
                    answers,
                    judge,
                } = policies;
                let result = ready!(on_unwind(permit, CallPermit::fail, || future.poll(cx)));
                if permit.is_guarded() {
                    // If the classifier panics, the call is cancelled now, not when the future is
                    // dropped.
                    let (outcome, answer) = on_unwind(permit, CallPermit::cancel, || {
                        let outcome = classify.classify(result.as_ref());
                        // Only answers of successful calls are compared: a failure is never
                        // progress.
                        let answer = match (outcome, &result) {
                            (Outcome::Success, Ok(answer)) => answers.digest_of(answer),
                            _ => None,
                        };
                        (outcome, answer)
                    });
                    #[cfg(feature = "http")]
                    if !J::AT_HEAD && outcome == Outcome::Success {
                        if let Ok(response) = result {
                            let permit = permit.hand_over(answer);
                            return Poll::Ready(Ok(judge.hold(response, permit)));
                        }
                    }
                    permit.record(outcome, answer);
                }
                let result = result.map(|response| judge.pass(response));
                Poll::Ready(result.map_err(R::convert))
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

impl<F: fmt::Debug, C, A, R, Req, T, J> fmt::Debug for ResponseFuture<F, C, A, R, Req, T, J> {
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

    use tokio_test::{assert_ready_err, assert_ready_ok, task};
    use tower_layer::Layer;
    use tower_service::Service;

    use super::*;
    use crate::{Refusal, State, TripwireLayer};

    struct Down;

    impl Service<u8> for Down {
        type Response = ();
        type Error = u8;
        type Future = Ready<Result<(), u8>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), u8>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: u8) -> Self::Future {
            ready(Err(7))
        }
    }

    #[derive(Clone)]
    struct Panics;

    impl Refuse<u8, (), u8> for Panics {
        type Error = Infallible;

        fn refuse(&self, _: u8, _: Refusal) -> Result<(), Infallible> {
            Ok(())
        }

        fn convert(_: u8) -> Infallible {
            panic!("convert")
        }
    }

    #[test]
    fn an_error_counts_though_its_conversion_panics() {
        let layer = TripwireLayer::new().refuse(Panics);
        let handle = layer.handle();
        let mut service = layer.layer(Down);
        // The first call uses the layer's reference count, the others the service's own.
        for errors in 1..=3 {
            assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
            let mut call = task::spawn(service.call(errors));
            assert!(catch_unwind(AssertUnwindSafe(|| call.poll())).is_err());
            assert_eq!(handle.snapshot().errors, u32::from(errors));
        }
        assert_eq!(handle.snapshot().state, State::Open);
    }

    #[test]
    fn a_probe_whose_classifier_panics_is_lost_at_once() {
        let layer = TripwireLayer::new()
            .identical_limit(2)
            .open_cooldown_rejects(1)
            .classify(|_: Result<&(), &u8>| -> Outcome { panic!("classify") })
            .refuse_with(|_: u8, _| Ok::<_, u8>(()));
        let handle = layer.handle();
        let mut service = layer.layer(Down);
        let mut call = |req| {
            assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
            task::spawn(service.call(req))
        };
        assert!(catch_unwind(AssertUnwindSafe(|| call(0).poll())).is_err());
        // The first one trips the fence, the second one arms the probe.
        for _ in 0..2 {
            assert_ready_ok!(call(0).poll());
        }
        let mut probe = call(1);
        assert!(handle.snapshot().probing);
        assert!(catch_unwind(AssertUnwindSafe(|| probe.poll())).is_err());
        assert_eq!(handle.snapshot().state, State::Open);
        drop(probe);
    }

    #[test]
    fn a_future_shows_its_permit_and_whether_it_is_the_probe() {
        let layer = TripwireLayer::new()
            .error_limit(1)
            .open_cooldown_rejects(1)
            .refuse_with(|_: u8, _| Ok::<_, u8>(()));
        let mut service = layer.layer(Down);
        let mut call = |req| {
            assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
            service.call(req)
        };
        let mut ordinary = task::spawn(call(0));
        let permit = "permit: Permit { guarded: true, generation: 0, probe: false }";
        assert!(format!("{ordinary:?}").contains(permit), "{ordinary:?}");
        assert_ready_err!(ordinary.poll());
        // The fence has tripped. This call arms the probe.
        assert_ready_ok!(task::spawn(call(1)).poll());
        let probe = call(2);
        let permit = "permit: Permit { guarded: true, generation: 2, probe: true }";
        assert!(format!("{probe:?}").contains(permit), "{probe:?}");
    }
}
