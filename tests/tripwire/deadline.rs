//! Proves the clock of a run.

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Reason, State, TripwireLayer};

use crate::support::calls::{Tool, call, search};
use crate::support::{pass, refused, secs};

/// Case 49.
#[tokio::test(start_paused = true)]
async fn a_deadline_of_a_minute_lets_a_call_run_at_59_seconds_and_none_at_60() {
    let layer = TripwireLayer::new().deadline(secs(60));
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    pass(secs(3600)).await;
    call(&mut tool, search(0)).await.unwrap();
    pass(secs(59)).await;
    call(&mut tool, search(1)).await.unwrap();
    assert_eq!(handle.snapshot().time_left, Some(secs(1)));
    pass(secs(1)).await;
    assert_eq!(handle.state(), State::Open);
    assert!(!handle.would_allow(&search(2)));
    for n in 2..20 {
        let refusal = refused(call(&mut tool, search(n)).await);
        assert_eq!(refusal.reason(), Reason::Deadline);
        assert_eq!(refusal.reason().to_string(), "deadline");
    }
    handle.extend(10);
    assert_eq!(
        refused(call(&mut tool, search(20)).await).reason(),
        Reason::Deadline
    );
    handle.reset();
    call(&mut tool, search(20)).await.unwrap();
}

/// Case 49.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_between_readiness_and_call_refuses_the_call() {
    let layer = TripwireLayer::new().deadline(secs(60));
    let mut tool = layer.layer(Tool::default());
    call(&mut tool, search(0)).await.unwrap();
    let ready = tool.ready().await.unwrap();
    pass(secs(60)).await;
    assert_eq!(
        refused(ready.call(search(1)).await).reason(),
        Reason::Deadline
    );
}
