//! What tower asks of a fallback.

mod fallback_support;

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use fallback_support::{
    Answer, DOWN, Does, FATAL, Model, ModelError, advance, classify, strikes, turn, turns,
};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::buffer::Buffer;
use tower::retry::{Policy, Retry};
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_breaker::{
    Cancelled, EntryChange, Event, FallbackLayer, FallbackState, IntoError, Reason, Refusal,
};
use tower_test::mock::{self, Mock};
use tower_test::{assert_request_eq, mock::Handle};

type Text = &'static str;

fn pair() -> (Mock<Text, Text>, Handle<Text, Text>) {
    mock::pair()
}

/// A primary and its backups as mocks, behind the layer that `set` makes of the default one.
struct Mocks {
    primary: Handle<Text, Text>,
    a: Handle<Text, Text>,
    b: Handle<Text, Text>,
    handle: tower_breaker::FallbackHandle,
    service: Guarded,
}

type Guarded =
    tower_breaker::Fallback<Mock<Text, Text>, tower_breaker::fallback::Services<Mock<Text, Text>>>;
type Layered = FallbackLayer<tower_breaker::fallback::Services<Mock<Text, Text>>>;

fn mocks(set: impl FnOnce(Layered) -> Layered) -> Mocks {
    let (service, primary) = pair();
    let (backup_a, a) = pair();
    let (backup_b, b) = pair();
    let layer = set(FallbackLayer::new("primary")
        .backup("a", backup_a)
        .backup("b", backup_b));
    Mocks {
        primary,
        a,
        b,
        handle: layer.handle(),
        service: layer.layer(service),
    }
}

/// Fails one turn of whoever has `handle`.
async fn fail(service: &Guarded, handle: &mut Handle<Text, Text>) {
    let turn = service.clone().oneshot("trip");
    let answer = async {
        let (_, send) = handle.next_request().await.expect("called");
        send.send_error("down");
    };
    let (result, ()) = tokio::join!(turn, answer);
    result.unwrap_err();
}

async fn trip(mocks: &mut Mocks) {
    for _ in 0..3 {
        fail(&mocks.service, &mut mocks.primary).await;
    }
    assert_eq!(mocks.handle.state(), FallbackState::Fallback);
}

fn refusal(err: &BoxError) -> &Refusal {
    Refusal::find(&**err).expect("a refusal")
}

