//! Proves what observers are told, in full and in order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::task::JoinSet;
use tower::{BoxError, Layer};
use tower_breaker::{
    Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Event, KeyedCircuitBreakerHandle,
    Observe, State,
};

use crate::support::events::Recorder;
use crate::support::tool::{Ask, Tool, ask, by_status, hold, ok, status, trip, trip_key};
use crate::support::{on_threads, pass, refused, secs};

#[tokio::test(start_paused = true)]
async fn the_history_of_an_outage_is_told_in_order() {
    let recorder = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .on_cancel(Cancelled::Release)
        .classify(by_status)
        .observe(recorder.clone());
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let (early, first) = hold(&mut service, "").await;
    let (other, second) = hold(&mut service, "").await;
    let dropped = hold(&mut service, "").await;

    ask(&mut service, Ask::ok()).await.unwrap();
    ask(&mut service, Ask::neutral()).await.unwrap_err();
    assert_eq!(
        recorder.take(),
        [""; 0],
        "a circuit that is well says nothing"
    );
    trip(&mut service).await;
    assert_eq!(
        recorder.take(),
        ["search: closed -> open (failure_threshold) #1"]
    );

    pass(secs(10)).await;
    refused(ask(&mut service, Ask::ok()).await);
    first.send(status(429)).unwrap();
    early.await.unwrap_err();
    assert_eq!(
        recorder.take(),
        [
            "search: refused circuit_open for 20s",
            "search: late rate_limited failure #0"
        ]
    );

    pass(secs(30)).await;
    let (probe, held) = hold(&mut service, "").await;
    refused(ask(&mut service, Ask::ok()).await);
    second.send(ok()).unwrap();
    other.await.unwrap();
    drop(dropped);
    held.send(status(503)).unwrap();
    probe.await.unwrap_err();
    assert_eq!(
        recorder.take(),
        [
            "search: open -> half_open (cooldown_over) #2",
            "search: probe for 30s #2",
            "search: refused probe_in_flight for 30s",
            "search: late success #0",
            "search: late neutral #0",
            "search: half_open -> open (probe_failed) #3",
        ]
    );

    pass(secs(30)).await;
    drop(hold(&mut service, "").await);
    let hung = hold(&mut service, "").await;
    pass(secs(45)).await;
    handle.try_acquire().unwrap_err();
    drop(hung);
    assert_eq!(
        recorder.take(),
        [
            "search: open -> half_open (cooldown_over) #4",
            "search: probe for 30s #4",
            "search: probe for 30s #4",
            "search: lease expired #4",
            "search: half_open -> open (lease_expired) #5",
            "search: refused circuit_open for 15s",
            "search: late neutral #4",
        ]
    );

    pass(secs(15)).await;
    ask(&mut service, Ask::ok()).await.unwrap();
    handle.force_open();
    handle.force_open();
    refused(ask(&mut service, Ask::ok()).await);
    handle.reset();
    handle.reset();
    ask(&mut service, Ask::answer(status(402)))
        .await
        .unwrap_err();
    handle.force_open();
    assert_eq!(
        recorder.take(),
        [
            "search: open -> half_open (cooldown_over) #6",
            "search: probe for 30s #6",
            "search: half_open -> closed (probe_succeeded) #7",
            "search: closed -> open (forced_open) #8",
            "search: refused forced_open",
            "search: open -> closed (reset) #9",
            "search: closed -> closed (reset) #10",
            "search: closed -> open (fatal_failure) #11",
            "search: open -> open (forced_open) #12",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_notices_that_the_lease_is_over_and_asking_does_not() {
    let recorder = Recorder::new();
    let layer = CircuitBreakerLayer::new().observe(recorder.clone());
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    pass(secs(30)).await;
    let hung = hold(&mut service, "").await;
    recorder.take();

    pass(secs(40)).await;
    assert!(!handle.would_allow());
    assert_eq!(handle.state(), State::Open);
    assert_eq!(recorder.take(), [""; 0]);
    refused(ask(&mut service, Ask::ok()).await);
    refused(ask(&mut service, Ask::ok()).await);
    assert_eq!(
        recorder.take(),
        [
            "lease expired #2",
            "half_open -> open (lease_expired) #3",
            "refused circuit_open for 20s",
            "refused circuit_open for 20s",
        ]
    );
    drop(hung);
}

#[tokio::test(start_paused = true)]
async fn evictions_of_unclean_circuits_and_unguarded_calls_are_told() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .name("tools")
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 2);
    let mut service = layer.layer(Tool::new());
    // Clean circuits are evicted without an event.
    for name in ["a", "b", "c", "d"] {
        ask(&mut service, Ask::ok().of(name)).await.unwrap();
    }
    assert_eq!(told.take(), [""; 0]);
    // The eviction of a circuit with a streak is told. Then two open circuits leave no room.
    ask(&mut service, Ask::fail().of("d")).await.unwrap_err();
    trip_key(&mut service, "e").await;
    trip_key(&mut service, "f").await;
    ask(&mut service, Ask::fail().of("g")).await.unwrap_err();
    pass(secs(30)).await;
    ask(&mut service, Ask::ok().of("g")).await.unwrap();
    assert_eq!(
        told.take(),
        [
            "e: closed -> open (failure_threshold) #1",
            "d: evicted closed",
            "f: closed -> open (failure_threshold) #1",
            "g: unguarded",
            "e: evicted open",
        ]
    );
}

// ===== listeners that call back =====

#[tokio::test(start_paused = true)]
async fn a_listener_may_call_the_breaker() {
    let told = Recorder::new();
    let own: Arc<OnceLock<CircuitBreakerHandle>> = Arc::default();
    let seen: Arc<Mutex<Vec<State>>> = Arc::default();
    let (handle_of, states) = (Arc::clone(&own), Arc::clone(&seen));
    let layer = CircuitBreakerLayer::new()
        .observe(move |event: &Event<'_>| {
            let Event::Transition { to, .. } = event else {
                return;
            };
            let handle = handle_of.get().unwrap();
            // The new state is stored by now.
            states.lock().unwrap().push(handle.state());
            if *to == State::Open {
                handle.reset();
            }
        })
        .observe(told.clone());
    own.set(layer.handle()).unwrap();
    let mut service = layer.layer(Tool::new());
    trip(&mut service).await;
    assert_eq!(layer.handle().state(), State::Closed);
    assert_eq!(*seen.lock().unwrap(), [State::Open, State::Closed]);
    assert_eq!(
        told.take(),
        [
            "closed -> open (failure_threshold) #1",
            "open -> closed (reset) #2"
        ],
        "both listeners in the same order"
    );
}

