//! The circuit against a naive model that shares no code with it.
//!
//! The model keeps the whole history: a list of eras, each with the calls that it admitted and the results that reached it, all with their times. Every
//! answer is worked out from that list anew. Where the circuit notices late that a lease is over, the model is told of every
//! passing of time at once.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::driver::Driver;
use super::{Backoff, Denied, PendingEvent, Rate, Recorded, Role, Rules, Ticket};
use crate::circuit_breaker::{Cancelled, Window};
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Retention;
use crate::vocabulary::Reason;
use crate::vocabulary::{Failure, FailureKind, Outcome};
use crate::vocabulary::{State, TransitionReason};

// ===== the model =====

/// Nanoseconds. No sum of theirs overflows; from [`NEVER`] on they stand for no time at all.
type Nanos = u128;

const NEVER: Nanos = u64::MAX as Nanos;

/// What the model knows of the rules.
#[derive(Clone, Debug)]
struct Setting {
    failure_threshold: u32,
    cooldown: Nanos,
    lease: Nanos,
    success_threshold: usize,
    cap: Nanos,
    /// Numerator and denominator of the factor, and the most.
    growth: Option<(Nanos, Nanos, Nanos)>,
    rate: Option<Share>,
    slow: Option<Nanos>,
    dropped: Dropped,
}

/// At least `part` of `whole` among the calls of the window.
#[derive(Clone, Copy, Debug)]
struct Share {
    part: usize,
    whole: usize,
    over: Over,
    minimum: usize,
}

#[derive(Clone, Copy, Debug)]
enum Over {
    Calls(usize),
    Time(Nanos),
}

#[derive(Clone, Copy, Debug)]
enum Dropped {
    SaysNothing,
    FreesTheSlot,
    Fails,
    FailsAfter(Nanos),
}

/// A result: good, bad in some way and with a time to wait perhaps, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Bad(Kind, Option<Nanos>),
    Neither,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Passing,
    Limit,
    Deadly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Era {
    Shut,
    Open,
    Trial,
    Pinned,
}

/// A time between two transitions.
#[derive(Clone, Debug)]
struct Chapter {
    era: Era,
    why: Option<TransitionReason>,
    began: Nanos,
    admitted: Vec<Nanos>,
    /// When those calls were heard of before their verdicts.
    signs: Vec<Nanos>,
    /// The verdicts of the calls that it admitted.
    own: Vec<(Nanos, Verdict)>,
    /// The verdicts of calls admitted before.
    late: Vec<(Nanos, Verdict)>,
}

#[derive(Clone, Debug)]
struct Model {
    setting: Setting,
    now: Nanos,
    chapters: Vec<Chapter>,
}

/// Which chapter admitted a call, and when.
#[derive(Clone, Copy, Debug)]
struct Pass {
    chapter: usize,
    at: Nanos,
}

#[derive(Debug, PartialEq, Eq)]
enum No {
    Wait(Nanos),
    ProbeOut(Nanos),
    Pinned,
}

impl Model {
    fn new(setting: Setting) -> Self {
        let mut model = Self {
            setting,
            now: 0,
            chapters: Vec::new(),
        };
        model.turn(Era::Shut, None, 0);
        model
    }

    fn turn(&mut self, era: Era, why: Option<TransitionReason>, began: Nanos) {
        self.chapters.push(Chapter {
            era,
            why,
            began,
            admitted: Vec::new(),
            signs: Vec::new(),
            own: Vec::new(),
            late: Vec::new(),
        });
    }

    fn page(&self) -> &Chapter {
        self.chapters.last().unwrap()
    }

    fn page_mut(&mut self) -> &mut Chapter {
        self.chapters.last_mut().unwrap()
    }

    /// The chapters since the circuit was made or reset.
    fn life(&self) -> &[Chapter] {
        let made = |chapter: &Chapter| matches!(chapter.why, None | Some(TransitionReason::Reset));
        let first = self.chapters.iter().rposition(made).unwrap();
        &self.chapters[first..]
    }

