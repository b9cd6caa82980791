//! The tripwire, as its users see it.

mod bounds;
mod cancelled;
mod counting;
mod deadline;
#[cfg(feature = "json")]
mod digest;
mod events;
mod fixture;
mod keys;
mod observe_only;
mod panics;
mod probe;
mod readiness;
mod refusal;
mod repeats;
mod settings;
mod stacks;
