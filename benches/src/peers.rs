//! Other circuit breakers around the same inner service. As far as they can, they do the same:
//! trip on failures, and refuse for longer than any measurement lasts.
//!
//! Some are `tower` services, and are driven like ours. Others guard a call, and the bare service
//! is driven inside it.

use std::{sync::Arc, task::Waker};

use failsafe::CircuitBreaker as _;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::{
    Failed, Inner, POISON, drive,
    guarded::{self, FOREVER},
};

/// Makes calls through its own handle of a circuit.
pub trait Runner: Send {
    /// Makes `calls` calls one after the other.
    fn run(&mut self, calls: u64);

    /// Makes another handle of the same circuit, for another thread.
    fn another(&self) -> Box<dyn Runner>;
}

#[derive(Clone)]
struct Each<F>(F);

impl<F> Runner for Each<F>
where
    F: FnMut(u64) -> Option<u64> + Clone + Send + 'static,
{
    fn run(&mut self, calls: u64) {
        for request in 0..calls {
            let _ = (self.0)(request);
        }
    }

    fn another(&self) -> Box<dyn Runner> {
        Box::new(self.clone())
    }
}

/// One circuit breaker, or the bare service.
pub struct Contender {
    pub name: &'static str,
    /// Whether it is a `tower` service.
    pub service: bool,
    /// Makes a new closed circuit.
    pub closed: fn() -> Box<dyn Runner>,
    /// Makes a new open circuit. The bare service has none.
    pub open: Option<fn() -> Box<dyn Runner>>,
}

/// All contenders: the bare service first, ours second.
pub const CONTENDERS: &[Contender] = &[
    Contender {
        name: "bare",
        service: true,
        closed: || boxed(service(Inner)),
        open: None,
    },
    Contender {
        name: "tower-breaker",
        service: true,
        closed: || boxed(service(guarded::closed_soft())),
        open: Some(|| boxed(service(guarded::open()))),
    },
    Contender {
        name: "tower-breaker, BoxError",
        service: true,
        closed: || boxed(service(guarded::closed())),
        open: Some(|| boxed(service(guarded::open_boxed()))),
    },
    Contender {
        name: "tower-resilience 0.14",
        service: true,
        closed: || boxed(tower_resilience()),
        open: Some(|| tripped(tower_resilience())),
    },
    Contender {
        name: "seatbelt 0.11",
        service: true,
        closed: || boxed(seatbelt()),
        open: Some(|| tripped(seatbelt())),
    },
    Contender {
        name: "failsafe 1.3",
        service: false,
        closed: || boxed(failsafe()),
        open: Some(|| tripped(failsafe())),
    },
    Contender {
        name: "recloser 1.4",
        service: false,
        closed: || boxed(recloser()),
        open: Some(|| tripped(recloser())),
    },
    Contender {
        name: "loopctl 0.2",
        service: false,
        closed: || boxed(loopctl()),
        open: Some(|| tripped(loopctl())),
    },
];

/// Returns the contender whose name starts with `name`.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn contender(name: &str) -> &'static Contender {
    CONTENDERS
        .iter()
        .find(|contender| contender.name.starts_with(name))
        .unwrap_or_else(|| panic!("no contender is called {name}: choose one of `CONTENDERS`"))
}

fn boxed<F>(call: F) -> Box<dyn Runner>
where
    F: FnMut(u64) -> Option<u64> + Clone + Send + 'static,
{
    Box::new(Each(call))
}

fn tripped<F>(mut call: F) -> Box<dyn Runner>
where
    F: FnMut(u64) -> Option<u64> + Clone + Send + 'static,
{
    for _ in 0..200 {
        let _ = call(POISON);
    }
    assert_eq!(call(7), None, "the circuit is open");
    boxed(call)
}

fn service<S>(mut service: S) -> impl FnMut(u64) -> Option<u64> + Clone + Send + 'static
where
    S: Service<u64, Response = u64> + Clone + Send + 'static,
{
    move |request| drive(&mut service, request).ok()
}

fn tower_resilience() -> impl FnMut(u64) -> Option<u64> + Clone + Send + 'static {
    let layer = tower_resilience_circuitbreaker::CircuitBreakerLayer::builder()
        .consecutive_failures(3)
        .wait_duration_in_open(FOREVER)
        .build()
        .expect("the settings are valid");
    service(layer.layer(Inner))
}

fn seatbelt() -> impl FnMut(u64) -> Option<u64> + Clone + Send + 'static {
    use seatbelt::{RecoveryInfo, ResilienceContext, breaker::Breaker};

    let (clock, _) = tick::runtime::InactiveClock::new_shared().activate(Waker::noop().clone());
    let context = ResilienceContext::new(&clock);
    let layer = Breaker::layer("breaker", &context)
        .recovery_with(|result: &Result<u64, Failed>, _| match result {
            Ok(_) => RecoveryInfo::never(),
            Err(_) => RecoveryInfo::retry(),
        })
        .rejected_input_error(|_: u64, _| Failed)
        .break_duration(FOREVER);
    service(layer.layer(Inner))
}

fn failsafe() -> impl FnMut(u64) -> Option<u64> + Clone + Send + 'static {
    let breaker = failsafe::Config::new()
        .failure_policy(failsafe::failure_policy::consecutive_failures(
            3,
            failsafe::backoff::constant(FOREVER),
        ))
        .build();
    move |request| breaker.call(|| drive(&mut Inner, request)).ok()
}

fn recloser() -> impl FnMut(u64) -> Option<u64> + Clone + Send + 'static {
    let breaker = Arc::new(recloser::Recloser::custom().open_wait(FOREVER).build());
    move |request| breaker.call(|| drive(&mut Inner, request)).ok()
}

fn loopctl() -> impl FnMut(u64) -> Option<u64> + Clone + Send + 'static {
    let breaker = Arc::new(loopctl::tool::health::ToolCircuitBreaker::new(FOREVER, 3));
    move |request| {
        if !breaker.allow_request() {
            return None;
        }
        let result = drive(&mut Inner, request);
        match result {
            Ok(_) => breaker.record_success(),
            Err(_) => breaker.record_failure(),
        }
        result.ok()
    }
}
