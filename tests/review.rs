//! What a second pair of eyes found, each with the test that shows it.

mod support;

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::hash::{Hash, Hasher};
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio_test::task;
use tower::{Layer, Service};
use tower_breaker::{
    BoxError, CircuitBreakerHandle, CircuitBreakerLayer, Classify, ErrorsAsFailures,
    KeyedCircuitBreakerHandle, Outcome, Permit, Refusal, State, Window,
};

use crate::support::{Recorder, secs};

fn fail(handle: &CircuitBreakerHandle) {
    handle.try_acquire().unwrap().failure();
}

fn succeed(handle: &CircuitBreakerHandle) {
    handle.try_acquire().unwrap().success();
}

/// A fraction that no float holds exactly, met to the call: 7 % of 100 calls is 7 failures, though 0.07 × 100 is more than 7.
#[test]
fn a_failure_rate_is_reached_by_exactly_its_fraction_of_the_calls() {
    for (percent, calls) in [(7, 100), (14, 50), (28, 25), (55, 100), (56, 100)] {
        let failures = percent * calls / 100;
        let handle = CircuitBreakerLayer::new()
            .failure_threshold(u32::MAX)
            .failure_rate(f64::from(percent) / 100.0, Window::Calls(calls))
            .minimum_calls(calls)
            .handle();
        for _ in 0..calls - failures {
            succeed(&handle);
        }
        for _ in 0..failures - 1 {
            fail(&handle);
        }
        assert_eq!(handle.state(), State::Closed, "{percent} % of {calls}");
        fail(&handle);
        assert_eq!(handle.state(), State::Open, "{percent} % of {calls}");
    }
}

/// Clones that are configured further are other circuits, and jitter apart unless a seed was set.
#[tokio::test(start_paused = true)]
async fn circuits_made_from_one_configured_layer_jitter_apart() {
    let wait = |layer: CircuitBreakerLayer| {
        let handle = layer.handle();
        for _ in 0..3 {
            fail(&handle);
        }
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

/// No call ran: there is no unguarded one to tell of.
#[test]
fn pinning_a_key_that_finds_no_room_tells_of_no_call() {
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

type Readied = Poll<Result<(), BoxError>>;

/// A service that is ready once, and then answers `poll_ready` as it was told.
struct Fickle {
    ready: bool,
    polls: u32,
    second: fn() -> Readied,
}

impl Service<()> for Fickle {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.polls += 1;
        self.ready = self.polls == 1;
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        (self.second)()
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(self.ready, "called before it was ready");
        ready(Ok(()))
    }
}

/// An earlier `poll_ready` lends a later one nothing, even if the later one unwinds.
#[test]
fn a_readiness_that_is_asked_for_again_and_panics_is_gone() {
    let seconds: [fn() -> Readied; 2] = [
        || panic!("in poll_ready"),
        || Poll::Ready(Err("for the classifier".into())),
    ];
    for second in seconds {
        let layer =
            CircuitBreakerLayer::new().classify(|result: Result<&(), &BoxError>| -> Outcome {
                assert!(result.is_ok(), "in the classifier");
                Outcome::Success
            });
        let mut service = layer.layer(Fickle {
            ready: false,
            polls: 0,
            second,
        });
        let mut poll = || task::spawn(()).enter(|cx, _| service.poll_ready(cx));
        assert!(matches!(poll(), Poll::Ready(Ok(()))));
        assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
        let Poll::Ready(answer) = task::spawn(service.call(())).poll() else {
            panic!("refused at once")
        };
        assert!(Refusal::find(&*answer.unwrap_err()).is_some());
    }
}

/// A name may come from a model, and a refusal's text goes to one: it stays one line, read from left to right.
#[test]
fn a_name_with_separators_and_overrides_of_direction_stays_on_its_line() {
    let name = "a\u{2028}b\u{2029}c\u{202e}d\u{2066}e\u{200f}f".to_owned();
    let handle = CircuitBreakerLayer::new().name(name).handle();
    handle.force_open();
    let text = handle.try_acquire().unwrap_err().to_string();
    assert!(
        text.starts_with("tool `a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}f` "),
        "{text:?}"
    );
}

/// A key whose `Display` writes on though it is told to stop.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Stubborn;

impl fmt::Display for Stubborn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for _ in 0..100_000 {
            let _ = f.write_str("ab");
        }
        Ok(())
    }
}

