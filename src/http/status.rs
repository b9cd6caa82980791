//! What a response's status says.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use super::hints::{rate_limit_reset, retry_after};
use crate::vocabulary::{
    Classify, ErrorsAsFailures, Failure, FailureKind, Outcome, RefusalsAsFailures,
};

/// Judges responses by their status, and leaves errors to another classifier.
///
/// | status | [`new`](Self::new) | [`models`](Self::models) |
/// | --- | --- | --- |
/// | `1xx`, `2xx`, `3xx` | success | success |
/// | `401`, `402`, `403`, `404` | neutral | fatal: the key, the quota or the model is gone |
/// | `408` | transient failure | transient failure |
/// | `429` | rate limited | rate limited |
/// | other `4xx` | neutral: the caller's own mistake | neutral |
/// | `5xx` | transient failure | transient failure |
/// | from `600` on, which is not HTTP | as `5xx` (RFC 9110, 15) | as `5xx` |
/// | an error | by [`ErrorsAsFailures`] | by [`RefusalsAsFailures`] |
///
/// [`status`](Self::status) and [`statuses`](Self::statuses) change the table, [`errors`](Self::errors) changes who judges errors.
///
/// A failure carries the hint of the response's headers, if there is one: [`retry_after`], and for a rate limit also
/// [`rate_limit_reset`]. The headers of other responses are not looked at.
///
/// Layers clone their classifier into every call. A clone is a plain copy while the table is as it was made; with changes it counts a reference.
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
#[must_use = "a classifier decides nothing deadline a layer is given it"]
pub struct StatusClassifier<E = ErrorsAsFailures> {
    preset: Preset,
    /// The later ones win.
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
    /// For any service: `5xx` and `408` are transient failures, `429` is a rate limit, other `4xx` are neutral, and the rest is a success. Errors are
    /// judged by [`ErrorsAsFailures`].
    pub const fn new() -> Self {
        Self::of(Preset::Any, ErrorsAsFailures)
    }
}

impl StatusClassifier<RefusalsAsFailures> {
    /// For models: as [`new`](StatusClassifier::new), but `401`, `402`, `403` and `404` are fatal, since the key, the quota or the model is gone and no later call will
    /// fare better. `400`, `413`, `422` and other `4xx` stay neutral: another model would not take the request either.
    ///
    /// Errors are judged by [`RefusalsAsFailures`], which is a fallback's own default: a model that one of this crate's layers refuses did not answer. For a circuit breaker
    /// or a tripwire around other layers of this crate add `.errors(ErrorsAsFailures)`.
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

    /// Changes what one status says. What was said of it before no longer holds.
    ///
    /// # Examples
    ///
    /// A failure may have a hint of its own, which goes before that of the headers:
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

    /// Changes what a range of statuses says. What was said of them before no longer holds.
    ///
    /// # Panics
    ///
    /// If the range is empty, or holds what is not a status: they go from 100 to 999.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_breaker::http::StatusClassifier;
    /// use tower_breaker::{Failure, Outcome};
    ///
    /// // A tool that must not be moved away: whoever sends there has the wrong address.
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

    /// Decides who judges errors: a closure over `Result<&Response<B>, &Error>`, or a type of [`Classify`]. It is never asked about a response.
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

    /// What the head of a response says: for a response that is not an [`http::Response`], as that of `reqwest`.
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

/// What the last change of a status says.
fn changed(changes: &[Change], code: u16) -> Option<Outcome> {
    let change = changes
        .iter()
        .rev()
        .find(|(range, _)| range.contains(&code))?;
    Some(change.1)
}

/// The hint of the headers for a failure.
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
mod tests {
    use super::*;
    use crate::vocabulary::{Reason, Refusal};
    use crate::{BoxError, Outcome::Neutral, Outcome::Success};

    const TRANSIENT: Outcome = Outcome::Failure(Failure::transient());
    const LIMITED: Outcome = Outcome::Failure(Failure::rate_limited());
    const FATAL: Outcome = Outcome::Failure(Failure::fatal());

    fn head<E>(classifier: &StatusClassifier<E>, code: u16) -> Outcome {
        let status = StatusCode::from_u16(code).unwrap();
        classifier.of_head(status, &HeaderMap::new())
    }

