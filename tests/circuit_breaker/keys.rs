//! Proves that keyed circuits are bounded, independent of each other, and not evicted while live.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    CircuitBreakerLayer, Event, HealthRouter, KeyedCircuitBreakerHandle, Permit, Reason, Recorded,
    Refusal, State,
};

use crate::support::events::Recorder;
use crate::support::tool::{
    Answer, Ask, Fault, Reply, Tool, ask, by_status, hold, ok, status, trip_key,
};
use crate::support::{pass, refused, secs};

// ===== evictions =====

/// Case 11, on a small scale. `tests/costs/memory.rs` has the million keys.
#[tokio::test(start_paused = true)]
async fn many_keys_that_succeed_evict_no_live_circuit() {
    for (capacity, open) in [(1_usize, 1), (2, 1), (50, 10), (50, 50)] {
        let tool = Tool::new();
        let layer = CircuitBreakerLayer::new().per_key(|ask: &Ask| ask.name.as_str(), capacity);
        let handle = layer.handle();
        let mut service = layer.layer(tool.clone());
        let open: Vec<_> = (0..open).map(|n| format!("open {n}")).collect();
        for name in &open {
            trip_key(&mut service, name).await;
        }
        pass(secs(10)).await;
        for n in 0..2_000 {
            ask(&mut service, Ask::ok().of(format!("key {n}")))
                .await
                .unwrap();
            assert!(handle.keys().len() <= capacity);
        }
        for name in &open {
            assert_eq!(handle.snapshot(name.as_str()).time_left, Some(secs(20)));
            assert_eq!(handle.snapshot(name.as_str()).trips, 1);
            refused(ask(&mut service, Ask::ok().of(name)).await);
        }
        assert_eq!(tool.calls(), 3 * open.len() + 2_000);
    }
}

/// Case 11: a call in flight keeps its key, and so do a probe's lease, an open circuit and a pin.
#[tokio::test(start_paused = true)]
async fn calls_in_flight_probes_and_pins_keep_their_circuits() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(2)
        .per_key(|ask: &Ask| ask.name.as_str(), 5);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let mut in_flight = Vec::new();
    for _ in 0..2 {
        in_flight.push(hold(&mut service, "in flight").await);
    }
    let (alone, only_held) = hold(&mut service, "one call").await;
    let trip = |name: &str| {
        for _ in 0..2 {
            handle.try_acquire(name).unwrap().failure();
        }
    };
    trip("probing");
    pass(secs(30)).await;
    let (probe, held) = hold(&mut service, "probing").await;
    trip("open");
    assert!(handle.force_open("pinned"));

    for n in 0..1_000 {
        ask(&mut service, Ask::ok().of(format!("key {n}")))
            .await
            .unwrap();
    }
    assert!(!handle.force_open("no room"));
    let mut keys = handle.keys();
    keys.sort();
    assert_eq!(keys, ["in flight", "one call", "open", "pinned", "probing"]);

    // Their results count in the same circuits as before.
    for (call, held) in in_flight {
        held.send(status(503)).unwrap();
        call.await.unwrap_err();
    }
    assert_eq!(handle.state("in flight"), State::Open);
    only_held.send(status(503)).unwrap();
    alone.await.unwrap_err();
    assert_eq!(handle.snapshot("one call").streak, 1);
    held.send(ok()).unwrap();
    probe.await.unwrap();
    assert_eq!(handle.snapshot("probing").trips, 1);
    assert_eq!(handle.state("probing"), State::Closed);
    assert_eq!(handle.state("pinned"), State::Open);
}

#[tokio::test(start_paused = true)]
async fn clean_circuits_are_evicted_first_and_the_least_recently_used_before_others() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 4);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    let keys = || {
        let mut keys = handle.keys();
        keys.sort();
        keys.concat()
    };
    // A streak of one on `a` and `b`; `c` and `d` are clean; `c` was used last.
    for asked in [
        Ask::fail().of("a"),
        Ask::fail().of("b"),
        Ask::ok().of("c"),
        Ask::ok().of("d"),
        Ask::ok().of("c"),
    ] {
        let _ = ask(&mut service, asked).await;
    }
    ask(&mut service, Ask::fail().of("e")).await.unwrap_err();
    assert_eq!(keys(), "abce");
    ask(&mut service, Ask::fail().of("f")).await.unwrap_err();
    assert_eq!(keys(), "abef");
    assert_eq!(told.take(), [""; 0]);
    // None is clean; `b` was used less recently than `a`, which fails once more.
    ask(&mut service, Ask::fail().of("a")).await.unwrap_err();
    ask(&mut service, Ask::ok().of("g")).await.unwrap();
    assert_eq!(keys(), "aefg");
    assert_eq!(told.take(), ["b: evicted closed"]);
    assert_eq!(handle.snapshot("a").streak, 2);
}

