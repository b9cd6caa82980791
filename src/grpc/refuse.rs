//! Refusals as statuses that a gRPC client can read.

use std::fmt::Write as _;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};

use super::code::Code;
use super::codes::STATUS;
use super::hints::PUSHBACK;
use crate::vocabulary::{Refusal, Refuse};

/// Answers a refused call with `UNAVAILABLE`, and the refusal's text as the message.
///
/// It is a refusal policy, for a layer's `refuse`. The service's error type stays as it is.
///
/// The answer is trailers-only, with an empty body, which any gRPC client reads as a status. If
/// the refusal knows how long to wait, `grpc-retry-pushback-ms` says it, rounded up. A client of
/// `tonic` finds it in the status's metadata.
///
/// Like every soft refusal, it belongs outermost. A layer outside with [`Codes`](super::Codes)
/// takes the answer for a failure of the guarded thing itself, and a layer without takes it for a
/// success. In a stack, let the layers refuse with errors, and make the
/// [`response`](Self::response) of any refusal in one outermost `then`.
///
/// # Examples
///
/// A layer that stands alone:
///
/// ```
/// use tower_breaker::CircuitBreakerLayer;
/// use tower_breaker::grpc::{Codes, SoftRefusal};
///
/// let layer = CircuitBreakerLayer::new().classify(Codes::new()).refuse(SoftRefusal);
/// # let _ = layer;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftRefusal;

impl SoftRefusal {
    /// Makes the response that reports a refusal.
    ///
    /// # Examples
    ///
    /// For the refusals of all layers inside:
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{BoxError, ServiceBuilder, service_fn};
    /// use tower_breaker::grpc::{Codes, SoftRefusal};
    /// use tower_breaker::{CircuitBreakerLayer, Refusal, TripwireLayer};
    ///
    /// let channel = ServiceBuilder::new()
    ///     .then(|result: Result<Response<String>, BoxError>| async move {
    ///         match result {
    ///             Err(err) => match Refusal::find(&*err) {
    ///                 Some(refusal) => Ok(SoftRefusal.response(refusal)),
    ///                 None => Err(err),
    ///             },
    ///             answer => answer,
    ///         }
    ///     })
    ///     .layer(TripwireLayer::new().classify(Codes::new()).digest(|_: &Request<String>| None))
    ///     .layer(CircuitBreakerLayer::new().classify(Codes::new()))
    ///     .service(service_fn(|_: Request<String>| async {
    ///         Ok::<_, BoxError>(Response::new(String::new()))
    ///     }));
    /// # let _ = tower::ServiceExt::oneshot(channel, Request::new(String::new()));
    /// ```
    #[must_use]
    pub fn response<B: Default>(&self, refusal: &Refusal) -> Response<B> {
        let mut response = Response::new(B::default());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(STATUS, HeaderValue::from(Code::Unavailable.number()));
        // This never fails: the encoded text is plain ASCII.
        if let Ok(message) = HeaderValue::try_from(encoded(&refusal.to_string())) {
            headers.insert("grpc-message", message);
        }
        if let Some(wait) = refusal.retry_after() {
            headers.insert(PUSHBACK, HeaderValue::from(millis(wait)));
        }
        response
    }
}

impl<Req, B: Default, E> Refuse<Req, Response<B>, E> for SoftRefusal {
    type Error = E;

    fn refuse(&self, _: Req, refusal: Refusal) -> Result<Response<B>, E> {
        Ok(self.response(&refusal))
    }

    fn convert(err: E) -> E {
        err
    }
}

/// Encodes a text for the `grpc-message` field: all but printable ASCII is percent-encoded.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, 0x20..=0x7e) && byte != b'%' {
            encoded.push(byte.into());
        } else {
            // Writing to a `String` never fails.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Returns a wait in milliseconds, rounded up: a caller who comes too early is refused again.
///
/// Clients read a number of 32 bits, and take a number that they cannot read for "never". A longer
/// wait is therefore cut to the largest such number.
fn millis(wait: Duration) -> i32 {
    let rounded = wait.as_nanos().div_ceil(1_000_000);
    i32::try_from(rounded).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Reason;

    #[test]
    fn a_message_is_percent_encoded_as_the_specification_asks() {
        assert_eq!(encoded(""), "");
        assert_eq!(encoded("tool `a` ~ \"b\" #?{}"), "tool `a` ~ \"b\" #?{}");
        assert_eq!(encoded("100 % sure"), "100 %25 sure");
        assert_eq!(encoded("a\n\t\0\u{7f}"), "a%0A%09%00%7F");
        assert_eq!(encoded("é…🦀"), "%C3%A9%E2%80%A6%F0%9F%A6%80");
    }

    #[test]
    fn a_wait_is_rounded_up_and_fits_into_32_bits() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(20)), 20);
        assert_eq!(millis(Duration::from_nanos(20_000_001)), 21);
        assert_eq!(millis(Duration::from_millis(0x7fff_ffff)), i32::MAX);
        assert_eq!(millis(Duration::from_millis(0x8000_0000)), i32::MAX);
        assert_eq!(millis(Duration::MAX), i32::MAX);
    }

    #[test]
    fn a_pushback_is_sent_only_if_a_time_is_known() {
        let told = |refusal: Refusal| {
            let response: Response<()> = SoftRefusal.response(&refusal);
            response
                .headers()
                .get(PUSHBACK)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let open = Refusal::breaker(Reason::CircuitOpen);
        assert_eq!(told(open.clone()), None);
        let wait = |nanos| Some(Duration::from_nanos(nanos));
        assert_eq!(told(open.clone().with_retry_after(wait(0))).unwrap(), "0");
        assert_eq!(told(open.with_retry_after(wait(1_000_001))).unwrap(), "2");
    }
}
