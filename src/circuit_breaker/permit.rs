//! What an admitted call carries until its verdict.

use std::fmt;
use std::time::Duration;

use super::circuit::{Circuit, Role, Ticket};
use crate::cell::{Anchor, Cell};
use crate::clock::Moment;
use crate::event::Event;
use crate::machine::Word;
use crate::outcome::{Failure, FailureKind, Outcome, Recorded};
use crate::refusal::Name;
use crate::sync::Arc;

/// The permit inside a future of ours. Dropped without a verdict it is a cancelled call.
///
/// It is empty, and records nothing, once its verdict is given, and for a call that runs unguarded.
pub(super) struct Admission {
    anchor: Option<Arc<Anchor<Circuit>>>,
    /// When it was admitted, if a verdict may depend on how long the call ran.
    started: Moment,
    ticket: Ticket,
}

impl Admission {
    pub(super) fn new(anchor: Arc<Anchor<Circuit>>, ticket: Ticket) -> Self {
        let cell = anchor.cell();
        let started = if cell.rules().are_timed() {
            cell.now()
        } else {
            Moment::START
        };
        Self {
            anchor: Some(anchor),
            started,
            ticket,
        }
    }

    /// The permit of a call that `word` lets through with all others.
    #[inline]
    pub(super) fn plain(anchor: Arc<Anchor<Circuit>>, word: Word) -> Self {
        Self {
            anchor: Some(anchor),
            started: Moment::START,
            ticket: Ticket::ordinary(word),
        }
    }

    #[inline]
    pub(super) fn none() -> Self {
        Self {
            anchor: None,
            started: Moment::START,
            ticket: Ticket {
                generation: 0,
                role: Role::Ordinary,
            },
        }
    }

    /// Whether a verdict would be recorded.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.anchor.is_some()
    }

    pub(super) fn is_probe(&self) -> bool {
        self.anchor.is_some() && self.ticket.role == Role::Probe
    }

    /// Gives the verdict, once.
    #[inline]
    pub(super) fn record(&mut self, outcome: Outcome) -> Recorded {
        let settled = match outcome {
            // What nearly every call comes to: a look at the word, and no more.
            Outcome::Success if self.is_clean() => true,
            Outcome::Success => self.count_success(),
            Outcome::Failure(failure) if failure.is_plain() => self.count_failure(failure.kind()),
            _ => false,
        };
        if settled {
            self.anchor = None;
            return Recorded::Applied;
        }
        self.record_closely(outcome)
    }

    /// Whether a success would change nothing.
    #[inline]
    fn is_clean(&self) -> bool {
        match &self.anchor {
            Some(anchor) => anchor.cell().word().is_clean_in(self.ticket.generation),
            None => false,
        }
    }

    // The next two count what needs neither the clock nor the lock. Out of line, and without anything to drop, a handful of registers is all
    // they need.

    #[inline(never)]
    fn count_success(&self) -> bool {
        let Some(anchor) = &self.anchor else {
            return false;
        };
        let rules = anchor.cell().rules();
        anchor.cell().update(|word| match word.is_timed() {
            true => None,
            false => Circuit::shortcut(word, self.ticket, Outcome::Success, rules),
        })
    }

    #[inline(never)]
    fn count_failure(&self, kind: FailureKind) -> bool {
        let Some(anchor) = &self.anchor else {
            return false;
        };
        let rules = anchor.cell().rules();
        let outcome = Failure::of(kind).into();
        anchor
            .cell()
            .update(|word| Circuit::shortcut(word, self.ticket, outcome, rules))
    }

    #[cold]
    fn record_closely(&mut self, outcome: Outcome) -> Recorded {
        let Some(anchor) = self.anchor.take() else {
            return Recorded::Stale;
        };
        let cell = anchor.cell();
        self.settle(cell, cell.rules().judge(outcome, || self.ran(cell)))
    }

    /// The verdict of a call that panicked.
    #[cold]
    pub(super) fn fail(&mut self) {
        self.record(Failure::transient().into());
    }

    /// The verdict of a call that was dropped, by the rule for such calls.
    #[cold]
    pub(super) fn cancel(&mut self) {
        if let Some(anchor) = self.anchor.take() {
            let cell = anchor.cell();
            if let Some(outcome) = cell.rules().on_cancel.judge(|| self.ran(cell)) {
                self.settle(cell, outcome);
            }
        }
    }

    /// Records an outcome that is judged already.
    fn settle(&self, cell: &Cell<Circuit>, outcome: Outcome) -> Recorded {
        if cell.update(|word| Circuit::shortcut(word, self.ticket, outcome, cell.rules())) {
            return Recorded::Applied;
        }
        let now = cell.now();
        let recorded = cell
            .step(|circuit, rules, notes| circuit.record(rules, now, self.ticket, outcome, notes));
        if recorded == Recorded::Stale && cell.observed() {
            cell.tell(&Event::LateVerdict {
                name: cell.name().map(Name::as_str),
                generation: self.ticket.generation,
                outcome,
            });
        }
        recorded
    }

    fn ran(&self, cell: &Cell<Circuit>) -> Duration {
        cell.now().since(self.started)
    }
}

impl Drop for Admission {
    #[inline]
    fn drop(&mut self) {
        if self.anchor.is_some() {
            self.cancel();
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("guarded", &self.anchor.is_some())
            .field("generation", &self.ticket.generation)
            .field("probe", &self.is_probe())
            .finish()
    }
}

/// The right to make one call, taken by hand from a handle. It ends in a verdict.
///
/// Dropped without one it is a cancelled call, by the rule that
/// [`on_cancel`](super::CircuitBreakerLayer::on_cancel) set; dropped while its thread panics, a failure.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once is a cancelled call"]
pub struct Permit {
    admission: Admission,
}

impl Permit {
    pub(super) fn new(admission: Admission) -> Self {
        Self { admission }
    }

    /// Whether the call is the one that tests recovery.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.admission.is_probe()
    }

    /// The call succeeded.
    pub fn success(self) -> Recorded {
        self.record(Outcome::Success)
    }

    /// The call failed, and may fare better next time.
    pub fn failure(self) -> Recorded {
        self.record(Failure::transient())
    }

    /// The verdict in full. Answers whether it counted, or was of an older generation.
    pub fn record(mut self, outcome: impl Into<Outcome>) -> Recorded {
        self.admission.record(outcome.into())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.admission.fail();
        }
    }
}
