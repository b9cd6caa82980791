//! Proves the error streak: what raises it and what ends it.

use std::future::ready;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_breaker::{Reason, Refusal, State, TripwireLayer};

use crate::support::calls::{Tool, call};

/// Case 40.
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

/// Case 40.
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
