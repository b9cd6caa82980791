//! The vocabulary: what users of every layer name.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `outcome` | what a call's result says of the guarded thing |
//! | `classify` | who decides that |
//! | `refusal` | a call that was not attempted: its reason, its text, and what becomes of it |
//! | `event` | what a layer tells its observers |

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

/// A boxed error, as tower's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
