//! The events of a circuit breaker, complete and in order.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    BoxError, Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Event, HealthRouter,
    KeyedCircuitBreakerHandle, Observe, Refusal, State,
};

use crate::support::{
    Answer, Ask, Recorder, Reply, Tool, ask, by_status, hold, ok, on_threads, pass, refused, secs,
    status, trip, trip_key,
};

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
async fn the_events_of_an_outage_come_in_order() {
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
async fn a_layer_that_only_observes_reports_what_it_would_have_done() {
    let told = Recorder::new();
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new()
        .observe_only()
        .observe(told.clone());
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    trip(&mut service).await;
    pass(secs(10)).await;
    ask(&mut service, Ask::fail()).await.unwrap_err();
    ask(&mut service, Ask::ok()).await.unwrap();
    assert!(handle.would_allow());
    pass(secs(20)).await;
    let (probe, held) = hold(&mut service, "").await;
    ask(&mut service, Ask::fail()).await.unwrap_err();
    held.send(ok()).unwrap();
    probe.await.unwrap();
    handle.force_open();
    ask(&mut service, Ask::ok()).await.unwrap();
    assert_eq!(tool.calls(), 8);
    assert_eq!(
        told.take(),
        [
            "closed -> open (failure_threshold) #1",
            "observed circuit_open for 20s",
            "observed circuit_open for 20s",
            "open -> half_open (cooldown_over) #2",
            "probe for 30s #2",
            "observed probe_in_flight for 30s",
            "half_open -> closed (probe_succeeded) #3",
            "closed -> open (forced_open) #4",
            "observed forced_open",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn evictions_of_unclean_circuits_and_unguarded_calls_are_reported() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .name("tools")
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 2);
    let mut service = layer.layer(Tool::new());
    // The eviction of a clean circuit is not reported.
    for name in ["a", "b", "c", "d"] {
        ask(&mut service, Ask::ok().of(name)).await.unwrap();
    }
    assert_eq!(told.take(), [""; 0]);
    // The eviction of a circuit with a streak is reported. Then two open circuits leave no room.
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

#[tokio::test(start_paused = true)]
async fn a_listener_may_call_back_into_the_breaker() {
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

/// Checks that transitions come in order and one at a time, and that only those are missing which
/// an event reports as missed.
#[derive(Clone, Default)]
struct InOrder(Arc<Seen>);

#[derive(Default)]
struct Seen {
    busy: AtomicBool,
    missed: AtomicBool,
    last: AtomicU64,
    wrong: AtomicU64,
}

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
                // The task goes on until there were enough events. If the system suspends the
                // thread that holds the probe, all others are refused meanwhile.
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

// ===== code of the user's =====

type Keyed = KeyedCircuitBreakerHandle<String>;

/// User code may call back into the breaker, because no lock is held meanwhile.
#[tokio::test(start_paused = true)]
async fn classifiers_policies_key_functions_and_rewriters_may_call_back_into_the_breaker() {
    let own: Arc<OnceLock<Keyed>> = Arc::default();
    let visits = Arc::new(AtomicUsize::new(0));
    let visit = {
        let (own, visits) = (Arc::clone(&own), Arc::clone(&visits));
        move || {
            let handle = own.get().unwrap();
            visits.fetch_add(1, Ordering::Relaxed);
            for key in ["search", "mirror", "other"] {
                let _ = (handle.state(key), handle.would_allow(key));
            }
            handle.force_open("visited");
            handle.try_acquire("asked").unwrap().success();
            handle.forget("asked");
            assert!(handle.keys().contains(&"visited".to_owned()));
        }
    };
    let (classify, refuse, key, rewrite) =
        (visit.clone(), visit.clone(), visit.clone(), visit.clone());
    let layer = CircuitBreakerLayer::new()
        .classify(move |result: Result<&Reply, &crate::support::Fault>| {
            classify();
            crate::support::by_status(result)
        })
        .refuse_with(move |_: Ask, _: Refusal| -> Answer {
            refuse();
            status(599)
        })
        .per_key(
            move |ask: &Ask| {
                key();
                ask.name.as_str()
            },
            10,
        )
        .substitute(
            HealthRouter::new().route("search", ["mirror"]),
            move |ask: &mut Ask, name: &str| {
                rewrite();
                ask.name = name.into();
            },
        );
    let handle = layer.handle();
    own.set(handle.clone()).unwrap();
    let mut service = layer.layer(Tool::new());
    for _ in 0..3 {
        let call = service
            .ready()
            .await
            .unwrap()
            .call(Ask::fail().of("search"));
        call.await.unwrap_err();
    }
    let call = service.ready().await.unwrap().call(Ask::ok().of("search"));
    assert_eq!(call.await.unwrap().by, "mirror");
    handle.force_open("mirror");
    let call = service.ready().await.unwrap().call(Ask::ok().of("search"));
    assert_eq!(call.await.unwrap_err().status, 599);
    // Five keys, four classified, one rewritten, one refused.
    assert_eq!(visits.load(Ordering::Relaxed), 11);
}

/// The same holds for listeners, at every event of a keyed layer.
#[tokio::test(start_paused = true)]
async fn a_listener_may_call_back_into_a_store_from_any_event() {
    let own: Arc<OnceLock<Keyed>> = Arc::default();
    let told = Recorder::new();
    let (handle_of, inside) = (Arc::clone(&own), AtomicBool::new(false));
    let layer = CircuitBreakerLayer::new()
        .on_cancel(Cancelled::Release)
        .observe(move |event: &Event<'_>| {
            // The calls below cause events too, and those come to this listener.
            if inside.swap(true, Ordering::Relaxed) {
                return;
            }
            let handle = handle_of.get().unwrap();
            let name = event.name().unwrap();
            let _ = (handle.snapshot(name), handle.keys(), handle.resolve(name));
            // A new key, which may find no room, or evict another.
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
