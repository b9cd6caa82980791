//! Proves that probes of the primary go one at a time, and what a dead primary costs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt};
use tower_breaker::{Event, FallbackLayer, FallbackState};

use crate::support::model::{DOWN, Does, Model, Models, classify, turn, turns};
use crate::support::{on_threads, pass, secs};

/// Case 25.
#[tokio::test(start_paused = true)]
async fn a_dead_primary_gets_no_more_probes_than_the_probation_limit() {
    let models = Models::new();
    let layer = models.layer().probation_limit(3);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.trip(&service, &handle).await;
    for minute in 0..4 {
        pass(secs(60)).await;
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
    pass(secs(60)).await;
    assert_eq!(turns(&service, 100).await, vec![Ok("a"); 100]);
    assert_eq!(models.primary.count(), 3);
}

#[test]
fn exactly_one_of_a_thousand_turns_at_the_cooldowns_end_is_the_probe() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .recovery_timeout(Duration::ZERO)
        .recovery_successes_needed(1)
        .classify(classify);
    let service = layer.layer(primary.clone());
    on_threads(async {
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
        while by_a.load(Ordering::Relaxed) < 999 {
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
async fn a_refused_turn_notices_that_the_lease_is_over() {
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
    pass(secs(60)).await;
    primary.does(Does::Hang);
    let mut probe = task::spawn(service.clone().oneshot(String::new()));
    assert_pending!(probe.poll());
    pass(secs(120)).await;
    assert!(turn(&service).await.unwrap_err().contains("backups too"));
    assert_eq!(*told.lock().unwrap(), ["expired", "refused"]);
}
