//! Proves that every transition wakes the callers that wait for inner readiness.

use std::future::Ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer, Failure, Outcome, Reason, State,
    WhenOpen,
};
use tower_test::mock;
use tower_test::mock::{Handle, Mock, Spawn};

use crate::support::site::{Down, Query, Site, ask_now, now, poll, trip_by_hand};
use crate::support::{pass, reason_and_wait, refused, secs};

type Waiting = Spawn<CircuitBreaker<Mock<Query, Query>>>;

/// Makes a caller that waits for an inner service that is not ready.
fn waiting(layer: &CircuitBreakerLayer) -> (Waiting, Handle<Query, Query>) {
    let (mut service, mut inner) = mock::spawn_layer(layer.clone());
    inner.allow(0);
    assert!(poll(&mut service).is_pending());
    assert!(!service.is_woken());
    (service, inner)
}

/// Polls the caller after it was woken, calls, and returns the refusal.
#[track_caller]
fn is_refused(service: &mut Waiting) -> (Reason, Option<Duration>) {
    assert!(service.is_woken(), "the wake-up was lost");
    assert!(matches!(poll(service), Poll::Ready(Ok(()))));
    reason_and_wait(now(service.call("q")))
}

/// Polls the caller after it was woken, and checks that it waits on.
#[track_caller]
fn waits_on(service: &mut Waiting) {
    assert!(service.is_woken(), "the wake-up was lost");
    assert!(poll(service).is_pending());
    assert!(!service.is_woken());
}

/// Case 8.
#[tokio::test(start_paused = true)]
async fn a_trip_wakes_the_waiters_and_they_are_refused() {
    let layer = CircuitBreakerLayer::new();
    let (mut service, mut inner) = waiting(&layer);
    trip_by_hand(&layer.handle());
    assert_eq!(
        is_refused(&mut service),
        (Reason::CircuitOpen, Some(secs(30)))
    );
    assert!(inner.poll_request().is_pending(), "inner was not called");
}

#[tokio::test(start_paused = true)]
async fn a_trip_by_another_callers_results_wakes_the_waiters_and_a_count_does_not() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let (mut service, _inner) = waiting(&layer);
    site.set_down(true);
    let mut other = layer.layer(site.tool());
    for _ in 0..2 {
        assert!(ask_now(&mut other).is_err());
        assert!(!service.is_woken(), "a count is no transition");
    }
    // The same for results that take the circuit's lock.
    let permit = layer.handle().try_acquire().unwrap();
    permit.record(Outcome::Success);
    for _ in 0..2 {
        let permit = layer.handle().try_acquire().unwrap();
        permit.record(Failure::transient().with_retry_after(secs(1)));
        assert!(!service.is_woken(), "a count is no transition");
    }
    assert!(ask_now(&mut other).is_err());
    assert_eq!(
        is_refused(&mut service),
        (Reason::CircuitOpen, Some(secs(30)))
    );
}

#[tokio::test(start_paused = true)]
async fn force_open_wakes_the_waiters_and_they_are_refused() {
    let layer = CircuitBreakerLayer::new();
    let (mut service, _inner) = waiting(&layer);
    layer.handle().force_open();
    assert_eq!(is_refused(&mut service), (Reason::ForcedOpen, None));
}