/// Case 47.
#[tokio::test(start_paused = true)]
async fn a_store_full_of_tripped_circuits_guards_the_next_key_after_their_cooldowns() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 1_000);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for n in 0..1_000 {
        trip_key(&mut service, &format!("invented {n}")).await;
    }
    // While all circuits are live, calls of another key run unguarded.
    for _ in 0..10 {
        ask(&mut service, Ask::fail().of("early"))
            .await
            .unwrap_err();
    }
    let told_early = told.take().split_off(1_000);
    assert_eq!(told_early, ["early: unguarded"; 10]);
    assert_eq!(
        (handle.state("early"), handle.keys().len()),
        (State::Closed, 1_000)
    );

    pass(secs(30)).await;
    trip_key(&mut service, "late").await;
    assert_eq!(
        refused(ask(&mut service, Ask::ok().of("late")).await).name(),
        Some("late")
    );
    assert_eq!(
        told.take(),
        [
            "invented 0: evicted open",
            "late: closed -> open (failure_threshold) #1",
            "late: refused circuit_open for 30s",
        ]
    );
    // A thousand more keys are guarded as well.
    for n in 0..999 {
        trip_key(&mut service, &format!("more {n}")).await;
        assert_eq!(handle.keys().len(), 1_000);
    }
    assert!(!told.take().iter().any(|event| event.ends_with("unguarded")));
    assert_eq!(handle.state("late"), State::Open, "it was live");
}

/// The key in use is guarded. Calls of other keys run unguarded until its cooldown is over.
#[tokio::test(start_paused = true)]
async fn a_capacity_of_one_guards_one() {
    let layer = CircuitBreakerLayer::new().per_key(|ask: &Ask| ask.name.as_str(), 1);
    let handle = layer.handle();
    let mut service = layer.layer(Tool::new());
    for _ in 0..3 {
        trip_key(&mut service, "a").await;
        refused(ask(&mut service, Ask::ok().of("a")).await);
        let unguarded: Reply = ask(&mut service, Ask::ok().of("b")).await.unwrap();
        assert_eq!(unguarded.by, "b");
        assert_eq!(handle.keys(), ["a"]);
        pass(secs(30)).await;
        trip_key(&mut service, "b").await;
        assert_eq!(handle.keys(), ["b"]);
        refused(ask(&mut service, Ask::ok().of("b")).await);
        pass(secs(30)).await;
    }
    // A permit without a circuit records nothing.
    trip_key(&mut service, "a").await;
    assert_eq!(handle.try_acquire("c").unwrap().failure(), Recorded::Stale);
}

/// Questions insert nothing. For a key without a circuit they answer as a new circuit would.
#[tokio::test(start_paused = true)]
async fn questions_make_no_circuit_and_do_not_count_as_use() {
    let layer = CircuitBreakerLayer::new().per_key(|ask: &Ask| ask.name.as_str(), 2);
    let handle = layer.handle();
    for n in 0..1_000 {
        let key = n.to_string();
        let key = key.as_str();
        assert!(handle.would_allow(key));
        assert_eq!(handle.state(key), State::Closed);
        let seen = handle.snapshot(key);
        assert_eq!(
            (seen.streak, seen.trips, seen.time_left, seen.last_failure),
            (0, 0, None, None)
        );
        handle.reset(key);
        assert!(!handle.forget(key));
    }
    assert_eq!(handle.keys(), [""; 0]);
    // Questions do not count as use: `a` stays the least recently used.
    let mut service = layer.layer(Tool::new());
    ask(&mut service, Ask::ok().of("a")).await.unwrap();
    ask(&mut service, Ask::ok().of("b")).await.unwrap();
    for _ in 0..10 {
        assert!(handle.would_allow("a"));
        assert_eq!(handle.state("a"), State::Closed);
    }
    ask(&mut service, Ask::ok().of("c")).await.unwrap();
    let mut keys = handle.keys();
    keys.sort();
    assert_eq!(keys, ["b", "c"]);
}

