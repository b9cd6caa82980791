//! The input and the output of a fence: the facts of a call, and a ticket or the reason of a
//! refusal.

use std::time::Duration;

use crate::tripwire::digest::Digest;
use crate::vocabulary::{FailureKind, Name, Reason, Refusal};

/// The facts of a request that a fence needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallFacts {
    /// `None` for a call that is exempt: it is no repeat, and it ends no streak.
    pub(crate) digest: Option<Digest>,
    /// The planner's turn that the call belongs to, if that is known.
    pub(crate) turn: Option<Digest>,
    /// The limit of identical calls of the call's own tool.
    pub(crate) limit: Option<u32>,
}

/// The ticket that an admitted call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    pub(crate) generation: u32,
    /// The call's number among those that have a digest; 0 for an exempt call.
    pub(crate) number: u32,
    pub(crate) role: Role,
}

/// Whether a call is the probe.
// An enum and not a `bool`: the compiler stores the variant of a future in the unused values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Ordinary,
    Probe,
}

/// Why a fence tripped, and the count that reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trip {
    pub(crate) reason: Reason,
    pub(crate) count: Option<u32>,
    /// How many calls repeat: 1 for the same call, or the length of a cycle.
    pub(crate) period: u32,
}

/// Why a call is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) reason: Reason,
    /// The trip that the refusal follows from; `None` if the inner service was not ready.
    pub(crate) trip: Option<Trip>,
    pub(crate) last_failure: Option<FailureKind>,
}

impl Denied {
    /// The inner service was not polled ready for this call. The call may be made again at once.
    pub(crate) const NOT_READY: Self = Self {
        reason: Reason::NotReady,
        trip: None,
        last_failure: None,
    };

    pub(crate) fn refusal(self, name: Option<Name>) -> Refusal {
        let period = self.trip.map_or(1, |trip| trip.period);
        let tripped_by = self
            .trip
            .filter(|_| self.reason == Reason::TripwireOpen)
            .map(|trip| trip.reason);
        let wait = (self.reason == Reason::NotReady).then_some(Duration::ZERO);
        Refusal::tripwire(self.reason, period)
            .with_name(name)
            .with_retry_after(wait)
            .with_last_failure(self.last_failure)
            .with_tripped_by(tripped_by)
            .with_count(self.trip.and_then(|trip| trip.count))
    }
}
