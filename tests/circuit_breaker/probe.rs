//! Probes that hang, are dropped, or are neutral; crowds of callers; and several probes in a row.

use std::time::Duration;

use tokio::task::JoinSet;
use tower::Layer;
use tower_breaker::{
    Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, FailureKind, Outcome, Reason, State,
};

use super::CANCELLED;
use crate::support::{
    Ask, Guarded, NS, Recorder, Tool, ask, begin, by_status, call, hold, ok, on_threads, pass,
    refused, secs, status, trip,
};

/// Case 1.
#[tokio::test(start_paused = true)]
async fn a_hung_probe_is_followed_by_exactly_one_when_lease_and_cooldown_are_over() {
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

/// Case 1: the cooldown counts from the end of the lease, even if nobody noticed that end.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_reads_as_open_and_as_a_failure_before_anybody_calls() {
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

/// Checks the state after a dropped probe, and that no second probe starts meanwhile.
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
async fn a_dropped_probe_never_leaves_the_circuit_stuck_nor_with_two_slots() {
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

/// Case 2, for the calls beside the probe.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_while_closed_says_what_the_rule_says() {
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

/// Case 5.
#[test]
fn of_a_crowd_at_the_cooldowns_end_exactly_one_call_is_the_probe() {
    on_threads(async {
        for round in 0..12 {
            let rule = CANCELLED[round % CANCELLED.len()];
            let tool = Tool::new();
            let layer = CircuitBreakerLayer::new()
                // The circuit is due at once.
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

            // The calls from before the trip end, while others arrive.
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
                // Refused calls have dropped their receivers.
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
        // The free slot stays free until a call comes.
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

/// Case 6.
#[tokio::test(start_paused = true)]
async fn neutral_results_neither_raise_nor_reset_a_streak() {
    for threshold in [2, 3, 10] {
        for neutrals in [1, 5, 100] {
            let layer = CircuitBreakerLayer::new()
                .failure_threshold(threshold)
                .classify(by_status);
            let handle = layer.handle();
            let mut service = layer.layer(Tool::new());
            for failures in 1..threshold {
                ask(&mut service, Ask::fail()).await.unwrap_err();
                for _ in 0..neutrals {
                    ask(&mut service, Ask::neutral()).await.unwrap_err();
                }
                assert_eq!(
                    (handle.state(), handle.snapshot().streak),
                    (State::Closed, failures)
                );
            }
            ask(&mut service, Ask::fail()).await.unwrap_err();
            assert_eq!(handle.state(), State::Open);
        }
    }
}

/// Case 6: a neutral result that comes late moves no cooldown, in any state.
#[tokio::test(start_paused = true)]
async fn a_late_neutral_result_moves_nothing() {
    let layer = CircuitBreakerLayer::new().classify(by_status);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let (while_open, first) = hold(&mut service, "").await;
    let (while_half_open, second) = hold(&mut service, "").await;
    trip(&mut service).await;
    pass(secs(10)).await;
    first.send(status(401)).unwrap();
    while_open.await.unwrap_err();
    assert_eq!(handle.snapshot().time_left, Some(secs(20)));
    pass(secs(20)).await;
    let _probe = hold(&mut service, "").await;
    second.send(status(401)).unwrap();
    while_half_open.await.unwrap_err();
    assert!(!handle.would_allow(), "the slot is still the probe's");
}

/// Case 16.
#[tokio::test(start_paused = true)]
async fn a_success_threshold_needs_that_many_probes_one_after_the_other() {
    for wanted in [1_u32, 2, 3, 7] {
        let tool = Tool::new();
        let layer = CircuitBreakerLayer::new()
            .success_threshold(wanted)
            .classify(by_status);
        let handle = layer.handle();
        let mut service = layer.layer(tool.clone());
        trip(&mut service).await;

        // All probes but one succeed, and then one fails. The circuit opens, and the count begins
        // anew.
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
                // A neutral probe in between changes no count.
                ask(&mut service, Ask::neutral()).await.unwrap_err();
                pass(secs(7)).await;
            }
        }
    }
}

/// Case 16: a probe that hangs discards the successes before it.
#[tokio::test(start_paused = true)]
async fn successes_do_not_carry_over_a_lease_that_ended() {
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

fn fail_times(handle: &CircuitBreakerHandle, times: u32) {
    for _ in 0..times {
        handle.try_acquire().unwrap().failure();
    }
}

// ===== results =====

#[test]
fn neutral_and_released_probes_keep_the_count_of_successful_probes() {
    let handle = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(Duration::ZERO)
        .success_threshold(2)
        .on_cancel(Cancelled::Release)
        .handle();
    fail_times(&handle, 1);
    handle.try_acquire().unwrap().success();
    handle.try_acquire().unwrap().record(Outcome::Neutral);
    drop(handle.try_acquire().unwrap());
    assert_eq!(handle.state(), State::HalfOpen);
    handle.try_acquire().unwrap().success();
    assert_eq!(handle.state(), State::Closed);
}
