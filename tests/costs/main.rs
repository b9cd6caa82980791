//! Costs: allocations and held memory. This binary has an allocator that counts, so other tests
//! stay outside.

#[path = "../support/mod.rs"]
mod support;

mod allocations;
mod memory;

#[global_allocator]
static ALLOCATOR: support::allocator::Counting = support::allocator::Counting;
