//! Tests of the layers around an MCP client's tool calls, with every fault of a real MCP server,
//! and of the layers around an MCP server.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::Request;
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientRequest, ContentBlock, ErrorCode, ErrorData,
    ServerConfig, ServerResult,
};
use rmcp::service::{ClientInitializeError, Peer, RunningService, TowerHandler};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    HttpStatusError, StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::{RoleClient, RoleServer, ServiceError, ServiceExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_breaker::http::{EndOfBody, SoftRefusal, StatusClassifier};
use tower_breaker::{
    CircuitBreakerLayer, Classify, Digest, ErrorsAsFailures, Failure, FailureKind, FallbackHandle,
    FallbackLayer, FallbackState, JsonDigest, KeyedCircuitBreakerHandle, Outcome, Refusal, State,
    TripwireHandle, TripwireLayer,
};
use tower_breaker_clients::mcp_server::{Answers, Fault, McpServer};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_millis(500);

/// How long a test waits for a condition at most.
const PATIENCE: Duration = Duration::from_secs(20);

type Tools = BoxCloneService<CallToolRequestParams, CallToolResult, BoxError>;

/// Classifies for the run. A result with `is_error` is an error.
fn of_the_run(answer: Result<&CallToolResult, &BoxError>) -> Outcome {
    match answer {
        Ok(answer) if answer.is_error == Some(true) => Failure::transient().into(),
        other => ErrorsAsFailures.classify(other),
    }
}

/// Classifies for the circuit of a tool. Wrong arguments are neutral. A `Retry-After` is kept.
fn of_the_tool(answer: Result<&CallToolResult, &BoxError>) -> Outcome {
    match answer.err().and_then(|err| err.downcast_ref()) {
        Some(ServiceError::McpError(err)) if err.code == ErrorCode::INVALID_PARAMS => {
            Outcome::Neutral
        }
        Some(ServiceError::TransportSend(err)) => match err.error.downcast_ref() {
            Some(StreamableHttpError::<reqwest::Error>::HttpStatus(head)) => of_the_head(head),
            _ => of_the_run(answer),
        },
        _ => of_the_run(answer),
    }
}

/// Classifies what rmcp keeps of a failed response: its status, and the text of its `Retry-After`.
fn of_the_head(head: &HttpStatusError) -> Outcome {
    let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let hint = head.retry_after.as_ref().and_then(|text| text.parse().ok());
    let headers = hint
        .map(|hint: HeaderValue| (RETRY_AFTER, hint))
        .into_iter();
    StatusClassifier::new().of_head(status, &headers.collect())
}

/// Classifies for a server with a backup. The refusal of a tool is a failure.
fn of_the_server(answer: Result<&CallToolResult, &BoxError>) -> Outcome {
    match answer {
        Err(err) if Refusal::find(&**err).is_some() => Failure::transient().into(),
        other => of_the_tool(other),
    }
}

/// Turns the refusal of any layer into a result that the model reads.
fn readable(answer: Result<CallToolResult, BoxError>) -> Result<CallToolResult, BoxError> {
    answer.or_else(|err| match Refusal::find(&*err) {
        Some(refusal) => Ok(CallToolResult::error(vec![ContentBlock::text(
            refusal.to_string(),
        )])),
        None => Err(err),
    })
}

async fn connect(server: &McpServer) -> RunningService<RoleClient, ()> {
    let client = connect_as("somebody", server).await;
    client.expect("the server is there")
}

async fn connect_as(
    tenant: &'static str,
    server: &McpServer,
) -> Result<RunningService<RoleClient, ()>, ClientInitializeError> {
    let tenant = (TENANT, HeaderValue::from_static(tenant));
    let config =
        StreamableHttpClientTransportConfig::with_uri(server.url()).custom_headers([tenant].into());
    // Each request gets its own connection, so a killed server refuses the next one.
    let http = reqwest::Client::builder().pool_max_idle_per_host(0);
    let http = http.no_proxy().build().unwrap();
    ().serve(StreamableHttpClientTransport::with_client(http, config))
        .await
}

const TENANT: HeaderName = HeaderName::from_static("x-tenant");

/// Makes a service of a server's tools, with only a timeout around them.
fn tools_of(server: &Peer<RoleClient>) -> Tools {
    let server = server.clone();
    ServiceBuilder::new()
        .timeout(TIMEOUT)
        .service_fn(move |call: CallToolRequestParams| {
            let server = server.clone();
            async move { server.call_tool(call).await }
        })
        .boxed_clone()
}

fn breaker() -> CircuitBreakerLayer {
    CircuitBreakerLayer::new().failure_threshold(1)
}

/// A server, its backup, and the layers around their tools.
struct Rig {
    server: McpServer,
    backup: McpServer,
    circuits: KeyedCircuitBreakerHandle<String>,
    servers: FallbackHandle,
    run: TripwireHandle<()>,
    tools: Tools,
    /// The clients. Dropping one ends its peer.
    _clients: [RunningService<RoleClient, ()>; 2],
}

impl Rig {
    async fn start(answers: Answers) -> Self {
        Self::start_behind(answers, |app| app).await
    }

    async fn start_behind(
        answers: Answers,
        around: impl Fn(axum::Router) -> axum::Router + Send + 'static,
    ) -> Self {
        let server = McpServer::start_behind("the server", answers, around).await;
        let server = server.unwrap();
        let backup = McpServer::start("the backup", Answers::Json).await.unwrap();
        let clients = [connect(&server).await, connect(&backup).await];

        let breaker = breaker()
            .classify(of_the_tool)
            .per_key(|call: &CallToolRequestParams| &*call.name, 1_000);
        let circuits = breaker.handle();
        let fallback = FallbackLayer::new("server")
            .backup("backup", tools_of(clients[1].peer()))
            .trip_threshold(2)
            .classify(of_the_server);
        let servers = fallback.handle();
        let tripwire = TripwireLayer::new()
            .digest(JsonDigest::new().without_pointer("/_meta"))
            .name_of(|call: &CallToolRequestParams| &*call.name)
            .classify(of_the_run);
        let run = tripwire.handle().without_requests();
        let tools = ServiceBuilder::new()
            .map_result(readable)
            .layer(tripwire)
            .layer(fallback)
            .layer(breaker)
            .service(tools_of(clients[0].peer()))
            .boxed_clone();
        Self {
            server,
            backup,
            circuits,
            servers,
            run,
            tools,
            _clients: clients,
        }
    }

    async fn call(&mut self, tool: &'static str, argument: u32) -> Seen {
        call(&mut self.tools, tool, argument).await
    }
}

fn arguments(n: u32) -> serde_json::Map<String, Value> {
    match json!({ "n": n }) {
        Value::Object(arguments) => arguments,
        _ => unreachable!(),
    }
}

async fn call(tools: &mut Tools, tool: &'static str, argument: u32) -> Seen {
    let call = CallToolRequestParams::new(tool).with_arguments(arguments(argument));
    Seen::of(tools.ready().await.unwrap().call(call).await)
}

/// What the caller sees.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Answer(String),
    /// A tool's error inside a success.
    ToolError(String),
    /// An error with its sources.
    Error(String),
}

