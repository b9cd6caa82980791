//! Proves who is polled, who is called, and what readiness a clone has.

use std::future::{Ready, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio_test::task;
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_breaker::{CircuitBreakerLayer, Failure, Outcome, Reason, Refusal, State, WhenOpen};

use crate::support::site::{Down, Query, Site, ask_now, now, trip_by_hand};
use crate::support::tool::{self, Ask};
use crate::support::{NS, pass, reason_and_wait, secs};

pub const NOT_READY: (Reason, Option<Duration>) = (Reason::NotReady, Some(Duration::ZERO));

pub fn poll<S: Service<Query>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

/// Small pseudo-random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// Case 8: the tool panics when it is called without having been polled ready. Random moves try
/// every order.
#[tokio::test(start_paused = true)]
async fn an_inner_service_is_called_only_if_it_was_polled_ready() {
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
                    // The tool panics if it is called without having been polled ready.
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
                    _ => pass(Duration::from_millis(700)).await,
                },
            }
        }
    }
    assert!(admitted > 500 && refusals > 500, "{admitted} {refusals}");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_readiness_is_refused_and_takes_no_probe() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());

    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    assert_eq!((site.calls(), site.polls()), (0, 0));
    assert_eq!(handle.snapshot().streak, 0);

    // The same at a due circuit: the probe is not taken.
    trip_by_hand(&handle);
    pass(secs(30)).await;
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    let snapshot = handle.snapshot();
    assert!(snapshot.due, "{snapshot:?}");
    assert_eq!((site.calls(), site.polls()), (0, 0));

    assert_eq!(ask_now(&mut service).unwrap(), "q");
    assert_eq!(handle.state(), State::Closed);
    // One `poll_ready` is good for one call.
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    assert_eq!(site.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_readiness_at_an_open_circuit_is_refused_as_open() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    trip_by_hand(&handle);
    pass(secs(10)).await;
    // Not "retry at once": polling ready would not help.
    assert_eq!(
        reason_and_wait(now(service.call("q"))),
        (Reason::CircuitOpen, Some(secs(20)))
    );
    assert_eq!((site.calls(), site.polls()), (0, 0));
}

#[test]
fn new_clones_carry_no_readiness() {
    let site = Arc::new(Site::default());
    let mut one = CircuitBreakerLayer::new().layer(site.tool());
    assert!(poll(&mut one).is_ready());
    assert_eq!(reason_and_wait(now(one.clone().call("q"))), NOT_READY);
    assert_eq!(
        now(one.call("q")).unwrap(),
        "q",
        "the original keeps its own"
    );

    let keyed = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
    let mut keyed = keyed.layer(site.tool());
    assert!(poll(&mut keyed).is_ready());
    assert_eq!(reason_and_wait(now(keyed.clone().call("q"))), NOT_READY);
    assert_eq!(now(keyed.call("q")).unwrap(), "q");
    assert_eq!(site.calls(), 2);
}

// ===== between `poll_ready` and `call` =====

/// The circuit became due only after `poll_ready`, so the inner service was not readied.
#[tokio::test(start_paused = true)]
async fn a_circuit_that_became_due_after_poll_ready_refuses_with_not_ready() {
    for polled_before in [NS, Duration::from_millis(1), secs(1) - NS] {
        let site = Arc::new(Site::default());
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        let mut service = layer.layer(site.tool());
        trip_by_hand(&handle);
        pass(secs(30) - polled_before).await;
        assert!(poll(&mut service).is_ready());
        pass(polled_before).await;
        assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
        assert!(handle.snapshot().due);
        assert_eq!((site.calls(), site.polls()), (0, 0));
    }
}

