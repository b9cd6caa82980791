//! A fence that tests drive by hand.
//!
//! The driver asks each question in every way there is, and compares the answers.

use super::call::{CallFacts, Denied, Ticket};
use super::packed::PendingEvent;
use super::{Fence, Rules};
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::{EventQueue, Queued};
use crate::machinery::machine::Machine;
use crate::tripwire::digest::Digest;
use crate::tripwire::snapshot::TripwireSnapshot;
use crate::vocabulary::{Failure, Outcome, Reason, State, TransitionReason};

pub(super) type Answer = Result<Ticket, Denied>;

/// A fence, its rules, its time and its events.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) rules: Rules,
    pub(super) fence: Fence,
    pub(super) now: Timestamp,
    pub(super) events: EventQueue<PendingEvent>,
}

impl Run {
    pub(super) fn of(rules: Rules) -> Self {
        Self {
            fence: Fence::new(&rules),
            rules,
            now: Timestamp::START,
            events: EventQueue::default(),
        }
    }

    pub(super) fn new() -> Self {
        Self::of(Rules::default())
    }

    /// Asks the gate. The oracle, the fast path and the refusal of an unread call must agree.
    pub(super) fn ask(&mut self, facts: &CallFacts) -> Answer {
        let oracle = self.fence.would_allow(&self.rules, self.now, facts);
        if !self.fence.would_allow_some(self.now) {
            assert!(!oracle, "the oracle allows a call where none is allowed");
            let mut unread = self.fence.clone();
            let denied =
                unread.refuse_if_none_allowed(&self.rules, self.now, &mut EventQueue::default());
            let gate = self
                .fence
                .try_acquire(&self.rules, self.now, facts, &mut self.events);
            assert_eq!(denied, gate.err(), "an unread call is refused alike");
            assert_eq!(unread, self.fence);
            return gate;
        }
        let mut fast = self.fence.clone();
        let fast_path = fast.try_acquire_fast(&self.rules, facts);
        let packed = self.fence.packed();
        let gate = self
            .fence
            .try_acquire(&self.rules, self.now, facts, &mut self.events);
        assert_eq!(oracle, gate.is_ok(), "the oracle answers as the gate");
        if let Some(ticket) = fast_path {
            let reached = (Ok(ticket), &fast);
            assert_eq!(reached, (gate, &self.fence), "the fast path does the same");
            assert_eq!(packed, self.fence.packed(), "the packed state stays");
        } else {
            assert_eq!(fast.packed(), packed, "nothing has changed");
        }
        gate
    }

    pub(super) fn call(&mut self, call: u64) -> Answer {
        self.ask(&facts(call))
    }

    pub(super) fn call_in(&mut self, turn: u64, call: u64) -> Answer {
        self.ask(&CallFacts {
            turn: Some(Digest::of(&turn)),
            ..facts(call)
        })
    }

    /// Gives a verdict, without the lock where that is enough. Both ways must agree.
    pub(super) fn tell(&mut self, ticket: Ticket, outcome: Outcome, answer: Option<u64>) -> bool {
        let answer = answer.map(|answer| Digest::of(&answer));
        let counted = Fence::record_lock_free(self.fence.packed(), ticket, outcome, &self.rules);
        if let (Some(packed), None) = (counted, answer) {
            let mut locked = self.fence.clone();
            self.fence.take_over(packed, self.fence.deadline());
            assert!(locked.record(
                &self.rules,
                ticket,
                outcome,
                None,
                &mut EventQueue::default()
            ));
            assert_eq!(locked, self.fence, "with and without the lock alike");
            return true;
        }
        self.fence
            .record(&self.rules, ticket, outcome, answer, &mut self.events)
    }

    pub(super) fn ok(&mut self, call: u64) {
        let ticket = self.call(call).unwrap();
        assert!(self.tell(ticket, Outcome::Success, None));
    }

    pub(super) fn fail(&mut self, call: u64) {
        let ticket = self.call(call).unwrap();
        assert!(self.tell(ticket, Failure::transient().into(), None));
    }

    /// Makes so many calls, which must be refused because the fence had tripped before.
    pub(super) fn refused(&mut self, calls: u32) {
        for _ in 0..calls {
            let denied = self.call(999).unwrap_err();
            assert_eq!(denied.reason, Reason::TripwireOpen);
        }
    }

    pub(super) fn answered(&mut self, call: u64, answer: u64) {
        let ticket = self.call(call).unwrap();
        assert!(self.tell(ticket, Outcome::Success, Some(answer)));
    }

    pub(super) fn reason_of(&mut self, call: u64) -> Reason {
        self.call(call).unwrap_err().reason
    }

    pub(super) fn snapshot(&self) -> TripwireSnapshot {
        self.fence
            .snapshot(self.fence.packed(), &self.rules, self.now)
    }

    pub(super) fn state(&self) -> State {
        self.snapshot().state
    }

    /// A fence that three errors tripped, none of them of call 1, and that has one probe armed.
    pub(super) fn armed() -> Self {
        let mut run = Self::new();
        for call in 10..13 {
            run.fail(call);
        }
        run.refused(4);
        assert_eq!(run.state(), State::HalfOpen);
        run
    }

    pub(super) fn transitions(&mut self) -> Vec<(State, State, TransitionReason)> {
        let mut transitions = Vec::new();
        self.events.begin();
        while let Some(pending) = self.events.next() {
            if let Queued::Event(PendingEvent::Transition {
                from, to, reason, ..
            }) = pending
            {
                transitions.push((from, to, reason));
            }
        }
        transitions
    }
}

pub(super) fn facts(call: u64) -> CallFacts {
    CallFacts {
        digest: Some(Digest::of(&call)),
        turn: None,
        limit: None,
    }
}

pub(super) fn exempt() -> CallFacts {
    CallFacts {
        digest: None,
        turn: None,
        limit: None,
    }
}
