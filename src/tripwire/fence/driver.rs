//! A fence that is driven by hand. Whatever is asked of it is asked in every way there is, and the answers are compared.

use super::{Asked, Denied, Digest, Fence, Note, Outcome, Rules, State, Ticket, TripwireSnapshot};
use super::{Machine, Moment, Notes, Reason, TransitionReason};
use crate::machine::Told;
use crate::outcome::Failure;

pub(super) type Answer = Result<Ticket, Denied>;

/// A fence that is driven by hand.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) rules: Rules,
    pub(super) fence: Fence,
    pub(super) now: Moment,
    pub(super) notes: Notes<Note>,
}

impl Run {
    pub(super) fn of(rules: Rules) -> Self {
        Self {
            fence: Fence::new(&rules),
            rules,
            now: Moment::START,
            notes: Notes::default(),
        }
    }

    pub(super) fn new() -> Self {
        Self::of(Rules::default())
    }

    pub(super) fn ask(&mut self, asked: &Asked) -> Answer {
        let oracle = self.fence.would_allow(&self.rules, self.now, asked);
        if !self.fence.would_allow_some(self.now) {
            assert!(!oracle, "some call is allowed where none is");
            let mut other = self.fence.clone();
            let any = other.refuse_any(&self.rules, self.now, &mut Notes::default());
            let gate = self
                .fence
                .try_acquire(&self.rules, self.now, asked, &mut self.notes);
            assert_eq!(any, gate.err(), "without readiness it is refused alike");
            assert_eq!(other, self.fence);
            return gate;
        }
        let mut quiet = self.fence.clone();
        let quietly = quiet.try_acquire_quietly(&self.rules, asked);
        let word = self.fence.word();
        let gate = self
            .fence
            .try_acquire(&self.rules, self.now, asked, &mut self.notes);
        assert_eq!(oracle, gate.is_ok(), "the oracle is the gate");
        if let Some(ticket) = quietly {
            assert_eq!((Ok(ticket), &quiet), (gate, &self.fence), "quietly");
            assert_eq!(word, self.fence.word(), "no word mirrors it");
        } else {
            assert_eq!(quiet.word(), word, "nothing is changed");
        }
        gate
    }

    pub(super) fn call(&mut self, call: u64) -> Answer {
        self.ask(&asked(call))
    }

    pub(super) fn call_in(&mut self, turn: u64, call: u64) -> Answer {
        self.ask(&Asked {
            turn: Some(Digest::of(&turn)),
            ..asked(call)
        })
    }

    pub(super) fn tell(&mut self, ticket: Ticket, outcome: Outcome, answer: Option<u64>) -> bool {
        let answer = answer.map(|answer| Digest::of(&answer));
        let short = Fence::shortcut(self.fence.word(), ticket, outcome, &self.rules);
        if let (Some(word), None) = (short, answer) {
            let mut long = self.fence.clone();
            self.fence.adopt(word, self.fence.until());
            assert!(long.record(&self.rules, ticket, outcome, None, &mut Notes::default()));
            assert_eq!(long, self.fence, "the shortcut leads to the same place");
            return true;
        }
        self.fence
            .record(&self.rules, ticket, outcome, answer, &mut self.notes)
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
            .snapshot(self.fence.word(), &self.rules, self.now)
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
        self.notes.begin();
        while let Some(note) = self.notes.next() {
            if let Told::Note(Note::Transition {
                from, to, reason, ..
            }) = note
            {
                told.push((from, to, reason));
            }
        }
        told
    }
}

pub(super) fn asked(call: u64) -> Asked {
    Asked {
        digest: Some(Digest::of(&call)),
        turn: None,
        limit: None,
    }
}

pub(super) fn exempt() -> Asked {
    Asked {
        digest: None,
        turn: None,
        limit: None,
    }
}
