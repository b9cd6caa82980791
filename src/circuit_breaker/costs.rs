//! How often a call reads the clock, which is the dearest thing that it may do.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_test::{assert_ready, assert_ready_ok, task};
use tower_layer::Layer;
use tower_service::Service;

use super::{Cancelled, CircuitBreakerLayer, WhenOpen};
use crate::machinery::clock::reads;
use crate::vocabulary::{Event, State};
use crate::vocabulary::{Failure, Outcome};
use crate::vocabulary::{Reason, Refusal};

const HOUR: Duration = Duration::from_secs(3_600);

/// Answers at once with what it was asked, and fails for `"fail"`.
#[derive(Clone, Debug)]
struct Tool;

impl Service<&'static str> for Tool {
    type Response = &'static str;
    type Error = Refused;
    type Future = Ready<Result<&'static str, Refused>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, query: &'static str) -> Self::Future {
        ready(match query {
            "fail" => Err(Refused(None)),
            query => Ok(query),
        })
    }
}

/// The tool's error; with a reason if the call was refused.
#[derive(Debug, PartialEq)]
struct Refused(Option<Reason>);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(Some(refusal.reason()))
    }
}

type Layered = CircuitBreakerLayer<crate::ErrorsAsFailures, crate::IntoError>;

fn layer() -> Layered {
    CircuitBreakerLayer::new()
        .recovery_duration(HOUR)
        .refuse(crate::IntoError)
}

/// One call, from readiness to its answer: the answer, and how often the clock was read.
fn call<S>(service: &mut S, query: &'static str) -> (Result<&'static str, Option<Reason>>, u64)
where
    S: Service<&'static str, Response = &'static str, Error = Refused>,
{
    let mut answer = None;
    let count = reads::during(|| {
        assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
        answer = Some(assert_ready!(task::spawn(service.call(query)).poll()));
    });
    let answer = answer.map(|answer| answer.map_err(|Refused(reason)| reason));
    (answer.unwrap(), count)
}

const FAILED: Result<&str, Option<Reason>> = Err(None);
const OPEN: Result<&str, Option<Reason>> = Err(Some(Reason::CircuitOpen));

#[test]
fn a_closed_circuit_reads_no_clock_for_a_success_and_none_for_a_failure_below_the_threshold() {
    let mut service = layer().layer(Tool);
    // The second call makes the service's own count, and reads no clock for it either.
    for _ in 0..5 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 0));
        assert_eq!(call(&mut service, "fail"), (FAILED, 0));
        assert_eq!(call(&mut service, "fail"), (FAILED, 0));
        assert_eq!(call(&mut service, "a"), (Ok("a"), 0));
    }
}

#[test]
fn a_trip_reads_the_clock_once() {
    let mut service = layer().layer(Tool);
    assert_eq!(call(&mut service, "fail"), (FAILED, 0));
    assert_eq!(call(&mut service, "fail"), (FAILED, 0));
    assert_eq!(call(&mut service, "fail"), (FAILED, 1));
}

#[test]
fn a_refusal_reads_the_clock_once_from_readiness_to_answer() {
    let layer = layer();
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    for _ in 0..3 {
        handle.try_acquire().unwrap().failure();
    }
    for _ in 0..5 {
        assert_eq!(call(&mut service, "a"), (OPEN, 1));
    }

    // While a probe is out, and while it is pinned.
    handle.reset();
    let instant = self::layer().recovery_duration(Duration::ZERO);
    let probed = instant.handle();
    for _ in 0..3 {
        probed.try_acquire().unwrap().failure();
    }
    let probe = probed.try_acquire().unwrap();
    assert_eq!(probed.state(), State::HalfOpen);
    let mut service = instant.layer(Tool);
    let refused = (Err(Some(Reason::ProbeInFlight)), 1);
    assert_eq!(call(&mut service, "a"), refused);
    drop(probe);

    handle.force_open();
    let mut service = layer.layer(Tool);
    assert_eq!(call(&mut service, "a"), (Err(Some(Reason::ForcedOpen)), 1));
}