impl Seen {
    fn of(answer: Result<CallToolResult, BoxError>) -> Self {
        match answer {
            Ok(answer) => {
                let text = answer.content.iter().filter_map(ContentBlock::as_text);
                let text = text.map(|text| &*text.text).collect();
                if answer.is_error == Some(true) {
                    Seen::ToolError(text)
                } else {
                    Seen::Answer(text)
                }
            }
            Err(err) => {
                let mut text = err.to_string();
                let mut below = sent(&*err).or(err.source());
                while let Some(err) = below {
                    text = format!("{text}: {err}");
                    below = err.source();
                }
                Seen::Error(text)
            }
        }
    }

    fn answer(text: &str) -> Self {
        Seen::Answer(text.to_owned())
    }

    fn tool_error(text: &str) -> Self {
        Seen::ToolError(text.to_owned())
    }

    /// Returns whether this is an error with these words, which are the same on every system.
    fn is_error_with(&self, words: &[&str]) -> bool {
        matches!(self, Seen::Error(text) if words.iter().all(|word| text.contains(word)))
    }
}

/// Returns the error of the HTTP client, which rmcp's errors do not name as their source.
fn sent<'a>(err: &'a (dyn Error + Send + Sync + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let Some(ServiceError::TransportSend(err)) = err.downcast_ref() else {
        return None;
    };
    match err.error.downcast_ref() {
        Some(StreamableHttpError::<reqwest::Error>::Client(err)) => Some(err),
        _ => None,
    }
}