    /// The last chapter in which it was shut, and those after it.
    fn since_shut(&self) -> &[Chapter] {
        let shut = |chapter: &Chapter| chapter.era == Era::Shut;
        let first = self.chapters.iter().rposition(shut).unwrap();
        &self.chapters[first..]
    }

    /// The failures at the end of the last chapter in which it was shut.
    fn streak(&self) -> Vec<(Nanos, Kind, Option<Nanos>)> {
        let results = self.since_shut()[0].own.iter().rev();
        results
            .filter(|(_, verdict)| *verdict != Verdict::Neither)
            .map_while(|(at, verdict)| match verdict {
                Verdict::Bad(kind, hint) => Some((*at, *kind, *hint)),
                _ => None,
            })
            .collect()
    }

    /// The wait of the opening numbered `n` since it was shut.
    fn wait_of(&self, n: usize) -> Nanos {
        let mut wait = self.setting.cooldown;
        for _ in 0..n {
            if let Some((over, under, most)) = self.setting.growth {
                if wait < most {
                    let doubled = (2 * wait * over + under) / under;
                    wait = (doubled / 2).min(NEVER).min(most);
                }
            }
        }
        wait
    }

    fn until_asked(&self, at: Nanos, hint: Option<Nanos>) -> Nanos {
        hint.map_or(0, |hint| at + hint.min(self.setting.cap))
    }

    /// When a probe may go, while open.
    fn due_at(&self) -> Nanos {
        let since = self.since_shut();
        let (page, before) = since.split_last().unwrap();
        let openings = before.iter().filter(|chapter| chapter.era == Era::Open);
        let wait = self.wait_of(openings.count());
        let mut due = page.began + wait;
        // What those asked for who opened it.
        match before.last().unwrap() {
            shut if shut.era == Era::Shut => {
                for (at, _, hint) in self.streak() {
                    due = due.max(self.until_asked(at, hint));
                }
            }
            trial => {
                if page.why == Some(TransitionReason::ProbeFailed) {
                    if let Some((at, Verdict::Bad(_, hint))) = trial.own.last() {
                        due = due.max(self.until_asked(*at, *hint));
                    }
                }
            }
        }
        for (at, verdict) in &page.late {
            if let Verdict::Bad(_, hint) = verdict {
                due = due.max(at + wait).max(self.until_asked(*at, *hint));
            }
        }
        due
    }

    /// When the lease ends of the probe that is out, if one is.
    fn lease_end(&self) -> Option<Nanos> {
        let page = self.page();
        let out = page.era == Era::Trial && page.admitted.len() > page.own.len();
        let heard = page.admitted.iter().chain(&page.signs).max();
        out.then(|| heard.unwrap() + self.setting.lease)
    }

    fn pass_to(&mut self, now: Nanos) {
        self.now = now;
        if let Some(end) = self.lease_end() {
            if end < NEVER && now >= end {
                self.turn(Era::Open, Some(TransitionReason::LeaseExpired), end);
            }
        }
    }

    /// Whether a call may go, and whether it is a probe.
    fn asks(&self) -> Result<bool, No> {
        match self.page().era {
            Era::Shut => Ok(false),
            Era::Open if self.now >= self.due_at() => Ok(true),
            Era::Open => Err(No::Wait(self.due_at())),
            Era::Trial => match self.lease_end() {
                None => Ok(true),
                Some(end) => Err(No::ProbeOut(end)),
            },
            Era::Pinned => Err(No::Pinned),
        }
    }

    fn goes(&mut self) -> Result<Pass, No> {
        if self.asks()? && self.page().era == Era::Open {
            self.turn(Era::Trial, Some(TransitionReason::CooldownOver), self.now);
        }
        let at = self.now;
        self.page_mut().admitted.push(at);
        let chapter = self.chapters.len() - 1;
        Ok(Pass { chapter, at })
    }

