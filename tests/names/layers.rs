//! Every public name of the fallback and of the tripwire, written as a user would. The test is
//! that it compiles.

use std::convert::Infallible;
use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{
    Cancelled, Classify, Digest, Event, Exhausted, Failure, FallbackHandle, FallbackLayer,
    FallbackState, Limit, Outcome, Reason, Refusal, RefusalsAsFailures, State, TripwireHandle,
    TripwireLayer,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Ask {
    model: String,
    run: String,
    turn: u32,
}

fn ask() -> Ask {
    Ask {
        model: "gpt-5".into(),
        run: "a".into(),
        turn: 1,
    }
}

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

#[tokio::test(start_paused = true)]
async fn a_fence_takes_every_setter() {
    let layer = TripwireLayer::new()
        .max_turns(8)
        .identical_limit(3)
        .error_limit(3)
        .open_cooldown_rejects(4)
        .deadline(Duration::from_secs(60))
        .digest(|ask: &Ask| Digest::of(&(&ask.model, &ask.run)))
        .cycles(3, 3)
        .warn_at(6)
        .turn_of(|ask: &Ask| ask.turn)
        .limit_of(|ask: &Ask| (ask.model == "status").then(Limit::exempt))
        .name_of(|ask: &Ask| ask.model.as_str())
        .same_result(|answer: &String| Digest::of(answer))
        .classify(|result: Result<&String, &BoxError>| match result {
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::Failure(Failure::transient()),
        })
        .observe(|event: &Event<'_>| assert!(!format!("{event:?}").is_empty()));
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|ask: Ask| async move {
        Ok::<_, BoxError>(ask.model)
    }));
    tool.ready().await.unwrap().call(ask()).await.unwrap();
    assert_eq!(
        (handle.state(), handle.turns(), handle.reason()),
        (State::Closed, 1, None)
    );
    assert!(handle.would_allow(&ask()));
    assert_eq!(handle.snapshot().state, State::Closed);
    handle.extend(2);
    handle.reset();
    assert_eq!(handle.turns(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_plain_fence_gives_its_reason() {
    let layer = TripwireLayer::new().observe_only();
    let _: TripwireHandle = layer.handle();
    let layer = TripwireLayer::new().max_turns(1);
    let mut tool = layer.layer(service_fn(
        |ask: Ask| async move { Ok::<_, BoxError>(ask.turn) },
    ));
    tool.ready().await.unwrap().call(ask()).await.unwrap();
    let err = tool.ready().await.unwrap().call(ask()).await.unwrap_err();
    let refusal = Refusal::find(&*err).unwrap();
    assert_eq!(refusal.reason(), Reason::MaxTurns);
    assert_eq!(refusal.count(), Some(1));
    let err = tool.ready().await.unwrap().call(ask()).await.unwrap_err();
    assert_eq!(
        Refusal::find(&*err).unwrap().tripped_by(),
        Some(Reason::MaxTurns)
    );
}

#[tokio::test(start_paused = true)]
async fn each_session_has_a_fence() {
    let layer = TripwireLayer::new()
        .max_turns(1)
        .refuse_with(|_: Ask, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()))
        .per_session(|ask: &Ask| ask.run.as_str(), 1_000);
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|ask: Ask| async move {
        Ok::<_, Infallible>(ask.run)
    }));
    assert_eq!(
        tool.ready().await.unwrap().call(ask()).await,
        Ok("a".to_owned())
    );
    assert_eq!(handle.turns("a"), 1);
    assert_eq!(handle.state("b"), State::Closed);
    handle.reset("a");
    assert!(handle.forget("a"));
}
