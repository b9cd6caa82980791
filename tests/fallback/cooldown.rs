//! Proves when the primary is tried again.

use tower::{Layer, ServiceExt};
use tower_breaker::FallbackState;

use crate::support::model::{DOWN, Does, Models, turn, turns};
use crate::support::{pass, secs};

/// Case 24.
#[tokio::test(start_paused = true)]
async fn after_the_cooldown_one_turn_at_a_time_goes_to_the_primary() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.trip(&service, &handle).await;
    assert!(handle.fallback_activated());

    pass(secs(59)).await;
    assert_eq!(turns(&service, 5).await, vec![Ok("a"); 5]);
    assert_eq!(handle.active_model().as_deref(), Some("a"));
    pass(secs(1)).await;
    assert_eq!(handle.active_model().as_deref(), Some("primary"));
    assert_eq!(handle.state(), FallbackState::Fallback);

    // Of many turns at once exactly one goes to the primary.
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
