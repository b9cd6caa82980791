//! Proves how long a circuit stays open: hints, growth and jitter.

use std::collections::BTreeSet;
use std::time::Duration;

use tower::Layer;
use tower_breaker::{CircuitBreakerHandle, CircuitBreakerLayer, Failure, FailureKind, State};

use crate::fail;
use crate::support::tool::{Ask, Tool, ask, busy_for, by_status, hold, ok, status, trip};
use crate::support::{NS, pass, refused, secs};

const MINUTES: u64 = 60;

/// Hints, and how long a failure with each keeps a circuit open. Its cooldown is 30 s, the cap 5
/// minutes.
const HINTS: [(Duration, Duration); 12] = [
    (Duration::ZERO, secs(30)),
    (NS, secs(30)),
    (secs(1), secs(30)),
    (secs(29), secs(30)),
    (secs(30), secs(30)),
    (secs(31), secs(31)),
    (secs(60), secs(60)),
    (secs(5 * MINUTES), secs(5 * MINUTES)),
    (secs(5 * MINUTES + 1), secs(5 * MINUTES)),
    (secs(365 * 24 * 60 * MINUTES), secs(5 * MINUTES)),
    (secs(9_223_372_037), secs(5 * MINUTES)),
    (Duration::MAX, secs(5 * MINUTES)),
];

/// Checks that the circuit refuses until exactly `wait` from now.
async fn is_open_for(handle: &CircuitBreakerHandle, wait: Duration) {
    assert_eq!(handle.snapshot().time_left, Some(wait));
    pass(wait - NS).await;
    let refusal = handle.try_acquire().map(|_| ()).unwrap_err();
    assert_eq!(refusal.retry_after(), Some(NS));
    pass(NS).await;
    assert!(handle.would_allow());
}

/// Case 9.
#[tokio::test(start_paused = true)]
async fn a_hint_lengthens_the_cooldown_up_to_the_cap_and_never_shortens_it() {
    for (hint, wait) in HINTS {
        let layer = CircuitBreakerLayer::new().classify(by_status);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        for _ in 0..3 {
            ask(&mut service, Ask::answer(busy_for(hint)))
                .await
                .unwrap_err();
        }
        let refusal = refused(ask(&mut service, Ask::ok()).await);
        assert_eq!(refusal.retry_after(), Some(wait));
        assert_eq!(refusal.last_failure(), Some(FailureKind::RateLimited));
        is_open_for(&handle, wait).await;

        // The same for a probe's failure.
        ask(&mut service, Ask::answer(busy_for(hint)))
            .await
            .unwrap_err();
        assert_eq!(handle.state(), State::Open);
        let refusal = refused(ask(&mut service, Ask::ok()).await);
        assert_eq!(refusal.retry_after(), Some(wait));
        is_open_for(&handle, wait).await;

        // The hint is forgotten after that.
        ask(&mut service, Ask::fail()).await.unwrap_err();
        is_open_for(&handle, secs(30)).await;
    }
}

/// Case 9.
#[tokio::test(start_paused = true)]
async fn a_hint_counts_whatever_the_kind_of_failure() {
    for failure in [
        Failure::transient(),
        Failure::rate_limited(),
        Failure::fatal(),
    ] {
        for (hint, wait) in HINTS {
            let handle = CircuitBreakerLayer::new().failure_threshold(1).handle();
            let permit = handle.try_acquire().unwrap();
            permit.record(failure.with_retry_after(hint));
            is_open_for(&handle, wait).await;
        }
    }
}

/// Case 9: the later deadline wins, whichever hint came first.
#[tokio::test(start_paused = true)]
async fn a_late_hint_wins_when_its_deadline_is_later() {
    for after in [0, 1, 29] {
        for (hint, wait) in HINTS {
            let layer = CircuitBreakerLayer::new().classify(by_status);
            let handle = layer.handle();
            let mut service = layer.layer(Tool::new());
            let (late, held) = hold(&mut service, "").await;
            for _ in 0..3 {
                ask(&mut service, Ask::answer(busy_for(secs(1))))
                    .await
                    .unwrap_err();
            }
            pass(secs(after)).await;
            held.send(busy_for(hint)).unwrap();
            late.await.unwrap_err();
            is_open_for(&handle, wait).await;
        }
    }
    // A late failure without a hint does not shorten an earlier hint.
    let layer = CircuitBreakerLayer::new().classify(by_status);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let (late, held) = hold(&mut service, "").await;
    for _ in 0..3 {
        ask(&mut service, Ask::answer(busy_for(secs(60))))
            .await
            .unwrap_err();
    }
    pass(secs(10)).await;
    held.send(status(503)).unwrap();
    late.await.unwrap_err();
    is_open_for(&handle, secs(50)).await;
}

