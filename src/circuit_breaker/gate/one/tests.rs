//! How long the answer of `poll_ready` holds, and how often the clock is read for it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::advance;
use tokio_test::{assert_ready, assert_ready_ok, task};
use tower_layer::Layer;
use tower_service::Service;

use crate::machinery::clock::reads;
use crate::{CircuitBreakerHandle, CircuitBreakerLayer, Event, Failure, Permit, Reason, Refusal};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Tool;

impl Service<()> for Tool {
    type Response = Option<Refusal>;
    type Error = Infallible;
    type Future = Ready<Result<Option<Refusal>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(None))
    }
}

/// Polls the service of an open circuit ready, runs `between`, and calls the service. Answers with
/// the refusal, and with how often the call read the clock.
fn refused(
    cooldown: Duration,
    between: impl FnOnce(&CircuitBreakerHandle, Permit),
) -> (Refusal, u64) {
    let layer = CircuitBreakerLayer::new();
    refused_by(layer.recovery_duration(cooldown), between)
}

fn refused_by(
    layer: CircuitBreakerLayer,
    between: impl FnOnce(&CircuitBreakerHandle, Permit),
) -> (Refusal, u64) {
    let layer = layer.refuse_with(|(), refusal| Ok(Some(refusal)));
    let handle = layer.handle();
    let late = handle.try_acquire().unwrap();
    for _ in 0..3 {
        handle.try_acquire().unwrap().failure();
    }
    let mut service = layer.layer(Tool);
    assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
    between(&handle, late);
    let mut answer = None;
    let count = reads::during(|| {
        let Ok(refusal) = assert_ready!(task::spawn(service.call(())).poll());
        answer = refusal;
    });
    (answer.expect("refused"), count)
}

fn reason_and_wait(refusal: &Refusal) -> (Reason, Option<Duration>) {
    (refusal.reason(), refusal.retry_after())
}

#[tokio::test(start_paused = true)]
async fn a_refusal_repeats_the_answer_of_poll_ready_without_reading_the_clock() {
    let (refusal, count) = refused(30 * SECOND, |_, late| drop(late));
    assert_eq!(
        reason_and_wait(&refusal),
        (Reason::CircuitOpen, Some(30 * SECOND))
    );
    assert_eq!(refusal.last_failure(), Some(Failure::transient().kind()));
    assert_eq!(count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_that_moved_since_poll_ready_is_read_anew() {
    let layer = CircuitBreakerLayer::new();
    let observed = layer.clone().observe(|_: &Event<'_>| ());
    for layer in [layer, observed] {
        let (refusal, count) = refused_by(layer, |_, late| {
            late.record(Failure::rate_limited().with_retry_after(60 * SECOND));
        });
        assert_eq!(
            reason_and_wait(&refusal),
            (Reason::CircuitOpen, Some(60 * SECOND))
        );
        assert_eq!(refusal.last_failure(), Some(Failure::rate_limited().kind()));
        assert_eq!(count, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_is_no_longer_open_is_asked_anew() {
    // A cooldown without end has the same deadline as a closed or pinned circuit.
    for cooldown in [30 * SECOND, Duration::MAX] {
        let (refusal, _) = refused(cooldown, |handle, _| handle.force_open());
        assert_eq!(reason_and_wait(&refusal), (Reason::ForcedOpen, None));
        let (refusal, _) = refused(cooldown, |handle, _| handle.reset());
        assert_eq!(
            reason_and_wait(&refusal),
            (Reason::NotReady, Some(Duration::ZERO))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_less_than_a_second_left_is_not_held() {
    let milli = Duration::from_millis(1);
    for (left, reason) in [
        (SECOND, Reason::CircuitOpen),
        (SECOND.saturating_sub(milli), Reason::NotReady),
    ] {
        let layer = CircuitBreakerLayer::new()
            .recovery_duration(left)
            .refuse_with(|(), refusal| Ok(Some(refusal)));
        let handle = layer.handle();
        let mut service = layer.layer(Tool);
        for _ in 0..3 {
            handle.try_acquire().unwrap().failure();
        }
        assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
        advance(SECOND).await;
        let Ok(answer) = assert_ready!(task::spawn(service.call(())).poll());
        assert_eq!(answer.map(|refusal| refusal.reason()), Some(reason));
    }
}
