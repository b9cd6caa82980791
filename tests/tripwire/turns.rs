//! Proves the turn budget: never exceeded, not even by parallel calls.

use std::sync::{Arc, Mutex};

use futures::future::join_all;
use tower::{Layer, ServiceExt};
use tower_breaker::{Digest, Event, Reason, TripwireLayer};

use crate::support::calls::{Call, Tool, call, search};
use crate::support::refused;

/// Case 37.
#[tokio::test]
async fn with_three_turns_left_fifty_calls_at_once_run_three() {
    let layer = TripwireLayer::new().max_turns(3);
    let tool = Tool::default();
    let results = join_all((0..50).map(|n| layer.layer(tool.clone()).oneshot(("slow", n)))).await;
    assert_eq!(tool.calls(), 3);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
    assert_eq!(layer.handle().turns(), 3);
    let reasons: Vec<_> = results
        .into_iter()
        .filter(Result::is_err)
        .map(|result| refused(result).reason())
        .collect();
    assert!(
        reasons
            .iter()
            .all(|reason| matches!(reason, Reason::MaxTurns | Reason::TripwireOpen))
    );
}

/// Case 37.
#[test]
fn on_real_threads_the_budget_is_never_exceeded_by_one() {
    for _ in 0..50 {
        let layer = TripwireLayer::new().max_turns(3).identical_limit(u32::MAX);
        let tool = Tool::default();
        let at_once = std::sync::Barrier::new(50);
        std::thread::scope(|scope| {
            for n in 0..50 {
                let (layer, tool, at_once) = (&layer, tool.clone(), &at_once);
                scope.spawn(move || {
                    let service = layer.layer(tool);
                    at_once.wait();
                    let _ = futures::executor::block_on(service.oneshot(search(n)));
                });
            }
        });
        assert_eq!(tool.calls(), 3);
        assert_eq!(layer.handle().turns(), 3);
    }
}

/// Case 41.
#[tokio::test]
async fn twenty_parallel_calls_of_one_turn_spend_one_turn_where_turn_of_says_so() {
    let plain = TripwireLayer::new().max_turns(100).identical_limit(100);
    let tool = Tool::default();
    join_all((0..20).map(|_| plain.layer(tool.clone()).oneshot(search(1)))).await;
    assert_eq!(plain.handle().turns(), 20);

    let layer = TripwireLayer::new()
        .digest(|call: &Call| Digest::of(call.0))
        .turn_of(|call: &Call| call.1);
    for turn in 0..2 {
        let all = join_all((0..20).map(|_| layer.layer(tool.clone()).oneshot(search(turn)))).await;
        assert!(all.iter().all(Result::is_ok), "no repetition in time");
    }
    assert_eq!(layer.handle().turns(), 2);
    let third = layer.layer(tool.clone()).oneshot(search(2)).await;
    assert_eq!(refused(third).reason(), Reason::IdenticalCall);
}

/// Case 42.
#[tokio::test]
async fn a_warning_comes_at_turn_six_of_eight_and_the_budgets_end_is_final() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let warned = Arc::clone(&seen);
    let layer = TripwireLayer::new()
        .warn_at(6)
        .observe(move |event: &Event<'_>| {
            if let Event::Warned {
                turns, max_turns, ..
            } = event
            {
                warned.lock().unwrap().push((*turns, *max_turns));
            }
        });
    let handle = layer.handle();
    let tool = Tool::default();
    let mut service = layer.layer(tool.clone());
    for n in 0..8 {
        call(&mut service, search(n)).await.unwrap();
        assert_eq!(seen.lock().unwrap().len(), usize::from(n >= 5));
    }
    assert_eq!(*seen.lock().unwrap(), [(6, 8)]);
    let end = refused(call(&mut service, search(8)).await);
    assert_eq!((end.reason(), end.count()), (Reason::MaxTurns, Some(8)));
    for n in 0..100 {
        let refusal = refused(call(&mut service, search(n)).await);
        let why = refusal.tripped_by().unwrap_or(refusal.reason());
        assert_eq!(why, Reason::MaxTurns);
    }
    assert_eq!((tool.calls(), handle.turns()), (8, 8));

    handle.extend(2);
    for n in 10..12 {
        call(&mut service, search(n)).await.unwrap();
    }
    assert_eq!(
        refused(call(&mut service, search(12)).await).reason(),
        Reason::MaxTurns
    );
    handle.reset();
    call(&mut service, search(12)).await.unwrap();
    assert_eq!(handle.turns(), 1);
}