/// A fault and its effects. `check` knows the effects that all faults share.
struct Cell {
    /// `None`: the server is killed and refuses connections.
    fault: Option<Fault>,
    answers: Answers,
    sees: Sees,
    /// The failure that the tool's circuit has recorded, if any.
    failure: Option<FailureKind>,
    /// The tripwire's streak of errors afterwards.
    errors: u32,
}

enum Sees {
    Exactly(Seen),
    ErrorWith(&'static [&'static str]),
}

async fn check(cell: Cell) {
    let Cell {
        fault,
        answers,
        sees,
        failure,
        errors,
    } = cell;
    let case = format!("{fault:?} with {answers:?}");
    let mut rig = Rig::start(answers).await;
    assert_eq!(
        rig.call("weather", 0).await,
        Seen::answer("weather of the server"),
        "{case}"
    );
    match &fault {
        Some(fault) => rig.server.set("search", fault.clone()),
        None => rig.server.kill().await,
    }

    let seen = rig.call("search", 1).await;
    match sees {
        Sees::Exactly(expected) => assert_eq!(seen, expected, "{case}"),
        Sees::ErrorWith(words) => assert!(seen.is_error_with(words), "{case}: {seen:?}"),
    }
    let circuit = rig.circuits.snapshot("search");
    assert_eq!(circuit.last_failure, failure, "{case}");
    assert_eq!(rig.run.snapshot().errors, errors, "{case}");
    let turns = rig.servers.snapshot();
    assert_eq!(turns.last_failure, failure, "{case}");
    let mut circuits = rig.circuits.keys();
    circuits.sort();
    assert_eq!(circuits, ["search", "weather"], "{case}");
    assert_eq!(rig.circuits.state("weather"), State::Closed, "{case}");
    let reached = rig.server.seen("search");
    assert_eq!(reached, usize::from(fault.is_some()), "{case}");

    if failure.is_none() {
        assert_eq!(circuit.state, State::Closed, "{case}");
        assert_eq!(turns.consecutive_failures, 0, "{case}");
        return;
    }
    assert_eq!(circuit.state, State::Open, "{case}");
    assert_eq!(turns.consecutive_failures, 1, "{case}");
    let cooldown = match fault {
        Some(Fault::Throttled(seconds)) => Duration::from_secs(seconds),
        _ => Duration::from_secs(30),
    };
    let left = circuit.time_left.unwrap();
    assert!(
        left <= cooldown && left + Duration::from_secs(10) > cooldown,
        "{case}: {left:?}"
    );

    // The refusal of the breaker is a failed turn of the server, but no error of the run.
    let refusal = "tool `search` temporarily unavailable: circuit breaker open";
    assert_eq!(
        rig.call("search", 2).await,
        Seen::tool_error(refusal),
        "{case}"
    );
    assert_eq!(rig.run.snapshot().errors, errors, "{case}");
    assert_eq!(rig.server.seen("search"), reached, "{case}");
    assert_eq!(rig.servers.state(), FallbackState::Fallback, "{case}");

    // Now the backup serves, without a strike.
    assert_eq!(
        rig.call("search", 3).await,
        Seen::answer("search of the backup"),
        "{case}"
    );
    assert_eq!(rig.run.snapshot().errors, 0, "{case}");
    let strikes = |rig: &Rig| rig.servers.snapshot().entries[0].strikes;
    assert_eq!(strikes(&rig), 0, "{case}");

    // The backup fails as the server did. That is a strike, and an error of the run.
    match fault {
        Some(fault) => rig.backup.set("search", fault),
        None => rig.backup.kill().await,
    }
    let seen = rig.call("search", 4).await;
    assert!(!matches!(seen, Seen::Answer(_)), "{case}: {seen:?}");
    assert_eq!(strikes(&rig), 1, "{case}");
    assert_eq!(rig.run.snapshot().errors, 1, "{case}");
    assert_eq!(
        rig.server.seen("search"),
        reached,
        "nobody came back to the server: {case}"
    );
}

