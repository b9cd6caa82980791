//! A turn of a healthy primary allocates nothing.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tower::{Layer, Service};
use tower_breaker::{Event, FallbackLayer, FallbackState};

use crate::allocations;

/// Answers at once with the request.
#[derive(Clone)]
struct Echo;

impl Service<u64> for Echo {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: u64) -> Self::Future {
        ready(Ok(req))
    }
}

/// How often `turns` turns allocate.
fn allocated<S: Service<u64, Response = u64>>(service: &mut S, turns: u64) -> u64 {
    allocations(|| {
        let mut cx = Context::from_waker(Waker::noop());
        for n in 0..turns {
            assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
            let answer = pin!(service.call(n)).poll(&mut cx);
            assert!(matches!(answer, Poll::Ready(Ok(answer)) if answer == n));
        }
    })
}

#[test]
fn a_turn_of_a_healthy_primary_allocates_nothing() {
    assert_eq!(
        allocations(|| drop(std::hint::black_box(Box::new(1)))),
        1,
        "the allocator counts"
    );
    let layer = FallbackLayer::new("primary")
        .backup("a", Echo)
        .backup("b", Echo);
    let mut service = layer.layer(Echo);
    assert_eq!(allocated(&mut service, 1), 0, "a clone for one request");
    assert_eq!(allocated(&mut service, 1), 1, "its own count, once");
    assert_eq!(allocated(&mut service, 1000), 0);

    let mut models = FallbackLayer::rewriting("primary", |_: &mut u64, _: &str| ())
        .model("a")
        .layer(Echo);
    allocated(&mut models, 2);
    assert_eq!(allocated(&mut models, 1000), 0);
    assert_eq!(layer.handle().state(), FallbackState::Primary);
}

#[test]
fn observers_and_who_served_cost_no_allocation_either() {
    let layer = FallbackLayer::new("primary")
        .backup("a", Echo)
        .observe(|_: &Event<'_>| ())
        .served_by(|_: &mut u64, name: &str| assert_eq!(name, "primary"));
    let mut service = layer.layer(Echo);
    allocated(&mut service, 2);
    assert_eq!(allocated(&mut service, 1000), 0);
}