#[tokio::test(start_paused = true)]
async fn another_callers_probe_wakes_the_waiters_of_a_due_circuit() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    trip_by_hand(&handle);
    pass(secs(30)).await;
    let (mut service, _inner) = waiting(&layer);
    let probe = handle.try_acquire().unwrap();
    assert_eq!(
        is_refused(&mut service),
        (Reason::ProbeInFlight, Some(secs(30)))
    );

    // The slot is free again, so the caller waits again. It is woken when another call takes the
    // slot.
    probe.record(Outcome::Neutral);
    assert_eq!(handle.state(), State::HalfOpen);
    assert!(poll(&mut service).is_pending());
    let probe = handle.try_acquire().unwrap();
    assert_eq!(
        is_refused(&mut service),
        (Reason::ProbeInFlight, Some(secs(30)))
    );

    // The probe fails, so the caller is refused at once. After the cooldown it waits for the
    // inner service again.
    probe.failure();
    assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
    pass(secs(30)).await;
    assert_eq!(
        refused(now(service.call("q"))).reason(),
        Reason::CircuitOpen
    );
    assert!(poll(&mut service).is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_came_and_went_before_the_poll_is_not_missed() {
    for closes in [false, true] {
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        trip_by_hand(&handle);
        pass(secs(30)).await;
        let (mut service, mut inner) = waiting(&layer);
        let probe = handle.try_acquire().unwrap();
        if closes {
            probe.success();
            // Closed: the caller waits for the inner service, and is woken by it too.
            waits_on(&mut service);
            inner.allow(1);
            assert!(service.is_woken());
            assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
            drop(service.call("q"));
            assert!(inner.poll_request().is_ready());
        } else {
            probe.failure();
            assert_eq!(
                is_refused(&mut service),
                (Reason::CircuitOpen, Some(secs(30)))
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_wakes_the_waiters_and_they_wait_on() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let (mut service, _inner) = waiting(&layer);
    for _ in 0..3 {
        handle.reset();
        waits_on(&mut service);
    }
    trip_by_hand(&handle);
    pass(secs(30)).await;
    assert!(service.is_woken());
    assert!(poll(&mut service).is_pending(), "due");
    handle.reset();
    waits_on(&mut service);
    trip_by_hand(&handle);
    assert_eq!(
        is_refused(&mut service),
        (Reason::CircuitOpen, Some(secs(30)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_trip_and_a_reset_between_two_polls_leave_the_caller_waiting() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let (mut service, mut inner) = waiting(&layer);
    trip_by_hand(&handle);
    handle.reset();
    waits_on(&mut service);
    inner.allow(1);
    assert!(service.is_woken());
    assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
}

#[tokio::test(start_paused = true)]
async fn each_of_many_waiters_is_woken_though_others_went_away() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut all: Vec<_> = (0..100).map(|_| waiting(&layer)).collect();
    let mut nth = 0;
    all.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    trip_by_hand(&handle);
    for (service, _) in &mut all {
        assert_eq!(is_refused(service), (Reason::CircuitOpen, Some(secs(30))));
    }
    // Once more, with new waiters beside the old ones.
    handle.reset();
    for (service, _) in &mut all {
        assert!(poll(service).is_pending());
    }
    all.extend((0..50).map(|_| waiting(&layer)));
    handle.force_open();
    for (service, _) in &mut all {
        assert_eq!(is_refused(service), (Reason::ForcedOpen, None));
    }
    drop(all);
    handle.reset();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_moved_to_another_task_is_woken_there() {
    let layer = CircuitBreakerLayer::new();
    let (first, mut inner) = waiting(&layer);
    let mut second = Spawn::new(first.into_inner());
    assert!(poll(&mut second).is_pending());
    trip_by_hand(&layer.handle());
    assert_eq!(
        is_refused(&mut second),
        (Reason::CircuitOpen, Some(secs(30)))
    );
    assert!(inner.poll_request().is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_a_waiter_does_not_wait() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let (service, _inner) = waiting(&layer);
    let mut clone = service.clone();
    drop(service);
    assert!(!clone.is_woken());
    trip_by_hand(&handle);
    assert!(!clone.is_woken(), "it was never polled");
    handle.reset();
    assert!(poll(&mut clone).is_pending());
    trip_by_hand(&handle);
    assert_eq!(
        is_refused(&mut clone),
        (Reason::CircuitOpen, Some(secs(30)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_keyed_service_waits_only_for_the_inner_service() {
    let layer = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
    let handle = layer.handle();
    let (mut service, mut inner) = mock::spawn_layer::<Query, Query, _>(layer);
    inner.allow(0);
    assert!(poll(&mut service).is_pending());
    handle.force_open("q");
    assert!(!service.is_woken(), "the key is not known yet");
    inner.allow(1);
    assert!(service.is_woken());
    assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
    assert_eq!(refused(now(service.call("q"))).reason(), Reason::ForcedOpen);
}

/// A waker that is kept would keep the memory of its task.
#[tokio::test(start_paused = true)]
async fn a_service_dropped_while_it_waits_keeps_no_waker() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let mut task = tokio_test::task::spawn(());
    let before = task.waker_ref_count();

    let mut service = layer.layer(site.tool());
    site.set_stuck(true);
    assert!(
        task.enter(|cx, _| Service::<Query>::poll_ready(&mut service, cx))
            .is_pending()
    );
    assert_eq!(task.waker_ref_count(), before + 1);
    drop(service);
    assert_eq!(task.waker_ref_count(), before);
}

// ===== races =====

/// A service that moves the circuit in `poll_ready` and is not ready. The transition falls after
/// the oracle's answer and before the caller has left its waker.
struct Meddler<F>(F);

impl<F: FnMut()> Service<Query> for Meddler<F> {
    type Response = Query;
    type Error = Down;
    type Future = Ready<Result<Query, Down>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Down>> {
        (self.0)();
        Poll::Pending
    }

    fn call(&mut self, _: Query) -> Self::Future {
        unreachable!("never ready")
    }
}

#[tokio::test(start_paused = true)]
async fn a_transition_between_the_oracles_answer_and_the_wait_is_not_missed() {
    type Move = fn(&CircuitBreakerHandle);
    let moves: [(Move, Reason); 3] = [
        (trip_by_hand, Reason::CircuitOpen),
        (CircuitBreakerHandle::force_open, Reason::ForcedOpen),
        (
            |handle| {
                trip_by_hand(handle);
                handle.reset();
                trip_by_hand(handle);
            },
            Reason::CircuitOpen,
        ),
    ];
    for (moved, reason) in moves {
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        let mut service = Spawn::new(layer.layer(Meddler(|| moved(&handle))));
        assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
        assert_eq!(refused(now(service.call("q"))).reason(), reason);
    }

    // Another caller takes the probe.
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    trip_by_hand(&handle);
    pass(secs(30)).await;
    let mut probe = None;
    let mut service = Spawn::new(layer.layer(Meddler(|| {
        probe = Some(handle.try_acquire().unwrap());
    })));
    assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
    assert_eq!(
        refused(now(service.call("q"))).reason(),
        Reason::ProbeInFlight
    );

    // A caller that waits while open is woken by the next transition.
    let layer = CircuitBreakerLayer::new().when_open(WhenOpen::NotReady);
    let handle = layer.handle();
    let mut is_first = true;
    let mut service = Spawn::new(layer.layer(Meddler(|| {
        if std::mem::take(&mut is_first) {
            handle.force_open();
        }
    })));
    assert!(poll(&mut service).is_pending());
    assert!(!service.is_woken());
    handle.reset();
    assert!(service.is_woken());
}

/// On real threads a transition may fall between any two steps of a caller that begins to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_in_a_race() {
    let deadline = Instant::now() + secs(60);
    for round in 0..200 {
        let site = Arc::new(Site::default());
        site.set_stuck(true);
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let mut service = layer.layer(site.tool());
                tokio::spawn(async move { service.ready().await?.call("q").await })
            })
            .collect();
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        trip_by_hand(&handle);
        for caller in callers {
            let left = deadline.saturating_duration_since(Instant::now());
            let result = tokio::time::timeout(left, caller)
                .await
                .unwrap_or_else(|_| panic!("a caller was never woken, in round {round}"));
            assert_eq!(refused(result.unwrap()).reason(), Reason::CircuitOpen);
        }
    }
}

/// A waker that remembers that it was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// In each round one thread begins to wait while another moves the circuit. A caller left pending
/// must have been woken.
#[test]
fn a_transition_in_a_race_with_the_wait_is_seen_or_wakes() {
    const ROUNDS: usize = 5_000;
    let mut pending = 0;
    for when_open in [WhenOpen::Refuse, WhenOpen::NotReady] {
        let layers: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let layer = CircuitBreakerLayer::new()
                    .recovery_duration(Duration::MAX)
                    .when_open(when_open);
                if when_open == WhenOpen::NotReady {
                    trip_by_hand(&layer.handle());
                }
                layer
            })
            .collect();
        let round = AtomicUsize::new(0);
        let in_step = |with: usize| {
            round.fetch_add(1, Ordering::SeqCst);
            while round.load(Ordering::SeqCst) < 2 * (with + 1) {
                std::thread::yield_now();
            }
        };
        let flags: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for (with, layer) in layers.iter().enumerate() {
                    let handle = layer.handle();
                    in_step(with);
                    match when_open {
                        WhenOpen::NotReady => handle.reset(),
                        _ => handle.force_open(),
                    }
                }
            });
            let waits = scope.spawn(|| {
                let step = |(with, layer): (usize, &CircuitBreakerLayer)| {
                    let site = Arc::new(Site::default());
                    site.set_stuck(when_open == WhenOpen::Refuse);
                    let mut service = layer.layer(site.tool());
                    let flag = Arc::new(Flag::default());
                    let waker = Waker::from(Arc::clone(&flag));
                    let mut cx = Context::from_waker(&waker);
                    in_step(with);
                    let polled = Service::<Query>::poll_ready(&mut service, &mut cx);
                    polled.is_pending().then_some((flag, service))
                };
                layers.iter().enumerate().map(step).collect()
            });
            waits.join().unwrap()
        });
        for (flag, _) in flags.iter().flatten() {
            assert!(flag.0.load(Ordering::SeqCst), "the wake-up was lost");
            pending += 1;
        }
    }
    // This proves only that the threads came close. The interleaving models prove the rest.
    assert!(pending > 0, "nobody ever waited");
}
