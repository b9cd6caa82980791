//! Compares the circuit with a naive model that shares no code with it.
//!
//! The model keeps the whole history: a list of periods, each with the calls that it admitted and
//! the results that reached it, all with their times. It works out every answer from that list
//! anew. The circuit may notice the end of a lease late. The model is given every change of the
//! time at once.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::driver::Driver;
use super::{Backoff, PendingEvent, Rate, Role, Rules, Ticket, Window};
use crate::machinery::clock::Timestamp;
use crate::machinery::denied::Denied;
use crate::machinery::machine::Retention;
use crate::vocabulary::{
    Cancelled, Failure, FailureKind, Outcome, Reason, Recorded, State, TransitionReason,
};

// ===== the model =====

/// Nanoseconds. Their sums do not overflow. From [`NEVER`] on they mean that a time never comes.
type Nanos = u128;

const NEVER: Nanos = u64::MAX as Nanos;

/// The rules, as the model knows them.
#[derive(Clone, Debug)]
struct ModelRules {
    failure_threshold: u32,
    cooldown: Nanos,
    lease: Nanos,
    success_threshold: usize,
    cap: Nanos,
    /// The numerator and the denominator of the factor, and the longest cooldown.
    growth: Option<(Nanos, Nanos, Nanos)>,
    rate: Option<ModelRate>,
    slow: Option<Nanos>,
    on_cancel: OnCancel,
}

/// A failure rate: at least `part` of `whole` calls in the window.
#[derive(Clone, Copy, Debug)]
struct ModelRate {
    part: usize,
    whole: usize,
    window: ModelWindow,
    minimum: usize,
}

#[derive(Clone, Copy, Debug)]
enum ModelWindow {
    Calls(usize),
    Time(Nanos),
}

#[derive(Clone, Copy, Debug)]
enum OnCancel {
    Nothing,
    FreeSlot,
    Fail,
    FailAfter(Nanos),
}

/// A result. A failure has a kind, and may ask for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Success,
    Failure(Kind, Option<Nanos>),
    Neutral,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Transient,
    RateLimited,
    Fatal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelState {
    Closed,
    Open,
    HalfOpen,
    Pinned,
}

/// The time between two transitions.
#[derive(Clone, Debug)]
struct Period {
    state: ModelState,
    reason: Option<TransitionReason>,
    began: Nanos,
    admitted: Vec<Nanos>,
    /// When those calls showed signs of life before their verdicts.
    frames: Vec<Nanos>,
    /// The verdicts of the calls that it admitted.
    own: Vec<(Nanos, Verdict)>,
    /// The verdicts of calls admitted before.
    late: Vec<(Nanos, Verdict)>,
}

#[derive(Clone, Debug)]
struct Model {
    rules: ModelRules,
    now: Nanos,
    periods: Vec<Period>,
}

/// The period that admitted a call, and the time.
#[derive(Clone, Copy, Debug)]
struct ModelTicket {
    period: usize,
    at: Nanos,
}

#[derive(Debug, PartialEq, Eq)]
enum ModelDenied {
    Wait(Nanos),
    ProbeInFlight(Nanos),
    Pinned,
}

impl Model {
    fn new(rules: ModelRules) -> Self {
        let mut model = Self {
            rules,
            now: 0,
            periods: Vec::new(),
        };
        model.begin(ModelState::Closed, None, 0);
        model
    }

    fn begin(&mut self, state: ModelState, reason: Option<TransitionReason>, began: Nanos) {
        self.periods.push(Period {
            state,
            reason,
            began,
            admitted: Vec::new(),
            frames: Vec::new(),
            own: Vec::new(),
            late: Vec::new(),
        });
    }

    fn current(&self) -> &Period {
        self.periods.last().unwrap()
    }

    fn current_mut(&mut self) -> &mut Period {
        self.periods.last_mut().unwrap()
    }

