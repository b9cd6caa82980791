//! The counts of a tripwire: turns, errors in a row, and warnings before the end.

use std::future::ready;
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_breaker::{Digest, Event, Reason, Refusal, State, TripwireLayer};

use super::fixture::{Call, Tool, call, reason, refusal, search};

// ===== 37: parallel calls =====

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
        .map(reason)
        .collect();
    assert!(
        reasons
            .iter()
            .all(|reason| matches!(reason, Reason::MaxTurns | Reason::TripwireOpen))
    );
}

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

#[test]
fn on_real_threads_a_sessions_budget_is_never_exceeded_while_others_come_and_go() {
    for round in 0..20 {
        let layer = TripwireLayer::new()
            .max_turns(3)
            .identical_limit(u32::MAX)
            .per_owned_session(
                |call: &Call| if call.0 == "ours" { 0 } else { call.1 + 1 },
                4,
            );
        let ours = Tool::default();
        let at_once = std::sync::Barrier::new(24);
        std::thread::scope(|scope| {
            for n in 0..24 {
                let (layer, ours, at_once) = (&layer, ours.clone(), &at_once);
                scope.spawn(move || {
                    at_once.wait();
                    if n % 2 == 0 {
                        let service = layer.layer(ours);
                        let _ = futures::executor::block_on(service.oneshot(("ours", n)));
                    } else {
                        // Three sessions at a time, so that the session under test is never
                        // evicted.
                        let service = layer.layer(Tool::default());
                        let _ = futures::executor::block_on(service.oneshot(("other", n % 3)));
                    }
                });
            }
        });
        assert_eq!(ours.calls(), 3, "round {round}");
    }
}

// ===== 40: the error streak =====

#[tokio::test]
async fn a_success_breaks_the_error_streak_and_a_reset_carries_nothing_over() {
    let layer = TripwireLayer::new().max_turns(100);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    for n in 0..20 {
        let down = if n % 3 == 2 { "up" } else { "down" };
        let _ = call(&mut tool, (down, n)).await;
        assert_eq!(handle.state(), State::Closed);
    }
    handle.reset();
    for n in 0..2 {
        call(&mut tool, ("down", n)).await.unwrap_err();
    }
    handle.reset();
    for n in 0..2 {
        call(&mut tool, ("down", n)).await.unwrap_err();
        assert_eq!(handle.state(), State::Closed);
    }
    let own = call(&mut tool, ("down", 2)).await.unwrap_err();
    assert_eq!(
        own.to_string(),
        "the tool's own error",
        "not masked by the trip"
    );
    assert_eq!(handle.reason(), Some(Reason::ErrorStreak));
}

#[tokio::test]
async fn an_error_of_any_type_counts() {
    #[derive(Debug)]
    struct Odd;
    let layer = TripwireLayer::new().refuse_with(|_: u8, _: Refusal| Ok::<_, Odd>("stop"));
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|_: u8| ready(Err::<&str, _>(Odd))));
    for n in 0..3 {
        tool.ready().await.unwrap().call(n).await.unwrap_err();
    }
    assert_eq!(handle.state(), State::Open);
    assert_eq!(tool.ready().await.unwrap().call(9).await.unwrap(), "stop");
}

// ===== 41: turns and calls =====

#[tokio::test]
async fn twenty_parallel_calls_of_one_turn_spend_one_turn_if_the_layer_reads_turns() {
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
    assert_eq!(reason(third), Reason::IdenticalCall);
}

// ===== 42: the budget's end =====

#[tokio::test]
async fn a_warning_comes_at_six_of_eight_and_the_end_is_final() {
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
    let end = refusal(call(&mut service, search(8)).await);
    assert_eq!((end.reason(), end.count()), (Reason::MaxTurns, Some(8)));
    for n in 0..100 {
        let refused = refusal(call(&mut service, search(n)).await);
        let why = refused.tripped_by().unwrap_or(refused.reason());
        assert_eq!(why, Reason::MaxTurns);
    }
    assert_eq!((tool.calls(), handle.turns()), (8, 8));

    handle.extend(2);
    for n in 10..12 {
        call(&mut service, search(n)).await.unwrap();
    }
    assert_eq!(
        reason(call(&mut service, search(12)).await),
        Reason::MaxTurns
    );
    handle.reset();
    call(&mut service, search(12)).await.unwrap();
    assert_eq!(handle.turns(), 1);
}
