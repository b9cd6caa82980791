//! The cost of a turn of a healthy primary: no clock read and no runtime.

use std::future::Future;
use std::task::Context;

use tower::{Layer, Service};
use tower_breaker::FallbackLayer;

use crate::support::models::Model;

#[test]
fn a_healthy_primary_reads_no_clock_and_needs_no_runtime() {
    // A clock cannot be paused without a runtime. The unit tests of the library count the clock
    // reads.
    let layer = FallbackLayer::new("primary").backup("a", Model::new("a"));
    let mut service = layer.layer(Model::new("primary"));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let mut turn = std::pin::pin!(service.call(String::new()));
    assert!(turn.as_mut().poll(&mut cx).is_ready());
}
