//! When a turn is refused, and the contents of the refusal.

use std::convert::Infallible;

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Exhausted, FallbackLayer, IntoError, Reason, Refusal};

use super::fixture::{Models, SECOND, refusal, trip};
use crate::support::models::{DOWN, Does, FATAL, Model, advance, classify, strikes, turn, turns};

#[tokio::test(start_paused = true)]
async fn case_27_exhausted() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    models.a.does(DOWN);
    models.b.does(DOWN);
    turns(&service, 4).await;
    assert_eq!((models.a.count(), models.b.count()), (2, 2));
    assert_eq!(strikes(&handle.snapshot()), [2, 2]);

    advance(20).await;
    assert_eq!(handle.active_model(), None);
    let refused = refusal(service.clone().oneshot(String::new()).await);
    assert_eq!(refused.reason(), Reason::FallbackExhausted);
    assert_eq!(refused.retry_after(), Some(40 * SECOND));
    assert_eq!(refused.name(), Some("primary"));
    assert_eq!(
        refused.to_string(),
        "`primary` temporarily unavailable, and its backups too"
    );
    let none = (0, 0, 0);
    let counts = || (models.primary.count(), models.a.count(), models.b.count());
    assert_eq!(counts(), none);

    advance(40).await;
    models.primary.does(Does::Wait);
    let probe = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    advance(50).await;
    let refused = refusal(service.clone().oneshot(String::new()).await);
    assert_eq!(refused.reason(), Reason::ProbeInFlight);
    assert_eq!(refused.retry_after(), Some(70 * SECOND));
    models.primary.release(Does::Answer);
    assert_eq!(probe.await.unwrap().unwrap().by, "primary");
    assert_eq!(counts(), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn case_27_without_a_chain_it_is_never_refused() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary").classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    for _ in 0..200 {
        assert!(turn(&service).await.unwrap_err().starts_with("primary:"));
        advance(1).await;
    }
    assert_eq!(primary.count(), 200);
    assert!(handle.fallback_activated());
    assert_eq!(handle.active_model().as_deref(), Some("primary"));
}

#[tokio::test(start_paused = true)]
async fn case_35_last_resort() {
    let models = Models::new();
    for exhausted in [Exhausted::Refuse, Exhausted::LastResort] {
        let layer = models.layer().when_exhausted(exhausted);
        let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
        trip(&service, &handle, &models).await;
        models.a.does(FATAL);
        models.b.does(FATAL);
        turns(&service, 2).await;
        models.primary.does(Does::Answer);
        let result = turn(&service).await;
        if exhausted == Exhausted::Refuse {
            assert!(result.unwrap_err().contains("and its backups too"));
            assert_eq!(models.primary.count(), 0);
        } else {
            assert_eq!(result, Ok("primary"));
            assert_eq!(models.primary.count(), 1);
            models.primary.does(DOWN);
            advance(30).await;
            turn(&service).await.unwrap_err();
            let left = handle.snapshot().time_until_probe;
            assert_eq!(left, Some(30 * SECOND), "its result says nothing");
            models.primary.calls();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_decides_what_a_refusal_becomes() {
    #[derive(Debug)]
    enum Mine {
        Refused(Reason),
        Own,
    }
    impl From<Refusal> for Mine {
        fn from(refusal: Refusal) -> Self {
            Mine::Refused(refusal.reason())
        }
    }
    let layer = FallbackLayer::new("primary").trip_threshold(1);
    let failing = tower::service_fn(|(): ()| async { Err::<(), _>(Mine::Own) });
    let mut typed = layer.clone().refuse(IntoError).layer(failing);
    assert!(matches!(
        typed.call(()).await,
        Err(Mine::Refused(Reason::NotReady))
    ));
    assert!(matches!(
        typed.ready().await.unwrap().call(()).await,
        Err(Mine::Own)
    ));

    let sure = tower::service_fn(|(): ()| async { Ok::<_, Infallible>(String::new()) });
    let mut soft = layer
        .refuse_with(|(), refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()))
        .layer(sure);
    assert_eq!(
        soft.call(()).await,
        Ok("`primary` was called before it was ready: call it again".to_owned())
    );
}
