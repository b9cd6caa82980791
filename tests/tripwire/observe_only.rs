//! A layer that only observes refuses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower::{BoxError, Layer};
use tower_breaker::{Event, Reason, TripwireLayer};

use super::fixture::{Tool, call, search};

// ===== 43: observe only =====

#[tokio::test]
async fn a_hundred_identical_calls_all_run_and_98_events_report_would_be_refusals() {
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

#[tokio::test]
async fn an_unguarded_call_is_not_classified() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let layer = TripwireLayer::new()
        .observe_only()
        .classify(move |_: Result<&u64, &BoxError>| {
            count.fetch_add(1, Ordering::SeqCst);
            tower_breaker::Outcome::Success
        });
    let mut tool = layer.layer(Tool::default());
    for _ in 0..100 {
        call(&mut tool, search(1)).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}
