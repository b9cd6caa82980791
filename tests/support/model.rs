//! Models that do as they are told, and a primary with two backups made of them.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tower::{Service, ServiceExt};
use tower_breaker::fallback::Services;
use tower_breaker::{
    Failure, FallbackHandle, FallbackLayer, FallbackSnapshot, FallbackState, Outcome,
};

use super::secs;

/// An answer, and who gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub by: &'static str,
    pub request: String,
    /// Written by `served_by`.
    pub served_by: Option<String>,
}

/// A model's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    pub by: &'static str,
    pub outcome: Outcome,
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.by, self.outcome)
    }
}

impl std::error::Error for ModelError {}

/// The classifier for it.
pub fn classify(result: Result<&Answer, &ModelError>) -> Outcome {
    result.map_or_else(|err| err.outcome, |_| Outcome::Success)
}

/// What a model does when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Answer,
    Fail(Outcome),
    Hang,
    /// Waits for [`Model::release`].
    Wait,
    PanicInCall,
    PanicInPoll,
}

pub const DOWN: Does = Does::Fail(Outcome::Failure(Failure::transient()));

pub const NEUTRAL: Does = Does::Fail(Outcome::Neutral);

pub const FATAL: Does = Does::Fail(Outcome::Failure(Failure::fatal()));

pub fn rate_limited(seconds: u64) -> Does {
    let failure = Failure::rate_limited().with_retry_after(secs(seconds));
    Does::Fail(failure.into())
}

/// A model. Its clones share one state. It panics if it is called without having been polled
/// ready.
pub struct Model {
    name: &'static str,
    inside: Arc<Mutex<Inside>>,
    ready: bool,
}

impl Model {
    pub fn new(name: &'static str) -> Self {
        let inside = Inside {
            does: Does::Answer,
            ready: true,
            calls: Vec::new(),
            waiting: VecDeque::new(),
        };
        Self {
            name,
            inside: Arc::new(Mutex::new(inside)),
            ready: false,
        }
    }

    pub fn does(&self, does: Does) -> &Self {
        self.inside.lock().unwrap().does = does;
        self
    }

    /// Whether it is ever ready. It wakes nobody.
    pub fn is_ready(&self, ready: bool) -> &Self {
        self.inside.lock().unwrap().ready = ready;
        self
    }

    /// The requests of the calls since this was last asked.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.inside.lock().unwrap().calls)
    }

    pub fn count(&self) -> usize {
        self.calls().len()
    }

    /// Ends the oldest waiting call.
    pub fn release(&self, does: Does) {
        let waiting = self.inside.lock().unwrap().waiting.pop_front();
        let _ = waiting.expect("a call waits").send(does);
    }
}

impl Clone for Model {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            inside: Arc::clone(&self.inside),
            ready: false,
        }
    }
}

impl Service<String> for Model {
    type Response = Answer;
    type Error = ModelError;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ModelError>> {
        if !self.inside.lock().unwrap().ready {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: String) -> Answering {
        assert!(
            std::mem::take(&mut self.ready),
            "{} was not polled ready",
            self.name
        );
        let by = self.name;
        let mut inside = self.inside.lock().unwrap();
        inside.calls.push(request.clone());
        let mut does = inside.does;
        let mut wait = None;
        match does {
            Does::Wait => {
                let (send, receive) = oneshot::channel();
                inside.waiting.push_back(send);
                wait = Some(receive);
            }
            Does::PanicInCall => {
                drop(inside);
                panic!("told to panic in call")
            }
            _ => {}
        }
        Box::pin(async move {
            if let Some(wait) = wait {
                does = wait.await.expect("released");
            }
            match does {
                Does::Answer => Ok(Answer {
                    by,
                    request,
                    served_by: None,
                }),
                Does::Fail(outcome) => Err(ModelError { by, outcome }),
                Does::PanicInPoll => panic!("told to panic in poll"),
                Does::Hang | Does::Wait | Does::PanicInCall => std::future::pending().await,
            }
        })
    }
}

struct Inside {
    does: Does,
    ready: bool,
    calls: Vec<String>,
    waiting: VecDeque<oneshot::Sender<Does>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Model")
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Answer, ModelError>> + Send>>;

/// One turn of a clone: who answered, or the error's text.
pub async fn turn<S>(service: &S) -> Result<&'static str, String>
where
    S: Service<String, Response = Answer> + Clone,
    S::Error: fmt::Display,
{
    let answer = service.clone().oneshot("hello".to_owned()).await;
    answer
        .map(|answer| answer.by)
        .map_err(|err| err.to_string())
}

pub async fn turns<S>(service: &S, n: usize) -> Vec<Result<&'static str, String>>
where
    S: Service<String, Response = Answer> + Clone,
    S::Error: fmt::Display,
{
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(turn(service).await);
    }
    all
}

pub fn strikes(snapshot: &FallbackSnapshot) -> Vec<u32> {
    snapshot.entries.iter().map(|entry| entry.strikes).collect()
}

pub struct Models {
    pub primary: Model,
    pub a: Model,
    pub b: Model,
}

impl Models {
    pub fn new() -> Self {
        Self {
            primary: Model::new("primary"),
            a: Model::new("a"),
            b: Model::new("b"),
        }
    }

    /// The default layer with the chain [a, b].
    pub fn layer(
        &self,
    ) -> FallbackLayer<
        Services<Model>,
        impl Fn(Result<&Answer, &ModelError>) -> Outcome + Clone + use<>,
    > {
        FallbackLayer::new("primary")
            .backup("a", self.a.clone())
            .backup("b", self.b.clone())
            .classify(classify)
    }

    /// Trips the primary, which stays down.
    pub async fn trip<S>(&self, service: &S, handle: &FallbackHandle)
    where
        S: Service<String, Response = Answer> + Clone,
        S::Error: fmt::Display,
    {
        self.primary.does(DOWN);
        for _ in 0..3 {
            turn(service).await.unwrap_err();
        }
        assert_eq!(handle.state(), FallbackState::Fallback);
        assert_eq!(self.primary.count(), 3);
    }
}
