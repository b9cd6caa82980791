//! The layers around the tools of an MCP server: a circuit for each tool, a fence around the run,
//! and refusals that the model can read. The server has its own fences around its HTTP handler,
//! one for each tenant.
//!
//! ```text
//! cargo run -p tower-breaker-clients --example mcp
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock, ErrorCode};
use rmcp::service::{Peer, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    HttpStatusError, StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::{RoleClient, ServiceError, ServiceExt};
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_breaker::http::{SoftRefusal, StatusClassifier};
use tower_breaker::{
    CircuitBreakerLayer, Classify, Digest, ErrorsAsFailures, Failure, JsonDigest,
    KeyedCircuitBreakerHandle, Outcome, Refusal, State, TripwireHandle, TripwireLayer,
};
use tower_breaker_clients::mcp_server::{Answers, Fault, McpServer};

/// Short, so that the example ends soon. The default is 30 s.
const COOLDOWN: Duration = Duration::from_millis(500);

const TENANT: HeaderName = HeaderName::from_static("x-tenant");

type Tools = BoxService<CallToolRequestParams, CallToolResult, BoxError>;

/// Puts the layers of the client around the calls of its peer.
fn around_tools(
    server: Peer<RoleClient>,
) -> (Tools, TripwireHandle<()>, KeyedCircuitBreakerHandle<String>) {
    let tripwire = TripwireLayer::new()
        .max_turns(40)
        .digest(JsonDigest::new().without_pointer("/_meta"))
        .name_of(|call: &CallToolRequestParams| &*call.name)
        .classify(of_the_run);
    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(2)
        .recovery_duration(COOLDOWN)
        .classify(of_the_tool)
        .per_key(|call: &CallToolRequestParams| &*call.name, 1_000);
    let (run, circuits) = (tripwire.handle().without_requests(), breaker.handle());
    let tools = ServiceBuilder::new()
        .map_result(readable)
        .layer(tripwire)
        .layer(breaker)
        .timeout(Duration::from_secs(2))
        .service_fn(move |call| {
            let server = server.clone();
            async move { server.call_tool(call).await }
        });
    (tools.boxed(), run, circuits)
}

/// Turns the refusal of any layer into a result that the model reads, like a tool's own error. It
/// goes outermost.
fn readable(answer: Result<CallToolResult, BoxError>) -> Result<CallToolResult, BoxError> {
    answer.or_else(|err| match Refusal::find(&*err) {
        Some(refusal) => Ok(CallToolResult::error(vec![ContentBlock::text(
            refusal.to_string(),
        )])),
        None => Err(err),
    })
}

/// Classifies for the run. A result with `is_error` is an error, although MCP calls it a success.
fn of_the_run(answer: Result<&CallToolResult, &BoxError>) -> Outcome {
    match answer {
        Ok(answer) if answer.is_error == Some(true) => Failure::transient().into(),
        other => ErrorsAsFailures.classify(other),
    }
}

/// Classifies for the circuit of a tool. Wrong arguments of the model are neutral. A `Retry-After`
/// of the server is kept.
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

/// Puts the layer of the server around the route of rmcp's `StreamableHttpService`. Each HTTP
/// request is a turn of its tenant.
fn around_server() -> impl Fn(Router) -> Router {
    let fence = TripwireLayer::new()
        .max_turns(40)
        .digest(|_: &Request| None::<Digest>)
        .classify(StatusClassifier::new())
        .refuse(SoftRefusal::text().status(StatusCode::TOO_MANY_REQUESTS))
        .per_owned_session(
            |request: &Request| request.headers().get(TENANT).cloned(),
            1_000,
        );
    move |app| app.layer(fence.clone())
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let mut kept = true;
    let mut promise = |held: bool, what: &str| {
        println!("  {} {what}", if held { "ok    " } else { "BROKEN" });
        kept &= held;
    };
    let mut server =
        McpServer::start_behind("the station", Answers::Events, around_server()).await?;
    let client = connect(&server, "us").await?;
    let (mut tools, run, circuits) = around_tools(client.peer().clone());

    println!("the server works:");
    let answer = ask(&mut tools, "weather", "Oslo").await;
    promise(answer == "weather of the station", "the tool answers");

    println!("the database of `weather` is gone, and the tool reports it inside a success:");
    server.set("weather", Fault::ToolError);
    for city in ["Bergen", "Bodø"] {
        ask(&mut tools, "weather", city).await;
    }
    promise(
        circuits.state("weather") == State::Open,
        "the circuit of `weather` is open",
    );
    let (seen, errors) = (server.seen("weather"), run.snapshot().errors);
    for city in ["Narvik", "Tromsø", "Vadsø"] {
        ask(&mut tools, "weather", city).await;
    }
    promise(server.seen("weather") == seen, "no further call reaches it");
    let same = run.snapshot().errors == errors && run.state() == State::Closed;
    promise(same, "refusals by the circuit are no errors of the run");

    println!("another tool has its own circuit:");
    let answer = ask(&mut tools, "tides", "Oslo").await;
    promise(answer == "tides of the station", "`tides` answers");

    println!("the whole server is killed and restarted:");
    server.kill().await;
    for city in ["Bergen", "Bodø"] {
        ask(&mut tools, "tides", city).await;
    }
    promise(
        circuits.state("tides") == State::Open,
        "the circuit of `tides` is open",
    );
    server.restart().await?;
    server.set("weather", Fault::Clean);
    for tool in ["tides", "weather"] {
        let deadline = Instant::now() + 20 * COOLDOWN;
        while !circuits.would_allow(tool) && Instant::now() < deadline {
            tokio::time::sleep(COOLDOWN / 10).await;
        }
        ask(&mut tools, tool, "Narvik").await;
        promise(
            circuits.state(tool) == State::Closed,
            "one probe closes the circuit",
        );
    }

    println!("the model repeats one call:");
    let mut last = String::new();
    for _ in 0..3 {
        last = ask(&mut tools, "tides", "Tromsø").await;
    }
    promise(
        last.contains("3 times in a row"),
        "the refusal tells it to stop",
    );

    println!("another tenant of the server spends all its turns:");
    let other = connect(&server, "others").await?;
    let mut refused = String::new();
    for _ in 0..40 {
        if let Err(err) = other.call_tool(CallToolRequestParams::new("tides")).await {
            refused = err.to_string();
        }
    }
    promise(refused.ends_with("HTTP 429"), "that tenant is refused");
    run.reset();
    let answer = ask(&mut tools, "tides", "Tromsø").await;
    promise(answer == "tides of the station", "our tenant is not");

    Ok(if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn connect(
    server: &McpServer,
    tenant: &'static str,
) -> Result<RunningService<RoleClient, ()>, BoxError> {
    let tenant = (TENANT, HeaderValue::from_static(tenant));
    let config =
        StreamableHttpClientTransportConfig::with_uri(server.url()).custom_headers([tenant].into());
    // Every server is on loopback, so no proxy may be used.
    let http = reqwest::Client::builder().no_proxy().build()?;
    let transport = StreamableHttpClientTransport::with_client(http, config);
    Ok(().serve(transport).await?)
}

/// Calls a tool, and prints and returns what the model reads.
async fn ask(tools: &mut Tools, tool: &'static str, city: &str) -> String {
    let arguments = [("city".to_owned(), city.into())].into_iter().collect();
    let call = CallToolRequestParams::new(tool).with_arguments(arguments);
    let answer = match tools.ready().await {
        Ok(tools) => tools.call(call).await,
        Err(err) => Err(err),
    };
    let text = match answer {
        Ok(answer) => {
            let texts = answer.content.iter().filter_map(ContentBlock::as_text);
            texts.map(|text| &*text.text).collect()
        }
        Err(err) => format!("error: {err}"),
    };
    println!("         {tool} {city}: {text}");
    text
}
