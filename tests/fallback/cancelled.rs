//! Proves what a dropped turn says under each rule: never a chain that is stuck, never two slots.

use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Cancelled, FallbackLayer};

use crate::support::model::{DOWN, Does, Model, classify, strikes, turn, turns};
use crate::support::{pass, secs};

#[tokio::test(start_paused = true)]
async fn a_dropped_turn_counts_by_the_rule() {
    /// Drops a turn of the backup and a probe. Returns whether a probe is due, the probe failures
    /// and the strikes.
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
        pass(secs(60 - ran)).await;
        // The turn of the backup comes first, while the cooldown runs, and then the probe.
        for model in [&a, &primary] {
            let mut service = service.clone();
            service.ready().await.unwrap();
            model.calls();
            let mut turn = task::spawn(service.call(String::new()));
            assert_eq!(model.count(), 1);
            if polls {
                assert_pending!(turn.poll());
            }
            pass(secs(ran)).await;
            drop(turn);
        }
        let snapshot = handle.snapshot();
        (snapshot.due, snapshot.probe_failures, strikes(&snapshot)[0])
    }
    for polls in [false, true] {
        assert_eq!(after(Cancelled::Ignore, 5, polls).await, (false, 0, 0));
        assert_eq!(after(Cancelled::Release, 5, polls).await, (true, 0, 0));
        assert_eq!(after(Cancelled::Failure, 5, polls).await, (true, 1, 1));
        let five = Cancelled::FailureAfter(secs(5));
        assert_eq!(after(five, 5, polls).await, (true, 1, 1));
        assert_eq!(after(five, 4, polls).await, (true, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_never_leaves_the_chain_stuck_or_with_two_slots() {
    let (primary, a) = (Model::new("primary"), Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", a)
        .classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    turns(&service, 3).await;
    primary.does(Does::Hang);
    primary.calls();
    pass(secs(60)).await;
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
        pass(secs(120)).await;
        assert!(handle.snapshot().due);
    }
}
