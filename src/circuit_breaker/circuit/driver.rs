//! A circuit driven as a cell drives it, and checked at every step.

use std::time::Duration;

use super::{
    Circuit, CircuitBreakerSnapshot, Denied, Note, Phase, Recorded, Role, Rules, State, Ticket,
};
use crate::clock::Moment;
use crate::machine::{Machine, Notes, Rest, Told, Word};
use crate::outcome::Outcome;

/// A circuit and the word that mirrors it, at a time that the test sets.
///
/// Whatever is asked or told here goes the lock-free way where there is one, and every time the other way is taken too, on a
/// copy, and has to agree.
#[derive(Clone)]
pub(super) struct Driver {
    pub(super) rules: Rules,
    pub(super) now: Moment,
    /// Behind the word in what lock-free callers counted.
    pub(super) circuit: Circuit,
    pub(super) word: Word,
    /// The moment beside the word, which a frame may renew without the circuit.
    until: Moment,
    told: Vec<Note>,
    /// How many verdicts and gate answers needed the word alone.
    pub(super) lock_free: usize,
}

impl Driver {
    pub(super) fn new(rules: Rules) -> Self {
        Self::with_seed(rules, 0)
    }

    pub(super) fn with_seed(rules: Rules, seed: u64) -> Self {
        let circuit = Circuit::new(&rules, seed);
        Self::of(rules, circuit, Moment::START)
    }

    pub(super) fn of(rules: Rules, circuit: Circuit, now: Moment) -> Self {
        Self {
            rules,
            now,
            word: circuit.word(),
            until: circuit.until(),
            circuit,
            told: Vec::new(),
            lock_free: 0,
        }
    }

    // ===== time =====

    /// Sets the time, counted from the start.
    pub(super) fn at(&mut self, since_start: Duration) -> &mut Self {
        self.now = Moment::START.after(since_start);
        self
    }

    pub(super) fn advance(&mut self, by: Duration) -> &mut Self {
        self.now = self.now.after(by);
        self
    }

    // ===== the gate and the oracle =====

    /// The gate.
    pub(super) fn try_acquire(&mut self) -> Result<Ticket, Denied> {
        let foretold = self.would_allow();
        let before = self.settled();
        let answer = match self.glance() {
            Some(answer) => {
                self.lock_free += 1;
                answer
            }
            None => self.step(Circuit::try_acquire),
        };
        assert_eq!(answer.map(|_| ()), foretold, "the oracle is not the gate");
        let after = self.settled();
        match answer {
            Ok(ticket) => {
                assert_eq!(ticket.generation, after.generation);
                let probe = after.phase == Phase::Probing;
                assert_eq!(ticket.role == Role::Probe, probe);
            }
            Err(_) if before.phase == after.phase => {
                assert_eq!(before, after, "a refusal changed something");
            }
            Err(_) => assert_eq!((before.phase, after.phase), (Phase::Probing, Phase::Open)),
        }
        answer
    }

    /// The oracle, asked more than once.
    pub(super) fn would_allow(&self) -> Result<(), Denied> {
        let answer = self.settled().would_allow(&self.rules, self.now);
        let mut uncounted = self.circuit.clone();
        uncounted.adopt(self.circuit.word(), self.until);
        let again = uncounted.would_allow(&self.rules, self.now);
        assert_eq!(answer, again, "what was counted in the word matters to it");
        if let Some(glanced) = self.glance() {
            assert_eq!(glanced.map(|_| ()), answer, "the word tells otherwise");
            let mut copy = self.settled();
            let gate = copy.try_acquire(&self.rules, self.now, &mut Notes::default());
            assert_eq!(glanced, gate, "the gate tells otherwise than the word");
            assert_eq!(copy, self.settled(), "the gate had more to do");
        }
        let busy = Circuit::glance(Word::BUSY, || Some(self.until), || self.now);
        assert_eq!(busy, None);
        answer
    }

    /// What the word alone tells.
    pub(super) fn glance(&self) -> Option<Result<Ticket, Denied>> {
        Circuit::glance(self.word, || Some(self.until), || self.now)
    }

    // ===== verdicts =====

