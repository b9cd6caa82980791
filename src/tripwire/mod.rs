//! A tripwire: refuses to go on with an agent's loop.

mod digest;
mod fence;
pub mod future;
mod gate;
mod handle;
#[cfg(feature = "json")]
mod json;
mod layer;
mod permit;
mod reader;
mod service;

pub use self::digest::{Digest, Digester, HashDigest, SameResult};
pub use self::fence::TripwireSnapshot;
pub use self::gate::{Borrowed, One, Owned, PerSession};
pub use self::handle::{KeyedTripwireHandle, TripwireHandle};
#[cfg(feature = "json")]
#[cfg_attr(docsrs, doc(cfg(feature = "json")))]
pub use self::json::JsonDigest;
pub use self::layer::TripwireLayer;
pub use self::reader::{Limit, Reader};
pub use self::service::Tripwire;
