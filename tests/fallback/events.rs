//! Proves what observers, callbacks, responses and `Debug` tell.

use std::sync::{Arc, Mutex};

use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{EntryChange, Event, FallbackLayer};
use tower_test::assert_request_eq;

use crate::support::mocks::{Mocks, mocks};
use crate::support::model::{
    Answer, DOWN, Does, FATAL, Model, classify, rate_limited, turn, turns,
};
use crate::support::{pass, secs};

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
async fn only_late_verdicts_are_told_as_late() {
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
    pass(secs(60)).await;
    primary.does(rate_limited(1));
    turn(&service).await.unwrap_err();
    assert_eq!(*told.lock().unwrap(), [to(Some("a")), to(Some("b"))]);
    handle.disable("b").unwrap();
    pass(secs(60)).await;
    turn(&service).await.unwrap_err();
    assert_eq!(told.lock().unwrap().last(), Some(&to(None)));
}

#[tokio::test(start_paused = true)]
async fn a_listener_may_call_the_fallback_and_another_may_panic() {
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
    mocks.trip().await;
    let shown = show(&mocks).await;
    assert!(
        shown.contains("permit: Permit { generation: 1, server: Entry(0) }"),
        "{shown}"
    );
}
