//! How often a call reads the clock.

use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_layer::Layer;
use tower_service::Service;

use super::TripwireLayer;
use crate::BoxError;
use crate::machinery::clock::reads;

/// Answers with its request, and fails for numbers above 900.
#[derive(Clone)]
struct Tool;

impl Service<u64> for Tool {
    type Response = u64;
    type Error = BoxError;
    type Future = Ready<Result<u64, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u64) -> Self::Future {
        ready(if n > 900 { Err("down".into()) } else { Ok(n) })
    }
}

fn call(tool: &mut impl Service<u64>, n: u64) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(tool.poll_ready(&mut cx).is_ready());
    assert!(pin!(tool.call(n)).poll(&mut cx).is_ready());
}

/// Makes calls that run, trip the fence, are refused, arm a probe, and are the probe.
fn call_in_every_state(tool: &mut impl Service<u64>) {
    for n in [
        1, 2, 901, 902, 903, 1, 2, 3, 4, 904, 1, 2, 3, 4, 5, 6, 6, 6, 6,
    ] {
        call(tool, n);
    }
}

#[test]
fn without_a_deadline_the_clock_is_never_read() {
    let layer = TripwireLayer::new().cycles(3, 3).turn_of(|n: &u64| *n);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool);
    let mut sessions = layer.per_owned_session(|n: &u64| n % 3, 2).layer(Tool);
    let read = reads::during(|| {
        call_in_every_state(&mut tool);
        call_in_every_state(&mut sessions);
        assert!(handle.snapshot().trips > 1);
        assert!(!handle.would_allow(&7));
        handle.extend(1);
        handle.reset();
    });
    assert_eq!(read, 0);
}

#[test]
fn with_a_deadline_a_call_reads_the_clock_at_most_twice() {
    let layer = TripwireLayer::new().deadline(Duration::from_secs(3600));
    let mut tool = layer.layer(Tool);
    call(&mut tool, 1);
    for n in [2, 3, 901, 902, 903, 4, 5] {
        assert!(reads::during(|| call(&mut tool, n)) <= 2);
    }
}