    /// The periods since the circuit was made or reset.
    fn since_reset(&self) -> &[Period] {
        let made = |period: &Period| matches!(period.reason, None | Some(TransitionReason::Reset));
        let first = self.periods.iter().rposition(made).unwrap();
        &self.periods[first..]
    }

    /// The last period in which the circuit was closed, and those after it.
    fn since_closed(&self) -> &[Period] {
        let closed = |period: &Period| period.state == ModelState::Closed;
        let first = self.periods.iter().rposition(closed).unwrap();
        &self.periods[first..]
    }

    /// The failures at the end of the last closed period.
    fn streak(&self) -> Vec<(Nanos, Kind, Option<Nanos>)> {
        let results = self.since_closed()[0].own.iter().rev();
        results
            .filter(|(_, verdict)| *verdict != Verdict::Neutral)
            .map_while(|(at, verdict)| match verdict {
                Verdict::Failure(kind, retry_after) => Some((*at, *kind, *retry_after)),
                _ => None,
            })
            .collect()
    }

    /// The cooldown of the trip numbered `n` since the circuit was closed.
    fn cooldown_of(&self, n: usize) -> Nanos {
        let mut wait = self.rules.cooldown;
        for _ in 0..n {
            if let Some((over, under, most)) = self.rules.growth {
                if wait < most {
                    let doubled = (2 * wait * over + under) / under;
                    wait = (doubled / 2).min(NEVER).min(most);
                }
            }
        }
        wait
    }

    fn retry_time(&self, at: Nanos, retry_after: Option<Nanos>) -> Nanos {
        retry_after.map_or(0, |retry_after| at + retry_after.min(self.rules.cap))
    }

    /// When a probe may go, while open.
    fn due_at(&self) -> Nanos {
        let since = self.since_closed();
        let (current, before) = since.split_last().unwrap();
        let trips_before = before
            .iter()
            .filter(|period| period.state == ModelState::Open);
        let wait = self.cooldown_of(trips_before.count());
        let mut due = current.began + wait;
        // The waits that the failures of this trip asked for.
        match before.last().unwrap() {
            closed if closed.state == ModelState::Closed => {
                for (at, _, retry_after) in self.streak() {
                    due = due.max(self.retry_time(at, retry_after));
                }
            }
            half_open => {
                if current.reason == Some(TransitionReason::ProbeFailed) {
                    if let Some((at, Verdict::Failure(_, retry_after))) = half_open.own.last() {
                        due = due.max(self.retry_time(*at, *retry_after));
                    }
                }
            }
        }
        for (at, verdict) in &current.late {
            if let Verdict::Failure(_, retry_after) = verdict {
                due = due.max(at + wait).max(self.retry_time(*at, *retry_after));
            }
        }
        due
    }

    /// The end of the lease, if a probe is in flight.
    fn lease_end(&self) -> Option<Nanos> {
        let current = self.current();
        let in_flight =
            current.state == ModelState::HalfOpen && current.admitted.len() > current.own.len();
        let heard = current.admitted.iter().chain(&current.frames).max();
        in_flight.then(|| heard.unwrap() + self.rules.lease)
    }

    fn advance_to(&mut self, now: Nanos) {
        self.now = now;
        if let Some(end) = self.lease_end() {
            if end < NEVER && now >= end {
                self.begin(ModelState::Open, Some(TransitionReason::LeaseExpired), end);
            }
        }
    }

    /// Whether a call may go, and whether it is a probe.
    fn would_allow(&self) -> Result<bool, ModelDenied> {
        match self.current().state {
            ModelState::Closed => Ok(false),
            ModelState::Open if self.now >= self.due_at() => Ok(true),
            ModelState::Open => Err(ModelDenied::Wait(self.due_at())),
            ModelState::HalfOpen => match self.lease_end() {
                None => Ok(true),
                Some(end) => Err(ModelDenied::ProbeInFlight(end)),
            },
            ModelState::Pinned => Err(ModelDenied::Pinned),
        }
    }

