//! Tests of the layers around the HTTP service of `async-openai`, for plain and streamed chats,
//! with every fault of an OpenAI-compatible server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::{OpenAIError, StreamError};
use async_openai::middleware::retry::{OpenAIRetryLayer, SimpleRetryPolicy};
use async_openai::middleware::{HttpRequestFactory, ReqwestService};
use async_openai::types::chat::{ChatCompletionRequestUserMessage, CreateChatCompletionRequest};
use futures::StreamExt;
use futures::future::join_all;
use http::HeaderMap;
use reqwest::Body;
use serde_json::{Value, json};
use tower::{BoxError, Service, ServiceBuilder};
use tower_breaker::circuit_breaker::One;
use tower_breaker::http::{EndOfBody, ErrorEvents, InspectBody, StatusClassifier};
use tower_breaker::{
    Cancelled, CircuitBreakerLayer, Classify, ErrorsAsFailures, Event, Failure, FailureKind,
    FallbackLayer, FallbackState, Outcome, Reason, Refusal, RefusalsAsFailures, RefuseWith, State,
    TripwireLayer,
};
use tower_breaker_clients::faulty::{Answer, Fault, Request, Server};

// ===== the server =====

/// The text of a model, in pieces, so that a fault can cut between them.
const PIECES: [&str; 3] = ["one ", "two ", "three"];
const WHOLE: &str = "one two three";

/// Answers as the model that the chat names.
fn chat(request: &Request) -> Answer {
    answer_of(&asked(request)["model"], request)
}

/// Answers as the model `llama`, whatever model the chat names.
fn llama(request: &Request) -> Answer {
    answer_of(&json!("llama"), request)
}

fn asked(request: &Request) -> Value {
    serde_json::from_slice(&request.body).expect("a chat is JSON")
}

fn answer_of(model: &Value, request: &Request) -> Answer {
    if asked(request)["stream"] == true {
        let [a, b, c] = PIECES.map(|piece| event(model, piece));
        return Answer::of("text/event-stream", &[&a, &b, &c, "data: [DONE]\n\n"]);
    }
    let message = json!({ "role": "assistant", "content": WHOLE });
    let whole = json!({
        "id": "1", "object": "chat.completion", "created": 0, "model": model,
        "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
    })
    .to_string();
    let (begin, rest) = whole.split_at(whole.len() / 3);
    let (middle, end) = rest.split_at(rest.len() / 2);
    Answer::of("application/json", &[begin, middle, end])
}

fn event(model: &Value, piece: &str) -> String {
    let chunk = json!({
        "id": "1", "object": "chat.completion.chunk", "created": 0, "model": model,
        "choices": [{ "index": 0, "delta": { "content": piece } }],
    });
    format!("data: {chunk}\n\n")
}

async fn started(respond: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Server {
    Server::start(respond).await.expect("a port on loopback")
}

// ===== the client =====

/// How long the server may be silent, before its head and between two frames.
const SILENCE: Duration = Duration::from_millis(800);

/// The pause of a slow server. It is shorter than `SILENCE`, but the pauses of one answer together
/// are longer.
const PAUSE: Duration = Duration::from_millis(350);

const COOLDOWN: Duration = Duration::from_secs(5);

/// A hint in seconds, longer than `COOLDOWN`.
const HINT: u64 = 20;

type Answered = http::Response<Body>;

/// Makes the HTTP service of `async-openai`, without retries.
fn bare() -> ReqwestService {
    // Each request gets its own connection, so a killed server refuses the next one.
    let client = reqwest::Client::builder()
        .no_proxy()
        .read_timeout(SILENCE)
        .pool_max_idle_per_host(0);
    ReqwestService::new(client.build().expect("a client without TLS"))
}

/// Makes a client whose HTTP service is `service` with `layer` around it.
macro_rules! client {
    ($server:expr, $layer:expr, $service:expr) => {{
        let service = ServiceBuilder::new()
            .map_response(|response: http::Response<_>| response.map(Body::wrap).into())
            .layer($layer)
            .map_response(Answered::from)
            .service($service);
        client($server, service)
    }};
}

fn client<S>(server: &Server, service: S) -> Client<OpenAIConfig>
where
    S: Service<HttpRequestFactory, Response = reqwest::Response> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<OpenAIError> + Send + Sync,
{
    let config = OpenAIConfig::new()
        .with_api_base(format!("{}/v1", server.url()))
        .with_api_key("secret");
    Client::with_config(config).with_http_service(service)
}

type Refuse = fn(HttpRequestFactory, Refusal) -> Result<Answered, OpenAIError>;

/// Refuses with the service's own error type, so its errors stay as they are.
fn refuse(_: HttpRequestFactory, refusal: Refusal) -> Result<Answered, OpenAIError> {
    Err(OpenAIError::Boxed(refusal.into()))
}

/// Makes a breaker that two failures in a row trip.
fn breaker() -> CircuitBreakerLayer<
    StatusClassifier<RefusalsAsFailures>,
    RefuseWith<Refuse>,
    One,
    InspectBody<ErrorEvents>,
> {
    CircuitBreakerLayer::new()
        .failure_threshold(2)
        .recovery_duration(COOLDOWN)
        .classify(StatusClassifier::models())
        .judge(EndOfBody.inspect(ErrorEvents::new()))
        .refuse_with(refuse as Refuse)
}

/// Makes the service of a backup. It sends each chat to another server, with the same body.
fn elsewhere(
    server: &Server,
) -> impl Service<HttpRequestFactory, Response = Answered, Error = OpenAIError, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let port = server.addr().port();
    ServiceBuilder::new()
        .map_request(move |chat: HttpRequestFactory| {
            HttpRequestFactory::new(move || {
                let chat = chat.clone();
                async move {
                    let mut request = chat.build().await?;
                    assert_eq!(request.url_mut().set_port(Some(port)), Ok(()));
                    Ok(request)
                }
            })
        })
        .map_response(Answered::from)
        .service(bare())
}