const RESUMABLE: Answers = Answers::Resumable(Duration::from_millis(10));

const ALL: [Answers; 3] = [Answers::Json, Answers::Events, RESUMABLE];

async fn check_error(fault: impl Into<Option<Fault>>, words: &'static [&'static str]) {
    let fault = fault.into();
    for answers in ALL {
        check(Cell {
            fault: fault.clone(),
            answers,
            sees: Sees::ErrorWith(words),
            failure: Some(FailureKind::Transient),
            errors: 1,
        })
        .await;
    }
}

#[tokio::test]
async fn a_refused_connection_opens_the_tools_circuit() {
    check_error(None, &["Transport send error", "Connection refused"]).await;
}

#[tokio::test]
async fn a_hang_before_the_head_opens_the_tools_circuit() {
    check_error(Fault::HangBeforeHead, &["request timed out"]).await;
}

#[tokio::test]
async fn an_answer_that_begins_and_hangs_opens_the_tools_circuit() {
    check_error(Fault::HeadThenHang, &["request timed out"]).await;
}

#[tokio::test]
async fn an_answer_cut_in_its_middle_opens_the_tools_circuit() {
    for (answers, words) in [
        (Answers::Json, &["Transport send error", "body"][..]),
        (Answers::Events, &["Transport closed"]),
        // rmcp's client asks for the rest, which its server has lost. Only the timeout ends the
        // wait.
        (RESUMABLE, &["request timed out"]),
    ] {
        check(Cell {
            fault: Some(Fault::CutInBody),
            answers,
            sees: Sees::ErrorWith(words),
            failure: Some(FailureKind::Transient),
            errors: 1,
        })
        .await;
    }
}

#[tokio::test]
async fn a_500_opens_the_tools_circuit() {
    check_error(Fault::Status(500), &["Transport send error", "HTTP 500"]).await;
}

#[tokio::test]
async fn a_429_opens_the_tools_circuit_for_as_long_as_it_says() {
    for answers in ALL {
        check(Cell {
            fault: Some(Fault::Throttled(120)),
            answers,
            sees: Sees::ErrorWith(&["Transport send error", "HTTP 429"]),
            failure: Some(FailureKind::RateLimited),
            errors: 1,
        })
        .await;
    }
}

#[tokio::test]
async fn a_json_rpc_error_opens_the_tools_circuit() {
    check_error(Fault::InternalError, &["Mcp error", "the handler failed"]).await;
}

#[tokio::test]
async fn a_tools_error_inside_a_success_opens_its_circuit_if_the_classifier_says_so() {
    for answers in ALL {
        check(Cell {
            fault: Some(Fault::ToolError),
            answers,
            sees: Sees::Exactly(Seen::tool_error("the database is gone")),
            failure: Some(FailureKind::Transient),
            errors: 1,
        })
        .await;
    }
}

#[tokio::test]
async fn wrong_arguments_are_an_error_of_the_run_and_not_of_the_tool() {
    for answers in ALL {
        check(Cell {
            fault: Some(Fault::InvalidParams),
            answers,
            sees: Sees::ErrorWith(&["Mcp error", "no such city"]),
            failure: None,
            errors: 1,
        })
        .await;
    }
}

