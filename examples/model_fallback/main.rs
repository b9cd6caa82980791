//! Runs three models behind a fallback, with an outage of each.
//!
//! ```text
//! cargo run --example model_fallback
//! ```
//!
//! Three chat servers on loopback follow their scripts. The primary fails, asks for a wait, hangs,
//! and recovers. Meanwhile each backup has an outage too. One stream of turns goes through
//! `fallback(retry(timeout(client)))`. A second stream goes through `retry(timeout(client))` to
//! the primary alone. The timeline shows the first stream. The table at the end compares both.
//!
//! All times are a fortieth of realistic ones, so the program takes about eleven seconds. It exits
//! with an error if the layer lost a turn, or if it did not return to the primary.

#[path = "../support/loopback.rs"]
mod loopback;
mod server;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower::retry::Policy;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_breaker::{
    EntryChange, Event, Failure, FallbackHandle, FallbackLayer, FallbackState, Outcome, Refusal,
};

use crate::server::{Act, CALLER, ChatServer, Script};

// ===== the settings =====

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_millis(400);

/// The retry ladder: one more attempt after this pause.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the chain serves before a probe of the primary.
const COOLDOWN: Duration = Duration::from_millis(1_500);

/// How long a probe may take. It is longer than the whole ladder: two timeouts and the pause.
const LEASE: Duration = Duration::from_secs(2);

/// After this time a backup with a spent budget gets a new one.
const BENCH: Duration = Duration::from_millis(2_500);

/// The time from one turn to the next. A turn begins even if earlier ones still run.
const RHYTHM: Duration = Duration::from_millis(250);

const TURNS: u32 = 44;

const PRIMARY: &str = "gpt-5";
const BACKUPS: [&str; 2] = ["claude", "llama"];

/// What each server does from which time on. The changes fall between the turns.
const SCRIPTS: [Script; 3] = [
    &[
        (0, Act::Answer),
        (1_600, Act::Fail(500)),
        (3_900, Act::Limit(2)),
        (5_900, Act::Hang),
        (8_100, Act::Answer),
    ],
    &[
        (0, Act::Answer),
        (2_900, Act::Fail(529)),
        (5_100, Act::Answer),
    ],
    &[
        (0, Act::Answer),
        (6_600, Act::Fail(503)),
        (7_100, Act::Answer),
    ],
];

/// The names of the two streams in the servers' logs.
const CALLERS: [&str; 2] = [GUARDED, PLAIN];
const GUARDED: &str = "guarded";
const PLAIN: &str = "plain";

