//! Proves that the healthy path of a fallback and of a tripwire allocates nothing. The benches count
//! the circuit breaker's.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tower::{BoxError, Layer, Service};
use tower_breaker::{Event, FallbackLayer, FallbackState, TripwireLayer};

use crate::support::allocator::allocations;
use crate::support::model::Model;

// ===== the fallback =====

/// A service that answers at once with the request.
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
    let boxed = allocations(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(boxed, 1, "the allocator counts");
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

#[test]
fn a_healthy_primary_costs_no_clock_and_needs_no_runtime() {
    // There is no paused clock without a runtime. The unit tests of the library count clock
    // reads.
    let layer = FallbackLayer::new("primary").backup("a", Model::new("a"));
    let mut service = layer.layer(Model::new("primary"));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let mut turn = std::pin::pin!(service.call(String::new()));
    assert!(turn.as_mut().poll(&mut cx).is_ready());
}

// ===== the tripwire =====

type Request = [u8; 32];

#[derive(Clone)]
struct Inner;

impl Service<Request> for Inner {
    type Response = u8;
    type Error = BoxError;
    type Future = Ready<Result<u8, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request) -> Self::Future {
        ready(Ok(req[0]))
    }
}

fn drive<S: Service<Request, Error = BoxError>>(service: &mut S, req: Request) {
    let mut cx = Context::from_waker(Waker::noop());
    let ready = matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(())));
    assert!(ready);
    let answer = pin!(service.call(req)).poll(&mut cx);
    assert!(matches!(answer, Poll::Ready(Ok(_))));
}

fn request(n: u32) -> Request {
    let mut req = [0; 32];
    req[..4].copy_from_slice(&n.to_le_bytes());
    req
}

fn calls<S: Service<Request, Error = BoxError>>(service: &mut S, from: u32) {
    for n in from..from + 1_000 {
        drive(service, request(n));
    }
}

#[test]
fn a_closed_fence_allocates_nothing() {
    let layer = TripwireLayer::new().max_turns(u32::MAX);
    let mut service = layer.layer(Inner);
    calls(&mut service, 0);
    assert_eq!(allocations(|| calls(&mut service, 1_000)), 0);
}

#[test]
fn a_closed_fence_of_a_session_allocates_nothing() {
    let layer = TripwireLayer::new()
        .max_turns(u32::MAX)
        .per_session(|req: &Request| &req[31], 10);
    let mut service = layer.layer(Inner);
    calls(&mut service, 0);
    assert_eq!(allocations(|| calls(&mut service, 1_000)), 0);
}

#[test]
fn options_allocate_nothing_once_their_memory_is_full() {
    let layer = TripwireLayer::new()
        .max_turns(u32::MAX)
        .cycles(3, 3)
        .turn_of(|req: &Request| req[0])
        .same_result(tower_breaker::HashDigest);
    let mut service = layer.layer(Inner);
    calls(&mut service, 0);
    calls(&mut service, 1_000);
    assert_eq!(allocations(|| calls(&mut service, 2_000)), 0);
}

#[cfg(feature = "json")]
#[test]
fn the_digest_of_a_json_value_allocates_nothing() {
    use serde_json::json;
    let digest = tower_breaker::JsonDigest::new()
        .without("id")
        .without_pointer("/meta/at");
    let value = json!({
        "id": 1, "tool": "search", "meta": {"at": 1.5, "page": 2},
        "arguments": [{"query": "rust", "deep": [[[null, true, -7, 1e300]]]}],
    });
    let _ = digest.of(&value);
    assert_eq!(
        allocations(|| assert_eq!(digest.of(&value), digest.of(&value))),
        0
    );
}