#[tokio::test]
async fn a_clean_answer_and_a_slow_one_are_successes() {
    for answers in ALL {
        for fault in [Fault::Clean, Fault::Drip(Duration::from_millis(25))] {
            check(Cell {
                fault: Some(fault),
                answers,
                sees: Sees::Exactly(Seen::answer("search of the server")),
                failure: None,
                errors: 0,
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_clean_answer_and_a_slow_one_are_no_strikes_of_the_backup() {
    let mut rig = Rig::start(Answers::Json).await;
    rig.server.kill().await;
    for n in 0..2 {
        let seen = rig.call("search", n).await;
        assert!(!matches!(seen, Seen::Answer(_)), "{seen:?}");
    }
    assert_eq!(rig.servers.state(), FallbackState::Fallback);
    for (n, fault) in (2..).zip([Fault::Clean, Fault::Drip(Duration::from_millis(25))]) {
        rig.backup.set("search", fault.clone());
        let seen = rig.call("search", n).await;
        assert_eq!(seen, Seen::answer("search of the backup"), "{fault:?}");
        assert_eq!(rig.servers.snapshot().entries[0].strikes, 0, "{fault:?}");
        assert_eq!(rig.run.snapshot().errors, 0, "{fault:?}");
    }
}

/// Waits until the condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn without_a_classifier_a_tools_error_inside_a_success_is_a_success() {
    let server = McpServer::start("the server", Answers::Json).await.unwrap();
    let client = connect(&server).await;
    let breaker = breaker().per_key(|call: &CallToolRequestParams| &*call.name, 1_000);
    let circuits = breaker.handle();
    let mut tools = ServiceBuilder::new()
        .map_result(readable)
        .layer(breaker)
        .service(tools_of(client.peer()))
        .boxed_clone();
    server.set("search", Fault::ToolError);
    for n in 0..3 {
        let seen = call(&mut tools, "search", n).await;
        assert_eq!(seen, Seen::tool_error("the database is gone"));
    }
    let circuit = circuits.snapshot("search");
    assert_eq!((circuit.state, circuit.streak), (State::Closed, 0));
    assert_eq!(server.seen("search"), 3);
}

#[tokio::test]
async fn a_server_that_is_killed_and_restarted_is_used_again() {
    for answers in ALL {
        let mut server = McpServer::start("the server", answers).await.unwrap();
        let client = connect(&server).await;
        let breaker = breaker()
            .classify(of_the_tool)
            .recovery_duration(Duration::from_millis(100))
            .per_key(|call: &CallToolRequestParams| &*call.name, 1_000);
        let circuits = breaker.handle();
        let mut tools = ServiceBuilder::new()
            .map_result(readable)
            .layer(breaker)
            .service(tools_of(client.peer()))
            .boxed_clone();
        for round in 0..5 {
            for tool in ["weather", "search"] {
                let seen = call(&mut tools, tool, round).await;
                assert_eq!(seen, Seen::Answer(format!("{tool} of the server")));
            }
            server.kill().await;
            let seen = call(&mut tools, "search", round).await;
            assert!(seen.is_error_with(&["Transport send error"]), "{seen:?}");
            assert_ne!(circuits.state("search"), State::Closed);
            assert_eq!(circuits.snapshot("search").trips, u64::from(round) + 1);
            assert_eq!(circuits.state("weather"), State::Closed);

            // The sessions are lost with the server. The client makes a new one by itself.
            server.restart().await.unwrap();
            let seen = call(&mut tools, "weather", round).await;
            assert_eq!(seen, Seen::answer("weather of the server"), "{answers:?}");
            until("the cooldown's end", || circuits.would_allow("search")).await;
            let seen = call(&mut tools, "search", round).await;
            assert_eq!(seen, Seen::answer("search of the server"), "the probe");
            assert_eq!(circuits.state("search"), State::Closed);
        }
    }
}

/// Each call gets an answer, a refusal or an error. At the end the circuit is closed, and no task
/// is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_lost_while_the_server_is_killed_and_restarted_under_load() {
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = alive();
    {
        let mut server = McpServer::start("the server", Answers::Events)
            .await
            .unwrap();
        let client = connect(&server).await;
        let breaker = breaker()
            .classify(of_the_tool)
            .recovery_duration(Duration::from_millis(20))
            .per_key(|call: &CallToolRequestParams| &*call.name, 1_000);
        let circuits = breaker.handle();
        let tools = ServiceBuilder::new()
            .layer(breaker)
            .service(tools_of(client.peer()))
            .boxed_clone();
        let [answers, refusals, errors] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let done = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..16)
            .map(|n| {
                let mut tools = tools.clone();
                let counts = [&answers, &refusals, &errors].map(Arc::clone);
                let done = Arc::clone(&done);
                tokio::spawn(async move {
                    let mut made = 0;
                    while !done.load(Ordering::SeqCst) {
                        let call =
                            CallToolRequestParams::new("search").with_arguments(arguments(n));
                        let answer = tools.ready().await.unwrap().call(call).await;
                        let kind = match &answer {
                            Ok(_) => 0,
                            Err(err) if Refusal::find(&**err).is_some() => 1,
                            Err(_) => 2,
                        };
                        counts[kind].fetch_add(1, Ordering::SeqCst);
                        made += 1;
                        // A refusal takes almost no time, so a refused task must let others run.
                        tokio::task::yield_now().await;
                    }
                    made
                })
            })
            .collect();

        for _ in 0..10 {
            let well = answers.load(Ordering::SeqCst);
            until("answers", || answers.load(Ordering::SeqCst) > well + 50).await;
            let trips = circuits.snapshot("search").trips;
            server.kill().await;
            until("a trip", || circuits.snapshot("search").trips > trips).await;
            server.restart().await.unwrap();
            until("recovery", || circuits.state("search") == State::Closed).await;
        }
        done.store(true, Ordering::SeqCst);
        let mut made = 0;
        for caller in callers {
            made += caller.await.unwrap();
        }
        let counted = [&answers, &refusals, &errors].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(made, counted.iter().sum::<usize>());
        assert!(counted.iter().all(|&count| count > 0), "{counted:?}");
        assert_eq!(circuits.keys(), ["search"]);
        client.cancel().await.unwrap();
    }
    until("the end of all tasks", || alive() <= before).await;
}

#[tokio::test]
async fn a_model_that_repeats_a_call_reads_why_it_is_refused() {
    let mut rig = Rig::start(Answers::Json).await;
    for _ in 0..2 {
        let seen = rig.call("search", 1).await;
        assert_eq!(seen, Seen::answer("search of the server"));
    }
    assert_eq!(
        rig.call("search", 1).await,
        Seen::tool_error(
            "`search` was not called: the same call came 3 times in a row. Do not repeat it: \
             change its arguments, try something else, or answer with what you have"
        )
    );
    assert_eq!(rig.server.seen("search"), 2);
    assert_eq!(rig.circuits.state("search"), State::Closed);
}

#[tokio::test]
async fn refusals_of_the_layers_inside_change_no_streak_of_errors() {
    let mut rig = Rig::start(Answers::Json).await;
    rig.servers.disable("backup").unwrap();
    rig.server.set("search", Fault::ToolError);
    let refusals = [
        "tool `search` temporarily unavailable: circuit breaker open",
        "`server` temporarily unavailable, and its backups too",
    ];
    let texts = [
        "the database is gone",
        refusals[0],
        refusals[1],
        refusals[1],
    ];
    for (n, text) in (0..).zip(texts) {
        assert_eq!(rig.call("search", n).await, Seen::tool_error(text));
    }
    assert_eq!(rig.server.seen("search"), 1, "the others were refused");
    let run = rig.run.snapshot();
    assert_eq!((run.state, run.errors), (State::Closed, 1));
    assert_eq!(run.turns, 4);
}

/// Layers around the tower handler of a server, over a pipe like stdin and stdout. Each tool has
/// one circuit, and refusals are answers.
#[tokio::test]
async fn the_circuits_of_a_server_answer_for_a_tool_that_is_down() {
    let breaker = breaker()
        .classify(|result: Result<&ServerResult, &ErrorData>| match result {
            Ok(ServerResult::CallToolResult(answer)) if answer.is_error == Some(true) => {
                Failure::transient().into()
            }
            other => ErrorsAsFailures.classify(other),
        })
        .refuse_with(|_: ClientRequest, refusal: Refusal| {
            let text = ContentBlock::text(refusal.to_string());
            Ok::<_, ErrorData>(ServerResult::CallToolResult(CallToolResult::error(vec![
                text,
            ])))
        })
        .per_key(
            |request: &ClientRequest| match request {
                ClientRequest::CallToolRequest(call) => &*call.params.name,
                _ => "",
            },
            1_000,
        );
    let circuits = breaker.handle();
    let seen = Arc::new(AtomicUsize::new(0));
    let handler = {
        let seen = Arc::clone(&seen);
        ServiceBuilder::new()
            .layer(breaker)
            .service_fn(move |request: ClientRequest| {
                seen.fetch_add(1, Ordering::SeqCst);
                std::future::ready(handle(request))
            })
    };
    let (near, far) = tokio::io::duplex(4_096);
    let server = tokio::spawn(async move {
        let handler = TowerHandler::<_, RoleServer>::new(handler, ServerConfig::default());
        handler.serve(far).await.unwrap().waiting().await
    });
    let client = ().serve(near).await.unwrap();

    let mut tools = tools_of(client.peer());
    assert_eq!(call(&mut tools, "clock", 0).await, Seen::answer("clock"));
    let seen_before = seen.load(Ordering::SeqCst);
    let down = call(&mut tools, "search", 0).await;
    assert_eq!(down, Seen::tool_error("the database is gone"));
    assert_eq!(circuits.state("search"), State::Open);
    assert_eq!(
        call(&mut tools, "search", 1).await,
        Seen::tool_error("tool `search` temporarily unavailable: circuit breaker open")
    );
    assert_eq!(seen.load(Ordering::SeqCst), seen_before + 1);
    assert_eq!(call(&mut tools, "clock", 1).await, Seen::answer("clock"));
    assert_eq!(circuits.state("clock"), State::Closed);

    client.cancel().await.unwrap();
    server.await.unwrap().unwrap();
}

/// Answers as a server whose clock works and whose search does not.
fn handle(request: ClientRequest) -> Result<ServerResult, ErrorData> {
    match request {
        ClientRequest::InitializeRequest(_) => {
            Ok(ServerResult::InitializeResult(ServerConfig::default()))
        }
        ClientRequest::CallToolRequest(call) => {
            let answer = match &*call.params.name {
                "search" => CallToolResult::error(vec![ContentBlock::text("the database is gone")]),
                other => CallToolResult::success(vec![ContentBlock::text(other)]),
            };
            Ok(ServerResult::CallToolResult(answer))
        }
        _ => Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            "it has tools and nothing else",
            None,
        )),
    }
}