    fn try_acquire(&mut self) -> Result<ModelTicket, ModelDenied> {
        if self.would_allow()? && self.current().state == ModelState::Open {
            self.begin(
                ModelState::HalfOpen,
                Some(TransitionReason::CooldownOver),
                self.now,
            );
        }
        let at = self.now;
        self.current_mut().admitted.push(at);
        let period = self.periods.len() - 1;
        Ok(ModelTicket { period, at })
    }

    /// A call shows a sign of life. Answers whether that renews a lease.
    fn renew(&mut self, ticket: ModelTicket) -> bool {
        let now = self.now;
        let renewed = ticket.period + 1 == self.periods.len() && self.lease_end().is_some();
        if renewed {
            self.current_mut().frames.push(now);
        }
        renewed
    }

    /// Takes a verdict. Answers whether it counted.
    fn record(&mut self, ticket: ModelTicket, verdict: Verdict) -> bool {
        let now = self.now;
        let verdict = match (verdict, self.rules.slow) {
            (Verdict::Success, Some(slow)) if now - ticket.at >= slow => {
                Verdict::Failure(Kind::Transient, None)
            }
            _ => verdict,
        };
        if ticket.period + 1 != self.periods.len() {
            self.current_mut().late.push((now, verdict));
            return false;
        }
        self.current_mut().own.push((now, verdict));
        match self.current().state {
            ModelState::Closed => self.trip_if_due(verdict),
            ModelState::HalfOpen if matches!(verdict, Verdict::Failure(..)) => {
                self.begin(ModelState::Open, Some(TransitionReason::ProbeFailed), now);
            }
            ModelState::HalfOpen => {
                let success = |(_, verdict): &&(Nanos, Verdict)| *verdict == Verdict::Success;
                let successes = self.current().own.iter().filter(success).count();
                if successes == self.rules.success_threshold {
                    self.begin(
                        ModelState::Closed,
                        Some(TransitionReason::ProbeSucceeded),
                        now,
                    );
                }
            }
            ModelState::Open | ModelState::Pinned => unreachable!("no call is admitted"),
        }
        true
    }

    /// Trips the circuit if the last result asks for it.
    fn trip_if_due(&mut self, verdict: Verdict) {
        let reason = match verdict {
            Verdict::Neutral => return,
            Verdict::Failure(Kind::Fatal, _) => Some(TransitionReason::FatalFailure),
            Verdict::Failure(..)
                if self.streak().len() >= self.rules.failure_threshold as usize =>
            {
                Some(TransitionReason::FailureThreshold)
            }
            _ => self
                .rate_is_reached()
                .then_some(TransitionReason::FailureRate),
        };
        if reason.is_some() {
            self.begin(ModelState::Open, reason, self.now);
        }
    }

    fn in_window(&self) -> Vec<bool> {
        let Some(rate) = self.rules.rate else {
            return Vec::new();
        };
        let results = &self.current().own;
        let counted = results.iter().filter(|(_, v)| *v != Verdict::Neutral);
        let failed = |(_, v): &(Nanos, Verdict)| matches!(v, Verdict::Failure(..));
        match rate.window {
            ModelWindow::Calls(calls) => {
                let last: Vec<_> = counted.map(failed).collect();
                last[last.len().saturating_sub(calls)..].to_vec()
            }
            ModelWindow::Time(time) => {
                let tenth = (time / 10).max(1);
                counted
                    .filter(|(at, _)| self.now / tenth < at / tenth + 10)
                    .map(failed)
                    .collect()
            }
        }
    }

    fn rate_is_reached(&self) -> bool {
        let Some(rate) = self.rules.rate else {
            return false;
        };
        let calls = self.in_window();
        let enough = match rate.window {
            ModelWindow::Calls(size) => size.min(rate.minimum),
            ModelWindow::Time(_) => rate.minimum,
        };
        let failures = calls.iter().filter(|failed| **failed).count();
        calls.len() >= enough && failures > 0 && failures * rate.whole >= rate.part * calls.len()
    }

