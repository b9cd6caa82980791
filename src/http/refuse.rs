//! Refusals as responses.

use std::fmt::{self, Write as _};

use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::vocabulary::{Refusal, Refuse};

/// Answers a refused call with a response: `503`, with `Retry-After` if the time is known.
///
/// It is a refusal policy, for a layer's `refuse`. The service's error type stays as it is.
///
/// A layer outside takes such a response for an answer of the service. So the policy belongs
/// outermost. In a stack, let the layers refuse with errors, and make the
/// [`response`](Self::response) of any refusal in one outermost `then`.
///
/// `Retry-After` (RFC 9110, section 10.2.3) is in whole seconds, rounded up: a caller who waits
/// that long does not come too early. It is left out if [`Refusal::retry_after`] knows no time.
///
/// # Examples
///
/// A circuit breaker that stands alone:
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_breaker::CircuitBreakerLayer;
/// use tower_breaker::http::{SoftRefusal, StatusClassifier};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let layer = CircuitBreakerLayer::new()
///     .name("search")
///     .classify(StatusClassifier::new())
///     .refuse(SoftRefusal::text());
/// # layer.handle().force_open();
/// let tool = ServiceBuilder::new()
///     .layer(layer)
///     .service_fn(|_: Request<String>| async {
///         Ok::<_, Infallible>(Response::new("found".to_owned()))
///     });
/// # let response = tool.oneshot(Request::default()).await.unwrap();
/// # assert_eq!(response.status(), 503);
/// # assert_eq!(response.body(), "tool `search` temporarily unavailable: circuit breaker open");
/// # }
/// ```
///
/// The refusals of a whole stack:
///
/// ```
/// use http::{Request, Response};
/// use tower::{BoxError, ServiceBuilder, ServiceExt};
/// use tower_breaker::http::{SoftRefusal, StatusClassifier};
/// use tower_breaker::{CircuitBreakerLayer, Digest, Refusal, TripwireLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let breaker = CircuitBreakerLayer::new().classify(StatusClassifier::new());
/// # breaker.handle().force_open();
/// let tool = ServiceBuilder::new()
///     .then(|result: Result<Response<String>, BoxError>| async move {
///         match result {
///             Err(err) => match Refusal::find(&*err) {
///                 Some(refusal) => Ok(SoftRefusal::problem().response(refusal)),
///                 None => Err(err),
///             },
///             answer => answer,
///         }
///     })
///     .layer(TripwireLayer::new().digest(|req: &Request<String>| Some(Digest::of(req.body()))))
///     .layer(breaker)
///     .service_fn(|_: Request<String>| async {
///         Ok::<_, BoxError>(Response::new("found".to_owned()))
///     });
/// # let response = tool.oneshot(Request::default()).await.unwrap();
/// # assert_eq!(response.status(), 503);
/// # assert_eq!(response.headers()["content-type"], "application/problem+json");
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a policy decides nothing until a layer is given it"]
pub struct SoftRefusal {
    status: StatusCode,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Text,
    Problem,
}

impl SoftRefusal {
    /// Makes a policy that answers with the refusal's text, as `text/plain`.
    pub const fn text() -> Self {
        Self::of(Form::Text)
    }

    /// Makes a policy that answers with problem JSON, as `application/problem+json` (RFC 9457).
    ///
    /// | member | value |
    /// | --- | --- |
    /// | `type` | `about:blank` |
    /// | `title` | the status's own, if it has one |
    /// | `status` | the status |
    /// | `detail` | the refusal's text |
    /// | `reason` | the [reason](Refusal::reason), in `snake_case` |
    /// | `name` | the [name](Refusal::name), if there is one |
    /// | `retry_after` | the wait in whole seconds, if the time is known |
    ///
    /// ```json
    /// {
    ///     "type": "about:blank",
    ///     "title": "Service Unavailable",
    ///     "status": 503,
    ///     "detail": "tool `search` temporarily unavailable: circuit breaker open",
    ///     "reason": "circuit_open",
    ///     "name": "search",
    ///     "retry_after": 20
    /// }
    /// ```
    pub const fn problem() -> Self {
        Self::of(Form::Problem)
    }

