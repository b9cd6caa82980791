//! Proves that memory stays bounded by the capacity, and that dropped things leave none behind.

use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    CircuitBreakerLayer, Event, HealthRouter, Reason, State, TripwireLayer, WhenOpen,
};
use tower_test::mock;

use crate::support::allocator::held;
use crate::support::calls;
use crate::support::tool::{Ask, Tool, ask, hold, trip_key};
use crate::support::{pass, paused, secs};

/// Checks that `work` leaves no memory behind. A first run makes what is kept from the first use
/// on.
#[track_caller]
fn leaves_nothing(mut work: impl FnMut()) {
    work();
    let before = held();
    work();
    assert_eq!(held() - before, 0, "bytes left behind");
}

/// Checks that after a tenth of its rounds `work` takes no more memory, but for `slack` bytes.
fn stays_flat(rounds: usize, slack: isize, mut work: impl FnMut(usize)) {
    let settled = rounds / 10;
    (0..settled).for_each(&mut work);
    let before = held();
    for round in settled..rounds {
        work(round);
        let grown = held() - before;
        assert!(grown <= slack, "{grown} bytes more after {round} rounds");
    }
}

// ===== keys =====

/// Case 11.
#[test]
fn a_million_keys_take_no_more_memory_than_the_capacity() {
    const CAPACITY: usize = 1_000;
    paused(async {
        let layer = CircuitBreakerLayer::new().per_key(|ask: &Ask| ask.name.as_str(), CAPACITY);
        let handle = layer.handle();
        let mut service = layer.layer(Tool::new());
        let open: Vec<_> = (0..10).map(|n| format!("open {n}")).collect();
        for name in &open {
            trip_key(&mut service, name).await;
        }
        let in_flight = hold(&mut service, "in flight").await;
        pass(secs(10)).await;

        // A map frees what it has replaced in batches.
        stays_flat(1_000_000, 256 * 1024, |key| {
            let key = format!("key {key:7}");
            handle.try_acquire(key.as_str()).unwrap().success();
            if key.ends_with("9999") {
                assert_eq!(handle.keys().len(), CAPACITY);
            }
        });

        for name in &open {
            let snapshot = handle.snapshot(name.as_str());
            assert_eq!((snapshot.state, snapshot.trips), (State::Open, 1));
            assert_eq!(snapshot.time_left, Some(secs(20)), "the same deadline");
        }
        let keys = handle.keys();
        assert!(
            keys.contains(&"in flight".to_owned()),
            "a call in flight pins its key"
        );
        assert_eq!(keys.len(), CAPACITY);
        drop(in_flight);
    });
}

/// Each key has a streak of one, so no circuit is evicted as clean.
#[test]
fn twenty_thousand_keys_that_fail_once_take_no_more_memory_either() {
    paused(async {
        let handle = CircuitBreakerLayer::new()
            .per_key(|ask: &Ask| ask.name.as_str(), 100)
            .handle();
        stays_flat(20_000, 64 * 1024, |key| {
            let key = format!("key {key:7}");
            handle.try_acquire(key.as_str()).unwrap().failure();
        });
        assert_eq!(handle.keys().len(), 100);
    });
}

/// Case 48.
#[tokio::test]
async fn a_million_sessions_take_no_more_memory_than_the_capacity_and_live_ones_are_kept() {
    let layer = TripwireLayer::new()
        .max_turns(4)
        .per_owned_session(|call: &calls::Call| call.1, 1_000);
    let handle = layer.handle();
    let mut tool = layer.layer(calls::Tool::default());
    let ten = || 2_000_000..2_000_010;
    // Ten sessions that tripped, and ten with a call in flight.
    for session in ten() {
        for _ in 0..3 {
            let _ = calls::call(&mut tool, ("search", session)).await;
        }
    }
    let mut flying = Vec::new();
    for session in 3_000_000..3_000_010 {
        flying.push(tool.ready().await.unwrap().call(("hung", session)));
    }
    let mut before = None;
    for session in 0..1_000_000 {
        calls::call(&mut tool, ("search", session)).await.unwrap();
        if session == 100_000 {
            assert_eq!(handle.keys().len(), 1_000);
            before = resident();
        }
    }
    assert_eq!(handle.keys().len(), 1_000);
    if let (Some(before), Some(after)) = (before, resident()) {
        // 900,000 fences would take far more, and other tests take far less.
        assert!(after < before + 64_000, "from {before} to {after} kB");
    }
    for session in ten() {
        assert_eq!(handle.reason(&session), Some(Reason::IdenticalCall));
    }
    for session in 3_000_000..3_000_010 {
        assert_eq!(handle.turns(&session), 1);
    }
    drop(flying);
}

/// How many kilobytes the process holds, where the system says so.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

// ===== what comes and goes =====

