//! Proves that a probe that hangs is lost, and the next one goes.

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Reason, State, TripwireLayer};

use crate::support::calls::{Tool, armed, call, search};
use crate::support::refused;

/// Case 37.
#[tokio::test]
async fn a_probe_that_hangs_for_ever_does_not_leave_the_fence_stuck() {
    let layer = TripwireLayer::new().max_turns(100);
    let mut tool = layer.layer(Tool::default());
    armed(&mut tool).await;
    // It hangs for ever, and is never dropped.
    let hung = tool.ready().await.unwrap().call(("hung", 1));
    std::mem::forget(hung);
    for n in 0..8 {
        assert_eq!(
            refused(call(&mut tool, search(n)).await).reason(),
            Reason::TripwireOpen
        );
    }
    assert_eq!(call(&mut tool, search(7)).await.unwrap(), 7);
    assert_eq!(layer.handle().state(), State::Closed);
}
