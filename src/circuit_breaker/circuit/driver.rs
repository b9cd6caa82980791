//! A circuit driven as a cell drives it, and checked at every step.

use std::time::Duration;

use super::{
    Circuit, CircuitBreakerSnapshot, Denied, PendingEvent, Phase, Recorded, Role, Rules, State,
    Ticket,
};
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::{EventQueue, Queued};
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::Outcome;

/// A circuit and the word that mirrors it, at a time that the test sets.
///
/// Whatever is asked or told here goes the lock-free way where there is one, and every time the other way is taken too, on a
/// copy, and has to agree.
#[derive(Clone)]
pub(super) struct Driver {
    pub(super) rules: Rules,
    pub(super) now: Timestamp,
    /// Behind the word in what lock-free callers counted.
    pub(super) circuit: Circuit,
    pub(super) packed: PackedState,
    /// The moment beside the word, which a frame may renew without the circuit.
    deadline: Timestamp,
    told: Vec<PendingEvent>,
    /// How many verdicts and gate answers needed the word alone.
    pub(super) lock_free: usize,
}

impl Driver {
    pub(super) fn new(rules: Rules) -> Self {
        Self::with_seed(rules, 0)
    }

    pub(super) fn with_seed(rules: Rules, seed: u64) -> Self {
        let circuit = Circuit::new(&rules, seed);
        Self::of(rules, circuit, Timestamp::START)
    }

    pub(super) fn of(rules: Rules, circuit: Circuit, now: Timestamp) -> Self {
        Self {
            rules,
            now,
            packed: circuit.packed(),
            deadline: circuit.deadline(),
            circuit,
            told: Vec::new(),
            lock_free: 0,
        }
    }

    // ===== time =====

    /// Sets the time, counted from the start.
    pub(super) fn at(&mut self, since_start: Duration) -> &mut Self {
        self.now = Timestamp::START.saturating_add(since_start);
        self
    }

    pub(super) fn advance(&mut self, by: Duration) -> &mut Self {
        self.now = self.now.saturating_add(by);
        self
    }

    // ===== the gate and the oracle =====

    /// The gate.
    pub(super) fn try_acquire(&mut self) -> Result<Ticket, Denied> {
        let foretold = self.would_allow();
        let before = self.settled();
        let answer = match self.try_acquire_lock_free() {
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
        uncounted.take_over(self.circuit.packed(), self.deadline);
        let again = uncounted.would_allow(&self.rules, self.now);
        assert_eq!(
            answer, again,
            "what was counted in the packed matters to it"
        );
        if let Some(glanced) = self.try_acquire_lock_free() {
            assert_eq!(glanced.map(|_| ()), answer, "the packed tells otherwise");
            let mut copy = self.settled();
            let gate = copy.try_acquire(&self.rules, self.now, &mut EventQueue::default());
            assert_eq!(glanced, gate, "the gate tells otherwise than the packed");
            assert_eq!(copy, self.settled(), "the gate had more to do");
        }
        let busy =
            Circuit::try_acquire_lock_free(PackedState::BUSY, || Some(self.deadline), || self.now);
        assert_eq!(busy, None);
        answer
    }

    /// What the word alone tells.
    pub(super) fn try_acquire_lock_free(&self) -> Option<Result<Ticket, Denied>> {
        Circuit::try_acquire_lock_free(self.packed, || Some(self.deadline), || self.now)
    }

    // ===== verdicts =====

    pub(super) fn record(&mut self, ticket: Ticket, outcome: impl Into<Outcome>) -> Recorded {
        let outcome = outcome.into();
        let Some(packed) = Circuit::record_lock_free(self.packed, ticket, outcome, &self.rules)
        else {
            return self.step(|circuit, rules, now, events| {
                circuit.record(rules, now, ticket, outcome, events)
            });
        };
        let mut by_the_lock = self.settled();
        let mut events = EventQueue::default();
        let recorded = by_the_lock.record(&self.rules, self.now, ticket, outcome, &mut events);
        assert_eq!(recorded, Recorded::Applied);
        assert_eq!(events.next(), None, "a record_lock_free past an event");
        self.packed = packed;
        assert_eq!(
            self.settled(),
            by_the_lock,
            "the record_lock_free leads elsewhere"
        );
        assert_eq!(by_the_lock.packed(), packed, "the packed is not the mirror");
        self.lock_free += 1;
        recorded
    }

    /// A frame of the call whose ticket this is. Answers whether its lease started anew.
    pub(super) fn renew(&mut self, ticket: Ticket) -> bool {
        let before = self.settled();
        let renewed = Circuit::renewed(self.packed, self.deadline, ticket, &self.rules, self.now);
        // By the machine itself: its verdict would count, and it is the probe's.
        let mut judged = before.clone();
        let mut events = EventQueue::default();
        let (rules, now) = (&self.rules, self.now);
        let recorded = judged.record(rules, now, ticket, Outcome::Neutral, &mut events);
        let lives = recorded == Recorded::Applied && before.phase == Phase::Probing;
        assert_eq!(renewed.is_some(), lives, "the machine tells otherwise");
        let Some(deadline) = renewed else {
            return false;
        };
        assert!(deadline >= self.deadline, "a frame shortened the lease");
        assert_eq!(deadline, now.saturating_add(rules.probe_timeout));
        assert_eq!(
            (events.next(), judged.phase),
            (None, Phase::Vacant),
            "it was the probe's slot"
        );
        self.deadline = deadline;
        // Nothing but the moment is another, as if the probe had begun now.
        let after = self.settled();
        assert_eq!(after, Circuit { deadline, ..before });
        assert_eq!(after.packed(), self.packed, "a frame moved the packed");
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
        uncounted.take_over(self.circuit.packed(), self.deadline);
        let snapshot = uncounted.snapshot(self.packed, &self.rules, self.now);
        let settled = self.settled();
        let again = settled.snapshot(settled.packed(), &self.rules, self.now);
        assert_eq!(
            snapshot, again,
            "the snapshot misses what the packed counted"
        );
        snapshot
    }

    pub(super) fn state(&self) -> State {
        self.snapshot().state
    }

    pub(super) fn retention(&self) -> Retention {
        self.settled().retention(&self.rules, self.now)
    }

    pub(super) fn packed(&self) -> PackedState {
        self.packed
    }

    /// The circuit as the next step would find it.
    pub(super) fn settled(&self) -> Circuit {
        let mut circuit = self.circuit.clone();
        circuit.take_over(self.packed, self.deadline);
        circuit
    }

    /// What there was to tell since the last time, in order.
    pub(super) fn events(&mut self) -> Vec<PendingEvent> {
        std::mem::take(&mut self.told)
    }

    fn step<R>(
        &mut self,
        f: impl FnOnce(&mut Circuit, &Rules, Timestamp, &mut EventQueue<PendingEvent>) -> R,
    ) -> R {
        let mut events = EventQueue::default();
        self.circuit.take_over(self.packed, self.deadline);
        let generation = self.circuit.generation;
        let was = self.deadline;
        let result = f(&mut self.circuit, &self.rules, self.now, &mut events);
        self.packed = self.circuit.packed();
        self.deadline = self.circuit.deadline();
        if was <= self.now && self.circuit.generation != generation {
            assert_ne!(self.deadline, was, "a late frame would take it for its own");
        }
        while let Some(told) = events.next() {
            match told {
                Queued::Event(pending) => self.told.push(pending),
                Queued::Missed(_) => unreachable!("one step has few events"),
            }
        }
        result
    }
}
