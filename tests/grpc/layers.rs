//! Proves what the status in a head does to each layer.

use std::time::Duration;

use http::{HeaderValue, Request};
use tower_breaker::grpc::{Code, Codes};
use tower_breaker::{
    CircuitBreakerLayer, FailureKind, FallbackLayer, FallbackState, Refusal, State, TripwireLayer,
};

use crate::support::{pass, secs};
use crate::{Channel, asks, call, layer_on, status_of};

#[tokio::test(start_paused = true)]
async fn a_breaker_trips_on_the_servers_faults_and_not_on_the_callers_mistakes() {
    let layer = CircuitBreakerLayer::new().classify(Codes::new());
    let circuit = layer.handle();
    let channel = Channel::default();
    let mut service = layer_on(&layer, &channel);

    for _ in 0..100 {
        for code in [1, 3, 5, 6, 7, 9, 10, 11, 12, 16] {
            let answer = call(&mut service, asks(code)).await.unwrap();
            assert_eq!(status_of(&answer).number(), code);
        }
    }
    assert_eq!(circuit.state(), State::Closed);

    for code in [14, 13, 4] {
        assert_eq!(circuit.state(), State::Closed);
        call(&mut service, asks(code)).await.unwrap();
    }
    assert_eq!(circuit.state(), State::Open);
    let before = channel.calls();
    let refused = call(&mut service, asks(0)).await.unwrap_err();
    assert!(Refusal::find(&*refused).is_some());
    assert_eq!(channel.calls(), before);
}

#[tokio::test(start_paused = true)]
async fn a_pushback_lengthens_the_cooldown() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(Codes::new());
    let circuit = layer.handle();
    let mut service = layer_on(&layer, &Channel::default());
    let mut req = asks(8);
    req.headers_mut()
        .insert("grpc-retry-pushback-ms", HeaderValue::from_static("60000"));
    call(&mut service, req).await.unwrap();
    let refusal = circuit.try_acquire().unwrap_err();
    assert_eq!(refusal.retry_after(), Some(secs(60)));
    assert_eq!(refusal.last_failure(), Some(FailureKind::RateLimited));
    pass(Duration::from_millis(59_999)).await;
    assert!(!circuit.would_allow());
    pass(Duration::from_millis(1)).await;
    call(&mut service, asks(0)).await.unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_leaves_a_model_whose_key_is_revoked_at_once() {
    let channel = Channel::default();
    let backup = Channel::default();
    let layer = FallbackLayer::new("large")
        .backup("small", tower::util::BoxCloneService::new(backup.service()))
        .classify(Codes::models());
    let handle = layer.handle();
    let mut service = layer_on(&layer, &channel);

    let answer = call(&mut service, asks(3)).await.unwrap();
    assert_eq!(status_of(&answer), Code::InvalidArgument);
    assert_eq!(handle.state(), FallbackState::Primary);
    let answer = call(&mut service, asks(16)).await.unwrap();
    assert_eq!(status_of(&answer), Code::Unauthenticated);
    assert_eq!(handle.state(), FallbackState::Fallback);
    call(&mut service, asks(0)).await.unwrap();
    assert_eq!((channel.calls(), backup.calls()), (2, 1));
}

#[tokio::test]
async fn a_tripwire_counts_the_servers_faults_as_errors() {
    let layer = TripwireLayer::new()
        .digest(|_: &Request<i32>| None)
        .error_limit(2)
        .classify(Codes::new());
    let handle = layer.handle();
    let mut service = layer_on(&layer, &Channel::default());
    for code in [14, 5, 14] {
        assert_eq!(handle.state(), State::Closed);
        call(&mut service, asks(code)).await.unwrap();
    }
    assert_eq!(handle.state(), State::Open);
}
