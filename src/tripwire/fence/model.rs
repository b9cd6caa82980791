//! The fence against a naive model that shares no code with it.
//!
//! The model keeps what happened in the run as one list, and works out every count from that list anew. Several calls are in flight, and their results
//! come in any order, early, late or never.

use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::{collection, option};

use super::driver::Run;
use super::{CallFacts, Cycles, Digest, FailureKind, PendingEvent, Role, Rules, Ticket, Timestamp};
use super::{Outcome, Reason, State};
use crate::machinery::event_queue::Queued;
use crate::vocabulary::Failure;

// ===== the model =====

#[derive(Clone, Copy, Debug)]
struct Setting {
    turns: usize,
    identical: usize,
    errors: usize,
    rejects: usize,
    deadline: Option<u64>,
    cycles: Option<(usize, usize)>,
    warn_at: Option<usize>,
    by_turn: bool,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    what: Option<u8>,
    turn: Option<u8>,
    limit: Option<usize>,
}

/// What happened in the run, as far as any rule asks.
#[derive(Clone, Copy, Debug)]
enum Happened {
    Spent(Option<u8>),
    /// A call that is not exempt was admitted, or refused as identical.
    CallFacts {
        id: usize,
        what: u8,
        turn: Option<u8>,
    },
    Answered {
        id: usize,
        answer: u8,
    },
    Good,
    Bad,
    Proved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Era {
    Shut,
    Open,
    Armed,
    Trial,
    TimeUp,
}

#[derive(Clone, Debug)]
struct Model {
    setting: Setting,
    now: u64,
    began: Option<u64>,
    run: Vec<Happened>,
    era: Era,
    /// Counts eras, for results that come too late.
    age: usize,
    refused: usize,
    why: Option<Reason>,
    trips: u64,
    more: usize,
    ids: usize,
    warned: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    id: usize,
    age: usize,
    exempt: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct No {
    why: Reason,
    first: Option<Reason>,
    count: Option<usize>,
}

impl Model {
    fn new(setting: Setting) -> Self {
        Self {
            setting,
            now: 0,
            began: None,
            run: Vec::new(),
            era: Era::Shut,
            age: 0,
            refused: 0,
            why: None,
            trips: 0,
            more: 0,
            ids: 0,
            warned: 0,
        }
    }

    fn turns(&self) -> usize {
        let spent = |happened: &&Happened| matches!(happened, Happened::Spent(_));
        self.run.iter().filter(spent).count()
    }

    fn left(&self) -> usize {
        self.setting.turns + self.more - self.turns()
    }

    fn errors(&self) -> usize {
        let mut count = 0;
        for happened in self.run.iter().rev() {
            match happened {
                Happened::Bad => count += 1,
                Happened::Good | Happened::Proved => break,
                _ => {}
            }
        }
        count
    }

    /// The present streak: what, and how often.
    fn streak(&self) -> (Option<u8>, usize) {
        let (mut present, mut count) = (None, 0);
        let mut within: Vec<usize> = Vec::new();
        let (mut last_turn, mut last_answer) = (None, None);
        for happened in &self.run {
            match *happened {
                Happened::CallFacts { id, what, turn } => {
                    if present != Some(what) {
                        (present, count, last_answer) = (Some(what), 1, None);
                        within.clear();
                    } else if turn.is_none() || turn != last_turn {
                        count += 1;
                    }
                    within.push(id);
                    last_turn = turn;
                }
                Happened::Answered { id, answer } if within.contains(&id) => {
                    if last_answer.is_some() && last_answer != Some(answer) {
                        count = 1;
                    }
                    last_answer = Some(answer);
                }
                Happened::Proved => (count, last_turn) = (0, None),
                _ => {}
            }
        }
        (present, count)
    }

    /// The calls among which rounds are looked for.
    fn round(&self, keeps: usize) -> Vec<(usize, u8, Option<u8>, Option<u8>)> {
        let mut calls: Vec<(usize, u8, Option<u8>, Option<u8>)> = Vec::new();
        for happened in &self.run {
            match *happened {
                Happened::CallFacts { id, what, turn } => {
                    let same = |call: &(usize, u8, Option<u8>, Option<u8>)| {
                        turn.is_some() && (call.1, call.2) == (what, turn)
                    };
                    if !calls.iter().any(same) {
                        calls.push((id, what, turn, None));
                    }
                    if calls.len() > keeps {
                        calls.remove(0);
                    }
                }
                Happened::Answered { id, answer } => {
                    let Some(at) = calls.iter().position(|call| call.0 == id) else {
                        continue;
                    };
                    calls[at].3 = Some(answer);
                    let what = calls[at].1;
                    let mut earlier: Vec<_> = calls[..at].to_vec();
                    earlier.retain(|call| call.1 == what && call.3.is_some());
                    if earlier.last().is_some_and(|call| call.3 != Some(answer)) {
                        calls = calls.split_off(at);
                    }
                }
                Happened::Proved => calls.clear(),
                _ => {}
            }
        }
        calls
    }

