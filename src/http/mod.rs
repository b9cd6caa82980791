//! HTTP: what a response's head says, what its body says, and soft refusals.

mod hints;
mod inspect;
mod refuse;
mod status;

pub use self::hints::{rate_limit_reset, retry_after};
pub use self::inspect::Inspect;
pub use self::refuse::SoftRefusal;
pub use self::status::StatusClassifier;