/// Case 9: the hint counts from when it came. A success ends the streak and the hint.
#[tokio::test(start_paused = true)]
async fn a_hint_heard_earlier_in_the_streak_is_not_forgotten_at_the_trip() {
    for (interrupted, left) in [(false, 80), (true, 30)] {
        let layer = CircuitBreakerLayer::new().classify(by_status);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        ask(&mut service, Ask::answer(busy_for(secs(100))))
            .await
            .unwrap_err();
        ask(&mut service, Ask::neutral()).await.unwrap_err();
        if interrupted {
            ask(&mut service, Ask::ok()).await.unwrap();
            ask(&mut service, Ask::fail()).await.unwrap_err();
        }
        pass(secs(10)).await;
        ask(&mut service, Ask::fail()).await.unwrap_err();
        assert_eq!(handle.state(), State::Closed);
        pass(secs(10)).await;
        ask(&mut service, Ask::fail()).await.unwrap_err();
        is_open_for(&handle, secs(left)).await;
    }
}

/// Case 9.
#[tokio::test(start_paused = true)]
async fn the_layer_sets_the_cap_on_hints() {
    for (cap, wait) in [
        (Duration::ZERO, Some(secs(30))),
        (secs(10), Some(secs(30))),
        (secs(31), Some(secs(31))),
        // Without end: longer than the 584 years that the clock can count.
        (Duration::MAX, None),
    ] {
        let handle = CircuitBreakerLayer::new().retry_after_cap(cap).handle();
        let failure = Failure::fatal().with_retry_after(Duration::MAX);
        handle.try_acquire().unwrap().record(failure);
        assert_eq!(handle.state(), State::Open);
        assert_eq!(handle.snapshot().time_left, wait);
        assert_eq!(handle.try_acquire().unwrap_err().retry_after(), wait);
    }
}

// ===== growth =====

/// Case 15.
#[tokio::test(start_paused = true)]
async fn the_cooldown_grows_with_each_failed_probe_up_to_its_cap() {
    let layer = CircuitBreakerLayer::new()
        .recovery_duration(secs(1))
        .backoff(2, secs(60));
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for life in 0..3 {
        trip(&mut service).await;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60] {
            is_open_for(&handle, secs(wait)).await;
            match life {
                // A hung probe grows the cooldown as a failed one does.
                2 => {
                    let _hung = hold(&mut service, "").await;
                    pass(secs(30)).await;
                }
                _ => {
                    ask(&mut service, Ask::fail()).await.unwrap_err();
                }
            }
        }
        pass(secs(60)).await;
        ask(&mut service, Ask::ok()).await.unwrap();
        assert_eq!(handle.state(), State::Closed);
    }
}

/// Case 15.
#[tokio::test(start_paused = true)]
async fn a_late_failure_restarts_the_cooldown_but_does_not_grow_it() {
    let layer = CircuitBreakerLayer::new().backoff(3, secs(1_000));
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let (late, held) = hold(&mut service, "").await;
    trip(&mut service).await;
    pass(secs(30)).await;
    ask(&mut service, Ask::fail()).await.unwrap_err();
    pass(secs(80)).await;
    held.send(status(503)).unwrap();
    late.await.unwrap_err();
    is_open_for(&handle, secs(90)).await;
    ask(&mut service, Ask::fail()).await.unwrap_err();
    is_open_for(&handle, secs(270)).await;
}

// ===== jitter =====

