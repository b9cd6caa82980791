//! How often a call reads the clock. No other thing that a call may do costs as much.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_test::{assert_ready, assert_ready_ok, task};
use tower_layer::Layer;
use tower_service::Service;

use super::{Cancelled, CircuitBreakerLayer, WhenOpen};
use crate::machinery::clock::reads;
use crate::vocabulary::{Event, Failure, Outcome, Reason, Refusal, State};

const HOUR: Duration = Duration::from_secs(3_600);

/// Answers at once with its request, and fails for `"fail"`.
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

/// The tool's error. It holds a reason if the call was refused.
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

/// Makes one call, from readiness to its answer. Answers with the answer, and with how often the
/// clock was read.
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
    // The second call makes a reference count for the service, and reads no clock for it either.
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

    // While a probe is in flight, and while the circuit is pinned.
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
fn an_observed_refusal_reads_the_clock_once() {
    let layer = layer().observe(|_: &Event<'_>| ()).name("search");
    let handle = layer.handle();
    for _ in 0..3 {
        handle.try_acquire().unwrap().failure();
    }
    assert_eq!(call(&mut layer.layer(Tool), "a"), (OPEN, 1));
}

/// Less than a second is left, so `call` does not use the answer of `poll_ready`.
#[test]
fn a_refusal_with_less_than_a_second_left_reads_the_clock_twice() {
    let layer = layer().recovery_duration(Duration::from_millis(900));
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    for _ in 0..3 {
        handle.try_acquire().unwrap().failure();
    }
    let (answer, count) = call(&mut service, "a");
    // If the system suspended this thread for longer than the cooldown, the call was the probe.
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
fn a_permit_by_hand_reads_no_clock_and_a_refusal_reads_it_once() {
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
fn per_key_a_success_reads_no_clock_but_for_a_new_key_and_a_refusal_reads_it_once() {
    let layer = layer().per_key(|query: &&'static str| *query, 100);
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    // For a new key the store looks for a circuit to evict, and needs the time for it.
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

/// The setter documents it: one read at admission, and one more for a success.
#[test]
fn a_slow_call_limit_costs_one_read_for_each_call_and_one_more_for_each_success() {
    let mut service = layer().slow_call(HOUR).layer(Tool);
    for _ in 0..3 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 2));
        assert_eq!(call(&mut service, "fail"), (FAILED, 1));
    }
}

#[test]
fn failure_after_costs_one_read_for_each_call_and_one_more_for_each_drop() {
    let layer = layer().on_cancel(Cancelled::FailureAfter(HOUR));
    let handle = layer.handle();
    let mut service = layer.layer(Tool);
    for _ in 0..3 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 1));
        assert_eq!(call(&mut service, "fail"), (FAILED, 1));
    }
    assert_eq!(reads::during(|| drop(handle.try_acquire().unwrap())), 2);
    // The other rules need no time.
    for rule in [Cancelled::Ignore, Cancelled::Release] {
        let handle = self::layer().on_cancel(rule).handle();
        assert_eq!(reads::during(|| drop(handle.try_acquire().unwrap())), 0);
    }
}

#[test]
fn a_circuit_with_observe_only_reads_no_clock_while_closed() {
    let mut service = layer().observe_only().layer(Tool);
    for _ in 0..3 {
        assert_eq!(call(&mut service, "a"), (Ok("a"), 0));
    }
}

#[test]
fn a_service_with_not_ready_reads_no_clock_while_closed() {
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
    struct Echo;
    impl Service<u8> for Echo {
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
    let mut service = layer.layer(Echo);
    let count = reads::during(|| {
        assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
        let Ok(answer) = assert_ready!(task::spawn(service.call(1)).poll());
        assert_eq!(answer, 2);
    });
    assert_eq!(count, 1);
}