    fn cancel(&mut self, ticket: ModelTicket) -> Option<bool> {
        let verdict = match self.rules.on_cancel {
            OnCancel::Nothing => return None,
            OnCancel::FailAfter(least) if self.now - ticket.at < least => Verdict::Neutral,
            OnCancel::Fail | OnCancel::FailAfter(_) => Verdict::Failure(Kind::Transient, None),
            OnCancel::FreeSlot => Verdict::Neutral,
        };
        Some(self.record(ticket, verdict))
    }

    fn force_open(&mut self) {
        if self.current().state != ModelState::Pinned {
            self.begin(
                ModelState::Pinned,
                Some(TransitionReason::ForcedOpen),
                self.now,
            );
        }
    }

    fn reset(&mut self) {
        self.begin(ModelState::Closed, Some(TransitionReason::Reset), self.now);
    }

    fn trips(&self) -> usize {
        let since_reset = self.since_reset();
        let open = |period: &Period| matches!(period.state, ModelState::Open | ModelState::Pinned);
        since_reset
            .windows(2)
            .filter(|two| !open(&two[0]) && open(&two[1]))
            .count()
    }

    fn last_failure(&self) -> Option<Kind> {
        let since_reset = self.since_reset().iter().rev();
        since_reset
            .flat_map(|period| {
                let failed = |(_, verdict): &(Nanos, Verdict)| match verdict {
                    Verdict::Failure(kind, _) => Some(*kind),
                    _ => None,
                };
                let late = period.late.iter().rev().filter_map(failed);
                // A stale failure counts while the circuit is open.
                let late = late.filter(|_| period.state == ModelState::Open);
                let own = period.own.iter().rev().filter_map(failed);
                let lost = period.reason == Some(TransitionReason::LeaseExpired);
                let lost = lost.then_some(Kind::Transient);
                late.chain(own).chain(lost).collect::<Vec<_>>()
            })
            .next()
    }

    /// The instants to come at which an answer changes.
    fn edges(&self) -> Vec<Nanos> {
        let mut edges = Vec::new();
        match self.current().state {
            ModelState::Open => edges.push(self.due_at()),
            ModelState::HalfOpen => {
                if let Some(end) = self.lease_end() {
                    let trips_before = self.since_closed().iter();
                    let trips_before =
                        trips_before.filter(|period| period.state == ModelState::Open);
                    edges.extend([end, end + self.cooldown_of(trips_before.count())]);
                }
            }
            ModelState::Closed | ModelState::Pinned => {}
        }
        edges.retain(|edge| *edge < NEVER / 2);
        edges
    }

    // ===== the answers, in the types of the circuit =====

    fn state(&self) -> State {
        match self.current().state {
            ModelState::Closed => State::Closed,
            ModelState::Open | ModelState::Pinned => State::Open,
            ModelState::HalfOpen => State::HalfOpen,
        }
    }

    fn left(&self, deadline: Nanos) -> Option<Duration> {
        (deadline < NEVER).then(|| duration(deadline.saturating_sub(self.now)))
    }

    fn denied(&self, no: &ModelDenied) -> Denied {
        let (reason, wait) = match no {
            ModelDenied::Wait(deadline) => (Reason::CircuitOpen, self.left(*deadline)),
            ModelDenied::ProbeInFlight(deadline) => (Reason::ProbeInFlight, self.left(*deadline)),
            ModelDenied::Pinned => (Reason::ForcedOpen, None),
        };
        let last = self.last_failure().map(Kind::to_failure_kind);
        Denied { reason, wait, last }
    }

