//! A summary of what each layer saved, and the checks. What the servers saw comes from their own
//! logs.

use std::fmt;
use std::time::Duration;

use tower_breaker::{Reason, State};

use super::planner::{Call, STUBBORN};
use super::play::{LOOPED, Part, no_page};
use super::stacks::{
    ATTEMPTS, ERRORS, FAILED_TURNS, FAILURES, IDENTICAL, LADDER, MAX_TURNS, TIMEOUT,
};
use super::timeline::{Layer, Timeline, What};
use super::{FETCH, LARGE, SEARCH, SMALL, Servers};
use crate::checks::Checks;
use crate::client::Told;
use crate::server::Act;

/// The whole run, after its end.
pub struct Story<'a> {
    calls: &'a [Call],
    servers: &'a Servers,
    timeline: &'a Timeline,
}

impl<'a> Story<'a> {
    pub fn new(calls: &'a [Call], servers: &'a Servers, timeline: &'a Timeline) -> Self {
        Self {
            calls,
            servers,
            timeline,
        }
    }

    // ===== queries =====

    fn model_calls(&self) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().filter(|call| call.tool.is_none())
    }

    fn tool_calls(&self) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().filter(|call| call.tool.is_some())
    }

    fn models_in(&self, part: Part) -> Vec<&'a Call> {
        self.model_calls()
            .filter(|call| call.part == part)
            .collect()
    }

    fn tools_in(&self, part: Part) -> Vec<&'a Call> {
        self.tool_calls().filter(|call| call.part == part).collect()
    }

    /// Counts the requests of a call that a server saw.
    fn seen(&self, server: &str, call: &Call) -> u32 {
        let log = self.servers.log(server);
        count(log.iter().filter(|seen| seen.call == call.id))
    }

    /// Counts the servers that saw a request of a call.
    fn seen_anywhere(&self, call: &Call) -> usize {
        self.servers.acts_for(&call.id).len()
    }

    /// Returns what the planner sent to the model that answered a turn.
    fn heard(&self, turn: u32) -> Option<String> {
        let asked = self.model_calls().find(|call| call.turn == turn)?;
        let mut logs = [LARGE, SMALL]
            .into_iter()
            .flat_map(|model| self.servers.log(model));
        let answered = logs.find(|seen| seen.call == asked.id && seen.act == Act::Answer)?;
        Some(answered.body)
    }

    /// Returns the states of one machine in order, from its events, and how many probes it
    /// admitted.
    fn course(&self, layer: Layer, name: &str) -> (Vec<String>, u32) {
        let (mut states, mut probes) = (Vec::new(), 0);
        for happened in self.timeline.of(layer) {
            match happened.what {
                What::Moved { from, to } if happened.name == name => {
                    if states.is_empty() {
                        states.push(from);
                    }
                    states.push(to);
                }
                What::Probed if happened.name == name => probes += 1,
                _ => {}
            }
        }
        (states, probes)
    }

    /// Counts the calls that a layer refused under this name.
    fn refused(&self, layer: Layer, name: &str) -> u32 {
        let told = self.timeline.of(layer);
        count(
            told.iter()
                .filter(|happened| matches!(happened.what, What::Refused) && happened.name == name),
        )
    }

    // ===== the summary =====

    pub fn summary(&self) {
        println!("what each layer saved");
        println!("---------------------");
        let row = |layer: &str, saved: fmt::Arguments<'_>| println!("{layer:<24}  {saved}");
        for (layer, name) in [
            (Layer::ToolsCircuits, SEARCH),
            (Layer::ModelsCircuits, LARGE),
        ] {
            let refused = self.refused(layer, name);
            row(
                &format!("the circuit of `{name}`"),
                format_args!(
                    "{:.2} s of waiting and {} requests to a server that hangs (refused calls: {refused})",
                    (LADDER * refused).as_secs_f64(),
                    refused * ATTEMPTS,
                ),
            );
        }

        let told = self.timeline.of(Layer::Fallback);
        let by_small = count(
            told.iter()
                .filter(|happened| matches!(&happened.what, What::Served(by) if by == SMALL)),
        );
        let moved_on = count(
            told.iter()
                .filter(|happened| matches!(happened.what, What::MovedOn)),
        );
        row(
            "the fallback",
            format_args!(
                "{by_small} turns: `{SMALL}` answered them while `{LARGE}` was down, \
                 {moved_on} after a failure of `{LARGE}`, {} without calling it",
                by_small.saturating_sub(moved_on),
            ),
        );

        let refused = |part| {
            let calls = self.tools_in(part);
            let refused = calls.iter().filter(|call| call.told.refusal().is_some());
            (count(refused), calls.len())
        };
        let ((looped, of_loop), (erring, of_errors)) = (refused(Part::Loop), refused(Part::Errors));
        row(
            "the tools' fence",
            format_args!(
                "{} useless calls: {looped} of {of_loop} in the loop, \
                 {erring} of {of_errors} while the model invented pages",
                looped + erring,
            ),
        );

        let after = self.refused(Layer::ModelsFence, "model");
        row(
            "the model's fence",
            format_args!(
                "every turn after the run's {MAX_TURNS}: it refused the planner {after} times"
            ),
        );
    }

    // ===== the checks =====

    pub fn hold(&self, checks: &mut Checks) {
        self.hold_tool_breaker(checks);
        self.hold_model(checks);
        self.hold_loop(checks);
        self.hold_errors(checks);
        self.hold_end(checks);
    }

    fn hold_tool_breaker(&self, checks: &mut Checks) {
        let down = self.tools_in(Part::ToolDown);
        let (failed, rest) = down.split_at(down.len().min(FAILURES as usize));
        let (refused, others): (Vec<&Call>, Vec<&Call>) = rest
            .iter()
            .partition(|call| call.tool.as_deref() == Some(SEARCH));

        let requests = |calls: &[&Call]| calls.iter().map(|call| self.seen(SEARCH, call)).sum();
        let in_outage: u32 = requests(&down);
        checks.check(
            in_outage == FAILURES * ATTEMPTS && requests(failed) == in_outage,
            format_args!(
                "tool breaker: while `{SEARCH}` was down, it saw only the {FAILURES} calls that tripped \
                 its circuit ({in_outage} requests)"
            ),
        );
        let at_once = |call: &&Call| {
            let reason = call.told.refusal().map(tower_breaker::Refusal::reason);
            reason == Some(Reason::CircuitOpen) && call.took < TIMEOUT
        };
        let slowest = refused.iter().map(|call| call.took).max();
        checks.check(
            !refused.is_empty() && refused.iter().all(at_once),
            format_args!(
                "tool breaker: every later search was refused at once (the slowest took {:.2} ms)",
                slowest.unwrap_or(Duration::MAX).as_secs_f64() * 1e3
            ),
        );
        let (states, probes) = self.course(Layer::ToolsCircuits, SEARCH);
        let repaired = self.tools_in(Part::ToolRepaired);
        checks.check(
            states == ["closed", "open", "half_open", "closed"]
                && probes == 1
                && repaired
                    .iter()
                    .all(|call| call.told.is_answer() && self.seen(SEARCH, call) == 1),
            format_args!("tool breaker: one probe brought `{SEARCH}` back ({probes} sent)"),
        );
        let untouched = |call: &&Call| call.states.fence.state == State::Closed;
        checks.check(
            others.iter().all(|call| call.told.is_answer()) && down.iter().all(untouched),
            format_args!(
                "tool breaker: meanwhile `{FETCH}` answered, and the fence counted no refusal as an error"
            ),
        );
    }

    fn hold_model(&self, checks: &mut Checks) {
        let answered = self.model_calls().filter(|call| call.told.is_answer());
        let answered = count(answered);
        checks.check(
            answered == MAX_TURNS,
            format_args!(
                "fallback: every turn of the planner was answered ({answered} of {MAX_TURNS})"
            ),
        );
        let down = self.models_in(Part::ModelDown);
        let requests: u32 = down.iter().map(|call| self.seen(LARGE, call)).sum();
        checks.check(
            down.iter().all(|call| self.seen(SMALL, call) == 1),
            format_args!("fallback: `{SMALL}` served every turn while `{LARGE}` was down"),
        );
        checks.check(
            requests == FAILURES * ATTEMPTS
                && self.refused(Layer::ModelsCircuits, LARGE) == FAILED_TURNS - FAILURES,
            format_args!(
                "model breaker: while `{LARGE}` was down, it saw only the {FAILURES} turns that tripped \
                 its circuit ({requests} requests)"
            ),
        );
        let (states, probes) = self.course(Layer::Fallback, LARGE);
        let mut since = self
            .model_calls()
            .filter(|call| call.told.is_answer() && call.part >= Part::ModelRepaired);
        checks.check(
            states == ["primary", "fallback", "recovering", "primary"]
                && probes == 2
                && since.all(|call| self.seen(LARGE, call) == 1 && self.seen(SMALL, call) == 0),
            format_args!(
                "fallback: two probes won `{LARGE}` back, and it served every later turn ({probes} sent)"
            ),
        );
        let mut told = self.tool_calls();
        checks.check(
            told.all(|told| {
                self.heard(told.turn + 1)
                    .is_none_or(|heard| heard == told.told.to_string())
            }),
            "the planner told the model everything that it read of its tools",
        );
    }

    fn hold_loop(&self, checks: &mut Checks) {
        let part = self.tools_in(Part::Loop);
        let reasons: Vec<_> = part
            .iter()
            .map(|call| {
                let refusal = call.told.refusal();
                refusal.map(|refusal| (refusal.reason(), refusal.tripped_by()))
            })
            .collect();
        let tripped = Some((Reason::IdenticalCall, None));
        let later = Some((Reason::TripwireOpen, Some(Reason::IdenticalCall)));

        let path = format!("/{}", LOOPED.replace(' ', "/"));
        let log = self.servers.log(SEARCH);
        let ran = count(log.iter().filter(|seen| seen.path == path));
        checks.check(
            ran == IDENTICAL - 1 && reasons.get(2) == Some(&tripped),
            format_args!(
                "tripwire: the same search was refused before its third run (`{SEARCH}` saw {ran})"
            ),
        );
        checks.check(
            reasons == [None, None, tripped, later, later, tripped, later, later, None],
            "tripwire: the loop was refused, and a probe that repeated it; another search closed the fence",
        );
    }

    fn hold_errors(&self, checks: &mut Checks) {
        let part = self.tools_in(Part::Errors);
        let own_error = |call: &&Call| {
            let own = format!("error: 404 Not Found: {}", no_page(&call.argument));
            matches!(&call.told, Told::Failure(words) if *words == own)
        };
        let streak = ERRORS as usize;
        checks.check(
            part.iter().take(streak).all(own_error)
                && part.get(streak - 1).is_some_and(|call| {
                    call.states.fence.state == State::Open
                        && call.states.fence.reason == Some(Reason::ErrorStreak)
                }),
            format_args!(
                "tripwire: the error that tripped the fence, number {ERRORS} in a row, \
                 reached the planner unchanged"
            ),
        );
        let course = part.iter().map(|call| match call.told.refusal() {
            Some(refusal) if refusal.tripped_by() == Some(Reason::ErrorStreak) => "refused",
            Some(_) => "refused for something else",
            None if own_error(call) => "error",
            None => "answered",
        });
        let course: Vec<_> = course.collect();
        checks.check(
            course.join(" ") == "error error error refused refused error refused refused answered",
            "tripwire: every tool was refused, a failed probe opened the fence again, \
             and a successful one closed it",
        );
        let (states, probes) = self.course(Layer::ToolsFence, "tools");
        let trips = "open half_open open half_open closed";
        checks.check(
            states.join(" ") == format!("closed {trips} {trips}"),
            format_args!(
                "tripwire: the tools' fence tripped four times and is closed again ({probes} of its probes ran)"
            ),
        );
        let (moved, _) = self.course(Layer::ToolsCircuits, FETCH);
        checks.check(
            moved.is_empty(),
            format_args!(
                "tool breaker: the circuit of `{FETCH}` did not count the planner's mistakes"
            ),
        );
        let reached = self
            .tool_calls()
            .filter(|call| call.told.refusal().is_some() && self.seen_anywhere(call) > 0);
        checks.check(
            reached.count() == 0,
            "no tool call that a layer refused reached a server",
        );
    }

    fn hold_end(&self, checks: &mut Checks) {
        let spent = self.model_calls().skip(MAX_TURNS as usize);
        let after: Vec<_> = spent.collect();
        let final_reason = |call: &&Call| {
            let refusal = call.told.refusal();
            refusal.is_some_and(|refusal| {
                let reason = refusal.tripped_by().unwrap_or(refusal.reason());
                reason == Reason::MaxTurns
            })
        };
        checks.check(
            after.len() == STUBBORN as usize
                && after.iter().all(final_reason)
                && after.iter().all(|call| self.seen_anywhere(call) == 0),
            format_args!(
                "tripwire: the end of the turns was final: the planner was refused {} times",
                after.len()
            ),
        );
        checks.check(
            after
                .iter()
                .all(|call| call.states.fence.turns == MAX_TURNS)
                && count(self.tool_calls()) == MAX_TURNS,
            format_args!("tripwire: the run took exactly its {MAX_TURNS} turns"),
        );
    }
}

fn count<T>(of: impl Iterator<Item = T>) -> u32 {
    u32::try_from(of.count()).unwrap_or(u32::MAX)
}
