//! The counts of a fallback: failures of the primary, strikes of the entries, and which results
//! count.

use std::time::Duration;

use futures::future::join_all;
use tower::{Layer, ServiceExt};
use tower_breaker::FallbackState;

use super::fixture::{Models, SECOND, trip};
use crate::support::models::{
    DOWN, Does, FATAL, NEUTRAL, advance, rate_limited, strikes, turn, turns,
};

#[tokio::test(start_paused = true)]
async fn case_26_a_strike_goes_to_the_model_that_served() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;

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

    // Ten turns in flight on the primary all fail. No entry of the chain gets a strike.
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

#[tokio::test(start_paused = true)]
async fn case_30_a_spent_entry_stays_spent() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    models.a.does(DOWN);
    turns(&service, 2).await;
    models.a.does(Does::Answer);
    assert_eq!(models.a.count(), 2);
    assert_eq!(turns(&service, 10).await, vec![Ok("b"); 10]);
    assert_eq!(models.a.count(), 0);

    let layer = models
        .layer()
        .bench(Duration::from_secs(5 * 60))
        .recovery_timeout(Duration::MAX);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.primary.calls();
    trip(&service, &handle, &models).await;
    models.a.does(DOWN);
    turns(&service, 2).await;
    advance(5 * 60 - 1).await;
    assert_eq!(turn(&service).await, Ok("b"));
    assert_eq!(handle.snapshot().entries[0].bench_left, Some(SECOND));
    advance(1).await;
    models.a.calls();
    assert!(turn(&service).await.unwrap_err().starts_with("a:"));
    assert_eq!(strikes(&handle.snapshot()), [1, 0], "a fresh budget");
    turn(&service).await.unwrap_err();
    assert_eq!(turn(&service).await, Ok("b"));
}

#[tokio::test(start_paused = true)]
async fn case_34_each_kind_of_result_has_its_documented_effect() {
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
    // A fatal result spends an entry at once.
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    models.a.does(FATAL);
    turn(&service).await.unwrap_err();
    assert_eq!(turn(&service).await, Ok("b"));
}
