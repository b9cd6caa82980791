//! Judges calls by their gRPC status.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};
use http_body::Frame;

use super::code::Code;
use super::hints;
use crate::http::Inspect;
use crate::vocabulary::{Classify, ErrorsAsFailures, Failure, Outcome, RefusalsAsFailures};

pub(super) const STATUS: &str = "grpc-status";

/// Judges gRPC responses by their status: a classifier of heads, and an inspector of bodies, whose
/// trailers carry the status.
///
/// | code | [`new`](Self::new) | [`models`](Self::models) |
/// | --- | --- | --- |
/// | `OK` | success | success |
/// | `UNAVAILABLE`, `INTERNAL`, `UNKNOWN`, `DATA_LOSS`, `DEADLINE_EXCEEDED` | transient failure | transient failure |
/// | `RESOURCE_EXHAUSTED` | rate limited | rate limited |
/// | `UNAUTHENTICATED`, `PERMISSION_DENIED`, `NOT_FOUND`, `UNIMPLEMENTED` | neutral | fatal: the key or the model is gone |
/// | `INVALID_ARGUMENT`, `OUT_OF_RANGE`, `FAILED_PRECONDITION`, `ALREADY_EXISTS`, `CANCELLED`, `ABORTED` | neutral | neutral |
/// | an error of the service | as [`ErrorsAsFailures`] says | as [`RefusalsAsFailures`] says |
///
/// [`code`](Self::code) changes the table. [`errors`](Self::errors) changes the classifier of
/// errors. The [guide](crate::guide::streams#grpc) has the reasons.
///
/// A failure carries the wait that the server asks for, as [`retry_after`](super::retry_after)
/// reads it.
///
/// A clone costs no allocation.
///
/// # The head
///
/// As a classifier of an [`http::Response`], it goes by the first of these:
///
/// 1. a `grpc-status` in the headers: the response is trailers-only;
/// 2. an HTTP status other than 200. No gRPC server sends one, but a proxy does. The specification
///    maps it to a code, as the next table says. A wait that
///    [`http::retry_after`](crate::http::retry_after) reads is a hint, too;
/// 3. otherwise a success, so far.
///
/// | HTTP status | code |
/// | --- | --- |
/// | 400 | `INTERNAL` |
/// | 401 | `UNAUTHENTICATED` |
/// | 403 | `PERMISSION_DENIED` |
/// | 404 | `UNIMPLEMENTED` |
/// | 429, 502, 503, 504 | `UNAVAILABLE` |
/// | any other | `UNKNOWN` |
///
/// # The end of the body
///
/// As an inspector, it goes by the `grpc-status` of the trailers, else by what the head said, in
/// the order above. A body that ends in order without any status is a transient failure: somebody
/// in between has cut it off. Some clients take that for an end in order, as `tonic` does.
///
/// Give a layer the same codes twice. The inspector sees only bodies whose head the layer's
/// classifier called a success. And a client that reads a failure in the head drops the body
/// unread.
///
/// # Examples
///
/// ```
/// use http::Response;
/// use tower::BoxError;
/// use tower_breaker::grpc::Codes;
/// use tower_breaker::{Classify, Failure, Outcome};
///
/// let classify = |response: &Response<()>| Codes::new().classify(Ok::<_, &BoxError>(response));
///
/// let busy = Response::builder().header("grpc-status", "8").body(()).unwrap();
/// assert_eq!(classify(&busy), Outcome::Failure(Failure::rate_limited()));
/// let gateway = Response::builder().status(502).body(()).unwrap();
/// assert_eq!(classify(&gateway), Outcome::Failure(Failure::transient()));
/// let not_yet_known = Response::new(());
/// assert_eq!(classify(&not_yet_known), Outcome::Success);
/// ```
#[derive(Clone, Debug)]
pub struct Codes<E = ErrorsAsFailures> {
    table: Table,
    errors: E,
    /// The code of the head, in the clone that inspects the response's body.
    head: Option<Outcome>,
}

