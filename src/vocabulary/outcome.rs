//! Outcomes: what a call's result says of the guarded thing.

use std::fmt;
use std::time::Duration;

/// The outcome of a call: what its result says about the guarded thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The guarded thing works. A streak of failures ends here.
    Success,
    /// The guarded thing does not work.
    Failure(Failure),
    /// The result says nothing of the guarded thing, as when the caller made a mistake. A streak
    /// neither grows nor ends, no cooldown moves, and a probe gives its slot back at once.
    Neutral,
}

impl Outcome {
    /// Returns the failure of a service whose `poll_ready` gave an error.
    ///
    /// Such a service will never be ready, so this is a failure whatever the classifier says of
    /// the error. The classifier decides only on the kind and the hint.
    pub(crate) fn of_readiness(self) -> Failure {
        match self {
            Outcome::Failure(failure) => failure,
            Outcome::Success | Outcome::Neutral => Failure::transient(),
        }
    }

    /// Adds the hint that came beside a failure, unless the failure has a hint of its own.
    ///
    /// Only failures carry a hint, so other outcomes stay as they are.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) fn hinted(self, hint: impl FnOnce(Failure) -> Option<Duration>) -> Self {
        match self {
            Outcome::Failure(failure) if failure.retry_after.is_none() => match hint(failure) {
                Some(wait) => failure.with_retry_after(wait).into(),
                None => self,
            },
            _ => self,
        }
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Outcome::Failure(failure)
    }
}

/// A failure of the guarded thing: its kind, and how long callers were asked to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    kind: FailureKind,
    retry_after: Option<Duration>,
}

impl Failure {
    /// Makes a failure that may be gone at the next call: an error, a timeout, a `503`.
    #[must_use]
    pub const fn transient() -> Self {
        Self::of(FailureKind::Transient)
    }

    /// Makes a failure by which the guarded thing asked for fewer calls: a `429`.
    #[must_use]
    pub const fn rate_limited() -> Self {
        Self::of(FailureKind::RateLimited)
    }

    /// Makes a failure that later calls will meet as well: the key is revoked, the quota is spent,
    /// the model is gone. It trips at once.
    #[must_use]
    pub const fn fatal() -> Self {
        Self::of(FailureKind::Fatal)
    }

    /// Whether the failure has no hint and does not trip at once.
    pub(crate) const fn is_plain(&self) -> bool {
        self.retry_after.is_none() && !matches!(self.kind, FailureKind::Fatal)
    }

    pub(crate) const fn of(kind: FailureKind) -> Self {
        Self {
            kind,
            retry_after: None,
        }
    }

    /// Adds how long the guarded thing asked callers to wait.
    ///
    /// The wait can only lengthen a cooldown, and a layer's `retry_after_cap` bounds it.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns how long the guarded thing asked callers to wait, if it did.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

/// The kinds of [`Failure`]. Displays in `snake_case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum FailureKind {
    // These numbers stand in a machine's packed state, where 0 means no failure, as it does in an
    // `Option` of this type.
    /// The failure may be gone at the next call.
    Transient = 1,
    /// The guarded thing asked for fewer calls.
    RateLimited = 2,
    /// A later call will fail in the same way.
    Fatal = 3,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FailureKind::Transient => "transient",
            FailureKind::RateLimited => "rate_limited",
            FailureKind::Fatal => "fatal",
        })
    }
}

/// The rule for dropped calls: the outcome that a dropped call has.
///
/// A call is dropped when its future goes away before the verdict: by a timeout outside of the
/// layer, by an aborted task, or by a caller who left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// An ordinary call says nothing. A probe keeps its slot until its lease ends, and then counts
    /// as failed.
    Ignore,
    /// An ordinary call says nothing. A probe gives its slot back at once.
    Release,
    /// The call is a transient failure now.
    Failure,
    /// The call is a transient failure if it ran at least this long. Otherwise as `Release`.
    ///
    /// For a timeout outside of the layer, give a little less than its duration. With this rule
    /// every call reads the clock when it is admitted.
    ///
    /// Where calls are judged at the end of a body, a call runs until then. So a reader who leaves
    /// a long answer halfway has a failed call.
    FailureAfter(Duration),
}

impl Cancelled {
    /// Whether the rule depends on how long the call ran.
    pub(crate) fn is_timed(self) -> bool {
        matches!(self, Cancelled::FailureAfter(_))
    }

    /// Returns what a dropped call says. `None` means that the call says nothing, and that a probe
    /// keeps its slot.
    pub(crate) fn judge(self, ran: impl FnOnce() -> Duration) -> Option<Outcome> {
        match self {
            Cancelled::Ignore => None,
            Cancelled::Failure => Some(Failure::transient().into()),
            Cancelled::FailureAfter(least) if ran() >= least => Some(Failure::transient().into()),
            Cancelled::Release | Cancelled::FailureAfter(_) => Some(Outcome::Neutral),
        }
    }
}

/// Whether a verdict was applied, or was stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recorded {
    /// The verdict was of the current generation, and counted.
    Applied,
    /// The verdict did not count. It came from an older generation, or from an unguarded call,
    /// whose circuit was evicted or which never had one.
    ///
    /// A stale failure restarts the cooldown of a circuit that is open and not pinned. Nothing
    /// else changes.
    Stale,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_its_kind_and_its_hint() {
        let hint = Duration::from_secs(7);
        for (failure, kind, text) in [
            (Failure::transient(), FailureKind::Transient, "transient"),
            (
                Failure::rate_limited(),
                FailureKind::RateLimited,
                "rate_limited",
            ),
            (Failure::fatal(), FailureKind::Fatal, "fatal"),
        ] {
            assert_eq!((failure.kind(), failure.retry_after()), (kind, None));
            let hinted = failure.with_retry_after(hint);
            assert_eq!((hinted.kind(), hinted.retry_after()), (kind, Some(hint)));
            assert_eq!(kind.to_string(), text);
        }
    }
}