/// Case 15.
#[tokio::test(start_paused = true)]
async fn keys_that_trip_together_probe_at_different_times() {
    let cooldowns = |seed: u64| -> Vec<Duration> {
        let handle = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .jitter(0.15)
            .jitter_seed(seed)
            .per_key(|ask: &Ask| ask.name.as_str(), 1_000)
            .handle();
        let keys: Vec<_> = (0..1_000).map(|key| format!("tool {key}")).collect();
        for key in &keys {
            handle.try_acquire(key.as_str()).unwrap().failure();
        }
        keys.iter()
            .map(|key| handle.snapshot(key.as_str()).time_left.unwrap())
            .collect()
    };
    let (shortest, longest) = (secs(30), secs(30).mul_f64(1.15));
    let drawn = cooldowns(1);
    assert!(drawn.iter().all(|time| (shortest..=longest).contains(time)));
    let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
    assert!(*most - *least >= (longest - shortest).mul_f64(0.8));
    // The times are spread evenly: of a hundred equal parts of the range, none is much fuller
    // than its share.
    let mut parts = [0; 100];
    for time in &drawn {
        let part = (*time - shortest).as_secs_f64() / (longest - shortest).as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let part = (part * 100.0) as usize;
        parts[part.min(99)] += 1;
    }
    assert!(parts.iter().all(|part| *part <= 40), "{parts:?}");
    assert!(drawn.iter().collect::<BTreeSet<_>>().len() > 990);

    assert_eq!(cooldowns(1), drawn, "the same seed gives the same times");
    assert_ne!(cooldowns(2), drawn);
}

/// Case 15: jitter is drawn anew at each trip, also before anybody notices the lease's end, and
/// never shortens a hint.
#[tokio::test(start_paused = true)]
async fn jitter_only_lengthens_and_is_drawn_at_each_trip() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .jitter(0.5)
        .jitter_seed(3)
        .classify(by_status);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let mut drawn = BTreeSet::new();
    ask(&mut service, Ask::fail()).await.unwrap_err();
    for round in 0..20 {
        let wait = handle.snapshot().time_left.unwrap();
        assert!((secs(30)..=secs(45)).contains(&wait), "{wait:?}");
        drawn.insert(wait);
        is_open_for(&handle, wait).await;
        if round % 2 == 0 {
            ask(&mut service, Ask::fail()).await.unwrap_err();
        } else {
            let (probe, held) = hold(&mut service, "").await;
            pass(secs(31)).await;
            let seen = handle.snapshot().time_left;
            let told = refused(ask(&mut service, Ask::ok()).await).retry_after();
            assert_eq!(seen, told, "noticed or not");
            pass(seen.unwrap() + secs(1)).await;
            drop((probe, held));
            ask(&mut service, Ask::fail()).await.unwrap_err();
        }
    }
    assert!(drawn.len() >= 19, "{drawn:?}");

    let wait = handle.snapshot().time_left.unwrap();
    pass(wait).await;
    ask(&mut service, Ask::answer(busy_for(secs(46))))
        .await
        .unwrap_err();
    is_open_for(&handle, secs(46)).await;
    ask(&mut service, Ask::answer(ok())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_cooldowns() {
    let cooldowns = |seed| {
        let handle = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .recovery_duration(secs(1))
            .backoff(1.5, secs(1_000))
            .jitter(1)
            .jitter_seed(seed)
            .handle();
        async move {
            let mut drawn = Vec::new();
            for grown in [1.0, 1.5, 2.25, 3.375] {
                fail(&handle, 1);
                let wait = handle.snapshot().time_left.unwrap();
                let range = Duration::from_secs_f64(grown)..=Duration::from_secs_f64(2.0 * grown);
                assert!(range.contains(&wait), "{wait:?} is in {range:?}");
                drawn.push(wait);
                pass(wait).await;
            }
            drawn
        }
    };
    let drawn = cooldowns(1).await;
    assert_eq!(cooldowns(1).await, drawn);
    assert_ne!(cooldowns(2).await, drawn);
}

/// Setters make other circuits. Their jitter differs unless a seed is set.
#[tokio::test(start_paused = true)]
async fn circuits_made_from_one_layer_draw_different_jitter() {
    let wait = |layer: CircuitBreakerLayer| {
        let handle = layer.handle();
        fail(&handle, 3);
        handle.snapshot().time_left
    };
    let base = CircuitBreakerLayer::new().jitter(1);
    let waits = ["a", "b", "c", "d"].map(|name| wait(base.clone().name(name)));
    assert!(waits.iter().any(|other| *other != waits[0]), "{waits:?}");

    let keyed = ["a", "b", "c", "d"].map(|name| {
        let handle = base
            .clone()
            .name(name)
            .per_key(|key: &String| key.as_str(), 1)
            .handle();
        for _ in 0..3 {
            handle.try_acquire("key").unwrap().failure();
        }
        handle.snapshot("key").time_left
    });
    assert!(keyed.iter().any(|other| *other != keyed[0]), "{keyed:?}");

    let seeded = base.jitter_seed(7);
    let waits = ["a", "b"].map(|name| wait(seeded.clone().name(name)));
    assert_eq!(waits[0], waits[1], "the same seed, the same cooldowns");
}