/// The outcome of each code. The presets are functions, so that their clones share nothing.
#[derive(Clone, Debug)]
enum Table {
    Tools,
    Models,
    Changed(Arc<[Outcome; Code::ALL.len()]>),
}

impl Table {
    fn outcome(&self, code: Code) -> Outcome {
        match self {
            Table::Tools => tools(code),
            Table::Models => models(code),
            Table::Changed(table) => table[code as usize],
        }
    }
}

/// The table for tools. The guide's page on streams has the reasons.
const fn tools(code: Code) -> Outcome {
    match code {
        Code::Ok => Outcome::Success,
        Code::Unavailable
        | Code::Internal
        | Code::Unknown
        | Code::DataLoss
        | Code::DeadlineExceeded => Outcome::Failure(Failure::transient()),
        Code::ResourceExhausted => Outcome::Failure(Failure::rate_limited()),
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::FailedPrecondition
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Unimplemented
        | Code::Unauthenticated
        | Code::PermissionDenied
        | Code::Cancelled
        | Code::Aborted => Outcome::Neutral,
    }
}

/// The table for models.
const fn models(code: Code) -> Outcome {
    match code {
        Code::Unauthenticated | Code::PermissionDenied | Code::NotFound | Code::Unimplemented => {
            Outcome::Failure(Failure::fatal())
        }
        other => tools(other),
    }
}

impl Codes {
    /// Makes codes for a tool: faults of the server are failures, and mistakes of the caller are
    /// neutral.
    ///
    /// [`ErrorsAsFailures`] judges errors.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_breaker::CircuitBreakerLayer;
    /// use tower_breaker::grpc::Codes;
    ///
    /// let layer = CircuitBreakerLayer::new().classify(Codes::new());
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            table: Table::Tools,
            errors: ErrorsAsFailures,
            head: None,
        }
    }
}

impl Codes<RefusalsAsFailures> {
    /// Makes codes for a model in a [`FallbackLayer`](crate::FallbackLayer).
    ///
    /// They judge as [`new`](Codes::new), except that `UNAUTHENTICATED`, `PERMISSION_DENIED`,
    /// `NOT_FOUND` and `UNIMPLEMENTED` are fatal, because the key or the model is gone.
    /// [`RefusalsAsFailures`] judges errors.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use tower_breaker::FallbackLayer;
    /// use tower_breaker::grpc::Codes;
    ///
    /// let layer = FallbackLayer::rewriting("large", |req: &mut Request<String>, model: &str| {
    ///     *req.body_mut() = model.to_owned();
    /// })
    /// .model("small")
    /// .classify(Codes::models());
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub const fn models() -> Self {
        Self {
            table: Table::Models,
            errors: RefusalsAsFailures,
            head: None,
        }
    }
}

impl<E> Codes<E> {
    /// Changes what a code says.
    ///
    /// A hint of the failure itself goes before the wait that the server asks for.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_breaker::grpc::{Code, Codes};
    /// use tower_breaker::{Failure, Outcome};
    ///
    /// let codes = Codes::new()
    ///     .code(Code::Aborted, Failure::transient())
    ///     .code(Code::DeadlineExceeded, Outcome::Neutral);
    /// assert_eq!(codes.outcome(Code::Aborted), Outcome::Failure(Failure::transient()));
    /// ```
    #[must_use]
    pub fn code(mut self, code: Code, outcome: impl Into<Outcome>) -> Self {
        let mut table = Code::ALL.map(|code| self.table.outcome(code));
        table[code as usize] = outcome.into();
        self.table = Table::Changed(Arc::new(table));
        self
    }

