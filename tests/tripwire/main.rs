//! The tripwire. Unless a test says otherwise it has the defaults: 8 turns, 3 identical calls, 3
//! errors and 4 refused calls. "Case 36" and the like number the cases from the field.

#[path = "../support/mod.rs"]
mod support;

mod cancelled;
mod counting;
mod deadline;
#[cfg(feature = "json")]
mod digest;
mod events;
mod keys;
mod observe_only;
mod panics;
mod probe;
mod readiness;
mod refusal;
mod repeats;
mod settings;
mod sharing;
mod turns;
