//! A circuit driven as a `SharedMachine` drives it, and checked at every step.

use std::time::Duration;

use super::{Circuit, PendingEvent, Phase, Role, Rules, Ticket};
use crate::circuit_breaker::snapshot::CircuitBreakerSnapshot;
use crate::machinery::clock::Timestamp;
use crate::machinery::denied::Denied;
use crate::machinery::event_queue::{EventQueue, Queued};
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{Outcome, Recorded, State};

/// A circuit and its packed state, at a time that the test sets.
///
/// The driver takes the lock-free way where there is one. Each time it also takes the other way,
/// on a copy, and asserts that the two agree.
#[derive(Clone)]
pub(super) struct Driver {
    pub(super) rules: Rules,
    pub(super) now: Timestamp,
    /// Without what lock-free callers have counted since the last step.
    pub(super) circuit: Circuit,
    pub(super) packed: PackedState,
    /// The deadline beside the packed state. A frame may renew it without the circuit.
    deadline: Timestamp,
    delivered: Vec<PendingEvent>,
    /// How many verdicts and answers of the gate were lock-free.
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
            delivered: Vec::new(),
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
        let predicted = self.would_allow();
        let before = self.synced();
        let answer = match self.try_acquire_lock_free() {
            Some(answer) => {
                self.lock_free += 1;
                answer
            }
            None => self.step(Circuit::try_acquire),
        };
        assert_eq!(answer.map(|_| ()), predicted, "the oracle is not the gate");
        let after = self.synced();
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

    /// The oracle, asked in every way.
    pub(super) fn would_allow(&self) -> Result<(), Denied> {
        let answer = self.synced().would_allow(&self.rules, self.now);
        let mut behind = self.circuit.clone();
        behind.take_over(self.circuit.packed(), self.deadline);
        let again = behind.would_allow(&self.rules, self.now);
        assert_eq!(
            answer, again,
            "the oracle depends on what was counted lock-free"
        );
        if let Some(lock_free) = self.try_acquire_lock_free() {
            assert_eq!(
                lock_free.map(|_| ()),
                answer,
                "the lock-free oracle answers otherwise"
            );
            let mut copy = self.synced();
            let gate = copy.try_acquire(&self.rules, self.now, &mut EventQueue::default());
            assert_eq!(
                lock_free, gate,
                "the gate answers otherwise than the lock-free gate"
            );
            assert_eq!(
                copy,
                self.synced(),
                "the gate changed the circuit, and the lock-free gate does not"
            );
        }
        let busy =
            Circuit::try_acquire_lock_free(PackedState::BUSY, || Some(self.deadline), || self.now);
        assert_eq!(busy, None);
        answer
    }

    /// The gate and the oracle, from the packed state alone.
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
        let mut under_lock = self.synced();
        let mut events = EventQueue::default();
        let recorded = under_lock.record(&self.rules, self.now, ticket, outcome, &mut events);
        assert_eq!(recorded, Recorded::Applied);
        assert_eq!(events.next(), None, "a lock-free verdict missed an event");
        self.packed = packed;
        assert_eq!(
            self.synced(),
            under_lock,
            "the lock-free verdict leads elsewhere"
        );
        assert_eq!(
            under_lock.packed(),
            packed,
            "the packed state is no mirror of the circuit"
        );
        self.lock_free += 1;
        recorded
    }

    /// A frame of the call that holds `ticket`. Answers whether the lease starts anew.
    pub(super) fn renew(&mut self, ticket: Ticket) -> bool {
        let before = self.synced();
        let renewed = Circuit::renewed(self.packed, self.deadline, ticket, &self.rules, self.now);
        // The machine itself agrees if a verdict of this call would count as the probe's.
        let mut judged = before.clone();
        let mut events = EventQueue::default();
        let (rules, now) = (&self.rules, self.now);
        let recorded = judged.record(rules, now, ticket, Outcome::Neutral, &mut events);
        let lives = recorded == Recorded::Applied && before.phase == Phase::Probing;
        assert_eq!(renewed.is_some(), lives, "the machine answers otherwise");
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
        // Only the deadline changes, as if the probe had started now.
        let after = self.synced();
        assert_eq!(after, Circuit { deadline, ..before });
        assert_eq!(
            after.packed(),
            self.packed,
            "a frame changed the packed state"
        );
        true
    }

    /// Drops a call that ran for `ran`. `None` if that says nothing.
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
        let mut behind = self.circuit.clone();
        behind.take_over(self.circuit.packed(), self.deadline);
        let snapshot = behind.snapshot(self.packed, &self.rules, self.now);
        let synced = self.synced();
        let again = synced.snapshot(synced.packed(), &self.rules, self.now);
        assert_eq!(
            snapshot, again,
            "the snapshot misses what was counted lock-free"
        );
        snapshot
    }

    pub(super) fn state(&self) -> State {
        self.snapshot().state
    }

    pub(super) fn retention(&self) -> Retention {
        self.synced().retention(&self.rules, self.now)
    }

    pub(super) fn packed(&self) -> PackedState {
        self.packed
    }

    /// The circuit, with the changes of lock-free callers taken over.
    pub(super) fn synced(&self) -> Circuit {
        let mut circuit = self.circuit.clone();
        circuit.take_over(self.packed, self.deadline);
        circuit
    }

    /// The events since the last time, in order.
    pub(super) fn events(&mut self) -> Vec<PendingEvent> {
        std::mem::take(&mut self.delivered)
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
            assert_ne!(
                self.deadline, was,
                "a late frame would renew the new deadline"
            );
        }
        while let Some(queued) = events.next() {
            match queued {
                Queued::Event(pending) => self.delivered.push(pending),
                Queued::Missed(_) => unreachable!("one step has few events"),
            }
        }
        result
    }
}
