//! A fence that is driven by hand. Whatever is asked of it is asked in every way there is, and the answers are compared.

use super::{
    CallFacts, Denied, Digest, Fence, Outcome, PendingEvent, Rules, State, Ticket, TripwireSnapshot,
};
use super::{EventQueue, Machine, Reason, Timestamp, TransitionReason};
use crate::machinery::event_queue::Queued;
use crate::vocabulary::Failure;

pub(super) type Answer = Result<Ticket, Denied>;

/// A fence that is driven by hand.
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

    pub(super) fn ask(&mut self, facts: &CallFacts) -> Answer {
        let oracle = self.fence.would_allow(&self.rules, self.now, facts);
        if !self.fence.would_allow_some(self.now) {
            assert!(!oracle, "some call is allowed where none is");
            let mut other = self.fence.clone();
            let any = other.refuse_any(&self.rules, self.now, &mut EventQueue::default());
            let gate = self
                .fence
                .try_acquire(&self.rules, self.now, facts, &mut self.events);
            assert_eq!(any, gate.err(), "without readiness it is refused alike");
            assert_eq!(other, self.fence);
            return gate;
        }
        let mut quiet = self.fence.clone();
        let update_unmirrored = quiet.try_acquire_fast(&self.rules, facts);
        let packed = self.fence.packed();
        let gate = self
            .fence
            .try_acquire(&self.rules, self.now, facts, &mut self.events);
        assert_eq!(oracle, gate.is_ok(), "the oracle is the gate");
        if let Some(ticket) = update_unmirrored {
            assert_eq!(
                (Ok(ticket), &quiet),
                (gate, &self.fence),
                "update_unmirrored"
            );
            assert_eq!(packed, self.fence.packed(), "no packed mirrors it");
        } else {
            assert_eq!(quiet.packed(), packed, "nothing is changed");
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

    pub(super) fn tell(&mut self, ticket: Ticket, outcome: Outcome, answer: Option<u64>) -> bool {
        let answer = answer.map(|answer| Digest::of(&answer));
        let short = Fence::record_lock_free(self.fence.packed(), ticket, outcome, &self.rules);
        if let (Some(packed), None) = (short, answer) {
            let mut long = self.fence.clone();
            self.fence.take_over(packed, self.fence.deadline());
            assert!(long.record(
                &self.rules,
                ticket,
                outcome,
                None,
                &mut EventQueue::default()
            ));
            assert_eq!(
                long, self.fence,
                "the record_lock_free leads to the same place"
            );
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

    /// Calls whose number does not matter are refused.
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

    /// Tripped by three errors, none of them of call 1, and one probe armed.
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
        let mut told = Vec::new();
        self.events.begin();
        while let Some(pending) = self.events.next() {
            if let Queued::Event(PendingEvent::Transition {
                from, to, reason, ..
            }) = pending
            {
                told.push((from, to, reason));
            }
        }
        told
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
