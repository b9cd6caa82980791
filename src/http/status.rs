//! Judges calls by the status of the HTTP response.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use super::hints::{rate_limit_reset, retry_after};
use crate::vocabulary::{
    Classify, ErrorsAsFailures, Failure, FailureKind, Outcome, RefusalsAsFailures,
};

/// Judges responses by their status, and gives errors to another classifier.
///
/// | status | [`new`](Self::new) | [`models`](Self::models) |
/// | --- | --- | --- |
/// | `1xx`, `2xx`, `3xx` | success | success |
/// | `401`, `402`, `403`, `404` | neutral | fatal: the key, the quota or the model is gone |
/// | `408` | transient failure | transient failure |
/// | `429` | rate limited | rate limited |
/// | other `4xx` | neutral: the caller's own mistake | neutral |
/// | `5xx` | transient failure | transient failure |
/// | `600` and above, which are not HTTP | as `5xx` (RFC 9110, section 15) | as `5xx` |
/// | an error | as [`ErrorsAsFailures`] says | as [`RefusalsAsFailures`] says |
///
/// [`status`](Self::status) and [`statuses`](Self::statuses) change the table.
/// [`errors`](Self::errors) changes the classifier of errors.
///
/// A failure carries the wait that the headers ask for, as [`retry_after`] reads it. If that
/// finds none, a rate limit carries the wait that [`rate_limit_reset`] reads. The classifier does
/// not look at the headers of other responses.
///
/// Layers clone their classifier into every call. A clone of a preset is a plain copy. A clone of
/// a changed table counts a reference.
///
/// # Examples
///
/// ```
/// use http::{Response, StatusCode};
/// use tower::{BoxError, ServiceBuilder, service_fn};
/// use tower_breaker::http::StatusClassifier;
/// use tower_breaker::{CircuitBreakerLayer, Failure, FallbackLayer};
///
/// async fn client(_query: String) -> Result<Response<String>, BoxError> {
///     Ok(Response::new(String::new()))
/// }
///
/// let tool = ServiceBuilder::new()
///     .layer(CircuitBreakerLayer::new().classify(StatusClassifier::new()))
///     .service_fn(client);
///
/// // This provider's models move without notice, and its `409` means that it is overloaded.
/// let statuses = StatusClassifier::models()
///     .status(StatusCode::NOT_FOUND, Failure::transient())
///     .status(StatusCode::CONFLICT, Failure::rate_limited());
/// let model = ServiceBuilder::new()
///     .layer(FallbackLayer::new("gpt-5").backup("claude", service_fn(client)).classify(statuses))
///     .service_fn(client);
/// # let _ = (tool, model);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a classifier decides nothing until a layer is given it"]
pub struct StatusClassifier<E = ErrorsAsFailures> {
    preset: Preset,
    /// Later changes win.
    changes: Option<Arc<Vec<Change>>>,
    errors: E,
}

type Change = (RangeInclusive<u16>, Outcome);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preset {
    Any,
    Models,
}

impl StatusClassifier {
    /// Makes a classifier for any service.
    ///
    /// `5xx` and `408` are transient failures, `429` is a rate limit, other `4xx` are neutral, and
    /// the rest is a success. [`ErrorsAsFailures`] judges errors.
    pub const fn new() -> Self {
        Self::of(Preset::Any, ErrorsAsFailures)
    }
}

impl StatusClassifier<RefusalsAsFailures> {
    /// Makes a classifier for models.
    ///
    /// It judges as [`new`](StatusClassifier::new), except that `401`, `402`, `403` and `404` are
    /// fatal: the key, the quota or the model is gone, and a later call fails in the same way.
    /// `400`, `413`, `422` and other `4xx` stay neutral, because another model would not take the
    /// request either.
    ///
    /// [`RefusalsAsFailures`] judges errors, as a fallback needs: a model whose call was refused
    /// did not answer. For a circuit breaker or a tripwire around other layers of this crate, add
    /// `.errors(ErrorsAsFailures)`.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{HeaderMap, StatusCode};
    /// use tower_breaker::http::StatusClassifier;
    /// use tower_breaker::{Failure, Outcome};
    ///
    /// let models = StatusClassifier::models();
    /// let judge = |status| models.of_head(status, &HeaderMap::new());
    /// assert_eq!(judge(StatusCode::PAYMENT_REQUIRED), Failure::fatal().into());
    /// assert_eq!(judge(StatusCode::UNPROCESSABLE_ENTITY), Outcome::Neutral);
    /// ```
    pub const fn models() -> Self {
        Self::of(Preset::Models, RefusalsAsFailures)
    }
}

impl Default for StatusClassifier {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> StatusClassifier<E> {
    const fn of(preset: Preset, errors: E) -> Self {
        Self {
            preset,
            changes: None,
            errors,
        }
    }