    /// The repeats of a round that `call` would close.
    fn closes(&self, what: u8, turn: Option<u8>) -> Option<usize> {
        let (longest, repeats) = self.setting.cycles?;
        let calls = self.round(longest * repeats);
        if turn.is_some() && calls.iter().any(|call| (call.1, call.2) == (what, turn)) {
            return None;
        }
        let mut all: Vec<u8> = calls.iter().map(|call| call.1).collect();
        all.push(what);
        for period in 2..=longest {
            if all.len() >= period * repeats {
                let end = &all[all.len() - period * repeats..];
                let varied = end.iter().any(|call| *call != end[0]);
                if varied && end == end[..period].repeat(repeats) {
                    return Some(repeats);
                }
            }
        }
        None
    }

    fn is_over(&self) -> bool {
        match (self.setting.deadline, self.began) {
            (Some(deadline), Some(began)) => self.now >= began + deadline,
            _ => false,
        }
    }

    fn turn(&mut self, era: Era) {
        self.era = era;
        self.age += 1;
        self.refused = 0;
    }

    fn trip(&mut self, why: Reason) {
        self.why = Some(why);
        self.trips += 1;
        self.turn(if why == Reason::Deadline {
            Era::TimeUp
        } else {
            Era::Open
        });
    }

    fn refuse_kept(&mut self, count: Option<usize>) -> No {
        let no = No {
            why: Reason::TripwireOpen,
            first: self.why,
            count,
        };
        self.refused += 1;
        if self.refused == self.setting.rejects {
            self.turn(if self.era == Era::Open {
                Era::Armed
            } else {
                Era::Open
            });
        }
        no
    }

    /// What refuses every call, if anything does.
    fn refuse_all(&mut self, count: Option<usize>) -> Option<No> {
        let no = |why, count| No {
            why,
            first: None,
            count,
        };
        if self.is_over() {
            if self.era != Era::TimeUp {
                self.trip(Reason::Deadline);
            }
            return Some(no(Reason::Deadline, None));
        }
        if matches!(self.era, Era::Open | Era::Trial) {
            return Some(self.refuse_kept(count));
        }
        if self.left() == 0 && !self.setting.by_turn {
            self.trip(Reason::MaxTurns);
            return Some(no(Reason::MaxTurns, Some(self.turns())));
        }
        None
    }

    /// `count` is that of the present trip, which the caller keeps.
    fn call(&mut self, call: Call, count: Option<usize>) -> Result<Pass, No> {
        if let Some(no) = self.refuse_all(count) {
            return Err(no);
        }
        let paid = call.turn.is_some()
            && self
                .run
                .iter()
                .any(|happened| matches!(happened, Happened::Spent(turn) if *turn == call.turn));
        if !paid && self.left() == 0 {
            self.trip(Reason::MaxTurns);
            return Err(No {
                why: Reason::MaxTurns,
                first: None,
                count: Some(self.turns()),
            });
        }
        let id = self.ids;
        self.ids += 1;
        if let Some(what) = call.what {
            let closes = self.closes(what, call.turn);
            self.run.push(Happened::CallFacts {
                id,
                what,
                turn: call.turn,
            });
            let streak = self.streak().1;
            let count = if streak >= call.limit.unwrap_or(self.setting.identical) {
                Some(streak)
            } else {
                closes
            };
            if count.is_some() {
                self.trip(Reason::IdenticalCall);
                return Err(No {
                    why: Reason::IdenticalCall,
                    first: None,
                    count,
                });
            }
        }
        if !paid {
            self.run.push(Happened::Spent(call.turn));
            self.warned += usize::from(self.setting.warn_at == Some(self.turns()));
        }
        self.began = self.began.or(Some(self.now));
        if self.era == Era::Armed {
            self.era = Era::Trial;
            self.refused = 0;
        }
        Ok(Pass {
            id,
            age: self.age,
            exempt: call.what.is_none(),
        })
    }