/// The known limit of that rule: with a second or more of the wait left at `poll_ready`, `call`
/// gives the same answer again and does not read the clock a second time.
#[tokio::test(start_paused = true)]
async fn an_answer_of_poll_ready_a_second_or_more_before_its_end_holds_for_the_call() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    trip_by_hand(&handle);
    pass(secs(29)).await;
    assert!(poll(&mut service).is_ready());
    pass(secs(1)).await;
    assert_eq!(
        reason_and_wait(now(service.call("q"))),
        (Reason::CircuitOpen, Some(secs(1)))
    );
    assert!(handle.snapshot().due);
    assert_eq!((site.calls(), site.polls()), (0, 0));
    // It holds for that one call.
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    // And every `poll_ready` asks anew.
    assert_eq!(ask_now(&mut service).unwrap(), "q");
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_poll_ready_less_than_a_second_before_its_end_is_renewed_in_call() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(Arc::new(Site::default()).tool());
    trip_by_hand(&handle);
    pass(Duration::from_millis(29_100)).await;
    assert!(poll(&mut service).is_ready());
    pass(Duration::from_millis(500)).await;
    assert_eq!(
        reason_and_wait(now(service.call("q"))),
        (Reason::CircuitOpen, Some(Duration::from_millis(400)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_was_reset_after_poll_ready_refuses_with_not_ready() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    trip_by_hand(&handle);
    assert!(poll(&mut service).is_ready());
    handle.reset();
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    assert_eq!((site.calls(), site.polls()), (0, 0));
    assert_eq!(ask_now(&mut service).unwrap(), "q");
}

/// The wait in a refusal is what was left at `poll_ready` or at the call, and never their sum.
#[tokio::test(start_paused = true)]
async fn a_held_answer_never_tells_a_longer_wait_than_is_left() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();

    // A late failure restarts the cooldown between `poll_ready` and `call`.
    let straggler = handle.try_acquire().unwrap();
    trip_by_hand(&handle);
    let mut service = layer.layer(Arc::new(Site::default()).tool());
    assert!(poll(&mut service).is_ready());
    pass(secs(25)).await;
    straggler.failure();
    assert_eq!(
        reason_and_wait(now(service.call("q"))),
        (Reason::CircuitOpen, Some(secs(30)))
    );

    // The circuit opens again in between.
    assert!(poll(&mut service).is_ready());
    pass(secs(100)).await;
    handle.try_acquire().unwrap().failure();
    assert_eq!(
        reason_and_wait(now(service.call("q"))),
        (Reason::CircuitOpen, Some(secs(30)))
    );

    // A probe goes in between.
    assert!(poll(&mut service).is_ready());
    pass(secs(100)).await;
    let probe = handle.try_acquire().unwrap();
    assert_eq!(
        reason_and_wait(now(service.call("q"))),
        (Reason::ProbeInFlight, Some(secs(30)))
    );
    drop(probe);
}

#[tokio::test(start_paused = true)]
async fn a_service_readied_while_closed_may_be_the_probe_after_a_trip() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    assert!(poll(&mut service).is_ready());
    trip_by_hand(&handle);
    pass(secs(30)).await;
    let probe = service.call("q");
    assert_eq!(handle.state(), State::HalfOpen);
    assert_eq!(now(probe).unwrap(), "q");
    assert_eq!((handle.state(), site.polls()), (State::Closed, 1));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_readied_and_refused_must_be_polled_again() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    assert!(poll(&mut service).is_ready());
    trip_by_hand(&handle);
    // The gate refuses, and the oracle after it.
    assert_eq!(
        reason_and_wait(now(service.call("q"))),
        (Reason::CircuitOpen, Some(secs(30)))
    );
    assert_eq!(
        reason_and_wait(ask_now(&mut service)),
        (Reason::CircuitOpen, Some(secs(30)))
    );
    handle.reset();
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    assert_eq!((site.calls(), site.polls()), (0, 1));
    assert_eq!(ask_now(&mut service).unwrap(), "q");
}

#[test]
fn a_second_poll_ready_that_is_pending_cancels_the_first() {
    let site = Arc::new(Site::default());
    let mut service = CircuitBreakerLayer::new().layer(site.tool());
    assert!(poll(&mut service).is_ready());
    site.set_stuck(true);
    assert!(poll(&mut service).is_pending());
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    assert_eq!(site.calls(), 0);
}

type Readied = Poll<Result<(), BoxError>>;

/// A service that is ready once, and then answers `poll_ready` with `second`.
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

/// The readiness of an earlier `poll_ready` ends with the next one, even if that one panics.
#[test]
fn a_second_poll_ready_that_panics_cancels_the_first() {
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

// ===== open and due =====

/// Case 8.
#[tokio::test(start_paused = true)]
async fn a_hundred_clones_that_poll_ready_and_are_dropped_take_no_probe() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let service = layer.layer(site.tool());
    trip_by_hand(&handle);
    pass(secs(30)).await;
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
async fn one_of_a_hundred_ready_clones_is_the_probe_and_the_others_are_refused() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    trip_by_hand(&handle);
    pass(secs(30)).await;
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
        assert_eq!(
            reason_and_wait(now(future)),
            (Reason::ProbeInFlight, Some(secs(30)))
        );
    }
    assert_eq!(now(probe).unwrap(), "q");
    assert_eq!(site.calls(), 1);
}

