//! gRPC: how each status is judged in the head, in the trailers and through the layers. Also
//! refusals that a gRPC client can read.

#![cfg(feature = "grpc")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::vec;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use proptest::prelude::*;
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::grpc::{Code, Codes, SoftRefusal, retry_after};
use tower_breaker::http::{EndOfBody, Inspect};
use tower_breaker::{
    CircuitBreakerLayer, Classify, ErrorsAsFailures, Failure, FailureKind, FallbackLayer,
    FallbackState, Outcome, Refusal, RefusalsAsFailures, State, TripwireLayer,
};

type Answer = Response<Full<Bytes>>;

const TRANSIENT: Outcome = Outcome::Failure(Failure::transient());
const RATE_LIMITED: Outcome = Outcome::Failure(Failure::rate_limited());
const FATAL: Outcome = Outcome::Failure(Failure::fatal());

/// The outcome of each code: for the circuit of a tool, and for the fallback of a model.
const TABLE: [(Code, Outcome, Outcome); 17] = [
    (Code::Ok, Outcome::Success, Outcome::Success),
    (Code::Cancelled, Outcome::Neutral, Outcome::Neutral),
    (Code::Unknown, TRANSIENT, TRANSIENT),
    (Code::InvalidArgument, Outcome::Neutral, Outcome::Neutral),
    (Code::DeadlineExceeded, TRANSIENT, TRANSIENT),
    (Code::NotFound, Outcome::Neutral, FATAL),
    (Code::AlreadyExists, Outcome::Neutral, Outcome::Neutral),
    (Code::PermissionDenied, Outcome::Neutral, FATAL),
    (Code::ResourceExhausted, RATE_LIMITED, RATE_LIMITED),
    (Code::FailedPrecondition, Outcome::Neutral, Outcome::Neutral),
    (Code::Aborted, Outcome::Neutral, Outcome::Neutral),
    (Code::OutOfRange, Outcome::Neutral, Outcome::Neutral),
    (Code::Unimplemented, Outcome::Neutral, FATAL),
    (Code::Internal, TRANSIENT, TRANSIENT),
    (Code::Unavailable, TRANSIENT, TRANSIENT),
    (Code::DataLoss, TRANSIENT, TRANSIENT),
    (Code::Unauthenticated, Outcome::Neutral, FATAL),
];