#[test]
fn a_name_is_bounded_though_the_keys_display_does_not_stop() {
    let handle = CircuitBreakerLayer::new()
        .per_key(|key: &Stubborn| key, 1)
        .handle();
    handle.force_open(&Stubborn);
    let refusal = handle.try_acquire(&Stubborn).unwrap_err();
    assert_eq!(refusal.name().unwrap().chars().count(), 257);
}

/// An `io::Error` names as its source the source of the error that it holds, and so hides the one that it holds.
#[test]
fn a_refusal_inside_an_io_error_is_found() {
    let handle = CircuitBreakerLayer::new().handle();
    handle.force_open();
    let refusal = handle.try_acquire().unwrap_err();
    let boxed: BoxError = refusal.clone().into();
    let nested = io::Error::other(io::Error::other(boxed));
    assert_eq!(Refusal::find(&nested), Some(&refusal));
    let boxed: BoxError = nested.into();
    assert_eq!(
        ErrorsAsFailures.classify(Err::<&(), _>(&boxed)),
        Outcome::Neutral
    );
    assert_eq!(Refusal::find(&io::Error::from(io::ErrorKind::Other)), None);
    assert_eq!(Refusal::find(&io::Error::other("down")), None);
}

// ===== what held =====

type Back = Arc<OnceLock<KeyedCircuitBreakerHandle<Reentrant>>>;

/// A key whose every function but `Eq` comes back to the layer, with a key that does not.
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
fn a_key_may_come_back_to_its_layer_whenever_it_is_hashed_cloned_shown_or_dropped() {
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
fn a_key_that_panics_when_it_is_dropped_wedges_nothing() {
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

/// Eight threads that call, pin, reset and forget a few keys, over stores that are too small for them.
#[test]
fn a_crowd_that_calls_pins_resets_and_forgets_leaves_the_store_whole() {
    for capacity in [1, 2, 5] {
        let events = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&events);
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(2)
            .recovery_duration(std::time::Duration::from_micros(50))
            .probe_timeout(std::time::Duration::from_micros(50))
            .observe(move |_: &tower_breaker::Event<'_>| {
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

/// A tool that answers at once.
#[derive(Clone)]
struct Echo;

impl Service<String> for Echo {
    type Response = String;
    type Error = Infallible;
    type Future = Ready<Result<String, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: String) -> Self::Future {
        ready(Ok(req))
    }
}

/// The slot that a rewrite had in hand is not lost when it panics: it is a cancelled call's.
#[tokio::test(start_paused = true)]
async fn a_rewrite_that_panics_is_a_cancelled_call_of_the_substitute() {
    use tower_breaker::{Cancelled, HealthRouter};
    let layer = CircuitBreakerLayer::new()
        .classify(ErrorsAsFailures)
        .failure_threshold(1)
        .on_cancel(Cancelled::Release)
        .per_key(|call: &String| call.as_str(), 10)
        .substitute(
            HealthRouter::new().route("a", ["b"]),
            |_: &mut String, _: &str| panic!("rewrite"),
        );
    let handle = layer.handle();
    let mut service = layer.layer(Echo);
    handle.try_acquire("b").unwrap().failure();
    tokio::time::advance(secs(30)).await;
    handle.force_open("a");
    assert!(
        task::spawn(())
            .enter(|cx, _| service.poll_ready(cx))
            .is_ready()
    );
    assert!(catch_unwind(AssertUnwindSafe(|| drop(service.call("a".to_owned())))).is_err());
    assert!(handle.try_acquire("b").unwrap().is_probe());
}
