//! Proves refusals as responses, from every layer.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::oneshot;
use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::http::{ResponseBody, SoftRefusal, StatusClassifier};
use tower_breaker::{
    Cancelled, CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer, Digest, EndOfBody,
    FailureKind, FallbackLayer, Outcome, Reason, Refusal, State, TripwireLayer,
};

use crate::support::body::{Says, Server, Step, breaker, call, piped};
use crate::support::{NS, pass, secs};
use crate::{Scripted, ask, get, response, server};

type Answers = Response<Full<Bytes>>;

/// A guarded tool. The request says when it answers, and with which status.
fn guarded(
    policy: SoftRefusal,
) -> (
    CircuitBreakerHandle,
    CircuitBreaker<
        impl Service<oneshot::Receiver<u16>, Response = Answers, Error = Infallible>,
        StatusClassifier,
        SoftRefusal,
    >,
) {
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .classify(StatusClassifier::new())
        .refuse(policy);
    let tool = service_fn(|status: oneshot::Receiver<u16>| async move {
        let status = status.await.expect("an answer");
        Ok(response(status, &[]).map(Full::from))
    });
    (layer.handle(), layer.layer(tool))
}

fn at_once(status: u16) -> oneshot::Receiver<u16> {
    let (send, receive) = oneshot::channel();
    send.send(status).unwrap();
    receive
}

async fn body(answer: Answers) -> String {
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Case 20.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_a_503_that_says_how_long_to_wait() {
    let (handle, mut service) = guarded(SoftRefusal::text());
    for _ in 0..3 {
        let Ok(answer) = service.ready().await.unwrap().call(at_once(503)).await;
        assert!(body(answer).await.is_empty(), "the service's own");
    }
    pass(secs(10)).await;
    let refused = |answer: Answers, seconds: &'static str| async move {
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["retry-after"], seconds);
        assert_eq!(
            answer.headers()["content-type"],
            "text/plain; charset=utf-8"
        );
        assert_eq!(
            body(answer).await,
            "tool `search` temporarily unavailable: circuit breaker open"
        );
    };
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "20").await;
    // Rounded up, so that a caller who comes back then is not refused again.
    pass(NS).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "20").await;
    pass(secs(19)).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "1").await;

    // In half-open, the lease's rest.
    pass(secs(1)).await;
    let (answer_probe, asked) = oneshot::channel();
    let mut probe = task::spawn(service.ready().await.unwrap().call(asked));
    assert_pending!(probe.poll());
    assert_eq!(handle.state(), State::HalfOpen);
    pass(secs(5)).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    refused(answer, "25").await;
    let refusal = handle.try_acquire().unwrap_err();
    assert_eq!(refusal.reason(), Reason::ProbeInFlight);
    assert_eq!(refusal.last_failure(), Some(FailureKind::Transient));
    answer_probe.send(200).unwrap();
    let Ok(answer) = probe.await;
    assert_eq!(
        (answer.status().as_u16(), handle.state()),
        (200, State::Closed)
    );

    // Pinned, no time is known.
    handle.force_open();
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    assert_eq!(answer.headers().get("retry-after"), None);
}

/// Case 20.
#[tokio::test(start_paused = true)]
async fn a_refusal_as_a_problem_is_json() {
    let (_handle, mut service) = guarded(SoftRefusal::problem());
    for _ in 0..3 {
        let Ok(_) = service.ready().await.unwrap().call(at_once(500)).await;
    }
    pass(secs(10)).await;
    let Ok(answer) = service.ready().await.unwrap().call(at_once(200)).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "20");
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&body(answer).await).unwrap();
    assert_eq!(
        problem,
        serde_json::json!({
            "type": "about:blank",
            "title": "Service Unavailable",
            "status": 503,
            "detail": "tool `search` temporarily unavailable: circuit breaker open",
            "reason": "circuit_open",
            "name": "search",
            "retry_after": 20,
        })
    );
}

