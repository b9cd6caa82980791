//! An agent, a search tool that goes down, and a circuit breaker between them.
//!
//! ```text
//! cargo run --example agent
//! ```
//!
//! A tool server is healthy, hangs, asks to be left alone, hangs again, and recovers. Two agents live through the same outage side by side,
//! with the same questions to look up: one retries, the other has a circuit breaker around its retries. The timeline is that
//! of the second; the table at the end compares the two. What the server did is read from the server's own log.
//!
//! The times are a thirtieth of what a tool would be given, so that it all takes some nine seconds. It exits with an error if the
//! breaker did not do its work.
//!
//! - this file: the settings, the tool's stack of layers, and the agent's loop
//! - `server.rs`: the tool server, its script and its log
//! - `report.rs`: the timeline, the table, and what the breaker is held to

mod report;
mod server;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::RETRY_AFTER;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::{Sleep, sleep, sleep_until};
use tower::retry::Policy;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_breaker::{
    CircuitBreakerHandle, CircuitBreakerLayer, Classify, ErrorsAsFailures, Event, Failure, Outcome,
    Reason, Refusal,
};

use crate::report::{Account, Call, Timeline};
use crate::server::{AGENT, Act, CALL, Script, ToolServer};

// ===== the settings =====

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The pauses of the retry ladder: so many more attempts, each after its pause.
const PAUSES: &[Duration] = &[Duration::from_millis(25), Duration::from_millis(50)];

/// The whole ladder, when every attempt times out.
const LADDER: Duration = TIMEOUT
    .saturating_mul(3)
    .saturating_add(PAUSES[0])
    .saturating_add(PAUSES[1]);

/// How long an open circuit refuses before it lets a probe through.
const COOLDOWN: Duration = Duration::from_secs(1);

/// How long the probe may take. The breaker is outside the retries, so it must be longer than the whole ladder.
const LEASE: Duration = Duration::from_secs(2);

/// The agent takes turns in this rhythm, and thinks in between.
const RHYTHM: Duration = Duration::from_millis(300);

/// How many questions the agent looks up at once in each turn.
const PARALLEL: usize = 2;

/// Nobody waits longer than this for the story to end.
const DEADLINE: Duration = Duration::from_secs(20);

/// The outage. Its edges lie between the agent's turns, so that every run takes the same course.
const SCRIPT: Script = &[
    (Duration::ZERO, Act::Answer),
    (Duration::from_millis(1_050), Act::Hang),
    (Duration::from_millis(3_450), LEAVE_ME_ALONE),
    (Duration::from_millis(4_350), Act::Hang),
    (Duration::from_millis(7_050), Act::Answer),
];

const LEAVE_ME_ALONE: Act = Act::Fail {
    status: 503,
    retry_after: Some(Duration::from_secs(2)),
};

/// What the agent wants to know. It asks again for what it was not told.
const QUESTIONS: [&str; 14] = [
    "layers",
    "services",
    "readiness",
    "buffers",
    "timeouts",
    "retries",
    "budgets",
    "balance",
    "steering",
    "spawning",
    "limits",
    "shedding",
    "hedging",
    "filters",
];

/// The names by which the server's log tells the two agents apart.
const GUARDED: &str = "guarded";
const PLAIN: &str = "plain";

