//! Which service is polled, which one is called, and that clones carry no readiness.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::advance;
use tower::{Layer, Service};
use tower_breaker::{CircuitBreakerLayer, Failure, Outcome, Reason, Refusal, State, WhenOpen};

use crate::site::{Down, Query, Site, advance_secs, ask, now, refused, secs, trip};

const NOT_READY: (Reason, Option<Duration>) = (Reason::NotReady, Some(Duration::ZERO));

fn poll<S: Service<Query>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

/// Makes small pseudo-random numbers, the same ones in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_is_never_called_unless_it_was_polled_ready_whatever_the_order() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut admitted = 0;
    let mut refusals = 0;
    for round in 0..400 {
        let site = Arc::new(Site::default());
        let mut layer = CircuitBreakerLayer::new().recovery_duration(Duration::from_millis(1_500));
        if round % 3 == 0 {
            layer = layer.when_open(WhenOpen::NotReady);
        }
        let handle = layer.handle();
        let mut services = vec![layer.layer(site.tool())];
        for _ in 0..60 {
            let at = dice.roll(services.len());
            match dice.roll(16) {
                0..=4 => drop(poll(&mut services[at])),
                5..=9 => {
                    // The tool panics if it was not polled ready.
                    let before = site.calls();
                    let result = now(services[at].call("q"));
                    let called = site.calls() - before;
                    let is_refusal = matches!(&result, Err(err) if Refusal::find(&**err).is_some());
                    assert_eq!(called == 0, is_refusal, "a refused call was not attempted");
                    admitted += called;
                    refusals += usize::from(is_refusal);
                }
                10 => {
                    let clone = services[at].clone();
                    services.push(clone);
                }
                11 => services.push(layer.layer(site.tool())),
                12 => {
                    if services.len() > 1 {
                        services.swap_remove(at);
                    }
                }
                13 => site.set_down(dice.roll(2) == 0),
                14 => site.set_stuck(dice.roll(3) == 0),
                _ => match dice.roll(6) {
                    0 => handle.force_open(),
                    1 => handle.reset(),
                    _ => advance(Duration::from_millis(700)).await,
                },
            }
        }
    }
    assert!(admitted > 500 && refusals > 500, "{admitted} {refusals}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_polled_ready_is_refused_and_takes_nothing() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());

    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert_eq!((site.calls(), site.polls()), (0, 0));
    assert_eq!(handle.snapshot().streak, 0);

    // The same holds for a circuit that is due: the probe is not taken.
    trip(&handle);
    advance_secs(30).await;
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    let snapshot = handle.snapshot();
    assert!(snapshot.due, "{snapshot:?}");
    assert_eq!((site.calls(), site.polls()), (0, 0));

    assert_eq!(ask(&mut service).unwrap(), "q");
    assert_eq!(handle.state(), State::Closed);
    // One `poll_ready` serves one call.
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert_eq!(site.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_polled_ready_is_refused_with_the_open_circuit_as_its_reason() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    trip(&handle);
    advance_secs(10).await;
    // The refusal does not say "retry at once", because polling ready would not help.
    assert_eq!(
        refused(now(service.call("q"))),
        (Reason::CircuitOpen, secs(20))
    );
    assert_eq!((site.calls(), site.polls()), (0, 0));
}

/// The circuit became due after `poll_ready`, so the inner service was not readied. The design
/// then asks for `NotReady`.
#[tokio::test(start_paused = true)]
async fn a_circuit_that_became_due_after_poll_ready_refuses_with_not_ready() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    trip(&handle);
    advance(Duration::from_millis(29_001)).await;
    assert!(poll(&mut service).is_ready());
    advance(Duration::from_millis(999)).await;
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert!(handle.snapshot().due);
    assert_eq!((site.calls(), site.polls()), (0, 0));
}