// ===== the caller =====

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chat,
    Streamed,
}

const KINDS: [Kind; 2] = [Kind::Chat, Kind::Streamed];

/// What the caller of a chat sees.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// The whole text, and the model that the answer names.
    Answer(String, String),
    /// No connection could be made.
    Unreachable,
    /// The head did not come in time.
    TooSlow,
    /// The answer to a chat broke off, after a silence or for another reason.
    Unread {
        too_slow: bool,
    },
    /// A streamed answer failed after this part of its text.
    Broken(String),
    /// An error of the API, by its status.
    Api(u16),
    /// A call that was not attempted.
    Refused(Reason),
    Other(String),
}

fn answer(model: &str) -> Seen {
    Seen::Answer(WHOLE.to_owned(), model.to_owned())
}

fn ask() -> CreateChatCompletionRequest {
    CreateChatCompletionRequest {
        model: "gpt-5".to_owned(),
        messages: vec![ChatCompletionRequestUserMessage::from("count").into()],
        ..CreateChatCompletionRequest::default()
    }
}

async fn turn(client: &Client<OpenAIConfig>, kind: Kind) -> Seen {
    match kind {
        Kind::Chat => match client.chat().create(ask()).await {
            Ok(answer) => {
                let choice = answer.choices.into_iter().next();
                let text = choice.and_then(|choice| choice.message.content);
                Seen::Answer(text.unwrap_or_default(), answer.model)
            }
            Err(err) => seen(&err, String::new()),
        },
        Kind::Streamed => {
            let mut events = match client.chat().create_stream(ask()).await {
                Ok(events) => events,
                Err(err) => return seen(&err, String::new()),
            };
            let (mut text, mut model) = (String::new(), String::new());
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        let choice = event.choices.into_iter().next();
                        text.extend(choice.and_then(|choice| choice.delta.content));
                        model = event.model;
                    }
                    Err(err) => return seen(&err, text),
                }
            }
            Seen::Answer(text, model)
        }
    }
}

/// Returns the refusal in an error of `async-openai`. It must match the variant: the variant is
/// transparent, so the chain of sources skips the boxed error.
fn refusal(err: &OpenAIError) -> Option<&Refusal> {
    match err {
        OpenAIError::Boxed(err) => Refusal::find(&**err),
        _ => None,
    }
}

fn seen(err: &OpenAIError, text: String) -> Seen {
    match err {
        OpenAIError::Reqwest(err) if err.is_connect() => Seen::Unreachable,
        OpenAIError::Reqwest(err) if err.is_timeout() && err.is_request() => Seen::TooSlow,
        OpenAIError::Reqwest(err) if err.is_decode() => Seen::Unread {
            too_slow: err.is_timeout(),
        },
        OpenAIError::ApiError(err) => Seen::Api(err.status_code.as_u16()),
        OpenAIError::StreamError(err) => match &**err {
            StreamError::EventStream(_) => Seen::Broken(text),
            StreamError::UnknownEvent(event) => Seen::Other(format!("{event:?}")),
        },
        _ => match refusal(err) {
            Some(refusal) => Seen::Refused(refusal.reason()),
            None => Seen::Other(format!("{err:?}")),
        },
    }
}

/// Waits for a condition that another task makes true.
async fn until(what: impl Fn() -> bool) {
    let came = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let deadline = Duration::from_secs(10);
    tokio::time::timeout(deadline, came)
        .await
        .expect("it comes");
}

// ===== the matrix =====

/// One row: what the server does, the outcome, and what the caller sees.
struct Row {
    /// `None` for a killed server.
    fault: Option<Fault>,
    says: Outcome,
    seen: Seen,
}

fn rows(kind: Kind, model: &str) -> Vec<Row> {
    let row = |fault, says: Outcome, seen| Row { fault, says, seen };
    let transient = Outcome::from(Failure::transient());
    let broken = |too_slow| match kind {
        Kind::Chat => Seen::Unread { too_slow },
        Kind::Streamed => Seen::Broken(PIECES[0].to_owned()),
    };
    let throttled = Failure::rate_limited().with_retry_after(Duration::from_secs(HINT));
    let status = |status, says| row(Some(Fault::Status(status)), says, Seen::Api(status));
    vec![
        row(None, transient, Seen::Unreachable),
        row(Some(Fault::HangBeforeHead), transient, Seen::TooSlow),
        row(Some(Fault::HeadThenHang), transient, broken(true)),
        row(Some(Fault::CutInBody), transient, broken(false)),
        row(
            Some(Fault::Throttled(HINT)),
            throttled.into(),
            Seen::Api(429),
        ),
        status(500, transient),
        row(Some(Fault::Drip(PAUSE)), Outcome::Success, answer(model)),
        row(Some(Fault::Clean), Outcome::Success, answer(model)),
        // Beside the matrix: the preset for models on the caller's own mistakes and on a revoked
        // key.
        status(400, Outcome::Neutral),
        status(401, Failure::fatal().into()),
    ]
}

