//! The output: the timeline as it happens, then the table and the checks of the breaker.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tower_breaker::{CircuitBreakerHandle, Event, State, TransitionReason};

use super::QUESTIONS;
use crate::checks::Checks;
use crate::client::Told;
use crate::server::{Act, Script, Seen, Server, in_short};

/// One call of an agent, as the agent saw it.
#[derive(Clone, Debug)]
pub struct Call {
    pub turn: u32,
    pub id: String,
    pub started: Duration,
    pub ended: Duration,
    pub told: Told,
    /// The circuit's state right after the call, if there is a circuit.
    pub circuit: Option<State>,
}

impl Call {
    fn took(&self) -> Duration {
        self.ended.saturating_sub(self.started)
    }
}

// ===== the timeline =====

/// Prints what happens, and keeps the circuit's transitions.
pub struct Timeline {
    agent: &'static str,
    zero: Instant,
    script: Script,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// How many entries of the script have been printed.
    announced: usize,
    transitions: Vec<Transition>,
}

/// A transition of the circuit, as an observer saw it.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    pub at: Duration,
    pub from: State,
    pub to: State,
    pub reason: TransitionReason,
}

impl Timeline {
    /// Makes a timeline that uses the server's time.
    pub fn new(agent: &'static str, server: &Server, script: Script) -> Self {
        Self {
            agent,
            zero: server.instant(Duration::ZERO),
            script,
            kept: Mutex::default(),
        }
    }

    pub fn head() {
        println!("    time  call  the server did   circuit    what the agent read");
        println!("    ----  ----  --------------   -------    -------------------");
    }

    /// Prints a refusal at once. Other calls are printed when their turn ends.
    pub fn call(&self, server: &Server, call: &Call) {
        if matches!(call.told, Told::Refusal(..)) {
            self.row(server, call);
        }
    }

    /// Prints the admitted calls of one turn, in the order of their questions. The order in which
    /// they ended is random.
    pub fn turn(&self, server: &Server, calls: &[Call]) {
        for call in calls {
            if !matches!(call.told, Told::Refusal(..)) {
                self.row(server, call);
            }
        }
    }

    fn row(&self, server: &Server, call: &Call) {
        self.announce(call.ended);
        let acts = server.acts_for(self.agent, &call.id);
        let state = call.circuit.map(|state| state.to_string());
        println!(
            "{}  {:<4}  {:<15}  {:<9}  {}",
            seconds(call.ended),
            call.id,
            in_short(&acts),
            state.unwrap_or_default(),
            call.told,
        );
    }

    /// Observes the circuit and prints its transitions. Refusals are in the rows of their calls.
    pub fn event(&self, event: &Event<'_>) {
        let at = self.zero.elapsed();
        let text = match event {
            Event::Transition {
                from, to, reason, ..
            } => {
                self.kept().transitions.push(Transition {
                    at,
                    from: *from,
                    to: *to,
                    reason: *reason,
                });
                format!("circuit {from} -> {to}: {reason}")
            }
            Event::ProbeStarted { lease, .. } => {
                format!("probe admitted, its lease is {} s", lease.as_secs())
            }
            Event::LateVerdict { .. } => "late verdict of a call from before the trip".to_owned(),
            _ => return,
        };
        self.announce(at);
        println!("{}  >> {text}", seconds(at));
    }

    /// Prints the entries of the script that have begun at `at`.
    fn announce(&self, at: Duration) {
        let mut kept = self.kept();
        while let Some((from, act)) = self.script.get(kept.announced) {
            if *from > at {
                break;
            }
            kept.announced += 1;
            let text = match act {
                Act::Answer => "answers".to_owned(),
                Act::Hang => "hangs".to_owned(),
                Act::Fail { .. } => format!("fails: {act}"),
            };
            println!("{}  == from now on the server {text}", seconds(*from));
        }
    }

