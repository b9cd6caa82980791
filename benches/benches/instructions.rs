//! Counts instructions per call beyond the bare service, and limits them.
//!
//! Each benchmark makes [`CALLS`] calls. The printed count divided by `CALLS` is the cost of one
//! call, with the bare service. callgrind does not see into the kernel's clock page, so a clock
//! read costs only its function call here. `.ci/costs.py` counts and limits the clock reads.

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use http_body::Body;
use tower_breaker_benches::{
    Endless, Inner, Line, Lines, ToolCall, Tools, calls, calls_by_key, calls_by_turns,
    calls_of_lines, frames,
    guarded::{self, KEYS, warm},
};
use tower_service::Service;

const CALLS: u64 = 10_000;

/// What a call of each bare service costs. The limits below build on these, so they also limit the
/// bare runs.
const BARE: u64 = 10;
const BARE_BY_TURNS: u64 = 8;
const BARE_PER_KEY: u64 = 11;
const BARE_LINES: u64 = 12;
const BARE_FRAMES: u64 = 36;

/// What a run may cost beside its calls, for the start and end of its loop.
const ONCE: u64 = 1_000;

/// Limits a run of [`CALLS`] calls to this many instructions per call.
fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    // With costs by address `.ci/costs.py` can count the locked instructions.
    let mut callgrind = Callgrind::with_args(["--dump-instr=yes"]);
    callgrind
        .format([EventKind::Ir])
        .hard_limits([(EventKind::Ir, instructions * CALLS + ONCE)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

fn run<S: Service<u64>>(mut service: S) -> S {
    calls(&mut service, CALLS);
    service
}

fn run_by_turns<S: Service<u64>>(mut service: S) -> S {
    calls_by_turns(&mut service, CALLS);
    service
}

/// Services, and the calls for each of them.
type ByKey<S> = (Vec<S>, &'static [ToolCall]);

/// Makes ten services, each with its own map. The cost of a look-up depends on the map's random
/// seed, so a single map would pass the limit now and then.
fn tools<S: Service<&'static ToolCall>>(make: impl Fn() -> S) -> ByKey<S> {
    let tools = ToolCall::many(KEYS);
    let made = (0..CALLS / KEYS as u64).map(|_| {
        let mut service = make();
        calls_by_key(&mut service, tools, 2);
        service
    });
    (made.collect(), tools)
}

fn run_by_key<S: Service<&'static ToolCall>>((mut services, tools): ByKey<S>) -> ByKey<S> {
    for service in &mut services {
        calls_by_key(service, tools, 1);
    }
    (services, tools)
}

#[library_benchmark]
#[bench::success(args = (Inner), config = limit(BARE))]
fn bare<S: Service<u64>>(service: S) -> S {
    run(service)
}

#[library_benchmark]
#[bench::success_and_failure(args = (Inner), config = limit(BARE_BY_TURNS))]
fn bare_by_turns<S: Service<u64>>(service: S) -> S {
    run_by_turns(service)
}

#[library_benchmark]
#[bench::success(args = (tools(Tools::default)), config = limit(BARE_PER_KEY))]
fn bare_per_key<S: Service<&'static ToolCall>>(service: ByKey<S>) -> ByKey<S> {
    run_by_key(service)
}

#[library_benchmark]
#[bench::success(args = (warm(guarded::closed_soft())), config = limit(BARE + 50))]
#[bench::success_boxed_refusals(args = (warm(guarded::closed())), config = limit(BARE + 50))]
fn closed<S: Service<u64>>(service: S) -> S {
    run(service)
}

#[library_benchmark]
#[bench::success_and_failure(args = (warm(guarded::tolerant())), config = limit(BARE_BY_TURNS + 80))]
fn closed_by_turns<S: Service<u64>>(service: S) -> S {
    run_by_turns(service)
}

#[library_benchmark]
#[bench::no_name(args = (warm(guarded::open())), config = limit(BARE + 150))]
#[bench::static_name(args = (warm(guarded::open_named())), config = limit(BARE + 150))]
// These two are published, not promised. A name made at run time is shared, and the default
// refusal is a box.
#[bench::run_time_name(args = (warm(guarded::open_named_at_run_time())), config = limit(BARE + 400))]
#[bench::boxed(args = (warm(guarded::open_boxed())), config = limit(BARE + 800))]
fn refusal<S: Service<u64>>(service: S) -> S {
    run(service)
}

#[library_benchmark]
#[bench::success(args = (tools(guarded::by_key)), config = limit(BARE_PER_KEY + 320))]
fn per_key<S: Service<&'static ToolCall>>(service: ByKey<S>) -> ByKey<S> {
    run_by_key(service)
}

#[library_benchmark]
#[bench::primary(args = (warm(guarded::fallback())), config = limit(BARE + 80))]
#[bench::rewriting(args = (warm(guarded::fallback_rewriting())), config = limit(BARE + 80))]
fn fallback<S: Service<u64>>(service: S) -> S {
    run(service)
}

fn run_lines<S: Service<Line>>(mut service: S) -> S {
    calls_of_lines(&mut service, CALLS);
    service
}

fn warm_lines<S: Service<Line>>(mut service: S) -> S {
    calls_of_lines(&mut service, 2);
    service
}

#[library_benchmark]
#[bench::success(args = (Lines), config = limit(BARE_LINES))]
fn bare_lines<S: Service<Line>>(service: S) -> S {
    run_lines(service)
}

#[library_benchmark]
#[bench::success(args = (warm_lines(guarded::fence())), config = limit(BARE_LINES + 250))]
fn tripwire<S: Service<Line>>(service: S) -> S {
    run_lines(service)
}

fn run_frames<B: Body + Unpin>(mut body: B) -> B {
    frames(&mut body, CALLS);
    body
}

#[library_benchmark]
#[bench::frame(args = (Endless::default()), config = limit(BARE_FRAMES))]
fn bare_frames<B: Body + Unpin>(body: B) -> B {
    run_frames(body)
}

// These limits are per frame, not per call.
#[library_benchmark]
#[bench::of_a_call(args = (guarded::body()), config = limit(BARE_FRAMES + 60))]
#[bench::of_a_turn(args = (guarded::body_of_a_turn()), config = limit(BARE_FRAMES + 60))]
#[bench::in_a_fence(args = (guarded::body_in_a_fence()), config = limit(BARE_FRAMES + 60))]
#[bench::of_a_probe(args = (guarded::body_of_a_probe()), config = limit(BARE_FRAMES + 200))]
fn body<B: Body + Unpin>(body: B) -> B {
    run_frames(body)
}

library_benchmark_group!(
    name = breaker,
    benchmarks = [
        bare,
        bare_by_turns,
        bare_per_key,
        closed,
        closed_by_turns,
        refusal,
        per_key,
        fallback,
        bare_lines,
        tripwire,
        bare_frames,
        body
    ]
);

main!(library_benchmark_groups = breaker);
