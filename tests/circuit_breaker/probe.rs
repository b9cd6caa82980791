//! Proves that probes go one at a time, and what ends them: hung, crowded, neutral, and several
//! in a row.

use std::time::Duration;

use tokio::task::JoinSet;
use tower::Layer;
use tower_breaker::{Cancelled, CircuitBreakerLayer, FailureKind, Outcome, Reason, State};

use crate::support::events::Recorder;
use crate::support::tool::{Ask, Tool, ask, begin, by_status, hold, ok, status, trip};
use crate::support::{NS, on_threads, pass, refused, secs};
use crate::{CANCELLED, fail};

/// Case 1.
#[tokio::test(start_paused = true)]
async fn after_a_hung_probe_exactly_one_new_probe_goes_when_lease_and_cooldown_are_over() {
    for (cooldown, lease) in [(30, 30), (5, 60), (60, 1), (1, 1)] {
        let (cooldown, lease) = (secs(cooldown), secs(lease));
        let whole = lease + cooldown;
        for (asked_meanwhile, recovered) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let tool = Tool::new();
            let layer = CircuitBreakerLayer::new()
                .recovery_duration(cooldown)
                .probe_timeout(lease);
            let handle = layer.handle();
            let mut service = layer.layer(tool.clone());
            trip(&mut service).await;
            pass(cooldown).await;
            let (hung, late) = hold(&mut service, "").await;
            assert_eq!(tool.calls(), 4);

            let mut now = Duration::ZERO;
            if asked_meanwhile {
                for at in [
                    now,
                    NS,
                    lease / 2,
                    lease - NS,
                    lease,
                    lease + NS,
                    lease + cooldown / 2,
                    whole - NS,
                ] {
                    pass(at - now).await;
                    now = at;
                    let refusal = refused(ask(&mut service, Ask::ok()).await);
                    let told = (refusal.reason(), refusal.retry_after(), handle.state());
                    if now < lease {
                        assert_eq!(
                            told,
                            (Reason::ProbeInFlight, Some(lease - now), State::HalfOpen)
                        );
                    } else {
                        assert_eq!(told, (Reason::CircuitOpen, Some(whole - now), State::Open));
                    }
                }
                assert_eq!(tool.calls(), 4);
            }
            pass(whole - now).await;
            let (probe, held) = hold(&mut service, "").await;
            assert_eq!(tool.calls(), 5);
            let refusal = refused(ask(&mut service, Ask::ok()).await);
            assert_eq!(
                (refusal.reason(), refusal.retry_after()),
                (Reason::ProbeInFlight, Some(lease))
            );

            let before = handle.snapshot();
            late.send(ok()).unwrap();
            assert!(hung.await.is_ok(), "its caller gets its answer");
            assert_eq!(handle.snapshot(), before);
            assert!(!handle.would_allow());
            assert_eq!(tool.calls(), 5);

            held.send(if recovered { ok() } else { status(503) })
                .unwrap();
            assert_eq!(probe.await.is_ok(), recovered);
            assert_eq!(
                handle.state(),
                if recovered {
                    State::Closed
                } else {
                    State::Open
                }
            );
        }
    }
}

