//! The contract of a tower service, for every layer: services of every kind, and stacks of layers.

#[path = "../support/mod.rs"]
mod support;

mod kinds;
mod stacks;
