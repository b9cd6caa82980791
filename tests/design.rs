//! Sentences of the design that no case from the field stands for, each shown through the public API.

#![allow(clippy::unchecked_time_subtraction)] // A test that goes below zero is to panic.

#[path = "support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_test::{assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    BoxError, Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Event, Failure, FailureKind,
    HealthRouter, KeyedCircuitBreakerHandle, Outcome, Reason, Recorded, Refusal, State, WhenOpen,
    Window,
};

use support::{
    Answer, Ask, NS, Recorder, Reply, Tool, ask, hold, ok, pass, refused, secs, status, trip,
    trip_key,
};

fn fail(handle: &CircuitBreakerHandle, times: u32) {
    for _ in 0..times {
        handle.try_acquire().unwrap().failure();
    }
}

// ===== settings =====

#[tokio::test(start_paused = true)]
async fn the_defaults_are_those_that_are_promised() {
    let handle = CircuitBreakerLayer::new().handle();
    fail(&handle, 2);
    assert_eq!(handle.state(), State::Closed, "three failures in a row");
    fail(&handle, 1);
    // Neither the first cooldown nor one after a failed probe is any longer than 30 s; nor is the lease.
    for _ in 0..3 {
        assert_eq!(handle.snapshot().time_left, Some(secs(30)));
        pass(secs(30) - NS).await;
        assert!(!handle.would_allow());
        pass(NS).await;
        handle.try_acquire().unwrap().failure();
    }
    pass(secs(30)).await;
    // A probe that is dropped keeps its slot until its lease ends.
    drop(handle.try_acquire().unwrap());
    let refusal = handle.try_acquire().unwrap_err();
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (Reason::ProbeInFlight, Some(secs(30)))
    );
    assert_eq!(refusal.name(), None);
    pass(secs(60)).await;
    handle.try_acquire().unwrap().success();
    assert_eq!(handle.state(), State::Closed, "one good probe");
    let patient = Failure::fatal().with_retry_after(secs(3_600));
    handle.try_acquire().unwrap().record(patient);
    assert_eq!(handle.snapshot().time_left, Some(secs(5 * 60)));

    // No rate counts unless asked for, and then with ten calls.
    let handle = CircuitBreakerLayer::new().handle();
    for _ in 0..1_000 {
        fail(&handle, 2);
        handle.try_acquire().unwrap().success();
    }
    assert_eq!(handle.state(), State::Closed);
    for window in [Window::Calls(20), Window::Time(secs(60))] {
        let handle = CircuitBreakerLayer::new()
            .failure_rate(0.5, window)
            .handle();
        for call in 1..=10 {
            assert_eq!(handle.state(), State::Closed, "before call {call}");
            let permit = handle.try_acquire().unwrap();
            if call % 2 == 1 {
                permit.failure();
            } else {
                permit.success();
            }
        }
        assert_eq!(handle.state(), State::Open);
    }
}

