//! A call that was not attempted: what it tells, and what becomes of it.

mod name;
mod policy;
mod reason;
mod text;

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

pub(crate) use self::name::Name;
pub use self::policy::{AsBoxError, IntoError, Refuse, RefuseWith};
pub use self::reason::Reason;
use super::BoxError;
use super::outcome::FailureKind;

/// A call that was not attempted, and why.
///
/// It is an error that any layer outside can recognise with [`Refusal::find`]. Its text is written for the model that
/// made the call.
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal {
    layer: Layer,
    reason: Reason,
    name: Option<Name>,
    /// In nanoseconds, and `u64::MAX` for none: a refusal that nobody asks for it costs no division.
    retry_after: u64,
    last_failure: Option<FailureKind>,
    tripped_by: Option<Reason>,
    count: Option<u32>,
}

/// Which layer refused: it decides the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    CircuitBreaker,
    Fallback,
    Tripwire {
        /// How many calls repeat: 1, or more for a round of calls.
        period: u32,
    },
}

impl Refusal {
    /// A circuit breaker's refusal.
    #[inline]
    pub(crate) const fn breaker(reason: Reason) -> Self {
        Self::of(Layer::CircuitBreaker, reason)
    }

    /// A fallback's refusal.
    pub(crate) const fn fallback(reason: Reason) -> Self {
        Self::of(Layer::Fallback, reason)
    }

    /// A tripwire's refusal. `period` is how many calls repeat, if that is why.
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

    /// The refusal of an open circuit, made at once and where it is wanted. So many nanoseconds are left, or `u64::MAX` if no time is
    /// known.
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

    /// Why the call was not attempted.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The name of what refused: the layer's, or the key's where keys name their circuits.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// How long to wait before a call may be let through, or `None` when no time is known (pinned by hand, or a cooldown or a lease without
    /// end). It was right when the circuit was asked, which may have been in `poll_ready`.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after != u64::MAX).then(|| Duration::from_nanos(self.retry_after))
    }

    /// The kind of the last failure that was recorded before the refusal.
    #[must_use]
    pub fn last_failure(&self) -> Option<FailureKind> {
        self.last_failure
    }

    /// For a refusal by a tripwire that had tripped before: what it was tripped by.
    #[must_use]
    pub fn tripped_by(&self) -> Option<Reason> {
        self.tripped_by
    }

    /// For a refusal by a tripwire: the count that ran into its limit.
    #[must_use]
    pub fn count(&self) -> Option<u32> {
        self.count
    }

    /// Finds the refusal in an error, or in the chain of its sources, those that an [`io::Error`] holds included.
    ///
    /// # Examples
    ///
    /// One outermost `then` turns the refusal of any layer inside into a response that a model can read:
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
        std::iter::successors(Some(err), |&err| below(err)).find_map(|err| err.downcast_ref())
    }
}

/// The error that `err` was made from. An `io::Error` names as its source that of the error it holds, and so would hide the one that it holds.
fn below<'a>(err: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match err.downcast_ref().and_then(io::Error::get_ref) {
        Some(held) => Some(held),
        None => err.source(),
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

/// Finds a refusal in an error as a service returns it: a [`Refusal`], or a [`BoxError`] with one in its chain.
pub(crate) fn in_error(err: &dyn Any) -> Option<&Refusal> {
    err.downcast_ref::<Refusal>().or_else(|| {
        err.downcast_ref::<BoxError>()
            .and_then(|err| Refusal::find(&**err))
    })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn named(name: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::breaker(Reason::CircuitOpen).with_name(Some(name.into().into()))
    }

    #[test]
    fn a_refusal_is_found_through_any_chain_of_sources() {
        #[derive(Debug)]
        struct Outer(BoxError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outer")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&*self.0)
            }
        }

        let refusal = named("search");
        let chain = Outer(Outer(refusal.clone().into()).into());
        assert_eq!(Refusal::find(&chain), Some(&refusal));
        assert_eq!(Refusal::find(&refusal), Some(&refusal));
        assert_eq!(Refusal::find(&Outer("other".into())), None);

        let boxed: BoxError = chain.into();
        assert_eq!(in_error(&boxed), Some(&refusal));
        assert_eq!(in_error(&refusal), Some(&refusal));
        assert_eq!(in_error(&"other"), None);
    }

    #[test]
    fn a_refusal_keeps_what_it_was_told() {
        let refusal = named("search")
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