    fn retention(&self) -> Retention {
        let failed = self.in_window().contains(&true);
        match (self.current().state, self.would_allow()) {
            (ModelState::Closed, _) if self.streak().is_empty() && !failed => Retention::Clean,
            (_, Ok(_)) => Retention::Unclean,
            (_, Err(_)) => Retention::Live,
        }
    }

    /// The transitions so far.
    fn transitions(&self) -> Vec<(State, State, TransitionReason)> {
        let mut states = Vec::new();
        let mut before = State::Closed;
        for (n, period) in self.periods.iter().enumerate().skip(1) {
            let history = &self.periods[..=n];
            let now = Self {
                rules: self.rules.clone(),
                now: self.now,
                periods: history.to_vec(),
            };
            states.push((before, now.state(), period.reason.unwrap()));
            before = now.state();
        }
        states
    }
}

// ===== from the model to the circuit =====

fn duration(nanos: Nanos) -> Duration {
    if nanos >= NEVER {
        return Duration::MAX;
    }
    Duration::from_nanos(u64::try_from(nanos).unwrap())
}

impl Kind {
    fn to_failure_kind(self) -> FailureKind {
        match self {
            Kind::Transient => FailureKind::Transient,
            Kind::RateLimited => FailureKind::RateLimited,
            Kind::Fatal => FailureKind::Fatal,
        }
    }
}

impl Verdict {
    fn to_outcome(self) -> Outcome {
        let (kind, retry_after) = match self {
            Verdict::Success => return Outcome::Success,
            Verdict::Neutral => return Outcome::Neutral,
            Verdict::Failure(kind, retry_after) => (kind, retry_after),
        };
        let failure = match kind {
            Kind::Transient => Failure::transient(),
            Kind::RateLimited => Failure::rate_limited(),
            Kind::Fatal => Failure::fatal(),
        };
        let with_retry_after =
            retry_after.map(|retry_after| failure.with_retry_after(duration(retry_after)));
        with_retry_after.unwrap_or(failure).into()
    }
}

impl ModelRules {
    // All numbers are small.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn rules(&self) -> Rules {
        Rules {
            failure_threshold: self.failure_threshold,
            recovery_duration: duration(self.cooldown),
            probe_timeout: duration(self.lease),
            success_threshold: self.success_threshold as u32,
            retry_after_cap: duration(self.cap),
            backoff: self.growth.map(|(over, under, most)| Backoff {
                factor: over as f64 / under as f64,
                max: duration(most),
            }),
            rate: self.rate.map(|rate| Rate {
                fraction: rate.part as f64 / rate.whole as f64,
                window: match rate.window {
                    ModelWindow::Calls(calls) => Window::Calls(calls as u32),
                    ModelWindow::Time(time) => Window::Time(duration(time)),
                },
            }),
            minimum_calls: self.rate.map_or(10, |rate| rate.minimum as u32),
            slow_call: self.slow.map(duration),
            on_cancel: match self.on_cancel {
                OnCancel::Nothing => Cancelled::Ignore,
                OnCancel::FreeSlot => Cancelled::Release,
                OnCancel::Fail => Cancelled::Failure,
                OnCancel::FailAfter(least) => Cancelled::FailureAfter(duration(least)),
            },
            ..Rules::default()
        }
    }
}

/// The model and the circuit, and the calls in flight.
struct Pair {
    model: Model,
    driver: Driver,
    in_flight: Vec<(Ticket, ModelTicket)>,
    events: Vec<PendingEvent>,
}