// ===== the story =====

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, BoxError> {
    let started = Instant::now();
    let [gpt, claude, llama] = SCRIPTS;
    let gpt = ChatServer::start(PRIMARY, gpt, started, &CALLERS).await?;
    let claude = ChatServer::start(BACKUPS[0], claude, started, &CALLERS).await?;
    let llama = ChatServer::start(BACKUPS[1], llama, started, &CALLERS).await?;

    let story = Arc::new(Story {
        started,
        events: Mutex::default(),
        counts: Mutex::default(),
    });
    let watch = Arc::clone(&story);
    let layer = FallbackLayer::new(PRIMARY)
        .backup(BACKUPS[0], model(GUARDED, claude.address()))
        .backup(BACKUPS[1], model(GUARDED, llama.address()))
        .recovery_timeout(COOLDOWN)
        .probe_timeout(LEASE)
        .probation_limit(2)
        .bench(BENCH)
        .classify(judge)
        .same_turn(|chat: &Chat| Some(chat.clone()))
        .served_by(|answer: &mut Answer, name: &str| answer.by = Some(name.to_owned()))
        .observe(move |event: &Event<'_>| watch.event(event));
    // Taken last, because a setter gives the layer new state.
    let fallback = layer.handle();
    let guarded = ServiceBuilder::new()
        .layer(layer)
        .service(model(GUARDED, gpt.address()));
    let plain = model(PLAIN, gpt.address()).map_err(BoxError::from);

    println!("  time  turn  served by  after  state       strikes  what else");
    let with = stream(guarded, started, |turn| story.show(turn, &fallback));
    let without = stream(plain, started, |_| ());
    let (with, without) = futures::try_join!(with, without)?;

    Ok(report(&with, &without, &gpt, &story, &fallback))
}

/// One turn, as its caller saw it.
struct Turn {
    number: u32,
    began: Duration,
    ended: Duration,
    result: Result<Answer, BoxError>,
}

impl Turn {
    fn is_answered(&self) -> bool {
        matches!(judge(self.result.as_ref()), Outcome::Success)
    }

    fn took(&self) -> Duration {
        self.ended.saturating_sub(self.began)
    }
}

/// Begins a turn after each `RHYTHM`, and shows each turn when it ends.
async fn stream<S>(
    service: S,
    started: Instant,
    show: impl Fn(&Turn),
) -> Result<Vec<Turn>, BoxError>
where
    S: Service<Chat, Response = Answer, Error = BoxError> + Clone,
{
    let turns = (1..=TURNS).map(|number| {
        let (service, show) = (service.clone(), &show);
        async move {
            sleep_until(started + RHYTHM * number).await;
            let began = started.elapsed();
            let chat = Chat {
                prompt: format!("turn {number}: what next?"),
            };
            let turn = Turn {
                number,
                began,
                result: service.oneshot(chat).await,
                ended: started.elapsed(),
            };
            show(&turn);
            Ok::<_, BoxError>(turn)
        }
    });
    try_join_all(turns).await
}

// ===== a model =====

/// A request. The retries clone it for each attempt.
#[derive(Clone, Debug)]
struct Chat {
    prompt: String,
}

#[derive(Clone, Debug)]
struct Answer {
    status: StatusCode,
    retry_after: Option<Duration>,
    text: String,
    /// Written by the fallback.
    by: Option<String>,
}

/// Makes a model behind its retries and its timeout: `retry(timeout(client))`.
///
/// The client reads the whole body. So the timeout and the fallback see a broken body as an error.
fn model(
    caller: &'static str,
    server: SocketAddr,
) -> impl Service<Chat, Response = Answer, Error = BoxError> + Clone {
    ServiceBuilder::new()
        .retry(Ladder { left: 1 })
        .timeout(TIMEOUT)
        .map_request(move |chat: Chat| {
            let body = format!(
                r#"{{"model":"any","messages":[{{"role":"user","content":"{}"}}]}}"#,
                chat.prompt
            );
            Request::post(format!("http://{server}/v1/chat/completions"))
                .header(CALLER, caller)
                .header(CONTENT_TYPE, "application/json")
                .body(Full::from(body))
                .expect("an address and two headers make a request")
        })
        .map_response(|response: Response<Bytes>| {
            let (head, body) = response.into_parts();
            let seconds = head.headers.get(RETRY_AFTER);
            let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
            Answer {
                status: head.status,
                retry_after: seconds.map(Duration::from_secs),
                text: String::from_utf8_lossy(&body).into_owned(),
                by: None,
            }
        })
        .service(loopback::client())
}

/// Classifies a result for the fallback.
fn judge(result: Result<&Answer, &BoxError>) -> Outcome {
    let Ok(answer) = result else {
        return Failure::transient().into();
    };
    let failure = match answer.status.as_u16() {
        429 => Failure::rate_limited(),
        // The key is revoked, the quota is spent or the model is gone. Later calls would fail too.
        401..=404 => Failure::fatal(),
        408 | 500.. => Failure::transient(),
        // The caller's own mistake says nothing of the model.
        400.. => return Outcome::Neutral,
        _ => return Outcome::Success,
    };
    Outcome::Failure(match answer.retry_after {
        Some(wait) => failure.with_retry_after(wait),
        None => failure,
    })
}

/// A retry policy: a few more attempts, each after a pause.
#[derive(Clone, Copy, Debug)]
struct Ladder {
    left: u32,
}

impl Policy<Chat, Answer, BoxError> for Ladder {
    type Future = Sleep;

    fn retry(
        &mut self,
        _: &mut Chat,
        result: &mut Result<Answer, BoxError>,
    ) -> Option<Self::Future> {
        match judge(result.as_ref()) {
            // A server that asked for a wait is not called before it ends.
            Outcome::Failure(failure) if failure.retry_after().is_none() => {
                self.left = self.left.checked_sub(1)?;
                Some(sleep(PAUSE))
            }
            _ => None,
        }
    }

    fn clone_request(&mut self, chat: &Chat) -> Option<Chat> {
        Some(chat.clone())
    }
}

// ===== the timeline =====

/// What the observer has seen.
struct Story {
    started: Instant,
    /// Events since the last line of the timeline.
    events: Mutex<Vec<String>>,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    probes: u32,
    trips: u32,
    recoveries: u32,
    moved_on: u32,
}

impl Story {
    fn event(&self, event: &Event<'_>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let line = match *event {
            Event::FallbackTransition {
                from, to, reason, ..
            } => {
                counts.trips += u32::from(to == FallbackState::Fallback);
                counts.recoveries += u32::from(to == FallbackState::Primary);
                format!("{from} → {to} ({reason})")
            }
            Event::ProbeStarted { .. } => {
                counts.probes += 1;
                format!("probe of {PRIMARY}")
            }
            Event::MovedOn { from, to, .. } => {
                counts.moved_on += 1;
                format!("{from} failed, on to {to}")
            }
            Event::Entry {
                entry,
                change: change @ (EntryChange::Spent | EntryChange::Restored),
                ..
            } => format!("{entry} {change}"),
            _ => return,
        };
        let now = self.started.elapsed().as_secs_f64();
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(format!(
            "{now:6.2}                                               {line}"
        ));
    }

    /// Prints the new events, and the turn that has ended.
    fn show(&self, turn: &Turn, fallback: &FallbackHandle) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        for line in events.drain(..) {
            println!("{line}");
        }
        let snapshot = fallback.snapshot();
        let strikes: Vec<_> = snapshot
            .entries
            .iter()
            .map(|entry| entry.strikes.to_string())
            .collect();
        let (by, what) = match &turn.result {
            Ok(answer) => (
                answer.by.as_deref().unwrap_or("?"),
                if turn.is_answered() {
                    String::new()
                } else {
                    format!("LOST: {} {}", answer.status, answer.text)
                },
            ),
            Err(err) if Refusal::find(&**err).is_some() => ("nobody", format!("LOST: {err}")),
            Err(err) => ("?", format!("LOST: {err}")),
        };
        println!(
            "{:6.2}  {:>4}  {by:<9}  {:>3} ms  {:<10}  {:<7}  {what}",
            turn.ended.as_secs_f64(),
            turn.number,
            turn.took().as_millis(),
            snapshot.state.to_string(),
            strikes.join(" "),
        );
    }
}

