//! A server on loopback that plays a tool or a model. It follows a script, and logs every request.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderName, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use tokio::time::Instant;

use crate::loopback::Loopback;

/// The headers that name the caller and the call in the log.
pub const AGENT: HeaderName = HeaderName::from_static("x-agent");
pub const CALL: HeaderName = HeaderName::from_static("x-call");

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answers `200`.
    Answer,
    /// Takes the request and never answers.
    Hang,
    /// Answers with an error status, and may ask for a wait.
    Fail {
        status: u16,
        retry_after: Option<Duration>,
    },
}

impl Act {
    const fn fail(status: u16) -> Self {
        Act::Fail {
            status,
            retry_after: None,
        }
    }
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

/// What the server does from which time on, counted from its start. The first entry is at zero.
pub type Script = &'static [(Duration, Act)];

/// One request, as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it arrived, counted from the server's start.
    pub at: Duration,
    pub agent: String,
    pub call: String,
    pub path: String,
    pub body: String,
    pub act: Act,
}

/// What a healthy server answers to a path: a status and a text. A `4xx` is the caller's mistake.
pub type Pages = fn(&str) -> (u16, String);

/// A running server. Dropping it stops it.
pub struct Server {
    loopback: Loopback,
    desk: Arc<Desk>,
}

/// The state that all connections share.
struct Desk {
    started: Instant,
    script: Mutex<Vec<(Duration, Act)>>,
    pages: Pages,
    log: Mutex<Vec<Seen>>,
}

impl Server {
    /// Starts the server on a free port of the loopback interface.
    pub async fn start(script: Script, pages: Pages) -> io::Result<Self> {
        let desk = Arc::new(Desk {
            started: Instant::now(),
            script: Mutex::new(script.to_vec()),
            pages,
            log: Mutex::default(),
        });
        let handler = Arc::clone(&desk);
        let loopback = Loopback::serve(move |request| Arc::clone(&handler).handle(request)).await?;
        Ok(Self { loopback, desk })
    }

    pub fn address(&self) -> SocketAddr {
        self.loopback.address()
    }

    /// Returns the time since the server's start. The script and the log use this time.
    pub fn now(&self) -> Duration {
        self.desk.started.elapsed()
    }

    /// Returns the instant at which [`now`](Self::now) is `at`.
    pub fn instant(&self, at: Duration) -> Instant {
        self.desk.started + at
    }

    /// Changes what the server does from now on.
    pub fn now_does(&self, act: Act) {
        lock(&self.desk.script).push((self.now(), act));
    }

    /// Returns every request so far, in the order of arrival.
    pub fn log(&self) -> Vec<Seen> {
        lock(&self.desk.log).clone()
    }

    /// Returns what the server did with the requests of one call. There are none if the call never
    /// reached it, and several if the call was retried.
    pub fn acts_for(&self, agent: &str, call: &str) -> Vec<Act> {
        let log = lock(&self.desk.log);
        let of_call = log
            .iter()
            .filter(|seen| seen.agent == agent && seen.call == call);
        of_call.map(|seen| seen.act).collect()
    }
}

fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    fn act(&self, at: Duration) -> Act {
        let script = lock(&self.script);
        let begun = script.iter().take_while(|(from, _)| *from <= at);
        begun.last().map_or(Act::Answer, |(_, act)| *act)
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let at = self.started.elapsed();
        let (head, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let path = head.uri.path();
        let (act, text) = match self.act(at) {
            Act::Answer => match (self.pages)(path) {
                (200, text) => (Act::Answer, text),
                (status, text) => (Act::fail(status), text),
            },
            act => (act, "overloaded".to_owned()),
        };
        let header = |name: HeaderName| {
            let value = head.headers.get(name);
            let text = value.and_then(|value| value.to_str().ok());
            text.unwrap_or("?").to_owned()
        };
        lock(&self.log).push(Seen {
            at,
            agent: header(AGENT),
            call: header(CALL),
            path: path.to_owned(),
            body: String::from_utf8_lossy(&body.unwrap_or_default()).into_owned(),
            act,
        });
        let (status, retry_after) = match act {
            Act::Hang => std::future::pending().await,
            Act::Answer => (200, None),
            Act::Fail {
                status,
                retry_after,
            } => (status, retry_after),
        };
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        if let Some(wait) = retry_after {
            let seconds = wait.as_secs().into();
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}

/// Returns the last part of a path, which is what a call asks for.
pub fn topic(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Describes what the server did with a call's attempts. Equal ones in a row are counted.
pub fn in_short(acts: &[Act]) -> String {
    let mut parts = Vec::new();
    for run in acts.chunk_by(|one, next| one == next) {
        parts.push(match run.len() {
            1 => run[0].to_string(),
            more => format!("{} {more} times", run[0]),
        });
    }
    if parts.is_empty() {
        parts.push("(not called)".to_owned());
    }
    parts.join(", ")
}