fn response(status: u16, headers: &[(&'static str, &str)]) -> Answer {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Full::default()).unwrap()
}

fn trailers_only(status: i32) -> Answer {
    response(200, &[("grpc-status", &status.to_string())])
}

fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
    response(200, headers).into_parts().0.headers
}

/// Judges a head.
fn head<E: Classify<Answer, BoxError>>(codes: &Codes<E>, response: &Answer) -> Outcome {
    codes.classify(Ok(response))
}

/// Judges a body: by its trailers, or at its end if they give no verdict.
fn body<E: Clone>(
    codes: &Codes<E>,
    head: &Answer,
    trailers: Option<&[(&'static str, &str)]>,
) -> Outcome {
    fn judged<I: Inspect<Bytes>>(
        mut inspect: I,
        head: &Answer,
        trailers: Option<&[(&'static str, &str)]>,
    ) -> Outcome {
        inspect.head(head.status(), head.headers());
        assert_eq!(inspect.frame(&Frame::data(Bytes::from("first"))), None);
        assert_eq!(inspect.frame(&Frame::data(Bytes::new())), None);
        trailers
            .and_then(|trailers| inspect.frame(&Frame::trailers(map(trailers))))
            .unwrap_or_else(|| inspect.end())
    }
    judged(codes.clone(), head, trailers)
}

fn hint(outcome: Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Failure(failure) => failure.retry_after(),
        _ => None,
    }
}

// ===== what a status says =====

#[test]
fn each_code_has_the_outcome_of_the_table_in_the_head_and_in_the_trailers() {
    for (number, (code, tool, model)) in (0..).zip(TABLE) {
        assert_eq!(code.number(), number);
        let in_head = trailers_only(number);
        let number = number.to_string();
        let in_trailers: &[_] = &[("grpc-status", &*number)];
        let (tools, models) = (Codes::new(), Codes::models());
        assert_eq!(tools.outcome(code), tool, "{code}");
        assert_eq!(head(&tools, &in_head), tool, "{code}");
        assert_eq!(
            body(&tools, &response(200, &[]), Some(in_trailers)),
            tool,
            "{code}"
        );
        assert_eq!(models.outcome(code), model, "{code}");
        assert_eq!(head(&models, &in_head), model, "{code}");
        assert_eq!(
            body(&models, &response(200, &[]), Some(in_trailers)),
            model,
            "{code}"
        );
    }
}

#[test]
fn a_status_that_is_no_code_is_unknown_and_so_a_failure() {
    for value in ["", "17", "-1", "014", "OK", "14, 0"] {
        assert_eq!(
            head(&Codes::new(), &response(200, &[("grpc-status", value)])),
            TRANSIENT,
            "{value}"
        );
    }
}

#[test]
fn an_http_status_stands_for_a_code_only_where_there_is_no_grpc_status() {
    // Each code has an outcome of its own, so that a mix-up shows.
    let codes = TABLE.iter().fold(Codes::new(), |codes, (code, ..)| {
        codes.code(*code, told_apart(*code))
    });
    for status in (100..600).filter(|status| *status != 200) {
        let code = match status {
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502..=504 => Code::Unavailable,
            _ => Code::Unknown,
        };
        let plain = response(status, &[("content-type", "text/html")]);
        assert_eq!(head(&codes, &plain), told_apart(code), "{status}");
        assert_eq!(body(&codes, &plain, None), told_apart(code), "{status}");
        let with_status = response(status, &[("grpc-status", "5")]);
        assert_eq!(head(&codes, &with_status), told_apart(Code::NotFound));
        assert_eq!(body(&codes, &with_status, None), told_apart(Code::NotFound));
    }
}

fn told_apart(code: Code) -> Outcome {
    let number = u64::try_from(code.number()).unwrap();
    Failure::transient()
        .with_retry_after(Duration::from_secs(1 + number))
        .into()
}

#[test]
fn a_200_without_a_status_is_a_success_so_far_and_a_failure_when_it_ends_so() {
    let plain = response(200, &[("content-type", "application/grpc")]);
    assert_eq!(head(&Codes::new(), &plain), Outcome::Success);
    assert_eq!(body(&Codes::new(), &plain, None), TRANSIENT);
    let others: &[_] = &[("grpc-message", "0"), ("x-trace", "14")];
    assert_eq!(body(&Codes::new(), &plain, Some(others)), TRANSIENT);
}

#[test]
fn a_status_in_the_head_stands_at_the_end_of_a_body_without_one() {
    let codes = Codes::new();
    assert_eq!(body(&codes, &trailers_only(0), None), Outcome::Success);
    assert_eq!(body(&codes, &trailers_only(14), None), TRANSIENT);
    assert_eq!(body(&codes, &trailers_only(5), None), Outcome::Neutral);
    let late: &[_] = &[("grpc-status", "8")];
    assert_eq!(body(&codes, &trailers_only(0), Some(late)), RATE_LIMITED);
    assert_eq!(body(&codes, &response(500, &[]), Some(late)), RATE_LIMITED);
}

#[test]
fn an_inspector_remembers_the_last_head_alone() {
    let mut codes = Codes::new();
    let inspect: &mut dyn Inspect<Bytes> = &mut codes;
    inspect.head(StatusCode::OK, trailers_only(0).headers());
    assert_eq!(inspect.end(), Outcome::Success);
    inspect.head(StatusCode::OK, response(200, &[]).headers());
    assert_eq!(inspect.end(), TRANSIENT);
}

#[test]
fn a_changed_code_changes_that_code_alone_and_not_the_clone_that_was_there_before() {
    let before = Codes::new().code(Code::Aborted, Failure::transient());
    let after = before.clone().code(Code::Ok, Outcome::Neutral);
    for (code, tool, _) in TABLE {
        let aborted = (code == Code::Aborted).then_some(TRANSIENT);
        assert_eq!(before.outcome(code), aborted.unwrap_or(tool), "{code}");
        let ok = (code == Code::Ok).then_some(Outcome::Neutral);
        assert_eq!(
            after.outcome(code),
            aborted.or(ok).unwrap_or(tool),
            "{code}"
        );
    }
    let model = Codes::models().code(Code::NotFound, Outcome::Neutral);
    assert_eq!(model.outcome(Code::NotFound), Outcome::Neutral);
    assert_eq!(model.outcome(Code::Unimplemented), FATAL);
    assert_eq!(head(&after, &trailers_only(10)), TRANSIENT);
    assert_eq!(head(&after, &trailers_only(0)), Outcome::Neutral);
}

#[test]
fn errors_are_for_the_classifier_of_errors() {
    fn of<E: Classify<Answer, BoxError>>(codes: &Codes<E>, err: &BoxError) -> Outcome {
        codes.classify(Err(err))
    }
    let refusal = || -> BoxError {
        let circuit = CircuitBreakerLayer::new().handle();
        circuit.force_open();
        circuit.try_acquire().unwrap_err().into()
    };
    assert_eq!(of(&Codes::new(), &"down".into()), TRANSIENT);
    assert_eq!(of(&Codes::new(), &refusal()), Outcome::Neutral);
    assert_eq!(of(&Codes::default(), &refusal()), Outcome::Neutral);
    assert_eq!(of(&Codes::models(), &"down".into()), TRANSIENT);
    assert_eq!(of(&Codes::models(), &refusal()), TRANSIENT);
    let models = Codes::models().errors(ErrorsAsFailures);
    assert_eq!(of(&models, &refusal()), Outcome::Neutral);
    assert_eq!(models.outcome(Code::NotFound), FATAL);
    assert_eq!(
        of(&Codes::new().errors(RefusalsAsFailures), &refusal()),
        TRANSIENT
    );
    let closure = Codes::new().code(Code::Aborted, Failure::fatal()).errors(
        |result: Result<&Answer, &BoxError>| {
            assert!(result.is_err());
            Outcome::Neutral
        },
    );
    assert_eq!(of(&closure, &"down".into()), Outcome::Neutral);
    assert_eq!(head(&closure, &trailers_only(10)), FATAL);
    assert_eq!(head(&closure, &response(200, &[])), Outcome::Success);
}

// ===== hints =====

#[test]
fn failures_of_every_kind_carry_the_hint_and_nothing_else_does() {
    let wait = Duration::from_millis(1_500);
    for (code, tool, model) in TABLE {
        let number = code.number().to_string();
        let fields: &[_] = &[
            ("grpc-status", &*number),
            ("grpc-retry-pushback-ms", "1500"),
        ];
        let expected = |outcome| match outcome {
            Outcome::Failure(failure) => Outcome::Failure(failure.with_retry_after(wait)),
            other => other,
        };
        assert_eq!(head(&Codes::new(), &response(200, fields)), expected(tool));
        let plain = response(200, &[]);
        assert_eq!(
            body(&Codes::models(), &plain, Some(fields)),
            expected(model)
        );
    }
    let proxy = response(503, &[("grpc-retry-pushback-ms", "1500")]);
    assert_eq!(hint(head(&Codes::new(), &proxy)), Some(wait));
}

#[test]
fn a_hint_of_the_table_goes_before_the_servers_hint() {
    let wait = Failure::transient().with_retry_after(Duration::from_secs(5));
    let codes = Codes::new().code(Code::Unavailable, wait);
    let told = |pushback| {
        let fields = [("grpc-status", "14"), ("grpc-retry-pushback-ms", pushback)];
        hint(head(&codes, &response(200, &fields)))
    };
    assert_eq!(told("1000"), Some(Duration::from_secs(5)));
    assert_eq!(told("9000"), Some(Duration::from_secs(5)));
    assert_eq!(told("-1"), Some(Duration::from_secs(5)));
}

#[test]
fn a_server_that_says_never_or_nonsense_gives_no_hint() {
    for pushback in ["-1", "0", "1e999", "NaN", "soon", ""] {
        let fields = [("grpc-status", "14"), ("grpc-retry-pushback-ms", pushback)];
        assert_eq!(head(&Codes::new(), &response(200, &fields)), TRANSIENT);
    }
}

proptest! {
    #[test]
    fn no_header_causes_a_panic_or_a_hint_of_zero(
        status in any::<u16>(),
        fields in proptest::collection::vec(
            (
                prop_oneof![
                    Just("grpc-status"),
                    Just("grpc-retry-pushback-ms"),
                    Just("grpc-status-details-bin"),
                    Just("retry-after"),
                    Just("grpc-message"),
                ],
                prop_oneof![
                    any::<Vec<u8>>(),
                    "-?[0-9]{0,24}".prop_map(String::into_bytes),
                    "[A-Za-z0-9+/]{0,64}={0,2}".prop_map(String::into_bytes),
                ],
            ),
            0..8,
        ),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in &fields {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        *response.headers_mut() = headers.clone();
        let plain: Answer = Response::new(Full::default());
        for codes in [Codes::new(), Codes::new().code(Code::Ok, Failure::fatal())] {
            let in_head = head(&codes, &response);
            let mut inspect = codes.clone();
            Inspect::<Bytes>::head(&mut inspect, plain.status(), plain.headers());
            let in_trailers = inspect.frame(&Frame::<Bytes>::trailers(headers.clone()));
            prop_assert_eq!(in_trailers, codes.status_in(&headers));
            for outcome in [Some(in_head), in_trailers].into_iter().flatten() {
                prop_assert_ne!(hint(outcome), Some(Duration::ZERO));
            }
        }
        prop_assert_ne!(retry_after(&headers), Some(Duration::ZERO));
    }
}

#[test]
fn the_retry_after_of_a_proxy_is_heeded_and_one_beside_a_grpc_status_is_not() {
    let told = |status, fields: &[_]| hint(head(&Codes::new(), &response(status, fields)));
    let after = ("retry-after", "20");
    assert_eq!(told(503, &[after]), Some(Duration::from_secs(20)));
    assert_eq!(told(429, &[after]), Some(Duration::from_secs(20)));
    assert_eq!(told(401, &[after]), None, "neutral");
    assert_eq!(told(503, &[("retry-after", "-20")]), None);
    assert_eq!(told(200, &[("grpc-status", "14"), after]), None);
    assert_eq!(told(503, &[("grpc-status", "14"), after]), None);
    for (pushback, seconds) in [("19000", 20), ("21000", 21)] {
        let both = [after, ("grpc-retry-pushback-ms", pushback)];
        assert_eq!(told(503, &both), Some(Duration::from_secs(seconds)));
    }
}

// ===== through the layers, at the head =====

/// A channel with fixed answers, which counts its calls.
#[derive(Clone, Default)]
struct Channel {
    calls: Arc<AtomicUsize>,
}

impl Channel {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Answers each request with the status in its body, and with the pushback in its header.
    fn service(
        &self,
    ) -> impl Service<Request<i32>, Response = Answer, Error = BoxError, Future: Send> + Clone + use<>
    {
        let calls = Arc::clone(&self.calls);
        service_fn(move |req: Request<i32>| {
            calls.fetch_add(1, Ordering::SeqCst);
            let mut answer = trailers_only(*req.body());
            answer.headers_mut().extend(req.headers().clone());
            async move { Ok::<_, BoxError>(answer) }
        })
    }
}

fn asks(status: i32) -> Request<i32> {
    Request::new(status)
}

fn status_of(response: &Answer) -> Code {
    Code::from_bytes(response.headers()["grpc-status"].as_bytes())
}

async fn call<S>(service: &mut S, req: Request<i32>) -> Result<Answer, S::Error>
where
    S: Service<Request<i32>, Response = Answer>,
{
    service.ready().await?.call(req).await
}

#[tokio::test(start_paused = true)]
async fn a_breaker_trips_on_the_servers_faults_and_not_on_the_callers() {
    let layer = CircuitBreakerLayer::new().classify(Codes::new());
    let circuit = layer.handle();
    let channel = Channel::default();
    let mut service = layer_on(&layer, &channel);

    for _ in 0..100 {
        for code in [1, 3, 5, 6, 7, 9, 10, 11, 12, 16] {
            let answer = call(&mut service, asks(code)).await.unwrap();
            assert_eq!(status_of(&answer).number(), code);
        }
    }
    assert_eq!(circuit.state(), State::Closed);

    for code in [14, 13, 4] {
        assert_eq!(circuit.state(), State::Closed);
        call(&mut service, asks(code)).await.unwrap();
    }
    assert_eq!(circuit.state(), State::Open);
    let before = channel.calls();
    let refused = call(&mut service, asks(0)).await.unwrap_err();
    assert!(Refusal::find(&*refused).is_some());
    assert_eq!(channel.calls(), before);
}

fn layer_on<L, S>(layer: &L, channel: &Channel) -> S
where
    L: Layer<tower::util::BoxCloneService<Request<i32>, Answer, BoxError>, Service = S>,
{
    layer.layer(tower::util::BoxCloneService::new(channel.service()))
}

#[tokio::test(start_paused = true)]
async fn a_pushback_lengthens_the_cooldown() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(Codes::new());
    let circuit = layer.handle();
    let mut service = layer_on(&layer, &Channel::default());
    let mut req = asks(8);
    req.headers_mut()
        .insert("grpc-retry-pushback-ms", HeaderValue::from_static("60000"));
    call(&mut service, req).await.unwrap();
    let refusal = circuit.try_acquire().unwrap_err();
    assert_eq!(refusal.retry_after(), Some(Duration::from_secs(60)));
    assert_eq!(refusal.last_failure(), Some(FailureKind::RateLimited));
    advance(Duration::from_millis(59_999)).await;
    assert!(!circuit.would_allow());
    advance(Duration::from_millis(1)).await;
    call(&mut service, asks(0)).await.unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_leaves_a_model_whose_key_is_gone_at_once() {
    let channel = Channel::default();
    let backup = Channel::default();
    let layer = FallbackLayer::new("large")
        .backup("small", tower::util::BoxCloneService::new(backup.service()))
        .classify(Codes::models());
    let handle = layer.handle();
    let mut service = layer_on(&layer, &channel);

    let answer = call(&mut service, asks(3)).await.unwrap();
    assert_eq!(status_of(&answer), Code::InvalidArgument);
    assert_eq!(handle.state(), FallbackState::Primary);
    let answer = call(&mut service, asks(16)).await.unwrap();
    assert_eq!(status_of(&answer), Code::Unauthenticated);
    assert_eq!(handle.state(), FallbackState::Fallback);
    call(&mut service, asks(0)).await.unwrap();
    assert_eq!((channel.calls(), backup.calls()), (2, 1));
}

#[tokio::test]
async fn a_tripwire_counts_the_servers_faults_as_errors() {
    let layer = TripwireLayer::new()
        .digest(|_: &Request<i32>| None)
        .error_limit(2)
        .classify(Codes::new());
    let handle = layer.handle();
    let mut service = layer_on(&layer, &Channel::default());
    for code in [14, 5, 14] {
        assert_eq!(handle.state(), State::Closed);
        call(&mut service, asks(code)).await.unwrap();
    }
    assert_eq!(handle.state(), State::Open);
}

// ===== through the layers, at the end of the body =====

type Stream = StreamBody<stream::Iter<vec::IntoIter<Result<Frame<Bytes>, BoxError>>>>;
type Streamed = Response<Stream>;

/// Makes a response whose body sends these frames.
fn streamed(frames: impl IntoIterator<Item = Result<Frame<Bytes>, BoxError>>) -> Streamed {
    let frames: Vec<_> = frames.into_iter().collect();
    Response::new(StreamBody::new(stream::iter(frames)))
}

/// Makes the response of a server that ends a stream of two messages with a status.
fn ended_with(fields: &[(&'static str, &str)]) -> Streamed {
    streamed([message(), message(), Ok(Frame::trailers(map(fields)))])
}

fn ended(status: i32) -> Streamed {
    ended_with(&[("grpc-status", &status.to_string())])
}

#[allow(clippy::unnecessary_wraps)] // The type of an item of a stream.
fn message() -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x01m")))
}

/// Makes a call whose request carries the response, and reads the response to its end. Returns
/// whether both went well.
async fn read<S, B>(service: &mut S, answer: Streamed) -> bool
where
    S: Service<Streamed, Response = Response<B>, Error = BoxError>,
    B: Body,
{
    let response = service.ready().await.unwrap().call(answer).await.unwrap();
    response.into_body().collect().await.is_ok()
}

fn answers() -> impl Service<Streamed, Response = Streamed, Error = BoxError> + Clone {
    service_fn(|answer: Streamed| async move { Ok::<_, BoxError>(answer) })
}

#[tokio::test(start_paused = true)]
async fn a_breaker_counts_a_failure_in_the_trailers_and_the_wait_beside_it() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()));
    let circuit = layer.handle();
    let mut service = layer.layer(answers());
    for _ in 0..10 {
        assert!(read(&mut service, ended(14)).await);
        assert!(read(&mut service, ended(14)).await);
        // A mistake of the caller ends no streak. A success does.
        assert!(read(&mut service, ended(3)).await);
        assert_eq!(circuit.snapshot().streak, 2);
        assert!(read(&mut service, ended(0)).await);
        assert_eq!(circuit.snapshot().streak, 0);
    }
    for last in [false, false, true] {
        assert_eq!(circuit.state(), State::Closed);
        let wait = if last { "45000" } else { "-1" };
        let busy = ended_with(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", wait)]);
        assert!(read(&mut service, busy).await);
    }
    let refusal = circuit.try_acquire().unwrap_err();
    assert_eq!(refusal.retry_after(), Some(Duration::from_secs(45)));
    assert_eq!(refusal.last_failure(), Some(FailureKind::RateLimited));

    advance(Duration::from_secs(45)).await;
    let probe = service.ready().await.unwrap().call(ended(0)).await.unwrap();
    assert_eq!(circuit.state(), State::HalfOpen);
    probe.into_body().collect().await.unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_without_a_status_or_with_an_error_is_a_failure() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()));
    let circuit = layer.handle();
    let mut service = layer.layer(answers());
    let without_status = Frame::trailers(map(&[("x-trace", "7")]));
    for (answer, ends_well) in [
        (streamed([message(), message()]), true),
        (streamed([]), true),
        (streamed([message(), Ok(without_status)]), true),
        (streamed([message(), Err("cut".into())]), false),
    ] {
        assert_eq!(read(&mut service, answer).await, ends_well);
        assert_eq!(circuit.state(), State::Open);
        circuit.reset();
    }
    assert!(read(&mut service, ended(0)).await);
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_trailers_only_status_counts_once_however_the_head_is_judged() {
    let trailers_only = |status: i32| {
        let mut answer = streamed([]);
        let fields = map(&[("grpc-status", &status.to_string())]);
        *answer.headers_mut() = fields;
        answer
    };
    async fn counts<C>(layer: CircuitBreakerLayer<C>, trailers_only: impl Fn(i32) -> Streamed)
    where
        C: Classify<Streamed, BoxError> + Clone,
    {
        let layer = layer.judge(EndOfBody.inspect(Codes::new()));
        let circuit = layer.handle();
        let mut service = layer.layer(answers());
        for (status, failures) in [(14, 1), (14, 2), (5, 2), (0, 0), (13, 1)] {
            assert!(read(&mut service, trailers_only(status)).await);
            assert_eq!(circuit.snapshot().streak, failures, "{status}");
        }
    }
    counts(
        CircuitBreakerLayer::new().classify(Codes::new()),
        trailers_only,
    )
    .await;
    counts(CircuitBreakerLayer::new(), trailers_only).await;
}

#[tokio::test(start_paused = true)]
async fn a_strike_and_an_error_of_a_run_come_with_the_trailers() {
    let fallback = FallbackLayer::new("large")
        .backup("small", answers())
        .max_fail_count(1)
        .classify(Codes::models())
        .judge(EndOfBody.inspect(Codes::models()));
    let handle = fallback.handle();
    let mut model = fallback.layer(answers());
    assert!(read(&mut model, ended(14)).await);
    assert_eq!(handle.state(), FallbackState::Primary);
    assert!(read(&mut model, ended(5)).await);
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(handle.active_model().as_deref(), Some("small"));
    assert!(read(&mut model, ended(14)).await);
    assert_eq!(handle.active_model(), None);

    let tripwire = TripwireLayer::new()
        .digest(|_: &Streamed| None)
        .error_limit(2)
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()));
    let fence = tripwire.handle();
    let mut tool = tripwire.layer(answers());
    for status in [14, 0, 14, 3, 14] {
        assert_eq!(fence.state(), State::Closed);
        assert!(read(&mut tool, ended(status)).await);
    }
    assert_eq!(fence.state(), State::Open);
}

#[tokio::test]
async fn a_soft_refusal_passes_beside_bodies_that_are_judged_at_their_end() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .refuse(SoftRefusal)
        .judge(EndOfBody.inspect(Codes::new()));
    let circuit = layer.handle();
    circuit.force_open();
    let mut service = layer.layer(service_fn(|req: Request<i32>| async move {
        Ok::<_, BoxError>(trailers_only(*req.body()))
    }));
    let soft = service.ready().await.unwrap().call(asks(0)).await.unwrap();
    assert_eq!(soft.headers()["grpc-status"], "14");
    assert!(soft.body().is_end_stream());
}

