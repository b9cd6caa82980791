//! The three layers in the forms that are measured.

use std::time::Duration;

use http::Response;
use http_body::Body;
use tower_breaker::{CircuitBreakerLayer, EndOfBody, FallbackLayer, Refusal, TripwireLayer};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Failed, Inner, Line, Lines, POISON, Streams, ToolCall, Tools, calls, drive};

/// A cooldown that outlasts every measurement.
pub const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// How many tools there are in the measurements of circuits by key.
pub const KEYS: usize = 1_000;

fn instead(_: u64, refusal: Refusal) -> Result<u64, Failed> {
    drop(refusal);
    Ok(0)
}

/// Makes a closed circuit whose refusals are boxed errors, the default.
#[must_use]
pub fn closed() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .layer(Inner)
}

/// Makes a closed circuit whose refusals are responses.
#[must_use]
pub fn closed_soft() -> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner)
}

/// Makes a circuit that stays closed while success and failure alternate.
#[must_use]
pub fn tolerant() -> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    CircuitBreakerLayer::new()
        .failure_threshold(1_000)
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner)
}

/// Makes an open circuit that refuses with a response.
#[must_use]
pub fn open() -> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    let mut service = CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner);
    trip(&mut service, 3);
    service
}

/// Makes the same open circuit with a static name.
#[must_use]
pub fn open_named() -> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    let mut service = CircuitBreakerLayer::new()
        .name("search")
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner);
    trip(&mut service, 3);
    service
}

/// Makes the same open circuit with a name made at run time.
#[must_use]
pub fn open_named_at_run_time()
-> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    let mut service = CircuitBreakerLayer::new()
        .name(String::from("search"))
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner);
    trip(&mut service, 3);
    service
}

/// Makes an open circuit that refuses with the default, a boxed error.
#[must_use]
pub fn open_boxed() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    let mut service = CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .layer(Inner);
    trip(&mut service, 3);
    service
}

/// Makes one circuit for each tool, with a capacity of exactly [`KEYS`].
#[must_use]
pub fn by_key()
-> impl Service<&'static ToolCall, Response = u64, Error = Failed> + Clone + Send + 'static {
    CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .per_key(|call: &&'static ToolCall| call.name.as_str(), KEYS)
        .refuse_with(
            |_: &'static ToolCall, refusal: Refusal| -> Result<u64, Failed> {
                drop(refusal);
                Ok(0)
            },
        )
        .layer(Tools)
}

/// Makes a healthy primary with two backups.
#[must_use]
pub fn fallback() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    FallbackLayer::new("primary")
        .backup("a", Inner)
        .backup("b", Inner)
        .recovery_timeout(FOREVER)
        .layer(Inner)
}

/// Makes a healthy primary with two backups behind the same service. Rewriting itself costs
/// nothing here.
#[must_use]
pub fn fallback_rewriting() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    FallbackLayer::rewriting("primary", |_: &mut u64, _: &str| ())
        .model("a")
        .model("b")
        .recovery_timeout(FOREVER)
        .layer(Inner)
}

/// Makes a fence that never trips: every call is new, and its turns do not end.
#[must_use]
pub fn fence() -> impl Service<Line, Response = u64> + Clone + Send + 'static {
    TripwireLayer::new().max_turns(u32::MAX).layer(Lines)
}

/// Makes the body of an ordinary call, with a circuit that judges at its end.
///
/// # Panics
///
/// If the call is refused. This holds for the other bodies too.
#[must_use]
pub fn body() -> impl Body + Unpin {
    body_of(CircuitBreakerLayer::new().judge(EndOfBody).layer(Streams))
}

/// Makes the body of a probe.
#[must_use]
pub fn body_of_a_probe() -> impl Body + Unpin {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(Duration::ZERO)
        .probe_timeout(FOREVER)
        .judge(EndOfBody);
    let mut service = layer.layer(Streams);
    assert!(drive(&mut service, POISON).is_err());
    body_of(service)
}

/// Makes the body of a turn of a healthy primary.
#[must_use]
pub fn body_of_a_turn() -> impl Body + Unpin {
    body_of(
        FallbackLayer::new("primary")
            .judge(EndOfBody)
            .layer(Streams),
    )
}

/// Makes the body of a call inside a fence.
#[must_use]
pub fn body_in_a_fence() -> impl Body + Unpin {
    body_of(TripwireLayer::new().judge(EndOfBody).layer(Streams))
}

fn body_of<B>(mut service: impl Service<u64, Response = Response<B>>) -> B {
    let response = drive(&mut service, 7);
    response.ok().expect("admitted").into_body()
}

/// Fails `failures` calls, and asserts that the next one is refused. The inner service would
/// answer with its request, and a refusal does not.
///
/// # Panics
///
/// If the circuit is not open afterwards.
pub fn trip<S: Service<u64, Response = u64>>(service: &mut S, failures: u64) {
    for _ in 0..failures {
        let _ = drive(service, POISON);
    }
    assert_ne!(
        drive(service, 7).ok(),
        Some(7),
        "the circuit is open after {failures} failures"
    );
}

/// Makes the two calls after which a service allocates no more. A cloned service makes its own
/// handle of the circuit at its second call. So a clone for one request does not pay for it.
#[must_use]
pub fn warm<S: Service<u64>>(mut service: S) -> S {
    calls(&mut service, 2);
    service
}
