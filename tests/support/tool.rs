//! A tool that does what each request says.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_test::task::{self, Spawn};
use tower::{Service, ServiceExt};
use tower_breaker::{BoxError, Failure, Outcome};

pub type Answer = Result<Reply, Fault>;

/// What the tool answers: who did, and whether the answer is flagged as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub by: String,
    pub is_error: bool,
}

/// What the tool fails with, as a server would: a status, and how long to stay away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub status: u16,
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.status)
    }
}

impl std::error::Error for Fault {}

#[allow(clippy::unnecessary_wraps)] // It is an answer.
pub fn ok() -> Answer {
    Ok(Reply {
        by: String::new(),
        is_error: false,
    })
}

pub fn status(status: u16) -> Answer {
    Err(Fault {
        status,
        retry_after: None,
    })
}

pub fn busy_for(hint: Duration) -> Answer {
    Err(Fault {
        status: 429,
        retry_after: Some(hint),
    })
}

/// A classifier by status: 5xx is transient, 429 a rate limit, 402 fatal, and the rest of 4xx
/// neutral.
pub fn by_status(result: Result<&Reply, &Fault>) -> Outcome {
    let Err(fault) = result else {
        return Outcome::Success;
    };
    let failure = match fault.status {
        402 => Failure::fatal(),
        429 => Failure::rate_limited(),
        500.. => Failure::transient(),
        _ => return Outcome::Neutral,
    };
    match fault.retry_after {
        Some(hint) => failure.with_retry_after(hint),
        None => failure,
    }
    .into()
}

/// A request, which says what the tool does.
#[derive(Debug)]
pub struct Ask {
    pub name: String,
    act: Act,
}

impl Ask {
    fn to(act: Act) -> Self {
        let name = String::new();
        Self { name, act }
    }

    pub fn answer(answer: Answer) -> Self {
        Self::to(Act::Answer(answer))
    }

    pub fn ok() -> Self {
        Self::answer(ok())
    }

    pub fn fail() -> Self {
        Self::answer(status(503))
    }

    pub fn neutral() -> Self {
        Self::answer(status(401))
    }

    /// Succeeds after so long.
    pub fn slow(time: Duration) -> Self {
        Self::to(Act::AnswerAfter(time))
    }

    /// Answers what the sender sends. It never answers when the sender is gone.
    pub fn held() -> (Self, oneshot::Sender<Answer>) {
        let (send, receive) = oneshot::channel();
        (Self::to(Act::Held(receive)), send)
    }

    pub fn panic_in_call() -> Self {
        Self::to(Act::PanicInCall)
    }

    pub fn panic_in_poll() -> Self {
        Self::to(Act::PanicInPoll)
    }

    /// The same request, for the tool of this name.
    pub fn of(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

#[derive(Debug)]
enum Act {
    Answer(Answer),
    AnswerAfter(Duration),
    Held(oneshot::Receiver<Answer>),
    PanicInCall,
    PanicInPoll,
}

/// The inner service. It keeps a log, and panics when it is called without having been polled ready.
#[derive(Debug, Default)]
pub struct Tool {
    log: Arc<Mutex<Log>>,
    ready: bool,
}

impl Tool {
    pub fn new() -> Self {
        Self::default()
    }

    /// How often it was called, under all names together.
    pub fn calls(&self) -> usize {
        self.log.lock().unwrap().calls.values().sum()
    }

    pub fn calls_of(&self, name: &str) -> usize {
        let log = self.log.lock().unwrap();
        log.calls.get(name).copied().unwrap_or(0)
    }

    /// How many of its calls are neither answered nor dropped.
    pub fn running(&self) -> usize {
        self.log.lock().unwrap().running
    }
}

impl Clone for Tool {
    fn clone(&self) -> Self {
        Self {
            log: Arc::clone(&self.log),
            ready: false,
        }
    }
}

impl Service<Ask> for Tool {
    type Response = Reply;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, ask: Ask) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called before it was ready"
        );
        let Ask { name, act } = ask;
        {
            let mut log = self.log.lock().unwrap();
            *log.calls.entry(name.clone()).or_default() += 1;
        }
        assert!(!matches!(act, Act::PanicInCall), "in call");
        let running = Running::begin(&self.log);
        Box::pin(async move {
            let _running = running;
            let answer = match act {
                Act::Answer(answer) => answer,
                Act::AnswerAfter(time) => {
                    tokio::time::sleep(time).await;
                    ok()
                }
                Act::Held(answer) => match answer.await {
                    Ok(answer) => answer,
                    Err(_) => std::future::pending().await,
                },
                Act::PanicInCall | Act::PanicInPoll => panic!("in poll"),
            };
            answer.map(|reply| Reply { by: name, ..reply })
        })
    }
}

#[derive(Debug, Default)]
struct Log {
    calls: HashMap<String, usize>,
    running: usize,
}

struct Running(Arc<Mutex<Log>>);

impl Running {
    fn begin(log: &Arc<Mutex<Log>>) -> Self {
        log.lock().unwrap().running += 1;
        Self(Arc::clone(log))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().running -= 1;
    }
}

// ===== calling =====

/// A guarded tool.
pub trait Guarded: Service<Ask, Response = Reply, Error = BoxError> {}

impl<S: Service<Ask, Response = Reply, Error = BoxError>> Guarded for S {}

/// Polls the service ready, calls it, and waits for the answer.
pub async fn ask(service: &mut impl Guarded, ask: Ask) -> Result<Reply, BoxError> {
    service.ready().await?.call(ask).await
}

/// Polls the service ready and calls it; the future is not polled yet.
pub async fn call<S: Guarded>(service: &mut S, ask: Ask) -> Spawn<S::Future> {
    task::spawn(service.ready().await.expect("ready").call(ask))
}

/// Starts a call that the tool has begun to work on.
pub async fn begin<S: Guarded>(service: &mut S, ask: Ask) -> Spawn<S::Future> {
    let mut future = call(service, ask).await;
    assert!(future.poll().is_pending());
    future
}

/// Starts a call that answers what the sender sends.
pub async fn hold<S: Guarded>(
    service: &mut S,
    name: &str,
) -> (Spawn<S::Future>, oneshot::Sender<Answer>) {
    let (ask, held) = Ask::held();
    (begin(service, ask.of(name)).await, held)
}

/// Fails three calls of the tool of this name.
pub async fn trip_key(service: &mut impl Guarded, name: &str) {
    for _ in 0..3 {
        let answer = ask(service, Ask::fail().of(name)).await;
        assert_eq!(answer.unwrap_err().to_string(), "status 503");
    }
}

pub async fn trip(service: &mut impl Guarded) {
    trip_key(service, "").await;
}
