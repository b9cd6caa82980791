//! HTTP: what a response's head says, what its body says, and soft refusals.

mod body;
mod events;
mod inspect;

pub use self::body::{EndOfBody, InspectBody, ResponseBody};
pub use self::events::ErrorEvents;
pub use self::inspect::Inspect;
