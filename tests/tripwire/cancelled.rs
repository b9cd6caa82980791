//! Proves what a dropped call says: its turn is spent, and a dropped probe opens the fence.

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Reason, State, TripwireLayer};

use crate::support::calls::{Tool, armed, call, search};
use crate::support::refused;

/// Case 37.
#[tokio::test]
async fn a_dropped_call_spends_its_turn() {
    let layer = TripwireLayer::new().max_turns(2);
    let mut tool = layer.layer(Tool::default());
    drop(tool.ready().await.unwrap().call(("hung", 1)));
    assert_eq!(layer.handle().turns(), 1);
    call(&mut tool, search(1)).await.unwrap();
    assert_eq!(
        refused(call(&mut tool, search(2)).await).reason(),
        Reason::MaxTurns
    );
}

/// Case 37.
#[tokio::test]
async fn after_a_dropped_probe_four_more_refusals_arm_the_next_and_the_first_reason_stands() {
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
            refused(call(&mut tool, search(n)).await).reason(),
            Reason::TripwireOpen
        );
    }
    assert_eq!(handle.state(), State::HalfOpen);

    // Eight more refusals beside a hung probe, which is lost at the fourth.
    let _out = tool.ready().await.unwrap().call(("hung", 2));
    for n in 0..8 {
        let refusal = refused(call(&mut tool, search(n)).await);
        assert_eq!(refusal.reason(), Reason::TripwireOpen);
        assert_eq!(refusal.tripped_by(), Some(Reason::ErrorStreak));
        assert_eq!(refusal.count(), Some(3));
    }
    assert_eq!(handle.reason(), Some(Reason::ErrorStreak));
}
