//! The closed path of a tripwire allocates nothing with the default digest.

use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tower::{Layer, Service};
use tower_breaker::{BoxError, TripwireLayer};

use crate::allocations;

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

#[test]
fn a_future_is_not_much_larger_than_the_one_inside() {
    type Answer = Result<u8, BoxError>;
    let mut service = TripwireLayer::new().layer(Inner);
    let future = service.call(request(1));
    let inner = size_of::<Ready<Answer>>();
    assert!(size_of_val(&future) <= (inner + 32).max(size_of::<Answer>() + 8));
    assert!(size_of_val(&service) <= size_of::<Inner>() + 32);
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
