//! The contract of a tower service, seen from outside: readiness, wake-ups, clones, and stacks
//! with tower's own middleware.

#[path = "../support/site.rs"]
mod site;

mod kinds;
mod panics;
mod readiness;
mod stacks;
mod waiting;
mod when_open;
