//! A circuit breaker: refuses calls at once while a tool is down, and tests recovery with one leased probe.

mod circuit;
pub mod future;
mod gate;
mod handle;
mod layer;
mod permit;
mod service;
mod window;

pub use self::circuit::CircuitBreakerSnapshot;
pub use self::gate::{Borrowed, One, Owned, PerKey, Routed};
pub use self::handle::{CircuitBreakerHandle, KeyedCircuitBreakerHandle};
pub use self::layer::CircuitBreakerLayer;
pub use self::permit::Permit;
pub use self::service::CircuitBreaker;
pub use self::window::Window;
pub use crate::outcome::{Cancelled, Recorded};

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