#[test]
fn a_refusal_that_is_observed_reads_the_clock_once_too() {
    let layer = layer().observe(|_: &Event<'_>| ()).name("search");
    let handle = layer.handle();
    for _ in 0..3 {
        handle.try_acquire().unwrap().failure();
    }
    assert_eq!(call(&mut layer.layer(Tool), "a"), (OPEN, 1));
}

/// Its wait is short, so the answer of `poll_ready` is looked at again.
#[test]
fn a_refusal_that_is_about_to_run_out_reads_the_clock_twice() {
    let layer = layer().recovery_duration(Duration::from_millis(900));
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    for _ in 0..3 {
        handle.try_acquire().unwrap().failure();
    }
    let (answer, count) = call(&mut service, "a");
    // A thread that was away for longer than the wait finds the circuit due.
    if answer == OPEN {
        assert_eq!(count, 2);
    }
}

#[test]
fn a_call_that_was_not_polled_ready_reads_no_clock_while_closed_and_one_while_open() {
    let layer = layer();
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    let mut unready = || {
        let mut answer = None;
        let count = reads::during(|| {
            answer = Some(assert_ready!(task::spawn(service.call("a")).poll()));
        });
        (answer.unwrap(), count)
    };
    assert_eq!(unready(), (Err(Refused(Some(Reason::NotReady))), 0));
    for _ in 0..3 {
        handle.try_acquire().unwrap().failure();
    }
    assert_eq!(unready(), (Err(Refused(Some(Reason::CircuitOpen))), 1));
}

#[test]
fn by_hand_a_permit_and_its_success_read_no_clock_and_a_refusal_reads_it_once() {
    let handle = layer().handle();
    for _ in 0..3 {
        let count = reads::during(|| {
            handle.try_acquire().unwrap().success();
        });
        assert_eq!(count, 0);
    }
    let count = reads::during(|| {
        handle.try_acquire().unwrap().failure();
        handle.try_acquire().unwrap().record(Outcome::Neutral);
        drop(handle.try_acquire().unwrap());
        assert!(handle.would_allow());
    });
    assert_eq!(count, 0);
    handle.try_acquire().unwrap().record(Failure::fatal());
    assert_eq!(reads::during(|| drop(handle.try_acquire().unwrap_err())), 1);
    assert_eq!(reads::during(|| assert!(!handle.would_allow())), 1);
}

#[test]
fn per_key_a_success_reads_no_clock_once_its_circuit_is_made_and_a_refusal_reads_it_once() {
    let layer = layer().per_key(|query: &&'static str| *query, 100);
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    // A new key asks the store which circuit may go, and for that it needs the time.
    assert_eq!(call(&mut service, "a"), (Ok("a"), 1));
    for _ in 0..5 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 0));
    }
    assert_eq!(call(&mut service, "fail"), (FAILED, 1));
    assert_eq!(call(&mut service, "fail"), (FAILED, 0));
    assert_eq!(call(&mut service, "fail"), (FAILED, 1), "the trip");
    for _ in 0..5 {
        assert_eq!(call(&mut service, "fail"), (OPEN, 1));
        assert_eq!(call(&mut service, "a"), (Ok("a"), 0));
    }
    assert_eq!(
        reads::during(|| drop(handle.try_acquire("fail").unwrap_err())),
        1
    );
    let count = reads::during(|| {
        handle.try_acquire("a").unwrap().success();
    });
    assert_eq!(count, 0);
}

/// As its setter says: one at admission, and one more for a success.
#[test]
fn a_slow_call_rule_costs_one_read_a_call_and_one_more_a_success() {
    let mut service = layer().slow_call(HOUR).layer(Tool);
    for _ in 0..3 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 2));
        assert_eq!(call(&mut service, "fail"), (FAILED, 1));
    }
}

#[test]
fn a_rule_on_how_long_a_dropped_call_ran_costs_one_read_a_call_and_one_more_a_drop() {
    let layer = layer().on_cancel(Cancelled::FailureAfter(HOUR));
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    for _ in 0..3 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 1));
        assert_eq!(call(&mut service, "fail"), (FAILED, 1));
    }
    assert_eq!(reads::during(|| drop(handle.try_acquire().unwrap())), 2);
    // The other rules ask for no time.
    for rule in [Cancelled::Ignore, Cancelled::Release] {
        let handle = self::layer().on_cancel(rule).handle();
        assert_eq!(reads::during(|| drop(handle.try_acquire().unwrap())), 0);
    }
}

#[test]
fn a_circuit_that_only_observes_reads_no_clock_while_closed() {
    let mut service = layer().observe_only().layer(Tool);
    for _ in 0..3 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 0));
    }
}

#[test]
fn a_service_that_is_pending_while_open_reads_no_clock_while_closed() {
    let mut service = CircuitBreakerLayer::new()
        .when_open(WhenOpen::NotReady)
        .refuse(crate::IntoError)
        .layer(Tool);
    for _ in 0..3 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 0));
    }
}

#[test]
fn a_soft_refusal_of_a_service_that_cannot_fail_reads_the_clock_once() {
    #[derive(Debug)]
    struct Sure;
    impl Service<u8> for Sure {
        type Response = u8;
        type Error = Infallible;
        type Future = Ready<Result<u8, Infallible>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, req: u8) -> Self::Future {
            ready(Ok(req))
        }
    }
    let layer = CircuitBreakerLayer::new().refuse_with(|req: u8, _| Ok::<_, Infallible>(req + 1));
    layer.handle().force_open();
    let mut service = layer.layer(Sure);
    let count = reads::during(|| {
        assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
        let Ok(answer) = assert_ready!(task::spawn(service.call(1)).poll());
        assert_eq!(answer, 2);
    });
    assert_eq!(count, 1);
}
