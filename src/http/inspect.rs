//! Who looks at a body as it passes.

use http::{HeaderMap, StatusCode};
use http_body::Frame;

use crate::vocabulary::Outcome;

/// Looks at a response's body as it passes, for [`EndOfBody::inspect`](super::EndOfBody::inspect): each response gets a clone.
///
/// Closures over `&Frame<D>` that answer with an `Option<Outcome>` inspect, too; annotate their argument. What one captures by value is each
/// response's own. It runs outside every lock, and only until the verdict is given. If it panics, the call counts as cancelled and the panic goes on to whoever polled the body.
///
/// A type of it has to be `Clone`.
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
    /// The head of the response, whose status was a success.
    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        let _ = (status, headers);
    }

    /// The next frame of the body, data or trailers. With an outcome the verdict is given now, and what follows is not looked at.
    fn frame(&mut self, frame: &Frame<D>) -> Option<Outcome>;

    /// The body has ended in order, and no frame gave a verdict. It is also asked when nobody reads on, and the trailers have come, or all the data that
    /// was announced; if it panics then, the panic goes nowhere.
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

/// Looks at nothing: a body that ends in order is a success.
impl<D> Inspect<D> for () {
    fn frame(&mut self, _: &Frame<D>) -> Option<Outcome> {
        None
    }
}