/// A key may be a name that a model wrote.
#[tokio::test(start_paused = true)]
async fn a_name_written_by_a_model_stays_inside_its_json_string() {
    let name = "a\"}\\\n\u{1}`{";
    let layer = CircuitBreakerLayer::new()
        .per_key(|name: &String| name.as_str(), 10)
        .refuse(SoftRefusal::problem());
    layer.handle().force_open(name);
    let service = layer.layer(service_fn(|_: String| async {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let Ok(answer) = service.oneshot(name.to_owned()).await;
    let problem: serde_json::Value = serde_json::from_str(answer.body()).unwrap();
    assert_eq!(problem["name"], name);
    assert_eq!(problem["reason"], "forced_open");
    assert_eq!(problem.get("retry_after"), None);
}

/// The inner layers refuse with errors. One outermost `then` makes the response for all of them.
#[tokio::test(start_paused = true)]
async fn one_outermost_then_answers_the_refusals_of_every_layer() {
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .classify(StatusClassifier::new());
    let tripwire = TripwireLayer::new()
        .max_turns(4)
        .digest(|_: &Scripted| None::<Digest>)
        .classify(StatusClassifier::new().statuses(500..=599, Outcome::Neutral));
    let (circuit, fence) = (breaker.handle(), tripwire.handle());
    let mut service = ServiceBuilder::new()
        .then(|result: Scripted| async move {
            match result {
                Err(err) => match Refusal::find(&*err) {
                    Some(refusal) => Ok(SoftRefusal::problem().response(refusal)),
                    None => Err(err),
                },
                answer => answer,
            }
        })
        .layer(tripwire)
        .layer(breaker)
        .service_fn(server);
    for _ in 0..3 {
        get(&mut service, 503).await;
    }
    let reason = |answer: Option<Scripted>| {
        let answer = answer.expect("a response").unwrap();
        let problem: serde_json::Value = serde_json::from_str(answer.body()).unwrap();
        let seconds = answer.headers().get("retry-after").cloned();
        (problem["reason"].as_str().unwrap().to_owned(), seconds)
    };
    let answer = ask(&mut service, Ok(response(200, &[]))).await;
    assert_eq!(reason(answer), ("circuit_open".into(), Some(30.into())));
    assert_eq!(
        (circuit.state(), fence.state()),
        (State::Open, State::Closed)
    );
    let answer = ask(&mut service, Ok(response(200, &[]))).await;
    assert_eq!(reason(answer), ("max_turns".into(), None));
    assert_eq!(fence.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_tripwires_soft_refusal_may_have_another_status() {
    let layer = TripwireLayer::new()
        .max_turns(0)
        .digest(|_: &Scripted| None::<Digest>)
        .refuse(SoftRefusal::text().status(StatusCode::CONFLICT));
    let service = layer.layer(service_fn(server));
    let answer = service.oneshot(Ok(response(200, &[]))).await.unwrap();
    assert_eq!(answer.status(), 409);
    assert_eq!(answer.headers().get("retry-after"), None);
    assert!(answer.body().contains("all 0 turns"), "{answer:?}");
}

/// A soft policy leaves the inner service's own errors as they are.
#[tokio::test(start_paused = true)]
async fn a_soft_refusal_of_a_fallback_tells_the_time_until_its_primary_is_probed() {
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", service_fn(server))
        .classify(StatusClassifier::models())
        .refuse(SoftRefusal::problem());
    let mut service = layer.layer(service_fn(server));
    for status in [401, 403] {
        get(&mut service, status).await;
    }
    pass(Duration::from_millis(20_500)).await;
    let answer = ask(&mut service, Ok(response(200, &[]))).await;
    let answer = answer.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "40");
    assert!(answer.body().contains("\"reason\":\"fallback_exhausted\""));
    assert!(answer.body().contains("\"name\":\"gpt-5\""));

    let err = CircuitBreakerLayer::new()
        .refuse(SoftRefusal::text())
        .layer(service_fn(server))
        .oneshot(Err("down".into()))
        .await
        .unwrap_err();
    assert_eq!(err.to_string(), "down");
}

#[tokio::test(start_paused = true)]
async fn the_body_of_a_soft_refusal_says_nothing() {
    let server = Server::default();
    let layer = breaker()
        .on_cancel(Cancelled::Failure)
        .refuse_with(|_: Request<()>, _| {
            let (pipe, body) = piped(Says::Nothing);
            pipe.send(Step::Data("try later"));
            Ok::<_, BoxError>(Response::new(body))
        })
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    for read in [true, false] {
        let body = call(&mut stack).await.unwrap();
        if read {
            assert_eq!(body.collect().await.unwrap().to_bytes(), "try later");
        }
    }
    pass(secs(30)).await;
    assert!(circuit.would_allow(), "its bodies moved nothing");
    let text: ResponseBody<Full<Bytes>> = "made of a text".to_owned().into();
    assert_eq!(text.collect().await.unwrap().to_bytes(), "made of a text");
    let empty = ResponseBody::<Full<Bytes>>::default();
    assert!(empty.collect().await.unwrap().to_bytes().is_empty());
}
