//! Refusals as responses.

use std::fmt::{self, Write as _};

use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::vocabulary::{Refusal, Refuse};

/// Answers refused calls with a response: `503`, with `Retry-After` where the time is known.
///
/// It is a refusal policy, for a layer's `refuse`, and leaves the service's error type as it is. Every layer outside takes such a response for the service's own: so it belongs
/// outermost. In a stack, let the layers refuse with errors, and have one outermost `then` make the [`response`](Self::response) of whichever refused.
///
/// `Retry-After` (RFC 9110, 10.2.3) is in whole seconds, rounded up, so that whoever heeds it is not refused again. It is left out where
/// [`Refusal::retry_after`] knows none.
///
/// # Examples
///
/// A breaker that stands alone:
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
///     .service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new("found".to_owned())) });
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
/// use tower_breaker::{CircuitBreakerLayer, Refusal, TripwireLayer};
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
///     .layer(TripwireLayer::new().digest(|req: &Request<String>| Some(tower_breaker::Digest::of(req.body()))))
///     .layer(breaker)
///     .service_fn(|_: Request<String>| async { Ok::<_, BoxError>(Response::new("found".to_owned())) });
/// # let response = tool.oneshot(Request::default()).await.unwrap();
/// # assert_eq!(response.status(), 503);
/// # assert_eq!(response.headers()["content-type"], "application/problem+json");
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a policy decides nothing deadline a layer is given it"]
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
    /// Answers with the refusal's text, as `text/plain`.
    pub const fn text() -> Self {
        Self::of(Form::Text)
    }

    /// Answers with a problem in JSON, as `application/problem+json` (RFC 9457).
    ///
    /// Its type is `about:blank`, so its title is that of the status. The detail is the refusal's text. Beside the standard's members stand
    /// `reason`, `name` where there is one, and `retry_after` in seconds where the time is known:
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

    /// Answers with another status. Clients and proxies make a call again that got a `503`, which is right for what recovers by itself. What a tripwire
    /// refuses does not: there `409`, or `429` for a budget that is spent, may fit better.
    ///
    /// Default: `503`.
    ///
    /// # Panics
    ///
    /// If a response of this status has no body, and so could not tell of the refusal: `1xx`, `204`, `205`, `304`.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_breaker::TripwireLayer;
    /// use tower_breaker::http::SoftRefusal;
    ///
    /// let layer = TripwireLayer::new().refuse(SoftRefusal::problem().status(StatusCode::CONFLICT));
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

    /// The response that tells of a refusal. For a body that is not made from a `String`, make one of that and `map` it.
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
            let started = u64::from(wait.subsec_nanos() > 0);
            wait.as_secs() + started
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

/// Displays as JSON.
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
        // With `about:blank` the title is the status's own (RFC 9457, 4.2.1), so where that has none there is none.
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

/// Displays as a JSON string. Names come from models.
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
mod tests {
    use std::borrow::Cow;
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::vocabulary::Reason;

    fn open(name: Option<&str>, left: Option<Duration>) -> Refusal {
        let name = name.map(|name| Cow::Owned::<str>(name.to_owned()).into());
        Refusal::breaker(Reason::CircuitOpen)
            .with_name(name)
            .with_retry_after(left)
    }

    fn parsed(response: &Response<String>) -> Value {
        serde_json::from_str(response.body()).unwrap()
    }

