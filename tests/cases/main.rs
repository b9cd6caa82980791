//! The cases from the field: faults that users of other breakers, fallback chains and loop guards reported, each as the scenario they met,
//! through the public API. The numbers in the docs are the cases'.

#![allow(clippy::unchecked_time_subtraction)] // A test that goes below zero is to panic.

#[path = "../support/mod.rs"]
mod support;

mod circuit_breaker;