fn tenant(request: &Request) -> Option<HeaderValue> {
    request.headers().get(TENANT).cloned()
}

/// One fence per tenant around the HTTP handler of a server. Each HTTP request is a turn.
#[tokio::test]
async fn a_tenant_without_turns_is_refused_and_other_tenants_are_not() {
    let fence = TripwireLayer::new()
        .max_turns(5)
        .digest(|_: &Request| None::<Digest>)
        .classify(StatusClassifier::new())
        .refuse(SoftRefusal::text().status(StatusCode::TOO_MANY_REQUESTS))
        .per_owned_session(tenant, 1_000);
    let runs = fence.handle().without_requests();
    let around = move |app: axum::Router| app.layer(fence.clone());
    let server = McpServer::start_behind("the server", Answers::Json, around)
        .await
        .unwrap();

    let [first, second] = [
        connect_as("first", &server).await.unwrap(),
        connect_as("second", &server).await.unwrap(),
    ];
    let turns = |tenant| runs.turns(&Some(HeaderValue::from_static(tenant)));
    assert_eq!(turns("first"), 2, "to say hello takes two");

    let mut tools = tools_of(first.peer());
    for n in 0..3 {
        let seen = call(&mut tools, "search", n).await;
        assert_eq!(seen, Seen::answer("search of the server"));
    }
    let refused = call(&mut tools, "search", 3).await;
    assert!(refused.is_error_with(&["HTTP 429"]), "{refused:?}");
    assert_eq!(server.seen("search"), 3);
    // The fence belongs to the layer, so a new connection makes no difference.
    assert!(connect_as("first", &server).await.is_err());

    let seen = call(&mut tools_of(second.peer()), "search", 0).await;
    assert_eq!(seen, Seen::answer("search of the server"));
    assert_eq!((turns("first"), turns("second")), (5, 3));
}

