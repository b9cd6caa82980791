//! Tests how large the breaker's types are around an inner service. Every call moves them.

use std::{
    convert::Infallible,
    future::Future,
    mem::size_of_val,
    task::{Context, Poll},
};

use tower_breaker::{CircuitBreakerLayer, Refusal};
use tower_breaker_benches::{Failed, Inner, Sure, ToolCall, Tools, guarded::KEYS};
use tower_layer::Layer;
use tower_service::Service;

/// An inner service whose future and response have these sizes.
#[derive(Clone)]
struct Sized<const FUTURE: usize, const RESPONSE: usize>;

struct Large<const FUTURE: usize, const RESPONSE: usize>([u8; FUTURE]);

impl<const FUTURE: usize, const RESPONSE: usize> Future for Large<FUTURE, RESPONSE> {
    type Output = Result<[u8; RESPONSE], Failed>;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        assert_eq!(self.0.len(), FUTURE);
        Poll::Ready(Ok([0; RESPONSE]))
    }
}

impl<const FUTURE: usize, const RESPONSE: usize> Service<u64> for Sized<FUTURE, RESPONSE> {
    type Response = [u8; RESPONSE];
    type Error = Failed;
    type Future = Large<FUTURE, RESPONSE>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u64) -> Self::Future {
        Large([0; FUTURE])
    }
}

/// Asserts the limits. The breaker's future may have 24 bytes more than the inner one, or 8 more
/// than the result that a soft refusal puts into it. The breaker's service may have 32 bytes more.
fn check<S, G, R>(what: &str, mut inner: S, mut guarded: G, request: R)
where
    S: Service<R>,
    G: Service<R>,
    R: Copy,
{
    let (service, guarded_service) = (size_of_val(&inner), size_of_val(&guarded));
    let inner_future = size_of_val(&inner.call(request));
    let result = size_of::<Result<G::Response, G::Error>>();
    let future = size_of_val(&guarded.call(request));
    println!(
        "{what}: future {inner_future} -> {future} (result {result}), service {service} -> {guarded_service}"
    );
    let limit = (inner_future + 24).max(result + 8);
    assert!(
        future <= limit,
        "{what}: a future of {future} bytes, the limit is {limit}"
    );
    let limit = service + 32;
    assert!(
        guarded_service <= limit,
        "{what}: a service of {guarded_service} bytes, the limit is {limit}"
    );
}

fn soft<Res: Default, E>() -> impl Fn(u64, Refusal) -> Result<Res, E> + Copy {
    |_, _| Ok(Res::default())
}

#[test]
fn a_future_and_a_service_grow_little() {
    let layer = CircuitBreakerLayer::new();
    check("boxed refusals", Inner, layer.layer(Inner), 0);
    check("boxed refusals, cannot fail", Sure, layer.layer(Sure), 0);
    let layer = CircuitBreakerLayer::new().refuse_with(soft::<u64, Failed>());
    check("soft refusals", Inner, layer.layer(Inner), 0);
    let layer = CircuitBreakerLayer::new().refuse_with(soft::<u64, Infallible>());
    check("soft refusals, cannot fail", Sure, layer.layer(Sure), 0);
}

#[test]
fn a_large_future_grows_as_little() {
    let layer = CircuitBreakerLayer::new();
    check(
        "a large future",
        Sized::<200, 8>,
        layer.layer(Sized::<200, 8>),
        0,
    );
    let layer = CircuitBreakerLayer::new()
        .refuse_with(|_: u64, _: Refusal| -> Result<[u8; 400], Failed> { Ok([0; 400]) });
    check(
        "a large response",
        Sized::<8, 400>,
        layer.layer(Sized::<8, 400>),
        0,
    );
}

#[test]
fn a_service_by_key_grows_as_little() {
    let tool: &'static ToolCall = &ToolCall::many(1)[0];
    let layer = CircuitBreakerLayer::new()
        .per_key(|call: &&'static ToolCall| call.name.as_str(), KEYS)
        .refuse_with(|_: &'static ToolCall, _: Refusal| -> Result<u64, Failed> { Ok(0) });
    check("by key", Tools, layer.layer(Tools), tool);
}