    pub(super) fn record(&mut self, ticket: Ticket, outcome: impl Into<Outcome>) -> Recorded {
        let outcome = outcome.into();
        let Some(word) = Circuit::shortcut(self.word, ticket, outcome, &self.rules) else {
            return self.step(|circuit, rules, now, notes| {
                circuit.record(rules, now, ticket, outcome, notes)
            });
        };
        let mut by_the_lock = self.settled();
        let mut notes = Notes::default();
        let recorded = by_the_lock.record(&self.rules, self.now, ticket, outcome, &mut notes);
        assert_eq!(recorded, Recorded::Applied);
        assert_eq!(notes.next(), None, "a shortcut past an event");
        self.word = word;
        assert_eq!(self.settled(), by_the_lock, "the shortcut leads elsewhere");
        assert_eq!(by_the_lock.word(), word, "the word is not the mirror");
        self.lock_free += 1;
        recorded
    }

    /// A frame of the call whose ticket this is. Answers whether its lease started anew.
    pub(super) fn renew(&mut self, ticket: Ticket) -> bool {
        let before = self.settled();
        let renewed = Circuit::renewed(self.word, self.until, ticket, &self.rules, self.now);
        // By the machine itself: its verdict would count, and it is the probe's.
        let mut judged = before.clone();
        let mut notes = Notes::default();
        let (rules, now) = (&self.rules, self.now);
        let recorded = judged.record(rules, now, ticket, Outcome::Neutral, &mut notes);
        let lives = recorded == Recorded::Applied && before.phase == Phase::Probing;
        assert_eq!(renewed.is_some(), lives, "the machine tells otherwise");
        let Some(until) = renewed else { return false };
        assert!(until >= self.until, "a frame shortened the lease");
        assert_eq!(until, now.after(rules.probe_timeout));
        assert_eq!(
            (notes.next(), judged.phase),
            (None, Phase::Vacant),
            "it was the probe's slot"
        );
        self.until = until;
        // Nothing but the moment is another, as if the probe had begun now.
        let after = self.settled();
        assert_eq!(after, Circuit { until, ..before });
        assert_eq!(after.word(), self.word, "a frame moved the word");
        true
    }

    /// A dropped call that ran for `ran`; `None` if it says nothing.
    pub(super) fn cancel(&mut self, ticket: Ticket, ran: Duration) -> Option<Recorded> {
        let outcome = self.rules.on_cancel.judge(|| ran)?;
        Some(self.record(ticket, outcome))
    }

    // ===== by hand =====

    pub(super) fn force_open(&mut self) {
        self.step(Circuit::force_open);
    }

    pub(super) fn reset(&mut self) {
        self.step(Circuit::reset);
    }

    // ===== looking =====

    pub(super) fn snapshot(&self) -> CircuitBreakerSnapshot {
        let mut uncounted = self.circuit.clone();
        uncounted.adopt(self.circuit.word(), self.until);
        let snapshot = uncounted.snapshot(self.word, &self.rules, self.now);
        let settled = self.settled();
        let again = settled.snapshot(settled.word(), &self.rules, self.now);
        assert_eq!(snapshot, again, "the snapshot misses what the word counted");
        snapshot
    }

    pub(super) fn state(&self) -> State {
        self.snapshot().state
    }

    pub(super) fn rest(&self) -> Rest {
        self.settled().rest(&self.rules, self.now)
    }

    pub(super) fn word(&self) -> Word {
        self.word
    }

    /// The circuit as the next step would find it.
    pub(super) fn settled(&self) -> Circuit {
        let mut circuit = self.circuit.clone();
        circuit.adopt(self.word, self.until);
        circuit
    }

    /// What there was to tell since the last time, in order.
    pub(super) fn notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.told)
    }

    fn step<R>(
        &mut self,
        f: impl FnOnce(&mut Circuit, &Rules, Moment, &mut Notes<Note>) -> R,
    ) -> R {
        let mut notes = Notes::default();
        self.circuit.adopt(self.word, self.until);
        let generation = self.circuit.generation;
        let was = self.until;
        let result = f(&mut self.circuit, &self.rules, self.now, &mut notes);
        self.word = self.circuit.word();
        self.until = self.circuit.until();
        if was <= self.now && self.circuit.generation != generation {
            assert_ne!(self.until, was, "a late frame would take it for its own");
        }
        while let Some(told) = notes.next() {
            match told {
                Told::Note(note) => self.told.push(note),
                Told::Missed(_) => unreachable!("one step has few events"),
            }
        }
        result
    }
}