    fn header<'a>(response: &'a Response<String>, name: &str) -> Option<&'a str> {
        Some(response.headers().get(name)?.to_str().unwrap())
    }

    #[test]
    fn a_text_is_the_refusals() {
        let refusal = open(Some("search"), Some(Duration::from_secs(20)));
        let response = SoftRefusal::text().response::<String>(&refusal);
        assert_eq!(response.status(), 503);
        assert_eq!(*response.body(), refusal.to_string());
        let kind = header(&response, "content-type");
        assert_eq!(kind, Some("text/plain; charset=utf-8"));
        assert_eq!(header(&response, "retry-after"), Some("20"));
        assert_eq!(response.headers().len(), 2);
    }

    #[test]
    fn a_problem_has_the_standards_members_and_ours() {
        let refusal = open(Some("search"), Some(Duration::from_secs(20)));
        let response = SoftRefusal::problem().response(&refusal);
        assert_eq!(response.status(), 503);
        let kind = header(&response, "content-type");
        assert_eq!(kind, Some("application/problem+json"));
        assert_eq!(header(&response, "retry-after"), Some("20"));
        assert_eq!(
            parsed(&response),
            json!({
                "type": "about:blank",
                "title": "Service Unavailable",
                "status": 503,
                "detail": "tool `search` temporarily unavailable: circuit breaker open",
                "reason": "circuit_open",
                "name": "search",
                "retry_after": 20,
            })
        );
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let refusal = Refusal::tripwire(Reason::MaxTurns, 1).with_count(Some(8));
        for policy in [SoftRefusal::text(), SoftRefusal::problem()] {
            let response = policy.response::<String>(&refusal);
            assert_eq!(header(&response, "retry-after"), None);
        }
        let odd = StatusCode::from_u16(599).unwrap();
        let response = SoftRefusal::problem().status(odd).response(&refusal);
        assert_eq!(response.status(), 599);
        assert_eq!(
            parsed(&response),
            json!({
                "type": "about:blank",
                "status": 599,
                "detail": refusal.to_string(),
                "reason": "max_turns",
            })
        );
    }

    #[test]
    fn seconds_are_rounded_up() {
        let nano = Duration::from_nanos(1);
        let second = Duration::from_secs(1);
        for (wait, text) in [
            (Duration::ZERO, "0"),
            (nano, "1"),
            (Duration::from_nanos(999_999_999), "1"),
            (second, "1"),
            (second + nano, "2"),
            (20 * second, "20"),
            (Duration::from_nanos(u64::MAX - 1), "18446744074"),
        ] {
            let refusal = open(None, Some(wait));
            let response = SoftRefusal::problem().response(&refusal);
            assert_eq!(header(&response, "retry-after"), Some(text));
            assert_eq!(parsed(&response)["retry_after"].to_string(), text);
        }
    }

    #[test]
    fn another_status_has_its_own_title() {
        let refusal = open(None, None);
        for (status, title) in [
            (StatusCode::CONFLICT, "Conflict"),
            (StatusCode::TOO_MANY_REQUESTS, "Too Many Requests"),
            (StatusCode::OK, "OK"),
        ] {
            let response = SoftRefusal::problem().status(status).response(&refusal);
            assert_eq!(response.status(), status);
            assert_eq!(parsed(&response)["title"], title);
            assert_eq!(parsed(&response)["status"], status.as_u16());
            let text = SoftRefusal::text().status(status);
            assert_eq!(text.response::<String>(&refusal).status(), status);
        }
    }

    #[test]
    fn a_status_without_a_body_panics() {
        for code in [100, 101, 199, 204, 205, 304] {
            let status = StatusCode::from_u16(code).unwrap();
            let panic = std::panic::catch_unwind(|| SoftRefusal::text().status(status));
            let message = *panic.unwrap_err().downcast::<String>().unwrap();
            let expected = format!("`status` needs one whose response has a body, not {code}");
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn a_hostile_name_cannot_leave_its_string() {
        for name in [
            "a\"b",
            "\\",
            "\\\"",
            "\",\"status\":200,\"x\":\"",
            "line\nfeed\r\t\0\u{1f}\u{7f}",
            "\u{2028}é😀\u{202e}",
            "",
        ] {
            let response = SoftRefusal::problem().response(&open(Some(name), None));
            let problem = parsed(&response);
            assert_eq!(problem["name"], name);
            assert_eq!(problem["status"], 503);
            assert_eq!(problem.as_object().unwrap().len(), 6);
            assert!(!response.body().contains(|c| c < ' '), "{response:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read_as_it_was_written(name in any::<String>()) {
            let refusal = open(Some(&name), None);
            let problem = parsed(&SoftRefusal::problem().response(&refusal));
            prop_assert_eq!(problem["name"].as_str(), Some(&*name));
            prop_assert_eq!(problem["detail"].as_str(), Some(&*refusal.to_string()));
        }
    }
}
