//! The three layers in the shapes that are measured.

use std::time::Duration;

use http::Response;
use http_body::Body;
use tower_breaker::{CircuitBreakerLayer, EndOfBody, FallbackLayer, Refusal, TripwireLayer};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Failed, Inner, Line, Lines, POISON, Streams, ToolCall, Tools, calls, drive};

/// A cooldown that outlasts every measurement.
pub const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// How many tools the circuits by key are measured with.
pub const KEYS: usize = 1_000;

fn instead(_: u64, refusal: Refusal) -> Result<u64, Failed> {
    drop(refusal);
    Ok(0)
}

/// A closed circuit whose refusals are boxed errors: the default.
#[must_use]
pub fn closed() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .layer(Inner)
}

/// A closed circuit whose refusals are responses.
#[must_use]
pub fn closed_soft() -> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner)
}

/// A circuit that stays closed whatever fails, one call after the other.
#[must_use]
pub fn tolerant() -> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    CircuitBreakerLayer::new()
        .failure_threshold(1_000)
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner)
}

/// A tripped circuit in its cooldown that answers with a response instead.
#[must_use]
pub fn open() -> impl Service<u64, Response = u64, Error = Failed> + Clone + Send + 'static {
    let mut service = CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .refuse_with(|request: u64, refusal: Refusal| instead(request, refusal))
        .layer(Inner);
    trip(&mut service, 3);
    service
}

/// The same, named by the program's text.
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

/// The same, named at run time.
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

/// The same, refusing with the default: a boxed error.
#[must_use]
pub fn open_boxed() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    let mut service = CircuitBreakerLayer::new()
        .recovery_duration(FOREVER)
        .layer(Inner);
    trip(&mut service, 3);
    service
}

/// A circuit for each tool, room for exactly [`KEYS`].
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

/// A healthy primary with two backups.
#[must_use]
pub fn fallback() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    FallbackLayer::new("primary")
        .backup("a", Inner)
        .backup("b", Inner)
        .recovery_timeout(FOREVER)
        .layer(Inner)
}

/// A healthy primary with two backups behind the same service. What rewriting costs is the caller's.
#[must_use]
pub fn fallback_rewriting() -> impl Service<u64, Response = u64> + Clone + Send + 'static {
    FallbackLayer::rewriting("primary", |_: &mut u64, _: &str| ())
        .model("a")
        .model("b")
        .recovery_timeout(FOREVER)
        .layer(Inner)
}

/// A fence that never closes for good: every call is new, and its turns do not end.
#[must_use]
pub fn fence() -> impl Service<Line, Response = u64> + Clone + Send + 'static {
    TripwireLayer::new().max_turns(u32::MAX).layer(Lines)
}

/// The body of an ordinary call of a circuit that judges at the end of it.
///
/// # Panics
///
/// If the call is refused, for a tripwire's and a fallback's as well.
#[must_use]
pub fn body() -> impl Body + Unpin {
    body_of(CircuitBreakerLayer::new().judge(EndOfBody).layer(Streams))
}

/// The body of a probe.
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

/// The body of a turn of a healthy primary.
#[must_use]
pub fn body_of_a_turn() -> impl Body + Unpin {
    body_of(
        FallbackLayer::new("primary")
            .judge(EndOfBody)
            .layer(Streams),
    )
}

/// The body of a call inside a fence.
#[must_use]
pub fn body_in_a_fence() -> impl Body + Unpin {
    body_of(TripwireLayer::new().judge(EndOfBody).layer(Streams))
}

fn body_of<B>(mut service: impl Service<u64, Response = Response<B>>) -> B {
    let response = drive(&mut service, 7);
    response.ok().expect("admitted").into_body()
}

/// Fails `failures` calls, and makes sure that the next one is refused: an inner service would answer
/// with its request, a refusal does not.
///
/// # Panics
///
/// When the circuit is not open after them.
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

/// Makes the calls after which a service has all it will ever allocate. A service's clone makes its own handle
/// of the circuit at its second call, so that a clone for one request pays nothing for it.
#[must_use]
pub fn warm<S: Service<u64>>(mut service: S) -> S {
    calls(&mut service, 2);
    service
}