/// Case 8.
#[tokio::test(start_paused = true)]
async fn an_open_circuit_refuses_at_once_though_the_inner_service_is_never_ready() {
    let site = Arc::new(Site::default());
    site.set_stuck(true);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(site.tool());
    assert!(poll(&mut service).is_pending());
    trip_by_hand(&handle);
    for left in (1..=30).rev() {
        assert!(matches!(poll(&mut service), Poll::Ready(Ok(()))));
        assert_eq!(
            reason_and_wait(now(service.call("q"))),
            (Reason::CircuitOpen, Some(secs(left)))
        );
        pass(secs(1)).await;
    }
    assert_eq!(
        site.polls(),
        1,
        "inner readiness is not asked for while open"
    );
    // Due: a call may go, so the inner service's readiness counts again.
    assert!(poll(&mut service).is_pending());
    // Half-open: refused at once again.
    let probe = handle.try_acquire().unwrap();
    assert_eq!(
        reason_and_wait(ask_now(&mut service)),
        (Reason::ProbeInFlight, Some(secs(30)))
    );
    // Pinned.
    handle.force_open();
    assert_eq!(
        reason_and_wait(ask_now(&mut service)),
        (Reason::ForcedOpen, None)
    );
    drop(probe);
    assert_eq!((site.polls(), site.calls()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn poll_ready_is_never_an_error_for_an_open_circuit() {
    for when_open in [WhenOpen::Refuse, WhenOpen::NotReady] {
        let layer = CircuitBreakerLayer::new().when_open(when_open);
        let handle = layer.handle();
        let mut service = layer.layer(Arc::new(Site::default()).tool());
        trip_by_hand(&handle);
        for _ in 0..100 {
            assert!(!matches!(poll(&mut service), Poll::Ready(Err(_))));
            pass(Duration::from_millis(299)).await;
        }
        handle.force_open();
        assert!(!matches!(poll(&mut service), Poll::Ready(Err(_))));
    }
}

// ===== errors of readiness =====

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
    // While open it is not asked.
    let mut service = layer.layer(site.tool());
    assert_eq!(
        reason_and_wait(ask_now(&mut service)),
        (Reason::CircuitOpen, Some(secs(30)))
    );
    assert_eq!(site.polls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_is_the_probes_failure_when_one_is_due() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    trip_by_hand(&handle);
    pass(secs(30)).await;
    site.set_lost(true);
    let mut service = layer.layer(site.tool());
    assert!(matches!(poll(&mut service), Poll::Ready(Err(err)) if err.is::<Down>()));
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.state, snapshot.due), (State::Open, false));
    assert_eq!((snapshot.time_left, snapshot.trips), (Some(secs(30)), 2));
    // The slot is not lost with it.
    pass(secs(30)).await;
    site.set_lost(false);
    assert_eq!(ask_now(&mut layer.layer(site.tool())).unwrap(), "q");
    assert_eq!(handle.state(), State::Closed);
}

#[test]
fn a_classifier_chooses_the_kind_of_a_readiness_error_which_is_always_a_failure() {
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

// ===== keys =====

#[tokio::test(start_paused = true)]
async fn with_keys_inner_readiness_passes_through_and_its_error_counts_for_no_key() {
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

    // Refused in `call`, by the key.
    assert_eq!(
        reason_and_wait(ask_now(&mut service)),
        (Reason::CircuitOpen, Some(secs(30)))
    );
    assert!(poll(&mut service).is_ready());
    assert_eq!(now(service.call("other")).unwrap(), "other");
    assert_eq!(site.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_keyed_call_without_readiness_is_refused_and_takes_no_probe() {
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

    // A due probe is not taken either.
    for _ in 0..3 {
        handle.try_acquire("q").unwrap().failure();
    }
    pass(secs(30)).await;
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    assert!(handle.snapshot("q").due);
    // One that is readied when the circuit is due is called, and good for one call.
    assert_eq!(ask_now(&mut service).unwrap(), "q");
    assert_eq!(reason_and_wait(now(service.call("q"))), NOT_READY);
    assert_eq!(site.calls(), 1);
}

/// The key is not known in `poll_ready`, so the gate is asked in `call` alone.
#[tokio::test(start_paused = true)]
async fn a_keyed_call_readied_while_open_is_the_probe_once_its_circuit_is_due() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .per_key(|ask: &Ask| ask.name.as_str(), 10);
    let handle = layer.handle();
    let mut service = layer.layer(tool::Tool::new());
    let failed = tool::ask(&mut service, Ask::fail().of("a")).await;
    failed.unwrap_err();
    service.ready().await.unwrap();
    pass(secs(30)).await;
    service.call(Ask::ok().of("a")).await.unwrap();
    assert_eq!(handle.state("a"), State::Closed);
}
