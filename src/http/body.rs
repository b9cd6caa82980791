//! Verdicts at the end of a body.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::inspect::Inspect;
use crate::machinery::held_permit::HeldPermit;
use crate::machinery::judge::Judge;
use crate::machinery::unwind::on_unwind;
use crate::vocabulary::{Failure, Outcome};

/// Judges a call at the end of its response's body, for `judge` of any of the layers.
///
/// A head is not an answer: a model's stream fails after its `200 OK`. Where the classifier calls a head a success, the call's permit moves into the
/// body, and the verdict comes
///
/// - at the end of the stream: a success,
/// - with an error of the body: a transient failure,
/// - when the body is dropped before its end: as for any dropped call, by the layer's `on_cancel`. A body that gave its trailers, or told its
///   length and gave all of it, has ended in order, and so has one that says by then that it has. Readers of server-sent events may stop at the line `data: [DONE]` and drop the rest: [`ErrorEvents`](super::ErrorEvents) takes that
///   for the end,
/// - when the body says nothing any more: for a probe, when its lease is over; an ordinary call has no verdict until the body is dropped, so put a timeout for bodies inside.
///
/// Where the classifier calls a head a failure, or neutral, that is the verdict, and the body passes as it is.
///
/// On a server's side a body is also dropped when its reader leaves, and may be dropped unread when the request was a `HEAD`. That says nothing of the handler: set
/// [`Cancelled::Release`](crate::Cancelled::Release) there, so that such a probe gives its slot back.
///
/// Every frame starts the lease of a probe anew. It is the reader who sees a frame: a body that is left unread for longer than
/// the lease is lost as a probe.
///
/// The body is wrapped, and not boxed: frames, trailers and size hints pass through. A frame costs no allocation and no lock, and nothing
/// but a look whether there is a permit once the verdict is given; a probe's reads the clock.
///
/// # Examples
///
/// ```
/// use http::{Request, Response};
/// use http_body_util::{BodyExt, Full};
/// use hyper::body::Bytes;
/// use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_breaker::CircuitBreakerLayer;
/// use tower_breaker::http::EndOfBody;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let mut model = ServiceBuilder::new()
///     .layer(CircuitBreakerLayer::new().judge(EndOfBody))
///     .service(service_fn(|_: Request<()>| async {
///         Ok::<_, BoxError>(Response::new(Full::new(Bytes::from("an answer"))))
///     }));
///
/// let response = model.ready().await?.call(Request::new(())).await?;
/// let answer = response.into_body().collect().await?; // Here the verdict is given.
/// assert_eq!(answer.to_bytes(), "an answer");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct EndOfBody;

impl EndOfBody {
    /// The same, with somebody who looks at the frames as they pass, and may give the verdict before the end: for streams that carry an error
    /// inside a `200`, as [`ErrorEvents`](super::ErrorEvents) finds them, and for those whose status comes in trailers.
    ///
    /// `inspect` is a closure over `&Frame<D>`, or a type of [`Inspect`]; each response gets a clone of it.
    ///
    /// # Examples
    ///
    /// ```
    /// use http_body::Frame;
    /// use hyper::body::Bytes;
    /// use tower_breaker::http::EndOfBody;
    /// use tower_breaker::{CircuitBreakerLayer, Failure, Outcome};
    ///
    /// let layer = CircuitBreakerLayer::new().judge(EndOfBody.inspect(|frame: &Frame<Bytes>| {
    ///     let overloaded = frame.data_ref()?.starts_with(b"overloaded");
    ///     overloaded.then(|| Outcome::from(Failure::transient()))
    /// }));
    /// # let _ = layer;
    /// ```
    pub fn inspect<I>(self, inspect: I) -> InspectBody<I> {
        InspectBody { inspect }
    }
}

/// Judges a call at the end of its body, or where somebody who looks at its frames says so. Made by [`EndOfBody::inspect`].
#[derive(Clone, Copy)]
pub struct InspectBody<I> {
    inspect: I,
}

impl<I> fmt::Debug for InspectBody<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InspectBody")
    }
}

impl<B: Body> Judge<Response<B>> for EndOfBody {
    type Response = Response<ResponseBody<B>>;

    const AT_HEAD: bool = false;

    fn pass(&self, response: Response<B>) -> Self::Response {
        self.inspect(()).pass(response)
    }

    fn hold(&self, response: Response<B>, permit: HeldPermit) -> Self::Response {
        self.inspect(()).hold(response, permit)
    }
}

impl<B, I> Judge<Response<B>> for InspectBody<I>
where
    B: Body,
    I: Inspect<B::Data> + Clone,
{
    type Response = Response<ResponseBody<B, I>>;

    const AT_HEAD: bool = false;

    fn pass(&self, response: Response<B>) -> Self::Response {
        response.map(ResponseBody::judged)
    }

    fn hold(&self, response: Response<B>, permit: HeldPermit) -> Self::Response {
        let mut inspect = self.inspect.clone();
        inspect.head(response.status(), response.headers());
        response.map(|inner| ResponseBody::held(inner, permit, inspect))
    }
}

