//! What a call's result says of the guarded thing.

use std::fmt;
use std::time::Duration;

/// What a call's result says of the guarded thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It works: a streak of failures ends here.
    Success,
    /// It does not work.
    Failure(Failure),
    /// The result says nothing of it, as when the caller made the mistake: a streak neither grows nor
    /// ends, no cooldown moves, and a probe gives its slot back at once.
    Neutral,
}

impl Outcome {
    /// The failure of a service that will never be ready: it has failed, whatever its error says; the classifier, whose outcome this is, may
    /// say how.
    pub(crate) fn of_readiness(self) -> Failure {
        match self {
            Outcome::Failure(failure) => failure,
            Outcome::Success | Outcome::Neutral => Failure::transient(),
        }
    }

    /// A failure with the hint that came beside it, unless it has one of its own. What is no failure asks for nothing.
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

/// A failure of the guarded thing: its kind, and how long it asked callers to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    kind: FailureKind,
    retry_after: Option<Duration>,
}

impl Failure {
    /// A failure that may be gone at the next call: an error, a timeout, a `503`.
    #[must_use]
    pub const fn transient() -> Self {
        Self::of(FailureKind::Transient)
    }

    /// The guarded thing asked for fewer calls: a `429`.
    #[must_use]
    pub const fn rate_limited() -> Self {
        Self::of(FailureKind::RateLimited)
    }

    /// No later call will fare better: the key is revoked, the quota spent, the model gone. It trips at once.
    #[must_use]
    pub const fn fatal() -> Self {
        Self::of(FailureKind::Fatal)
    }

    /// Whether its kind is all there is to it: it carries no hint, and does not trip at once.
    pub(crate) const fn is_plain(&self) -> bool {
        self.retry_after.is_none() && !matches!(self.kind, FailureKind::Fatal)
    }

    pub(crate) const fn of(kind: FailureKind) -> Self {
        Self {
            kind,
            retry_after: None,
        }
    }

    /// Adds how long the guarded thing asked to be left alone. It can only lengthen a cooldown, and a layer's
    /// `retry_after_cap` bounds it.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Which kind of failure it is.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// How long the guarded thing asked to be left alone, if it did.
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
    // The numbers are those of the machines' word, where 0 is none; as it is in an `Option`.
    /// It may be gone at the next call.
    Transient = 1,
    /// The guarded thing asked for fewer calls.
    RateLimited = 2,
    /// No later call will fare better.
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

/// What a call says that was dropped before its verdict: a timeout outside, a task that was aborted, a caller who went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// An ordinary call says nothing. A probe keeps its slot until its lease ends, and then counts as failed.
    Ignore,
    /// Nobody learnt anything: an ordinary call says nothing, and a probe gives its slot back at once.
    Release,
    /// A failure now.
    Failure,
    /// A failure if it ran at least so long, else as `Release`. For a timeout outside, give a little less than its duration. Every call
    /// reads the clock when it is admitted. Where calls are judged at the end of a body, it ran until then: whoever leaves a long answer in
    /// the midst of it has a failed call.
    FailureAfter(Duration),
}

impl Cancelled {
    /// Whether it depends on how long the call ran.
    pub(crate) fn is_timed(self) -> bool {
        matches!(self, Cancelled::FailureAfter(_))
    }

    /// What a dropped call says; `None` if it says nothing, not even that a probe's slot is free.
    pub(crate) fn judge(self, ran: impl FnOnce() -> Duration) -> Option<Outcome> {
        match self {
            Cancelled::Ignore => None,
            Cancelled::Failure => Some(Failure::transient().into()),
            Cancelled::FailureAfter(least) if ran() >= least => Some(Failure::transient().into()),
            Cancelled::Release | Cancelled::FailureAfter(_) => Some(Outcome::Neutral),
        }
    }
}

/// What became of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recorded {
    /// It was of the current generation, and counted.
    Applied,
    /// It came from an older generation, or from a call that nobody guards: its circuit was forgotten, or it had none. A failure while the circuit is open, and
    /// not pinned, has restarted the cooldown; nothing else changed.
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