    /// A call is heard of. Whether that keeps it waited for.
    fn lives(&mut self, pass: Pass) -> bool {
        let now = self.now;
        let waited_for = pass.chapter + 1 == self.chapters.len() && self.lease_end().is_some();
        if waited_for {
            self.page_mut().signs.push(now);
        }
        waited_for
    }

    /// Whether it counted.
    fn hears(&mut self, pass: Pass, verdict: Verdict) -> bool {
        let now = self.now;
        let verdict = match (verdict, self.setting.slow) {
            (Verdict::Good, Some(slow)) if now - pass.at >= slow => {
                Verdict::Bad(Kind::Passing, None)
            }
            _ => verdict,
        };
        if pass.chapter + 1 != self.chapters.len() {
            self.page_mut().late.push((now, verdict));
            return false;
        }
        self.page_mut().own.push((now, verdict));
        match self.page().era {
            Era::Shut => self.weigh(verdict),
            Era::Trial if matches!(verdict, Verdict::Bad(..)) => {
                self.turn(Era::Open, Some(TransitionReason::ProbeFailed), now);
            }
            Era::Trial => {
                let good = |(_, verdict): &&(Nanos, Verdict)| *verdict == Verdict::Good;
                let proofs = self.page().own.iter().filter(good).count();
                if proofs == self.setting.success_threshold {
                    self.turn(Era::Shut, Some(TransitionReason::ProbeSucceeded), now);
                }
            }
            Era::Open | Era::Pinned => unreachable!("they admit nobody"),
        }
        true
    }

    /// Whether the last result opens it.
    fn weigh(&mut self, verdict: Verdict) {
        let why = match verdict {
            Verdict::Neither => return,
            Verdict::Bad(Kind::Deadly, _) => Some(TransitionReason::FatalFailure),
            Verdict::Bad(..) if self.streak().len() >= self.setting.failure_threshold as usize => {
                Some(TransitionReason::FailureThreshold)
            }
            _ => self.too_many().then_some(TransitionReason::FailureRate),
        };
        if why.is_some() {
            self.turn(Era::Open, why, self.now);
        }
    }

    fn in_window(&self) -> Vec<bool> {
        let Some(share) = self.setting.rate else {
            return Vec::new();
        };
        let results = &self.page().own;
        let counted = results.iter().filter(|(_, v)| *v != Verdict::Neither);
        let bad = |(_, v): &(Nanos, Verdict)| matches!(v, Verdict::Bad(..));
        match share.over {
            Over::Calls(calls) => {
                let last: Vec<_> = counted.map(bad).collect();
                last[last.len().saturating_sub(calls)..].to_vec()
            }
            Over::Time(time) => {
                let tenth = (time / 10).max(1);
                counted
                    .filter(|(at, _)| self.now / tenth < at / tenth + 10)
                    .map(bad)
                    .collect()
            }
        }
    }

    fn too_many(&self) -> bool {
        let Some(share) = self.setting.rate else {
            return false;
        };
        let calls = self.in_window();
        let enough = match share.over {
            Over::Calls(size) => size.min(share.minimum),
            Over::Time(_) => share.minimum,
        };
        let failed = calls.iter().filter(|bad| **bad).count();
        calls.len() >= enough && failed > 0 && failed * share.whole >= share.part * calls.len()
    }

    fn drops(&mut self, pass: Pass) -> Option<bool> {
        let verdict = match self.setting.dropped {
            Dropped::SaysNothing => return None,
            Dropped::FailsAfter(least) if self.now - pass.at < least => Verdict::Neither,
            Dropped::Fails | Dropped::FailsAfter(_) => Verdict::Bad(Kind::Passing, None),
            Dropped::FreesTheSlot => Verdict::Neither,
        };
        Some(self.hears(pass, verdict))
    }

