//! Proves that looking changes nothing.

use tokio_test::{assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt};
use tower_breaker::FallbackLayer;

use crate::support::model::{DOWN, Does, Model, classify, turns};
use crate::support::{pass, secs};

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
        pass(secs(wait)).await;
        look();
    }
    primary.does(Does::Hang);
    drop(task::spawn(service.clone().oneshot(String::new())).poll());
    for (wait, next) in [(119, "a"), (1, "a"), (59, "a"), (1, "primary")] {
        pass(secs(wait)).await;
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
