//! Dropped turns: the effect of each `Cancelled` rule, and that no probe is lost.

use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Cancelled, FallbackLayer};

use crate::support::models::{DOWN, Does, Model, advance, classify, strikes, turn, turns};

#[tokio::test(start_paused = true)]
async fn a_dropped_turn_has_the_outcome_of_on_cancel() {
    /// The state after a dropped probe and a dropped turn of the backup: whether a probe is due,
    /// the failures of probes, the strikes.
    async fn after(rule: Cancelled, ran: u64, polls: bool) -> (bool, u32, u32) {
        let (primary, a) = (Model::new("primary"), Model::new("a"));
        let layer = FallbackLayer::new("primary")
            .backup("a", a.clone())
            .classify(classify)
            .on_cancel(rule);
        let (service, handle) = (layer.layer(primary.clone()), layer.handle());
        primary.does(DOWN);
        turns(&service, 3).await;
        a.does(Does::Hang);
        primary.does(Does::Hang);
        advance(60 - ran).await;
        // First a turn of the backup is dropped, while the cooldown runs. Then the probe is
        // dropped.
        for model in [&a, &primary] {
            let mut service = service.clone();
            service.ready().await.unwrap();
            model.calls();
            let mut turn = task::spawn(service.call(String::new()));
            assert_eq!(model.count(), 1);
            if polls {
                assert_pending!(turn.poll());
            }
            advance(ran).await;
            drop(turn);
        }
        let snapshot = handle.snapshot();
        (snapshot.due, snapshot.probe_failures, strikes(&snapshot)[0])
    }
    for polls in [false, true] {
        assert_eq!(after(Cancelled::Ignore, 5, polls).await, (false, 0, 0));
        assert_eq!(after(Cancelled::Release, 5, polls).await, (true, 0, 0));
        assert_eq!(after(Cancelled::Failure, 5, polls).await, (true, 1, 1));
        let five = Cancelled::FailureAfter(Duration::from_secs(5));
        assert_eq!(after(five, 5, polls).await, (true, 1, 1));
        assert_eq!(after(five, 4, polls).await, (true, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_never_wedges_and_never_makes_a_second_slot() {
    let (primary, a) = (Model::new("primary"), Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", a)
        .classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    turns(&service, 3).await;
    primary.does(Does::Hang);
    primary.calls();
    advance(60).await;
    for n in 0..1000 {
        let mut service = service.clone();
        service.ready().await.unwrap();
        let mut probe = task::spawn(service.call(String::new()));
        if n % 2 == 0 {
            assert_pending!(probe.poll());
        }
        drop(probe);
        assert_eq!(turn(&service).await, Ok("a"), "the slot is kept");
        assert_eq!(primary.count(), 1);
        advance(120).await;
        assert!(handle.snapshot().due);
    }
}
