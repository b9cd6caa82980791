//! What a call's result says of the guarded thing, and who decides it.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::clock::Moment;
use crate::refusal;

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

    /// The end of a cooldown that ran until `until`, and that this failure, a stale one, restarts at `now`.
    pub(crate) fn restarts(
        self,
        until: Moment,
        now: Moment,
        cooldown: Duration,
        cap: Duration,
    ) -> Moment {
        let restarted = until
            .max(now.after(cooldown))
            .max(self.asked_until(now, cap));
        // One that is not ahead says no more than the one that is over; which may be that of a lease that ended just now, and is no other's.
        if restarted > now { restarted } else { until }
    }

    /// Until when it asked to be left alone, at most for `cap`; [`Moment::START`] if it did not ask.
    pub(crate) fn asked_until(self, now: Moment, cap: Duration) -> Moment {
        self.retry_after
            .map_or(Moment::START, |wait| now.after(wait.min(cap)))
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

/// Decides what a call's result says of the guarded thing.
///
/// Closures of the same shape are classifiers; annotate their argument. A classifier runs outside every lock. If it panics,
/// the call counts as cancelled and the panic goes on to the caller.
///
/// # Examples
///
/// A tool that reports its errors inside a success:
///
/// ```
/// use tower_breaker::{CircuitBreakerLayer, ErrorsAsFailures, Classify, Failure, Outcome};
///
/// struct ToolResult { is_error: bool }
///
/// let layer = CircuitBreakerLayer::new().classify(|result: Result<&ToolResult, &std::io::Error>| match result {
///     Ok(answer) if answer.is_error => Outcome::Failure(Failure::transient()),
///     other => ErrorsAsFailures.classify(other),
/// });
/// # let _ = layer;
/// ```
pub trait Classify<Res, E> {
    /// What `result` says of the guarded thing.
    fn classify(&self, result: Result<&Res, &E>) -> Outcome;
}

impl<F, Res, E> Classify<Res, E> for F
where
    // One lifetime for both, which functions of two have as well.
    F: for<'a> Fn(Result<&'a Res, &'a E>) -> Outcome,
{
    fn classify(&self, result: Result<&Res, &E>) -> Outcome {
        self(result)
    }
}

/// The classifier of a circuit breaker and of a tripwire unless told otherwise: an error is a transient failure, everything else a
/// success.
///
/// A [`Refusal`](crate::Refusal) of one of this crate's layers further inside is [`Outcome::Neutral`]: it
/// says that a call was not attempted, and nothing of the thing itself. It is recognised as the service returns
/// it: a `Refusal`, or a boxed error that holds one anywhere in its chain of sources. A typed error that hides one in
/// its `source()` needs a classifier that looks, with [`Refusal::find`](crate::Refusal::find).
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorsAsFailures;

impl<Res, E: 'static> Classify<Res, E> for ErrorsAsFailures {
    fn classify(&self, result: Result<&Res, &E>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(err) if refusal::in_error(err as &dyn Any).is_some() => Outcome::Neutral,
            Err(_) => Outcome::Failure(Failure::transient()),
        }
    }
}

/// The classifier of a fallback unless told otherwise: an error is a transient failure, and so is a refusal of one of this crate's
/// layers further inside, because a model that is refused did not answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalsAsFailures;

impl<Res, E> Classify<Res, E> for RefusalsAsFailures {
    fn classify(&self, result: Result<&Res, &E>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::Failure(Failure::transient()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoxError;
    use crate::refusal::{Reason, Refusal};

    type Answer = Result<(), BoxError>;

    fn classify<C: Classify<(), BoxError>>(classifier: &C, answer: &Answer) -> Outcome {
        classifier.classify(answer.as_ref())
    }

    fn refused() -> Answer {
        Err(Refusal::breaker(Reason::CircuitOpen).into())
    }

    #[test]
    fn an_error_is_a_transient_failure_and_a_response_a_success() {
        assert_eq!(classify(&ErrorsAsFailures, &Ok(())), Outcome::Success);
        let failure = Outcome::from(Failure::transient());
        assert_eq!(classify(&ErrorsAsFailures, &Err("down".into())), failure);
        assert_eq!(classify(&RefusalsAsFailures, &Ok(())), Outcome::Success);
        assert_eq!(classify(&RefusalsAsFailures, &Err("down".into())), failure);
    }

    #[test]
    fn a_refusal_from_further_inside_is_neutral_for_one_and_a_failure_for_the_other() {
        assert_eq!(classify(&ErrorsAsFailures, &refused()), Outcome::Neutral);
        assert_eq!(
            classify(&RefusalsAsFailures, &refused()),
            Outcome::Failure(Failure::transient())
        );
    }

    #[test]
    fn a_refusal_that_is_the_error_type_itself_is_neutral() {
        let refusal = Refusal::breaker(Reason::CircuitOpen);
        assert_eq!(
            Classify::<(), Refusal>::classify(&ErrorsAsFailures, Err(&refusal)),
            Outcome::Neutral
        );
    }

    #[test]
    fn functions_of_one_lifetime_and_of_two_are_classifiers_and_so_are_closures() {
        type Told<'a> = Result<&'a (), &'a BoxError>;
        fn one(_: Told<'_>) -> Outcome {
            Outcome::Neutral
        }
        fn two(_: Result<&(), &BoxError>) -> Outcome {
            Outcome::Neutral
        }
        let closure = |_: Result<&(), &BoxError>| Outcome::Neutral;
        assert_eq!(classify(&one, &Ok(())), Outcome::Neutral);
        assert_eq!(classify(&two, &Ok(())), Outcome::Neutral);
        assert_eq!(classify(&closure, &Ok(())), Outcome::Neutral);
    }

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