    fn hinting(all: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = all
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn every_status_says_what_the_table_says() {
        for code in 100..=999 {
            let any = match code {
                100..=399 => Success,
                408 | 500..=999 => TRANSIENT,
                429 => LIMITED,
                _ => Neutral,
            };
            let models = match code {
                401..=404 => FATAL,
                _ => any,
            };
            assert_eq!(head(&StatusClassifier::new(), code), any, "{code}");
            assert_eq!(head(&StatusClassifier::default(), code), any, "{code}");
            assert_eq!(head(&StatusClassifier::models(), code), models, "{code}");
        }
    }

    #[test]
    fn changes_hold_for_their_statuses_alone_and_later_ones_win() {
        let changed = StatusClassifier::models()
            .statuses(400..=499, Failure::transient())
            .status(StatusCode::NOT_FOUND, Success)
            .statuses(404..=405, Failure::rate_limited())
            .status(StatusCode::METHOD_NOT_ALLOWED, Neutral)
            .statuses(100..=100, Failure::fatal())
            .statuses(999..=999, Success);
        for (code, outcome) in [
            (100, FATAL),
            (101, Success),
            (399, Success),
            (400, TRANSIENT),
            (401, TRANSIENT),
            (403, TRANSIENT),
            (404, LIMITED),
            (405, Neutral),
            (406, TRANSIENT),
            (429, TRANSIENT),
            (499, TRANSIENT),
            (500, TRANSIENT),
            (998, TRANSIENT),
            (999, Success),
        ] {
            assert_eq!(head(&changed, code), outcome, "{code}");
        }
        // What was not changed is the preset's.
        assert_eq!(
            head(
                &StatusClassifier::models().status(StatusCode::OK, Neutral),
                402
            ),
            FATAL
        );
    }

    #[test]
    fn a_clone_that_is_changed_leaves_the_other_as_it_was() {
        let one = StatusClassifier::new().status(StatusCode::OK, Neutral);
        let other = one.clone().status(StatusCode::OK, Failure::fatal());
        assert_eq!((head(&one, 200), head(&other, 200)), (Neutral, FATAL));
    }

    #[test]
    fn a_changed_table_is_shared_by_its_clones_and_a_preset_has_none() {
        assert!(StatusClassifier::new().changes.is_none());
        assert!(StatusClassifier::models().changes.is_none());
        let changed = StatusClassifier::new().status(StatusCode::OK, Neutral);
        let clone = changed.clone();
        let same = Arc::ptr_eq(&changed.changes.unwrap(), &clone.changes.unwrap());
        assert!(same);
    }

    #[test]
    fn it_adds_two_words_to_a_future() {
        assert_eq!(size_of::<StatusClassifier>(), 2 * size_of::<usize>());
        let models = size_of::<StatusClassifier<RefusalsAsFailures>>();
        assert_eq!(models, 2 * size_of::<usize>());
    }

    #[test]
    fn a_failure_carries_the_hint_of_the_headers_and_nothing_else_does() {
        let headers = hinting(&[("retry-after", "7")]);
        let hint = Duration::from_secs(7);
        for code in 100..=999 {
            let models = StatusClassifier::models();
            let plain = head(&models, code);
            let expected = match plain {
                Outcome::Failure(failure) => failure.with_retry_after(hint).into(),
                other => other,
            };
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(models.of_head(status, &headers), expected, "{code}");
        }
    }

    #[test]
    fn a_hint_of_the_tables_own_goes_before_that_of_the_headers() {
        let own = Outcome::from(Failure::rate_limited().with_retry_after(Duration::from_secs(3)));
        let table = StatusClassifier::new()
            .status(StatusCode::BAD_GATEWAY, own)
            .status(StatusCode::CONFLICT, Failure::transient());
        let headers = hinting(&[("retry-after", "7")]);
        assert_eq!(table.of_head(StatusCode::BAD_GATEWAY, &headers), own);
        assert_eq!(
            table.of_head(StatusCode::CONFLICT, &headers),
            Failure::transient()
                .with_retry_after(Duration::from_secs(7))
                .into()
        );
    }

    #[test]
    fn a_limits_reset_is_heeded_for_rate_limits_alone_and_last() {
        let limits = [
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ];
        let limited = |secs| {
            Failure::rate_limited()
                .with_retry_after(Duration::from_secs(secs))
                .into()
        };
        let new = StatusClassifier::new();
        let headers = hinting(&limits);
        let status = StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(new.of_head(status, &headers), limited(360));
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(new.of_head(unavailable, &headers), TRANSIENT);
        let fatal = StatusClassifier::models().of_head(StatusCode::FORBIDDEN, &headers);
        assert_eq!(fatal, FATAL);
        let both = hinting(&[&limits[..], &[("retry-after", "2")]].concat());
        assert_eq!(new.of_head(status, &both), limited(2));
        // A status that the table calls a rate limit is one.
        let changed = new.status(unavailable, Failure::rate_limited());
        assert_eq!(changed.of_head(unavailable, &headers), limited(360));
    }

    #[test]
    fn errors_are_judged_by_who_is_told_to() {
        type Answer = Result<Response<()>, BoxError>;
        fn classify<C: Classify<Response<()>, BoxError>>(by: &C, answer: &Answer) -> Outcome {
            by.classify(answer.as_ref())
        }
        let down: Answer = Err("down".into());
        let refused: Answer = Err(Refusal::breaker(Reason::CircuitOpen).into());
        let (new, models) = (StatusClassifier::new(), StatusClassifier::models());
        assert_eq!(classify(&new, &down), TRANSIENT);
        assert_eq!(classify(&new, &refused), Neutral);
        assert_eq!(classify(&models, &down), TRANSIENT);
        assert_eq!(classify(&models, &refused), TRANSIENT);

        let own = models.status(StatusCode::OK, Neutral).errors(
            |result: Result<&Response<()>, &BoxError>| {
                assert!(result.is_err(), "it was asked about a response");
                FATAL
            },
        );
        assert_eq!(classify(&own, &down), FATAL);
        assert_eq!(classify(&own, &Ok(Response::new(()))), Neutral);
        let mut gone = Response::new(());
        *gone.status_mut() = StatusCode::NOT_FOUND;
        assert_eq!(classify(&own, &Ok(gone)), FATAL);
    }

    #[test]
    #[should_panic(
        expected = "`statuses` needs a range that is not empty, from 100 to 999 at most, not 99..=200"
    )]
    fn a_range_that_begins_before_the_statuses_panics() {
        let _ = StatusClassifier::new().statuses(99..=200, Success);
    }

    #[test]
    #[should_panic(
        expected = "`statuses` needs a range that is not empty, from 100 to 999 at most, not 500..=1000"
    )]
    fn a_range_that_ends_after_the_statuses_panics() {
        let _ = StatusClassifier::new().statuses(500..=1000, Success);
    }

    #[test]
    #[should_panic(
        expected = "`statuses` needs a range that is not empty, from 100 to 999 at most, not 500..=499"
    )]
    fn an_empty_range_panics() {
        #[allow(clippy::reversed_empty_ranges)]
        let _ = StatusClassifier::new().statuses(500..=499, Success);
    }
}
