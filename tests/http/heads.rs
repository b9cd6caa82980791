//! Proves what the head of a response does to each layer.

use Does::{Counts, Nothing, Succeeds};
use FailureKind::{Fatal, RateLimited, Transient};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::http::{SoftRefusal, StatusClassifier, rate_limit_reset, retry_after};
use tower_breaker::{
    CircuitBreakerLayer, Classify, ErrorsAsFailures, FailureKind, FallbackLayer, FallbackState,
    Outcome, State,
};

use crate::support::secs;
use crate::{ask, fallback, get, response, server};

/// Case 19.
#[tokio::test(start_paused = true)]
async fn the_callers_own_mistakes_do_not_trip_the_circuit() {
    let layer = CircuitBreakerLayer::new().classify(StatusClassifier::new());
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(server));
    for _ in 0..100 {
        get(&mut service, 401).await;
    }
    assert_eq!(
        (handle.state(), handle.snapshot().streak),
        (State::Closed, 0)
    );
    // Nor do they end a streak.
    get(&mut service, 503).await;
    get(&mut service, 503).await;
    get(&mut service, 401).await;
    assert_eq!(
        (handle.state(), handle.snapshot().streak),
        (State::Closed, 2)
    );
    get(&mut service, 503).await;
    assert_eq!(handle.state(), State::Open);
    assert!(ask(&mut service, Ok(response(200, &[]))).await.is_none());
}

// ===== the table =====

/// What a status does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    /// Nothing at all: a streak neither grows nor ends.
    Nothing,
    Succeeds,
    Counts(FailureKind),
}

/// Twelve statuses: what they do to any service, and to a model.
const TABLE: [(u16, Does, Does); 12] = [
    (200, Succeeds, Succeeds),
    (400, Nothing, Nothing),
    (401, Nothing, Counts(Fatal)),
    (402, Nothing, Counts(Fatal)),
    (403, Nothing, Counts(Fatal)),
    (404, Nothing, Counts(Fatal)),
    (408, Counts(Transient), Counts(Transient)),
    (413, Nothing, Nothing),
    (422, Nothing, Nothing),
    (429, Counts(RateLimited), Counts(RateLimited)),
    (500, Counts(Transient), Counts(Transient)),
    (529, Counts(Transient), Counts(Transient)),
];

/// What one response of this status does to a breaker with a streak of one.
async fn by_breaker<E>(classifier: StatusClassifier<E>, status: u16) -> Does
where
    StatusClassifier<E>: Classify<Response<String>, BoxError> + Clone,
{
    let layer = CircuitBreakerLayer::new().classify(classifier);
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(server));
    get(&mut service, 503).await;
    get(&mut service, status).await;
    let snapshot = handle.snapshot();
    match (handle.state(), snapshot.streak, snapshot.last_failure) {
        (State::Closed, 0, _) => Succeeds,
        (State::Closed, 1, Some(Transient)) => Nothing,
        (State::Closed, 2, Some(kind)) if kind != Fatal => Counts(kind),
        (State::Open, _, Some(Fatal)) => Counts(Fatal),
        other => panic!("{status}: {other:?}"),
    }
}

/// What one response of this status does to a fallback's primary.
async fn by_primary<E>(classifier: StatusClassifier<E>, status: u16) -> Does
where
    StatusClassifier<E>: Classify<Response<String>, BoxError> + Clone,
{
    let (handle, mut service) = fallback(classifier);
    get(&mut service, 503).await;
    get(&mut service, status).await;
    let snapshot = handle.snapshot();
    match (
        handle.state(),
        snapshot.consecutive_failures,
        snapshot.last_failure,
    ) {
        (FallbackState::Primary, 0, _) => Succeeds,
        (FallbackState::Primary, 1, Some(Transient)) => Nothing,
        (FallbackState::Primary, 2, Some(kind)) if kind != Fatal => Counts(kind),
        (FallbackState::Fallback, _, Some(Fatal)) => {
            assert_eq!(handle.active_model().as_deref(), Some("claude"));
            Counts(Fatal)
        }
        other => panic!("{status}: {other:?}"),
    }
}

/// How many of its two strikes the first backup gets by one response of this status, and who
/// serves next.
async fn by_backup<E>(classifier: StatusClassifier<E>, status: u16) -> (u32, String)
where
    StatusClassifier<E>: Classify<Response<String>, BoxError> + Clone,
{
    let (handle, mut service) = fallback(classifier);
    for _ in 0..3 {
        get(&mut service, 503).await;
    }
    assert_eq!(handle.active_model().as_deref(), Some("claude"));
    get(&mut service, status).await;
    let strikes = handle.snapshot().entries[0].strikes;
    (strikes, handle.active_model().unwrap().to_string())
}

