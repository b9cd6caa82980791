//! What an admitted call carries until its verdict.

use std::fmt;
use std::mem;

use super::circuit::{Circuit, Role, Ticket};
use crate::cell::{Anchor, Cell};
use crate::clock::Moment;
use crate::event::Event;
use crate::machine::Word;
use crate::outcome::{Failure, FailureKind, Outcome, Recorded};
use crate::refusal::Name;
use crate::sync::Arc;

/// The permit inside a future or a body of ours. Dropped without a verdict it is a cancelled call.
///
/// It is empty, and records nothing, once its verdict is given, and for a call that runs unguarded.
pub struct Admission {
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

    /// Takes it out; an empty one stays.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::none())
    }

    /// Whether a verdict would be recorded.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.anchor.is_some()
    }

    pub(super) fn is_probe(&self) -> bool {
        self.anchor.is_some() && self.ticket.role == Role::Probe
    }

    /// The call shows a sign of life: the lease of a probe starts anew.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) fn renew(&self) {
        if let (Some(anchor), Role::Probe) = (&self.anchor, self.ticket.role) {
            let cell = anchor.cell();
            cell.renew(|word, until, now| {
                Circuit::renewed(word, until, self.ticket, cell.rules(), now)
            });
        }
    }

    /// Gives the verdict, once.
    #[allow(clippy::inline_always)] // A future's `poll` is the one place that matters, and there it is most of the code.
    #[inline(always)]
    pub(crate) fn record(&mut self, outcome: Outcome) -> Recorded {
        let Some(anchor) = self.anchor.take() else {
            return Recorded::Stale;
        };
        let (cell, ticket) = (anchor.cell(), self.ticket);
        let counted = match outcome {
            // What nearly every call comes to: a look at the word, and no more.
            Outcome::Success => {
                cell.word().is_clean_in(ticket.generation) || count_success(cell, ticket)
            }
            Outcome::Failure(failure) if failure.is_plain() => {
                count_failure(cell, ticket, failure.kind())
            }
            Outcome::Failure(_) | Outcome::Neutral => false,
        };
        if counted {
            return Recorded::Applied;
        }
        record_closely(anchor, self.started, ticket, outcome)
    }

    /// The verdict of a call that panicked.
    #[inline]
    pub(super) fn fail(&mut self) {
        self.record_unwinding(Failure::transient().into());
    }

    /// [`record`](Self::record) where that is rare.
    #[inline]
    pub(super) fn record_unwinding(&mut self, outcome: Outcome) {
        if let Some(anchor) = self.anchor.take() {
            record_closely(anchor, self.started, self.ticket, outcome);
        }
    }

    /// The verdict of a call that was dropped, by the rule for such calls.
    #[inline]
    pub(super) fn cancel(&mut self) {
        if let Some(anchor) = self.anchor.take() {
            cancel(anchor, self.started, self.ticket);
        }
    }
}

// What follows is out of line, and takes the parts of an admission instead of the admission, so that a future that is polled where it was made stays in
// registers: what is lent to a function that is not inlined has to be in memory. What is rare takes the anchor, too, and lets go of it here and
// not in every future.

/// Counts a success where that needs neither the clock nor the lock.
#[inline(never)]
fn count_success(cell: &Cell<Circuit>, ticket: Ticket) -> bool {
    cell.update(|word| {
        if word.is_timed() {
            return None;
        }
        Circuit::shortcut(word, ticket, Outcome::Success, cell.rules())
    })
}

/// Counts a plain failure, likewise.
#[inline(never)]
fn count_failure(cell: &Cell<Circuit>, ticket: Ticket, kind: FailureKind) -> bool {
    let outcome = Failure::of(kind).into();
    cell.update(|word| Circuit::shortcut(word, ticket, outcome, cell.rules()))
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn record_closely(
    anchor: Arc<Anchor<Circuit>>,
    started: Moment,
    ticket: Ticket,
    outcome: Outcome,
) -> Recorded {
    let cell = anchor.cell();
    let outcome = cell.rules().judge(outcome, || cell.now().since(started));
    settle(cell, ticket, outcome)
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn cancel(anchor: Arc<Anchor<Circuit>>, started: Moment, ticket: Ticket) {
    let cell = anchor.cell();
    let ran = || cell.now().since(started);
    if let Some(outcome) = cell.rules().on_cancel.judge(ran) {
        settle(cell, ticket, outcome);
    }
}

/// Records an outcome that is judged already.
fn settle(cell: &Cell<Circuit>, ticket: Ticket, outcome: Outcome) -> Recorded {
    if cell.update(|word| Circuit::shortcut(word, ticket, outcome, cell.rules())) {
        return Recorded::Applied;
    }
    let now = cell.now();
    let recorded = cell.step_unless_retired(|circuit, rules, notes| {
        circuit.record(rules, now, ticket, outcome, notes)
    });
    // Forgotten while the call was in flight: its result is lost, and nobody is told of a circuit that is gone.
    let Ok(recorded) = recorded else {
        return Recorded::Stale;
    };
    if recorded == Recorded::Stale && cell.observed() {
        cell.tell(&Event::LateVerdict {
            name: cell.name().map(Name::as_str),
            generation: ticket.generation,
            outcome,
        });
    }
    recorded
}

impl Drop for Admission {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
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
