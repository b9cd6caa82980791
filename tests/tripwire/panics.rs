//! Proves that a panic of the service or of a classifier gives a verdict.

use tower::{BoxError, Layer, service_fn};
use tower_breaker::{Failure, Outcome, Reason, State, TripwireLayer};

use crate::support::calls::{Call, Tool, armed, call, search};

#[tokio::test]
async fn a_panic_of_the_service_is_an_error_and_one_of_the_classifier_a_dropped_call() {
    use futures::FutureExt;
    use std::panic::AssertUnwindSafe;

    let layer = TripwireLayer::new().max_turns(100);
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|(name, n): Call| async move {
        assert_ne!(name, "panic");
        Ok::<_, BoxError>(n)
    }));
    for n in 0..3 {
        let panicking = AssertUnwindSafe(call(&mut tool, ("panic", n))).catch_unwind();
        panicking.await.unwrap_err();
    }
    assert_eq!(handle.reason(), Some(Reason::ErrorStreak));
    for n in 0..4 {
        call(&mut tool, search(n)).await.unwrap_err();
    }
    let probe = AssertUnwindSafe(call(&mut tool, ("panic", 9))).catch_unwind();
    probe.await.unwrap_err();
    assert_eq!((handle.state(), handle.snapshot().trips), (State::Open, 2));

    let layer = TripwireLayer::new()
        .max_turns(100)
        .classify(|result: Result<&u64, &BoxError>| match result {
            Ok(13) => panic!("a classifier's own"),
            Ok(_) => Outcome::Success,
            Err(_) => Failure::transient().into(),
        });
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    let unlucky = AssertUnwindSafe(call(&mut tool, search(13))).catch_unwind();
    unlucky.await.unwrap_err();
    assert_eq!((handle.snapshot().errors, handle.turns()), (0, 1));
    armed(&mut tool).await;
    let probe = AssertUnwindSafe(call(&mut tool, search(13))).catch_unwind();
    probe.await.unwrap_err();
    assert_eq!((handle.state(), handle.snapshot().trips), (State::Open, 1));
}
