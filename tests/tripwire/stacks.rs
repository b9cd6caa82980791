//! The tripwire beside other layers.

use tower::{BoxError, ServiceBuilder};
use tower_breaker::{CircuitBreakerLayer, Reason, Refusal, State, TripwireLayer};

use super::fixture::{Tool, call, reason, search};

// ===== 44: a refused tool called again and again =====

#[tokio::test(start_paused = true)]
async fn a_refused_tool_called_again_and_again_is_seen_by_the_tripwire_and_not_by_the_breaker() {
    let breaker = CircuitBreakerLayer::new();
    let tripwire = TripwireLayer::new().max_turns(100);
    let tool = Tool::default();
    let mut service = ServiceBuilder::new()
        .layer(tripwire.clone())
        .layer(breaker.clone())
        .service(tool.clone());
    breaker.handle().force_open();
    for _ in 0..2 {
        assert_eq!(
            reason(call(&mut service, search(1)).await),
            Reason::ForcedOpen
        );
    }
    let before = breaker.handle().snapshot();
    assert_eq!(
        reason(call(&mut service, search(1)).await),
        Reason::IdenticalCall
    );
    for _ in 0..20 {
        call(&mut service, search(1)).await.unwrap_err();
    }
    assert_eq!(breaker.handle().snapshot(), before);
    assert_eq!(tool.calls(), 0);
    assert_eq!(tripwire.handle().reason(), Some(Reason::IdenticalCall));
}

// ===== 50: softened refusals =====

#[tokio::test]
async fn the_refusals_of_a_breaker_inside_change_no_streak_of_the_tripwire() {
    let breaker = CircuitBreakerLayer::new();
    let tripwire = TripwireLayer::new().max_turns(100);
    let mut service = ServiceBuilder::new()
        .then(|result: Result<u64, BoxError>| async move {
            match result {
                Ok(answer) => Ok(answer.to_string()),
                Err(err) => Refusal::find(&*err).map(ToString::to_string).ok_or(err),
            }
        })
        .layer(tripwire.clone())
        .layer(breaker.clone())
        .service(Tool::default());
    for n in 0..2 {
        call(&mut service, ("down", n)).await.unwrap_err();
    }
    breaker.handle().force_open();
    for n in 2..20 {
        let told = call(&mut service, search(n)).await.unwrap();
        assert_eq!(told, "tool temporarily unavailable: circuit breaker open");
        assert_eq!(
            tripwire.handle().snapshot().errors,
            2,
            "neither raised nor ended"
        );
        assert_eq!(tripwire.handle().state(), State::Closed);
    }
}
