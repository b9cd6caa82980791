//! Shared by the tests: a tool that does as each request says, a recorder of events, and time.

#![allow(dead_code)] // Each test binary uses a part of it.

pub mod models;

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
use tower_breaker::{BoxError, Event, Failure, Observe, Outcome, Refusal};

// ===== the tool =====

pub type Answer = Result<Reply, Fault>;

/// The answer of the tool: who answered, and whether the answer is flagged as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub by: String,
    pub is_error: bool,
}

/// The error of the tool, as of a server: a status, and how long to wait.
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

#[allow(clippy::unnecessary_wraps)] // The type of an answer.
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

/// A classifier by status: 5xx is transient, 429 a rate limit, 402 fatal, and other 4xx are
/// mistakes of the caller.
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

/// A request, which says what the tool must do.
#[derive(Debug)]
pub struct Ask {
    pub name: String,
    act: Act,
}

#[derive(Debug)]
enum Act {
    Answer(Answer),
    AnswerAfter(Duration),
    Held(oneshot::Receiver<Answer>),
    PanicInCall,
    PanicInPoll,
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

    /// Succeeds after this time.
    pub fn slow(time: Duration) -> Self {
        Self::to(Act::AnswerAfter(time))
    }

    /// Answers with what the sender sends. If the sender is gone, it never answers.
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

    /// The same request for the tool of this name.
    pub fn of(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// The inner service. It keeps a log, and panics if it is called but was not polled ready.
#[derive(Debug, Default)]
pub struct Tool {
    log: Arc<Mutex<Log>>,
    ready: bool,
}

#[derive(Debug, Default)]
struct Log {
    calls: HashMap<String, usize>,
    running: usize,
}

impl Tool {
    pub fn new() -> Self {
        Self::default()
    }

    /// How often it was called, under any name.
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

/// Starts a call that answers with what the sender sends.
pub async fn hold<S: Guarded>(
    service: &mut S,
    name: &str,
) -> (Spawn<S::Future>, oneshot::Sender<Answer>) {
    let (ask, held) = Ask::held();
    (begin(service, ask.of(name)).await, held)
}

/// Returns the refusal in an answer.
#[track_caller]
pub fn refused<T: fmt::Debug>(result: Result<T, BoxError>) -> Refusal {
    let err = result.expect_err("refused");
    let refusal = Refusal::find(&*err);
    refusal
        .unwrap_or_else(|| panic!("not refused: {err}"))
        .clone()
}

/// Makes three failed calls of the tool of this name.
pub async fn trip_key(service: &mut impl Guarded, name: &str) {
    for _ in 0..3 {
        let answer = ask(service, Ask::fail().of(name)).await;
        assert_eq!(answer.unwrap_err().to_string(), "status 503");
    }
}

pub async fn trip(service: &mut impl Guarded) {
    trip_key(service, "").await;
}

// ===== events =====

/// Keeps a line for each event.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    pub fn new() -> Self {
        Self::default()
    }

    /// The events since the last time.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observe for Recorder {
    fn observe(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(line(event));
    }
}

/// An event as a line: `search: closed -> open (failure_threshold) #1`.
pub fn line(event: &Event<'_>) -> String {
    let name = event
        .name()
        .map(|name| format!("{name}: "))
        .unwrap_or_default();
    let text = match event {
        Event::Transition {
            from,
            to,
            reason,
            generation,
            ..
        } => {
            format!("{from} -> {to} ({reason}) #{generation}")
        }
        Event::ProbeStarted {
            generation, lease, ..
        } => format!("probe for {lease:?} #{generation}"),
        Event::LeaseExpired { generation, .. } => format!("lease expired #{generation}"),
        Event::LateVerdict {
            generation,
            outcome,
            ..
        } => match outcome {
            Outcome::Failure(failure) => format!("late {} failure #{generation}", failure.kind()),
            outcome => format!("late {outcome:?} #{generation}").to_lowercase(),
        },
        Event::Refused {
            refusal,
            observe_only,
            ..
        } => {
            let done = if *observe_only { "observed" } else { "refused" };
            match refusal.retry_after() {
                Some(wait) => format!("{done} {} for {wait:?}", refusal.reason()),
                None => format!("{done} {}", refusal.reason()),
            }
        }
        Event::Unguarded { .. } => "unguarded".to_owned(),
        Event::Evicted { state, .. } => format!("evicted {state}"),
        Event::Missed { count, .. } => format!("missed {count}"),
        other => format!("{other:?}"),
    };
    name + &text
}

// ===== time =====

pub const NS: Duration = Duration::from_nanos(1);

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Lets time pass on the paused clock.
pub async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

/// Runs `future` on a paused clock, for tests that are not async themselves.
pub fn paused<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// Runs `future` on eight threads, for at most a minute, so that a broken test fails and does not
/// hang.
pub fn on_threads<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(8)
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(secs(60), future).await })
        .expect("done within a minute")
}
