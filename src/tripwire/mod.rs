//! A tripwire: refuses to go on with an agent's loop.

mod digest;
mod fence;
pub mod future;
mod gate;
mod handle;
mod layer;
mod permit;
mod reader;
mod service;

pub use self::digest::{Digest, Digester, HashDigest, SameResult};
pub use self::fence::TripwireSnapshot;
pub use self::gate::{Borrowed, One, Owned, PerSession};
pub use self::handle::{KeyedTripwireHandle, TripwireHandle};
pub use self::layer::TripwireLayer;
pub use self::reader::{Limit, Reader};
pub use self::service::Tripwire;
