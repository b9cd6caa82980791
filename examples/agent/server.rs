//! A tool server on loopback whose own script decides how it behaves, and whose own log tells what it really saw.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderName, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The headers by which the log tells callers and their calls apart.
pub const AGENT: HeaderName = HeaderName::from_static("x-agent");
pub const CALL: HeaderName = HeaderName::from_static("x-call");

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answers `200`.
    Answer,
    /// Takes the request and never answers.
    Hang,
    /// Answers with a status that tells of trouble, and may ask to be left alone.
    Fail {
        status: u16,
        retry_after: Option<Duration>,
    },
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Answer => f.write_str("200"),
            Act::Hang => f.write_str("hung"),
            Act::Fail {
                status,
                retry_after: None,
            } => write!(f, "{status}"),
            Act::Fail {
                status,
                retry_after: Some(wait),
            } => write!(f, "{status}, wait {} s", wait.as_secs()),
        }
    }
}

/// From when on the server does what, counted from its start. The first entry begins at zero.
pub type Script = &'static [(Duration, Act)];

/// One request, as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it arrived, counted from the server's start.
    pub at: Duration,
    pub agent: String,
    pub call: String,
    pub act: Act,
}

/// A running server. It ends when it is dropped.
pub struct ToolServer {
    address: SocketAddr,
    desk: Arc<Desk>,
    accepting: JoinHandle<()>,
}

/// What the connections share.
struct Desk {
    started: Instant,
    script: Script,
    log: Mutex<Vec<Seen>>,
}

impl ToolServer {
    /// Starts it on a free port of the loopback interface.
    pub async fn start(script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let desk = Arc::new(Desk {
            started: Instant::now(),
            script,
            log: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&desk)));
        Ok(Self {
            address,
            desk,
            accepting,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The time by which the script runs and the log is kept.
    pub fn now(&self) -> Duration {
        self.desk.started.elapsed()
    }

    /// The instant at which [`now`](Self::now) will be `at`.
    pub fn instant(&self, at: Duration) -> Instant {
        self.desk.started + at
    }

    /// Every request so far, in the order of arrival.
    pub fn log(&self) -> Vec<Seen> {
        self.desk.log().clone()
    }

    /// What it did with the requests of one call: none if the call never came here, several if it was retried.
    pub fn acts_for(&self, agent: &str, call: &str) -> Vec<Act> {
        let log = self.desk.log();
        let of_call = log
            .iter()
            .filter(|seen| seen.agent == agent && seen.call == call);
        of_call.map(|seen| seen.act).collect()
    }
}

impl Drop for ToolServer {
    fn drop(&mut self) {
        // The connections belong to the task that accepts them, and end with it.
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let desk = Arc::clone(&desk);
        let service = service_fn(move |request| Arc::clone(&desk).handle(request));
        // A caller who gives up closes its connection: that is an error here, and none of ours.
        connections.spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
        while connections.try_join_next().is_some() {}
    }
}

impl Desk {
    fn log(&self) -> std::sync::MutexGuard<'_, Vec<Seen>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act(&self, at: Duration) -> Act {
        let begun = self.script.iter().take_while(|(from, _)| *from <= at);
        begun.last().map_or(Act::Answer, |(_, act)| *act)
    }

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let at = self.started.elapsed();
        let act = self.act(at);
        let header = |name: HeaderName| {
            let value = request.headers().get(name);
            let text = value.and_then(|value| value.to_str().ok());
            text.unwrap_or("?").to_owned()
        };
        self.log().push(Seen {
            at,
            agent: header(AGENT),
            call: header(CALL),
            act,
        });
        let (status, retry_after, text) = match act {
            Act::Hang => std::future::pending().await,
            Act::Answer => {
                let path = request.uri().path();
                let topic = path.rsplit('/').next().unwrap_or(path);
                (200, None, format!("three pages about {topic}"))
            }
            Act::Fail {
                status,
                retry_after,
            } => (status, retry_after, "overloaded".to_owned()),
        };
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        if let Some(wait) = retry_after {
            let seconds = wait.as_secs().into();
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        Ok(response)
    }
}