// ===== the story =====

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, BoxError> {
    let server = ToolServer::start(SCRIPT).await?;
    let timeline = Arc::new(Timeline::new(GUARDED, &server, SCRIPT));

    let watch = Arc::clone(&timeline);
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .failure_threshold(3)
        .recovery_duration(COOLDOWN)
        .probe_timeout(LEASE)
        .classify(judge)
        .observe(move |event: &Event<'_>| watch.event(event));
    // Taken last: a setter gives the layer state of its own.
    let circuit = breaker.handle();

    // From the outside in: the words for the model, the breaker, the retries, the timeout, the client.
    let guarded = ServiceBuilder::new()
        .then(in_words)
        .layer(breaker)
        .retry(Ladder(PAUSES))
        .timeout(TIMEOUT)
        .service(search_client(GUARDED, server.address()));

    // The same without the breaker.
    let plain = ServiceBuilder::new()
        .then(in_words)
        .retry(Ladder(PAUSES))
        .timeout(TIMEOUT)
        .service(search_client(PLAIN, server.address()));

    let guarded = Agent {
        search: guarded,
        server: &server,
        shown: Some((&timeline, circuit.clone())),
    };
    let plain = Agent {
        search: plain,
        server: &server,
        shown: None,
    };
    Timeline::head();
    let (guarded, plain) = futures::try_join!(guarded.work(), plain.work())?;

    let guarded = Account::new(GUARDED, guarded, &server, SCRIPT);
    let plain = Account::new(PLAIN, plain, &server, SCRIPT);
    report::compare(&plain, &guarded);
    // A probe that began just before the repair may still fail, and when its cooldown is over the agent may be between two turns.
    let recovery = LADDER + COOLDOWN + RHYTHM;
    let kept = report::hold(&plain, &guarded, &timeline, &circuit, recovery);
    Ok(if kept {
        ExitCode::SUCCESS
    } else {
        eprintln!("the breaker did not do its work: see `BROKEN` above");
        ExitCode::FAILURE
    })
}

// ===== the tool =====

/// One call of the search tool. It is cloned for each attempt.
#[derive(Clone, Debug)]
struct ToolCall {
    id: String,
    question: &'static str,
}

type Answer = Response<Bytes>;

/// The tool over HTTP, without any layer of ours.
///
/// The body is read in here, inside the timeout and the breaker: a head alone is not an answer.
fn search_client(
    agent: &'static str,
    server: SocketAddr,
) -> impl Service<ToolCall, Response = Answer, Error = BoxError> + Clone {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    ServiceBuilder::new()
        .map_request(move |call: ToolCall| {
            Request::get(format!("http://{server}/search/{}", call.question))
                .header(AGENT, agent)
                .header(CALL, call.id)
                .body(Full::default())
                .expect("the questions make valid addresses")
        })
        .and_then(|response: Response<Incoming>| async {
            let (head, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, BoxError>(Response::from_parts(head, body))
        })
        .service(client)
}

/// What a result says of the tool. An error is a failure; so is a status that tells of trouble on its side.
fn judge(result: Result<&Answer, &BoxError>) -> Outcome {
    let Ok(answer) = result else {
        return ErrorsAsFailures.classify(result);
    };
    let failure = match answer.status() {
        StatusCode::TOO_MANY_REQUESTS => Failure::rate_limited(),
        status if status.is_server_error() => Failure::transient(),
        // The caller's own mistake says nothing of the tool.
        status if status.is_client_error() => return Outcome::Neutral,
        _ => return Outcome::Success,
    };
    let seconds = answer.headers().get(RETRY_AFTER);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    Outcome::Failure(match seconds {
        Some(seconds) => failure.with_retry_after(Duration::from_secs(seconds)),
        None => failure,
    })
}

/// A retry policy: one more attempt after each pause, while attempts fail.
#[derive(Clone, Copy, Debug)]
struct Ladder(&'static [Duration]);

impl Policy<ToolCall, Answer, BoxError> for Ladder {
    type Future = Sleep;

    fn retry(
        &mut self,
        _: &mut ToolCall,
        result: &mut Result<Answer, BoxError>,
    ) -> Option<Self::Future> {
        match judge(result.as_ref()) {
            // A server that says when to come back is not asked again before.
            Outcome::Failure(failure) if failure.retry_after().is_none() => {
                let (pause, rest) = self.0.split_first()?;
                self.0 = rest;
                Some(sleep(*pause))
            }
            _ => None,
        }
    }

    fn clone_request(&mut self, call: &ToolCall) -> Option<ToolCall> {
        Some(call.clone())
    }
}

/// What the model is told of a call. It can read all three.
#[derive(Clone, Debug)]
enum Told {
    Answer(String),
    Failure(String),
    Refusal(String),
}

/// The outermost layer: makes words of every result, a refusal of any layer inside included.
async fn in_words(result: Result<Answer, BoxError>) -> Result<Told, BoxError> {
    Ok(match result {
        Ok(answer) => {
            let text = String::from_utf8_lossy(answer.body()).into_owned();
            match answer.status() {
                status if status.is_success() => Told::Answer(text),
                status => Told::Failure(format!("error: {status}: {text}")),
            }
        }
        Err(err) => match Refusal::find(&*err) {
            None => Told::Failure(format!("error: {err}")),
            Some(refusal) => Told::Refusal(match (refusal.reason(), refusal.retry_after()) {
                (Reason::ProbeInFlight, _) => format!("{refusal}, another call is testing it"),
                (_, Some(wait)) => format!("{refusal}, wait {:.1} s", wait.as_secs_f64()),
                (_, None) => refusal.to_string(),
            }),
        },
    })
}

// ===== the agent =====

/// Looks questions up. It knows nothing of the layers in front of its tool.
struct Agent<'a, S> {
    search: S,
    server: &'a ToolServer,
    /// What its timeline is printed from; an agent needs neither.
    shown: Option<(&'a Timeline, CircuitBreakerHandle)>,
}

impl<S> Agent<'_, S>
where
    S: Service<ToolCall, Response = Told, Error = BoxError> + Clone,
{
    /// Takes turns until every question is answered: asks the first few in parallel, and keeps for later what was not answered.
    async fn work(&self) -> Result<Vec<Call>, BoxError> {
        let mut questions = VecDeque::from(QUESTIONS);
        let mut calls = Vec::new();
        for turn in 1.. {
            let few = PARALLEL.min(questions.len());
            let asked: Vec<_> = questions.drain(..few).collect();
            if asked.is_empty() || self.server.now() > DEADLINE {
                break;
            }
            let lookups = asked.iter().zip('a'..);
            let lookups = lookups
                .map(|(question, letter)| self.look_up(turn, format!("{turn}{letter}"), question));
            let ended = try_join_all(lookups).await?;
            if let Some((timeline, _)) = &self.shown {
                timeline.turn(self.server, &ended);
            }
            for (question, call) in asked.into_iter().zip(&ended).rev() {
                if !matches!(call.told, Told::Answer(_)) {
                    questions.push_front(question);
                }
            }
            calls.extend(ended);
            sleep_until(self.server.instant(next_turn(self.server.now()))).await;
        }
        Ok(calls)
    }

    async fn look_up(
        &self,
        turn: u32,
        id: String,
        question: &'static str,
    ) -> Result<Call, BoxError> {
        let started = self.server.now();
        let call = ToolCall {
            id: id.clone(),
            question,
        };
        // An error here would be of the service itself, which failed to become ready; of its calls it tells in words.
        let told = self.search.clone().oneshot(call).await?;
        let circuit = self.shown.as_ref().map(|(_, circuit)| circuit.state());
        let call = Call {
            turn,
            id,
            started,
            ended: self.server.now(),
            told,
            circuit,
        };
        if let Some((timeline, _)) = &self.shown {
            timeline.call(self.server, &call);
        }
        Ok(call)
    }
}

/// Turns begin at whole multiples of the rhythm, so that a slow one delays the next but does not shift all that follow.
fn next_turn(now: Duration) -> Duration {
    let turns = now.as_millis() / RHYTHM.as_millis() + 1;
    RHYTHM * u32::try_from(turns).unwrap_or(u32::MAX)
}
