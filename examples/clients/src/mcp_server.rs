//! A real MCP server over streamable HTTP, whose tools fail as the test chooses, each by itself, and which can be killed.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bytes::Bytes;
use futures::{StreamExt, stream};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// How a tool answers from now on. That the server refuses connections is [`McpServer::kill`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The whole answer, at once.
    Clean,
    /// The request is read, and nothing is ever answered.
    HangBeforeHead,
    /// The head, half of the answer, and nothing more.
    HeadThenHang,
    /// The head, half of the answer, and then the connection is cut.
    CutInBody,
    /// `429` with `Retry-After`, in seconds.
    Throttled(u64),
    /// This status.
    Status(u16),
    /// The whole answer, a quarter at a time with so much time in between.
    Drip(Duration),
    /// A success, as MCP sees it, in which the tool says that it failed.
    ToolError,
    /// A JSON-RPC error: the server failed.
    InternalError,
    /// A JSON-RPC error: the caller sent what the tool does not take.
    InvalidParams,
}

/// How the server answers a call that is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// As one JSON body, without sessions.
    Json,
    /// As server-sent events, in a session. What was lost with a connection is lost.
    Events,
    /// As server-sent events that can be resumed, in a session: rmcp's default, but that clients come back after so much time.
    Resumable(Duration),
}

impl Answers {
    fn config(self) -> StreamableHttpServerConfig {
        let config = StreamableHttpServerConfig::default();
        match self {
            Answers::Json => config
                .with_legacy_session_mode(false)
                .with_json_response(true),
            Answers::Events | Answers::Resumable(_) => config.with_sse_retry(self.retry()),
        }
    }

    fn sessions(self) -> LocalSessionManager {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.sse_retry = self.retry();
        sessions
    }

    /// Without it, events have no id to come back to.
    fn retry(self) -> Option<Duration> {
        match self {
            Answers::Json | Answers::Events => None,
            Answers::Resumable(after) => Some(after),
        }
    }
}

/// A server on a port of its own, which it keeps when it is killed and started again.
pub struct McpServer {
    addr: SocketAddr,
    tools: Tools,
    answers: Answers,
    around: Box<dyn Fn(Router) -> Router + Send>,
    /// Its own threads and tasks, its sessions among them: what dies with a process.
    running: Option<Runtime>,
}

/// Has every tool that it is asked for: each answers with its own name and the server's.
#[derive(Clone)]
struct Tools {
    server: &'static str,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    faults: HashMap<String, Fault>,
    seen: HashMap<String, usize>,
}

impl Tools {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, tool: &str) -> Fault {
        self.log().faults.get(tool).cloned().unwrap_or(Fault::Clean)
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let say = |text: String| vec![ContentBlock::text(text)];
        match self.fault(&call.name) {
            Fault::ToolError => {
                Ok(CallToolResult::error(say("the database is gone".into())).into())
            }
            Fault::InternalError => Err(ErrorData::internal_error("the handler failed", None)),
            Fault::InvalidParams => Err(ErrorData::invalid_params("no such city", None)),
            _ => {
                let answer = format!("{} of {}", call.name, self.server);
                Ok(CallToolResult::success(say(answer)).into())
            }
        }
    }
}

impl McpServer {
    /// Starts a server that answers well.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface can be had.
    pub async fn start(server: &'static str, answers: Answers) -> io::Result<Self> {
        Self::start_behind(server, answers, |app| app).await
    }