    pub fn transitions(&self) -> Vec<Transition> {
        self.kept().transitions.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(at: Duration) -> String {
    format!("{:6.2} s", at.as_secs_f64())
}

// ===== the table =====

/// One agent's calls, and the server's log of them.
pub struct Account {
    calls: Vec<Call>,
    log: Vec<Seen>,
    /// When the server went down, and when it was repaired.
    down: Duration,
    repaired: Duration,
}

impl Account {
    pub fn new(agent: &str, calls: Vec<Call>, server: &Server, script: Script) -> Self {
        let mut log = server.log();
        log.retain(|seen| seen.agent == agent);
        let down = script.iter().find(|(_, act)| *act != Act::Answer);
        let repaired = script.iter().rfind(|(_, act)| *act == Act::Answer);
        Self {
            calls,
            log,
            down: down.map_or(Duration::MAX, |(from, _)| *from),
            repaired: repaired.map_or(Duration::MAX, |(from, _)| *from),
        }
    }

    fn told(&self, which: impl Fn(&Told) -> bool) -> usize {
        self.calls.iter().filter(|call| which(&call.told)).count()
    }

    fn answered(&self) -> usize {
        self.told(|told| matches!(told, Told::Answer(_)))
    }

    fn failed(&self) -> usize {
        self.told(|told| matches!(told, Told::Failure(_)))
    }

    fn refused(&self) -> usize {
        self.told(|told| matches!(told, Told::Refusal(..)))
    }

    /// Counts the requests in the log that reached the server while it was down.
    fn seen_in_outage(&self) -> usize {
        let outage = self.down..self.repaired;
        self.log
            .iter()
            .filter(|seen| outage.contains(&seen.at))
            .count()
    }

    /// Returns how long the agent waited for the tool. It waits for all calls of a turn together.
    fn waited(&self) -> Duration {
        let mut turns = BTreeMap::<u32, Duration>::new();
        for call in &self.calls {
            let turn = turns.entry(call.turn).or_default();
            *turn = (*turn).max(call.took());
        }
        turns.values().sum()
    }

    fn longest_refusal(&self) -> Duration {
        let refused = |call: &&Call| matches!(call.told, Told::Refusal(..));
        let refused = self.calls.iter().filter(refused);
        refused.map(Call::took).max().unwrap_or_default()
    }

    /// Returns the time from the repair to the first answer.
    fn recovery(&self) -> Option<Duration> {
        let mut good = self
            .calls
            .iter()
            .filter(|call| matches!(call.told, Told::Answer(_)));
        let first = good.find(|call| call.ended >= self.repaired)?;
        Some(first.ended.saturating_sub(self.repaired))
    }
}

/// Prints a table that compares both agents.
pub fn compare(plain: &Account, guarded: &Account) {
    let row = |what: &str, value: &dyn Fn(&Account) -> String| {
        println!("{what:<44} {:>14} {:>14}", value(plain), value(guarded));
    };
    println!();
    println!(
        "{:<44} {:>14} {:>14}",
        "the same outage with", "plain retries", "the breaker"
    );
    println!("{:-<44} {:->14} {:->14}", "", "", "");
    row("tool calls that the agent made", &|of| {
        of.calls.len().to_string()
    });
    row("  answered", &|of| of.answered().to_string());
    row("  failed", &|of| of.failed().to_string());
    row("  refused", &|of| of.refused().to_string());
    row("requests in the server's log", &|of| {
        of.log.len().to_string()
    });
    row("  while it was down", &|of| of.seen_in_outage().to_string());
    row("time the agent spent waiting for the tool", &|of| {
        format!("{:.2} s", of.waited().as_secs_f64())
    });
    row(
        "from the repair to the first answer",
        &|of| match of.recovery() {
            Some(time) => format!("{:.2} s", time.as_secs_f64()),
            None => "never".to_owned(),
        },
    );
}

// ===== the checks =====

/// Checks what the breaker promises, mostly by the server's log.
pub fn hold(
    checks: &mut Checks,
    plain: &Account,
    guarded: &Account,
    timeline: &Timeline,
    circuit: &CircuitBreakerHandle,
    recovery: Duration,
) {
    let mut check = |held: bool, what: &dyn Display| checks.check(held, what);
    let transitions = timeline.transitions();
    let tripped = transitions.iter().find(|change| {
        (change.from, change.to) == (State::Closed, State::Open)
            && change.reason == TransitionReason::FailureThreshold
    });
    let tripped = tripped.map_or(Duration::MAX, |change| change.at);
    let closed = transitions
        .iter()
        .rfind(|change| change.to == State::Closed);
    let closed = closed.map_or(Duration::MAX, |change| change.at);

    check(
        (guarded.down..guarded.repaired).contains(&tripped),
        &"the circuit tripped during the outage",
    );
    check(
        circuit.state() == State::Closed && circuit.snapshot().streak == 0,
        &format_args!(
            "the circuit is closed again after {} trips, and its streak is zero",
            circuit.snapshot().trips
        ),
    );
    let reached: BTreeSet<&str> = guarded.log.iter().map(|seen| seen.call.as_str()).collect();
    let leaked = guarded.calls.iter().filter(|call| {
        matches!(call.told, Told::Refusal(..)) && reached.contains(call.id.as_str())
    });
    check(
        leaked.count() == 0 && guarded.refused() > 0,
        &"no refused call reached the server",
    );
    check(
        most_probes(guarded, tripped, closed) == 1,
        &"between the trip and the recovery, one probe at a time reached the server",
    );
    check(
        disturbed(&guarded.log) == Some(0),
        &"no request reached the server while it had asked for a wait",
    );
    check(
        guarded.seen_in_outage() < plain.seen_in_outage() && guarded.log.len() < plain.log.len(),
        &"the server saw fewer requests than with plain retries",
    );
    check(
        guarded.waited() < plain.waited(),
        &format_args!(
            "the agent waited less; the slowest refusal took {:.1} ms",
            guarded.longest_refusal().as_secs_f64() * 1e3
        ),
    );
    check(
        guarded.recovery().is_some_and(|time| time <= recovery),
        &format_args!(
            "the agent got an answer within {:.2} s of the repair",
            recovery.as_secs_f64()
        ),
    );
    check(
        guarded.answered() == QUESTIONS.len(),
        &"in the end, every question was answered",
    );
}

/// Returns how many calls of one turn reached the server at most, between the trip and the
/// recovery. The calls of a turn run in parallel.
fn most_probes(guarded: &Account, tripped: Duration, closed: Duration) -> usize {
    let mut turns = BTreeMap::<u32, usize>::new();
    for call in &guarded.calls {
        if call.started > tripped && call.started <= closed {
            let came = guarded.log.iter().any(|seen| seen.call == call.id);
            *turns.entry(call.turn).or_default() += usize::from(came);
        }
    }
    turns.into_values().max().unwrap_or(0)
}

/// Counts the requests that came during a wait that an earlier answer had asked for. Returns
/// `None` if no answer asked for one.
fn disturbed(log: &[Seen]) -> Option<usize> {
    let asked = log.iter().filter_map(|seen| match seen.act {
        Act::Fail {
            retry_after: Some(wait),
            ..
        } => Some((seen.at, seen.at + wait)),
        _ => None,
    });
    let disturbing = asked.map(|(from, to)| {
        let within = log.iter().filter(|seen| from < seen.at && seen.at < to);
        within.count()
    });
    disturbing.reduce(|one, next| one + next)
}
