//! The types that all layers share: outcomes, refusals, events, and who decides on them.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `outcome` | what a call's result says of the guarded thing |
//! | `classify` | the classifiers, which decide on an outcome |
//! | `refusal` | a call that was not attempted: its reason, its text, how it is found in an error, what becomes of it |
//! | `event` | the events that a layer tells its observers |

mod classify;
mod event;
mod outcome;
mod refusal;

pub use self::classify::{Classify, ErrorsAsFailures, RefusalsAsFailures};
pub use self::event::{EntryChange, Event, FallbackState, Observe, State, TransitionReason};
pub use self::outcome::{Cancelled, Failure, FailureKind, Outcome, Recorded};
pub(crate) use self::refusal::Name;
#[cfg(feature = "retry")]
pub(crate) use self::refusal::in_error;
pub use self::refusal::{AsBoxError, IntoError, Reason, Refusal, Refuse, RefuseWith};

/// A boxed error, of the same type as tower's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
