//! Proves that layers and their clones share one fence until a setter.

use tower::{Layer, ServiceExt};
use tower_breaker::TripwireLayer;

use crate::support::calls::{Tool, search};

#[tokio::test]
async fn clones_share_one_fence_until_a_setter() {
    let layer = TripwireLayer::new();
    let shared = layer.clone();
    let other = layer.clone().max_turns(3);
    let tool = Tool::default();
    layer.layer(tool.clone()).oneshot(search(1)).await.unwrap();
    shared.layer(tool.clone()).oneshot(search(2)).await.unwrap();
    assert_eq!(layer.handle().turns(), 2);
    assert_eq!(shared.handle().turns(), 2);
    assert_eq!(other.handle().turns(), 0);
}
