//! The names of feature `grpc`.

use http::{HeaderMap, Request};
use tower::{Layer, ServiceExt, service_fn};
use tower_breaker::{CircuitBreakerLayer, EndOfBody, ErrorsAsFailures, Failure, Outcome};

use crate::http::model;

#[cfg(feature = "grpc")]
#[tokio::test(start_paused = true)]
async fn codes_and_refusals_are_used_with_a_layer_and_without_one() {
    use tower_breaker::grpc::{Code, Codes, SoftRefusal, retry_after};

    const CODES: Codes = Codes::new();
    let headers = HeaderMap::new();
    assert_eq!(
        (retry_after(&headers), CODES.status_in(&headers)),
        (None, None)
    );
    assert_eq!(CODES.outcome(Code::from_number(0)), Outcome::Success);
    let codes = Codes::models()
        .code(Code::Aborted, Failure::transient())
        .errors(ErrorsAsFailures);
    let layer = CircuitBreakerLayer::new()
        .classify(codes.clone())
        .judge(EndOfBody.inspect(codes))
        .refuse(SoftRefusal);
    let circuit = layer.handle();
    let service = layer.layer(service_fn(model));
    circuit.force_open();
    let ask = Request::new(String::new());
    let response = service.oneshot(ask).await.unwrap();
    let code = Code::from_bytes(response.headers()["grpc-status"].as_bytes());
    assert_eq!((code, code.number()), (Code::Unavailable, 14));
}