    fn result(&mut self, pass: Pass, outcome: Outcome, answer: Option<u8>) {
        if pass.age != self.age {
            return;
        }
        let trial = self.era == Era::Trial;
        match outcome {
            Outcome::Success => {
                if let (Some(answer), false) = (answer, pass.exempt) {
                    self.run.push(Happened::Answered {
                        id: pass.id,
                        answer,
                    });
                }
                self.run.push(if trial {
                    Happened::Proved
                } else {
                    Happened::Good
                });
                if trial {
                    self.why = None;
                    self.turn(Era::Shut);
                }
            }
            Outcome::Failure(_) => self.bad(),
            Outcome::Neutral if trial => {
                self.era = Era::Armed;
                self.refused = 0;
            }
            Outcome::Neutral => {}
        }
    }

    fn bad(&mut self) {
        self.run.push(Happened::Bad);
        if self.era != Era::Shut || self.errors() >= self.setting.errors {
            self.trip(Reason::ErrorStreak);
        }
    }

    fn dropped(&mut self, pass: Pass) {
        if pass.age == self.age && self.era == Era::Trial {
            self.turn(Era::Open);
        }
    }

    fn not_ready_ever(&mut self) {
        let passes = matches!(self.era, Era::Shut | Era::Armed) && !self.is_over();
        if passes && (self.left() > 0 || self.setting.by_turn) {
            self.bad();
        }
    }

    fn extend(&mut self, turns: usize) {
        self.more += turns;
        if turns > 0 && self.why == Some(Reason::MaxTurns) {
            self.why = None;
            self.turn(Era::Shut);
        }
    }

    fn reset(&mut self) {
        *self = Self {
            now: self.now,
            age: self.age + 1,
            ids: self.ids,
            warned: self.warned,
            ..Self::new(self.setting)
        };
    }

