//! Proves which results count, and for whom.

use futures::future::join_all;
use tower::{Layer, ServiceExt};
use tower_breaker::FallbackState;

use crate::support::model::{DOWN, Does, FATAL, Models, NEUTRAL, rate_limited, strikes, turn};

/// Case 34.
#[tokio::test(start_paused = true)]
async fn each_kind_of_result_counts_as_the_design_says() {
    for (does, state, consecutive) in [
        (DOWN, FallbackState::Primary, 1),
        (rate_limited(1), FallbackState::Primary, 1),
        (NEUTRAL, FallbackState::Primary, 0),
        (FATAL, FallbackState::Fallback, 0),
    ] {
        let models = Models::new();
        let layer = models.layer();
        let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
        models.primary.does(does);
        turn(&service).await.unwrap_err();
        assert_eq!(handle.state(), state, "{does:?}");
        assert_eq!(handle.snapshot().consecutive_failures, consecutive);
    }
    // And a fatal result spends an entry at once.
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.trip(&service, &handle).await;
    models.a.does(FATAL);
    turn(&service).await.unwrap_err();
    assert_eq!(turn(&service).await, Ok("b"));
}

/// Case 26.
#[tokio::test(start_paused = true)]
async fn the_entry_that_served_gets_the_strike() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.trip(&service, &handle).await;

    models.a.does(Does::Wait);
    models.b.does(Does::Wait);
    let on_a = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    handle.disable("a").unwrap();
    let on_b = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    models.b.release(DOWN);
    models.a.release(DOWN);
    assert!(
        on_a.await
            .unwrap()
            .unwrap_err()
            .to_string()
            .starts_with("a:")
    );
    assert!(
        on_b.await
            .unwrap()
            .unwrap_err()
            .to_string()
            .starts_with("b:")
    );
    assert_eq!(strikes(&handle.snapshot()), [1, 1]);

    // Ten turns in flight on the primary all fail: the chain has no strike at all.
    handle.reset();
    models.primary.does(Does::Wait);
    let flying = (0..10).map(|_| tokio::spawn(service.clone().oneshot(String::new())));
    let flying: Vec<_> = flying.collect();
    tokio::task::yield_now().await;
    for _ in 0..10 {
        models.primary.release(DOWN);
    }
    assert!(
        join_all(flying)
            .await
            .iter()
            .all(|turn| turn.as_ref().unwrap().is_err())
    );
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(strikes(&handle.snapshot()), [0, 0]);
}
