//! The feature `http`, as users of the layers see it: heads, bodies, hints and soft refusals.

#![cfg(feature = "http")]
// A test panics if a subtraction of times goes below zero.
#![allow(clippy::unchecked_time_subtraction)]

#[path = "../support/pipe.rs"]
mod pipe;

mod bodies;
mod heads;
mod hostile_bodies;
