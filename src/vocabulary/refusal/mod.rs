//! A call that was not attempted: its reason, its text, and what becomes of it.

mod find;
mod name;
mod policy;
mod reason;
mod text;

use std::error::Error;
use std::fmt;
use std::time::Duration;

pub(crate) use self::find::in_error;
pub(crate) use self::name::Name;
pub use self::policy::{AsBoxError, IntoError, Refuse, RefuseWith};
pub use self::reason::Reason;
use super::outcome::FailureKind;

/// A call that was not attempted, and why.
///
/// A refusal is an error. A layer outside recognises it with [`Refusal::find`]. Its text is
/// written for the model that made the call.
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal {
    layer: Layer,
    reason: Reason,
    name: Option<Name>,
    /// In nanoseconds, or `u64::MAX` for none. A `Duration` would cost a division per refusal, and
    /// most callers never ask for it.
    retry_after: u64,
    last_failure: Option<FailureKind>,
    tripped_by: Option<Reason>,
    count: Option<u32>,
}

/// The layer that refused. The text depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    CircuitBreaker,
    Fallback,
    Tripwire {
        /// How many calls repeat: 1 for a single call, more for a round of calls.
        period: u32,
    },
}

impl Refusal {
    /// Makes a circuit breaker's refusal.
    #[inline]
    pub(crate) const fn breaker(reason: Reason) -> Self {
        Self::of(Layer::CircuitBreaker, reason)
    }

    /// Makes a fallback's refusal.
    pub(crate) const fn fallback(reason: Reason) -> Self {
        Self::of(Layer::Fallback, reason)
    }

    /// Makes a tripwire's refusal. `period` says how many calls repeat, where repetition is the
    /// reason.
    pub(crate) const fn tripwire(reason: Reason, period: u32) -> Self {
        Self::of(Layer::Tripwire { period }, reason)
    }

    const fn of(layer: Layer, reason: Reason) -> Self {
        Self {
            layer,
            reason,
            name: None,
            retry_after: u64::MAX,
            last_failure: None,
            tripped_by: None,
            count: None,
        }
    }

    /// Makes the refusal of an open circuit in one step, because refusing must be cheap. `left` is
    /// the rest of the cooldown in nanoseconds, or `u64::MAX` if no time is known.
    #[inline]
    pub(crate) fn open(name: Option<Name>, left: u64, last_failure: Option<FailureKind>) -> Self {
        Self {
            name,
            retry_after: left,
            last_failure,
            ..Self::breaker(Reason::CircuitOpen)
        }
    }

    #[inline]
    pub(crate) fn with_name(mut self, name: Option<Name>) -> Self {
        self.name = name;
        self
    }

