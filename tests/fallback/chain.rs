//! Proves who serves: the first entry that is not spent, or the model that stands for it.

use std::time::Duration;

use tower::{Layer, Service, ServiceExt};
use tower_breaker::FallbackLayer;

use crate::support::model::{DOWN, Does, FATAL, Model, Models, classify, strikes, turn, turns};
use crate::support::{pass, secs};

/// Case 30.
#[tokio::test(start_paused = true)]
async fn a_spent_entry_stays_spent_until_its_bench_is_over() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.trip(&service, &handle).await;
    models.a.does(DOWN);
    turns(&service, 2).await;
    models.a.does(Does::Answer);
    assert_eq!(models.a.count(), 2);
    assert_eq!(turns(&service, 10).await, vec![Ok("b"); 10]);
    assert_eq!(models.a.count(), 0);

    let layer = models
        .layer()
        .bench(secs(5 * 60))
        .recovery_timeout(Duration::MAX);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.primary.calls();
    models.trip(&service, &handle).await;
    models.a.does(DOWN);
    turns(&service, 2).await;
    pass(secs(5 * 60 - 1)).await;
    assert_eq!(turn(&service).await, Ok("b"));
    assert_eq!(handle.snapshot().entries[0].bench_left, Some(secs(1)));
    pass(secs(1)).await;
    models.a.calls();
    assert!(turn(&service).await.unwrap_err().starts_with("a:"));
    assert_eq!(strikes(&handle.snapshot()), [1, 0], "a fresh budget");
    turn(&service).await.unwrap_err();
    assert_eq!(turn(&service).await, Ok("b"));
}

#[tokio::test(start_paused = true)]
async fn one_service_is_called_with_the_name_of_the_model_that_serves() {
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