type Keyed = KeyedCircuitBreakerHandle<String>;

/// The listener calls the breaker at every kind of event of a keyed layer.
#[tokio::test(start_paused = true)]
async fn a_listener_may_call_a_keyed_breaker_from_any_event() {
    let own: Arc<OnceLock<Keyed>> = Arc::default();
    let told = Recorder::new();
    let (handle_of, inside) = (Arc::clone(&own), AtomicBool::new(false));
    let layer = CircuitBreakerLayer::new()
        .on_cancel(Cancelled::Release)
        .observe(move |event: &Event<'_>| {
            // Its own calls cause events that come to it again.
            if inside.swap(true, Ordering::Relaxed) {
                return;
            }
            let handle = handle_of.get().unwrap();
            let name = event.name().unwrap();
            let _ = (handle.snapshot(name), handle.keys(), handle.resolve(name));
            // A new key, which may find no room or evict another.
            if let Ok(permit) = handle.try_acquire("visitor") {
                permit.success();
            }
            handle.forget("visitor");
            inside.store(false, Ordering::Relaxed);
        })
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 1);
    let handle = layer.handle();
    own.set(handle.clone()).unwrap();
    let mut service = layer.layer(Tool::new());
    let (late, held) = hold(&mut service, "a").await;
    trip_key(&mut service, "a").await;
    refused(ask(&mut service, Ask::ok().of("a")).await);
    held.send(status(503)).unwrap();
    late.await.unwrap_err();
    ask(&mut service, Ask::ok().of("b")).await.unwrap();
    pass(secs(30)).await;
    let _hung = handle.try_acquire("a").unwrap();
    pass(secs(60)).await;
    let again: Result<_, BoxError> = handle.try_acquire("a").map_err(Into::into);
    drop(again.unwrap());
    handle.reset("a");
    handle.force_open("a");
    let told = told.take();
    for kind in [
        "a: closed -> open",
        "a: refused",
        "a: late",
        "b: unguarded",
        "a: probe",
        "a: lease expired",
        "a: closed -> open (forced_open)",
    ] {
        let found = told.iter().any(|event| event.starts_with(kind));
        assert!(found, "{kind} in {told:#?}");
    }
}

// ===== order =====

/// Checks that ordered events come one at a time, and that none is missing but those that
/// `Missed` counts.
#[derive(Clone, Default)]
struct InOrder(Arc<Seen>);

impl Observe for InOrder {
    fn observe(&self, event: &Event<'_>) {
        let seen = &*self.0;
        let generation = match *event {
            Event::Transition { generation, .. } => Some(u64::from(generation)),
            Event::Missed { .. } => None,
            _ => return,
        };
        let mut right = !seen.busy.swap(true, Ordering::SeqCst);
        if let Some(generation) = generation {
            let last = seen.last.swap(generation, Ordering::SeqCst);
            right &= if seen.missed.swap(false, Ordering::SeqCst) {
                generation > last
            } else {
                generation == last + 1
            };
        } else {
            seen.missed.store(true, Ordering::SeqCst);
        }
        if !right {
            seen.wrong.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::yield_now();
        seen.busy.store(false, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Seen {
    busy: AtomicBool,
    missed: AtomicBool,
    last: AtomicU64,
    wrong: AtomicU64,
}

#[test]
fn transitions_come_in_order_and_one_at_a_time_from_many_threads() {
    let in_order = InOrder::default();
    let (observer, seen) = (in_order.clone(), in_order.0);
    on_threads(async {
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .recovery_duration(Duration::ZERO)
            .observe(observer);
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let (handle, seen) = (layer.handle(), Arc::clone(&seen));
            tasks.spawn(async move {
                // Goes on until there were transitions. A thread that sleeps with the probe stops
                // all others.
                for round in 0.. {
                    if round >= 200 && seen.last.load(Ordering::Relaxed) > 100 {
                        return;
                    }
                    if let Ok(permit) = handle.try_acquire() {
                        if (task + round) % 3 == 0 {
                            permit.failure();
                        } else {
                            permit.success();
                        }
                    }
                    if round % 16 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert_eq!(seen.wrong.load(Ordering::Relaxed), 0);
    });
}