    #[inline]
    pub(crate) fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after.map_or(u64::MAX, |wait| {
            u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
        });
        self
    }

    #[inline]
    pub(crate) fn with_last_failure(mut self, kind: Option<FailureKind>) -> Self {
        self.last_failure = kind;
        self
    }

    pub(crate) fn with_tripped_by(mut self, reason: Option<Reason>) -> Self {
        self.tripped_by = reason;
        self
    }

    pub(crate) fn with_count(mut self, count: Option<u32>) -> Self {
        self.count = count;
        self
    }

    /// Returns why the call was not attempted.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the name of what refused: the layer's name, or the key's where keys name their
    /// circuits.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Returns how long to wait before a call may be let through.
    ///
    /// `None` means that no time is known: the circuit is pinned by hand, or the cooldown or the
    /// lease has no end. The wait counts from when the circuit was asked, which may have been in
    /// `poll_ready`.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after != u64::MAX).then(|| Duration::from_nanos(self.retry_after))
    }

    /// Returns the kind of the last failure that was recorded before the refusal.
    #[must_use]
    pub fn last_failure(&self) -> Option<FailureKind> {
        self.last_failure
    }

    /// Returns what tripped the tripwire, if a tripwire that had tripped before refused the call.
    #[must_use]
    pub fn tripped_by(&self) -> Option<Reason> {
        self.tripped_by
    }

    /// Returns the count that reached its limit, if a tripwire refused the call.
    #[must_use]
    pub fn count(&self) -> Option<u32> {
        self.count
    }

    /// Finds the refusal in an error, or in the chain of its sources.
    ///
    /// A source is what [`Error::source`] names. The search also looks inside these, whose own
    /// `source()` passes over the error they hold:
    ///
    /// - an [`io::Error`](std::io::Error);
    /// - an `Arc<dyn Error>`, also with `Send`, or with `Send` and `Sync`;
    /// - a `Box` or an `Arc` of a `Refusal` or of an `io::Error`, inside another error.
    ///
    /// The search ends after 128 errors, so a chain that leads back into itself ends too.
    ///
    /// # Transparent errors
    ///
    /// An error may name the source of the error it holds instead of that error. A variant with
    /// `#[error(transparent)]` of the crate `thiserror` does so, for instance
    /// `async_openai::error::OpenAIError::Boxed`. No search from outside can see a refusal that
    /// such a variant holds directly. Match the variant, and search its box:
    ///
    /// ```
    /// # use tower_breaker::{CircuitBreakerLayer, Refusal};
    /// # #[derive(Debug)]
    /// # enum OpenAIError { Boxed(tower::BoxError), Other }
    /// # impl std::fmt::Display for OpenAIError {
    /// #     fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) }
    /// # }
    /// # impl std::error::Error for OpenAIError {}
    /// fn refusal(err: &OpenAIError) -> Option<&Refusal> {
    ///     match err {
    ///         OpenAIError::Boxed(err) => Refusal::find(&**err),
    ///         err => Refusal::find(err),
    ///     }
    /// }
    /// # let handle = CircuitBreakerLayer::new().handle();
    /// # handle.force_open();
    /// # let refused = handle.try_acquire().unwrap_err();
    /// # assert!(refusal(&OpenAIError::Boxed(refused.into())).is_some());
    /// # assert!(refusal(&OpenAIError::Other).is_none());
    /// ```
    ///
    /// # Examples
    ///
    /// One outermost `then` turns the refusal of any layer inside into a response that a model can
    /// read:
    ///
    /// ```
    /// use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
    /// use tower_breaker::{CircuitBreakerLayer, Refusal};
    ///
    /// let tool = ServiceBuilder::new()
    ///     .then(|result: Result<String, BoxError>| async move {
    ///         match result {
    ///             Err(err) => match Refusal::find(&*err) {
    ///                 Some(refusal) => Ok(refusal.to_string()),
    ///                 None => Err(err),
    ///             },
    ///             answer => answer,
    ///         }
    ///     })
    ///     .layer(CircuitBreakerLayer::new())
    ///     .service(service_fn(|query: String| async move { Ok::<_, BoxError>(query) }));
    /// # let _ = tool.oneshot("rust".to_owned());
    /// ```
    #[must_use]
    pub fn find<'a>(err: &'a (dyn Error + 'static)) -> Option<&'a Refusal> {
        find::find(err)
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("layer", &self.layer)
            .field("reason", &self.reason)
            .field("name", &self.name())
            .field("retry_after", &self.retry_after())
            .field("last_failure", &self.last_failure)
            .field("tripped_by", &self.tripped_by)
            .field("count", &self.count)
            .finish()
    }
}

impl Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_name_wait_and_failure() {
        let refusal = Refusal::breaker(Reason::CircuitOpen)
            .with_name(Some(Name::Static("search")))
            .with_retry_after(Some(Duration::from_secs(20)))
            .with_last_failure(Some(FailureKind::RateLimited));
        assert_eq!(refusal.reason(), Reason::CircuitOpen);
        assert_eq!(refusal.name(), Some("search"));
        assert_eq!(refusal.retry_after(), Some(Duration::from_secs(20)));
        assert_eq!(refusal.last_failure(), Some(FailureKind::RateLimited));
        let open = Refusal::open(Some(Name::Static("search")), 20, Some(FailureKind::Fatal));
        assert_eq!(open.reason(), Reason::CircuitOpen);
        assert_eq!(open.name(), Some("search"));
        assert_eq!(open.retry_after(), Some(Duration::from_nanos(20)));
        assert_eq!(open.last_failure(), Some(FailureKind::Fatal));
        let debug = format!("{refusal:?}");
        assert!(
            debug.contains("name: Some(\"search\"), retry_after: Some(20s)"),
            "{debug}"
        );
        let unknown = format!("{:?}", Refusal::breaker(Reason::ForcedOpen));
        assert!(
            unknown.contains("name: None, retry_after: None"),
            "{unknown}"
        );
        assert_eq!((refusal.tripped_by(), refusal.count()), (None, None));
    }
}
