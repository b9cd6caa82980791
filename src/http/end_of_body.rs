//! The judge that waits for the end of a body.

use std::fmt;

use http::Response;
use http_body::Body;

use super::body::ResponseBody;
use super::inspect::Inspect;
use crate::machinery::held_permit::HeldPermit;
use crate::machinery::judge::Judge;

/// Judges a call at the end of its response's body. For the setter `judge` of each layer.
///
/// A head is not an answer: a model's stream can fail after its `200 OK`. If the classifier calls
/// a head a success, the call's permit moves into the body, and the verdict comes later:
///
/// | the body | verdict |
/// | --- | --- |
/// | ends | success |
/// | has an error | transient failure |
/// | is dropped before its end | that of a dropped call, by the layer's `on_cancel` |
/// | falls silent | none; a probe has failed when its lease is over |
///
/// - A body has also ended when it has given its trailers, when it has given all of the length
///   that it announced, and when it says so itself (`is_end_stream`).
/// - Readers of server-sent events may stop at the line `data: [DONE]` and drop the rest. The
///   inspector [`ErrorEvents`](super::ErrorEvents) takes that line for the end.
/// - An ordinary call whose body is silent has no verdict until the body is dropped. So put a
///   timeout for bodies inside.
///
/// If the classifier calls a head a failure, or neutral, that is the verdict, and the body passes
/// as it is.
///
/// A server drops a response's body when its reader leaves, and may drop it unread after a `HEAD`
/// request. That says nothing of the handler: set
/// [`Cancelled::Release`](crate::Cancelled::Release) there, and such a probe gives its slot back.
///
/// Every frame starts a probe's lease anew. The layer sees a frame when the reader polls it, so a
/// body that nobody reads for longer than the lease is lost as a probe.
///
/// The body is wrapped, not boxed. Frames, trailers and size hints pass through. A frame costs no
/// allocation and no lock. A probe's frame reads the clock.
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
    /// Adds an inspector, which looks at the frames as they pass and may give the verdict early.
    ///
    /// It is for streams that carry an error inside a `200`, which
    /// [`ErrorEvents`](super::ErrorEvents) finds, and for streams whose status comes in trailers.
    ///
    /// `inspect` is a closure over `&Frame<D>`, or a type of [`Inspect`]. Each response gets a
    /// clone.
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

/// Judges a call at the end of its body, or when an inspector says so. Made by
/// [`EndOfBody::inspect`].
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
