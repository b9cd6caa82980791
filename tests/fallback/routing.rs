//! One service is called with the name of the model that serves.

use tower::{Layer, Service, ServiceExt};
use tower_breaker::FallbackLayer;

use crate::support::models::{DOWN, Does, FATAL, Model, classify, turn, turns};

#[tokio::test(start_paused = true)]
async fn one_service_is_called_with_the_model_that_serves() {
    let primary = Model::new("service");
    let layer = FallbackLayer::rewriting("gpt-5", |req: &mut String, model: &str| {
        req.insert_str(0, &format!("{model}: "));
    })
    .model("gpt-5-mini")
    .model("gpt-4")
    .classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    turn(&service).await.unwrap();
    assert_eq!(primary.calls(), ["gpt-5: hello"], "the primary's turns too");
    primary.does(DOWN);
    turns(&service, 3 + 2 + 2).await;
    let three = |model| vec![format!("{model}: hello"); 3];
    let two = |model| vec![format!("{model}: hello"); 2];
    assert_eq!(
        primary.calls(),
        [three("gpt-5"), two("gpt-5-mini"), two("gpt-4")].concat()
    );
    let err = turn(&service).await.unwrap_err();
    assert!(err.contains("`gpt-5`"), "{err}");
    assert_eq!(primary.count(), 0);
    handle.reset();

    // A service that was readied for one model serves another.
    primary.does(Does::Answer);
    let mut readied = service.clone();
    readied.ready().await.unwrap();
    primary.does(FATAL);
    turn(&service).await.unwrap_err();
    primary.does(Does::Answer);
    readied.call("late".to_owned()).await.unwrap();
    assert_eq!(primary.calls(), ["gpt-5: hello", "gpt-5-mini: late"]);
}