    /// The same behind what `around` puts around its routes.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface can be had.
    pub async fn start_behind(
        server: &'static str,
        answers: Answers,
        around: impl Fn(Router) -> Router + Send + 'static,
    ) -> io::Result<Self> {
        let mut server = Self {
            addr: ([127, 0, 0, 1], 0).into(),
            tools: Tools {
                server,
                log: Arc::default(),
            },
            answers,
            around: Box::new(around),
            running: None,
        };
        server.restart().await?;
        Ok(server)
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// How a tool answers the calls that come from now on.
    pub fn set(&self, tool: &str, fault: Fault) {
        self.tools.log().faults.insert(tool.into(), fault);
    }

    /// How many calls of a tool have reached it.
    pub fn seen(&self, tool: &str) -> usize {
        self.tools.log().seen.get(tool).copied().unwrap_or(0)
    }

    /// Ends everything that it is: from now on connections are refused, and its sessions are forgotten.
    pub async fn kill(&mut self) {
        if let Some(runtime) = self.running.take() {
            let end = move || runtime.shutdown_timeout(Duration::from_secs(5));
            // The runtime of a caller must not wait for another.
            let _ = tokio::task::spawn_blocking(end).await;
        }
    }

    /// Opens the same port again.
    ///
    /// # Errors
    ///
    /// If somebody else has taken it in the meantime.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.kill().await;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let tools = self.tools.clone();
        let factory = {
            let tools = tools.clone();
            move || Ok(tools.clone())
        };
        let mcp = StreamableHttpService::new(
            factory,
            Arc::new(self.answers.sessions()),
            self.answers.config(),
        );
        let app = Router::new()
            .route_service("/mcp", mcp)
            .layer(from_fn_with_state(tools, fail));
        let app = (self.around)(app);
        // The socket belongs to that runtime, and goes with it.
        let addr = self.addr;
        let bound = runtime.spawn(async move {
            let listener = TcpListener::bind(addr).await?;
            let addr = listener.local_addr()?;
            tokio::spawn(async move { axum::serve(listener, app).await });
            Ok::<_, io::Error>(addr)
        });
        self.running = Some(runtime);
        self.addr = bound.await.map_err(io::Error::other)??;
        Ok(())
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.running.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lets calls of a tool fail on their way, whatever the tool would answer.
async fn fail(State(tools): State<Tools>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 1 << 20).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let fault = match called(&body) {
        Some(tool) => {
            *tools.log().seen.entry(tool.clone()).or_default() += 1;
            tools.fault(&tool)
        }
        None => Fault::Clean,
    };
    match fault {
        Fault::HangBeforeHead => return std::future::pending().await,
        Fault::Throttled(seconds) => {
            let hint = [("retry-after", seconds.to_string())];
            return (StatusCode::TOO_MANY_REQUESTS, hint).into_response();
        }
        Fault::Status(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, Json(json!({"error": "of the proxy"}))).into_response();
        }
        _ => {}
    }
    let response = next.run(Request::from_parts(head, body.into())).await;
    if !matches!(
        fault,
        Fault::HeadThenHang | Fault::CutInBody | Fault::Drip(_)
    ) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    head.headers.remove("content-length");
    let Ok(whole) = to_bytes(body, 1 << 20).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    Response::from_parts(head, broken(whole, &fault))
}

/// A body that fails after its first half.
fn broken(whole: Bytes, fault: &Fault) -> Body {
    let half = whole.slice(..whole.len() / 2);
    let begun = stream::iter([Ok::<_, io::Error>(half)]);
    match *fault {
        Fault::HeadThenHang => Body::from_stream(begun.chain(stream::pending())),
        Fault::CutInBody => {
            // Later than the half, which else might not be sent at all.
            let cut = stream::once(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(io::ErrorKind::ConnectionReset.into())
            });
            Body::from_stream(begun.chain(cut))
        }
        Fault::Drip(pause) => {
            let quarters: Vec<Bytes> = whole
                .chunks(whole.len().div_ceil(4).max(1))
                .map(Bytes::copy_from_slice)
                .collect();
            Body::from_stream(stream::iter(quarters).then(move |quarter| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, io::Error>(quarter)
            }))
        }
        _ => Body::from(whole),
    }
}

/// The tool that a request calls, if it calls one.
fn called(body: &[u8]) -> Option<String> {
    let message: Value = serde_json::from_slice(body).ok()?;
    if message.get("method")? != "tools/call" {
        return None;
    }
    Some(message.get("params")?.get("name")?.as_str()?.to_owned())
}