/// Case 1: the cooldown counts from the lease's end though nobody noticed it.
#[tokio::test(start_paused = true)]
async fn an_expired_lease_reads_as_open_and_as_a_failure_before_anybody_calls() {
    let recorder = Recorder::new();
    let layer = CircuitBreakerLayer::new().observe(recorder.clone());
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    pass(secs(30)).await;
    let _hung = hold(&mut service, "").await;
    recorder.take();

    pass(secs(40)).await;
    let snapshot = handle.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.due, snapshot.trips),
        (State::Open, false, 2)
    );
    assert_eq!(snapshot.time_left, Some(secs(20)));
    assert_eq!(snapshot.last_failure, Some(FailureKind::Transient));
    pass(secs(19)).await;
    assert!(!handle.would_allow());
    pass(secs(1)).await;
    assert!(handle.would_allow() && handle.snapshot().due);
    assert_eq!(recorder.take(), [""; 0], "looking tells nobody anything");

    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(
        recorder.take(),
        [
            "lease expired #2",
            "half_open -> open (lease_expired) #3",
            "open -> half_open (cooldown_over) #4",
            "probe for 30s #4",
            "half_open -> closed (probe_succeeded) #5",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_counts_until_just_before_its_lease_ends() {
    for (nanos, state) in [
        (29_999_999_999, State::Closed),
        (30_000_000_000, State::Open),
    ] {
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        trip(&mut service).await;
        pass(secs(30)).await;
        let (probe, held) = hold(&mut service, "").await;
        pass(Duration::from_nanos(nanos)).await;
        held.send(ok()).unwrap();
        assert!(probe.await.is_ok(), "its caller gets its answer either way");
        assert_eq!(handle.state(), state);
    }
}

/// Case 5.
#[test]
fn exactly_one_of_a_thousand_calls_at_the_cooldowns_end_is_the_probe() {
    on_threads(async {
        for round in 0..12 {
            let rule = CANCELLED[round % CANCELLED.len()];
            let tool = Tool::new();
            let layer = CircuitBreakerLayer::new()
                // Due at once: nothing to wait for.
                .recovery_duration(Duration::ZERO)
                .on_cancel(rule);
            let handle = layer.handle();
            let mut service = layer.layer(tool.clone());
            let mut old = Vec::new();
            for _ in 0..30 {
                old.push(hold(&mut service, "").await);
            }
            trip(&mut service).await;
            let before = tool.calls();

            let mut crowd = JoinSet::new();
            let mut senders = Vec::new();
            for _ in 0..1_000 {
                let mut service = layer.layer(tool.clone());
                let (held, sender) = Ask::held();
                senders.push(sender);
                crowd.spawn(async move { ask(&mut service, held).await });
            }
            for _ in 0..999 {
                let refusal = refused(crowd.join_next().await.unwrap().unwrap());
                assert_eq!(refusal.reason(), Reason::ProbeInFlight);
            }
            assert_eq!(tool.calls(), before + 1, "one inner call");

            // The calls from before the trip end while others arrive.
            let mut late = JoinSet::new();
            for (at, (call, sender)) in old.into_iter().enumerate() {
                late.spawn(async move {
                    match at % 3 {
                        0 => drop(call),
                        1 => {
                            sender.send(status(503)).unwrap();
                            call.await.unwrap_err();
                        }
                        _ => {
                            sender.send(ok()).unwrap();
                            call.await.unwrap();
                        }
                    }
                });
            }
            for _ in 0..100 {
                let mut service = service.clone();
                late.spawn(async move {
                    refused(ask(&mut service, Ask::ok()).await);
                });
            }
            while let Some(done) = late.join_next().await {
                done.unwrap();
            }
            assert_eq!(tool.calls(), before + 1, "late ones add no slot: {rule:?}");
            assert_eq!(handle.state(), State::HalfOpen);

            for sender in senders {
                // The refused calls are gone.
                let _ = sender.send(ok());
            }
            crowd.join_next().await.unwrap().unwrap().unwrap();
            assert_eq!(handle.state(), State::Closed);
        }
    });
}

/// Case 6.
#[tokio::test(start_paused = true)]
async fn after_a_neutral_probe_the_next_call_is_the_probe() {
    let tool = Tool::new();
    let recorder = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .classify(by_status)
        .observe(recorder.clone());
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    trip(&mut service).await;
    pass(secs(30)).await;
    for neutral in 0..100 {
        ask(&mut service, Ask::neutral()).await.unwrap_err();
        assert_eq!(handle.state(), State::HalfOpen);
        assert_eq!(handle.snapshot().time_left, None, "no lease runs");
        assert_eq!(tool.calls(), 3 + neutral + 1);
        // The slot waits for its caller, however long that takes.
        pass(secs(1_000)).await;
    }
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(handle.state(), State::Closed);
    let events = recorder.take();
    assert_eq!(
        events
            .iter()
            .filter(|event| *event == "probe for 30s #2")
            .count(),
        101
    );
    assert_eq!(events.len(), 101 + 3);
}

// ===== several successes =====

/// Case 16.
#[tokio::test(start_paused = true)]
async fn the_probes_of_a_success_threshold_go_one_after_the_other() {
    for wanted in [1_u32, 2, 3, 7] {
        let tool = Tool::new();
        let layer = CircuitBreakerLayer::new()
            .success_threshold(wanted)
            .classify(by_status);
        let handle = layer.handle();
        let mut service = layer.layer(tool.clone());
        trip(&mut service).await;

        // One success too few, then a failure: open, and the count starts again.
        pass(secs(30)).await;
        for _ in 1..wanted {
            ask(&mut service, Ask::ok()).await.unwrap();
            assert_eq!(handle.state(), State::HalfOpen);
        }
        ask(&mut service, Ask::fail()).await.unwrap_err();
        assert_eq!(
            (handle.state(), handle.snapshot().time_left),
            (State::Open, Some(secs(30)))
        );

        pass(secs(30)).await;
        for nth in 1..=wanted {
            assert!(handle.would_allow());
            let (probe, held) = hold(&mut service, "").await;
            let refusal = refused(ask(&mut service, Ask::ok()).await);
            assert_eq!(refusal.reason(), Reason::ProbeInFlight, "never two at once");
            assert_eq!(
                refusal.retry_after(),
                Some(secs(30)),
                "each has a lease of its own"
            );
            assert_eq!(tool.running(), 1);
            held.send(ok()).unwrap();
            probe.await.unwrap();
            assert_eq!(handle.state() == State::Closed, nth == wanted);
            if nth < wanted {
                // A neutral probe in between changes nothing.
                ask(&mut service, Ask::neutral()).await.unwrap_err();
                pass(secs(7)).await;
            }
        }
    }
}

/// Case 16.
#[tokio::test(start_paused = true)]
async fn successes_before_an_expired_lease_do_not_count_after_it() {
    let layer = CircuitBreakerLayer::new().success_threshold(3);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    pass(secs(30)).await;
    ask(&mut service, Ask::ok()).await.unwrap();
    ask(&mut service, Ask::ok()).await.unwrap();
    let _hung = begin(&mut service, Ask::held().0).await;
    pass(secs(60)).await;
    for state in [State::HalfOpen, State::HalfOpen, State::Closed] {
        ask(&mut service, Ask::ok()).await.unwrap();
        assert_eq!(handle.state(), state);
    }
}

#[test]
fn neutral_and_released_probes_do_not_reset_the_successes_so_far() {
    let handle = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(Duration::ZERO)
        .success_threshold(2)
        .on_cancel(Cancelled::Release)
        .handle();
    fail(&handle, 1);
    handle.try_acquire().unwrap().success();
    handle.try_acquire().unwrap().record(Outcome::Neutral);
    drop(handle.try_acquire().unwrap());
    assert_eq!(handle.state(), State::HalfOpen);
    handle.try_acquire().unwrap().success();
    assert_eq!(handle.state(), State::Closed);
}
