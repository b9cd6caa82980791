//! How often a turn reads the clock, which is the dearest thing that it may do.

use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_test::{assert_ready, assert_ready_ok, task};
use tower_layer::Layer;
use tower_service::Service;

use super::FallbackLayer;
use crate::clock::reads;
use crate::event::FallbackState;
use crate::outcome::Cancelled;

/// Fails for `true`, and answers anything else at once.
#[derive(Clone, Debug)]
struct Model;

impl Service<bool> for Model {
    type Response = ();
    type Error = &'static str;
    type Future = Ready<Result<(), &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, fail: bool) -> Self::Future {
        ready(if fail { Err("down") } else { Ok(()) })
    }
}

/// How often a turn reads the clock, from readiness to its answer.
fn turn<S: Service<bool, Response = ()>>(service: &mut S, fail: bool) -> u64 {
    reads::during(|| {
        let readied = task::spawn(()).enter(|cx, _| service.poll_ready(cx).map_err(|_| ()));
        assert_ready_ok!(readied);
        let answer = assert_ready!(task::spawn(service.call(fail)).poll());
        assert_eq!(answer.is_err(), fail);
    })
}

#[test]
fn a_healthy_primary_reads_no_clock_for_a_success_and_none_for_a_failure_below_the_threshold() {
    let layer = FallbackLayer::new("primary").backup("a", Model);
    let mut service = layer.layer(Model);
    for _ in 0..5 {
        assert_eq!(turn(&mut service, false), 0);
        assert_eq!(turn(&mut service, true), 0);
        assert_eq!(turn(&mut service, true), 0);
    }
    assert_eq!(turn(&mut service, false), 0);
    assert_eq!(layer.handle().state(), FallbackState::Primary);
}

#[test]
fn only_a_rule_that_asks_how_long_a_turn_ran_costs_a_clock_read_at_admission() {
    for (rule, reads) in [
        (Cancelled::Failure, 0),
        (Cancelled::FailureAfter(Duration::from_secs(1)), 1),
    ] {
        let layer = FallbackLayer::new("primary").on_cancel(rule);
        let mut service = layer.layer(Model);
        for _ in 0..5 {
            assert_eq!(turn(&mut service, false), reads, "{rule:?}");
        }
    }
}
