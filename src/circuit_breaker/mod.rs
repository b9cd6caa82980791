//! A circuit breaker: refuses calls at once while a tool is down, and tests recovery with one leased probe.

use std::time::Duration;

mod circuit;
pub mod future;
mod gate;
mod handle;
mod layer;
/// The interleaving models; see `tests/loom`.
#[cfg(tower_breaker_loom)]
#[doc(hidden)]
#[path = "../../tests/loom/models.rs"]
pub mod models;
mod permit;
mod service;
mod window;

pub use self::circuit::{CircuitBreakerSnapshot, Recorded};
pub use self::gate::{Borrowed, One, Owned, PerKey, Routed};
pub use self::handle::{CircuitBreakerHandle, KeyedCircuitBreakerHandle};
pub use self::layer::CircuitBreakerLayer;
pub use self::permit::Permit;
pub use self::service::CircuitBreaker;
pub use self::window::Window;

/// What a call says that was dropped before its verdict: a timeout outside, a task that was aborted, a caller who went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// An ordinary call says nothing. A probe keeps its slot until its lease ends, and then counts as failed.
    Ignore,
    /// Nobody learnt anything: a probe gives its slot back at once.
    Release,
    /// A failure now.
    Failure,
    /// A failure if it ran at least so long, else as `Release`. For a timeout outside, give a little less than its duration. Every call
    /// reads the clock when it is admitted.
    FailureAfter(Duration),
}

/// What `poll_ready` does while the circuit is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenOpen {
    /// It is ready, and the call is refused at once.
    Refuse,
    /// It is pending until a probe may go, so that `tower::balance` and its like choose another endpoint. It needs a tokio runtime with
    /// time.
    NotReady,
}

#[cfg(test)]
mod tests {
    use super::circuit::Circuit;
    use crate::cell::Cell;

    #[test]
    fn a_circuit_takes_no_more_than_its_192_bytes() {
        let size = size_of::<Cell<Circuit>>();
        assert!(size <= 192, "{size}");
    }
}
