//! Memory: a million keys take no more than a thousand, and services, handles and waiters that are
//! dropped leave nothing behind.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer as _, Service};
use tower_breaker::{CircuitBreakerLayer, Event, HealthRouter, Reason, State, WhenOpen};
use tower_test::mock;

use crate::support::{Ask, Tool, ask, hold, pass, paused, secs, trip_key};

/// The system's allocator, which also counts the bytes that each thread holds.
struct Counting;

thread_local! {
    // It is constant and has no destructor, so counting takes no memory.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: isize) {
    HELD.set(HELD.get() + sign * isize::try_from(bytes).expect("a size"));
}

// SAFETY: every method passes its arguments on to the system's allocator. Counting touches only a
// thread-local integer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns how many bytes this thread holds.
fn held() -> isize {
    HELD.get()
}

/// Asserts that `work` leaves nothing behind. It runs once before that, because some things are
/// made at first use and kept.
#[track_caller]
fn leaves_nothing(mut work: impl FnMut()) {
    work();
    let before = held();
    work();
    assert_eq!(held() - before, 0, "bytes left behind");
}

/// Asserts that repeated `work` takes no more memory after the first tenth of its rounds, but for
/// `slack` bytes.
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

        // The map frees replaced entries in batches.
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

/// The same for keys that each leave a streak, so that no circuit is evicted because it is clean.
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

/// The last drop frees everything, in any order of drops.
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
                    // A service that is called more than once has a reference count of its own.
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

/// A hundred thousand services are made and dropped. Some wait, some are called, and some do
/// nothing.
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
            // Open: the service refuses, or waits for the end of the cooldown.
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

/// Callers that wait for inner readiness leave wakers with the circuit. The wakers go when the
/// callers go.
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
        // The caller that stayed is still woken.
        assert!(!stays.is_woken());
        layer.handle().force_open();
        assert!(stays.is_woken());
        assert_ready_ok!(stays.enter(|cx, mut service| service.poll_ready(cx)));
    });
}

/// Trips, refusals, leases and late verdicts keep no memory, with listeners and without.
#[test]
fn outages_keep_no_memory() {
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
