//! A real MCP server over streamable HTTP. A test chooses how each tool fails, and can kill the
//! server.

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

/// How a tool answers from now on. To refuse connections, use [`McpServer::kill`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Sends the whole answer at once.
    Clean,
    /// Reads the request and never answers.
    HangBeforeHead,
    /// Sends the head and half of the answer, and then hangs.
    HeadThenHang,
    /// Sends the head and half of the answer, and then cuts the connection.
    CutInBody,
    /// Answers `429` with this `Retry-After`, in seconds.
    Throttled(u64),
    /// Answers this status.
    Status(u16),
    /// Sends the whole answer in quarters, with this pause between them.
    Drip(Duration),
    /// Answers a success of MCP in which the tool reports an error.
    ToolError,
    /// Answers a JSON-RPC error: the server failed.
    InternalError,
    /// Answers a JSON-RPC error: the caller sent wrong arguments.
    InvalidParams,
}

/// The form of an answer without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// One JSON body, without sessions.
    Json,
    /// Server-sent events in a session. A cut connection loses its events.
    Events,
    /// Server-sent events in a session, which a client can resume after this time. Except for the
    /// time, this is rmcp's default.
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

    /// Returns after which time a client resumes. Without it, events have no id to resume from.
    fn retry(self) -> Option<Duration> {
        match self {
            Answers::Json | Answers::Events => None,
            Answers::Resumable(after) => Some(after),
        }
    }
}

/// A server on its own port. It keeps the port when it is killed and restarted.
pub struct McpServer {
    addr: SocketAddr,
    tools: Tools,
    answers: Answers,
    around: Box<dyn Fn(Router) -> Router + Send>,
    /// The threads and tasks of the server, with its sessions. A process would lose the same.
    running: Option<Runtime>,
}

/// A handler that has every tool. A tool answers with its own name and the name of the server.
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
    /// Starts a server without a fault.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface is free.
    pub async fn start(server: &'static str, answers: Answers) -> io::Result<Self> {
        Self::start_behind(server, answers, |app| app).await
    }

    /// Starts a server whose routes are wrapped by `around`.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface is free.
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

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// Sets how a tool answers from now on.
    pub fn set(&self, tool: &str, fault: Fault) {
        self.tools.log().faults.insert(tool.into(), fault);
    }

    /// Returns how many calls have reached a tool.
    pub fn seen(&self, tool: &str) -> usize {
        self.tools.log().seen.get(tool).copied().unwrap_or(0)
    }

    /// Ends the whole server. From now on connections are refused, and the sessions are lost.
    pub async fn kill(&mut self) {
        if let Some(runtime) = self.running.take() {
            let end = move || runtime.shutdown_timeout(Duration::from_secs(5));
            // A runtime must not block on the end of another one.
            let _ = tokio::task::spawn_blocking(end).await;
        }
    }

    /// Opens the same port again.
    ///
    /// # Errors
    ///
    /// If another program has taken the port in the meantime.
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
        // The socket belongs to that runtime, and closes with it.
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

/// Makes calls of a tool fail in the transport, whatever the tool answers.
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
            // The error comes later than the half. Otherwise the half might not be sent.
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

/// Returns the tool that a request calls, if it calls one.
fn called(body: &[u8]) -> Option<String> {
    let message: Value = serde_json::from_slice(body).ok()?;
    if message.get("method")? != "tools/call" {
        return None;
    }
    Some(message.get("params")?.get("name")?.as_str()?.to_owned())
}
