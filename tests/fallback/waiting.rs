//! Proves that a caller that waits is woken by its backend and by every move of the chain.

use std::sync::Arc;
use std::task::Context;

use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::Service;
use tower_breaker::Reason;
use tower_test::assert_request_eq;

use crate::support::mocks::mocks;
use crate::support::{pass, refusal_in, secs};

#[tokio::test(start_paused = true)]
async fn a_backup_is_readied_by_poll_ready_and_not_only_by_its_call() {
    let mut mocks = mocks(|layer| layer);
    mocks.trip().await;
    mocks.a.allow(0);
    let mut service = task::spawn(mocks.service.clone());
    assert_pending!(service.enter(|cx, mut service| service.poll_ready(cx)));
    assert!(!service.is_woken());
    mocks.a.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.enter(|cx, mut service| service.poll_ready(cx)));
}

#[tokio::test(start_paused = true)]
async fn a_due_turn_waits_for_the_primary_and_a_backup_and_takes_the_first_that_is_ready() {
    let mut mocks = mocks(|layer| layer);
    mocks.trip().await;
    pass(secs(60)).await;
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
async fn a_caller_waiting_for_a_backup_is_woken_when_any_entry_is_disabled() {
    let mut mocks = mocks(|layer| layer);
    mocks.trip().await;
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
async fn a_service_dropped_while_it_waits_keeps_no_waker() {
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
    // The mock drops its own waker when it becomes ready.
    mocks.primary.allow(1);
    assert_eq!(Arc::strong_count(&waker), 1);
}