/// Case 34.
#[tokio::test(start_paused = true)]
async fn each_of_twelve_statuses_does_what_the_table_says() {
    for (status, any, model) in TABLE {
        let (new, models) = (StatusClassifier::new, StatusClassifier::models);
        assert_eq!(by_breaker(new(), status).await, any, "{status}");
        assert_eq!(by_breaker(models(), status).await, model, "{status}");
        assert_eq!(by_primary(new(), status).await, any, "{status}");
        assert_eq!(by_primary(models(), status).await, model, "{status}");

        let strikes = |does: Does| match does {
            Counts(Fatal) => (2, "llama".to_owned()),
            Counts(_) => (1, "claude".to_owned()),
            Nothing | Succeeds => (0, "claude".to_owned()),
        };
        assert_eq!(by_backup(new(), status).await, strikes(any), "{status}");
        assert_eq!(
            by_backup(models(), status).await,
            strikes(model),
            "{status}"
        );
    }
}

/// Case 34.
#[tokio::test(start_paused = true)]
async fn a_fatal_status_trips_a_circuit_and_spends_an_entry_at_once() {
    for status in [401, 402, 403, 404] {
        let layer = CircuitBreakerLayer::new().classify(StatusClassifier::models());
        let handle = layer.handle();
        get(&mut layer.layer(service_fn(server)), status).await;
        assert_eq!(handle.state(), State::Open, "{status}");

        let (handle, mut service) = fallback(StatusClassifier::models());
        for (next, state) in [
            ("gpt-5", FallbackState::Primary),
            ("claude", FallbackState::Fallback),
            ("llama", FallbackState::Fallback),
        ] {
            assert_eq!(handle.active_model().as_deref(), Some(next), "{status}");
            assert_eq!(handle.state(), state);
            get(&mut service, status).await;
        }
        // Three calls, and all three are spent.
        assert_eq!(handle.active_model(), None);
        assert!(ask(&mut service, Ok(response(200, &[]))).await.is_none());
    }
}

/// Case 32, for HTTP: the preset for models counts the refusals of a breaker inside, the other
/// preset does not.
#[tokio::test(start_paused = true)]
async fn the_preset_for_models_counts_a_refusal_inside_as_a_failed_turn() {
    async fn turns<E>(classifier: StatusClassifier<E>) -> (FallbackState, State)
    where
        StatusClassifier<E>: Classify<Response<String>, BoxError> + Clone,
    {
        let inner = CircuitBreakerLayer::new()
            .failure_threshold(2)
            .classify(StatusClassifier::new());
        let circuit = inner.handle();
        let layer = FallbackLayer::new("gpt-5")
            .backup("claude", service_fn(server))
            .classify(classifier);
        let handle = layer.handle();
        let mut service = layer.layer(inner.layer(service_fn(server)));
        get(&mut service, 503).await;
        get(&mut service, 503).await;
        assert!(ask(&mut service, Ok(response(200, &[]))).await.is_none());
        (handle.state(), circuit.state())
    }
    let models = StatusClassifier::models;
    assert_eq!(
        turns(models()).await,
        (FallbackState::Fallback, State::Open)
    );
    let primary = (FallbackState::Primary, State::Open);
    assert_eq!(turns(StatusClassifier::new()).await, primary);
    assert_eq!(turns(models().errors(ErrorsAsFailures)).await, primary);
}

// ===== a table that a user changes =====

#[tokio::test(start_paused = true)]
async fn a_changed_table_decides_the_outcome() {
    let statuses = StatusClassifier::new()
        .statuses(300..=399, tower_breaker::Failure::fatal())
        .status(StatusCode::NOT_MODIFIED, Outcome::Success);
    let layer = CircuitBreakerLayer::new().classify(statuses);
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(server));
    get(&mut service, 304).await;
    assert_eq!(handle.state(), State::Closed);
    get(&mut service, 301).await;
    assert_eq!(handle.state(), State::Open);
}

/// The error may be of any type.
#[tokio::test(start_paused = true)]
async fn errors_are_failures_unless_another_classifier_judges_them() {
    struct Mistake;
    type Answer = Result<Response<()>, Mistake>;
    let layer = CircuitBreakerLayer::new()
        .classify(StatusClassifier::new())
        .refuse(SoftRefusal::text());
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|()| async {
        Err::<Response<String>, _>(Mistake)
    }));
    for _ in 0..3 {
        let result = service.ready().await;
        let Ok(service) = result else {
            panic!("not ready")
        };
        assert!(service.call(()).await.is_err());
    }
    assert_eq!(handle.state(), State::Open);

    let judged =
        StatusClassifier::new().errors(|_: Result<&Response<()>, &Mistake>| Outcome::Neutral);
    let answer: Answer = Err(Mistake);
    assert_eq!(judged.classify(answer.as_ref()), Outcome::Neutral);
}

/// A response of another type can be judged by its head, and hints by the headers alone.
#[test]
fn a_head_is_judged_and_hints_are_read_without_a_response() {
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from(7));
    let outcome = StatusClassifier::new().of_head(StatusCode::TOO_MANY_REQUESTS, &headers);
    let Outcome::Failure(failure) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (failure.kind(), failure.retry_after()),
        (RateLimited, Some(secs(7)))
    );
    assert_eq!(retry_after(&headers), Some(secs(7)));
    assert_eq!(rate_limit_reset(&headers), None);
}