async fn fail_as(server: &mut Server, row: &Row) {
    match &row.fault {
        None => server.kill().await,
        Some(fault) => server.set(fault.clone()),
    }
}

#[tokio::test]
async fn a_circuit_follows_each_fault_and_the_caller_sees_it() {
    let cells = KINDS
        .into_iter()
        .flat_map(|kind| rows(kind, "gpt-5").into_iter().map(move |row| (kind, row)));
    let cells = cells.map(|(kind, row)| async move {
        let cell = format!("{kind:?}, {:?}", row.fault);
        let mut server = started(chat).await;
        let layer = breaker();
        let circuit = layer.handle();
        let client = client!(&server, layer, bare());

        // The streak begins at one. So a success, a failure and a neutral outcome all differ.
        server.set(Fault::Status(500));
        assert_eq!(turn(&client, kind).await, Seen::Api(500), "{cell}");
        fail_as(&mut server, &row).await;
        assert_eq!(turn(&client, kind).await, row.seen, "{cell}");

        let now = circuit.snapshot();
        let seen = server.seen();
        let next = turn(&client, kind).await;
        match row.says {
            Outcome::Success => {
                assert_eq!((now.state, now.streak), (State::Closed, 0), "{cell}");
                assert_eq!(next, row.seen, "{cell}");
            }
            Outcome::Failure(failure) => {
                assert_eq!(now.state, State::Open, "{cell}");
                assert_eq!(now.last_failure, Some(failure.kind()), "{cell}");
                let wait = failure.retry_after().unwrap_or_default().max(COOLDOWN);
                let left = now.time_left.expect("a cooldown");
                assert!(left <= wait && left + COOLDOWN > wait, "{cell}: {left:?}");
                assert_eq!(next, Seen::Refused(Reason::CircuitOpen), "{cell}");
                assert_eq!(server.seen(), seen, "{cell}");
            }
            _ => {
                assert_eq!((now.state, now.streak), (State::Closed, 1), "{cell}");
                assert_eq!(next, row.seen, "{cell}");
            }
        }
    });
    join_all(cells).await;
}

#[tokio::test]
async fn a_failed_turn_counts_for_the_primary_and_the_chain_serves_the_next() {
    let cells = KINDS
        .into_iter()
        .flat_map(|kind| rows(kind, "gpt-5").into_iter().map(move |row| (kind, row)));
    let cells = cells.map(|(kind, row)| async move {
        let cell = format!("{kind:?}, {:?}", row.fault);
        let (mut primary, backup) = (started(chat).await, started(llama).await);
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        let layer = FallbackLayer::new("gpt-5")
            .backup("llama", elsewhere(&backup))
            .trip_threshold(2)
            .recovery_timeout(COOLDOWN)
            .classify(StatusClassifier::models())
            .judge(EndOfBody.inspect(ErrorEvents::new()))
            .refuse_with(refuse)
            .observe(move |event: &Event<'_>| {
                if let Event::Served { by, outcome, .. } = *event {
                    listener.lock().unwrap().push((by.to_owned(), outcome));
                }
            });
        let fallback = layer.handle();
        let client = client!(&primary, layer, bare());

        primary.set(Fault::Status(500));
        assert_eq!(turn(&client, kind).await, Seen::Api(500), "{cell}");
        fail_as(&mut primary, &row).await;
        assert_eq!(turn(&client, kind).await, row.seen, "{cell}");

        let now = fallback.snapshot();
        let next = turn(&client, kind).await;
        let (state, failures) = (now.state, now.consecutive_failures);
        let by = match row.says {
            Outcome::Success => {
                assert_eq!((state, failures), (FallbackState::Primary, 0), "{cell}");
                assert_eq!(next, row.seen, "{cell}");
                "gpt-5"
            }
            Outcome::Failure(failure) => {
                assert_eq!(state, FallbackState::Fallback, "{cell}");
                assert_eq!(now.last_failure, Some(failure.kind()), "{cell}");
                let wait = failure.retry_after().unwrap_or_default().max(COOLDOWN);
                let left = now.time_until_probe.expect("a cooldown");
                assert!(left <= wait && left + COOLDOWN > wait, "{cell}: {left:?}");
                assert_eq!(next, answer("llama"), "{cell}");
                assert_eq!(backup.seen(), 1, "{cell}");
                "llama"
            }
            _ => {
                assert_eq!((state, failures), (FallbackState::Primary, 1), "{cell}");
                assert_eq!(next, row.seen, "{cell}");
                "gpt-5"
            }
        };
        let outcome = match (by, row.says) {
            ("gpt-5", says) => says,
            _ => Outcome::Success,
        };
        // Each turn causes one event, which names the entry that served.
        let turns = [
            ("gpt-5".to_owned(), Failure::transient().into()),
            ("gpt-5".to_owned(), row.says),
            (by.to_owned(), outcome),
        ];
        assert_eq!(*told.lock().unwrap(), turns, "{cell}");
    });
    join_all(cells).await;
}