    const fn of(form: Form) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            form,
        }
    }

    /// Sets the status of the response.
    ///
    /// Clients and proxies repeat a call that got a `503`. That is right for what recovers by
    /// itself. A tripwire does not: there `409`, or `429` for a spent budget, may fit better.
    ///
    /// Default: `503`.
    ///
    /// # Panics
    ///
    /// If a response with this status has no body, and so cannot carry the refusal's text: `1xx`,
    /// `204`, `205`, `304`.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_breaker::TripwireLayer;
    /// use tower_breaker::http::SoftRefusal;
    ///
    /// let conflict = SoftRefusal::problem().status(StatusCode::CONFLICT);
    /// let layer = TripwireLayer::new().refuse(conflict);
    /// # let _ = layer;
    /// ```
    pub fn status(mut self, status: StatusCode) -> Self {
        let code = status.as_u16();
        assert!(
            code >= 200 && !matches!(code, 204 | 205 | 304),
            "`status` needs one whose response has a body, not {code}"
        );
        self.status = status;
        self
    }

    /// Makes the response that reports a refusal.
    ///
    /// For a body that is not made from a `String`, make a `Response<String>` and
    /// [`map`](Response::map) it.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Response;
    /// use tower_breaker::{CircuitBreakerLayer, http::SoftRefusal};
    ///
    /// let handle = CircuitBreakerLayer::new().handle();
    /// handle.force_open();
    /// let refusal = handle.try_acquire().unwrap_err();
    /// let response: Response<String> = SoftRefusal::text().response(&refusal);
    /// assert_eq!(response.status(), 503);
    /// assert_eq!(response.body(), "tool temporarily unavailable: circuit breaker open");
    /// ```
    pub fn response<B: From<String>>(&self, refusal: &Refusal) -> Response<B> {
        let retry_after = refusal.retry_after().map(|wait| {
            // A refusal's wait is in nanoseconds that fit a `u64`, so the sum cannot overflow.
            wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
        });
        let (content_type, body) = match self.form {
            Form::Text => ("text/plain; charset=utf-8", refusal.to_string()),
            Form::Problem => {
                let problem = Problem {
                    status: self.status,
                    refusal,
                    retry_after,
                };
                ("application/problem+json", problem.to_string())
            }
        };
        let mut response = Response::new(B::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl<Req, B: From<String>, E> Refuse<Req, Response<B>, E> for SoftRefusal {
    type Error = E;

    fn refuse(&self, _: Req, refusal: Refusal) -> Result<Response<B>, E> {
        Ok(self.response(&refusal))
    }

    fn convert(err: E) -> E {
        err
    }
}

/// Displays a refusal as problem JSON.
struct Problem<'a> {
    status: StatusCode,
    refusal: &'a Refusal,
    /// In whole seconds.
    retry_after: Option<u64>,
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            status, refusal, ..
        } = self;
        f.write_str("{\"type\":\"about:blank\"")?;
        // With `about:blank` the title is the status's own (RFC 9457, section 4.2.1).
        if let Some(title) = status.canonical_reason() {
            write!(f, ",\"title\":{}", Quoted(title))?;
        }
        let detail = refusal.to_string();
        write!(
            f,
            ",\"status\":{},\"detail\":{},\"reason\":\"{}\"",
            status.as_u16(),
            Quoted(&detail),
            refusal.reason()
        )?;
        if let Some(name) = refusal.name() {
            write!(f, ",\"name\":{}", Quoted(name))?;
        }
        if let Some(seconds) = self.retry_after {
            write!(f, ",\"retry_after\":{seconds}")?;
        }
        f.write_char('}')
    }
}

/// Displays a text as a JSON string. The text may hold a name that a model made up.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                ..' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                _ => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests;
