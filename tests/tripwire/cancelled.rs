//! A dropped call has spent its turn.

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Reason, TripwireLayer};

use super::fixture::{Tool, call, reason, search};

#[tokio::test]
async fn a_dropped_call_spends_its_turn() {
    let layer = TripwireLayer::new().max_turns(2);
    let mut tool = layer.layer(Tool::default());
    drop(tool.ready().await.unwrap().call(("hung", 1)));
    assert_eq!(layer.handle().turns(), 1);
    call(&mut tool, search(1)).await.unwrap();
    assert_eq!(reason(call(&mut tool, search(2)).await), Reason::MaxTurns);
}
