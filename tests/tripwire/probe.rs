//! A lost probe never blocks the fence for good.

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Reason, State, TripwireLayer};

use super::fixture::{Tool, armed, call, reason, refusal, search};

#[tokio::test]
async fn a_dropped_probe_is_armed_again_by_four_more_refusals_and_the_first_reason_stands() {
    let layer = TripwireLayer::new().max_turns(100);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    armed(&mut tool).await;
    assert_eq!(handle.state(), State::HalfOpen);

    let probe = tool.ready().await.unwrap().call(("hung", 1));
    assert!(handle.snapshot().probing);
    drop(probe);
    assert_eq!(handle.state(), State::Open);
    for n in 0..4 {
        assert_eq!(handle.state(), State::Open);
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    assert_eq!(handle.state(), State::HalfOpen);

    // Eight more calls beside a probe that hangs. The fourth of them makes it lost.
    let _out = tool.ready().await.unwrap().call(("hung", 2));
    for n in 0..8 {
        let refused = refusal(call(&mut tool, search(n)).await);
        assert_eq!(refused.reason(), Reason::TripwireOpen);
        assert_eq!(refused.tripped_by(), Some(Reason::ErrorStreak));
        assert_eq!(refused.count(), Some(3));
    }
    assert_eq!(handle.reason(), Some(Reason::ErrorStreak));
}

#[tokio::test]
async fn a_lost_probe_does_not_wedge_the_fence() {
    let layer = TripwireLayer::new().max_turns(100);
    let mut tool = layer.layer(Tool::default());
    armed(&mut tool).await;
    // The probe hangs for ever, and is never dropped.
    let hung = tool.ready().await.unwrap().call(("hung", 1));
    std::mem::forget(hung);
    for n in 0..8 {
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    assert_eq!(call(&mut tool, search(7)).await.unwrap(), 7);
    assert_eq!(layer.handle().state(), State::Closed);
}
