//! Proves refusals as trailers-only responses, from every layer.

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode};
use http_body::Body;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::grpc::{Code, Codes, SoftRefusal};
use tower_breaker::{CircuitBreakerLayer, EndOfBody, Outcome, Refusal, State, TripwireLayer};

use crate::support::pass;
use crate::{Answer, Channel, asks, call, layer_on, status_of, trailers_only};

/// What a client reads: the message, decoded as the specification says.
fn decoded(message: &HeaderValue) -> String {
    let mut rest = message.as_bytes();
    let mut bytes = Vec::new();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if let (b'%', [high, low, after @ ..]) = (first, tail) {
            let digits = [*high, *low];
            let digits = std::str::from_utf8(&digits).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_soft_refusal_is_a_trailers_only_unavailable_with_the_text_and_the_wait() {
    let layer = CircuitBreakerLayer::new()
        .name("recherche 100 % à côté")
        .classify(Codes::new().errors(|_: Result<&Answer, &Infallible>| Outcome::Neutral))
        .refuse(SoftRefusal);
    let circuit = layer.handle();
    let mut service =
        ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(|req: Request<i32>| async move {
                Ok::<_, Infallible>(trailers_only(*req.body()))
            }));
    for _ in 0..3 {
        call(&mut service, asks(14)).await.unwrap();
    }
    pass(Duration::from_micros(10_000_100)).await;

    let soft = call(&mut service, asks(0)).await.unwrap();
    assert_eq!(soft.status(), StatusCode::OK);
    assert_eq!(soft.headers()["content-type"], "application/grpc");
    assert_eq!(soft.headers()["grpc-status"], "14");
    assert_eq!(soft.headers()["grpc-retry-pushback-ms"], "20000");
    assert!(soft.body().is_end_stream());
    let message = &soft.headers()["grpc-message"];
    assert!(
        message
            .as_bytes()
            .iter()
            .all(|byte| matches!(byte, 0x20..=0x7e))
    );
    let refusal = circuit.try_acquire().unwrap_err();
    assert_eq!(decoded(message), refusal.to_string());
    assert!(refusal.to_string().contains("`recherche 100 % à côté`"));
}

#[tokio::test]
async fn a_soft_refusal_without_a_known_time_has_no_pushback() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .refuse(SoftRefusal);
    layer.handle().force_open();
    let mut service = layer_on(&layer, &Channel::default());
    let soft = call(&mut service, asks(0)).await.unwrap();
    assert_eq!(status_of(&soft), Code::Unavailable);
    assert!(!soft.headers().contains_key("grpc-retry-pushback-ms"));
}

#[tokio::test]
async fn a_soft_refusal_of_a_service_that_was_not_ready_says_retry_at_once() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .refuse(SoftRefusal);
    let mut service = layer_on(&layer, &Channel::default());
    let soft: Answer = service.call(asks(0)).await.unwrap();
    assert_eq!(soft.headers()["grpc-retry-pushback-ms"], "0");
}

#[tokio::test]
async fn a_soft_refusal_keeps_its_head_where_bodies_are_judged_at_their_end() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .refuse(SoftRefusal)
        .judge(EndOfBody.inspect(Codes::new()));
    let circuit = layer.handle();
    circuit.force_open();
    let mut service = layer.layer(service_fn(|req: Request<i32>| async move {
        Ok::<_, BoxError>(trailers_only(*req.body()))
    }));
    let soft = service.ready().await.unwrap().call(asks(0)).await.unwrap();
    assert_eq!(soft.headers()["grpc-status"], "14");
    assert!(soft.body().is_end_stream());
}

#[tokio::test]
async fn an_outermost_then_makes_the_same_response_of_any_layers_refusal() {
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .classify(Codes::new());
    let circuit = layer.handle();
    circuit.force_open();
    let tripwire = TripwireLayer::new()
        .digest(|_: &Request<i32>| None)
        .error_limit(1)
        .classify(Codes::new());
    let fence = tripwire.handle();
    let channel = Channel::default();
    let mut service = ServiceBuilder::new()
        .then(|result: Result<Answer, BoxError>| async move {
            match result {
                Err(err) => match Refusal::find(&*err) {
                    Some(refusal) => Ok(SoftRefusal.response(refusal)),
                    None => Err(err),
                },
                answer => answer,
            }
        })
        .layer(tripwire)
        .layer(layer)
        .service(channel.service());
    let refusal = circuit.try_acquire().unwrap_err();
    for _ in 0..3 {
        let soft = call(&mut service, asks(0)).await.unwrap();
        assert_eq!(status_of(&soft), Code::Unavailable);
        assert_eq!(
            decoded(&soft.headers()["grpc-message"]),
            refusal.to_string()
        );
    }
    assert_eq!((channel.calls(), fence.state()), (0, State::Closed));
}