    fn compare(&self, run: &Run) {
        let now = run.snapshot();
        let unnoticed = self.is_over() && self.era != Era::TimeUp;
        let era = if unnoticed { Era::TimeUp } else { self.era };
        let state = match era {
            Era::Shut => State::Closed,
            Era::Open | Era::TimeUp => State::Open,
            Era::Armed | Era::Trial => State::HalfOpen,
        };
        let why = if unnoticed {
            Some(Reason::Deadline)
        } else {
            self.why
        };
        assert_eq!((now.state, now.reason), (state, why));
        assert_eq!(now.probing, era == Era::Trial);
        assert_eq!(now.turns as usize, self.turns());
        assert_eq!(now.turns_left as usize, self.left());
        assert_eq!(now.errors as usize, self.errors());
        assert_eq!(now.identical as usize, self.streak().1);
        let counts = matches!(era, Era::Open | Era::Trial);
        let rejects = self.setting.rejects - self.refused;
        assert_eq!(now.rejects_left as usize, if counts { rejects } else { 0 });
        assert_eq!(now.trips, self.trips + u64::from(unnoticed));
        let left = self.setting.deadline.zip(self.began);
        let left = left.map(|(deadline, began)| (began + deadline).saturating_sub(self.now));
        assert_eq!(now.time_left, left.map(Duration::from_nanos));
    }
}

// ===== the two side by side =====

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(Call),
    /// Which of the calls in flight, what it says, and what it answered.
    Result(usize, u8, Option<u8>),
    Drop(usize),
    CallUnready,
    ReadinessFailed,
    Extend(usize),
    Reset,
    Wait(u64),
}

fn setting() -> impl Strategy<Value = Setting> {
    let counts = (0..12_usize, 2..4_usize, 1..4_usize, 1..4_usize);
    let options = (
        option::weighted(0.3, 1..20_u64),
        option::weighted(0.5, (2..4_usize, 2..4_usize)),
        option::of(1..6_usize),
        any::<bool>(),
    );
    (counts, options).prop_map(
        |((turns, identical, errors, rejects), (deadline, cycles, warn_at, by_turn))| Setting {
            turns,
            identical,
            errors,
            rejects,
            deadline,
            cycles,
            warn_at,
            by_turn,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let call = (
        option::weighted(0.9, 0..3_u8),
        option::weighted(0.7, 0..4_u8),
        option::weighted(0.2, 2..5_usize),
    );
    prop_oneof![
        12 => call.prop_map(|(what, turn, limit)| Step::Call(Call { what, turn, limit })),
        9 => (0..3_usize, 0..8_u8, option::of(0..2_u8))
            .prop_map(|(n, says, answer)| Step::Result(n, says, answer)),
        1 => (0..3_usize).prop_map(Step::Drop),
        1 => Just(Step::CallUnready),
        1 => Just(Step::ReadinessFailed),
        1 => (0..3_usize).prop_map(Step::Extend),
        1 => Just(Step::Reset),
        1 => (1..6_u64).prop_map(Step::Wait),
    ]
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}

fn rules(setting: Setting) -> Rules {
    Rules {
        max_turns: number(setting.turns),
        identical_limit: number(setting.identical),
        error_limit: number(setting.errors),
        open_cooldown_rejects: number(setting.rejects),
        deadline: setting.deadline.map(Duration::from_nanos),
        cycles: setting.cycles.map(|(max_period, repeats)| Cycles {
            max_period,
            repeats,
        }),
        warn_at: setting.warn_at.map(number),
        by_turn: setting.by_turn,
        observe_only: false,
    }
}

fn side_by_side(setting: Setting, steps: Vec<Step>) {
    let mut run = Run::of(rules(setting));
    let mut model = Model::new(setting);
    let mut flying: Vec<(Ticket, Pass)> = Vec::new();
    let mut warned = 0;
    for step in steps {
        let count = run.fence.tripped.and_then(|tripped| tripped.count);
        let count = count.map(|count| count as usize);
        match step {
            Step::Call(mut call) => {
                if !setting.by_turn {
                    call.turn = None;
                }
                let facts = CallFacts {
                    digest: call.what.map(|what| Digest::of(&what)),
                    turn: call.turn.map(|turn| Digest::of(&turn)),
                    limit: call.limit.map(number),
                };
                match (run.ask(&facts), model.call(call, count)) {
                    (Ok(ticket), Ok(pass)) => {
                        assert_eq!(ticket.role == Role::Probe, model.era == Era::Trial);
                        flying.push((ticket, pass));
                    }
                    (Err(denied), Err(no)) => {
                        let refusal = denied.refusal(None);
                        let told = No {
                            why: refusal.reason(),
                            first: refusal.tripped_by(),
                            count: refusal.count().map(|count| count as usize),
                        };
                        assert_eq!(told, no);
                    }
                    other => panic!("{call:?}: {other:?}"),
                }
            }
            Step::Result(n, says, answer) if n < flying.len() => {
                let (ticket, pass) = flying.remove(n);
                let outcome = match says {
                    0..4 => Outcome::Success,
                    4 => Outcome::Neutral,
                    _ => Failure::transient().into(),
                };
                let applied = run.tell(ticket, outcome, answer.map(u64::from));
                assert_eq!(applied, pass.age == model.age);
                model.result(pass, outcome, answer);
            }
            Step::Drop(n) if n < flying.len() => {
                let (ticket, pass) = flying.remove(n);
                if ticket.role == Role::Probe {
                    run.fence.lose(ticket, &mut run.events);
                }
                model.dropped(pass);
            }
            Step::Result(..) | Step::Drop(_) => {}
            Step::CallUnready => {
                let denied = run.fence.refuse_any(&run.rules, run.now, &mut run.events);
                let no = model.refuse_all(count);
                assert_eq!(denied.map(|denied| denied.reason), no.map(|no| no.why));
            }
            Step::ReadinessFailed => {
                let kind = FailureKind::Transient;
                run.fence
                    .readiness_failed(&run.rules, run.now, kind, &mut run.events);
                model.not_ready_ever();
            }
            Step::Extend(turns) => {
                run.fence.extend(number(turns), &mut run.events);
                model.extend(turns);
            }
            Step::Reset => {
                run.fence.reset(&run.rules, &mut run.events);
                model.reset();
            }
            Step::Wait(nanos) => {
                run.now = run.now.saturating_add(Duration::from_nanos(nanos));
                model.now += nanos;
            }
        }
        run.events.begin();
        while let Some(pending) = run.events.next() {
            warned += usize::from(matches!(
                pending,
                Queued::Event(PendingEvent::Warned { .. })
            ));
        }
        assert_eq!(warned, model.warned);
        model.compare(&run);
    }
    assert!(run.now < Timestamp::NEVER);
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 2_000, ..Default::default() })]

    #[test]
    fn the_fence_does_as_the_model(setting in setting(), steps in collection::vec(step(), 0..80)) {
        side_by_side(setting, steps);
    }

    #[test]
    fn a_serial_history_is_decided_as_the_model_decides_it(
        setting in setting(),
        calls in collection::vec((0..3_u8, 0..8_u8, 0..2_u8), 0..80),
    ) {
        let setting = Setting { by_turn: false, ..setting };
        let steps = calls.into_iter().flat_map(|(what, says, answer)| {
            let call = Call { what: Some(what), turn: None, limit: None };
            [Step::Call(call), Step::Result(0, says, Some(answer))]
        });
        side_by_side(setting, steps.collect());
    }
}
