//! Proves what is a repeat: identical calls, cycles, equal results, exempt calls.

use std::future::ready;
use std::sync::Mutex;

use tower::{BoxError, Layer, Service, service_fn};
use tower_breaker::{HashDigest, Limit, Reason, State, TripwireLayer};

use crate::support::calls::{Call, Tool, call, search};
use crate::support::refused;

/// Case 38.
#[tokio::test]
async fn a_cycle_of_two_calls_is_refused_at_its_sixth_call() {
    let layer = TripwireLayer::new().cycles(3, 3);
    let tool = Tool::default();
    let mut service = layer.layer(tool.clone());
    for n in [1, 2, 1, 2, 1] {
        call(&mut service, search(n)).await.unwrap();
    }
    let refusal = refused(call(&mut service, search(2)).await);
    assert_eq!(refusal.reason(), Reason::IdenticalCall);
    assert_eq!(refusal.count(), Some(3));
    assert_eq!(tool.calls(), 5);

    layer.handle().reset();
    for n in [1, 2, 3, 1, 2, 4] {
        call(&mut service, search(n)).await.unwrap();
    }
}

// ===== results =====

/// A tool that answers with what is on its list.
fn answering(
    answers: Vec<Result<u64, &'static str>>,
) -> impl Service<Call, Response = u64, Error = BoxError> {
    let answers = Mutex::new(answers.into_iter());
    service_fn(move |_: Call| {
        let answer = answers.lock().unwrap().next().expect("an answer");
        ready(answer.map_err(BoxError::from))
    })
}

/// Case 39.
#[tokio::test]
async fn equal_calls_pass_while_their_results_differ_and_trip_at_three_equal_results() {
    let layer = TripwireLayer::new().max_turns(100).same_result(HashDigest);
    let mut poll = layer.layer(answering((0..10).map(Ok).collect()));
    for n in 0..10 {
        assert_eq!(call(&mut poll, search(1)).await.unwrap(), n);
    }
    assert_eq!(layer.handle().state(), State::Closed);

    layer.handle().reset();
    let mut stuck = layer.layer(answering(vec![Ok(1); 3]));
    for _ in 0..2 {
        call(&mut stuck, search(1)).await.unwrap();
    }
    let third = call(&mut stuck, search(1)).await;
    assert_eq!(refused(third).reason(), Reason::IdenticalCall);
}

/// Case 39.
#[tokio::test]
async fn failures_are_no_different_results() {
    let layer = TripwireLayer::new()
        .error_limit(100)
        .same_result(HashDigest);
    let mut tool = layer.layer(answering(vec![Err("one"), Err("two"), Err("three")]));
    for _ in 0..2 {
        call(&mut tool, search(1)).await.unwrap_err();
    }
    assert_eq!(
        refused(call(&mut tool, search(1)).await).reason(),
        Reason::IdenticalCall
    );
}

// ===== exemptions =====

/// Case 39.
#[tokio::test]
async fn an_exempt_call_is_no_repeat_and_ends_no_streak() {
    let layer = TripwireLayer::new()
        .max_turns(100)
        .limit_of(|call: &Call| match call.0 {
            "job_status" => Some(Limit::exempt()),
            "read" => Some(Limit::identical(5)),
            _ => None,
        });
    let mut tool = layer.layer(Tool::default());
    for _ in 0..20 {
        call(&mut tool, ("job_status", 1)).await.unwrap();
    }
    call(&mut tool, search(1)).await.unwrap();
    call(&mut tool, ("job_status", 1)).await.unwrap();
    call(&mut tool, search(1)).await.unwrap();
    call(&mut tool, ("job_status", 1)).await.unwrap();
    for _ in 0..4 {
        layer.handle().reset();
        for _ in 0..4 {
            call(&mut tool, ("read", 1)).await.unwrap();
        }
        assert!(!layer.handle().would_allow(&("read", 1)));
        assert!(layer.handle().would_allow(&search(1)));
    }
    layer.handle().reset();
    for _ in 0..2 {
        call(&mut tool, search(1)).await.unwrap();
        call(&mut tool, ("job_status", 1)).await.unwrap();
    }
    assert_eq!(
        refused(call(&mut tool, search(1)).await).reason(),
        Reason::IdenticalCall
    );
    let spent = layer.handle().turns();
    assert_eq!(spent, 4, "an exempt call spends its turn");
}
