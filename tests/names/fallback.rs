//! The names of the fallback.

use std::convert::Infallible;
use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{
    Cancelled, Classify, Event, Exhausted, Failure, FallbackHandle, FallbackLayer, FallbackState,
    Outcome, Refusal, RefusalsAsFailures,
};

use crate::{Ask, ask};

struct Answer {
    text: String,
    by: Option<String>,
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_services_takes_every_setter() {
    let backup = service_fn(|ask: Ask| async move {
        Ok::<_, BoxError>(Answer {
            text: ask.model,
            by: None,
        })
    });
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", backup)
        .backup(String::from("llama"), backup)
        .trip_threshold(3)
        .recovery_timeout(Duration::from_secs(60))
        .recovery_successes_needed(2)
        .max_fail_count(2)
        .probe_timeout(Duration::from_secs(120))
        .classify(|result: Result<&Answer, &BoxError>| match result {
            Ok(answer) if answer.text.is_empty() => Outcome::Failure(Failure::transient()),
            other => RefusalsAsFailures.classify(other),
        })
        .observe(|event: &Event<'_>| {
            if let Event::Served { .. } = event {
                assert!(event.name().is_some());
            }
        })
        .on_fallback(|from: &str, to: Option<&str>| {
            assert_eq!((from, to), ("gpt-5", Some("claude")));
        })
        .on_cancel(Cancelled::Release)
        .retry_after_cap(Duration::from_secs(60))
        .probation_limit(3)
        .bench(Duration::from_secs(300))
        .strikes_reset_on_success()
        .same_turn(|ask: &Ask| Some(ask.clone()))
        .when_exhausted(Exhausted::Refuse)
        .served_by(|answer: &mut Answer, name: &str| answer.by = Some(name.to_owned()));
    let handle: FallbackHandle = layer.handle();
    let mut model = ServiceBuilder::new()
        .layer(layer.clone())
        .service(service_fn(|_: Ask| async {
            Err::<Answer, BoxError>("503".into())
        }));
    for _ in 0..4 {
        let answer = model.ready().await.unwrap().call(ask()).await.unwrap();
        assert_eq!(answer.by.as_deref(), Some("claude"));
    }
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(handle.state().to_string(), "fallback");
    assert_eq!(handle.active_model().as_deref(), Some("claude"));
    assert!(handle.fallback_activated());
    handle.disable("claude").unwrap();
    handle.enable("claude").unwrap();
    let unknown = handle.disable("nobody").unwrap_err();
    assert!(unknown.to_string().contains("claude"), "{unknown}");
    assert_eq!(handle.snapshot().state, FallbackState::Fallback);
    handle.reset();
    assert!(!handle.fallback_activated());
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_models_behind_one_service_refuses_softly() {
    let layer = FallbackLayer::rewriting("gpt-5", |ask: &mut Ask, model: &str| {
        ask.model = model.into();
    })
    .model("gpt-5-mini")
    .model("gpt-4")
    .when_exhausted(Exhausted::LastResort)
    .refuse_with(|_: Ask, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()));
    let mut model = layer.layer(service_fn(|ask: Ask| async move {
        Ok::<_, Infallible>(ask.model)
    }));
    assert_eq!(
        model.ready().await.unwrap().call(ask()).await,
        Ok("gpt-5".to_owned())
    );
}