// ===== the table and the checks =====

fn report(
    with: &[Turn],
    without: &[Turn],
    primary: &ChatServer,
    story: &Story,
    fallback: &FallbackHandle,
) -> ExitCode {
    let answered = |turns: &[Turn]| turns.iter().filter(|turn| turn.is_answered()).count();
    let slowest = |turns: &[Turn]| turns.iter().map(Turn::took).max().unwrap_or_default();
    let in_vain = |caller| {
        let seen = primary.seen(caller);
        seen.iter().filter(|seen| seen.act != Act::Answer).count()
    };
    let row =
        |what: &str, without: String, with: String| println!("{what:<34}  {without:>8}  {with:>8}");
    println!();
    row("", "without".to_owned(), "with".to_owned());
    let of = |turns: &[Turn]| format!("{}/{}", answered(turns), turns.len());
    row("turns answered", of(without), of(with));
    row(
        "failed requests to the primary",
        in_vain(PLAIN).to_string(),
        in_vain(GUARDED).to_string(),
    );
    let ms = |time: Duration| format!("{} ms", time.as_millis());
    row("slowest turn", ms(slowest(without)), ms(slowest(with)));
    let by = |name: &str| {
        let served = with
            .iter()
            .filter_map(|turn| turn.result.as_ref().ok()?.by.as_deref());
        served.filter(|by| *by == name).count()
    };
    for name in [PRIMARY].iter().chain(&BACKUPS) {
        row(
            &format!("turns served by {name}"),
            "-".to_owned(),
            by(name).to_string(),
        );
    }
    let counts = *story.counts.lock().unwrap_or_else(PoisonError::into_inner);
    row("probes", "-".to_owned(), counts.probes.to_string());
    row(
        "attempts saved within a turn",
        "-".to_owned(),
        counts.moved_on.to_string(),
    );
    println!();

    // At every time some model answers. So the layer can save every turn.
    let held = [
        ("no turn was lost", answered(with) == with.len()),
        (
            "without the layer, turns were lost",
            answered(without) < without.len(),
        ),
        (
            "the outage tripped the fallback, and failed probes tripped it again",
            counts.trips >= 2,
        ),
        (
            "the fallback returned to the primary",
            counts.recoveries == 1 && fallback.state() == FallbackState::Primary,
        ),
        (
            "each model served",
            [PRIMARY].iter().chain(&BACKUPS).all(|name| by(name) > 0),
        ),
        (
            "the primary saw fewer failed requests than without the layer",
            in_vain(GUARDED) < in_vain(PLAIN),
        ),
    ];
    for (what, holds) in held {
        println!("{}  {what}", if holds { "held  " } else { "BROKEN" });
    }
    if held.iter().all(|(_, holds)| *holds) {
        ExitCode::SUCCESS
    } else {
        eprintln!("the fallback did not do its work: see `BROKEN` above");
        ExitCode::FAILURE
    }
}
