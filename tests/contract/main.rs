//! The contract of a tower service, seen from outside: readiness, wake-ups, clones, and the company of tower's own middleware.

mod kinds;
mod panics;
mod readiness;
mod stacks;
mod support;
mod waiting;
mod when_open;