/// A circuit around the HTTP handler of a server. Its soft refusals are hints to the circuits of
/// its clients.
#[tokio::test]
async fn a_refusal_of_a_server_lengthens_the_cooldown_of_its_clients_circuit() {
    let breaker = breaker()
        .recovery_duration(Duration::from_secs(90))
        .classify(StatusClassifier::new())
        .refuse(SoftRefusal::text())
        .per_owned_key(tenant, 1_000);
    let tenants = breaker.handle();
    let around = move |app: axum::Router| app.layer(breaker.clone());
    let mut rig = Rig::start_behind(Answers::Json, around).await;
    rig.server.set("search", Fault::Status(500));

    let seen = rig.call("search", 0).await;
    assert!(seen.is_error_with(&["HTTP 500"]), "{seen:?}");
    let us = Some(HeaderValue::from_static("somebody"));
    assert_eq!(tenants.state(&us), State::Open);
    let neighbour = connect_as("neighbour", &rig.server).await.unwrap();
    let seen = call(&mut tools_of(neighbour.peer()), "weather", 0).await;
    assert_eq!(seen, Seen::answer("weather of the server"));

    let seen = rig.call("weather", 0).await;
    assert!(seen.is_error_with(&["HTTP 503"]), "{seen:?}");
    assert_eq!(rig.server.seen("weather"), 1, "the neighbour's");
    let left = rig.circuits.snapshot("weather").time_left.unwrap();
    assert!(left > Duration::from_secs(80), "{left:?}");
}

