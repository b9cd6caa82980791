//! Proves `when_open(NotReady)`: pending while open, with a timer and a wake-up at every
//! transition.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_breaker::{
    CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer, Outcome, Reason, Refusal, State,
    WhenOpen,
};
use tower_test::mock::Spawn;

use crate::support::site::{Query, Site, Tool, now, poll, trip_by_hand};
use crate::support::{NS, pass, refused, secs};

type Pending = Spawn<CircuitBreaker<Tool>>;

/// Makes an open circuit, and a caller that waits for it.
fn open() -> (Arc<Site>, CircuitBreakerHandle, Pending) {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().when_open(WhenOpen::NotReady);
    let handle = layer.handle();
    trip_by_hand(&handle);
    let mut service = Spawn::new(layer.layer(site.tool()));
    waits(&mut service);
    assert_eq!(site.polls(), 0, "inner readiness is not asked for");
    (site, handle, service)
}

#[track_caller]
fn waits(service: &mut Pending) {
    assert!(poll(service).is_pending());
    assert!(!service.is_woken());
}

#[track_caller]
fn goes(service: &mut Pending) {
    assert!(service.is_woken(), "the wake-up was lost");
    assert!(matches!(poll(service), Poll::Ready(Ok(()))));
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_until_the_cooldown_is_over_and_is_then_the_probe() {
    let (site, handle, mut service) = open();
    pass(Duration::from_millis(29_999)).await;
    assert!(!service.is_woken());
    assert!(poll(&mut service).is_pending());
    // tokio's timer rounds up to the next millisecond, never down.
    pass(Duration::from_millis(2)).await;
    goes(&mut service);
    assert!(handle.snapshot().due, "the probe is taken in `call` alone");
    assert_eq!(now(service.call("q")).unwrap(), "q");
    assert_eq!((handle.state(), site.calls()), (State::Closed, 1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_awaits_readiness_is_let_through_when_the_cooldown_ends() {
    let layer = CircuitBreakerLayer::new().when_open(WhenOpen::NotReady);
    trip_by_hand(&layer.handle());
    let mut service = layer.layer(Arc::new(Site::default()).tool());
    let start = Instant::now();
    assert_eq!(service.ready().await.unwrap().call("q").await.unwrap(), "q");
    let took = start.elapsed().as_millis();
    assert!((30_000..=30_001).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_reset_wakes_a_caller_that_waits() {
    let (_, handle, mut service) = open();
    handle.reset();
    goes(&mut service);
}

#[tokio::test(start_paused = true)]
async fn force_open_wakes_a_caller_which_then_waits_without_a_timer() {
    let (_, handle, mut service) = open();
    handle.force_open();
    assert!(service.is_woken());
    waits(&mut service);
    pass(secs(1_000_000)).await;
    assert!(!service.is_woken(), "there is no time to wait for");
    assert!(poll(&mut service).is_pending());
    handle.reset();
    goes(&mut service);
}

#[tokio::test(start_paused = true)]
async fn another_callers_probe_wakes_a_caller_which_waits_for_its_verdict() {
    for success in [false, true] {
        let (_, handle, mut service) = open();
        pass(Duration::from_millis(30_001)).await;
        let probe = handle.try_acquire().unwrap();
        assert!(service.is_woken());
        waits(&mut service);
        if success {
            probe.success();
            goes(&mut service);
        } else {
            probe.failure();
            assert!(service.is_woken());
            waits(&mut service);
            pass(Duration::from_millis(30_001)).await;
            goes(&mut service);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_probes_slot_that_is_free_again_wakes_a_caller_which_may_take_it() {
    let (_, handle, mut service) = open();
    pass(Duration::from_millis(30_001)).await;
    let probe = handle.try_acquire().unwrap();
    assert!(service.is_woken());
    waits(&mut service);
    probe.record(Outcome::Neutral);
    goes(&mut service);
    assert_eq!(now(service.call("q")).unwrap(), "q");
    assert_eq!(handle.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_hung_probe_holds_a_caller_for_the_lease_and_the_cooldown_after_it() {
    let (_, handle, service) = open();
    pass(Duration::from_millis(30_001)).await;
    let hung = handle.try_acquire().unwrap();
    assert!(service.is_woken());
    let start = Instant::now();
    let mut inner = service.into_inner();
    ServiceExt::<Query>::ready(&mut inner).await.unwrap();
    let waited = start.elapsed().as_millis();
    assert!((60_000..=60_002).contains(&waited), "{waited} ms");
    assert!(handle.snapshot().due);
    hung.success();
    assert!(handle.snapshot().due, "its late success changes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_out_a_cooldown_that_was_restarted_meanwhile() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().when_open(WhenOpen::NotReady);
    let handle = layer.handle();
    let straggler = handle.try_acquire().unwrap();
    trip_by_hand(&handle);
    let mut service = layer.layer(site.tool());
    let start = Instant::now();
    let waits = tokio::spawn(async move {
        ServiceExt::<Query>::ready(&mut service).await.unwrap();
    });
    tokio::task::yield_now().await;
    pass(secs(20)).await;
    straggler.failure();
    waits.await.unwrap();
    let waited = start.elapsed().as_millis();
    assert!((50_000..=50_002).contains(&waited), "{waited} ms");
}

#[tokio::test(start_paused = true)]
async fn a_trip_wakes_a_caller_that_awaits_the_inner_service_and_it_waits_on() {
    let site = Arc::new(Site::default());
    site.set_stuck(true);
    let layer = CircuitBreakerLayer::new().when_open(WhenOpen::NotReady);
    let handle = layer.handle();
    let mut service = Spawn::new(layer.layer(site.tool()));
    waits(&mut service);
    trip_by_hand(&handle);
    assert!(service.is_woken());
    waits(&mut service);
    assert_eq!(site.polls(), 1);
    pass(Duration::from_millis(30_001)).await;
    assert!(service.is_woken());
    waits(&mut service);
    assert_eq!(site.polls(), 2, "due: the inner service is asked again");
}

/// The circuit may trip after `poll_ready` granted readiness.
#[tokio::test(start_paused = true)]
async fn a_circuit_that_trips_after_poll_ready_refuses_the_call() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().when_open(WhenOpen::NotReady);
    let handle = layer.handle();
    let mut service = Spawn::new(layer.layer(site.tool()));
    assert!(poll(&mut service).is_ready());
    trip_by_hand(&handle);
    assert_eq!(
        refused(now(service.call("q"))).reason(),
        Reason::CircuitOpen
    );
    waits(&mut service);
    // A call in spite of `Pending` is refused and does not panic.
    let err = now(service.call("q")).unwrap_err();
    assert!(Refusal::find(&*err).is_some());
    assert_eq!(site.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_cooldowns_end_wakes_all_waiters_and_one_call_goes() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().when_open(WhenOpen::NotReady);
    let handle = layer.handle();
    trip_by_hand(&handle);
    let mut all: Vec<Pending> = (0..20)
        .map(|_| Spawn::new(layer.layer(site.tool())))
        .collect();
    all.iter_mut().for_each(waits);
    pass(Duration::from_millis(30_001)).await;
    all.iter_mut().for_each(goes);
    let probe = all[0].call("q");
    for other in &mut all[1..] {
        assert_eq!(
            refused(now(other.call("q"))).reason(),
            Reason::ProbeInFlight
        );
        waits(other);
    }
    assert_eq!(now(probe).unwrap(), "q");
    for other in &mut all[1..] {
        goes(other);
    }
    assert_eq!(site.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_out_a_cooldown_of_any_length() {
    const YEAR: u64 = 365 * 24 * 3_600;
    for cooldown in [NS, secs(500 * YEAR), secs(10_000 * YEAR), Duration::MAX] {
        let layer = CircuitBreakerLayer::new()
            .when_open(WhenOpen::NotReady)
            .recovery_duration(cooldown);
        let handle = layer.handle();
        for _ in 0..3 {
            handle.try_acquire().unwrap().failure();
        }
        let mut service = Spawn::new(layer.layer(Arc::new(Site::default()).tool()));
        // The clock is paused, so not even a nanosecond passes by itself.
        waits(&mut service);
        pass(Duration::from_millis(2)).await;
        if cooldown.as_secs() == 0 {
            goes(&mut service);
        } else {
            assert!(!service.is_woken());
            handle.reset();
            goes(&mut service);
        }
    }
}