// ===== refusals =====

/// Returns the message as a client reads it, decoded as the specification says.
fn decoded(message: &HeaderValue) -> String {
    let mut rest = message.as_bytes();
    let mut bytes = Vec::new();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if let (b'%', [high, low, after @ ..]) = (first, tail) {
            let digits = [*high, *low];
            let digits = std::str::from_utf8(&digits).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_soft_refusal_is_a_trailers_only_unavailable_with_the_text_and_the_wait() {
    let layer = CircuitBreakerLayer::new()
        .name("recherche 100 % à côté")
        .classify(Codes::new().errors(|_: Result<&Answer, &Infallible>| Outcome::Neutral))
        .refuse(SoftRefusal);
    let circuit = layer.handle();
    let mut service =
        ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(|req: Request<i32>| async move {
                Ok::<_, Infallible>(trailers_only(*req.body()))
            }));
    for _ in 0..3 {
        call(&mut service, asks(14)).await.unwrap();
    }
    advance(Duration::from_micros(10_000_100)).await;

    let soft = call(&mut service, asks(0)).await.unwrap();
    assert_eq!(soft.status(), StatusCode::OK);
    assert_eq!(soft.headers()["content-type"], "application/grpc");
    assert_eq!(soft.headers()["grpc-status"], "14");
    assert_eq!(soft.headers()["grpc-retry-pushback-ms"], "20000");
    assert!(soft.body().is_end_stream());
    let message = &soft.headers()["grpc-message"];
    assert!(
        message
            .as_bytes()
            .iter()
            .all(|byte| matches!(byte, 0x20..=0x7e))
    );
    let refusal = circuit.try_acquire().unwrap_err();
    assert_eq!(decoded(message), refusal.to_string());
    assert!(refusal.to_string().contains("`recherche 100 % à côté`"));
}

#[tokio::test]
async fn a_soft_refusal_without_a_known_time_pushes_nothing_back() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .refuse(SoftRefusal);
    layer.handle().force_open();
    let mut service = layer_on(&layer, &Channel::default());
    let soft = call(&mut service, asks(0)).await.unwrap();
    assert_eq!(status_of(&soft), Code::Unavailable);
    assert!(!soft.headers().contains_key("grpc-retry-pushback-ms"));
}