    fn pins(&mut self) {
        if self.page().era != Era::Pinned {
            self.turn(Era::Pinned, Some(TransitionReason::ForcedOpen), self.now);
        }
    }

    fn starts_anew(&mut self) {
        self.turn(Era::Shut, Some(TransitionReason::Reset), self.now);
    }

    fn trips(&self) -> usize {
        let life = self.life();
        let open = |chapter: &Chapter| matches!(chapter.era, Era::Open | Era::Pinned);
        life.windows(2)
            .filter(|two| !open(&two[0]) && open(&two[1]))
            .count()
    }

    fn last_failure(&self) -> Option<Kind> {
        let life = self.life().iter().rev();
        life.flat_map(|chapter| {
            let bad = |(_, verdict): &(Nanos, Verdict)| match verdict {
                Verdict::Bad(kind, _) => Some(*kind),
                _ => None,
            };
            let late = chapter.late.iter().rev().filter_map(bad);
            // What comes late counts while it is open.
            let late = late.filter(|_| chapter.era == Era::Open);
            let own = chapter.own.iter().rev().filter_map(bad);
            let lost = chapter.why == Some(TransitionReason::LeaseExpired);
            let lost = lost.then_some(Kind::Passing);
            late.chain(own).chain(lost).collect::<Vec<_>>()
        })
        .next()
    }

    /// The instants that matter from now on.
    fn edges(&self) -> Vec<Nanos> {
        let mut edges = Vec::new();
        match self.page().era {
            Era::Open => edges.push(self.due_at()),
            Era::Trial => {
                if let Some(end) = self.lease_end() {
                    let openings = self.since_shut().iter();
                    let openings = openings.filter(|chapter| chapter.era == Era::Open);
                    edges.extend([end, end + self.wait_of(openings.count())]);
                }
            }
            Era::Shut | Era::Pinned => {}
        }
        edges.retain(|edge| *edge < NEVER / 2);
        edges
    }

    // ===== what it says, in the circuit's words =====

    fn state(&self) -> State {
        match self.page().era {
            Era::Shut => State::Closed,
            Era::Open | Era::Pinned => State::Open,
            Era::Trial => State::HalfOpen,
        }
    }

    fn left(&self, deadline: Nanos) -> Option<Duration> {
        (deadline < NEVER).then(|| duration(deadline.saturating_sub(self.now)))
    }

    fn denied(&self, no: &No) -> Denied {
        let (reason, wait) = match no {
            No::Wait(deadline) => (Reason::CircuitOpen, self.left(*deadline)),
            No::ProbeOut(deadline) => (Reason::ProbeInFlight, self.left(*deadline)),
            No::Pinned => (Reason::ForcedOpen, None),
        };
        let last = self.last_failure().map(Kind::told);
        Denied { reason, wait, last }
    }

    fn retention(&self) -> Retention {
        let bad = self.in_window().contains(&true);
        match (self.page().era, self.asks()) {
            (Era::Shut, _) if self.streak().is_empty() && !bad => Retention::Clean,
            (_, Ok(_)) => Retention::Unclean,
            (_, Err(_)) => Retention::Live,
        }
    }

    /// The transitions so far.
    fn told(&self) -> Vec<(State, State, TransitionReason)> {
        let mut states = Vec::new();
        let mut before = State::Closed;
        for (n, chapter) in self.chapters.iter().enumerate().skip(1) {
            let history = &self.chapters[..=n];
            let now = Self {
                setting: self.setting.clone(),
                now: self.now,
                chapters: history.to_vec(),
            };
            states.push((before, now.state(), chapter.why.unwrap()));
            before = now.state();
        }
        states
    }
}

// ===== between the two =====

fn duration(nanos: Nanos) -> Duration {
    if nanos >= NEVER {
        return Duration::MAX;
    }
    Duration::from_nanos(u64::try_from(nanos).unwrap())
}

