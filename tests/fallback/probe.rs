//! Probes: one at a time, back to the primary, and a primary that stays down.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt};
use tower_breaker::{Event, FallbackLayer, FallbackState};

use super::fixture::{Models, trip};
use crate::support::models::{DOWN, Does, Model, advance, classify, turn, turns};

#[tokio::test(start_paused = true)]
async fn case_24_a_successful_probe_goes_back_to_the_primary() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    assert!(handle.fallback_activated());

    advance(59).await;
    assert_eq!(turns(&service, 5).await, vec![Ok("a"); 5]);
    assert_eq!(handle.active_model().as_deref(), Some("a"));
    advance(1).await;
    assert_eq!(handle.active_model().as_deref(), Some("primary"));
    assert_eq!(handle.state(), FallbackState::Fallback);

    // However many turns come at once, exactly one goes to the primary.
    models.primary.does(Does::Wait);
    let probe = tokio::spawn(service.clone().oneshot("probe".to_owned()));
    tokio::task::yield_now().await;
    assert_eq!(turns(&service, 10).await, vec![Ok("a"); 10]);
    assert_eq!(models.primary.calls(), ["probe"]);
    models.primary.release(Does::Answer);
    assert_eq!(probe.await.unwrap().unwrap().by, "primary");

    // One good, one transient, one good: still Recovering.
    models.primary.does(DOWN);
    turn(&service).await.unwrap_err();
    models.primary.does(Does::Answer);
    assert_eq!(turn(&service).await, Ok("primary"));
    assert_eq!(handle.state(), FallbackState::Recovering);
    assert_eq!(handle.snapshot().probe_successes, 1);
    assert_eq!(turn(&service).await, Ok("primary"));
    assert_eq!(handle.state(), FallbackState::Primary);
    assert!(handle.fallback_activated(), "for good");
    handle.reset();
    assert!(!handle.fallback_activated());
}

#[tokio::test(start_paused = true)]
async fn case_25_a_dead_primary() {
    let models = Models::new();
    let layer = models.layer().probation_limit(3);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    for minute in 0..4 {
        advance(60).await;
        let answers = turns(&service, 100).await;
        let reached = models.primary.count();
        assert!(reached <= 3, "minute {minute}: {reached}");
        let by_a = answers.iter().filter(|answer| **answer == Ok("a")).count();
        assert_eq!(by_a, 100 - reached);
    }

    let layer = models
        .layer()
        .probation_limit(3)
        .same_turn(|req: &String| Some(req.clone()));
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    assert_eq!(turns(&service, 3).await, vec![Ok("a"); 3]);
    assert_eq!(handle.state(), FallbackState::Fallback);
    models.primary.calls();
    advance(60).await;
    assert_eq!(turns(&service, 100).await, vec![Ok("a"); 100]);
    assert_eq!(models.primary.count(), 3);
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
