//! A tripwire: refuses to go on with an agent's loop.

mod digest;
mod fence;

pub use self::digest::{Digest, Digester, HashDigest};
pub use self::fence::TripwireSnapshot;