/// The head says `200`, and the answer is cut. A circuit around the HTTP handler sees that only if
/// it judges at the end of the body.
#[tokio::test]
async fn the_circuit_of_a_server_sees_a_cut_answer_only_at_the_end_of_its_body() {
    let breaker = || breaker().classify(StatusClassifier::new());
    let at_the_end = breaker().refuse(SoftRefusal::text()).judge(EndOfBody);
    let at_the_head = breaker().refuse(SoftRefusal::text());
    let (end, head) = (at_the_end.handle(), at_the_head.handle());
    let around = move |app: axum::Router| app.layer(at_the_end.clone()).layer(at_the_head.clone());
    let server = McpServer::start_behind("the server", Answers::Json, around);
    let server = server.await.unwrap();
    let client = connect(&server).await;
    let mut tools = tools_of(client.peer());

    server.set("search", Fault::CutInBody);
    let seen = call(&mut tools, "search", 0).await;
    assert!(seen.is_error_with(&["Transport send error"]), "{seen:?}");
    assert_eq!((head.state(), end.state()), (State::Closed, State::Open));
    let refused = call(&mut tools, "weather", 0).await;
    assert!(refused.is_error_with(&["HTTP 503"]), "{refused:?}");
    assert_eq!(server.seen("weather"), 0);
}
