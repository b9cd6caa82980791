//! The events, and the closures of `on_fallback` and `served_by`.

use std::sync::{Arc, Mutex};

use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt};
use tower_breaker::{EntryChange, Event, FallbackLayer};

use crate::support::models::{Answer, DOWN, Does, FATAL, Model, advance, classify, turn, turns};

#[tokio::test(start_paused = true)]
async fn a_response_names_its_server_and_observers_see_each_turn() {
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
async fn a_response_names_its_server_without_observers() {
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
async fn observers_get_a_late_verdict_event_for_stale_results_only() {
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
    advance(60).await;
    primary.does(crate::support::models::rate_limited(1));
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