impl Kind {
    fn told(self) -> FailureKind {
        match self {
            Kind::Passing => FailureKind::Transient,
            Kind::Limit => FailureKind::RateLimited,
            Kind::Deadly => FailureKind::Fatal,
        }
    }
}

impl Verdict {
    fn told(self) -> Outcome {
        let (kind, hint) = match self {
            Verdict::Good => return Outcome::Success,
            Verdict::Neither => return Outcome::Neutral,
            Verdict::Bad(kind, hint) => (kind, hint),
        };
        let failure = match kind {
            Kind::Passing => Failure::transient(),
            Kind::Limit => Failure::rate_limited(),
            Kind::Deadly => Failure::fatal(),
        };
        let hinted = hint.map(|hint| failure.with_retry_after(duration(hint)));
        hinted.unwrap_or(failure).into()
    }
}

impl Setting {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // Small numbers all.
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
            rate: self.rate.map(|share| Rate {
                fraction: share.part as f64 / share.whole as f64,
                window: match share.over {
                    Over::Calls(calls) => Window::Calls(calls as u32),
                    Over::Time(time) => Window::Time(duration(time)),
                },
            }),
            minimum_calls: self.rate.map_or(10, |share| share.minimum as u32),
            slow_call: self.slow.map(duration),
            on_cancel: match self.dropped {
                Dropped::SaysNothing => Cancelled::Ignore,
                Dropped::FreesTheSlot => Cancelled::Release,
                Dropped::Fails => Cancelled::Failure,
                Dropped::FailsAfter(least) => Cancelled::FailureAfter(duration(least)),
            },
            ..Rules::default()
        }
    }
}

/// Both of them, and the calls in flight.
struct Pair {
    model: Model,
    driver: Driver,
    in_flight: Vec<(Ticket, Pass)>,
    told: Vec<PendingEvent>,
}

impl Pair {
    fn new(setting: Setting) -> Self {
        Self {
            driver: Driver::new(setting.rules()),
            model: Model::new(setting),
            in_flight: Vec::new(),
            told: Vec::new(),
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Call => {
                let answer = self.model.goes();
                let ticket = self.driver.try_acquire();
                match answer {
                    Ok(pass) => {
                        let ticket = ticket.expect("admitted");
                        let probe = self.model.page().era == Era::Trial;
                        assert_eq!(ticket.role == Role::Probe, probe);
                        self.in_flight.push((ticket, pass));
                    }
                    Err(no) => assert_eq!(ticket, Err(self.model.denied(&no))),
                }
            }
            Step::Verdict(which, verdict) => {
                if let Some((ticket, pass)) = self.land(which) {
                    let ran = duration(self.model.now - pass.at);
                    let outcome = self.driver.rules.judge(verdict.told(), || ran);
                    let recorded = self.driver.record(ticket, outcome);
                    let applied = self.model.hears(pass, verdict);
                    assert_eq!(recorded == Recorded::Applied, applied);
                }
            }
            Step::Frame(which) => {
                if let Some(n) = self.which(which) {
                    let (ticket, pass) = self.in_flight[n];
                    let renewed = self.driver.renew(ticket);
                    assert_eq!(renewed, self.model.lives(pass));
                }
            }
            Step::Drop(which) => {
                if let Some((ticket, pass)) = self.land(which) {
                    let ran = duration(self.model.now - pass.at);
                    let recorded = self.driver.cancel(ticket, ran);
                    let applied = self.model.drops(pass);
                    assert_eq!(recorded.map(|r| r == Recorded::Applied), applied);
                }
            }
            Step::Pass(by) => self.pass_to(self.model.now + by),
            Step::PassTo(which, ref offset) => {
                let edges = self.model.edges();
                if !edges.is_empty() {
                    let edge = which.get(&edges);
                    let to = (edge + offset).saturating_sub(1);
                    self.pass_to(to.max(self.model.now));
                }
            }
            Step::Pin => {
                self.model.pins();
                self.driver.force_open();
            }
            Step::Reset => {
                self.model.starts_anew();
                self.driver.reset();
            }
        }
        self.agree();
    }

