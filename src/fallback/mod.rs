//! A model breaker with a chain of backups.

mod backends;
mod chain;
pub mod future;
mod gate;
mod handle;
mod layer;
mod permit;
mod service;

pub use self::backends::{Kept, Models, NoBackups, Once, SameTurn, ServedBy, Services};
pub use self::chain::{EntrySnapshot, FallbackSnapshot};
pub use self::handle::{FallbackHandle, UnknownEntry};
pub use self::layer::FallbackLayer;
pub use self::service::Fallback;

/// What becomes of a turn while the primary is down and no entry of its chain is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exhausted {
    /// It is refused.
    Refuse,
    /// The primary serves it, and its result says nothing. So it does when a probe is in flight.
    LastResort,
}
