//! The names of feature `http`, and `judge` beside every setter that changes a layer's type.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::http::{
    ErrorEvents, Inspect, InspectBody, ResponseBody, SoftRefusal, StatusClassifier,
    rate_limit_reset, retry_after,
};
use tower_breaker::{
    CircuitBreakerLayer, Digest, EndOfBody, ErrorsAsFailures, Failure, FallbackLayer, Head,
    HealthRouter, Outcome, Refusal, TripwireLayer,
};

pub type Ask = Request<String>;

pub type Answer = Response<Full<Bytes>>;

pub async fn model(ask: Ask) -> Result<Answer, BoxError> {
    Ok(Response::new(Full::from(ask.into_body())))
}

/// Asks, and reads the answer to its end.
async fn answer<S, B>(service: S) -> String
where
    S: Service<Ask, Response = Response<B>, Error: std::fmt::Debug>,
    B: Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let ask = Request::new("an answer".to_owned());
    let response = service.oneshot(ask).await.unwrap();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[allow(clippy::needless_pass_by_value, clippy::unnecessary_wraps)] // As it is called.
fn soft(_: Ask, refusal: Refusal) -> Result<Answer, BoxError> {
    Ok(SoftRefusal::text()
        .response(&refusal)
        .map(|text: String| text.into()))
}

#[tokio::test(start_paused = true)]
async fn a_layer_takes_every_setter_after_judge() {
    let breaker = CircuitBreakerLayer::new()
        .judge(EndOfBody)
        .name("search")
        .classify(StatusClassifier::new())
        .refuse_with(soft)
        .slow_call(Duration::from_secs(10));
    let circuit = breaker.handle();
    assert_eq!(
        answer(breaker.clone().layer(service_fn(model))).await,
        "an answer"
    );
    let by_key = breaker.clone().per_key(|ask: &Ask| ask.body().as_str(), 10);
    assert_eq!(answer(by_key.layer(service_fn(model))).await, "an answer");
    let substituted = by_key.substitute(
        HealthRouter::new().route("an answer", ["another"]),
        |ask: &mut Ask, name: &str| *ask.body_mut() = name.to_owned(),
    );
    assert_eq!(
        answer(substituted.layer(service_fn(model))).await,
        "an answer"
    );
    let by_owned = breaker.per_owned_key(|ask: &Ask| ask.uri().clone(), 10);
    assert_eq!(answer(by_owned.layer(service_fn(model))).await, "an answer");
    assert!(circuit.would_allow());

    let services = FallbackLayer::new("gpt-5")
        .judge(EndOfBody)
        .backup("claude", service_fn(model))
        .classify(StatusClassifier::models())
        .refuse_with(soft)
        .served_by(|_: &mut Answer, _: &str| {})
        .same_turn(|ask: &Ask| Some(ask.clone()));
    assert_eq!(answer(services.layer(service_fn(model))).await, "an answer");
    let models = FallbackLayer::rewriting("gpt-5", |_: &mut Ask, _: &str| {})
        .judge(EndOfBody)
        .model("gpt-4");
    assert_eq!(answer(models.layer(service_fn(model))).await, "an answer");

    let tripwire = TripwireLayer::new()
        .judge(EndOfBody)
        .digest(|ask: &Ask| Some(Digest::of(ask.body())))
        .turn_of(|_: &Ask| 1)
        .limit_of(|_: &Ask| None)
        .name_of(|ask: &Ask| ask.body().as_str())
        .same_result(|answer: &Answer| Some(Digest::of(answer.status().as_str())))
        .classify(StatusClassifier::new())
        .refuse_with(soft);
    assert_eq!(
        answer(tripwire.clone().layer(service_fn(model))).await,
        "an answer"
    );
    let by_session = tripwire
        .clone()
        .per_session(|ask: &Ask| ask.body().as_str(), 10);
    assert_eq!(
        answer(by_session.layer(service_fn(model))).await,
        "an answer"
    );
    let by_owned = tripwire.per_owned_session(|ask: &Ask| ask.uri().clone(), 10);
    assert_eq!(answer(by_owned.layer(service_fn(model))).await, "an answer");
}

#[tokio::test(start_paused = true)]
async fn the_last_judge_holds_and_head_leaves_the_response_type() {
    let layer = CircuitBreakerLayer::new().judge(EndOfBody).judge(Head);
    let service = ServiceBuilder::new().layer(layer).service_fn(model);
    let response: Answer = service.oneshot(Ask::default()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

/// An inspector of the head alone.
#[derive(Clone)]
struct Looks;

impl<D> Inspect<D> for Looks {
    fn head(&mut self, status: StatusCode, _: &HeaderMap) {
        assert_eq!(status, StatusCode::OK);
    }

    fn frame(&mut self, _: &Frame<D>) -> Option<Outcome> {
        None
    }
}

fn by_function(frame: &Frame<Bytes>) -> Option<Outcome> {
    frame.is_trailers().then_some(Outcome::Neutral)
}

#[tokio::test(start_paused = true)]
async fn an_inspector_may_be_a_closure_a_function_or_a_type() {
    async fn inspected<I: Inspect<Bytes> + Clone>(by: I) {
        let judge: InspectBody<I> = EndOfBody.inspect(by);
        let layer = CircuitBreakerLayer::new().judge(judge);
        let service = layer.layer(service_fn(model));
        let response: Response<ResponseBody<Full<Bytes>, I>> =
            service.oneshot(Ask::default()).await.unwrap();
        assert!(response.into_body().is_end_stream());
    }
    let mut frames = 0;
    inspected(move |_: &Frame<Bytes>| {
        frames += 1;
        (frames > 100).then(|| Failure::transient().into())
    })
    .await;
    inspected(by_function).await;
    inspected(Looks).await;
    inspected(ErrorEvents::default()).await;
    inspected(ErrorEvents::as_failure(Failure::rate_limited())).await;
    inspected(()).await;
}

#[test]
fn statuses_hints_and_refusals_are_used_without_a_layer() {
    const TOOLS: StatusClassifier = StatusClassifier::new();
    let headers = HeaderMap::new();
    assert_eq!(
        (retry_after(&headers), rate_limit_reset(&headers)),
        (None, None)
    );
    let changed = TOOLS
        .status(StatusCode::CONFLICT, Failure::rate_limited())
        .statuses(300..=399, Outcome::Neutral)
        .errors(ErrorsAsFailures);
    let outcome = changed.of_head(StatusCode::FOUND, &headers);
    assert_eq!(outcome, Outcome::Neutral);

    const POLICY: SoftRefusal = SoftRefusal::problem();
    let layer = CircuitBreakerLayer::new().refuse(POLICY.status(StatusCode::TOO_MANY_REQUESTS));
    layer.handle().force_open();
    let refusal = layer.handle().try_acquire().unwrap_err();
    let response: Response<ResponseBody<String>> = POLICY.response(&refusal);
    assert!(response.body().get_ref().contains("forced_open"));
    let _service = layer.layer(service_fn(|(): ()| async {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
}
