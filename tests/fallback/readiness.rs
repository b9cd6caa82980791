//! Which service is polled ready, which callers are woken, and how a readiness error counts.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_breaker::{Cancelled, FallbackLayer, FallbackState, Reason, Refusal};
use tower_test::assert_request_eq;

use super::fixture::{Mocks, Text, mocks, pair, trip_mocks};
use crate::support::models::{Model, advance, classify, strikes};

fn refusal_in(err: &BoxError) -> &Refusal {
    Refusal::find(&**err).expect("a refusal")
}

#[tokio::test(start_paused = true)]
async fn the_backend_chosen_in_poll_ready_is_the_one_that_is_called() {
    let mut mocks = mocks(|layer| layer.recovery_successes_needed(1));
    trip_mocks(&mut mocks).await;
    let mut readied = task::spawn(mocks.service.clone());
    assert_ready_ok!(readied.enter(|cx, mut service| service.poll_ready(cx)));

    // The primary recovers meanwhile.
    advance(60).await;
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
async fn a_backup_is_readied_by_poll_ready_and_not_only_by_its_call() {
    let mut mocks = mocks(|layer| layer);
    trip_mocks(&mut mocks).await;
    mocks.a.allow(0);
    let mut service = task::spawn(mocks.service.clone());
    assert_pending!(service.enter(|cx, mut service| service.poll_ready(cx)));
    assert!(!service.is_woken());
    mocks.a.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.enter(|cx, mut service| service.poll_ready(cx)));
}

