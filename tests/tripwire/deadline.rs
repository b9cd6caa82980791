//! The time of a run.

use std::time::Duration;

use tokio::time::advance;
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Reason, State, TripwireLayer};

use super::fixture::{Tool, call, reason, refusal, search};

// ===== 49: the clock of a run =====

#[tokio::test(start_paused = true)]
async fn a_deadline_of_a_minute_lets_a_call_run_at_59_seconds_and_none_at_60() {
    let layer = TripwireLayer::new().deadline(Duration::from_secs(60));
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    advance(Duration::from_secs(3600)).await;
    call(&mut tool, search(0)).await.unwrap();
    advance(Duration::from_secs(59)).await;
    call(&mut tool, search(1)).await.unwrap();
    assert_eq!(handle.snapshot().time_left, Some(Duration::from_secs(1)));
    advance(Duration::from_secs(1)).await;
    assert_eq!(handle.state(), State::Open);
    assert!(!handle.would_allow(&search(2)));
    for n in 2..20 {
        let refused = refusal(call(&mut tool, search(n)).await);
        assert_eq!(refused.reason(), Reason::Deadline);
        assert_eq!(refused.reason().to_string(), "deadline");
    }
    handle.extend(10);
    assert_eq!(reason(call(&mut tool, search(20)).await), Reason::Deadline);
    handle.reset();
    call(&mut tool, search(20)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_between_readiness_and_call_refuses_the_call() {
    let layer = TripwireLayer::new().deadline(Duration::from_secs(60));
    let mut tool = layer.layer(Tool::default());
    call(&mut tool, search(0)).await.unwrap();
    let ready = tool.ready().await.unwrap();
    advance(Duration::from_secs(60)).await;
    assert_eq!(reason(ready.call(search(1)).await), Reason::Deadline);
}
