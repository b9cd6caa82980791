//! Compares the wall-clock time of a call with other circuit breakers. No check depends on it.
//!
//! Times are minima of interleaved runs, so a busy moment of the machine affects all contenders
//! alike. Two threads are compared only with themselves: on one circuit, and on one circuit each.
//! Plain arithmetic is the control. It shows whether the two threads have two processors.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::Handle;
use tower_breaker_benches::{
    allocator::{Counting, allocated},
    peers::{CONTENDERS, Contender, Runner},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CALLS: u64 = 100_000;
const ROUNDS: usize = 40;

/// How many calls each of two threads makes.
const CALLS_EACH: u64 = 20_000;

/// How long two threads are measured, after a few rounds.
const PATIENCE: Duration = Duration::from_secs(3);

type Make = fn() -> Box<dyn Runner>;

#[derive(Clone, Copy)]
struct Cost {
    time: Duration,
    allocations: f64,
}

impl Cost {
    fn nanoseconds(self) -> f64 {
        self.time.as_secs_f64() * 1e9 / CALLS as f64
    }
}

/// Measures the contenders on one thread, with interleaved rounds.
fn one_thread(contenders: &[(&'static str, Make)]) -> Vec<Cost> {
    let mut runners: Vec<_> = contenders.iter().map(|(_, make)| make()).collect();
    let mut costs: Vec<_> = runners
        .iter_mut()
        .map(|runner| {
            runner.run(CALLS);
            let ((), counted) = allocated(|| runner.run(CALLS));
            Cost {
                time: Duration::MAX,
                allocations: counted.times as f64 / CALLS as f64,
            }
        })
        .collect();
    for _ in 0..ROUNDS {
        for (runner, cost) in runners.iter_mut().zip(&mut costs) {
            let start = Instant::now();
            runner.run(CALLS);
            cost.time = cost.time.min(start.elapsed());
        }
    }
    costs
}

fn table(title: &str, contenders: &[(&'static str, Make)], ours: &str) {
    let costs = one_thread(contenders);
    let bare = costs[0].nanoseconds();
    let of_ours = contenders
        .iter()
        .position(|(name, _)| *name == ours)
        .map(|at| costs[at].nanoseconds());
    println!("\n{title}, one thread");
    println!(
        "{:<28} {:>10} {:>12} {:>12} {:>12}",
        "", "ns a call", "beyond bare", "allocations", "times ours"
    );
    for ((name, _), cost) in contenders.iter().zip(&costs) {
        let ratio = of_ours.map_or(f64::NAN, |ours| cost.nanoseconds() / ours);
        println!(
            "{name:<28} {:>10.1} {:>12.1} {:>12.2} {ratio:>12.2}",
            cost.nanoseconds(),
            cost.nanoseconds() - bare,
            cost.allocations,
        );
    }
}

/// Returns how long both take, from the first start to the last end.
fn both(runtime: &Handle, first: impl FnOnce() + Send, second: impl FnOnce() + Send) -> Duration {
    fn timed(runtime: &Handle, barrier: &Barrier, work: impl FnOnce()) -> (Instant, Instant) {
        // One peer sleeps when its lock is taken, which needs a runtime's clock.
        let _entered = runtime.enter();
        barrier.wait();
        let start = Instant::now();
        work();
        (start, Instant::now())
    }

    let barrier = Barrier::new(2);
    let ((start, end), (another_start, another_end)) = thread::scope(|scope| {
        let other = scope.spawn(|| timed(runtime, &barrier, second));
        let own = timed(runtime, &barrier, first);
        (own, other.join().expect("a measured call does not panic"))
    });
    end.max(another_end) - start.min(another_start)
}

/// Returns the throughput of two threads on one circuit, divided by that on one circuit each.
fn shared(runtime: &Handle, make: Make) -> f64 {
    let (mut one, mut own) = (make(), make());
    let mut another = one.another();
    let (mut together, mut apart) = (Duration::MAX, Duration::MAX);
    let start = Instant::now();
    for round in 0..ROUNDS {
        let (first, second) = (|| one.run(CALLS_EACH), || another.run(CALLS_EACH));
        together = together.min(both(runtime, first, second));
        let (first, second) = (|| one.run(CALLS_EACH), || own.run(CALLS_EACH));
        apart = apart.min(both(runtime, first, second));
        // One peer sleeps a millisecond each time its lock is taken.
        if round >= 3 && start.elapsed() > PATIENCE {
            break;
        }
    }
    apart.as_secs_f64() / together.as_secs_f64()
}

/// Returns the throughput of each of two threads that share nothing, divided by that of one
/// thread.
fn control(runtime: &Handle) -> f64 {
    fn arithmetic() {
        let mut number = black_box(1_u64);
        for _ in 0..20 * CALLS {
            number = black_box(
                number
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1),
            );
        }
    }
    let (mut alone, mut two) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        arithmetic();
        alone = alone.min(start.elapsed());
        two = two.min(both(runtime, arithmetic, arithmetic));
    }
    alone.as_secs_f64() / two.as_secs_f64()
}

fn main() {
    // `cargo test --benches` runs this too, but there is nothing to test.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }

    let ours = "tower-breaker";
    let closed: Vec<(_, Make)> = CONTENDERS.iter().map(|c| (c.name, c.closed)).collect();
    let bare: (_, Make) = (CONTENDERS[0].name, CONTENDERS[0].closed);
    let open: Vec<(_, Make)> = std::iter::once(bare)
        .chain(CONTENDERS.iter().filter_map(|c| Some((c.name, c.open?))))
        .collect();
    table("closed, success", &closed, ours);
    table("open, refusal", &open, ours);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime starts");
    let runtime = runtime.handle();
    println!("\nthroughput of two threads on one circuit, against one circuit each");
    println!("{:<28} {:>10} {:>10}", "", "success", "refusal");
    let control = control(runtime);
    println!(
        "{:<28} {control:>10.2} {control:>10.2}",
        "(control: arithmetic)"
    );
    for Contender {
        name, closed, open, ..
    } in &CONTENDERS[1..]
    {
        let success = shared(runtime, *closed);
        let refusal = open.map_or(f64::NAN, |open| shared(runtime, open));
        println!("{name:<28} {success:>10.2} {refusal:>10.2}");
    }

    println!("\nThese guard a call, not a service, and keep no permit during it:");
    for Contender { name, .. } in CONTENDERS.iter().filter(|contender| !contender.service) {
        println!("  {name}");
    }
}
