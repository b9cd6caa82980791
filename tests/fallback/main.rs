//! The fallback. Unless a test says otherwise it has the defaults: three failures, a cooldown of
//! 60 s, two probes, two strikes, and the chain [a, b]. "Case 24" and the like number the cases
//! from the field.

#[path = "../support/mod.rs"]
mod support;

mod cancelled;
mod chain;
mod cooldown;
mod counting;
mod events;
mod looking;
mod panics;
mod probe;
mod readiness;
mod refusal;
mod replay;
mod settings;
mod sharing;
mod stale;
mod waiting;