#[tokio::test(start_paused = true)]
async fn a_never_ready_primary_blocks_no_backup() {
    let mut mocks = mocks(|layer| layer);
    trip_mocks(&mut mocks).await;
    mocks.primary.allow(0);
    advance(60).await;
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
async fn a_probe_that_waits_for_the_primary_and_a_backup_takes_the_first_that_is_ready() {
    let mut mocks = mocks(|layer| layer);
    trip_mocks(&mut mocks).await;
    advance(60).await;
    for primary_first in [true, false] {
        mocks.primary.allow(0);
        mocks.a.allow(0);
        let mut service = task::spawn(mocks.service.clone());
        assert_pending!(service.enter(|cx, mut service| service.poll_ready(cx)));
        let first = if primary_first {
            &mut mocks.primary
        } else {
            &mut mocks.a
        };
        first.allow(1);
        assert!(service.is_woken());
        assert_ready_ok!(service.enter(|cx, mut service| service.poll_ready(cx)));
        let turn = service.enter(|_, mut service| service.call("hello"));
        let answer = async {
            let (_, send) = first.next_request().await.expect("called");
            send.send_response("well");
        };
        assert_eq!(tokio::join!(turn, answer).0.unwrap(), "well");
    }
    assert_eq!(mocks.handle.snapshot().probe_successes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_waiting_for_the_primary_is_woken_when_it_trips_and_goes_to_the_chain() {
    let mut mocks = mocks(|layer| layer);
    mocks.primary.allow(3);
    let mut turns = Vec::new();
    for _ in 0..3 {
        let mut service = mocks.service.clone();
        assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
        turns.push(service.call("trip"));
    }
    let mut waiting = task::spawn(mocks.service.clone());
    assert_pending!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
    for turn in turns {
        assert!(!waiting.is_woken());
        let (_, send) = mocks.primary.next_request().await.expect("called");
        send.send_error("down");
        turn.await.unwrap_err();
    }
    assert!(waiting.is_woken());
    assert_ready_ok!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
    let turn = waiting.enter(|_, mut service| service.call("hello"));
    let answer = async {
        assert_request_eq!(mocks.a, "hello").send_response("from a");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from a");
}

#[tokio::test(start_paused = true)]
async fn a_caller_waiting_for_a_backup_is_woken_when_it_is_disabled_and_when_the_last_one_is() {
    let mut mocks = mocks(|layer| layer);
    trip_mocks(&mut mocks).await;
    mocks.a.allow(0);
    mocks.b.allow(0);
    let mut waiting = task::spawn(mocks.service.clone());
    assert_pending!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
    mocks.handle.disable("a").unwrap();
    assert!(waiting.is_woken());
    assert_pending!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
    assert!(!waiting.is_woken());
    mocks.handle.disable("b").unwrap();
    assert!(waiting.is_woken());
    assert_ready_ok!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
    let err = waiting
        .enter(|_, mut service| service.call("hello"))
        .await
        .unwrap_err();
    assert_eq!(refusal_in(&err).reason(), Reason::FallbackExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_dropped_while_it_waits_leaves_no_waker_behind() {
    struct Count;
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {}
    }
    let mut mocks = mocks(|layer| layer);
    mocks.primary.allow(0);
    let waker = Arc::new(Count);
    let mut service = mocks.service.clone();
    let task = std::task::Waker::from(Arc::clone(&waker));
    assert_pending!(service.poll_ready(&mut Context::from_waker(&task)));
    assert!(Arc::strong_count(&waker) > 2, "the chain holds one");
    drop((service, task));
    // The mock itself holds another waker, and drops it here.
    mocks.primary.allow(1);
    assert_eq!(Arc::strong_count(&waker), 1);
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_of_the_primary_is_a_failed_turn_of_it_and_is_passed_on() {
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
    trip_mocks(&mut mocks).await;
    mocks.primary.send_error("gone");
    advance(60).await;
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
    trip_mocks(&mut mocks).await;
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
async fn a_readied_primary_that_trips_is_not_called_and_a_clone_of_the_backup_is_readied() {
    let mut mocks = mocks(|layer| layer);
    let mut readied = task::spawn(mocks.service.clone());
    assert_ready_ok!(readied.enter(|cx, mut service| service.poll_ready(cx)));
    trip_mocks(&mut mocks).await;

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
async fn a_turn_whose_probe_another_turn_took_goes_to_the_chain() {
    let mut mocks = mocks(|layer| layer);
    trip_mocks(&mut mocks).await;
    advance(60).await;
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
async fn a_clone_that_fails_to_become_ready_is_a_failed_turn_of_its_entry() {
    let mut mocks = mocks(|layer| layer);
    let mut readied = task::spawn(mocks.service.clone());
    assert_ready_ok!(readied.enter(|cx, mut service| service.poll_ready(cx)));
    trip_mocks(&mut mocks).await;
    mocks.a.send_error("gone");
    let turn = readied.enter(|_, mut service| service.call("hello"));
    turn.await.unwrap_err();
    assert_eq!(strikes(&mocks.handle.snapshot()), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_not_polled_ready_is_refused_and_takes_no_probe() {
    let mut mocks = mocks(|layer| layer);
    let not_ready = async |mocks: &Mocks| {
        let mut service = mocks.service.clone();
        let err = service.call("hello").await.unwrap_err();
        assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
        assert_eq!(refusal_in(&err).retry_after(), Some(Duration::ZERO));
    };
    not_ready(&mocks).await;
    trip_mocks(&mut mocks).await;
    not_ready(&mocks).await;
    advance(60).await;
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
async fn a_call_of_a_service_that_was_not_polled_ready_is_no_cancelled_turn_of_a_backup() {
    let mut mocks = mocks(|layer| layer.on_cancel(Cancelled::Failure));
    trip_mocks(&mut mocks).await;
    let err = mocks.service.clone().call("hello").await.unwrap_err();
    assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
    assert_eq!(strikes(&mocks.handle.snapshot()), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_to_be_refused_goes_to_an_entry_that_has_become_live_since() {
    let mut mocks = mocks(|layer| layer);
    trip_mocks(&mut mocks).await;
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

    // The turn is no probe even if the cooldown is over by now, because nobody readied the
    // primary.
    mocks.handle.disable("b").unwrap();
    service.ready().await.unwrap();
    advance(60).await;
    let err = service.call("hello").await.unwrap_err();
    assert_eq!(refusal_in(&err).reason(), Reason::NotReady);
    assert!(mocks.handle.snapshot().due);
}

#[tokio::test(start_paused = true)]
async fn one_service_that_fails_to_become_ready_strikes_the_model_that_it_would_have_served() {
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

#[tokio::test(start_paused = true)]
async fn a_service_that_was_called_often_is_refused_too_when_it_was_not_polled_ready_again() {
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
