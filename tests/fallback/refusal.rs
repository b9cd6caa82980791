//! Proves when a turn is refused, what the refusal tells, and what becomes of it.

use std::convert::Infallible;

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Exhausted, FallbackLayer, IntoError, Reason, Refusal};

use crate::support::model::{DOWN, Does, FATAL, Model, Models, classify, strikes, turn, turns};
use crate::support::{pass, refused, secs};

/// Case 27.
#[tokio::test(start_paused = true)]
async fn a_turn_without_a_live_entry_is_refused_until_the_primary_is_probed() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.trip(&service, &handle).await;
    models.a.does(DOWN);
    models.b.does(DOWN);
    turns(&service, 4).await;
    assert_eq!((models.a.count(), models.b.count()), (2, 2));
    assert_eq!(strikes(&handle.snapshot()), [2, 2]);

    pass(secs(20)).await;
    assert_eq!(handle.active_model(), None);
    let refusal = refused(service.clone().oneshot(String::new()).await);
    assert_eq!(refusal.reason(), Reason::FallbackExhausted);
    assert_eq!(refusal.retry_after(), Some(secs(40)));
    assert_eq!(refusal.name(), Some("primary"));
    assert_eq!(
        refusal.to_string(),
        "`primary` temporarily unavailable, and its backups too"
    );
    let none = (0, 0, 0);
    let counts = || (models.primary.count(), models.a.count(), models.b.count());
    assert_eq!(counts(), none);

    pass(secs(40)).await;
    models.primary.does(Does::Wait);
    let probe = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    pass(secs(50)).await;
    let refusal = refused(service.clone().oneshot(String::new()).await);
    assert_eq!(refusal.reason(), Reason::ProbeInFlight);
    assert_eq!(refusal.retry_after(), Some(secs(70)));
    models.primary.release(Does::Answer);
    assert_eq!(probe.await.unwrap().unwrap().by, "primary");
    assert_eq!(counts(), (1, 0, 0));
}

/// Case 27.
#[tokio::test(start_paused = true)]
async fn without_a_chain_no_turn_is_refused() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary").classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    for _ in 0..200 {
        assert!(turn(&service).await.unwrap_err().starts_with("primary:"));
        pass(secs(1)).await;
    }
    assert_eq!(primary.count(), 200);
    assert!(handle.fallback_activated());
    assert_eq!(handle.active_model().as_deref(), Some("primary"));
}

/// Case 35.
#[tokio::test(start_paused = true)]
async fn the_last_resort_serves_the_primary_instead_of_refusing() {
    let models = Models::new();
    for exhausted in [Exhausted::Refuse, Exhausted::LastResort] {
        let layer = models.layer().when_exhausted(exhausted);
        let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
        models.trip(&service, &handle).await;
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
            pass(secs(30)).await;
            turn(&service).await.unwrap_err();
            let left = handle.snapshot().time_until_probe;
            assert_eq!(left, Some(secs(30)), "its result says nothing");
            models.primary.calls();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_becomes_what_the_policy_makes_of_it() {
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