#[tokio::test]
async fn a_failed_turn_of_a_backup_is_a_strike_of_that_backup() {
    let cells = KINDS
        .into_iter()
        .flat_map(|kind| rows(kind, "llama").into_iter().map(move |row| (kind, row)));
    let cells = cells.map(|(kind, row)| async move {
        let cell = format!("{kind:?}, {:?}", row.fault);
        let (mut primary, mut backup) = (started(chat).await, started(llama).await);
        let layer = FallbackLayer::new("gpt-5")
            .backup("llama", elsewhere(&backup))
            .trip_threshold(1)
            .max_fail_count(3)
            .strikes_reset_on_success()
            .classify(StatusClassifier::models())
            .judge(EndOfBody.inspect(ErrorEvents::new()))
            .refuse_with(refuse);
        let fallback = layer.handle();
        let client = client!(&primary, layer, bare());

        primary.kill().await;
        assert_eq!(turn(&client, kind).await, Seen::Unreachable, "{cell}");
        backup.set(Fault::Status(500));
        assert_eq!(turn(&client, kind).await, Seen::Api(500), "{cell}");
        fail_as(&mut backup, &row).await;
        assert_eq!(turn(&client, kind).await, row.seen, "{cell}");

        let now = fallback.snapshot();
        let strikes = match row.says {
            Outcome::Success => 0,
            Outcome::Failure(failure) if failure.kind() == FailureKind::Fatal => 3,
            Outcome::Failure(_) => 2,
            _ => 1,
        };
        assert_eq!(now.entries[0].strikes, strikes, "{cell}");
        assert_eq!(now.entries[0].failed, strikes == 3, "{cell}");
        assert_eq!(now.state, FallbackState::Fallback, "{cell}");
        if strikes == 3 {
            let exhausted = Seen::Refused(Reason::FallbackExhausted);
            assert_eq!(turn(&client, kind).await, exhausted, "{cell}");
        }
    });
    join_all(cells).await;
}

// ===== the end of the body =====

#[tokio::test]
async fn with_the_default_head_an_answer_that_breaks_off_is_a_success() {
    for kind in KINDS {
        let server = started(chat).await;
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .classify(StatusClassifier::models())
            .refuse_with(refuse);
        let circuit = layer.handle();
        let client = client!(&server, layer, bare());

        server.set(Fault::CutInBody);
        for _ in 0..3 {
            let seen = turn(&client, kind).await;
            assert!(
                matches!(seen, Seen::Unread { .. } | Seen::Broken(_)),
                "{seen:?}"
            );
        }
        assert_eq!(circuit.state(), State::Closed);
        assert_eq!(circuit.snapshot().last_failure, None);
    }
}

#[tokio::test]
async fn the_head_can_be_judged_without_a_change_of_the_response() {
    let server = started(chat).await;
    let statuses = StatusClassifier::models();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(
            move |result: Result<&reqwest::Response, &OpenAIError>| match result {
                Ok(response) => statuses.of_head(response.status(), response.headers()),
                error => ErrorsAsFailures.classify(error),
            },
        )
        .refuse_with(|_, refusal: Refusal| Err(OpenAIError::Boxed(refusal.into())));
    let circuit = layer.handle();
    let client = client(&server, ServiceBuilder::new().layer(layer).service(bare()));

    server.set(Fault::Throttled(HINT));
    assert_eq!(turn(&client, Kind::Chat).await, Seen::Api(429));
    let now = circuit.snapshot();
    assert_eq!(now.state, State::Open);
    assert_eq!(now.last_failure, Some(FailureKind::RateLimited));
    let refused = Seen::Refused(Reason::CircuitOpen);
    assert_eq!(turn(&client, Kind::Chat).await, refused);
}

/// Answers with a stream whose second event is an error. The stream then continues.
fn overloaded(request: &Request) -> Answer {
    let model = &asked(request)["model"];
    let error = json!({ "error": { "message": "overloaded", "type": "server_error" } });
    let events = [
        event(model, PIECES[0]),
        format!("data: {error}\n\n"),
        event(model, PIECES[1]),
        "data: [DONE]\n\n".to_owned(),
    ];
    Answer::of("text/event-stream", &events.each_ref().map(String::as_str))
}

#[tokio::test]
async fn an_error_inside_a_stream_that_began_well_is_a_failure() {
    let (primary, backup) = (started(overloaded).await, started(llama).await);
    let layer = FallbackLayer::new("gpt-5")
        .backup("llama", elsewhere(&backup))
        .trip_threshold(1)
        .classify(StatusClassifier::models())
        .judge(EndOfBody.inspect(ErrorEvents::new()))
        .refuse_with(refuse);
    let fallback = layer.handle();
    let client = client!(&primary, layer, bare());

    let mut events = client.chat().create_stream(ask()).await.unwrap();
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(first.choices[0].delta.content.as_deref(), Some(PIECES[0]));
    // `async-openai` cannot read this event, and would continue.
    match events.next().await.unwrap() {
        Err(OpenAIError::JSONDeserialize(_, text)) => assert!(text.contains("overloaded")),
        other => panic!("{other:?}"),
    }
    assert_eq!(fallback.state(), FallbackState::Fallback);
    assert_eq!(turn(&client, Kind::Streamed).await, answer("llama"));
}

