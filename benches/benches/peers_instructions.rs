//! Counts instructions per call of this and other circuit breakers. No check depends on it.

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use tower_breaker_benches::peers::{Runner, contender};

const CALLS: u64 = 10_000;

fn closed_circuit(name: &str) -> Box<dyn Runner> {
    let mut runner = (contender(name).closed)();
    runner.run(1_000);
    runner
}

fn open_circuit(name: &str) -> Box<dyn Runner> {
    let mut runner = (contender(name).open.expect("the contender can be open"))();
    runner.run(1_000);
    runner
}

#[library_benchmark]
#[bench::success(closed_circuit("bare"))]
fn bare(mut runner: Box<dyn Runner>) -> Box<dyn Runner> {
    runner.run(CALLS);
    runner
}

#[library_benchmark]
#[bench::tower_breaker(closed_circuit("tower-breaker"))]
#[bench::tower_resilience(closed_circuit("tower-resilience"))]
#[bench::seatbelt(closed_circuit("seatbelt"))]
#[bench::failsafe(closed_circuit("failsafe"))]
#[bench::recloser(closed_circuit("recloser"))]
#[bench::loopctl(closed_circuit("loopctl"))]
fn closed(mut runner: Box<dyn Runner>) -> Box<dyn Runner> {
    runner.run(CALLS);
    runner
}

#[library_benchmark]
#[bench::tower_breaker(open_circuit("tower-breaker"))]
#[bench::tower_resilience(open_circuit("tower-resilience"))]
#[bench::seatbelt(open_circuit("seatbelt"))]
#[bench::failsafe(open_circuit("failsafe"))]
#[bench::recloser(open_circuit("recloser"))]
#[bench::loopctl(open_circuit("loopctl"))]
fn refusal(mut runner: Box<dyn Runner>) -> Box<dyn Runner> {
    runner.run(CALLS);
    runner
}

library_benchmark_group!(name = peers, benchmarks = [bare, closed, refusal]);

main!(
    config = LibraryBenchmarkConfig::default().tool({
        let mut callgrind = Callgrind::with_args(["--dump-instr=yes"]);
        callgrind.format([EventKind::Ir]);
        callgrind
    }),
    library_benchmark_groups = peers
);
