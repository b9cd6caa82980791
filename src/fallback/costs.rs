//! Tests of the cost of a turn. A clock read is the most expensive part of a turn. A healthy turn
//! writes nothing that other threads read.

use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_test::{assert_ready, assert_ready_ok, task};
use tower_layer::Layer;
use tower_service::Service;

use super::FallbackLayer;
use super::chain::Rules;
use super::gate::Gate;
use super::permit::CallPermit;
use crate::machinery::clock::{Clock, reads};
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::Environment;
use crate::machinery::sync::Arc;
use crate::vocabulary::{Cancelled, Failure, FallbackState};

/// Fails for `true`, and succeeds for `false`, at once.
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
fn only_a_rule_that_needs_the_time_a_turn_ran_costs_a_clock_read_at_admission() {
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

#[test]
fn a_success_passes_lock_free_exactly_where_it_would_change_nothing() {
    let gate = Gate::made(Environment {
        rules: Rules::new("primary".into()),
        clock: Clock::start(),
        observers: Observers::default(),
    });
    let admit = || {
        CallPermit::plain(
            Arc::clone(gate.machine_ref()),
            gate.machine_ref().machine().packed(),
        )
    };
    let mut clean = admit();
    assert_eq!(clean.name(), Some("primary"));
    assert_eq!(clean.pass().expect("it passes").name(), "primary");
    assert_eq!(clean.name(), None, "the verdict is given");
    assert!(clean.pass().is_none());
    admit().record(Failure::transient().into());
    assert!(admit().pass().is_none(), "it ends a streak");
}