#[tokio::test]
async fn without_the_inspector_a_streamed_answer_is_a_cancelled_call() {
    let server = started(chat).await;
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let client = client!(&server, layer, bare());

    circuit.try_acquire().unwrap().failure();
    // The client reads up to `[DONE]` and drops the rest.
    assert_eq!(turn(&client, Kind::Streamed).await, answer("gpt-5"));
    assert_eq!(circuit.snapshot().streak, 1);
    assert_eq!(turn(&client, Kind::Chat).await, answer("gpt-5"));
    assert_eq!(circuit.snapshot().streak, 0);
}

#[tokio::test]
async fn a_streamed_answer_proves_recovery_however_long_it_takes() {
    let server = started(chat).await;
    let layer = breaker()
        .failure_threshold(1)
        .recovery_duration(Duration::ZERO)
        .probe_timeout(SILENCE);
    let circuit = layer.handle();
    let client = client!(&server, layer, bare());
    server.set(Fault::CutInBody);
    turn(&client, Kind::Streamed).await;
    assert_eq!(circuit.state(), State::Open);

    // The answer takes longer than the lease, but each frame renews the lease.
    server.set(Fault::Drip(PAUSE));
    let mut events = client.chat().create_stream(ask()).await.unwrap();
    let mut text = String::new();
    while let Some(event) = events.next().await {
        assert_eq!(circuit.state(), State::HalfOpen);
        text.extend(event.unwrap().choices[0].delta.content.take());
    }
    assert_eq!(text, WHOLE);
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test]
async fn a_stream_that_the_caller_drops_is_a_cancelled_call() {
    let server = started(chat).await;
    let layer = breaker().failure_threshold(1).on_cancel(Cancelled::Failure);
    let circuit = layer.handle();
    let client = client!(&server, layer, bare());

    server.set(Fault::HeadThenHang);
    let mut events = client.chat().create_stream(ask()).await.unwrap();
    events.next().await.unwrap().unwrap();
    assert_eq!(circuit.state(), State::Closed);
    drop(events);
    // A task of `async-openai` reads the body and drops it.
    until(|| circuit.state() == State::Open).await;
}

// ===== the retries of `async-openai` =====

/// Classifies what the retry layer of `async-openai` leaves of a `429`: an error without the head.
/// It is for a classifier's `errors`.
fn of_api_error(result: Result<&Answered, &OpenAIError>) -> Outcome {
    match result {
        Err(OpenAIError::ApiError(err))
            if err.api_error.r#type.as_deref() == Some("insufficient_quota") =>
        {
            Failure::fatal().into()
        }
        Err(OpenAIError::ApiError(err)) => {
            StatusClassifier::models().of_head(err.status_code, &HeaderMap::new())
        }
        other => RefusalsAsFailures.classify(other),
    }
}

#[tokio::test]
async fn a_call_with_all_its_retries_is_one_turn() {
    for kind in KINDS {
        let mut server = started(chat).await;
        let layer = breaker();
        let circuit = layer.handle();
        let retries = OpenAIRetryLayer::new(2);
        let client = client!(
            &server,
            layer,
            ServiceBuilder::new().layer(retries).service(bare())
        );

        server.set(Fault::Status(500));
        assert_eq!(turn(&client, kind).await, Seen::Api(500));
        assert_eq!(server.seen(), 3);
        assert_eq!(
            (circuit.state(), circuit.snapshot().streak),
            (State::Closed, 1)
        );

        // The retries do not see a body that breaks. So the turn fails after one attempt.
        server.set(Fault::CutInBody);
        turn(&client, kind).await;
        assert_eq!(server.seen(), 4);
        assert_eq!(
            (circuit.state(), circuit.snapshot().streak),
            (State::Open, 2)
        );

        circuit.reset();
        server.kill().await;
        assert_eq!(turn(&client, kind).await, Seen::Unreachable);
        assert_eq!(circuit.snapshot().streak, 1);
    }
}

#[tokio::test]
async fn a_call_that_a_retry_saves_is_a_success() {
    for kind in KINDS {
        let server = started(chat).await;
        let layer = breaker();
        let circuit = layer.handle();
        let retries = OpenAIRetryLayer::new(5);
        let client = client!(
            &server,
            layer,
            ServiceBuilder::new().layer(retries).service(bare())
        );

        circuit.try_acquire().unwrap().failure();
        server.set(Fault::Status(503));
        let (seen, ()) = tokio::join!(turn(&client, kind), async {
            until(|| server.seen() > 0).await;
            server.set(Fault::Clean);
        });
        assert_eq!(seen, answer("gpt-5"));
        assert!(server.seen() > 1);
        assert_eq!(
            (circuit.state(), circuit.snapshot().streak),
            (State::Closed, 0)
        );
    }
}