/// Case 7, by key: looking at a circuit keeps it from no eviction, so no call runs unguarded.
#[test]
fn looking_at_a_key_makes_no_other_key_unguarded() {
    let told = Recorder::new();
    let handle = CircuitBreakerLayer::new()
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 1)
        .handle();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = (handle.would_allow("a"), handle.state("a"));
                let _ = (handle.snapshot("b"), handle.resolve("b"));
            }
        });
        for round in 0..10_000 {
            let key = if round % 2 == 0 { "a" } else { "b" };
            handle.try_acquire(key).unwrap().success();
        }
        done.store(true, Ordering::Relaxed);
    });
    let unguarded = told.take().len();
    assert_eq!(unguarded, 0, "calls that ran unguarded");
}

// ===== names and neighbours =====

/// A circuit's name is its key's `Display`. It goes before the layer's name.
#[tokio::test(start_paused = true)]
async fn a_key_names_its_circuit() {
    let layer = CircuitBreakerLayer::new()
        .name("tools")
        .failure_threshold(1)
        .per_key(|ask: &Ask| ask.name.as_str(), 10);
    let mut service = layer.layer(Tool::new());
    ask(&mut service, Ask::fail().of("search"))
        .await
        .unwrap_err();
    let refusal = refused(ask(&mut service, Ask::ok().of("search")).await);
    assert_eq!(refusal.name(), Some("search"));
    assert_eq!(
        refusal.to_string(),
        "tool `search` temporarily unavailable: circuit breaker open"
    );

    // Keys may be of any type, such as numbers.
    let by_number = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .per_key(|ask: &(u64, Ask)| &ask.0, 10);
    let handle = by_number.handle();
    handle.try_acquire(&42).unwrap().failure();
    assert_eq!(handle.try_acquire(&42).unwrap_err().name(), Some("42"));
    assert!(handle.would_allow(&43));

    // Models write keys. Huge and hostile ones are keys like any other.
    for hostile in ["", "\0\n`\u{202e}", &"x".repeat(1 << 20), "a\u{0301}", "🦀"] {
        ask(&mut service, Ask::fail().of(hostile))
            .await
            .unwrap_err();
        let refusal = refused(ask(&mut service, Ask::ok().of(hostile)).await);
        assert!(refusal.to_string().len() < 400, "{refusal}");
        assert!(!refusal.to_string().contains(['\n', '\0']), "{refusal}");
        assert_eq!(refusal.to_string().matches('`').count(), 2, "{refusal}");
        assert_eq!(layer.handle().state(hostile), State::Open);
    }
}

/// Case 23.
#[tokio::test(start_paused = true)]
async fn a_model_that_is_down_never_refuses_its_neighbour() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new().name("models").per_owned_key(
        |ask: &Ask| {
            let (provider, model) = ask.name.split_once('/').unwrap();
            (provider.to_owned(), model.to_owned())
        },
        100,
    );
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    let all = ["a/x", "a/y", "b/x", "b/y", "ab/x", "a/bx"];
    trip_key(&mut service, "a/x").await;
    for name in all {
        let answer = ask(&mut service, Ask::ok().of(name)).await;
        if name == "a/x" {
            // Composite keys have no `Display`, so their circuits have the layer's name.
            let refusal = refused(answer);
            assert_eq!(
                (refusal.reason(), refusal.name()),
                (Reason::CircuitOpen, Some("models"))
            );
        } else {
            assert_eq!(answer.unwrap().by, name);
        }
    }
    let key = |provider: &str, model: &str| (provider.to_owned(), model.to_owned());
    assert_eq!(handle.state(&key("a", "x")), State::Open);
    assert_eq!(handle.state(&key("a", "y")), State::Closed);
    assert_eq!(handle.keys().len(), all.len());
}

// ===== the handle =====