impl Pair {
    fn new(rules: ModelRules) -> Self {
        Self {
            driver: Driver::new(rules.rules()),
            model: Model::new(rules),
            in_flight: Vec::new(),
            events: Vec::new(),
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Call => {
                let answer = self.model.try_acquire();
                let ticket = self.driver.try_acquire();
                match answer {
                    Ok(model_ticket) => {
                        let ticket = ticket.expect("admitted");
                        let probe = self.model.current().state == ModelState::HalfOpen;
                        assert_eq!(ticket.role == Role::Probe, probe);
                        self.in_flight.push((ticket, model_ticket));
                    }
                    Err(no) => assert_eq!(ticket, Err(self.model.denied(&no))),
                }
            }
            Step::Verdict(which, verdict) => {
                if let Some((ticket, model_ticket)) = self.land(which) {
                    let ran = duration(self.model.now - model_ticket.at);
                    let outcome = self.driver.rules.judge(verdict.to_outcome(), || ran);
                    let recorded = self.driver.record(ticket, outcome);
                    let applied = self.model.record(model_ticket, verdict);
                    assert_eq!(recorded == Recorded::Applied, applied);
                }
            }
            Step::Frame(which) => {
                if let Some(n) = self.which(which) {
                    let (ticket, model_ticket) = self.in_flight[n];
                    let renewed = self.driver.renew(ticket);
                    assert_eq!(renewed, self.model.renew(model_ticket));
                }
            }
            Step::Drop(which) => {
                if let Some((ticket, model_ticket)) = self.land(which) {
                    let ran = duration(self.model.now - model_ticket.at);
                    let recorded = self.driver.cancel(ticket, ran);
                    let applied = self.model.cancel(model_ticket);
                    assert_eq!(recorded.map(|r| r == Recorded::Applied), applied);
                }
            }
            Step::Advance(by) => self.advance_to(self.model.now + by),
            Step::AdvanceTo(which, ref offset) => {
                let edges = self.model.edges();
                if !edges.is_empty() {
                    let edge = which.get(&edges);
                    let to = (edge + offset).saturating_sub(1);
                    self.advance_to(to.max(self.model.now));
                }
            }
            Step::ForceOpen => {
                self.model.force_open();
                self.driver.force_open();
            }
            Step::Reset => {
                self.model.reset();
                self.driver.reset();
            }
        }
        self.compare();
    }

    fn which(&self, which: prop::sample::Index) -> Option<usize> {
        let out = self.in_flight.len();
        // The last call, which is the probe if there is one, comes more often than the others.
        let n = which.index(out + 3).min(out.saturating_sub(1));
        (out > 0).then_some(n)
    }

    fn land(&mut self, which: prop::sample::Index) -> Option<(Ticket, ModelTicket)> {
        let n = self.which(which)?;
        Some(self.in_flight.remove(n))
    }

    fn advance_to(&mut self, now: Nanos) {
        self.model.advance_to(now);
        self.driver.now = Timestamp::from_nanos(u64::try_from(now).unwrap());
    }

    /// Compares everything that the two show, more than once.
    fn compare(&mut self) {
        let before = self.driver.synced();
        let asked = self.model.would_allow();
        let expected = asked.as_ref().map(|_| ());
        let expected = expected.map_err(|no| self.model.denied(no));
        for _ in 0..3 {
            assert_eq!(self.driver.would_allow(), expected);
        }
        let mut copy = self.driver.clone();
        assert_eq!(copy.try_acquire().map(|_| ()), expected);

        let snapshot = self.driver.snapshot();
        let model = &self.model;
        let state = model.current().state;
        assert_eq!(snapshot.state, model.state());
        assert_eq!(snapshot.due, state == ModelState::Open && asked.is_ok());
        assert_eq!(snapshot.forced, state == ModelState::Pinned);
        assert_eq!(snapshot.streak as usize, model.streak().len());
        let deadline = match state {
            ModelState::Open => Some(model.due_at()),
            _ => model.lease_end(),
        };
        assert_eq!(snapshot.time_left, deadline.and_then(|end| model.left(end)));
        assert_eq!(snapshot.trips, model.trips() as u64);
        assert_eq!(
            snapshot.last_failure,
            model.last_failure().map(Kind::to_failure_kind)
        );
        assert_eq!(self.driver.retention(), model.retention());
        assert_eq!(self.driver.synced(), before, "a question changed something");

        let probes = self.in_flight.iter();
        let live = probes.filter(|(ticket, _)| {
            let generation = self.driver.synced().generation;
            ticket.role == Role::Probe && ticket.generation == generation
        });
        assert!(live.count() <= 1, "two probes");
        self.compare_events();
    }