#[tokio::test]
async fn a_retry_policy_keeps_a_hint_that_the_retry_layer_drops() {
    let server = started(chat).await;
    server.set(Fault::Throttled(HINT));

    // It has no retries. Each would wait as long as the hint says, twenty seconds.
    let layer = breaker().failure_threshold(1);
    let circuit = layer.handle();
    let policy = SimpleRetryPolicy::new(0);
    let client = client!(
        &server,
        layer,
        ServiceBuilder::new().retry(policy).service(bare())
    );
    assert_eq!(turn(&client, Kind::Chat).await, Seen::Api(429));
    let now = circuit.snapshot();
    assert_eq!(now.last_failure, Some(FailureKind::RateLimited));
    assert!(now.time_left.unwrap() > COOLDOWN);

    // The layer reads the body of a `429` to see whether the quota is spent, and makes an error of
    // it.
    let layer = breaker().failure_threshold(1);
    let circuit = layer.handle();
    let client = client!(
        &server,
        layer,
        ServiceBuilder::new()
            .layer(OpenAIRetryLayer::new(0))
            .service(bare())
    );
    assert_eq!(turn(&client, Kind::Chat).await, Seen::Api(429));
    let now = circuit.snapshot();
    assert_eq!(now.last_failure, Some(FailureKind::Transient));
    assert!(now.time_left.unwrap() <= COOLDOWN);

    // A classifier that knows these errors can at least restore the kind.
    let layer = breaker()
        .failure_threshold(1)
        .classify(StatusClassifier::models().errors(of_api_error));
    let circuit = layer.handle();
    let client = client!(
        &server,
        layer,
        ServiceBuilder::new()
            .layer(OpenAIRetryLayer::new(0))
            .service(bare())
    );
    assert_eq!(turn(&client, Kind::Chat).await, Seen::Api(429));
    let now = circuit.snapshot();
    assert_eq!(now.last_failure, Some(FailureKind::RateLimited));
    assert!(now.time_left.unwrap() <= COOLDOWN);
}

#[tokio::test]
async fn a_spent_quota_is_fatal_for_a_classifier_that_reads_the_errors_of_the_retry_layer() {
    let server = started(chat).await;
    let layer = breaker().classify(StatusClassifier::models().errors(of_api_error));
    let circuit = layer.handle();
    let client = client!(
        &server,
        layer,
        ServiceBuilder::new()
            .layer(OpenAIRetryLayer::default())
            .service_fn(|_: HttpRequestFactory| async {
                let error = json!({ "error": {
                    "message": "You exceeded your current quota", "type": "insufficient_quota",
                } });
                let response = http::Response::builder().status(429);
                let response = response.body(error.to_string()).expect("a response");
                Ok::<_, OpenAIError>(reqwest::Response::from(response))
            })
    );
    assert_eq!(turn(&client, Kind::Chat).await, Seen::Api(429));
    let now = circuit.snapshot();
    assert_eq!(
        (now.state, now.last_failure),
        (State::Open, Some(FailureKind::Fatal))
    );
}

#[tokio::test]
async fn retries_outside_stop_at_an_open_circuit() {
    for kind in KINDS {
        let server = started(chat).await;
        let layer = breaker();
        let circuit = layer.handle();
        let guarded = ServiceBuilder::new()
            .layer(OpenAIRetryLayer::new(5))
            .map_response(|response: http::Response<_>| response.map(Body::wrap).into())
            .layer(layer)
            .map_response(Answered::from)
            .service(bare());
        let client = client(&server, guarded);

        server.set(Fault::Status(500));
        assert_eq!(
            turn(&client, kind).await,
            Seen::Refused(Reason::CircuitOpen)
        );
        // Here each attempt counts, and the second one trips the circuit.
        assert_eq!(server.seen(), 2);
        assert_eq!(circuit.state(), State::Open);
    }
}

/// Unboxes the client's errors, which tower's timeout has boxed. The client's retries and its
/// callers need them to know what happened.
fn unboxed(err: BoxError) -> OpenAIError {
    err.downcast().map_or_else(OpenAIError::Boxed, |err| *err)
}

#[tokio::test]
async fn a_timeout_around_the_retries_ends_a_turn_that_waits_for_a_long_hint() {
    for kind in KINDS {
        let (primary, backup) = (started(chat).await, started(llama).await);
        let layer = FallbackLayer::new("gpt-5")
            .backup("llama", elsewhere(&backup))
            .classify(StatusClassifier::models())
            .judge(EndOfBody.inspect(ErrorEvents::new()))
            .same_turn(|chat: &HttpRequestFactory| Some(chat.clone()))
            .refuse_with(refuse);
        let fallback = layer.handle();
        let timed = ServiceBuilder::new()
            .map_err(unboxed)
            .timeout(SILENCE)
            .retry(SimpleRetryPolicy::new(3))
            .service(bare());
        let client = client!(&primary, layer, timed);

        // The policy waits as long as the server asks, without a limit.
        primary.set(Fault::Throttled(3_600));
        assert_eq!(turn(&client, kind).await, answer("llama"));
        assert_eq!((primary.seen(), backup.seen()), (1, 1));
        assert_eq!(fallback.snapshot().consecutive_failures, 1);

        // Other errors than the timeout's stay as they were, and are classified as such.
        primary.set(Fault::Status(400));
        assert_eq!(turn(&client, kind).await, Seen::Api(400));
        assert_eq!(fallback.snapshot().consecutive_failures, 1);
    }
}

