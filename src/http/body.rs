//! The body of a guarded response.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::inspect::Inspect;
use crate::machinery::held_permit::HeldPermit;
use crate::machinery::unwind::on_unwind;
use crate::vocabulary::{Failure, Outcome};

pin_project! {
    /// The body of a guarded response: the inner body, and the call's permit until the verdict.
    ///
    /// See [`EndOfBody`](super::EndOfBody). Polled again after its end or its error, it has ended.
    ///
    /// # Cancel safety
    ///
    /// A body that is dropped before its end is a cancelled call, on whatever thread that happens.
    pub struct ResponseBody<B, I = ()> {
        // `None` once `into_inner` has taken it. A type with a destructor gives out no field, so
        // the body has to be taken out of an `Option`.
        #[pin]
        inner: Option<B>,
        watch: Watch<B, I>,
    }

    impl<B, I> PinnedDrop for ResponseBody<B, I> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(inner) = &*this.inner {
                this.watch.leave(inner);
            }
        }
    }
}

impl<B, I> ResponseBody<B, I> {
    /// A body whose call has its verdict.
    pub(super) fn judged(inner: B) -> Self {
        Self {
            inner: Some(inner),
            watch: Watch {
                held: None,
                trailers: false,
                over: false,
            },
        }
    }

    /// The inner body.
    ///
    /// # Panics
    ///
    /// Never: only [`into_inner`](Self::into_inner) takes the inner body out, and it consumes
    /// `self`.
    #[allow(clippy::expect_used)]
    pub fn get_ref(&self) -> &B {
        self.inner.as_ref().expect("only `into_inner` takes it")
    }

    /// The inner body, mutably.
    ///
    /// # Panics
    ///
    /// Never: only [`into_inner`](Self::into_inner) takes the inner body out, and it consumes
    /// `self`.
    #[allow(clippy::expect_used)]
    pub fn get_mut(&mut self) -> &mut B {
        self.inner.as_mut().expect("only `into_inner` takes it")
    }

    /// Takes the inner body out.
    ///
    /// The layer no longer sees its frames. So a call without a verdict is judged now, as if the
    /// body were dropped: as a success if the body has ended, else as a cancelled call.
    ///
    /// # Panics
    ///
    /// Never: the inner body is there until this method takes it.
    #[allow(clippy::expect_used)]
    pub fn into_inner(mut self) -> B {
        let inner = self.inner.take().expect("nobody else takes it");
        self.watch.leave(&inner);
        inner
    }
}

impl<B: Body, I: Inspect<B::Data>> ResponseBody<B, I> {
    /// A body whose call waits for its verdict.
    pub(super) fn held(inner: B, permit: HeldPermit, inspect: I) -> Self {
        let held = Some(Held {
            permit,
            inspect,
            verdict_if_dropped: verdict_if_dropped::<B, I>,
        });
        let mut watch = Watch {
            held,
            trailers: false,
            over: false,
        };
        watch.look_ahead(&inner);
        Self {
            inner: Some(inner),
            watch,
        }
    }
}