#[tokio::test]
async fn a_soft_refusal_of_a_service_that_was_not_ready_says_at_once() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .refuse(SoftRefusal);
    let mut service = layer_on(&layer, &Channel::default());
    let soft: Answer = service.call(asks(0)).await.unwrap();
    assert_eq!(soft.headers()["grpc-retry-pushback-ms"], "0");
}

#[tokio::test]
async fn an_outermost_then_makes_the_same_response_of_any_layers_refusal() {
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .classify(Codes::new());
    let circuit = layer.handle();
    circuit.force_open();
    let tripwire = TripwireLayer::new()
        .digest(|_: &Request<i32>| None)
        .error_limit(1)
        .classify(Codes::new());
    let fence = tripwire.handle();
    let channel = Channel::default();
    let mut service = ServiceBuilder::new()
        .then(|result: Result<Answer, BoxError>| async move {
            match result {
                Err(err) => match Refusal::find(&*err) {
                    Some(refusal) => Ok(SoftRefusal.response(refusal)),
                    None => Err(err),
                },
                answer => answer,
            }
        })
        .layer(tripwire)
        .layer(layer)
        .service(channel.service());
    let refusal = circuit.try_acquire().unwrap_err();
    for _ in 0..3 {
        let soft = call(&mut service, asks(0)).await.unwrap();
        assert_eq!(status_of(&soft), Code::Unavailable);
        assert_eq!(
            decoded(&soft.headers()["grpc-message"]),
            refusal.to_string()
        );
    }
    assert_eq!((channel.calls(), fence.state()), (0, State::Closed));
}