#[tokio::test]
async fn a_timeout_inside_the_retries_must_unbox_the_errors_for_them() {
    for (gives_back, attempts) in [(false, 1), (true, 3)] {
        let mut server = started(chat).await;
        let layer = breaker();
        let circuit = layer.handle();
        let tried = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&tried);
        let timed = ServiceBuilder::new()
            .layer(OpenAIRetryLayer::new(2))
            .map_err(move |err| {
                if gives_back {
                    unboxed(err)
                } else {
                    OpenAIError::Boxed(err)
                }
            })
            .timeout(SILENCE / 2)
            .map_request(move |chat: HttpRequestFactory| {
                count.fetch_add(1, Ordering::SeqCst);
                chat
            })
            .service(bare());
        let client = client!(&server, layer, timed);

        // A call that took too long is not retried.
        server.set(Fault::HangBeforeHead);
        match client.chat().create(ask()).await.unwrap_err() {
            OpenAIError::Boxed(err) => assert!(err.is::<tower::timeout::error::Elapsed>()),
            other => panic!("{other:?}"),
        }
        assert_eq!((tried.swap(0, Ordering::SeqCst), server.seen()), (1, 1));
        assert_eq!(circuit.snapshot().streak, 1);

        // A call without a connection is retried, if the retries can see the error.
        server.kill().await;
        let seen = turn(&client, Kind::Chat).await;
        assert_eq!(seen == Seen::Unreachable, gives_back, "{seen:?}");
        assert_eq!(tried.load(Ordering::SeqCst), attempts);
        assert_eq!(circuit.state(), State::Open);
    }
}

// ===== who serves =====

#[tokio::test]
async fn after_the_first_byte_there_is_no_silent_switch() {
    for fault in [Fault::CutInBody, Fault::HeadThenHang] {
        for kind in KINDS {
            let (primary, backup) = (started(chat).await, started(llama).await);
            let layer = FallbackLayer::new("gpt-5")
                .backup("llama", elsewhere(&backup))
                .trip_threshold(1)
                .classify(StatusClassifier::models())
                .judge(EndOfBody.inspect(ErrorEvents::new()))
                .same_turn(|chat: &HttpRequestFactory| Some(chat.clone()))
                .refuse_with(refuse);
            let fallback = layer.handle();
            let client = client!(&primary, layer, bare());

            primary.set(fault.clone());
            let seen = turn(&client, kind).await;
            match kind {
                Kind::Chat => assert!(matches!(seen, Seen::Unread { .. }), "{seen:?}"),
                Kind::Streamed => assert_eq!(seen, Seen::Broken(PIECES[0].to_owned())),
            }
            assert_eq!(backup.seen(), 0);
            assert_eq!(fallback.snapshot().trips, 1);
            assert_eq!(turn(&client, kind).await, answer("llama"));
            assert_eq!((primary.seen(), backup.seen()), (1, 1));
        }
    }
}

/// Starts a server that keeps the bodies of its requests.
async fn keeping(respond: fn(&Request) -> Answer) -> (Server, Arc<Mutex<Vec<Vec<u8>>>>) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&bodies);
    let server = started(move |request| {
        kept.lock().unwrap().push(request.body.clone());
        respond(request)
    });
    (server.await, bodies)
}

#[tokio::test]
async fn a_turn_goes_on_to_the_backup_with_identical_bytes() {
    for kind in KINDS {
        for fault in [
            None,
            Some(Fault::HangBeforeHead),
            Some(Fault::Throttled(HINT)),
        ] {
            let (mut primary, to_primary) = keeping(chat).await;
            let (backup, to_backup) = keeping(llama).await;
            let layer = FallbackLayer::new("gpt-5")
                .backup("llama", elsewhere(&backup))
                .classify(StatusClassifier::models())
                .judge(EndOfBody.inspect(ErrorEvents::new()))
                .same_turn(|chat: &HttpRequestFactory| Some(chat.clone()))
                .refuse_with(refuse);
            let fallback = layer.handle();
            let client = client!(&primary, layer, bare());

            // The primary answers this one. The next is compared with it, with the primary gone.
            assert_eq!(turn(&client, kind).await, answer("gpt-5"));
            match &fault {
                None => primary.kill().await,
                Some(fault) => primary.set(fault.clone()),
            }
            assert_eq!(turn(&client, kind).await, answer("llama"), "{fault:?}");
            let now = fallback.snapshot();
            assert_eq!((now.consecutive_failures, now.entries[0].strikes), (1, 0));
            let to_primary = to_primary.lock().unwrap();
            assert_eq!(to_primary.len(), if fault.is_some() { 2 } else { 1 });
            for body in to_primary.iter() {
                assert_eq!(*to_backup.lock().unwrap(), std::slice::from_ref(body));
            }
        }
    }
}

#[tokio::test]
async fn without_a_cloned_request_the_caller_gets_the_original_error() {
    for kind in KINDS {
        let (primary, backup) = (started(chat).await, started(llama).await);
        // This plays a request that cannot be cloned. All requests of `async-openai` can be.
        let layer = FallbackLayer::new("gpt-5")
            .backup("llama", elsewhere(&backup))
            .trip_threshold(1)
            .classify(StatusClassifier::models())
            .judge(EndOfBody.inspect(ErrorEvents::new()))
            .same_turn(|_: &HttpRequestFactory| None)
            .refuse_with(refuse);
        let fallback = layer.handle();
        let client = client!(&primary, layer, bare());

        primary.set(Fault::HangBeforeHead);
        assert_eq!(turn(&client, kind).await, Seen::TooSlow);
        assert_eq!((primary.seen(), backup.seen()), (1, 0));
        assert_eq!(fallback.state(), FallbackState::Fallback);
    }
}

