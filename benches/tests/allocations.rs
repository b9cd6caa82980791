//! Tests how often a call allocates, and how much memory a circuit takes.

use tower_breaker::Refusal;
use tower_breaker_benches::{
    ToolCall,
    allocator::{Allocated, Counting, allocated},
    calls, calls_by_key, calls_by_turns, drive, frames,
    guarded::{self, KEYS, warm},
};
use tower_service::Service;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CALLS: u64 = 1_000;
const NOTHING: Allocated = Allocated {
    times: 0,
    bytes: 0,
    kept: 0,
};

/// Counts what [`CALLS`] calls allocate once the service is warm.
fn of_calls<S: Service<u64>>(service: S) -> Allocated {
    let mut service = warm(service);
    allocated(|| calls(&mut service, CALLS)).1
}

#[test]
fn the_allocator_counts() {
    let (text, counted) = allocated(|| String::from("seven"));
    assert_eq!(
        counted,
        Allocated {
            times: 1,
            bytes: 5,
            kept: 5
        }
    );
    let ((), counted) = allocated(|| drop(text));
    assert_eq!(
        counted,
        Allocated {
            times: 0,
            bytes: 0,
            kept: -5
        }
    );
}

#[test]
fn a_success_allocates_nothing() {
    assert_eq!(of_calls(guarded::closed()), NOTHING);
    assert_eq!(of_calls(guarded::closed_soft()), NOTHING);
}

#[test]
fn a_turn_of_a_healthy_primary_allocates_nothing() {
    assert_eq!(of_calls(guarded::fallback()), NOTHING);
    assert_eq!(of_calls(guarded::fallback_rewriting()), NOTHING);
}

#[test]
fn a_frame_of_a_body_allocates_nothing() {
    fn of_frames(mut body: impl http_body::Body + Unpin) -> Allocated {
        frames(&mut body, 2);
        allocated(|| frames(&mut body, CALLS)).1
    }
    assert_eq!(of_frames(guarded::body()), NOTHING);
    assert_eq!(of_frames(guarded::body_of_a_turn()), NOTHING);
    assert_eq!(of_frames(guarded::body_in_a_fence()), NOTHING);
    assert_eq!(of_frames(guarded::body_of_a_probe()), NOTHING);
}

#[test]
fn alternating_success_and_failure_allocate_nothing() {
    let mut service = warm(guarded::tolerant());
    let ((), counted) = allocated(|| calls_by_turns(&mut service, CALLS));
    assert_eq!(counted, NOTHING);
}

#[test]
fn a_soft_refusal_allocates_nothing() {
    assert_eq!(of_calls(guarded::open()), NOTHING);
    assert_eq!(of_calls(guarded::open_named()), NOTHING);
    assert_eq!(of_calls(guarded::open_named_at_run_time()), NOTHING);
}

#[test]
fn a_refusal_as_an_error_allocates_only_its_box() {
    let counted = of_calls(guarded::open_boxed());
    assert_eq!(counted.times, CALLS);
    assert_eq!(counted.bytes, CALLS * size_of::<Refusal>() as u64);
    assert_eq!(counted.kept, 0);
}

#[test]
fn a_success_of_a_known_key_allocates_nothing() {
    let tools = ToolCall::many(KEYS);
    let mut service = guarded::by_key();
    calls_by_key(&mut service, tools, 2);
    let ((), counted) = allocated(|| calls_by_key(&mut service, tools, 2));
    assert_eq!(counted, NOTHING);
}

#[test]
fn a_clone_for_one_call_allocates_nothing() {
    let service = guarded::closed();
    let ((), counted) = allocated(|| {
        for request in 0..CALLS {
            let _ = drive(&mut service.clone(), request);
        }
    });
    assert_eq!(counted, NOTHING);
}

/// Also prints the figures: run it with `--nocapture`.
#[test]
fn a_circuit_takes_little_memory() {
    let (service, one) = allocated(|| warm(guarded::closed()));
    println!(
        "one circuit, with the layer's settings and one service: {} bytes in {} allocations",
        one.kept, one.times
    );
    drop(service);

    let tools = ToolCall::many(KEYS);
    let (mut service, empty) = allocated(guarded::by_key);
    let ((), full) = allocated(|| calls_by_key(&mut service, tools, 2));
    let keys: usize = tools.iter().map(|tool| tool.name.len()).sum();
    let per_key = (full.kept - i64::try_from(keys).unwrap()) as f64 / KEYS as f64;
    println!(
        "by key: {} bytes without keys, {per_key:.0} bytes for each key beside its text",
        empty.kept
    );
    assert!(
        per_key <= 640.0,
        "{per_key:.0} bytes for each key, the limit is 640"
    );
}