    /// Compares the transitions. The last one may be missing: a lease whose end is unnoticed.
    fn compare_events(&mut self) {
        self.events.extend(self.driver.events());
        let mut generation = 0;
        let mut moves = Vec::new();
        for pending in &self.events {
            match *pending {
                PendingEvent::Transition {
                    from,
                    to,
                    reason,
                    generation: next,
                } => {
                    generation += 1;
                    assert_eq!(next, generation);
                    moves.push((from, to, reason));
                }
                PendingEvent::ProbeStarted { generation: of }
                | PendingEvent::LeaseExpired { generation: of } => {
                    assert_eq!(of, generation);
                }
            }
        }
        let mut expected = self.model.transitions();
        if expected.len() > moves.len() {
            let unnoticed = expected.pop().map(|(_, _, reason)| reason);
            assert_eq!(unnoticed, Some(TransitionReason::LeaseExpired));
        }
        assert_eq!(moves, expected);
        let count =
            |f: fn(&PendingEvent) -> bool| self.events.iter().filter(|pending| f(pending)).count();
        let leases = moves
            .iter()
            .filter(|(_, _, reason)| *reason == TransitionReason::LeaseExpired);
        let expired = count(|pending| matches!(pending, PendingEvent::LeaseExpired { .. }));
        assert_eq!(expired, leases.count());
        let half_open = self.model.periods.iter();
        let half_open = half_open.filter(|period| period.state == ModelState::HalfOpen);
        let probes: usize = half_open.map(|period| period.admitted.len()).sum();
        let started = count(|pending| matches!(pending, PendingEvent::ProbeStarted { .. }));
        assert_eq!(started, probes);
    }
}

// ===== histories =====

#[derive(Clone, Debug)]
enum Step {
    Call,
    Verdict(prop::sample::Index, Verdict),
    Frame(prop::sample::Index),
    Drop(prop::sample::Index),
    Advance(Nanos),
    /// Lets time pass to an edge: 0 is just before it, 1 at it, 2 just after.
    AdvanceTo(prop::sample::Index, Nanos),
    ForceOpen,
    Reset,
}

/// Short times, so that edges often coincide.
fn short() -> impl Strategy<Value = Nanos> {
    0..40_u128
}

fn short_or_endless() -> impl Strategy<Value = Nanos> {
    prop_oneof![19 => short(), 1 => Just(NEVER)]
}

