//! A chain that tests drive: with its rules, its events, and a clock that counts seconds.

use std::time::Duration;

use super::event::PendingEvent;
use super::{Chain, Phase, Readied, Role, Rules, Server, Ticket};
use crate::fallback::FallbackSnapshot;
use crate::machinery::clock::Timestamp;
use crate::machinery::denied::Denied;
use crate::machinery::event_queue::{EventQueue, Queued};
use crate::machinery::machine::Machine;
use crate::vocabulary::{Failure, FallbackState, Outcome, Reason, Recorded, TransitionReason};

pub(super) const PRIMARY: Server = Server::Primary(Role::Ordinary);
pub(super) const PROBE: Server = Server::Primary(Role::Probe);
pub(super) const ASIDE: Server = Server::Primary(Role::Uncounted);
pub(super) const A: Server = Server::Entry(0);
pub(super) const B: Server = Server::Entry(1);

/// A chain of the entries `a` and `b`, with the defaults unless a test sets something else.
pub(super) struct Driver {
    pub(super) chain: Chain,
    pub(super) rules: Rules,
    queue: EventQueue<PendingEvent>,
    /// Seconds since the start.
    pub(super) now: u64,
}

impl Driver {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(set: impl FnOnce(&mut Rules)) -> Self {
        let mut rules = Rules::new("p".into());
        rules.entries = vec!["a".into(), "b".into()];
        set(&mut rules);
        Self {
            chain: Chain::new(&rules),
            rules,
            queue: EventQueue::default(),
            now: 0,
        }
    }

    // ===== time =====

    /// Sets the time, in seconds since the start.
    pub(super) fn at(&mut self, seconds: u64) -> &mut Self {
        assert!(seconds >= self.now);
        self.now = seconds;
        self
    }

    pub(super) fn now(&self) -> Timestamp {
        timestamp(self.now)
    }

    // ===== a turn begins =====

    /// Begins a turn of a caller whose primary is ready, and checks that the oracle agrees.
    pub(super) fn begin(&mut self) -> Result<Ticket, Denied> {
        let oracle = self.chain.would_serve(&self.rules, self.now());
        let gate = self.begin_with(Readied::Primary);
        assert_eq!(gate.map(|ticket| ticket.server), oracle);
        gate
    }

    pub(super) fn begin_with(&mut self, readied: Readied) -> Result<Ticket, Denied> {
        let now = self.now();
        self.chain.begin(&self.rules, now, readied, &mut self.queue)
    }

    /// Begins a turn that `server` must serve.
    pub(super) fn served_by(&mut self, server: Server) -> Ticket {
        let ticket = self.begin().expect("admitted");
        assert_eq!(ticket.server, server);
        ticket
    }

    /// Begins a turn that must be refused. Returns the reason, and the seconds to wait.
    pub(super) fn refused(&mut self) -> (Reason, Option<u64>) {
        let denied = self.begin().expect_err("refused");
        (denied.reason, denied.wait.map(|wait| wait.as_secs()))
    }

    // ===== a turn ends =====

    pub(super) fn record(&mut self, ticket: Ticket, outcome: impl Into<Outcome>) -> Recorded {
        let now = self.now();
        self.chain
            .record(&self.rules, now, ticket, outcome.into(), &mut self.queue)
    }

    /// A whole turn that `server` must serve.
    pub(super) fn turn(&mut self, server: Server, outcome: impl Into<Outcome>) -> Recorded {
        let ticket = self.served_by(server);
        self.record(ticket, outcome)
    }

    pub(super) fn fails(&mut self, server: Server) -> Recorded {
        self.turn(server, Failure::transient())
    }

    pub(super) fn succeeds(&mut self, server: Server) -> Recorded {
        self.turn(server, Outcome::Success)
    }

    /// Lets the primary fail until it trips.
    pub(super) fn trip(&mut self) -> &mut Self {
        for _ in 0..self.rules.trip_threshold {
            self.fails(PRIMARY);
        }
        assert_eq!(self.state(), FallbackState::Fallback);
        self
    }

    /// A sign of life of the turn that has `ticket`. Returns whether a lease started anew.
    pub(super) fn renew(&mut self, ticket: Ticket) -> bool {
        let now = self.now();
        renew(&mut self.chain, &self.rules, now, ticket)
    }

    // ===== by hand =====

    pub(super) fn set_disabled(&mut self, index: usize, disabled: bool) {
        self.chain.set_disabled(index, disabled, &mut self.queue);
    }

    pub(super) fn reset(&mut self) {
        let now = self.now();
        self.chain.reset(&self.rules, now, &mut self.queue);
    }

    // ===== what there is to see =====

    pub(super) fn snapshot(&self) -> FallbackSnapshot {
        self.chain
            .snapshot(self.chain.packed(), &self.rules, self.now())
    }

    pub(super) fn state(&self) -> FallbackState {
        self.snapshot().state
    }

    /// The seconds until the primary is probed.
    pub(super) fn until_probe(&self) -> Option<u64> {
        let left = self.snapshot().time_until_probe;
        left.map(|left| {
            assert_eq!(left.subsec_nanos(), 0);
            left.as_secs()
        })
    }

    /// The strikes of each entry.
    pub(super) fn strikes(&self) -> Vec<u32> {
        let entries = self.snapshot().entries;
        entries.iter().map(|entry| entry.strikes).collect()
    }

    /// Takes the events since it was asked last.
    pub(super) fn events(&mut self) -> Vec<PendingEvent> {
        let mut all = Vec::new();
        if self.queue.begin() {
            while let Some(Queued::Event(event)) = self.queue.next() {
                all.push(event);
            }
        }
        all
    }

    /// Takes the events, and returns the transitions among them.
    pub(super) fn transitions(&mut self) -> Vec<(FallbackState, FallbackState, TransitionReason)> {
        let events = self.events().into_iter();
        events
            .filter_map(|event| match event {
                PendingEvent::Transition {
                    from, to, reason, ..
                } => Some((from, to, reason)),
                _ => None,
            })
            .collect()
    }
}

/// So many seconds after the start.
pub(super) fn timestamp(seconds: u64) -> Timestamp {
    Timestamp::START.saturating_add(Duration::from_secs(seconds))
}

pub(super) fn rate_limited(seconds: u64) -> Failure {
    Failure::rate_limited().with_retry_after(Duration::from_secs(seconds))
}

/// A sign of life of the turn that has `ticket`. Returns whether a lease started anew.
///
/// It must start anew if and only if the machine would take the turn's verdict for that of the
/// probe in flight.
pub(super) fn renew(chain: &mut Chain, rules: &Rules, now: Timestamp, ticket: Ticket) -> bool {
    let packed = chain.packed();
    let was = chain.deadline();
    let renewed = Chain::renewed(packed, was, ticket, rules, now);
    let in_flight = chain.phase == Phase::Probing
        && ticket.server == PROBE
        && chain.clone().record(
            rules,
            now,
            ticket,
            Outcome::Neutral,
            &mut EventQueue::default(),
        ) == Recorded::Applied;
    assert_eq!(renewed.is_some(), in_flight, "the machine disagrees");
    let Some(deadline) = renewed else {
        return false;
    };
    assert!(deadline >= was, "a frame shortened the lease");
    assert_eq!(deadline, now.saturating_add(rules.probe_timeout));
    // Only the deadline has changed.
    let expected = Chain {
        deadline,
        ..chain.clone()
    };
    chain.take_over(packed, deadline);
    assert_eq!(*chain, expected);
    assert_eq!(chain.packed(), packed, "a frame changed the packed state");
    true
}