#[tokio::test(start_paused = true)]
async fn the_keyed_handle_moves_one_key_at_a_time() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .per_key(|ask: &Ask| ask.name.as_str(), 10);
    let handle = layer.handle();
    let mut service = layer.layer(tool.clone());
    assert!(handle.force_open("a"));
    assert_eq!(
        refused(ask(&mut service, Ask::ok().of("a")).await).reason(),
        Reason::ForcedOpen
    );
    ask(&mut service, Ask::ok().of("b")).await.unwrap();
    handle.reset("a");
    ask(&mut service, Ask::ok().of("a")).await.unwrap();

    let permit = handle.try_acquire("c").unwrap();
    assert_eq!(permit.failure(), Recorded::Applied);
    assert_eq!(
        handle.try_acquire("c").unwrap_err().retry_after(),
        Some(secs(30))
    );
    pass(secs(30)).await;
    assert!(handle.snapshot("c").due);
    let probe = handle.try_acquire("c").unwrap();
    assert!(probe.is_probe() && !handle.would_allow("c"));
    assert_eq!(
        refused(ask(&mut service, Ask::ok().of("c")).await).reason(),
        Reason::ProbeInFlight
    );
    probe.success();
    assert_eq!(handle.state("c"), State::Closed);

    // A circuit is forgotten in any state. The next call gets a new one, and late results are
    // lost.
    let (late, held) = hold(&mut service, "d").await;
    handle.force_open("d");
    assert!(handle.forget("d"));
    assert_eq!(handle.state("d"), State::Closed);
    ask(&mut service, Ask::ok().of("d")).await.unwrap();
    held.send(status(503)).unwrap();
    late.await.unwrap_err();
    assert_eq!(
        (handle.state("d"), handle.snapshot("d").last_failure),
        (State::Closed, None)
    );
}

/// Late verdicts of a forgotten circuit must not look like events of the circuit that took its
/// place.
#[tokio::test(start_paused = true)]
async fn a_forgotten_circuit_tells_no_more_transitions() {
    let told = Recorder::new();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .observe(told.clone())
        .per_key(|ask: &Ask| ask.name.as_str(), 10);
    let handle = layer.handle();
    let permit = handle.try_acquire("a").unwrap();
    assert!(handle.forget("a"));
    handle.try_acquire("a").unwrap().success();
    permit.failure();
    assert_eq!(handle.state("a"), State::Closed);
    let transitions = told.take().into_iter().filter(|event| event.contains("->"));
    assert_eq!(transitions.collect::<Vec<_>>(), [""; 0]);
}

/// Where `force_open` answers true the pin is set, though evictions run at the same moment.
#[test]
fn a_pin_by_key_is_never_lost_to_an_eviction() {
    let handle = CircuitBreakerLayer::new()
        .per_key(|ask: &Ask| ask.name.as_str(), 1)
        .handle();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for name in ["b", "c"] {
            let (handle, done) = (&handle, &done);
            threads.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    if let Ok(permit) = handle.try_acquire(name) {
                        permit.success();
                    }
                }
            });
        }
        let lost = (0..30_000).filter(|_| {
            if let Ok(permit) = handle.try_acquire("a") {
                permit.success();
            }
            let lost = handle.force_open("a") && !handle.snapshot("a").forced;
            handle.reset("a");
            lost
        });
        let lost = lost.count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(lost, 0, "pins lost");
    });
}

/// No call ran, so no unguarded call is told.
#[test]
fn a_pin_that_finds_no_room_is_told_as_no_unguarded_call() {
    let events = Recorder::new();
    let handle = CircuitBreakerLayer::new()
        .observe(events.clone())
        .per_key(|key: &String| key.as_str(), 1)
        .handle();
    assert!(handle.force_open("a"));
    events.take();
    assert!(!handle.force_open("b"));
    assert!(events.take().is_empty());
    handle.try_acquire("b").unwrap().success();
    assert_eq!(events.take(), ["b: unguarded"]);
}

/// The stores are too small for the keys.
#[test]
fn eight_threads_that_call_pin_reset_and_forget_leave_the_store_whole() {
    for capacity in [1, 2, 5] {
        let events = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&events);
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(2)
            .recovery_duration(Duration::from_micros(50))
            .probe_timeout(Duration::from_micros(50))
            .observe(move |_: &Event<'_>| {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .per_owned_key(|key: &u64| *key, capacity);
        let handle = layer.handle();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let handle = handle.clone();
                scope.spawn(move || {
                    let mut state = thread + 1;
                    let mut held = Vec::new();
                    for _ in 0..20_000 {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let key = (state >> 40) % 9;
                        match (state >> 33) % 16 {
                            0 => drop(handle.forget(&key)),
                            1 => drop(handle.force_open(&key)),
                            2 | 3 => handle.reset(&key),
                            4 => held.truncate(1),
                            5 => assert!(handle.keys().len() <= capacity + 8),
                            6..=8 => {
                                if let Ok(permit) = handle.try_acquire(&key) {
                                    permit.failure();
                                }
                            }
                            9 => held.extend(handle.try_acquire(&key)),
                            10 => drop(handle.try_acquire(&key)),
                            _ => {
                                if let Ok(permit) = handle.try_acquire(&key) {
                                    permit.success();
                                }
                            }
                        }
                        held.truncate(3);
                    }
                });
            }
        });
        let keys = handle.keys();
        assert!(keys.len() <= capacity);
        assert!(format!("{handle:?}").contains(&format!("len: {}", keys.len())));
        for key in keys {
            assert!(handle.forget(&key));
        }
        assert!(format!("{handle:?}").contains("len: 0"));
        for key in 0..100 {
            handle.try_acquire(&key).unwrap().success();
            assert_eq!(
                handle.keys().len(),
                capacity.min(usize::try_from(key).unwrap() + 1)
            );
        }
        assert!(events.load(Ordering::Relaxed) > 0);
    }
}

