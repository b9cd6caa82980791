//! The names of the tripwire.

use std::convert::Infallible;
use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::{
    Digest, Event, Failure, Limit, Outcome, Reason, Refusal, State, TripwireHandle, TripwireLayer,
};

use crate::{Ask, ask};

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
async fn a_fences_refusals_tell_why() {
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
