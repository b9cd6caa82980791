//! Why a machine does not admit a call.

use std::time::Duration;

use crate::vocabulary::{FailureKind, Name, Reason, Refusal};

/// Why a circuit or a chain does not admit a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) reason: Reason,
    pub(crate) wait: Option<Duration>,
    pub(crate) last: Option<FailureKind>,
}

impl Denied {
    /// The service was not polled ready before the call. The caller may come again at once.
    pub(crate) const NOT_READY: Self = Self {
        reason: Reason::NotReady,
        wait: Some(Duration::ZERO),
        last: None,
    };

    /// Makes the refusal that the caller gets. `by` is the constructor of the layer that refuses.
    #[inline]
    pub(crate) fn refusal(self, by: impl FnOnce(Reason) -> Refusal, name: Option<Name>) -> Refusal {
        by(self.reason)
            .with_name(name)
            .with_retry_after(self.wait)
            .with_last_failure(self.last)
    }
}