#[tokio::test(start_paused = true)]
async fn the_backend_chosen_in_poll_ready_is_the_one_that_is_called() {
    let mut mocks = mocks(|layer| layer.recovery_successes_needed(1));
    trip(&mut mocks).await;
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
    trip(&mut mocks).await;
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
    trip(&mut mocks).await;
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
    trip(&mut mocks).await;
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
    trip(&mut mocks).await;
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
    assert_eq!(refusal(&err).reason(), Reason::FallbackExhausted);
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
    // The mock lets go of its own when it is polled by another.
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
    trip(&mut mocks).await;
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
    trip(&mut mocks).await;
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
async fn a_primary_readied_that_has_tripped_is_not_called_and_a_clone_of_the_backup_is_readied() {
    let mut mocks = mocks(|layer| layer);
    let mut readied = task::spawn(mocks.service.clone());
    assert_ready_ok!(readied.enter(|cx, mut service| service.poll_ready(cx)));
    trip(&mut mocks).await;

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
async fn a_primary_readied_for_a_probe_that_another_took_is_neither_a_second_probe_nor_refused() {
    let mut mocks = mocks(|layer| layer);
    trip(&mut mocks).await;
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
    trip(&mut mocks).await;
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
        assert_eq!(refusal(&err).reason(), Reason::NotReady);
        assert_eq!(refusal(&err).retry_after(), Some(Duration::ZERO));
    };
    not_ready(&mocks).await;
    trip(&mut mocks).await;
    not_ready(&mocks).await;
    advance(60).await;
    not_ready(&mocks).await;
    assert!(mocks.handle.snapshot().due);
    assert_eq!(mocks.handle.state(), FallbackState::Fallback);
    // A clone carries no readiness.
    let mut service = mocks.service.clone();
    service.ready().await.unwrap();
    let err = service.clone().call("hello").await.unwrap_err();
    assert_eq!(refusal(&err).reason(), Reason::NotReady);
    assert_pending!(mocks.primary.poll_request());
    assert_pending!(mocks.a.poll_request());
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_service_that_was_not_polled_ready_is_no_cancelled_turn_of_a_backup() {
    let mut mocks = mocks(|layer| layer.on_cancel(Cancelled::Failure));
    trip(&mut mocks).await;
    let err = mocks.service.clone().call("hello").await.unwrap_err();
    assert_eq!(refusal(&err).reason(), Reason::NotReady);
    assert_eq!(strikes(&mocks.handle.snapshot()), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_to_be_refused_goes_to_an_entry_that_has_become_live_since() {
    let mut mocks = mocks(|layer| layer);
    trip(&mut mocks).await;
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

    // And is not a probe when the cooldown is over since: nobody readied the primary.
    mocks.handle.disable("b").unwrap();
    service.ready().await.unwrap();
    advance(60).await;
    let err = service.call("hello").await.unwrap_err();
    assert_eq!(refusal(&err).reason(), Reason::NotReady);
    assert!(mocks.handle.snapshot().due);
}

#[tokio::test(start_paused = true)]
async fn it_works_behind_a_buffer() {
    let primary = Model::new("primary");
    let a = Model::new("a");
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .classify(classify);
    let service = Buffer::new(layer.layer(primary.clone()), 8);
    primary.does(DOWN);
    let answers = turns(&service, 10).await;
    assert!(answers[..3].iter().all(Result::is_err));
    assert_eq!(answers[3..], vec![Ok("a"); 7]);
    a.does(FATAL);
    turn(&service).await.unwrap_err();
    assert!(
        turn(&service).await.unwrap_err().contains("backups too"),
        "refused, and the buffer lives"
    );
    a.does(Does::Answer);
    primary.does(Does::Answer);
    advance(60).await;
    assert_eq!(turns(&service, 3).await, vec![Ok("primary"); 3]);
}

#[tokio::test(start_paused = true)]
async fn it_works_inside_retry() {
    #[derive(Clone)]
    struct Attempts(u32);

    impl Policy<String, Answer, BoxError> for Attempts {
        type Future = Ready<()>;

        fn retry(
            &mut self,
            _: &mut String,
            result: &mut Result<Answer, BoxError>,
        ) -> Option<Ready<()>> {
            self.0 = self.0.checked_sub(1)?;
            result.is_err().then(|| ready(()))
        }

        fn clone_request(&mut self, req: &String) -> Option<String> {
            Some(req.clone())
        }
    }

    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .classify(classify);
    let service = Retry::new(Attempts(3), layer.layer(primary.clone()));
    primary.does(DOWN);
    assert_eq!(
        turn(&service).await,
        Ok("a"),
        "three failed, the fourth went to the chain"
    );
    assert_eq!(primary.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_of_the_primary_or_the_request_but_that_they_are_a_service_and_its_request()
 {
    /// Neither `Clone` nor `Send`, nor is anything about it; and it lives as long as what it borrows.
    struct Local<'a>(&'a str, Rc<()>);
    struct Request(Rc<()>);

    impl Service<Request> for Local<'_> {
        type Response = usize;
        type Error = Infallible;
        type Future = Ready<Result<usize, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request) -> Self::Future {
            ready(Ok(self.0.len() + Rc::strong_count(&request.0)))
        }
    }

    let text = "borrowed".to_owned();
    let mut services = FallbackLayer::new("primary")
        .refuse_with(|_: Request, _: Refusal| Ok::<_, Infallible>(0))
        .layer(Local(&text, Rc::new(())));
    let answer = services.ready().await.unwrap().call(Request(Rc::new(())));
    assert_eq!(answer.await, Ok(9));
    assert_eq!(services.get_ref().0, text);
    assert_eq!(Rc::strong_count(&services.get_mut().1), 1);
    assert_eq!(services.into_inner().0, text);

    let mut models = FallbackLayer::rewriting("primary", |_: &mut Request, _: &str| ())
        .model("a")
        .refuse_with(|_: Request, _: Refusal| Ok::<_, Infallible>(0))
        .layer(Local(&text, Rc::new(())));
    let answer = models.ready().await.unwrap().call(Request(Rc::new(())));
    assert_eq!(answer.await, Ok(9));
}

#[test]
fn a_service_and_its_future_are_send_if_what_they_hold_is_even_if_backups_are_not_sync() {
    fn is_send<T: Send>(_: &T) {}
    type Boxed = tower::util::BoxCloneService<String, Answer, ModelError>;
    let backup: Boxed = Boxed::new(Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", backup.clone())
        .backup("b", backup)
        .same_turn(|req: &String| Some(req.clone()));
    let mut service = layer.layer(Model::new("primary"));
    is_send(&layer);
    is_send(&service);
    is_send(&service.call(String::new()));
    assert!(!format!("{service:?} {layer:?} {:?}", layer.handle()).is_empty());
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_service_and_of_a_layer_share_the_chain_until_a_setter() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .classify(classify);
    let handle = layer.handle();
    primary.does(DOWN);
    for service in [
        layer.layer(primary.clone()),
        layer.layer(primary.clone()).clone(),
        layer.clone().layer(primary.clone()),
    ] {
        turn(&service).await.unwrap_err();
    }
    assert_eq!(handle.state(), FallbackState::Fallback);
    let other = layer.clone().trip_threshold(1);
    assert_eq!(other.handle().state(), FallbackState::Primary);
    assert_eq!(handle.state(), FallbackState::Fallback);
}

#[tokio::test(start_paused = true)]
async fn one_service_is_called_with_the_model_that_serves() {
    let primary = Model::new("service");
    let layer = FallbackLayer::rewriting("gpt-5", |req: &mut String, model: &str| {
        req.insert_str(0, &format!("{model}: "));
    })
    .model("gpt-5-mini")
    .model("gpt-4")
    .classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    turn(&service).await.unwrap();
    assert_eq!(primary.calls(), ["gpt-5: hello"], "the primary's turns too");
    primary.does(DOWN);
    turns(&service, 3 + 2 + 2).await;
    let three = |model| vec![format!("{model}: hello"); 3];
    let two = |model| vec![format!("{model}: hello"); 2];
    assert_eq!(
        primary.calls(),
        [three("gpt-5"), two("gpt-5-mini"), two("gpt-4")].concat()
    );
    let err = turn(&service).await.unwrap_err();
    assert!(err.contains("model `gpt-5`"), "{err}");
    assert_eq!(primary.count(), 0);
    handle.reset();

    // A service that was readied for one model serves another.
    primary.does(Does::Answer);
    let mut readied = service.clone();
    readied.ready().await.unwrap();
    primary.does(FATAL);
    turn(&service).await.unwrap_err();
    primary.does(Does::Answer);
    readied.call("late".to_owned()).await.unwrap();
    assert_eq!(primary.calls(), ["gpt-5: hello", "gpt-5-mini: late"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_is_noticed_by_a_turn_that_is_refused() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let primary = Model::new("service");
    let layer = FallbackLayer::rewriting("gpt-5", |_: &mut String, _: &str| ())
        .model("gpt-4")
        .probation_limit(1)
        .classify(classify)
        .observe(move |event: &Event<'_>| match event {
            Event::LeaseExpired { .. } => log.lock().unwrap().push("expired"),
            Event::Refused { .. } => log.lock().unwrap().push("refused"),
            _ => {}
        });
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    turns(&service, 3).await;
    handle.disable("gpt-4").unwrap();
    advance(60).await;
    primary.does(Does::Hang);
    let mut probe = task::spawn(service.clone().oneshot(String::new()));
    assert_pending!(probe.poll());
    advance(120).await;
    assert!(turn(&service).await.unwrap_err().contains("backups too"));
    assert_eq!(*told.lock().unwrap(), ["expired", "refused"]);
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
async fn same_turn_goes_down_the_live_chain_each_entry_at_most_once() {
    let (primary, a, b) = (Model::new("primary"), Model::new("a"), Model::new("b"));
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .backup("b", b.clone())
        .classify(classify)
        .same_turn(|req: &String| Some(req.clone()))
        .observe(move |event: &Event<'_>| {
            let line = match *event {
                Event::Served { by, outcome, .. } => {
                    format!(
                        "{by} served: {}",
                        outcome == tower_breaker::Outcome::Success
                    )
                }
                Event::MovedOn { from, to, .. } => format!("{from} to {to}"),
                _ => return,
            };
            log.lock().unwrap().push(line);
        });
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    let told = || std::mem::take(&mut *told.lock().unwrap());
    primary.does(DOWN);
    a.does(DOWN);
    assert_eq!(turn(&service).await, Ok("b"));
    assert_eq!(told(), ["primary to a", "a to b", "b served: true"]);
    assert_eq!((primary.count(), a.count(), b.count()), (1, 1, 1));
    assert_eq!(strikes(&handle.snapshot()), [1, 0]);

    // The last one's failure is the turn's.
    b.does(DOWN);
    assert!(turn(&service).await.unwrap_err().starts_with("b:"));
    assert_eq!(told(), ["primary to a", "a to b", "b served: false"]);
    assert_eq!((primary.count(), a.count(), b.count()), (1, 1, 1));
    assert_eq!(strikes(&handle.snapshot()), [2, 1]);

    // A failed entry is left out.
    b.does(Does::Answer);
    assert_eq!(turn(&service).await, Ok("b"));
    assert_eq!(told(), ["primary to b", "b served: true"]);
    assert_eq!((primary.count(), a.count(), b.count()), (1, 0, 1));
    assert_eq!(handle.state(), FallbackState::Fallback);
}

#[tokio::test(start_paused = true)]
async fn same_turn_goes_on_from_one_model_to_the_next_behind_one_service() {
    let service = Model::new("service");
    let primary = service.clone();
    let failing = tower::service_fn(move |req: String| {
        let inner = primary.clone();
        async move {
            if req.starts_with("gpt-4") {
                inner.oneshot(req).await
            } else {
                inner
                    .does(DOWN)
                    .clone()
                    .oneshot(req.clone())
                    .await
                    .inspect_err(|_| {
                        inner.does(Does::Answer);
                    })
            }
        }
    });
    let layer = FallbackLayer::rewriting("gpt-5", |req: &mut String, model: &str| {
        req.insert_str(0, &format!("{model}: "));
    })
    .model("gpt-5-mini")
    .model("gpt-4")
    .classify(classify)
    .same_turn(|req: &String| Some(req.clone()));
    let guarded = layer.layer(failing);
    guarded.oneshot("hello".to_owned()).await.unwrap();
    assert_eq!(
        service.calls(),
        ["gpt-5: hello", "gpt-5-mini: hello", "gpt-4: hello"],
        "each from the original request"
    );
}

#[tokio::test(start_paused = true)]
async fn same_turn_goes_on_from_a_backup_that_fails_to_become_ready() {
    let (service, mut primary) = pair();
    let (backup_a, mut a) = pair();
    let (backup_b, mut b) = pair();
    let layer = FallbackLayer::new("primary")
        .backup("a", backup_a)
        .backup("b", backup_b)
        .same_turn(|req: &Text| Some(*req));
    a.send_error("gone");
    let turn = layer.layer(service).oneshot("hello");
    let answer = async {
        assert_request_eq!(primary, "hello").send_error("down");
        assert_request_eq!(b, "hello").send_response("from b");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from b");
    assert_eq!(strikes(&layer.handle().snapshot()), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_response_learns_who_served_it_and_observers_hear_of_each_turn() {
    let (primary, a) = (Model::new("primary"), Model::new("a"));
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .classify(classify)
        .served_by(|answer: &mut Answer, name: &str| answer.served_by = Some(name.to_owned()))
        .observe(move |event: &Event<'_>| {
            assert_eq!(event.name(), Some("primary"));
            if let Event::Served { by, .. } = *event {
                log.lock().unwrap().push(by.to_owned());
            }
        });
    let service = layer.layer(primary.clone());
    let served = async || {
        let answer = service.clone().oneshot(String::new()).await;
        answer.ok().and_then(|answer| answer.served_by)
    };
    assert_eq!(served().await.as_deref(), Some("primary"));
    primary.does(DOWN);
    for _ in 0..3 {
        assert_eq!(served().await, None);
    }
    assert_eq!(served().await.as_deref(), Some("a"));
    assert_eq!(
        *told.lock().unwrap(),
        ["primary", "primary", "primary", "primary", "a"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_response_learns_who_served_it_though_nobody_observes() {
    let layer = FallbackLayer::new("primary")
        .classify(classify)
        .served_by(|answer: &mut Answer, name: &str| answer.served_by = Some(name.to_owned()));
    let service = layer.layer(Model::new("primary"));
    for _ in 0..3 {
        let answer = service.clone().oneshot(String::new()).await.unwrap();
        assert_eq!(answer.served_by.as_deref(), Some("primary"));
    }
}

#[tokio::test(start_paused = true)]
async fn observers_hear_of_late_verdicts_and_of_no_others_as_such() {
    let (primary, a) = (Model::new("primary"), Model::new("a"));
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .classify(classify)
        .observe(move |event: &Event<'_>| {
            if let Event::LateVerdict {
                name,
                generation,
                outcome,
                ..
            } = *event
            {
                let name = name.expect("a name").to_owned();
                log.lock().unwrap().push((name, generation, outcome));
            }
        });
    let service = layer.layer(primary.clone());
    primary.does(Does::Wait);
    let mut early = task::spawn(service.clone().oneshot(String::new()));
    assert_pending!(early.poll());
    primary.does(DOWN);
    turns(&service, 3).await;
    a.does(DOWN);
    turn(&service).await.unwrap_err();
    assert_eq!(*told.lock().unwrap(), [], "each of them counted");
    primary.release(Does::Answer);
    early.await.unwrap();
    let late = ("primary".to_owned(), 0, tower_breaker::Outcome::Success);
    assert_eq!(*told.lock().unwrap(), [late]);
}

#[tokio::test(start_paused = true)]
async fn a_future_shows_its_permit() {
    let mut mocks = mocks(|layer| layer);
    let show = async |mocks: &Mocks| {
        let mut service = mocks.service.clone();
        service.ready().await.unwrap();
        format!("{:?}", service.call("hello"))
    };
    let shown = show(&mocks).await;
    assert!(
        shown.contains("permit: Permit { generation: 0, server: Primary(Ordinary) }"),
        "{shown}"
    );
    // Nobody waits for this answer.
    assert_request_eq!(mocks.primary, "hello").send_response("from primary");
    trip(&mut mocks).await;
    let shown = show(&mocks).await;
    assert!(
        shown.contains("permit: Permit { generation: 1, server: Entry(0) }"),
        "{shown}"
    );
}

#[tokio::test(start_paused = true)]
async fn on_fallback_is_called_at_every_trip_with_the_first_live_entry() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .backup("b", Model::new("b"))
        .classify(classify)
        .on_fallback(move |from: &str, to: Option<&str>| {
            log.lock()
                .unwrap()
                .push((from.to_owned(), to.map(str::to_owned)));
        });
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    let to = |to: Option<&str>| ("primary".to_owned(), to.map(str::to_owned));
    primary.does(FATAL);
    turn(&service).await.unwrap_err();
    assert_eq!(*told.lock().unwrap(), [to(Some("a"))]);
    handle.disable("a").unwrap();
    advance(60).await;
    primary.does(fallback_support::rate_limited(1));
    turn(&service).await.unwrap_err();
    assert_eq!(*told.lock().unwrap(), [to(Some("a")), to(Some("b"))]);
    handle.disable("b").unwrap();
    advance(60).await;
    turn(&service).await.unwrap_err();
    assert_eq!(told.lock().unwrap().last(), Some(&to(None)));
}

#[tokio::test(start_paused = true)]
async fn an_observer_may_call_back_and_may_panic() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let primary = Model::new("primary");
    let handle_slot = Arc::new(Mutex::new(None::<tower_breaker::FallbackHandle>));
    let slot = Arc::clone(&handle_slot);
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .backup("b", Model::new("b"))
        .classify(classify)
        .observe(|_: &Event<'_>| panic!("a listener that panics"))
        .observe(move |event: &Event<'_>| {
            if let Event::FallbackTransition { to, .. } = *event {
                log.lock().unwrap().push(to.to_string());
                let handle = slot.lock().unwrap().clone();
                handle.unwrap().disable("a").unwrap();
            }
            if let Event::Entry { entry, change, .. } = *event {
                log.lock().unwrap().push(format!("{entry} {change}"));
                assert_eq!(change, EntryChange::Disabled);
            }
        });
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    *handle_slot.lock().unwrap() = Some(handle.clone());
    primary.does(FATAL);
    turn(&service).await.unwrap_err();
    assert_eq!(*events.lock().unwrap(), ["fallback", "a disabled"]);
    assert_eq!(turn(&service).await, Ok("b"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_whoever_served_and_the_slot_is_free_again() {
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
    advance(60).await;
    panics(Does::PanicInPoll, &primary).await;
    assert_eq!(handle.snapshot().probe_failures, 1);
    assert_eq!(turns(&service, 2).await, vec![Ok("primary"); 2]);
    assert_eq!(handle.state(), FallbackState::Primary);
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
        assert_eq!(refusal(&err).reason(), Reason::NotReady);
    }
    assert_eq!(primary.count(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_has_cancelled_the_turn_before_its_future_is_dropped() {
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
async fn a_panic_in_a_classifier_is_a_cancelled_turn() {
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
    advance(60).await;
    primary.does(Does::Answer);
    let turn = tokio::spawn(service.clone().oneshot(String::new()));
    assert!(turn.await.unwrap_err().is_panic());
    let snapshot = handle.snapshot();
    assert!(snapshot.due, "the slot was given back");
    assert_eq!((snapshot.probe_successes, snapshot.probe_failures), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_turn_says_what_on_cancel_says() {
    /// What is left of a dropped probe, and of a dropped turn of the backup: whether a probe is due, its failures, the strikes.
    async fn after(rule: Cancelled, ran: u64, polls: bool) -> (bool, u32, u32) {
        let (primary, a) = (Model::new("primary"), Model::new("a"));
        let layer = FallbackLayer::new("primary")
            .backup("a", a.clone())
            .classify(classify)
            .on_cancel(rule);
        let (service, handle) = (layer.layer(primary.clone()), layer.handle());
        primary.does(DOWN);
        turns(&service, 3).await;
        a.does(Does::Hang);
        primary.does(Does::Hang);
        advance(60 - ran).await;
        // First the backup's, while the cooldown runs; then the probe.
        for model in [&a, &primary] {
            let mut service = service.clone();
            service.ready().await.unwrap();
            model.calls();
            let mut turn = task::spawn(service.call(String::new()));
            assert_eq!(model.count(), 1);
            if polls {
                assert_pending!(turn.poll());
            }
            advance(ran).await;
            drop(turn);
        }
        let snapshot = handle.snapshot();
        (snapshot.due, snapshot.probe_failures, strikes(&snapshot)[0])
    }
    for polls in [false, true] {
        assert_eq!(after(Cancelled::Ignore, 5, polls).await, (false, 0, 0));
        assert_eq!(after(Cancelled::Release, 5, polls).await, (true, 0, 0));
        assert_eq!(after(Cancelled::Failure, 5, polls).await, (true, 1, 1));
        let five = Cancelled::FailureAfter(Duration::from_secs(5));
        assert_eq!(after(five, 5, polls).await, (true, 1, 1));
        assert_eq!(after(five, 4, polls).await, (true, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_never_wedges_and_never_makes_a_second_slot() {
    let (primary, a) = (Model::new("primary"), Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", a)
        .classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    turns(&service, 3).await;
    primary.does(Does::Hang);
    primary.calls();
    advance(60).await;
    for n in 0..1000 {
        let mut service = service.clone();
        service.ready().await.unwrap();
        let mut probe = task::spawn(service.call(String::new()));
        if n % 2 == 0 {
            assert_pending!(probe.poll());
        }
        drop(probe);
        assert_eq!(turn(&service).await, Ok("a"), "the slot is kept");
        assert_eq!(primary.count(), 1);
        advance(120).await;
        assert!(handle.snapshot().due);
    }
}

#[test]
fn however_many_turns_come_at_once_one_of_them_is_the_probe() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(8)
        .build()
        .unwrap();
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .recovery_timeout(Duration::ZERO)
        .recovery_successes_needed(1)
        .classify(classify);
    let service = layer.layer(primary.clone());
    runtime.block_on(async {
        primary.does(DOWN);
        turns(&service, 3).await;
        primary.does(Does::Wait);
        primary.calls();
        let by_a = Arc::new(AtomicUsize::new(0));
        let turns: Vec<_> = (0..1000)
            .map(|_| {
                let (service, by_a) = (service.clone(), Arc::clone(&by_a));
                tokio::spawn(async move {
                    let by = turn(&service).await.unwrap();
                    by_a.fetch_add(usize::from(by == "a"), Ordering::Relaxed);
                })
            })
            .collect();
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while by_a.load(Ordering::Relaxed) < 999 {
            assert!(std::time::Instant::now() < deadline, "{by_a:?}");
            tokio::task::yield_now().await;
        }
        assert_eq!(primary.count(), 1);
        primary.release(Does::Answer);
        for turn in turns {
            turn.await.unwrap();
        }
        assert_eq!(by_a.load(Ordering::Relaxed), 999);
    });
    assert_eq!(layer.handle().state(), FallbackState::Primary);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_becomes_what_the_policy_makes_of_it() {
    #[derive(Debug)]
    enum Mine {
        Refused(Reason),
        Own,
    }
    impl From<Refusal> for Mine {
        fn from(refusal: Refusal) -> Self {
            Mine::Refused(refusal.reason())
        }
    }
    let layer = FallbackLayer::new("primary").trip_threshold(1);
    let failing = tower::service_fn(|(): ()| async { Err::<(), _>(Mine::Own) });
    let mut typed = layer.clone().refuse(IntoError).layer(failing);
    assert!(matches!(
        typed.call(()).await,
        Err(Mine::Refused(Reason::NotReady))
    ));
    assert!(matches!(
        typed.ready().await.unwrap().call(()).await,
        Err(Mine::Own)
    ));

    let sure = tower::service_fn(|(): ()| async { Ok::<_, Infallible>(String::new()) });
    let mut soft = layer
        .refuse_with(|(), refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()))
        .layer(sure);
    assert_eq!(
        soft.call(()).await,
        Ok("model `primary` was called before it was ready: call it again".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn looking_changes_nothing() {
    let (primary, a) = (Model::new("primary"), Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", a)
        .probation_limit(1)
        .classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    let look = || {
        for _ in 0..1000 {
            let _ = (handle.state(), handle.active_model(), handle.snapshot());
        }
    };
    primary.does(DOWN);
    turns(&service, 3).await;
    for wait in [59, 1] {
        advance(wait).await;
        look();
    }
    primary.does(Does::Hang);
    drop(task::spawn(service.clone().oneshot(String::new())).poll());
    for (wait, next) in [(119, "a"), (1, "a"), (59, "a"), (1, "primary")] {
        advance(wait).await;
        look();
        assert_eq!(handle.active_model().as_deref(), Some(next));
    }
    let mut polled = service.clone();
    let mut readied = task::spawn(());
    for _ in 0..1000 {
        assert_ready_ok!(readied.enter(|cx, _| polled.poll_ready(cx)));
    }
    assert_eq!(
        handle.active_model().as_deref(),
        Some("primary"),
        "polling takes no probe"
    );
}

#[test]
fn a_healthy_primary_costs_no_clock_and_needs_no_runtime() {
    // Without a runtime a paused clock cannot be; the clock itself is counted in the library's own tests.
    let layer = FallbackLayer::new("primary").backup("a", Model::new("a"));
    let mut service = layer.layer(Model::new("primary"));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let mut turn = std::pin::pin!(service.call(String::new()));
    assert!(turn.as_mut().poll(&mut cx).is_ready());
}