    fn which(&self, which: prop::sample::Index) -> Option<usize> {
        let out = self.in_flight.len();
        // The last one, the probe if there is one, more often than the others.
        let n = which.index(out + 3).min(out.saturating_sub(1));
        (out > 0).then_some(n)
    }

    fn land(&mut self, which: prop::sample::Index) -> Option<(Ticket, Pass)> {
        let n = self.which(which)?;
        Some(self.in_flight.remove(n))
    }

    fn pass_to(&mut self, now: Nanos) {
        self.model.pass_to(now);
        self.driver.now = Timestamp::from_nanos(u64::try_from(now).unwrap());
    }

    /// Looks at everything there is to see, more than once.
    fn agree(&mut self) {
        let before = self.driver.settled();
        let asked = self.model.asks();
        let expected = asked.as_ref().map(|_| ());
        let expected = expected.map_err(|no| self.model.denied(no));
        for _ in 0..3 {
            assert_eq!(self.driver.would_allow(), expected);
        }
        let mut copy = self.driver.clone();
        assert_eq!(copy.try_acquire().map(|_| ()), expected);

        let snapshot = self.driver.snapshot();
        let model = &self.model;
        let era = model.page().era;
        assert_eq!(snapshot.state, model.state());
        assert_eq!(snapshot.due, era == Era::Open && asked.is_ok());
        assert_eq!(snapshot.forced, era == Era::Pinned);
        assert_eq!(snapshot.streak as usize, model.streak().len());
        let deadline = match era {
            Era::Open => Some(model.due_at()),
            _ => model.lease_end(),
        };
        assert_eq!(snapshot.time_left, deadline.and_then(|end| model.left(end)));
        assert_eq!(snapshot.trips, model.trips() as u64);
        assert_eq!(snapshot.last_failure, model.last_failure().map(Kind::told));
        assert_eq!(self.driver.retention(), model.retention());
        assert_eq!(self.driver.settled(), before, "looking changed something");

        let probes = self.in_flight.iter();
        let live = probes.filter(|(ticket, _)| {
            let generation = self.driver.settled().generation;
            ticket.role == Role::Probe && ticket.generation == generation
        });
        assert!(live.count() <= 1, "two probes");
        self.hear();
    }

