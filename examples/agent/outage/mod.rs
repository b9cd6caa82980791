//! The first act: an agent, a search tool that goes down, and a circuit breaker between them.
//!
//! The server works, hangs, asks for a wait, hangs again, and recovers. Two agents look up the
//! same questions during this outage. One has plain retries, the other a circuit breaker around
//! its retries. The timeline shows the second agent. The table at the end compares both. What the
//! server did comes from the server's own log.
//!
//! - this file: the settings, the layers around the tool, and the agent's loop
//! - `report.rs`: the timeline, the table, and the checks of the breaker

mod report;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use tokio::time::sleep_until;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_breaker::{CircuitBreakerHandle, CircuitBreakerLayer, Event};

use self::report::{Account, Call, Timeline};
use crate::checks::Checks;
use crate::client::{Ladder, Told, client, in_words, judge};
use crate::server::{AGENT, Act, CALL, Script, Server, topic};

// ===== the settings =====

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The pauses of the retry ladder: one more attempt after each.
const PAUSES: &[Duration] = &[Duration::from_millis(25), Duration::from_millis(50)];

/// How long the whole ladder takes when every attempt times out.
const LADDER: Duration = TIMEOUT
    .saturating_mul(3)
    .saturating_add(PAUSES[0])
    .saturating_add(PAUSES[1]);

/// How long an open circuit refuses before it admits a probe. It ends well before a turn of the
/// agent begins, also on a busy machine.
const COOLDOWN: Duration = Duration::from_millis(900);

/// How long the probe may take. It must be longer than the whole ladder, because the breaker is
/// outside the retries.
const LEASE: Duration = Duration::from_secs(2);

/// The time from one turn of the agent to the next.
const RHYTHM: Duration = Duration::from_millis(300);

/// How many questions the agent looks up in parallel in each turn.
const PARALLEL: usize = 2;

/// The act ends at the latest after this time.
const DEADLINE: Duration = Duration::from_secs(20);

/// The outage. Its changes fall between the agent's turns, so every run takes the same course.
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

/// What the agent looks up. It repeats a question until it gets an answer.
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

/// The names of the two agents in the server's log.
const GUARDED: &str = "guarded";
const PLAIN: &str = "plain";

// ===== the story =====

pub async fn play(checks: &mut Checks) -> Result<(), BoxError> {
    let pages = |path: &str| (200, format!("three pages about {}", topic(path)));
    let server = Server::start(SCRIPT, pages).await?;
    let timeline = Arc::new(Timeline::new(GUARDED, &server, SCRIPT));

    let watch = Arc::clone(&timeline);
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .failure_threshold(3)
        .recovery_duration(COOLDOWN)
        .probe_timeout(LEASE)
        .classify(judge)
        .observe(move |event: &Event<'_>| watch.event(event));
    // Taken last, because a setter gives the layer new state.
    let circuit = breaker.handle();

    // From the outside in: the text for the model, the breaker, the retries, the timeout, the
    // client.
    let guarded = ServiceBuilder::new()
        .then(in_words)
        .layer(breaker)
        .retry(Ladder(PAUSES))
        .timeout(TIMEOUT)
        .service(client(search_request(GUARDED, server.address())));

    // The same stack without the breaker.
    let plain = ServiceBuilder::new()
        .then(in_words)
        .retry(Ladder(PAUSES))
        .timeout(TIMEOUT)
        .service(client(search_request(PLAIN, server.address())));

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
    // A probe that began just before the repair may still fail. When its cooldown ends, the agent
    // may be between two turns.
    let recovery = LADDER + COOLDOWN + RHYTHM;
    println!();
    report::hold(checks, &plain, &guarded, &timeline, &circuit, recovery);
    Ok(())
}

// ===== the tool =====

/// One call of the search tool. The retries clone it for each attempt.
#[derive(Clone, Debug)]
struct ToolCall {
    id: String,
    question: &'static str,
}

fn search_request(
    agent: &'static str,
    server: SocketAddr,
) -> impl Fn(ToolCall) -> Request<Full<Bytes>> + Clone {
    move |call| {
        Request::get(format!("http://{server}/search/{}", call.question))
            .header(AGENT, agent)
            .header(CALL, call.id)
            .body(Full::default())
            .expect("the questions make valid addresses")
    }
}

// ===== the agent =====

/// An agent that looks up questions. It does not know of the layers in front of its tool.
struct Agent<'a, S> {
    search: S,
    server: &'a Server,
    /// The timeline to print and the circuit to show in it. The agent itself uses neither.
    shown: Option<(&'a Timeline, CircuitBreakerHandle)>,
}

impl<S> Agent<'_, S>
where
    S: Service<ToolCall, Response = Told, Error = BoxError> + Clone,
{
    /// Takes turns until every question is answered. Each turn asks the first few in parallel, and
    /// keeps those without an answer for later.
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
                if !call.told.is_answer() {
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
        // Failed calls come as text. An error here says that the service did not become ready.
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

/// Returns when the next turn begins: at a whole multiple of the rhythm. A slow turn delays the
/// next one, but does not shift all later ones.
fn next_turn(now: Duration) -> Duration {
    let turns = now.as_millis() / RHYTHM.as_millis() + 1;
    RHYTHM * u32::try_from(turns).unwrap_or(u32::MAX)
}