// ===== user code that calls back =====

/// No lock is held while user code runs, so user code may call the breaker.
#[tokio::test(start_paused = true)]
async fn classifiers_policies_key_functions_and_rewriters_may_call_the_breaker() {
    let own: Arc<OnceLock<KeyedCircuitBreakerHandle<String>>> = Arc::default();
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
        .classify(move |result: Result<&Reply, &Fault>| {
            classify();
            by_status(result)
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

type Back = Arc<OnceLock<KeyedCircuitBreakerHandle<Reentrant>>>;

/// A key whose functions, but for `Eq`, call the layer with another key, which does not.
struct Reentrant(u32, Back);

impl Reentrant {
    fn come_back(&self) {
        if let Some(handle) = self.1.get() {
            let other = Reentrant(self.0 + 1000, Back::default());
            let _ = handle.try_acquire(&other).map(Permit::failure);
            handle.force_open(&other);
            handle.reset(&other);
            handle.forget(&other);
            assert!(!format!("{handle:?}").is_empty());
        }
    }
}

impl Hash for Reentrant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.come_back();
        self.0.hash(state);
    }
}

impl PartialEq for Reentrant {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Reentrant {}

impl Clone for Reentrant {
    fn clone(&self) -> Self {
        self.come_back();
        Self(self.0, Arc::clone(&self.1))
    }
}

impl fmt::Display for Reentrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.come_back();
        write!(f, "{}", self.0)
    }
}

impl Drop for Reentrant {
    fn drop(&mut self) {
        self.come_back();
    }
}

#[test]
fn a_key_may_call_the_layer_while_it_is_hashed_cloned_displayed_or_dropped() {
    for capacity in [1, 2, 7] {
        let back = Back::default();
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .per_key(|key: &Reentrant| key, capacity);
        let handle = layer.handle();
        assert!(back.set(handle.clone()).is_ok());
        for round in 0..200 {
            let key = Reentrant(round % 10, Arc::clone(&back));
            if let Ok(permit) = handle.try_acquire(&key) {
                permit.success();
            }
            if round % 17 == 0 {
                handle.forget(&key);
            }
        }
        assert!(handle.keys().len() <= capacity);
    }
}

thread_local!(static ARMED: Cell<bool> = const { Cell::new(false) });

/// A key that panics when it is dropped.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!ARMED.get() || std::thread::panicking(), "a key's");
    }
}

#[test]
fn a_key_that_panics_when_dropped_wedges_nothing() {
    let handle = CircuitBreakerLayer::new()
        .per_owned_key(|key: &Bomb| key.clone(), 4)
        .handle();
    let mut panics = 0;
    ARMED.set(true);
    for round in 0..2000 {
        let key = ManuallyDrop::new(Bomb(round));
        let call = || handle.try_acquire(&*key).map(Permit::success);
        panics += u32::from(catch_unwind(AssertUnwindSafe(call)).is_err());
    }
    ARMED.set(false);
    assert!(panics > 0, "evicted keys are dropped now and then");
    for round in 2000..3000 {
        handle.try_acquire(&Bomb(round)).unwrap().success();
    }
    let mut keys: Vec<_> = handle.keys().iter().map(|key| key.0).collect();
    keys.sort_unstable();
    assert_eq!(keys, [2996, 2997, 2998, 2999]);
    let shown = format!("{handle:?}");
    assert!(shown.contains("len: 4"), "{shown}");
}
