//! Proves who is polled, who is called, and what readiness a clone has.

use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_breaker::{Cancelled, FallbackLayer, FallbackState, Reason, Refusal};
use tower_test::assert_request_eq;

use crate::support::mocks::{Mocks, Text, mocks, pair};
use crate::support::model::{Model, classify, strikes};
use crate::support::{pass, refusal_in, secs};

#[tokio::test(start_paused = true)]
async fn the_backend_chosen_in_poll_ready_is_the_one_that_is_called() {
    let mut mocks = mocks(|layer| layer.recovery_successes_needed(1));
    mocks.trip().await;
    let mut readied = task::spawn(mocks.service.clone());
    assert_ready_ok!(readied.enter(|cx, mut service| service.poll_ready(cx)));

    // The primary recovers meanwhile.
    pass(secs(60)).await;
    let probe = mocks.service.clone().oneshot("probe");
    let answer = async {
        assert_request_eq!(mocks.primary, "probe").send_response("well");
    };
    assert_eq!(tokio::join!(probe, answer).0.unwrap(), "well");
    assert_eq!(mocks.handle.state(), FallbackState::Primary);

    let turn = readied.enter(|_, mut service| service.call("hello"));
    let answer = async {
        assert_request_eq!(mocks.a, "hello").send_response("from a");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from a");
}

#[tokio::test(start_paused = true)]
async fn a_never_ready_primary_blocks_no_backup() {
    let mut mocks = mocks(|layer| layer);
    mocks.trip().await;
    mocks.primary.allow(0);
    pass(secs(60)).await;
    let turn = mocks.service.clone().oneshot("hello");
    let answer = async {
        assert_request_eq!(mocks.a, "hello").send_response("from a");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from a");
    assert_eq!(mocks.handle.state(), FallbackState::Recovering);
    assert!(mocks.handle.snapshot().due, "the probe is still to be had");

    // As soon as it is ready, it is probed.
    mocks.primary.allow(1);
    let turn = mocks.service.clone().oneshot("probe");
    let answer = async {
        assert_request_eq!(mocks.primary, "probe").send_response("well");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "well");
    assert_eq!(mocks.handle.snapshot().probe_successes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_tripped_after_poll_ready_is_not_called_and_a_clone_of_the_backup_serves() {
    let mut mocks = mocks(|layer| layer);
    let mut readied = task::spawn(mocks.service.clone());
    assert_ready_ok!(readied.enter(|cx, mut service| service.poll_ready(cx)));
    mocks.trip().await;

    mocks.a.allow(0);
    let mut turn = task::spawn(readied.enter(|_, mut service| service.call("hello")));
    assert_pending!(turn.poll());
    assert_pending!(mocks.a.poll_request());
    assert_pending!(mocks.primary.poll_request());
    mocks.a.allow(1);
    assert!(turn.is_woken());
    assert_pending!(turn.poll());
    assert_request_eq!(mocks.a, "hello").send_response("from a");
    assert!(turn.is_woken());
    assert_eq!(assert_ready_ok!(turn.poll()), "from a");
}

#[tokio::test(start_paused = true)]
async fn a_turn_whose_probe_another_took_goes_to_the_chain() {
    let mut mocks = mocks(|layer| layer);
    mocks.trip().await;
    pass(secs(60)).await;
    let mut services = [
        task::spawn(mocks.service.clone()),
        task::spawn(mocks.service.clone()),
    ];
    for service in &mut services {
        assert_ready_ok!(service.enter(|cx, mut service| service.poll_ready(cx)));
    }
    let mut turns = services.map(|mut service| {
        let turn = service.enter(|_, mut service| service.call("hello"));
        task::spawn(turn)
    });
    for turn in &mut turns {
        assert_pending!(turn.poll());
    }
    assert_request_eq!(mocks.a, "hello").send_response("from a");
    assert_request_eq!(mocks.primary, "hello").send_response("well");
    let [mut probe, mut other] = turns;
    assert_eq!(assert_ready_ok!(probe.poll()), "well");
    assert_eq!(assert_ready_ok!(other.poll()), "from a");
    assert_eq!(mocks.handle.snapshot().probe_successes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_to_be_refused_goes_to_an_entry_enabled_since() {
    let mut mocks = mocks(|layer| layer);
    mocks.trip().await;
    mocks.handle.disable("a").unwrap();
    mocks.handle.disable("b").unwrap();
    let mut service = mocks.service.clone();
    service.ready().await.unwrap();
    mocks.handle.enable("b").unwrap();
    let turn = service.call("hello");
    let answer = async {
        assert_request_eq!(mocks.b, "hello").send_response("from b");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from b");

    // Nor is it a probe if the cooldown ended since, because nobody readied the primary.
    mocks.handle.disable("b").unwrap();
    service.ready().await.unwrap();
    pass(secs(60)).await;
    let err = service.call("hello").await.unwrap_err();
    assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
    assert!(mocks.handle.snapshot().due);
}

// ===== calls without readiness =====

#[tokio::test(start_paused = true)]
async fn a_call_without_readiness_is_refused_and_takes_no_probe() {
    let mut mocks = mocks(|layer| layer);
    let not_ready = async |mocks: &Mocks| {
        let mut service = mocks.service.clone();
        let err = service.call("hello").await.unwrap_err();
        assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
        assert_eq!(refusal_in(&err).retry_after(), Some(Duration::ZERO));
    };
    not_ready(&mocks).await;
    mocks.trip().await;
    not_ready(&mocks).await;
    pass(secs(60)).await;
    not_ready(&mocks).await;
    assert!(mocks.handle.snapshot().due);
    assert_eq!(mocks.handle.state(), FallbackState::Fallback);
    // A clone carries no readiness.
    let mut service = mocks.service.clone();
    service.ready().await.unwrap();
    let err = service.clone().call("hello").await.unwrap_err();
    assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
    assert_pending!(mocks.primary.poll_request());
    assert_pending!(mocks.a.poll_request());
}

#[tokio::test(start_paused = true)]
async fn a_call_without_readiness_is_no_cancelled_turn_of_a_backup() {
    let mut mocks = mocks(|layer| layer.on_cancel(Cancelled::Failure));
    mocks.trip().await;
    let err = mocks.service.clone().call("hello").await.unwrap_err();
    assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
    assert_eq!(strikes(&mocks.handle.snapshot()), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn readiness_holds_for_one_call() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary").classify(classify);
    let mut service = layer.layer(primary.clone());
    for _ in 0..5 {
        let turn = service.ready().await.unwrap().call(String::new());
        assert_eq!(turn.await.unwrap().by, "primary");
        let err = service.call(String::new()).await.unwrap_err();
        assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
    }
    assert_eq!(primary.count(), 5);
}

// ===== errors of readiness =====

#[tokio::test(start_paused = true)]
async fn a_readiness_error_of_the_primary_is_its_failed_turn_and_is_passed_on() {
    let mut mocks = mocks(|layer| layer);
    for failures in 1..=3 {
        mocks.primary.send_error("gone");
        assert_eq!(mocks.handle.state(), FallbackState::Primary);
        let mut service = task::spawn(mocks.service.clone());
        let err = assert_ready_err!(service.enter(|cx, mut service| service.poll_ready(cx)));
        assert!(Refusal::find(&*err).is_none());
        assert_eq!(mocks.handle.snapshot().consecutive_failures, failures % 3);
    }
    assert_eq!(mocks.handle.state(), FallbackState::Fallback);
    let turn = mocks.service.clone().oneshot("hello");
    let answer = async {
        assert_request_eq!(mocks.a, "hello").send_response("from a");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from a");
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_of_the_primary_is_a_failed_probe_when_one_is_due() {
    let mut mocks = mocks(|layer| layer.probation_limit(1));
    mocks.trip().await;
    mocks.primary.send_error("gone");
    pass(secs(60)).await;
    let mut service = task::spawn(mocks.service.clone());
    assert_ready_err!(service.enter(|cx, mut service| service.poll_ready(cx)));
    let snapshot = mocks.handle.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.trips),
        (FallbackState::Fallback, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_of_a_backup_is_its_strike() {
    let mut mocks = mocks(|layer| layer);
    mocks.trip().await;
    for strike in 1..=2 {
        mocks.a.send_error("gone");
        let mut service = task::spawn(mocks.service.clone());
        assert_ready_err!(service.enter(|cx, mut service| service.poll_ready(cx)));
        assert_eq!(strikes(&mocks.handle.snapshot()), [strike, 0]);
    }
    let turn = mocks.service.clone().oneshot("hello");
    let answer = async {
        assert_request_eq!(mocks.b, "hello").send_response("from b");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from b");
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_fails_to_become_ready_is_a_failed_turn_of_its_entry() {
    let mut mocks = mocks(|layer| layer);
    let mut readied = task::spawn(mocks.service.clone());
    assert_ready_ok!(readied.enter(|cx, mut service| service.poll_ready(cx)));
    mocks.trip().await;
    mocks.a.send_error("gone");
    let turn = readied.enter(|_, mut service| service.call("hello"));
    turn.await.unwrap_err();
    assert_eq!(strikes(&mocks.handle.snapshot()), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_fails_to_become_ready_has_failed_whatever_the_classifier_says() {
    let (service, _primary) = pair();
    let (backup, mut a) = pair();
    let layer = FallbackLayer::new("primary")
        .backup("a", backup)
        .trip_threshold(1)
        .classify(|result: Result<&Text, &BoxError>| match result {
            Err(err) if err.to_string() == "gone" => tower_breaker::Outcome::Neutral,
            Err(_) => tower_breaker::Failure::transient().into(),
            Ok(_) => tower_breaker::Outcome::Success,
        });
    let handle = layer.handle();
    let mut readied = layer.layer(service.clone());
    readied.ready().await.unwrap();
    let failing = tower::service_fn(|_: Text| async { Err::<Text, _>(BoxError::from("down")) });
    layer.layer(failing).oneshot("trip").await.unwrap_err();
    assert_eq!(handle.state(), FallbackState::Fallback);
    a.send_error("gone");
    readied.call("hello").await.unwrap_err();
    assert_eq!(strikes(&handle.snapshot()), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_of_the_one_service_strikes_the_model_that_would_have_served() {
    let (primary, mut remote) = pair();
    let layer = FallbackLayer::rewriting("gpt-5", |_: &mut Text, _: &str| ()).model("gpt-4");
    let (service, handle) = (layer.layer(primary), layer.handle());
    for _ in 0..4 {
        remote.send_error("gone");
        service.clone().oneshot("hello").await.unwrap_err();
    }
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(strikes(&handle.snapshot()), [1]);
}
