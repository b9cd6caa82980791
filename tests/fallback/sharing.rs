//! Proves that layers, services and their clones share one chain until a setter.

use tower::Layer;
use tower_breaker::{FallbackLayer, FallbackState};

use crate::support::model::{DOWN, Model, classify, turn};

#[tokio::test(start_paused = true)]
async fn clones_of_services_and_layers_share_one_chain_until_a_setter() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .classify(classify);
    let handle = layer.handle();
    primary.does(DOWN);
    for service in [
        layer.layer(primary.clone()),
        layer.layer(primary.clone()).clone(),
        layer.clone().layer(primary.clone()),
    ] {
        turn(&service).await.unwrap_err();
    }
    assert_eq!(handle.state(), FallbackState::Fallback);
    let other = layer.clone().trip_threshold(1);
    assert_eq!(other.handle().state(), FallbackState::Primary);
    assert_eq!(handle.state(), FallbackState::Fallback);
}