    /// The transitions are the model's, but for a lease whose end nobody has noticed.
    fn hear(&mut self) {
        self.told.extend(self.driver.events());
        let mut generation = 0;
        let mut moves = Vec::new();
        for pending in &self.told {
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
        let mut expected = self.model.told();
        if expected.len() > moves.len() {
            let unnoticed = expected.pop().map(|(_, _, reason)| reason);
            assert_eq!(unnoticed, Some(TransitionReason::LeaseExpired));
        }
        assert_eq!(moves, expected);
        let count =
            |f: fn(&PendingEvent) -> bool| self.told.iter().filter(|pending| f(pending)).count();
        let leases = moves
            .iter()
            .filter(|(_, _, reason)| *reason == TransitionReason::LeaseExpired);
        let expired = count(|pending| matches!(pending, PendingEvent::LeaseExpired { .. }));
        assert_eq!(expired, leases.count());
        let trials = self.model.chapters.iter();
        let trials = trials.filter(|chapter| chapter.era == Era::Trial);
        let probes: usize = trials.map(|chapter| chapter.admitted.len()).sum();
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
    Pass(Nanos),
    /// To an edge, and so much later than just before it.
    PassTo(prop::sample::Index, Nanos),
    Pin,
    Reset,
}

/// Short times, so that edges fall together.
fn short() -> impl Strategy<Value = Nanos> {
    0..40_u128
}

fn short_or_endless() -> impl Strategy<Value = Nanos> {
    prop_oneof![19 => short(), 1 => Just(NEVER)]
}

fn settings() -> impl Strategy<Value = Setting> {
    let growth = (
        prop::sample::select(vec![(1, 1), (3, 2), (2, 1), (7, 4)]),
        short_or_endless(),
    );
    let growth = growth.prop_map(|((over, under), most)| (over, under, most));
    let over = prop_oneof![
        (1..12_usize).prop_map(Over::Calls),
        (1..100_u128).prop_map(Over::Time),
    ];
    let rate = (1..5_usize, over, 1..8_usize).prop_map(|(part, over, minimum)| Share {
        part,
        whole: 4,
        over,
        minimum,
    });
    let dropped = prop_oneof![
        Just(Dropped::SaysNothing),
        Just(Dropped::FreesTheSlot),
        Just(Dropped::Fails),
        short_or_endless().prop_map(Dropped::FailsAfter),
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
        dropped,
    );
    (counts, times, options).prop_map(|(counts, times, options)| Setting {
        failure_threshold: counts.0,
        success_threshold: counts.1,
        cooldown: times.0,
        lease: times.1,
        cap: times.2,
        growth: options.0,
        rate: options.1,
        slow: options.2,
        dropped: options.3,
    })
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    let kind = prop_oneof![
        12 => Just(Kind::Passing),
        6 => Just(Kind::Limit),
        1 => Just(Kind::Deadly),
    ];
    let hint = prop::option::weighted(0.3, short_or_endless());
    prop_oneof![
        6 => Just(Verdict::Good),
        6 => (kind, hint).prop_map(|(kind, hint)| Verdict::Bad(kind, hint)),
        1 => Just(Verdict::Neither),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<prop::sample::Index>;
    let step = prop_oneof![
        12 => Just(Step::Call),
        12 => (which(), verdicts()).prop_map(|(which, verdict)| Step::Verdict(which, verdict)),
        6 => which().prop_map(Step::Frame),
        2 => which().prop_map(Step::Drop),
        3 => short().prop_map(Step::Pass),
        8 => (which(), 0..3_u128).prop_map(|(which, offset)| Step::PassTo(which, offset)),
        1 => Just(Step::Reset),
    ];
    let pinned = prop_oneof![200 => step, 1 => Just(Step::Pin)];
    prop::collection::vec(pinned, 1..80)
}

proptest! {
    #![proptest_config(Config {
        cases: 1_000,
        failure_persistence: None,
        ..Config::default()
    })]

    #[test]
    fn the_circuit_does_what_a_naive_model_says_in_every_history(setting in settings(), steps in steps()) {
        let mut pair = Pair::new(setting);
        for step in &steps {
            pair.take(step);
        }
    }
}

#[test]
fn the_histories_go_everywhere() {
    // A model that is never led anywhere would agree to anything.
    let mut runner = TestRunner::deterministic();
    let histories = (settings(), steps());
    let mut reasons = HashMap::new();
    let (mut lock_free, mut late_while_open, mut unnoticed, mut renewed) = (0, 0, 0, 0);
    for _ in 0..300 {
        let (setting, steps) = histories.new_tree(&mut runner).unwrap().current();
        let mut pair = Pair::new(setting);
        for step in &steps {
            pair.take(step);
            let moves = pair.told.iter();
            let moves = moves.filter(|pending| matches!(pending, PendingEvent::Transition { .. }));
            unnoticed += usize::from(moves.count() + 1 < pair.model.chapters.len());
        }
        lock_free += pair.driver.lock_free;
        for (_, _, reason) in pair.model.told() {
            *reasons.entry(reason).or_insert(0) += 1;
        }
        for chapter in &pair.model.chapters {
            renewed += chapter.signs.len();
            if chapter.era == Era::Open {
                late_while_open += chapter.late.len();
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
