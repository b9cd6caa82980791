//! The layers around an MCP client's tool calls, against a real MCP server that fails in every way; and around an MCP server.

use std::error::Error;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock, ErrorCode};
use rmcp::service::{Peer, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use rmcp::{RoleClient, ServiceError, ServiceExt};
use serde_json::{Value, json};
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_breaker::{
    CircuitBreakerLayer, Classify, ErrorsAsFailures, Failure, FailureKind, FallbackHandle,
    FallbackLayer, FallbackState, JsonDigest, KeyedCircuitBreakerHandle, Outcome, Refusal, State,
    TripwireHandle, TripwireLayer,
};
use tower_breaker_clients::mcp_server::{Answers, Fault, McpServer};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_millis(300);

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

type Tools = BoxCloneService<CallToolRequestParams, CallToolResult, BoxError>;

/// For the run: a tool that says that it failed is an error, too.
fn of_the_run(answer: Result<&CallToolResult, &BoxError>) -> Outcome {
    match answer {
        Ok(answer) if answer.is_error == Some(true) => Failure::transient().into(),
        other => ErrorsAsFailures.classify(other),
    }
}

/// For a tool: that it was called with arguments that it does not take says nothing of it.
fn of_the_tool(answer: Result<&CallToolResult, &BoxError>) -> Outcome {
    match answer.err().and_then(|err| err.downcast_ref()) {
        Some(ServiceError::McpError(err)) if err.code == ErrorCode::INVALID_PARAMS => {
            Outcome::Neutral
        }
        _ => of_the_run(answer),
    }
}

/// For a server with a backup: a tool that is refused did not answer.
fn of_the_server(answer: Result<&CallToolResult, &BoxError>) -> Outcome {
    match answer {
        Err(err) if Refusal::find(&**err).is_some() => Failure::transient().into(),
        other => of_the_tool(other),
    }
}

/// What the model reads, whichever layer refused.
fn readable(answer: Result<CallToolResult, BoxError>) -> Result<CallToolResult, BoxError> {
    answer.or_else(|err| match Refusal::find(&*err) {
        Some(refusal) => Ok(CallToolResult::error(vec![ContentBlock::text(
            refusal.to_string(),
        )])),
        None => Err(err),
    })
}

async fn connect(server: &McpServer) -> RunningService<RoleClient, ()> {
    let transport = StreamableHttpClientTransport::from_uri(server.url());
    ().serve(transport).await.expect("the server is there")
}

/// A server's tools as a service, with nothing around them but a timeout.
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

/// A server and its backup, and everything around their tools.
struct Rig {
    server: McpServer,
    backup: McpServer,
    circuits: KeyedCircuitBreakerHandle<String>,
    servers: FallbackHandle,
    run: TripwireHandle<()>,
    tools: Tools,
    /// Their ends end their peers.
    _clients: [RunningService<RoleClient, ()>; 2],
}

impl Rig {
    async fn start(answers: Answers) -> Self {
        let server = McpServer::start("the server", answers).await.unwrap();
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

    /// The words of an error that are the same on every system.
    fn is_error_with(&self, words: &[&str]) -> bool {
        matches!(self, Seen::Error(text) if words.iter().all(|word| text.contains(word)))
    }
}

/// What the HTTP client said, which rmcp's errors do not name as their source.
fn sent<'a>(err: &'a (dyn Error + Send + Sync + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let Some(ServiceError::TransportSend(err)) = err.downcast_ref() else {
        return None;
    };
    match err.error.downcast_ref() {
        Some(StreamableHttpError::<reqwest::Error>::Client(err)) => Some(err),
        _ => None,
    }
}

/// What a fault leads to. Whatever is not said here is the same for all of a kind.
struct Cell {
    /// `None`: the server is killed, and refuses connections.
    fault: Option<Fault>,
    answers: Answers,
    sees: Sees,
    /// What the tool's circuit has recorded, if it was a failure.
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

    // The breaker refuses: that is a failed turn of the server's, and no error of the run's.
    let refusal = "tool `search` temporarily unavailable: circuit breaker open";
    assert_eq!(
        rig.call("search", 2).await,
        Seen::tool_error(refusal),
        "{case}"
    );
    assert_eq!(rig.run.snapshot().errors, errors, "{case}");
    assert_eq!(rig.server.seen("search"), reached, "{case}");
    assert_eq!(rig.servers.state(), FallbackState::Fallback, "{case}");

    // Now the backup serves, and it has no strike.
    assert_eq!(
        rig.call("search", 3).await,
        Seen::answer("search of the backup"),
        "{case}"
    );
    assert_eq!(rig.run.snapshot().errors, 0, "{case}");
    let strikes = |rig: &Rig| rig.servers.snapshot().entries[0].strikes;
    assert_eq!(strikes(&rig), 0, "{case}");

    // It fails as the server did: its strike, and an error of the run.
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
        // rmcp's client asks for the rest, and its server has forgotten it: nothing but the timeout ends that.
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
