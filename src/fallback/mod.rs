//! A model breaker with a chain of backups.

mod chain;

pub use self::chain::{EntrySnapshot, FallbackSnapshot};

/// What becomes of a turn while the primary is down and no entry of its chain is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exhausted {
    /// It is refused.
    Refuse,
    /// The primary serves it, and its result says nothing. So it does when a probe is in flight.
    LastResort,
}