    /// Sets the classifier of errors. It is never asked about a response.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower::BoxError;
    /// use tower_breaker::Outcome;
    /// use tower_breaker::grpc::Codes;
    /// # use tower_breaker::Classify;
    /// # use http::Response;
    ///
    /// let codes = Codes::new().errors(|_: Result<&Response<()>, &BoxError>| Outcome::Neutral);
    /// # assert_eq!(codes.classify(Err::<&Response<()>, _>(&"down".into())), Outcome::Neutral);
    /// ```
    #[must_use]
    pub fn errors<F>(self, classify: F) -> Codes<F> {
        Codes {
            table: self.table,
            errors: classify,
            head: self.head,
        }
    }

    /// Returns what a code says by itself, without the wait that the server asks for.
    ///
    /// # Examples
    ///
    /// Around a client with an error type of its own:
    ///
    /// ```
    /// use tower_breaker::grpc::{Code, Codes};
    /// use tower_breaker::{CircuitBreakerLayer, Outcome};
    ///
    /// struct Status { code: i32 }
    ///
    /// let codes = Codes::new();
    /// let layer = CircuitBreakerLayer::new().classify(
    ///     move |result: Result<&String, &Status>| match result {
    ///         Ok(_) => Outcome::Success,
    ///         Err(status) => codes.outcome(Code::from_number(status.code)),
    ///     },
    /// );
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn outcome(&self, code: Code) -> Outcome {
        self.table.outcome(code)
    }

    /// Returns what the `grpc-status` in headers or trailers says, with the wait that the server
    /// asks for.
    ///
    /// `None` means that there is no `grpc-status`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, HeaderValue};
    /// use tower_breaker::Failure;
    /// use tower_breaker::grpc::Codes;
    ///
    /// let mut trailers = HeaderMap::new();
    /// assert_eq!(Codes::new().status_in(&trailers), None);
    /// trailers.insert("grpc-status", HeaderValue::from_static("14"));
    /// trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("7000"));
    /// let failure = Failure::transient().with_retry_after(Duration::from_secs(7));
    /// assert_eq!(Codes::new().status_in(&trailers), Some(failure.into()));
    /// ```
    #[must_use]
    pub fn status_in(&self, headers: &HeaderMap) -> Option<Outcome> {
        let code = Code::from_bytes(headers.get(STATUS)?.as_bytes());
        Some(self.outcome(code).hinted(|_| hints::retry_after(headers)))
    }

    /// Returns what the head of a response says, if it says anything yet.
    fn head_of(&self, status: StatusCode, headers: &HeaderMap) -> Option<Outcome> {
        self.status_in(headers).or_else(|| {
            let outcome = self.outcome(of_http(status)?);
            // A proxy answers so, and it may send the hints of HTTP.
            let hint = || hints::retry_after(headers).max(crate::http::retry_after(headers));
            Some(outcome.hinted(|_| hint()))
        })
    }
}

/// Returns the code for an HTTP status, by the specification's table. There is none for 200.
fn of_http(status: StatusCode) -> Option<Code> {
    Some(match status {
        StatusCode::OK => return None,
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    })
}

impl Default for Codes {
    fn default() -> Self {
        Self::new()
    }
}

impl<B, E, Err> Classify<Response<B>, Err> for Codes<E>
where
    E: Classify<Response<B>, Err>,
{
    fn classify(&self, result: Result<&Response<B>, &Err>) -> Outcome {
        match result {
            Ok(response) => self
                .head_of(response.status(), response.headers())
                .unwrap_or(Outcome::Success),
            Err(_) => self.errors.classify(result),
        }
    }
}

/// Each response has a clone of its own, which remembers what the head said.
impl<D, E> Inspect<D> for Codes<E> {
    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.head = self.head_of(status, headers);
    }

    fn frame(&mut self, frame: &Frame<D>) -> Option<Outcome> {
        self.status_in(frame.trailers_ref()?)
    }

    fn end(&mut self) -> Outcome {
        self.head.unwrap_or(Outcome::Failure(Failure::transient()))
    }
}