fn settings() -> impl Strategy<Value = ModelRules> {
    let growth = (
        prop::sample::select(vec![(1, 1), (3, 2), (2, 1), (7, 4)]),
        short_or_endless(),
    );
    let growth = growth.prop_map(|((over, under), most)| (over, under, most));
    let window = prop_oneof![
        (1..12_usize).prop_map(ModelWindow::Calls),
        (1..100_u128).prop_map(ModelWindow::Time),
    ];
    let rate = (1..5_usize, window, 1..8_usize).prop_map(|(part, window, minimum)| ModelRate {
        part,
        whole: 4,
        window,
        minimum,
    });
    let on_cancel = prop_oneof![
        Just(OnCancel::Nothing),
        Just(OnCancel::FreeSlot),
        Just(OnCancel::Fail),
        short_or_endless().prop_map(OnCancel::FailAfter),
    ];
    let counts = (
        prop_oneof![4 => 1..5_u32, 1 => Just(1_000)],
        prop_oneof![2 => Just(1), 1 => 2..5_usize],
    );
    let times = (
        short_or_endless(),
        short_or_endless().prop_map(|lease| lease.max(1)),
        short_or_endless(),
    );
    let options = (
        prop::option::of(growth),
        prop::option::weighted(0.3, rate),
        prop::option::weighted(0.3, short_or_endless().prop_map(|slow| slow.max(1))),
        on_cancel,
    );
    (counts, times, options).prop_map(|(counts, times, options)| ModelRules {
        failure_threshold: counts.0,
        success_threshold: counts.1,
        cooldown: times.0,
        lease: times.1,
        cap: times.2,
        growth: options.0,
        rate: options.1,
        slow: options.2,
        on_cancel: options.3,
    })
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    let kind = prop_oneof![
        12 => Just(Kind::Transient),
        6 => Just(Kind::RateLimited),
        1 => Just(Kind::Fatal),
    ];
    let retry_after = prop::option::weighted(0.3, short_or_endless());
    prop_oneof![
        6 => Just(Verdict::Success),
        6 => (kind, retry_after).prop_map(|(kind, retry_after)| Verdict::Failure(kind, retry_after)),
        1 => Just(Verdict::Neutral),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<prop::sample::Index>;
    let step = prop_oneof![
        12 => Just(Step::Call),
        12 => (which(), verdicts()).prop_map(|(which, verdict)| Step::Verdict(which, verdict)),
        6 => which().prop_map(Step::Frame),
        2 => which().prop_map(Step::Drop),
        3 => short().prop_map(Step::Advance),
        8 => (which(), 0..3_u128).prop_map(|(which, offset)| Step::AdvanceTo(which, offset)),
        1 => Just(Step::Reset),
    ];
    let pinned = prop_oneof![200 => step, 1 => Just(Step::ForceOpen)];
    prop::collection::vec(pinned, 1..80)
}

proptest! {
    #![proptest_config(Config {
        cases: 1_000,
        failure_persistence: None,
        ..Config::default()
    })]

    #[test]
    fn the_circuit_agrees_with_the_model_in_every_history(rules in settings(), steps in steps()) {
        let mut pair = Pair::new(rules);
        for step in &steps {
            pair.take(step);
        }
    }
}

#[test]
fn the_histories_reach_every_transition() {
    // If the histories led nowhere, the comparison would prove nothing.
    let mut runner = TestRunner::deterministic();
    let histories = (settings(), steps());
    let mut reasons = HashMap::new();
    let (mut lock_free, mut late_while_open, mut unnoticed, mut renewed) = (0, 0, 0, 0);
    for _ in 0..300 {
        let (rules, steps) = histories.new_tree(&mut runner).unwrap().current();
        let mut pair = Pair::new(rules);
        for step in &steps {
            pair.take(step);
            let moves = pair.events.iter();
            let moves = moves.filter(|pending| matches!(pending, PendingEvent::Transition { .. }));
            unnoticed += usize::from(moves.count() + 1 < pair.model.periods.len());
        }
        lock_free += pair.driver.lock_free;
        for (_, _, reason) in pair.model.transitions() {
            *reasons.entry(reason).or_insert(0) += 1;
        }
        for period in &pair.model.periods {
            renewed += period.frames.len();
            if period.state == ModelState::Open {
                late_while_open += period.late.len();
            }
        }
    }
    println!("{reasons:?} {lock_free} {late_while_open} {unnoticed} {renewed}");
    for reason in [
        TransitionReason::FailureThreshold,
        TransitionReason::FailureRate,
        TransitionReason::FatalFailure,
        TransitionReason::CooldownOver,
        TransitionReason::ProbeSucceeded,
        TransitionReason::ProbeFailed,
        TransitionReason::LeaseExpired,
        TransitionReason::ForcedOpen,
        TransitionReason::Reset,
    ] {
        assert!(reasons[&reason] >= 20, "{reason}");
    }
    assert!(lock_free >= 1_000 && late_while_open >= 100 && unnoticed >= 100);
    assert!(renewed >= 50);
}