pin_project! {
    /// The body of a guarded response: the inner one, and the call's permit until the verdict is given. See [`EndOfBody`].
    ///
    /// Polled after its end or its error, it has ended.
    ///
    /// # Cancel safety
    ///
    /// A body that is dropped before its end is a cancelled call, on whatever thread that happens.
    pub struct ResponseBody<B, I = ()> {
        #[pin]
        inner: B,
        watch: Watch<B, I>,
        over: bool,
    }

    impl<B, I> PinnedDrop for ResponseBody<B, I> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.watch.leave(&*this.inner);
        }
    }
}

impl<B, I> ResponseBody<B, I> {
    /// A body whose verdict is given.
    fn judged(inner: B) -> Self {
        Self {
            inner,
            watch: Watch { held: None },
            over: false,
        }
    }

    /// The inner body.
    pub fn get_ref(&self) -> &B {
        &self.inner
    }

    /// The inner body, mutably.
    pub fn get_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B: Body, I: Inspect<B::Data>> ResponseBody<B, I> {
    /// A body whose verdict is yet to come.
    fn held(inner: B, permit: HeldPermit, inspect: I) -> Self {
        let held = Some(Held {
            permit,
            inspect,
            trailers: false,
            left: left::<B, I>,
        });
        let mut watch = Watch { held };
        watch.look_ahead(&inner);
        Self {
            inner,
            watch,
            over: false,
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
        if *this.over {
            return Poll::Ready(None);
        }
        let watch = this.watch;
        let frame = ready!(watch.failing_if_unwound(|| this.inner.as_mut().poll_frame(cx)));
        match &frame {
            Some(Ok(frame)) => {
                watch.see(frame);
                watch.look_ahead(&*this.inner);
            }
            Some(Err(_)) => {
                *this.over = true;
                watch.record(Failure::transient().into());
            }
            None => {
                *this.over = true;
                watch.end();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.over {
            SizeHint::with_exact(0)
        } else {
            self.inner.size_hint()
        }
    }
}

/// What a body has to do for its verdict; nothing, once that is given.
struct Watch<B, I> {
    held: Option<Held<B, I>>,
}

struct Held<B, I> {
    /// Dropped without a verdict, it gives the one of a cancelled call.
    permit: HeldPermit,
    inspect: I,
    /// The trailers have come.
    trailers: bool,
    /// [`left`], for a destructor, which knows no bounds.
    left: fn(&B, bool, &mut I) -> Option<Outcome>,
}

/// What a body says that nobody reads on; `None` if it has not ended.
fn left<B, I>(inner: &B, trailers: bool, inspect: &mut I) -> Option<Outcome>
where
    B: Body,
    I: Inspect<B::Data>,
{
    // It may have ended since its last frame: a reader who is told so need not ask for more. Nothing follows trailers, and hyper, for one, reads no further.
    if trailers || inner.is_end_stream() {
        return Some(inspect.end());
    }
    if inner.size_hint().exact() != Some(0) {
        return None;
    }
    // Trailers may follow. Where they have to, a reader who leaves them has gone away early.
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

    /// A frame came.
    #[inline]
    fn see<D>(&mut self, frame: &Frame<D>)
    where
        I: Inspect<D>,
    {
        let seen = self.inspect(|held| {
            held.permit.renew();
            held.trailers = frame.is_trailers();
            held.inspect.frame(frame)
        });
        if let Some(outcome) = seen {
            self.record(outcome);
        }
    }

    /// Whether there is more to come: a reader who knows that there is not may never ask for it.
    #[inline]
    fn look_ahead(&mut self, inner: &B)
    where
        B: Body,
        I: Inspect<B::Data>,
    {
        if self.held.is_some() && self.failing_if_unwound(|| inner.is_end_stream()) {
            self.end();
        }
    }

    /// Nobody reads on.
    fn leave(&mut self, inner: &B) {
        let Some(held) = &mut self.held else {
            return;
        };
        let left = || (held.left)(inner, held.trailers, &mut held.inspect);
        match catch_unwind(AssertUnwindSafe(left)) {
            Ok(Some(outcome)) => self.record(outcome),
            Ok(None) => {}
            // Nobody polls who could be told, and a panic in a destructor may be one too many: the call is a cancelled one. The payload's own destructor
            // might panic in its turn.
            Err(payload) => mem::forget(payload),
        }
    }

    /// Runs code of the inner body. Should it unwind, the call has failed, whoever catches the panic later.
    #[inline]
    fn failing_if_unwound<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let failed = |watch: &mut Self| watch.record(Failure::transient().into());
        on_unwind(self, failed, f)
    }

    /// Runs code of who inspects. Should it unwind, the call is a cancelled one now, and not when the body is dropped.
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

/// A body of a refusal's own, say, which nobody has to judge.
impl<B: From<String>, I> From<String> for ResponseBody<B, I> {
    fn from(text: String) -> Self {
        Self::judged(text.into())
    }
}

/// An empty body, which nobody has to judge.
impl<B: Default, I> Default for ResponseBody<B, I> {
    fn default() -> Self {
        Self::judged(B::default())
    }
}

impl<B: fmt::Debug, I> fmt::Debug for ResponseBody<B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody")
            .field("inner", &self.inner)
            .field("permit", &self.watch.held.as_ref().map(|held| &held.permit))
            .field("over", &self.over)
            .finish()
    }
}