/// Writes the name of a model into a chat each time the chat is built.
fn set_model(chat: &mut HttpRequestFactory, model: &str) {
    let (inner, model) = (chat.clone(), model.to_owned());
    *chat = HttpRequestFactory::new(move || {
        let (inner, model) = (inner.clone(), model.clone());
        async move {
            let mut request = inner.build().await?;
            let body = request.body().and_then(Body::as_bytes).unwrap_or_default();
            if let Ok(mut chat) = serde_json::from_slice::<Value>(body) {
                chat["model"] = model.into();
                *request.body_mut() = Some(chat.to_string().into());
            }
            Ok(request)
        }
    });
}

#[tokio::test]
async fn a_chain_of_models_behind_one_service_answers_as_the_next_model() {
    for kind in KINDS {
        let server = started(chat).await;
        let layer = FallbackLayer::rewriting("gpt-5", set_model)
            .model("gpt-5-mini")
            .model("gpt-4")
            .trip_threshold(1)
            .max_fail_count(1)
            .classify(StatusClassifier::models())
            .judge(EndOfBody.inspect(ErrorEvents::new()))
            .refuse_with(refuse);
        let fallback = layer.handle();
        let client = client!(&server, layer, bare());

        assert_eq!(turn(&client, kind).await, answer("gpt-5"));
        server.set(Fault::CutInBody);
        turn(&client, kind).await;
        server.set(Fault::Clean);
        assert_eq!(turn(&client, kind).await, answer("gpt-5-mini"));
        server.set(Fault::Status(404));
        assert_eq!(turn(&client, kind).await, Seen::Api(404));
        server.set(Fault::Clean);
        assert_eq!(turn(&client, kind).await, answer("gpt-4"));
        assert_eq!(fallback.active_model().as_deref(), Some("gpt-4"));
    }
}

// ===== refusals =====

#[tokio::test]
async fn a_refusal_is_found_in_the_boxed_variant_and_in_no_chain_of_sources() {
    let server = started(chat).await;
    let layer = breaker().name("gpt-5");
    let circuit = layer.handle();
    let client = client!(&server, layer, bare());
    circuit.force_open();

    let errors = [
        client.chat().create(ask()).await.err().unwrap(),
        client.chat().create_stream(ask()).await.err().unwrap(),
    ];
    for err in errors {
        assert_eq!(Refusal::find(&err), None);
        let refusal = refusal(&err).unwrap();
        assert_eq!(refusal.reason(), Reason::ForcedOpen);
        assert_eq!(refusal.name(), Some("gpt-5"));
        // The error's text is the refusal's text.
        assert_eq!(err.to_string(), refusal.to_string());
    }
    assert_eq!(server.seen(), 0);
}

#[tokio::test]
async fn the_default_policy_boxes_the_errors_of_the_client_too() {
    let mut server = started(chat).await;
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .judge(EndOfBody);
    let client = client!(&server, layer, bare());
    server.kill().await;

    match client.chat().create(ask()).await.unwrap_err() {
        OpenAIError::Boxed(err) => assert!(matches!(
            err.downcast_ref(),
            Some(OpenAIError::Reqwest(err)) if err.is_connect()
        )),
        other => panic!("{other:?}"),
    }
    let refused = Seen::Refused(Reason::CircuitOpen);
    assert_eq!(turn(&client, Kind::Chat).await, refused);
}

#[tokio::test]
async fn the_whole_stack_sits_around_the_client() {
    for kind in KINDS {
        let (primary, backup) = (started(chat).await, started(llama).await);
        let breaker = breaker();
        let circuit = breaker.handle();
        let fallback = FallbackLayer::new("gpt-5")
            .backup(
                "llama",
                ServiceBuilder::new()
                    .layer(self::breaker())
                    .service(elsewhere(&backup)),
            )
            .classify(StatusClassifier::models())
            .judge(EndOfBody.inspect(ErrorEvents::new()))
            .refuse_with(|_, refusal: Refusal| Err(OpenAIError::Boxed(refusal.into())));
        let chain = fallback.handle();
        let tripwire = TripwireLayer::new()
            .max_turns(6)
            .error_limit(6)
            // A factory does not show its request. So identical calls cannot be recognised.
            .digest(|_: &HttpRequestFactory| None)
            .classify(StatusClassifier::new())
            .judge(EndOfBody.inspect(ErrorEvents::new()))
            .refuse_with(|_, refusal: Refusal| Err(OpenAIError::Boxed(refusal.into())));
        let fence = tripwire.handle();
        let stack = ServiceBuilder::new()
            .layer(tripwire)
            .layer(fallback)
            .layer(breaker);
        let client = client!(&primary, stack, bare());

        primary.set(Fault::CutInBody);
        turn(&client, kind).await;
        turn(&client, kind).await;
        assert_eq!(circuit.state(), State::Open);
        // The breaker's refusal is the primary's third failed turn.
        let refused = Seen::Refused(Reason::CircuitOpen);
        assert_eq!(turn(&client, kind).await, refused);
        assert_eq!(chain.state(), FallbackState::Fallback);
        assert_eq!(fence.snapshot().errors, 3);
        for _ in 0..3 {
            assert_eq!(turn(&client, kind).await, answer("llama"));
            assert_eq!(fence.snapshot().errors, 0);
        }
        let spent = Seen::Refused(Reason::MaxTurns);
        assert_eq!(turn(&client, kind).await, spent);
        assert_eq!((primary.seen(), backup.seen()), (2, 3));
    }
}
