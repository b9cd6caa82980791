//! Proves that a panic of a model or of a classifier gives a verdict, and never loses the slot.

use tokio_test::task;
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Cancelled, FallbackLayer, FallbackState};

use crate::support::model::{
    Answer, DOWN, Does, Model, ModelError, classify, strikes, turn, turns,
};
use crate::support::{pass, secs};

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_the_entry_that_served_and_frees_the_slot() {
    let (primary, a) = (Model::new("primary"), Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .max_fail_count(4)
        .classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    let panics = async |does: Does, model: &Model| {
        model.does(does);
        let turn = tokio::spawn(service.clone().oneshot(String::new()));
        assert!(turn.await.unwrap_err().is_panic());
        model.does(Does::Answer);
    };
    panics(Does::PanicInCall, &primary).await;
    panics(Does::PanicInPoll, &primary).await;
    assert_eq!(handle.snapshot().consecutive_failures, 2);
    panics(Does::PanicInCall, &primary).await;
    assert_eq!(handle.state(), FallbackState::Fallback);
    panics(Does::PanicInCall, &a).await;
    panics(Does::PanicInPoll, &a).await;
    assert_eq!(strikes(&handle.snapshot()), [2]);
    pass(secs(60)).await;
    panics(Does::PanicInPoll, &primary).await;
    assert_eq!(handle.snapshot().probe_failures, 1);
    assert_eq!(turns(&service, 2).await, vec![Ok("primary"); 2]);
    assert_eq!(handle.state(), FallbackState::Primary);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_classifier_panics_gives_its_slot_back() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .trip_threshold(1)
        .on_cancel(Cancelled::Release)
        .classify(|result: Result<&Answer, &ModelError>| match result {
            Ok(_) => panic!("a classifier that panics"),
            err => classify(err),
        });
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    turn(&service).await.unwrap_err();
    pass(secs(60)).await;
    primary.does(Does::Answer);
    let turn = tokio::spawn(service.clone().oneshot(String::new()));
    assert!(turn.await.unwrap_err().is_panic());
    let snapshot = handle.snapshot();
    assert!(snapshot.due, "the slot was given back");
    assert_eq!((snapshot.probe_successes, snapshot.probe_failures), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_cancels_the_turn_before_its_future_is_dropped() {
    let layer = FallbackLayer::new("primary")
        .trip_threshold(1)
        .on_cancel(Cancelled::Failure)
        .classify(|_: Result<&Answer, &ModelError>| panic!("a classifier that panics"));
    let mut service = layer.layer(Model::new("primary"));
    let mut turn = task::spawn(service.ready().await.unwrap().call(String::new()));
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turn.poll().is_ready()));
    assert!(polled.is_err());
    assert_eq!(layer.handle().state(), FallbackState::Fallback);
    drop(turn);
    assert_eq!(layer.handle().snapshot().trips, 1);
}
