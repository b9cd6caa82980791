//! Feature `http`: how the layers judge the heads of responses, and refusals as responses.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::oneshot;
use tokio::time::advance;
use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::http::{SoftRefusal, StatusClassifier, rate_limit_reset, retry_after};
use tower_breaker::{
    CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer, Classify, Digest, ErrorsAsFailures,
    FailureKind, FallbackHandle, FallbackLayer, FallbackState, Outcome, Reason, Refusal, State,
    TripwireLayer,
};

// ===== what the tests share =====

/// The answer of the server. The request carries it.
type Scripted = Result<Response<String>, BoxError>;

fn response(status: u16, headers: &[(&'static str, &str)]) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        response.headers_mut().append(*name, value);
    }
    response
}

/// A server that answers as the request says.
async fn server(scripted: Scripted) -> Scripted {
    scripted
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const NS: Duration = Duration::from_nanos(1);

/// One call; `None` if it was refused.
async fn ask<S>(service: &mut S, scripted: Scripted) -> Option<Scripted>
where
    S: Service<Scripted, Response = Response<String>, Error = BoxError>,
{
    let result = service.ready().await.unwrap().call(scripted).await;
    let refused = matches!(&result, Err(err) if Refusal::find(&**err).is_some());
    (!refused).then_some(result)
}

async fn get<S>(service: &mut S, status: u16)
where
    S: Service<Scripted, Response = Response<String>, Error = BoxError>,
{
    let answer = ask(service, Ok(response(status, &[]))).await;
    assert_eq!(answer.unwrap().unwrap().status(), status);
}

/// Returns how long the circuit still refuses.
fn left(handle: &CircuitBreakerHandle) -> Duration {
    let refusal = handle.try_acquire().unwrap_err();
    assert_eq!(refusal.reason(), Reason::CircuitOpen);
    refusal.retry_after().unwrap()
}

// ===== case 9 =====

#[tokio::test(start_paused = true)]
async fn a_late_rate_limit_with_a_longer_hint_keeps_the_circuit_open() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(secs(5))
        .classify(StatusClassifier::new());
    let handle = layer.handle();
    let held = service_fn(|answer: oneshot::Receiver<Response<String>>| async move {
        Ok::<_, BoxError>(answer.await?)
    });
    let mut service = layer.layer(held);

    let (late, receive) = oneshot::channel();
    let late_call = service.ready().await.unwrap().call(receive);
    let (first, receive) = oneshot::channel();
    let first_call = service.ready().await.unwrap().call(receive);

    first.send(response(429, &[("retry-after", "1")])).unwrap();
    first_call.await.unwrap();
    // One second is less than the cooldown.
    assert_eq!((handle.state(), left(&handle)), (State::Open, secs(5)));

    late.send(response(429, &[("retry-after", "60")])).unwrap();
    late_call.await.unwrap();
    assert_eq!(left(&handle), secs(60));
    advance(secs(60) - NS).await;
    assert!(!handle.would_allow());
    assert_eq!(left(&handle), NS);
    advance(NS).await;
    assert!(handle.would_allow());
}

/// Trips a circuit by such a response, and returns how long it is open. The cooldown is 30 s, and
/// the cap is 5 minutes.
async fn open_for(status: u16, headers: &[(&'static str, &str)]) -> Duration {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(StatusClassifier::new());
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(server));
    let answer = ask(&mut service, Ok(response(status, headers))).await;
    assert!(answer.is_some());
    assert_eq!(handle.state(), State::Open);

    let open = left(&handle);
    advance(open - NS).await;
    assert!(!handle.would_allow(), "{headers:?}");
    advance(NS).await;
    assert!(handle.would_allow(), "{headers:?}");
    open
}

#[tokio::test(start_paused = true)]
async fn a_hint_lengthens_the_cooldown_and_never_shortens_it_or_passes_the_cap() {
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let (cooldown, cap) = (secs(30), secs(300));
    for (text, open) in [
        ("60", secs(60)),
        ("31.5", Duration::from_millis(31_500)),
        ("Sun, 06 Nov 1994 08:51:37 GMT", secs(120)),
        ("29", cooldown),
        ("1", cooldown),
        // Garbage, zero, negative, past.
        ("-5", cooldown),
        ("0", cooldown),
        ("1e999", cooldown),
        ("NaN", cooldown),
        ("soon", cooldown),
        ("", cooldown),
        ("\u{e9}", cooldown),
        (NOW, cooldown),
        ("Sat, 05 Nov 1994 08:49:37 GMT", cooldown),
        // Huge.
        ("301", cap),
        ("9223372037", cap),
        ("18446744073709551616", cap),
        ("9999999999999999999999999999999999999999", cap),
        ("Mon, 06 Nov 1995 08:49:37 GMT", cap),
        ("Fri, 31 Dec 9999 23:59:59 GMT", cap),
    ] {
        for status in [429, 503, 408] {
            let headers = [("date", NOW), ("retry-after", text)];
            assert_eq!(open_for(status, &headers).await, open, "{status} {text:?}");
        }
    }
    for (text, open) in [
        ("60500", Duration::from_millis(60_500)),
        ("-5", secs(45)),
        ("0", secs(45)),
        ("9223372037", cap),
        ("18446744073709551616", cap),
    ] {
        let headers = [("retry-after", "45"), ("retry-after-ms", text)];
        assert_eq!(open_for(429, &headers).await, open, "{text:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_date_alone_is_measured_by_the_systems_clock() {
    let date = |at: SystemTime| httpdate::fmt_http_date(at);
    let year = secs(365 * 86_400);
    let ahead = date(SystemTime::now() + year);
    assert_eq!(open_for(503, &[("retry-after", &ahead)]).await, secs(300));
    let past = date(SystemTime::now() - year);
    assert_eq!(open_for(503, &[("retry-after", &past)]).await, secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_limits_reset_counts_for_a_rate_limit_alone() {
    let spent = [
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "4m0s"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "1m30s"),
    ];
    assert_eq!(open_for(429, &spent).await, secs(90));
    assert_eq!(open_for(503, &spent).await, secs(30));
    let told = [&spent[..], &[("retry-after", "40")]].concat();
    assert_eq!(open_for(429, &told).await, secs(40));
    // GitHub's is a date in seconds since 1970.
    let github = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1372700873"),
    ];
    assert_eq!(open_for(429, &github).await, secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_huge_hint_without_a_cap_never_panics() {
    for text in ["9223372037", "18446744073709551616", "584554531"] {
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .retry_after_cap(Duration::MAX)
            .classify(StatusClassifier::new());
        let handle = layer.handle();
        let mut service = layer.layer(service_fn(server));
        let answer = response(429, &[("retry-after", text)]);
        assert!(ask(&mut service, Ok(answer)).await.is_some());
        advance(secs(1_000_000)).await;
        assert!(!handle.would_allow(), "{text}");
        handle.reset();
        assert!(handle.would_allow());
    }
}

/// A hint from before the trip still counts at the trip.
#[tokio::test(start_paused = true)]
async fn an_earlier_hint_of_the_streak_holds_at_the_trip() {
    let layer = CircuitBreakerLayer::new().classify(StatusClassifier::new());
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(server));
    let hinting = response(429, &[("retry-after", "100")]);
    ask(&mut service, Ok(hinting)).await.unwrap().unwrap();
    advance(secs(10)).await;
    get(&mut service, 503).await;
    get(&mut service, 503).await;
    assert_eq!((handle.state(), left(&handle)), (State::Open, secs(90)));
}

// ===== case 19 =====

#[tokio::test(start_paused = true)]
async fn the_callers_own_mistakes_trip_nothing() {
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
    // They do not end a streak either.
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

#[tokio::test(start_paused = true)]
async fn three_times_unavailable_trips() {
    let layer = CircuitBreakerLayer::new().classify(StatusClassifier::new());
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(server));
    for _ in 0..3 {
        assert_eq!(handle.state(), State::Closed);
        get(&mut service, 503).await;
    }
    assert_eq!(handle.state(), State::Open);
}

// ===== case 20 =====

type Answers = Response<Full<Bytes>>;

/// A tool whose request says when it answers, and with which status.
fn guarded(
    policy: SoftRefusal,
) -> (
    CircuitBreakerHandle,
    CircuitBreaker<
        impl Service<oneshot::Receiver<u16>, Response = Answers, Error = Infallible>,
        StatusClassifier,
        SoftRefusal,
    >,
) {
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .classify(StatusClassifier::new())
        .refuse(policy);
    let tool = service_fn(|status: oneshot::Receiver<u16>| async move {
        let status = status.await.expect("an answer");
        Ok(response(status, &[]).map(Full::from))
    });
    (layer.handle(), layer.layer(tool))
}

fn at_once(status: u16) -> oneshot::Receiver<u16> {
    let (send, receive) = oneshot::channel();
    send.send(status).unwrap();
    receive
}

async fn body(answer: Answers) -> String {
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_a_503_that_says_how_long_to_wait() {
    let (handle, mut service) = guarded(SoftRefusal::text());
    for _ in 0..3 {
        let Ok(answer) = service.ready().await.unwrap().call(at_once(503)).await;
        assert!(body(answer).await.is_empty(), "the service's own");
    }
    advance(secs(10)).await;
    let refused = |answer: Answers, seconds: &'static str| async move {
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["retry-after"], seconds);
        assert_eq!(
            answer.headers()["content-type"],
            "text/plain; charset=utf-8"
        );
        assert_eq!(
            body(answer).await,
            "tool `search` temporarily unavailable: circuit breaker open"
        );
    };
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "20").await;
    // The wait is rounded up, so a caller that comes back then is not refused again.
    advance(NS).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "20").await;
    advance(secs(19)).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "1").await;

    // Half-open: the rest of the lease.
    advance(secs(1)).await;
    let (answer_probe, asked) = oneshot::channel();
    let mut probe = task::spawn(service.ready().await.unwrap().call(asked));
    assert_pending!(probe.poll());
    assert_eq!(handle.state(), State::HalfOpen);
    advance(secs(5)).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "25").await;
    let refusal = handle.try_acquire().unwrap_err();
    assert_eq!(refusal.reason(), Reason::ProbeInFlight);
    assert_eq!(refusal.last_failure(), Some(FailureKind::Transient));
    answer_probe.send(200).unwrap();
    let Ok(answer) = probe.await;
    assert_eq!(
        (answer.status().as_u16(), handle.state()),
        (200, State::Closed)
    );

    // Pinned open: no time is known.
    handle.force_open();
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    assert_eq!(answer.headers().get("retry-after"), None);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_as_a_problem_is_json() {
    let (_handle, mut service) = guarded(SoftRefusal::problem());
    for _ in 0..3 {
        let Ok(_) = service.ready().await.unwrap().call(at_once(500)).await;
    }
    advance(secs(10)).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "20");
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&body(answer).await).unwrap();
    assert_eq!(
        problem,
        serde_json::json!({
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

/// A model wrote this key, which is the name of its circuit.
#[tokio::test(start_paused = true)]
async fn a_name_from_a_model_stays_inside_its_string() {
    let name = "a\"}\\\n\u{1}`{";
    let layer = CircuitBreakerLayer::new()
        .per_key(|name: &String| name.as_str(), 10)
        .refuse(SoftRefusal::problem());
    layer.handle().force_open(name);
    let service = layer.layer(service_fn(|_: String| async {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let Ok(answer) = service.oneshot(name.to_owned()).await;
    let problem: serde_json::Value = serde_json::from_str(answer.body()).unwrap();
    assert_eq!(problem["name"], name);
    assert_eq!(problem["reason"], "forced_open");
    assert_eq!(problem.get("retry_after"), None);
}

/// Section 4: inner layers refuse with errors, and one outermost `then` makes the response for any
/// of them.
#[tokio::test(start_paused = true)]
async fn one_outermost_response_serves_the_refusals_of_every_layer() {
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .classify(StatusClassifier::new());
    let tripwire = TripwireLayer::new()
        .max_turns(4)
        .digest(|_: &Scripted| None::<Digest>)
        .classify(StatusClassifier::new().statuses(500..=599, Outcome::Neutral));
    let (circuit, fence) = (breaker.handle(), tripwire.handle());
    let mut service = ServiceBuilder::new()
        .then(|result: Scripted| async move {
            match result {
                Err(err) => match Refusal::find(&*err) {
                    Some(refusal) => Ok(SoftRefusal::problem().response(refusal)),
                    None => Err(err),
                },
                answer => answer,
            }
        })
        .layer(tripwire)
        .layer(breaker)
        .service_fn(server);
    for _ in 0..3 {
        get(&mut service, 503).await;
    }
    let reason = |answer: Option<Scripted>| {
        let answer = answer.expect("a response").unwrap();
        let problem: serde_json::Value = serde_json::from_str(answer.body()).unwrap();
        let seconds = answer.headers().get("retry-after").cloned();
        (problem["reason"].as_str().unwrap().to_owned(), seconds)
    };
    let answer = ask(&mut service, Ok(response(200, &[]))).await;
    assert_eq!(reason(answer), ("circuit_open".into(), Some(30.into())));
    assert_eq!(
        (circuit.state(), fence.state()),
        (State::Open, State::Closed)
    );
    let answer = ask(&mut service, Ok(response(200, &[]))).await;
    assert_eq!(reason(answer), ("max_turns".into(), None));
    assert_eq!(fence.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_tripwires_soft_refusal_may_have_another_status() {
    let layer = TripwireLayer::new()
        .max_turns(0)
        .digest(|_: &Scripted| None::<Digest>)
        .refuse(SoftRefusal::text().status(StatusCode::CONFLICT));
    let service = layer.layer(service_fn(server));
    let answer = service.oneshot(Ok(response(200, &[]))).await.unwrap();
    assert_eq!(answer.status(), 409);
    assert_eq!(answer.headers().get("retry-after"), None);
    assert!(answer.body().contains("all 0 turns"), "{answer:?}");
}

/// A fallback refuses like the other layers. Errors of the inner service pass through a soft
/// policy unchanged.
#[tokio::test(start_paused = true)]
async fn a_soft_fallback_refuses_with_the_time_until_its_primary_is_probed() {
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", service_fn(server))
        .classify(StatusClassifier::models())
        .refuse(SoftRefusal::problem());
    let mut service = layer.layer(service_fn(server));
    for status in [401, 403] {
        get(&mut service, status).await;
    }
    advance(Duration::from_millis(20_500)).await;
    let answer = ask(&mut service, Ok(response(200, &[]))).await;
    let answer = answer.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "40");
    assert!(answer.body().contains("\"reason\":\"fallback_exhausted\""));
    assert!(answer.body().contains("\"name\":\"gpt-5\""));

    let err = CircuitBreakerLayer::new()
        .refuse(SoftRefusal::text())
        .layer(service_fn(server))
        .oneshot(Err("down".into()))
        .await
        .unwrap_err();
    assert_eq!(err.to_string(), "down");
}

// ===== case 34 =====

/// The effect of a status.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    /// It changes nothing: a streak neither grows nor ends.
    Nothing,
    Succeeds,
    Counts(FailureKind),
}

use Does::{Counts, Nothing, Succeeds};
use FailureKind::{Fatal, RateLimited, Transient};

/// Twelve statuses, with their effect for any service and for a model.
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

/// Returns the effect of one response of this status on a breaker that has had one failure of the
/// three that trip it.
async fn breaker<E>(classifier: StatusClassifier<E>, status: u16) -> Does
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

fn fallback<E>(
    classifier: StatusClassifier<E>,
) -> (
    FallbackHandle,
    impl Service<Scripted, Response = Response<String>, Error = BoxError>,
)
where
    StatusClassifier<E>: Classify<Response<String>, BoxError> + Clone,
{
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", service_fn(server))
        .backup("llama", service_fn(server))
        .classify(classifier);
    (layer.handle(), layer.layer(service_fn(server)))
}

/// Returns the effect of one response of this status on the primary of a fallback.
async fn primary<E>(classifier: StatusClassifier<E>, status: u16) -> Does
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

/// Returns how many strikes one response of this status gives to the first backup, and who serves
/// next. The budget is two strikes.
async fn backup<E>(classifier: StatusClassifier<E>, status: u16) -> (u32, String)
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

#[tokio::test(start_paused = true)]
async fn twelve_statuses_have_the_documented_effects() {
    for (status, any, model) in TABLE {
        let (new, models) = (StatusClassifier::new, StatusClassifier::models);
        assert_eq!(breaker(new(), status).await, any, "{status}");
        assert_eq!(breaker(models(), status).await, model, "{status}");
        assert_eq!(primary(new(), status).await, any, "{status}");
        assert_eq!(primary(models(), status).await, model, "{status}");

        let strikes = |does: Does| match does {
            Counts(Fatal) => (2, "llama".to_owned()),
            Counts(_) => (1, "claude".to_owned()),
            Nothing | Succeeds => (0, "claude".to_owned()),
        };
        assert_eq!(backup(new(), status).await, strikes(any), "{status}");
        assert_eq!(backup(models(), status).await, strikes(model), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fatal_status_trips_and_spends_an_entry_at_once() {
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
        // Three calls spend all three models.
        assert_eq!(handle.active_model(), None);
        assert!(ask(&mut service, Ok(response(200, &[]))).await.is_none());
    }
}

/// The hint in a response of the primary lengthens its cooldown. A backup's hint moves nothing.
#[tokio::test(start_paused = true)]
async fn only_the_hint_of_the_primary_lengthens_a_fallbacks_cooldown() {
    let (handle, mut service) = fallback(StatusClassifier::models());
    for _ in 0..3 {
        let limited = response(429, &[("retry-after", "90")]);
        ask(&mut service, Ok(limited)).await.unwrap().unwrap();
    }
    assert_eq!(handle.snapshot().time_until_probe, Some(secs(90)));
    let limited = response(429, &[("retry-after", "300")]);
    ask(&mut service, Ok(limited)).await.unwrap().unwrap();
    assert_eq!(handle.snapshot().entries[0].strikes, 1);
    assert_eq!(handle.snapshot().time_until_probe, Some(secs(90)));
}

/// Case 32, over HTTP: for the preset for models, a refusal of a breaker further inside is a
/// failed turn. For the other preset it is neutral.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_breaker_inside_is_a_failed_turn_for_the_model_preset() {
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

// ===== the table that a user changes =====

#[tokio::test(start_paused = true)]
async fn a_changed_table_decides() {
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

/// A classifier of its own judges errors, and any error type will do.
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

/// For responses of another type, the head alone is judged, and the hints are read alone.
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
