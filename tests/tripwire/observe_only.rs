//! Proves that a layer that only observes refuses nothing and tells what it would have refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower::{BoxError, Layer};
use tower_breaker::{Event, Outcome, Reason, TripwireLayer};

use crate::support::calls::{Tool, call, search};

/// Case 43.
#[tokio::test]
async fn observing_only_runs_a_hundred_identical_calls_and_tells_98_refusals() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let layer = TripwireLayer::new()
        .observe_only()
        .observe(move |event: &Event<'_>| {
            if let Event::Refused {
                refusal,
                observe_only: true,
                ..
            } = event
            {
                let why = refusal.tripped_by().unwrap_or(refusal.reason());
                assert_eq!(why, Reason::IdenticalCall);
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
    let tool = Tool::default();
    let mut service = layer.layer(tool.clone());
    for _ in 0..100 {
        call(&mut service, search(1)).await.unwrap();
    }
    assert_eq!(tool.calls(), 100);
    assert_eq!(told.load(Ordering::SeqCst), 98);
    assert!(layer.handle().would_allow(&search(1)));
    assert_eq!(layer.handle().turns(), 2, "the rest ran without a permit");
}

/// Case 43.
#[tokio::test]
async fn observing_only_asks_for_no_verdict_of_a_call_that_would_be_refused() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let layer = TripwireLayer::new()
        .observe_only()
        .classify(move |_: Result<&u64, &BoxError>| {
            count.fetch_add(1, Ordering::SeqCst);
            Outcome::Success
        });
    let mut tool = layer.layer(Tool::default());
    for _ in 0..100 {
        call(&mut tool, search(1)).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}
