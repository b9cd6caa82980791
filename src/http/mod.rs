//! HTTP: what a response's head says, what its body says, and soft refusals.

mod inspect;

pub use self::inspect::Inspect;
