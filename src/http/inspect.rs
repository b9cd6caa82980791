//! The trait of whatever looks at a body as it passes.

use http::{HeaderMap, StatusCode};
use http_body::Frame;

use crate::vocabulary::Outcome;

/// Looks at a response's body as it passes, for [`EndOfBody::inspect`](super::EndOfBody::inspect).
///
/// Each response gets a clone of the inspector, so the type has to be `Clone`. A closure over
/// `&Frame<D>` that returns an `Option<Outcome>` is an inspector, too. Annotate its argument. What
/// it captures by value belongs to one response.
///
/// An inspector runs outside every lock, and only until the verdict.
///
/// # Panics
///
/// If an inspector panics, the call counts as cancelled, and the panic goes on to the caller that
/// polled the body.
///
/// # Examples
///
/// ```
/// use http_body::Frame;
/// use tower_breaker::http::{EndOfBody, Inspect};
/// use tower_breaker::{CircuitBreakerLayer, Failure, Outcome};
///
/// #[derive(Clone)]
/// struct Overloaded;
///
/// impl<D: AsRef<[u8]>> Inspect<D> for Overloaded {
///     fn frame(&mut self, frame: &Frame<D>) -> Option<Outcome> {
///         let overloaded = frame.data_ref()?.as_ref().starts_with(b"overloaded");
///         overloaded.then(|| Failure::transient().into())
///     }
/// }
///
/// let layer = CircuitBreakerLayer::new().judge(EndOfBody.inspect(Overloaded));
/// # let _ = layer;
/// ```
pub trait Inspect<D> {
    /// Looks at the head of the response, which the layer's classifier called a success.
    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        let _ = (status, headers);
    }

    /// Looks at the next frame of the body, data or trailers.
    ///
    /// An outcome is the verdict. The inspector sees no frame after it.
    fn frame(&mut self, frame: &Frame<D>) -> Option<Outcome>;

    /// Gives the verdict of a body that ended in order, and whose frames gave none.
    ///
    /// A body that its reader drops has also ended in order, if its trailers have come, or all the
    /// data that it announced. A panic at that point goes no further.
    fn end(&mut self) -> Outcome {
        Outcome::Success
    }

    /// The body is dropped before its end, and no frame gave a verdict.
    ///
    /// With an outcome that is the verdict, as of an answer that was whole all the same. Without one,
    /// which is the default, the call counts as dropped. If it panics, the panic goes nowhere.
    fn dropped(&mut self) -> Option<Outcome> {
        None
    }
}

impl<F, D> Inspect<D> for F
where
    F: FnMut(&Frame<D>) -> Option<Outcome>,
{
    fn frame(&mut self, frame: &Frame<D>) -> Option<Outcome> {
        self(frame)
    }
}

/// Looks at nothing. A body that ends in order is a success.
impl<D> Inspect<D> for () {
    fn frame(&mut self, _: &Frame<D>) -> Option<Outcome> {
        None
    }
}