/// The order of the drops makes no difference.
#[test]
fn dropping_the_last_handle_service_and_layer_frees_everything() {
    paused(async {
        for last in 0..4 {
            leaves_nothing(|| {
                let layer = CircuitBreakerLayer::new()
                    .name("a name of its own".to_owned())
                    .observe(|_: &Event<'_>| {})
                    .failure_threshold(1);
                let handle = layer.handle();
                let mut service = layer.layer(Tool::new());
                let mut clone = service.clone();
                for _ in 0..3 {
                    // A service that is called again has a reference count of its own.
                    let mut spawned = task::spawn(ask(&mut service, Ask::ok()));
                    assert!(spawned.poll().is_ready());
                    assert!(task::spawn(ask(&mut clone, Ask::ok())).poll().is_ready());
                }
                let permit = handle.try_acquire().unwrap();
                handle.try_acquire().unwrap().failure();
                match last {
                    0 => drop((permit, layer, service, clone, handle)),
                    1 => drop((handle, permit, layer, service, clone)),
                    2 => drop((clone, handle, permit, service, layer)),
                    _ => drop((handle, service, clone, layer, permit)),
                }
            });
            leaves_nothing(|| {
                let layer = CircuitBreakerLayer::new()
                    .observe(|_: &Event<'_>| {})
                    .per_key(|ask: &Ask| ask.name.as_str(), 10)
                    .substitute(
                        HealthRouter::new().route("1", ["2"]),
                        |ask: &mut Ask, name: &str| ask.name = name.into(),
                    );
                let handle = layer.handle();
                let mut service = layer.layer(Tool::new());
                for n in 0..100 {
                    let asked = Ask::ok().of((n % 20).to_string());
                    assert!(task::spawn(ask(&mut service, asked)).poll().is_ready());
                }
                handle.force_open("pinned");
                let permit = handle.try_acquire("in flight").unwrap();
                match last {
                    0 => drop((permit, layer, service, handle)),
                    1 => drop((handle, permit, layer, service)),
                    2 => drop((handle, permit, service, layer)),
                    _ => drop((handle, service, layer, permit)),
                }
            });
        }
    });
}

/// A hundred thousand services wait, are called, or are just dropped.
#[test]
fn services_and_handles_that_come_and_go_leave_nothing_behind() {
    paused(async {
        for when_open in [WhenOpen::Refuse, WhenOpen::NotReady] {
            let layer = CircuitBreakerLayer::new().when_open(when_open);
            let handle = layer.handle();
            // Closed.
            stays_flat(100_000, 0, |_| {
                let mut service = layer.layer(Tool::new());
                assert!(task::spawn(ask(&mut service, Ask::ok())).poll().is_ready());
                drop((layer.handle(), service.clone()));
            });
            // Open: refused, or waiting for the cooldown's end.
            handle.force_open();
            stays_flat(100_000, 4 * 1024, |_| {
                let mut service = task::spawn(layer.layer(Tool::new()));
                match service.enter(|cx, mut service| service.poll_ready(cx)) {
                    std::task::Poll::Ready(ready) => {
                        ready.unwrap();
                        assert_eq!(when_open, WhenOpen::Refuse);
                    }
                    std::task::Poll::Pending => assert_eq!(when_open, WhenOpen::NotReady),
                }
                assert!(handle.try_acquire().is_err());
            });
        }
    });
}

/// The circuit holds the waker of each waiter. It must drop the waker with the waiter.
#[test]
fn waiters_that_come_and_go_leave_nothing_behind() {
    paused(async {
        let layer = CircuitBreakerLayer::new();
        let (inner, mut inner_handle) = mock::pair::<(), ()>();
        inner_handle.allow(0);
        let mut stays = task::spawn(layer.layer(inner.clone()));
        assert_pending!(stays.enter(|cx, mut service| service.poll_ready(cx)));
        stays_flat(100_000, 4 * 1024, |_| {
            let mut waiting = task::spawn(layer.layer(inner.clone()));
            assert_pending!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
            assert_pending!(waiting.enter(|cx, mut service| service.poll_ready(cx)));
        });
        // The one that stayed is still woken.
        assert!(!stays.is_woken());
        layer.handle().force_open();
        assert!(stays.is_woken());
        assert_ready_ok!(stays.enter(|cx, mut service| service.poll_ready(cx)));
    });
}

/// Trips, refusals, leases and late verdicts hold no memory, with listeners and without.
#[test]
fn outages_come_and_go_without_a_trace() {
    paused(async {
        for observed in [false, true] {
            let mut layer = CircuitBreakerLayer::new()
                .failure_threshold(1)
                .recovery_duration(Duration::ZERO);
            if observed {
                layer = layer.observe(|_: &Event<'_>| {});
            }
            let handle = layer.handle();
            stays_flat(50_000, 0, |_| {
                let late = handle.try_acquire().unwrap();
                handle.try_acquire().unwrap().failure();
                let probe = handle.try_acquire().unwrap();
                let refusal = handle.try_acquire().unwrap_err();
                assert_eq!(refusal.reason(), Reason::ProbeInFlight);
                late.failure();
                probe.success();
            });
        }
    });
}