/// Counts are exact: a rate is reached by the very failures that it is made of, whatever becomes of the fraction in binary.
#[test]
fn a_failure_rate_is_reached_by_exactly_its_part_of_the_calls() {
    for calls in [1, 3, 7, 20, 50, 100, 365] {
        for failures in 1..=calls {
            let fraction = f64::from(failures) / f64::from(calls);
            let handle = CircuitBreakerLayer::new()
                .failure_threshold(u32::MAX)
                .failure_rate(fraction, Window::Calls(calls))
                .minimum_calls(calls)
                .handle();
            for _ in failures..calls {
                handle.try_acquire().unwrap().success();
            }
            fail(&handle, failures - 1);
            assert_eq!(handle.state(), State::Closed, "{failures} of {calls}");
            fail(&handle, 1);
            assert_eq!(handle.state(), State::Open, "{failures} of {calls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_success_counts_in_the_window_too() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .slow_call(secs(2))
        .failure_rate(0.5, Window::Calls(4))
        .observe(told.clone());
    let mut service = layer.layer(Tool::new());
    for took in [1, 2, 1, 2] {
        assert_eq!(layer.handle().state(), State::Closed);
        ask(&mut service, Ask::slow(secs(took))).await.unwrap();
    }
    assert_eq!(told.take(), ["closed -> open (failure_rate) #1"]);
}

#[tokio::test(start_paused = true)]
async fn one_circuits_cooldowns_are_those_of_its_seed() {
    let cooldowns = |seed| {
        let handle = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .recovery_duration(Duration::from_secs(1))
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

// ===== results =====

#[test]
fn neither_neutral_nor_released_probes_end_the_row_of_successes_asked_for() {
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

/// A late result is late whatever it says: fatal ones and hints change no more than others.
#[tokio::test(start_paused = true)]
async fn a_late_fatal_failure_with_a_hint_is_stale_like_any_other() {
    let handle = CircuitBreakerLayer::new().handle();
    let late: Vec<_> = (0..3).map(|_| handle.try_acquire().unwrap()).collect();
    let patient = Failure::fatal().with_retry_after(secs(100));
    fail(&handle, 3);
    pass(secs(30)).await;
    let probe = handle.try_acquire().unwrap();
    let mut late = late.into_iter();
    let mut say = || late.next().unwrap().record(patient);

    // Half-open: nothing changes, and the probe's failure opens for no longer.
    let before = handle.snapshot();
    assert_eq!(say(), Recorded::Stale);
    assert_eq!(handle.snapshot(), before);
    probe.failure();
    assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    // Closed again: nothing changes, and the next trip is like any other.
    pass(secs(30)).await;
    handle.try_acquire().unwrap().success();
    let before = handle.snapshot();
    assert_eq!(say(), Recorded::Stale);
    assert_eq!(handle.snapshot(), before);
    fail(&handle, 3);
    assert_eq!(handle.snapshot().time_left, Some(secs(30)));
    // Open: it moves the cooldown, which is all it does.
    let trips = handle.snapshot().trips;
    assert_eq!(say(), Recorded::Stale);
    let seen = handle.snapshot();
    assert_eq!((seen.time_left, seen.trips), (Some(secs(100)), trips));
    assert_eq!(seen.last_failure, Some(FailureKind::Fatal));
}

// ===== readiness =====

/// A layer that only observes holds nobody up, either.
#[tokio::test(start_paused = true)]
async fn a_circuit_that_only_observes_is_ready_though_it_is_to_be_not_ready_when_open() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new()
        .when_open(WhenOpen::NotReady)
        .observe_only();
    let mut service = layer.layer(tool.clone());
    trip(&mut service).await;
    layer.handle().force_open();
    assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
    service.call(Ask::ok()).await.unwrap();
    assert_eq!(tool.calls(), 4);
}

// ===== keys and substitutes =====

/// Frameworks layer per request; the state is the layer's.
#[tokio::test(start_paused = true)]
async fn a_keyed_layer_that_is_applied_once_per_request_still_trips() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new().per_key(|ask: &Ask| ask.name.as_str(), 10);
    for _ in 0..3 {
        let mut service = layer.clone().layer(tool.clone());
        ask(&mut service, Ask::fail().of("a")).await.unwrap_err();
    }
    let mut service = layer.layer(tool.clone());
    refused(ask(&mut service, Ask::ok().of("a")).await);
    ask(&mut service, Ask::ok().of("b")).await.unwrap();
    assert_eq!((tool.calls_of("a"), tool.calls_of("b")), (3, 1));
}

fn routed(layer: CircuitBreakerLayer) -> impl Layer<Tool, Service = impl support::Guarded> {
    layer.per_key(|ask: &Ask| ask.name.as_str(), 10).substitute(
        HealthRouter::new().route("search", ["mirror", "archive"]),
        |ask: &mut Ask, name: &str| ask.name = name.into(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_substitute_takes_is_no_refusal() {
    let (told, tool) = (Recorder::new(), Tool::new());
    let layer = routed(CircuitBreakerLayer::new().observe(told.clone()));
    let mut service = layer.layer(tool.clone());
    trip_key(&mut service, "search").await;
    trip_key(&mut service, "mirror").await;
    told.take();
    let reply = ask(&mut service, Ask::ok().of("search")).await.unwrap();
    assert_eq!(reply.by, "archive");
    assert_eq!(told.take(), [""; 0]);
    // Both are due: the probe is the first one's, and while it is out the next call is its substitute's probe.
    pass(secs(30)).await;
    let (first, held) = hold(&mut service, "search").await;
    let reply = ask(&mut service, Ask::ok().of("search")).await.unwrap();
    assert_eq!(reply.by, "mirror");
    held.send(ok()).unwrap();
    assert_eq!(first.await.unwrap().by, "search");
    assert_eq!(
        told.take(),
        [
            "search: open -> half_open (cooldown_over) #2",
            "search: probe for 30s #2",
            "mirror: open -> half_open (cooldown_over) #2",
            "mirror: probe for 30s #2",
            "mirror: half_open -> closed (probe_succeeded) #3",
            "search: half_open -> closed (probe_succeeded) #3",
        ]
    );
}

// ===== code of the user's =====

type Keyed = KeyedCircuitBreakerHandle<String>;

/// Whoever is called may come back: no lock is held meanwhile.
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
        .classify(move |result: Result<&Reply, &support::Fault>| {
            classify();
            support::by_status(result)
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

/// The same of listeners, at every event that a keyed layer has.
#[tokio::test(start_paused = true)]
async fn a_listener_may_call_back_into_a_store_from_any_event() {
    let own: Arc<OnceLock<Keyed>> = Arc::default();
    let told = Recorder::new();
    let (handle_of, inside) = (Arc::clone(&own), AtomicBool::new(false));
    let layer = CircuitBreakerLayer::new()
        .on_cancel(Cancelled::Release)
        .observe(move |event: &Event<'_>| {
            // What it sets off comes to it, too.
            if inside.swap(true, Ordering::Relaxed) {
                return;
            }
            let handle = handle_of.get().unwrap();
            let name = event.name().unwrap();
            let _ = (handle.snapshot(name), handle.keys(), handle.resolve(name));
            // A new key, which may be refused a place or push one out.
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