impl<B, I> Body for ResponseBody<B, I>
where
    B: Body,
    I: Inspect<B::Data>,
{
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        if this.watch.over {
            return Poll::Ready(None);
        }
        let Some(mut inner) = this.inner.as_mut().as_pin_mut() else {
            // Only `into_inner` takes it.
            return Poll::Ready(None);
        };
        let watch = this.watch;
        let frame = ready!(watch.fail_on_unwind(|| inner.as_mut().poll_frame(cx)));
        match &frame {
            Some(Ok(frame)) => {
                watch.see(frame);
                watch.look_ahead(&*inner);
            }
            Some(Err(_)) => {
                watch.over = true;
                watch.record(Failure::transient().into());
            }
            None => {
                watch.over = true;
                watch.end();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.watch.over || self.get_ref().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.watch.over {
            SizeHint::with_exact(0)
        } else {
            self.get_ref().size_hint()
        }
    }
}

/// Watches a body until the call has its verdict.
struct Watch<B, I> {
    held: Option<Held<B, I>>,
    /// Whether the trailers have come.
    trailers: bool,
    /// Whether the body has ended or failed.
    over: bool,
}

struct Held<B, I> {
    /// Needed for its `Drop`: without a verdict, it is a cancelled call.
    permit: HeldPermit,
    inspect: I,
    /// [`verdict_if_dropped`], for the destructor, which has no bounds.
    verdict_if_dropped: fn(&B, bool, &mut I) -> Option<Outcome>,
}

/// The verdict of a body that is dropped; `None` if its answer was not whole.
fn verdict_if_dropped<B, I>(inner: &B, trailers: bool, inspect: &mut I) -> Option<Outcome>
where
    B: Body,
    I: Inspect<B::Data>,
{
    // The body may have ended since its last frame. A reader that asks `is_end_stream` polls no
    // further. Nothing follows the trailers, and hyper, for one, stops reading there.
    if trailers || inner.is_end_stream() {
        return Some(inspect.end());
    }
    if inner.size_hint().exact() != Some(0) {
        return inspect.dropped();
    }
    // All the data has come, but trailers may follow. If the inspector needs them, and so calls
    // the end a failure, the reader has left too early.
    Some(inspect.end()).filter(|outcome| !matches!(outcome, Outcome::Failure(_)))
}

impl<B, I> Watch<B, I> {
    /// Gives the verdict, once.
    fn record(&mut self, outcome: Outcome) {
        if let Some(mut held) = self.held.take() {
            held.permit.record(outcome);
        }
    }

    /// The body has ended in order.
    fn end<D>(&mut self)
    where
        I: Inspect<D>,
    {
        if let Some(outcome) = self.inspect(|held| Some(held.inspect.end())) {
            self.record(outcome);
        }
    }

    /// Looks at a frame.
    #[inline]
    fn see<D>(&mut self, frame: &Frame<D>)
    where
        I: Inspect<D>,
    {
        self.trailers = frame.is_trailers();
        let seen = self.inspect(|held| {
            held.permit.renew();
            held.inspect.frame(frame)
        });
        if let Some(outcome) = seen {
            self.record(outcome);
        }
    }

    /// Gives the verdict if the body has ended. A reader that knows so may never poll again.
    #[inline]
    fn look_ahead(&mut self, inner: &B)
    where
        B: Body,
        I: Inspect<B::Data>,
    {
        if self.held.is_some() && self.fail_on_unwind(|| inner.is_end_stream()) {
            self.end();
        }
    }

    /// Gives the verdict of a body that nobody reads any further.
    fn leave(&mut self, inner: &B) {
        let Some(held) = &mut self.held else {
            return;
        };
        let trailers = self.trailers;
        let verdict = || (held.verdict_if_dropped)(inner, trailers, &mut held.inspect);
        match catch_unwind(AssertUnwindSafe(verdict)) {
            Ok(Some(outcome)) => self.record(outcome),
            // The permit's own destructor cancels the call.
            Ok(None) => self.held = None,
            // A panic in a destructor may abort the process, so it ends here and the call is
            // cancelled. The payload's destructor might panic as well.
            Err(payload) => {
                mem::forget(payload);
                self.held = None;
            }
        }
    }

    /// Runs code of the inner body. If it unwinds, the call has failed.
    #[inline]
    fn fail_on_unwind<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let failed = |watch: &mut Self| watch.record(Failure::transient().into());
        on_unwind(self, failed, f)
    }

    /// Runs code of the inspector. If it unwinds, the call is cancelled now, not when the body is
    /// dropped.
    #[inline]
    fn inspect(&mut self, f: impl FnOnce(&mut Held<B, I>) -> Option<Outcome>) -> Option<Outcome> {
        struct Unwound<'a, B, I>(&'a mut Option<Held<B, I>>);

        impl<B, I> Drop for Unwound<'_, B, I> {
            fn drop(&mut self) {
                *self.0 = None;
            }
        }

        let unwound = Unwound(&mut self.held);
        let outcome = unwound.0.as_mut().and_then(f);
        mem::forget(unwound);
        outcome
    }
}

/// Makes a body without a permit, for instance that of a refusal.
impl<B: From<String>, I> From<String> for ResponseBody<B, I> {
    fn from(text: String) -> Self {
        Self::judged(text.into())
    }
}

/// Makes an empty body without a permit.
impl<B: Default, I> Default for ResponseBody<B, I> {
    fn default() -> Self {
        Self::judged(B::default())
    }
}

impl<B: fmt::Debug, I> fmt::Debug for ResponseBody<B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody")
            .field("inner", self.get_ref())
            .field("permit", &self.watch.held.as_ref().map(|held| &held.permit))
            .field("over", &self.watch.over)
            .finish()
    }
}