    /// Changes what one status says. The change replaces earlier ones.
    ///
    /// # Examples
    ///
    /// A failure may have a hint of its own, which goes before the hint of the headers:
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::StatusCode;
    /// use tower_breaker::Failure;
    /// use tower_breaker::http::StatusClassifier;
    ///
    /// let statuses = StatusClassifier::new().status(
    ///     StatusCode::BAD_GATEWAY,
    ///     Failure::transient().with_retry_after(Duration::from_secs(120)),
    /// );
    /// # let _ = statuses;
    /// ```
    pub fn status(self, status: StatusCode, outcome: impl Into<Outcome>) -> Self {
        let code = status.as_u16();
        self.change(code..=code, outcome.into())
    }

    /// Changes what a range of statuses says. The change replaces earlier ones.
    ///
    /// # Panics
    ///
    /// If the range is empty, or goes beyond the statuses, which are 100 to 999.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_breaker::http::StatusClassifier;
    /// use tower_breaker::{Failure, Outcome};
    ///
    /// // A redirect means that the tool's address is wrong, and no later call will fare better.
    /// let statuses = StatusClassifier::new()
    ///     .statuses(300..=399, Failure::fatal())
    ///     .status(StatusCode::NOT_MODIFIED, Outcome::Success);
    /// # let _ = statuses;
    /// ```
    pub fn statuses(self, range: RangeInclusive<u16>, outcome: impl Into<Outcome>) -> Self {
        assert!(
            !range.is_empty() && *range.start() >= 100 && *range.end() <= 999,
            "`statuses` needs a range that is not empty, from 100 to 999 at most, not {range:?}"
        );
        self.change(range, outcome.into())
    }

    fn change(mut self, range: RangeInclusive<u16>, outcome: Outcome) -> Self {
        let changes = self.changes.get_or_insert_default();
        Arc::make_mut(changes).push((range, outcome));
        self
    }

    /// Sets the classifier of errors: a closure over `Result<&Response<B>, &Error>`, or a type
    /// that implements [`Classify`].
    ///
    /// It is never asked about a response.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Response;
    /// use tower_breaker::http::StatusClassifier;
    /// use tower_breaker::{CircuitBreakerLayer, Failure, Outcome};
    ///
    /// enum ClientError { Connect, InvalidUri }
    ///
    /// let layer = CircuitBreakerLayer::new().classify(StatusClassifier::new().errors(
    ///     |result: Result<&Response<String>, &ClientError>| match result {
    ///         Err(ClientError::InvalidUri) => Outcome::Neutral,
    ///         _ => Failure::transient().into(),
    ///     },
    /// ));
    /// # let _ = (layer, ClientError::Connect);
    /// ```
    pub fn errors<D>(self, errors: D) -> StatusClassifier<D> {
        StatusClassifier {
            preset: self.preset,
            changes: self.changes,
            errors,
        }
    }

    /// Returns what the head of a response says, for a response of another type than
    /// [`http::Response`], such as `reqwest::Response`.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{HeaderMap, StatusCode};
    /// use tower_breaker::http::StatusClassifier;
    /// use tower_breaker::{CircuitBreakerLayer, Classify, ErrorsAsFailures, Outcome};
    ///
    /// struct ClientResponse { status: StatusCode, headers: HeaderMap }
    /// # type ClientError = std::io::Error;
    ///
    /// let statuses = StatusClassifier::new();
    /// let layer = CircuitBreakerLayer::new().classify(
    ///     move |result: Result<&ClientResponse, &ClientError>| match result {
    ///         Ok(response) => statuses.of_head(response.status, &response.headers),
    ///         error => ErrorsAsFailures.classify(error),
    ///     },
    /// );
    /// # let _ = layer;
    /// ```
    #[inline]
    pub fn of_head(&self, status: StatusCode, headers: &HeaderMap) -> Outcome {
        let code = status.as_u16();
        let outcome = match &self.changes {
            None => self.preset.of(code),
            Some(changes) => changed(changes, code).unwrap_or_else(|| self.preset.of(code)),
        };
        outcome.hinted(|failure| hint(failure, headers))
    }
}

impl Preset {
    #[inline]
    fn of(self, code: u16) -> Outcome {
        match code {
            ..=399 => Outcome::Success,
            429 => Failure::rate_limited().into(),
            408 | 500.. => Failure::transient().into(),
            401..=404 if self == Preset::Models => Failure::fatal().into(),
            _ => Outcome::Neutral,
        }
    }
}

/// Returns what the last change of a status says, if it was changed.
fn changed(changes: &[Change], code: u16) -> Option<Outcome> {
    let change = changes
        .iter()
        .rev()
        .find(|(range, _)| range.contains(&code))?;
    Some(change.1)
}

/// Returns how long the headers ask to wait after a failure.
#[cold]
fn hint(failure: Failure, headers: &HeaderMap) -> Option<Duration> {
    retry_after(headers).or_else(|| match failure.kind() {
        FailureKind::RateLimited => rate_limit_reset(headers),
        FailureKind::Transient | FailureKind::Fatal => None,
    })
}

impl<B, Err, E> Classify<Response<B>, Err> for StatusClassifier<E>
where
    E: Classify<Response<B>, Err>,
{
    #[inline]
    fn classify(&self, result: Result<&Response<B>, &Err>) -> Outcome {
        match result {
            Ok(response) => self.of_head(response.status(), response.headers()),
            error => self.errors.classify(error),
        }
    }
}

#[cfg(test)]
mod tests;
