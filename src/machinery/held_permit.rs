//! A permit that a response body holds until its verdict, whatever layer gave it out.
//!
//! The type of a body must not depend on the layer, so the permit's type is erased. The body keeps
//! the permit's reference to its machine as a trait object, and the ticket as plain numbers. The
//! reference exists already, so this costs no allocation. An ordinary frame asks one flag and
//! makes no virtual call.

use std::fmt;
use std::sync::Arc;

use crate::vocabulary::Outcome;

/// The layer's side of a [`HeldPermit`]. Each layer implements it for the reference to its
/// machine.
pub(crate) trait PermitIssuer: Send + Sync {
    /// Gives the verdict of the call with `ticket`.
    fn record(&self, ticket: &ErasedTicket, outcome: Outcome);

    /// Gives the verdict of the call with `ticket`, which was dropped.
    fn cancel(&self, ticket: &ErasedTicket);

    /// Renews the lease of the probe that holds `ticket`. Does nothing if the layer has no leases.
    fn renew(&self, ticket: &ErasedTicket);
}

/// A layer's ticket without its type. Only the layer that made it can read it.
pub(crate) struct ErasedTicket {
    /// The facts about the call that the layer needs.
    pub(crate) parts: [u64; 3],
    /// Whether the call is the probe.
    pub(crate) is_probe: bool,
}

/// A permit whose verdict is still to come. Dropped without a verdict, it is a cancelled call.
pub struct HeldPermit {
    /// `None` once the verdict is given.
    issuer: Option<Arc<dyn PermitIssuer>>,
    ticket: ErasedTicket,
}

impl HeldPermit {
    /// The permit that `issuer` gave out for the call with `ticket`. Without an issuer the call
    /// runs unguarded, and nothing is recorded.
    pub(crate) fn new(issuer: Option<Arc<dyn PermitIssuer>>, ticket: ErasedTicket) -> Self {
        Self { issuer, ticket }
    }

    /// Gives the verdict, once.
    pub(crate) fn record(&mut self, outcome: Outcome) {
        if let Some(issuer) = self.issuer.take() {
            issuer.record(&self.ticket, outcome);
        }
    }

    /// Renews the lease if the call is a probe. The body calls this for each frame.
    #[inline]
    pub(crate) fn renew(&self) {
        if self.ticket.is_probe {
            if let Some(issuer) = &self.issuer {
                issuer.renew(&self.ticket);
            }
        }
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        if let Some(issuer) = self.issuer.take() {
            issuer.cancel(&self.ticket);
        }
    }
}

impl fmt::Debug for HeldPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("guarded", &self.issuer.is_some())
            .field("probe", &self.ticket.is_probe)
            .finish()
    }
}