/// The known limit of that rule: if a second or more of the wait was left at `poll_ready`, then
/// `call` repeats its answer, and does not read the clock again.
#[tokio::test(start_paused = true)]
async fn an_answer_given_a_second_or_more_ahead_is_held_for_the_call() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    trip(&handle);
    advance_secs(29).await;
    assert!(poll(&mut service).is_ready());
    advance_secs(1).await;
    assert_eq!(
        refused(now(service.call("q"))),
        (Reason::CircuitOpen, secs(1))
    );
    assert!(handle.snapshot().due);
    assert_eq!((site.calls(), site.polls()), (0, 0));
    // The answer holds for one call.
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    // Every `poll_ready` asks anew.
    assert_eq!(ask(&mut service).unwrap(), "q");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_about_to_run_out_is_looked_at_again_in_call() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(Arc::new(Site::default()).tool());
    trip(&handle);
    advance(Duration::from_millis(29_100)).await;
    assert!(poll(&mut service).is_ready());
    advance(Duration::from_millis(500)).await;
    assert_eq!(
        refused(now(service.call("q"))),
        (Reason::CircuitOpen, Some(Duration::from_millis(400)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_was_reset_after_poll_ready_refuses_with_not_ready() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    trip(&handle);
    assert!(poll(&mut service).is_ready());
    handle.reset();
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert_eq!((site.calls(), site.polls()), (0, 0));
    assert_eq!(ask(&mut service).unwrap(), "q");
}

/// The wait in a refusal is the time left at `poll_ready` or at the call, never a sum of the two.
#[tokio::test(start_paused = true)]
async fn a_held_answer_never_has_a_longer_wait_than_is_left() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();

    // A late failure moves the cooldown between `poll_ready` and `call`.
    let straggler = handle.try_acquire().unwrap();
    trip(&handle);
    let mut service = layer.layer(Arc::new(Site::default()).tool());
    assert!(poll(&mut service).is_ready());
    advance_secs(25).await;
    straggler.failure();
    assert_eq!(
        refused(now(service.call("q"))),
        (Reason::CircuitOpen, secs(30))
    );

    // The circuit has closed and opened again in between.
    assert!(poll(&mut service).is_ready());
    advance_secs(100).await;
    handle.try_acquire().unwrap().failure();
    assert_eq!(
        refused(now(service.call("q"))),
        (Reason::CircuitOpen, secs(30))
    );

    // Another caller has taken the probe in between, so the wait is the rest of its lease.
    assert!(poll(&mut service).is_ready());
    advance_secs(100).await;
    let probe = handle.try_acquire().unwrap();
    assert_eq!(
        refused(now(service.call("q"))),
        (Reason::ProbeInFlight, secs(30))
    );
    drop(probe);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_clones_that_poll_ready_and_are_dropped_leave_the_probe() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let service = layer.layer(site.tool());
    trip(&handle);
    advance_secs(30).await;
    let mut clones: Vec<_> = (0..100).map(|_| service.clone()).collect();
    for clone in &mut clones {
        assert!(matches!(poll(clone), Poll::Ready(Ok(()))));
    }
    assert_eq!(site.polls(), 100, "each was told that a call may go");
    assert!(handle.snapshot().due);
    let mut last = clones.pop().unwrap();
    drop(clones);
    let probe = last.call("q");
    assert_eq!(handle.state(), State::HalfOpen);
    assert_eq!(now(probe).unwrap(), "q");
    assert_eq!((handle.state(), site.calls()), (State::Closed, 1));
}

#[tokio::test(start_paused = true)]
async fn of_a_hundred_clones_that_polled_ready_one_is_the_probe_and_the_others_are_refused() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    trip(&handle);
    advance_secs(30).await;
    let mut services: Vec<_> = (0..100).map(|_| layer.layer(site.tool())).collect();
    for service in &mut services {
        assert!(matches!(poll(service), Poll::Ready(Ok(()))));
    }
    let mut futures: Vec<_> = services
        .iter_mut()
        .map(|service| service.call("q"))
        .collect();
    let probe = futures.remove(0);
    for future in futures {
        assert_eq!(refused(now(future)), (Reason::ProbeInFlight, secs(30)));
    }
    assert_eq!(now(probe).unwrap(), "q");
    assert_eq!(site.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_is_ready_and_refuses_at_once_over_a_service_that_never_is() {
    let site = Arc::new(Site::default());
    site.set_stuck(true);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    assert!(poll(&mut service).is_pending());
    trip(&handle);
    for left in (1..=30).rev() {
        assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
        assert_eq!(
            refused(now(service.call("q"))),
            (Reason::CircuitOpen, secs(left))
        );
        advance_secs(1).await;
    }
    assert_eq!(
        site.polls(),
        1,
        "inner readiness is not asked for while open"
    );
    // The circuit is due. A call may go, so the readiness of the inner service counts again.
    assert!(poll(&mut service).is_pending());
    // Half-open: the call is refused at once again.
    let probe = handle.try_acquire().unwrap();
    assert_eq!(
        refused(ask(&mut service)),
        (Reason::ProbeInFlight, secs(30))
    );
    // Pinned.
    handle.force_open();
    assert_eq!(refused(ask(&mut service)), (Reason::ForcedOpen, None));
    drop(probe);
    assert_eq!((site.polls(), site.calls()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn poll_ready_is_never_an_error_for_an_open_circuit() {
    for when_open in [WhenOpen::Refuse, WhenOpen::NotReady] {
        let layer = CircuitBreakerLayer::new().when_open(when_open);
        let handle = layer.handle();
        let mut service = layer.layer(Arc::new(Site::default()).tool());
        trip(&handle);
        for _ in 0..100 {
            assert!(!matches!(poll(&mut service), Poll::Ready(Err(_))));
            advance(Duration::from_millis(299)).await;
        }
        handle.force_open();
        assert!(!matches!(poll(&mut service), Poll::Ready(Err(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_is_a_failure_and_is_passed_on() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    site.set_lost(true);
    for streak in 1..=3 {
        let mut service = layer.layer(site.tool());
        let Poll::Ready(Err(err)) = poll(&mut service) else {
            panic!("the inner service's own error is kept back");
        };
        assert!(err.is::<Down>(), "{err}");
        assert_eq!(handle.snapshot().streak, streak);
    }
    assert_eq!(handle.state(), State::Open);
    // While the circuit is open, the inner service is not polled.
    let mut service = layer.layer(site.tool());
    assert_eq!(refused(ask(&mut service)), (Reason::CircuitOpen, secs(30)));
    assert_eq!(site.polls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_is_the_probes_failure_when_one_is_due() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    trip(&handle);
    advance_secs(30).await;
    site.set_lost(true);
    let mut service = layer.layer(site.tool());
    assert!(matches!(poll(&mut service), Poll::Ready(Err(err)) if err.is::<Down>()));
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.state, snapshot.due), (State::Open, false));
    assert_eq!((snapshot.time_left, snapshot.trips), (secs(30), 2));
    // The slot is not lost.
    advance_secs(30).await;
    site.set_lost(false);
    assert_eq!(ask(&mut layer.layer(site.tool())).unwrap(), "q");
    assert_eq!(handle.state(), State::Closed);
}

#[test]
fn a_classifier_says_how_a_readiness_error_failed_but_not_that_it_did_not() {
    let site = Arc::new(Site::default());
    site.set_lost(true);
    let fatal = CircuitBreakerLayer::new()
        .classify(|_: Result<&Query, &Down>| Outcome::from(Failure::fatal()));
    assert!(poll(&mut fatal.layer(site.tool())).is_ready());
    assert_eq!(fatal.handle().state(), State::Open);

    for says in [Outcome::Neutral, Outcome::Success] {
        let layer = CircuitBreakerLayer::new().classify(move |_: Result<&Query, &Down>| says);
        assert!(poll(&mut layer.layer(site.tool())).is_ready());
        assert_eq!(layer.handle().snapshot().streak, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_circuit_per_key_inner_readiness_passes_through_and_its_error_counts_for_no_key() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
    let handle = layer.handle();
    for _ in 0..3 {
        handle.try_acquire("q").unwrap().failure();
    }
    let mut service = layer.layer(site.tool());

    site.set_stuck(true);
    assert!(poll(&mut service).is_pending());
    site.set_stuck(false);
    site.set_lost(true);
    for _ in 0..5 {
        assert!(matches!(poll(&mut service), Poll::Ready(Err(err)) if err.is::<Down>()));
    }
    assert_eq!(handle.keys(), ["q"], "no circuit was made for it");
    assert_eq!(handle.snapshot("q").streak, 3);
    site.set_lost(false);

    // The circuit of the key refuses in `call`.
    assert_eq!(refused(ask(&mut service)), (Reason::CircuitOpen, secs(30)));
    assert!(poll(&mut service).is_ready());
    assert_eq!(now(service.call("other")).unwrap(), "other");
    assert_eq!(site.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_keyed_call_that_nobody_polled_ready_is_refused_and_takes_nothing() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    let Err(err) = now(service.call("q")) else {
        panic!("called without readiness");
    };
    let refusal = Refusal::find(&*err).unwrap();
    assert_eq!((refusal.reason(), refusal.retry_after()), NOT_READY);
    assert_eq!(refusal.name(), Some("q"));
    assert!(handle.keys().is_empty(), "a question makes no circuit");

    // If a probe is due, it is not taken either.
    for _ in 0..3 {
        handle.try_acquire("q").unwrap().failure();
    }
    advance_secs(30).await;
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert!(handle.snapshot("q").due);
    // A service that is readied while the circuit is due is called. Its readiness serves one call.
    assert_eq!(ask(&mut service).unwrap(), "q");
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert_eq!(site.calls(), 1);
}

#[test]
fn new_clones_carry_no_readiness() {
    let site = Arc::new(Site::default());
    let mut one = CircuitBreakerLayer::new().layer(site.tool());
    assert!(poll(&mut one).is_ready());
    assert_eq!(refused(now(one.clone().call("q"))), NOT_READY);
    assert_eq!(
        now(one.call("q")).unwrap(),
        "q",
        "the original keeps its own"
    );

    let keyed = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
    let mut keyed = keyed.layer(site.tool());
    assert!(poll(&mut keyed).is_ready());
    assert_eq!(refused(now(keyed.clone().call("q"))), NOT_READY);
    assert_eq!(now(keyed.call("q")).unwrap(), "q");
    assert_eq!(site.calls(), 2);
}

#[test]
fn a_readiness_that_is_asked_for_again_and_is_pending_is_gone() {
    let site = Arc::new(Site::default());
    let mut service = CircuitBreakerLayer::new().layer(site.tool());
    assert!(poll(&mut service).is_ready());
    site.set_stuck(true);
    assert!(poll(&mut service).is_pending());
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert_eq!(site.calls(), 0);
}

#[test]
fn a_layer_that_is_applied_once_per_request_still_trips() {
    let site = Arc::new(Site::default());
    site.set_down(true);
    let layer = CircuitBreakerLayer::new();
    for _ in 0..3 {
        assert!(ask(&mut layer.layer(site.tool())).unwrap_err().is::<Down>());
    }
    for _ in 0..100 {
        assert_eq!(
            refused(ask(&mut layer.layer(site.tool()))).0,
            Reason::CircuitOpen
        );
    }
    assert_eq!(site.calls(), 3);

    let keyed = layer.clone().per_key(|query: &Query| *query, 10);
    for _ in 0..3 {
        assert!(ask(&mut keyed.layer(site.tool())).unwrap_err().is::<Down>());
    }
    assert_eq!(
        refused(ask(&mut keyed.layer(site.tool()))).0,
        Reason::CircuitOpen
    );
    assert_eq!(site.calls(), 6);
}

#[test]
fn clones_of_services_and_layers_share_the_circuit_until_a_setter_parts_them() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut services = vec![layer.layer(site.tool()), layer.clone().layer(site.tool())];
    services.push(services[0].clone());
    // A service that is called more than once has a reference count of its own. Its clones still
    // share the circuit.
    for _ in 0..3 {
        assert!(ask(&mut services[0]).is_ok());
    }
    services.push(services[0].clone());
    services.push(services[3].clone());
    let parted = layer.clone().name("other");
    trip(&handle);
    for service in &mut services {
        assert_eq!(refused(ask(service)).0, Reason::CircuitOpen);
    }
    assert_eq!(parted.handle().state(), State::Closed);
    assert!(ask(&mut parted.layer(site.tool())).is_ok());
    assert_eq!(layer.clone().handle().state(), State::Open);
}

#[test]
fn the_inner_service_can_be_looked_at_changed_and_taken_out() {
    // The methods ask for no `Service` bound.
    let mut service = CircuitBreakerLayer::new().layer(7_u8);
    assert_eq!(*service.get_ref(), 7);
    *service.get_mut() += 1;
    assert_eq!(service.into_inner(), 8);

    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
    let mut keyed = layer.layer(site.tool());
    assert!(ask(&mut keyed).is_ok());
    assert!(ask(keyed.get_mut()).is_ok(), "past the circuit");
    assert_eq!(site.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_only_observes_passes_readiness_through_and_calls_nobody_unready() {
    for when_open in [WhenOpen::Refuse, WhenOpen::NotReady] {
        let site = Arc::new(Site::default());
        let layer = CircuitBreakerLayer::new()
            .observe_only()
            .when_open(when_open);
        let handle = layer.handle();
        for _ in 0..3 {
            handle.try_acquire().unwrap().failure();
        }
        assert_eq!(handle.state(), State::Open);
        let mut service = layer.layer(site.tool());
        assert_eq!(refused(now(service.call("q"))), NOT_READY);

        // Calls that would be refused run, and their results are not recorded.
        site.set_down(true);
        for _ in 0..5 {
            assert!(ask(&mut service).unwrap_err().is::<Down>());
        }
        advance_secs(10).await;
        assert_eq!(handle.snapshot().time_left, secs(20));
        assert_eq!(handle.snapshot().trips, 1);
        assert_eq!((site.calls(), site.polls()), (5, 5));
        site.set_stuck(true);
        assert!(poll(&mut service).is_pending());
        site.set_stuck(false);
        site.set_lost(true);
        assert!(matches!(poll(&mut service), Poll::Ready(Err(err)) if err.is::<Down>()));
        assert_eq!(handle.snapshot().time_left, secs(20));

        // The circuit moves as if it refused: the first call after the cooldown is the probe.
        site.set_lost(false);
        site.set_down(false);
        advance_secs(20).await;
        assert_eq!(ask(&mut service).unwrap(), "q");
        assert_eq!(handle.state(), State::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_readied_while_closed_may_send_the_probe_of_a_later_opening() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    assert!(poll(&mut service).is_ready());
    trip(&handle);
    advance_secs(30).await;
    let probe = service.call("q");
    assert_eq!(handle.state(), State::HalfOpen);
    assert_eq!(now(probe).unwrap(), "q");
    assert_eq!((handle.state(), site.polls()), (State::Closed, 1));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_readied_and_refused_is_not_called_until_it_is_polled_again() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    assert!(poll(&mut service).is_ready());
    trip(&handle);
    // The gate refuses first, and then the oracle.
    assert_eq!(
        refused(now(service.call("q"))),
        (Reason::CircuitOpen, secs(30))
    );
    assert_eq!(refused(ask(&mut service)), (Reason::CircuitOpen, secs(30)));
    handle.reset();
    assert_eq!(refused(now(service.call("q"))), NOT_READY);
    assert_eq!((site.calls(), site.polls()), (0, 1));
    assert_eq!(ask(&mut service).unwrap(), "q");
}
