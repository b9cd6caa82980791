//! A chat server on loopback with the protocol of `OpenAI`. It follows a script, and logs every
//! request.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use tokio::time::Instant;

use crate::loopback::Loopback;

/// The header that names the caller in the log.
pub const CALLER: HeaderName = HeaderName::from_static("x-caller");

/// What a server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answers `200`.
    Answer,
    /// Takes the request and never answers.
    Hang,
    /// Answers with an error status.
    Fail(u16),
    /// Answers `429`, and asks for a wait of this many seconds.
    Limit(u64),
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Answer => f.write_str("200"),
            Act::Hang => f.write_str("hangs"),
            Act::Fail(status) => write!(f, "{status}"),
            Act::Limit(seconds) => write!(f, "429, Retry-After {seconds}"),
        }
    }
}

/// What a server does from which time on, in milliseconds. The first entry is at zero.
pub type Script = &'static [(u64, Act)];

/// One request, as the server saw it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub caller: &'static str,
    pub act: Act,
}

/// A running server. Dropping it stops it.
pub struct ChatServer {
    loopback: Loopback,
    desk: Arc<Desk>,
}

/// The state that all connections share.
struct Desk {
    model: &'static str,
    started: Instant,
    script: Script,
    callers: &'static [&'static str],
    log: Mutex<Vec<Seen>>,
}

impl ChatServer {
    /// Starts the server on a free port of the loopback interface. Its script begins at `started`.
    pub async fn start(
        model: &'static str,
        script: Script,
        started: Instant,
        callers: &'static [&'static str],
    ) -> io::Result<Self> {
        let desk = Arc::new(Desk {
            model,
            started,
            script,
            callers,
            log: Mutex::default(),
        });
        let handler = Arc::clone(&desk);
        let loopback = Loopback::serve(move |request| Arc::clone(&handler).handle(request)).await?;
        Ok(Self { loopback, desk })
    }

    pub fn address(&self) -> SocketAddr {
        self.loopback.address()
    }

    /// Returns the requests of one caller so far.
    pub fn seen(&self, caller: &str) -> Vec<Seen> {
        let log = self.desk.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter()
            .filter(|seen| seen.caller == caller)
            .copied()
            .collect()
    }
}

impl Desk {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let at = self.started.elapsed().as_millis();
        let begun = self
            .script
            .iter()
            .take_while(|(from, _)| u128::from(*from) <= at);
        let act = begun.last().map_or(Act::Answer, |(_, act)| *act);
        let caller = request.headers().get(CALLER);
        let caller = self
            .callers
            .iter()
            .find(|name| caller.is_some_and(|value| value == **name));
        let caller = caller.copied().unwrap_or("?");
        let seen = Seen { caller, act };
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seen);

        let known = request.uri().path() == "/v1/chat/completions";
        let asked = request
            .into_body()
            .collect()
            .await
            .map(|body| body.to_bytes().len());
        let (status, body) = match act {
            Act::Hang => std::future::pending().await,
            Act::Answer if known => (200, self.completion(asked.unwrap_or(0))),
            Act::Answer => (404, error("no such path")),
            Act::Fail(status) => (status, error("overloaded")),
            Act::Limit(_) => (429, error("rate limit reached")),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            "application/json".parse().expect("a header's value"),
        );
        if let Act::Limit(seconds) = act {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    fn completion(&self, asked: usize) -> String {
        let model = self.model;
        format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","model":"{model}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{model} read {asked} bytes"}},"finish_reason":"stop"}}]}}"#
        )
    }
}

fn error(message: &str) -> String {
    format!(r#"{{"error":{{"message":"{message}","type":"server_error"}}}}"#)
}
