//! Feature `http`: heads, hints, refusals as responses, and bodies that are judged at their end.

#![cfg(feature = "http")]
#![allow(clippy::unchecked_time_subtraction)] // A test that goes below zero is to panic.

#[path = "../support/mod.rs"]
mod support;

mod bodies;
mod ends;
mod heads;
mod hints;
mod inspect;
mod layers;
mod panics;
mod probes;
mod refusal;

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::http::StatusClassifier;
use tower_breaker::{
    CircuitBreakerHandle, Classify, FallbackHandle, FallbackLayer, Reason, Refusal,
};

/// A request, which is the server's answer.
type Scripted = Result<Response<String>, BoxError>;

fn response(status: u16, headers: &[(&'static str, &str)]) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        response.headers_mut().append(*name, value);
    }
    response
}

/// A server that answers what the request says.
async fn server(scripted: Scripted) -> Scripted {
    scripted
}

/// One call; `None` if it was refused.
async fn ask<S>(service: &mut S, scripted: Scripted) -> Option<Scripted>
where
    S: Service<Scripted, Response = Response<String>, Error = BoxError>,
{
    let result = service.ready().await.unwrap().call(scripted).await;
    let refused = matches!(&result, Err(err) if Refusal::find(&**err).is_some());
    (!refused).then_some(result)
}

async fn get<S>(service: &mut S, status: u16)
where
    S: Service<Scripted, Response = Response<String>, Error = BoxError>,
{
    let answer = ask(service, Ok(response(status, &[]))).await;
    assert_eq!(answer.unwrap().unwrap().status(), status);
}

/// How long the circuit refuses from now on.
fn left(handle: &CircuitBreakerHandle) -> Duration {
    let refusal = handle.try_acquire().unwrap_err();
    assert_eq!(refusal.reason(), Reason::CircuitOpen);
    refusal.retry_after().unwrap()
}

fn fallback<E>(
    classifier: StatusClassifier<E>,
) -> (
    FallbackHandle,
    impl Service<Scripted, Response = Response<String>, Error = BoxError>,
)
where
    StatusClassifier<E>: Classify<Response<String>, BoxError> + Clone,
{
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", service_fn(server))
        .backup("llama", service_fn(server))
        .classify(classifier);
    (layer.handle(), layer.layer(service_fn(server)))
}
