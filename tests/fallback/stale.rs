//! Proves that late results change nothing.

use futures::future::join_all;
use tower::{Layer, ServiceExt};
use tower_breaker::FallbackState;

use crate::support::model::{Does, FATAL, Models, turn};
use crate::support::{pass, secs};

/// Case 29.
#[tokio::test(start_paused = true)]
async fn late_answers_count_for_nobody() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());

    models.primary.does(Does::Wait);
    let old = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    models.primary.calls();
    models.trip(&service, &handle).await;
    models.a.does(Does::Wait);
    let late: Vec<_> = (0..5)
        .map(|_| tokio::spawn(service.clone().oneshot(String::new())))
        .collect();
    tokio::task::yield_now().await;
    pass(secs(60)).await;
    models.primary.does(Does::Answer);
    assert_eq!(turn(&service).await, Ok("primary"));
    for _ in 0..5 {
        models.a.release(Does::Answer);
    }
    for turn in join_all(late).await {
        assert_eq!(turn.unwrap().unwrap().by, "a");
    }
    assert_eq!(
        handle.snapshot().probe_successes,
        1,
        "never as the primary's"
    );
    assert_eq!(handle.state(), FallbackState::Recovering);
    assert_eq!(turn(&service).await, Ok("primary"));
    let recovered = handle.snapshot();
    assert_eq!(recovered.state, FallbackState::Primary);

    models.primary.release(FATAL);
    old.await.unwrap().unwrap_err();
    assert_eq!(handle.snapshot(), recovered);
}
