//! Proves what a dropped call says under each rule: never a circuit that is stuck, never two
//! slots.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tower::{Layer, ServiceBuilder};
use tower_breaker::{Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Reason, State};

use crate::support::tool::{Ask, Guarded, Tool, ask, call, hold, trip};
use crate::support::{NS, pass, refused, secs};
use crate::{CANCELLED, fail};

/// Checks the state that a dropped probe leaves, and that no second probe goes until it may.
async fn after_a_dropped_probe(
    rule: Cancelled,
    ran: Duration,
    handle: &CircuitBreakerHandle,
    service: &mut impl Guarded,
) {
    let failed = match rule {
        Cancelled::Failure => true,
        Cancelled::FailureAfter(least) => ran >= least,
        _ => false,
    };
    let wait = if failed {
        assert_eq!(handle.state(), State::Open);
        secs(30)
    } else if rule == Cancelled::Ignore {
        // It keeps its slot until its lease ends.
        assert_eq!(handle.state(), State::HalfOpen);
        let refusal = refused(ask(service, Ask::ok()).await);
        assert_eq!(refusal.reason(), Reason::ProbeInFlight);
        assert_eq!(refusal.retry_after(), Some(secs(30) - ran));
        secs(60) - ran
    } else {
        assert_eq!(handle.state(), State::HalfOpen);
        Duration::ZERO
    };
    if !wait.is_zero() {
        pass(wait - NS).await;
        refused(ask(service, Ask::ok()).await);
        pass(NS).await;
    }
    assert!(handle.would_allow(), "never stuck");
}

/// Case 2.
#[tokio::test(start_paused = true)]
async fn a_dropped_probe_never_leaves_the_circuit_stuck_or_with_two_slots() {
    for rule in CANCELLED {
        for polled in [false, true] {
            let tool = Tool::new();
            let layer = CircuitBreakerLayer::new().on_cancel(rule);
            let handle = layer.handle();
            let mut service = layer.layer(tool.clone());
            trip(&mut service).await;
            pass(secs(30)).await;
            for round in 0..1_000 {
                let (asked, _held) = Ask::held();
                let mut probe = call(&mut service, asked).await;
                if polled {
                    assert!(probe.poll().is_pending());
                }
                let ran = secs(if round % 2 == 0 { 0 } else { 5 });
                pass(ran).await;
                let refusal = refused(ask(&mut service, Ask::ok()).await);
                assert_eq!(refusal.reason(), Reason::ProbeInFlight, "never two slots");
                assert_eq!(tool.running(), 1);
                drop(probe);
                assert_eq!(tool.running(), 0);
                after_a_dropped_probe(rule, ran, &handle, &mut service).await;
                assert_eq!(tool.calls(), 3 + round + 1, "{rule:?}");
            }
            ask(&mut service, Ask::ok()).await.unwrap();
            assert_eq!(handle.state(), State::Closed);
        }
    }
}

/// Case 2, for ordinary calls.
#[tokio::test(start_paused = true)]
async fn a_call_dropped_while_closed_counts_by_the_rule() {
    for rule in CANCELLED {
        for (ran, failed) in [
            (secs(0), rule == Cancelled::Failure),
            (secs(5) - NS, rule == Cancelled::Failure),
            (
                secs(5),
                matches!(rule, Cancelled::Failure | Cancelled::FailureAfter(_)),
            ),
        ] {
            let layer = CircuitBreakerLayer::new().on_cancel(rule);
            let handle = layer.handle();
            let mut service = layer.layer(Tool::new());
            for dropped in 1..=3 {
                let (call, _held) = hold(&mut service, "").await;
                pass(ran).await;
                drop(call);
                let streak = handle.snapshot().streak;
                assert_eq!(streak, if failed { dropped } else { 0 }, "{rule:?} {ran:?}");
            }
            assert_eq!(handle.state() == State::Open, failed, "{rule:?} {ran:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_is_a_cancelled_call_and_during_a_panic_a_failure() {
    for rule in CANCELLED {
        let handle = CircuitBreakerLayer::new().on_cancel(rule).handle();
        drop(handle.try_acquire().unwrap());
        assert_eq!(
            handle.snapshot().streak,
            u32::from(rule == Cancelled::Failure)
        );
        let permit = handle.try_acquire().unwrap();
        pass(secs(5)).await;
        drop(permit);
        let failed = matches!(rule, Cancelled::FailureAfter(_) | Cancelled::Failure);
        let streak = u32::from(rule == Cancelled::Failure) + u32::from(failed);
        assert_eq!(handle.snapshot().streak, streak, "{rule:?}");
        handle.reset();

        // The probe, too.
        fail(&handle, 3);
        pass(secs(30)).await;
        drop(handle.try_acquire().unwrap());
        let (state, allowed) = match rule {
            Cancelled::Ignore => (State::HalfOpen, false),
            Cancelled::Failure => (State::Open, false),
            _ => (State::HalfOpen, true),
        };
        assert_eq!(
            (handle.state(), handle.would_allow()),
            (state, allowed),
            "{rule:?}"
        );
        handle.reset();
        fail(&handle, 3);
        pass(secs(30)).await;
        let probe = handle.try_acquire().unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _probe = probe;
            std::panic::panic_any("work");
        }));
        assert!(unwound.is_err());
        assert_eq!(
            (handle.state(), handle.snapshot().time_left),
            (State::Open, Some(secs(30)))
        );
    }
}

/// Case 22.
#[tokio::test(start_paused = true)]
async fn a_call_dropped_by_a_timeout_outside_counts_if_it_ran_long_enough() {
    for (timeout, least, state) in [
        (10, 5, State::Open),
        (5, 5, State::Open),
        (1, 5, State::Closed),
        (4, 5, State::Closed),
    ] {
        let tool = Tool::new();
        let layer = CircuitBreakerLayer::new().on_cancel(Cancelled::FailureAfter(secs(least)));
        let handle = layer.handle();
        let mut service = ServiceBuilder::new()
            .timeout(secs(timeout))
            .layer(layer)
            .service(tool.clone());
        for _ in 0..3 {
            let err = ask(&mut service, Ask::slow(secs(60))).await.unwrap_err();
            assert!(err.is::<tower::timeout::error::Elapsed>());
        }
        assert_eq!(handle.state(), state, "dropped at {timeout} s");
        assert_eq!(tool.running(), 0);
        assert_eq!(
            ask(&mut service, Ask::ok()).await.is_err(),
            state == State::Open
        );
    }
}
