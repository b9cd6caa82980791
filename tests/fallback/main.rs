//! The fallback, as its users see it.

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod cancelled;
mod costs;
mod counting;
mod events;
mod fixture;
mod oracle;
mod panics;
mod probe;
mod readiness;
mod refusal;
mod routing;
mod same_turn;
mod settings;
mod stacks;
mod stale;
