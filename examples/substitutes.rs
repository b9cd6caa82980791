//! Gives a tool a substitute: while the circuit of `search` refuses, its calls go to a mirror.
//!
//! ```text
//! cargo run --example substitutes
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{CircuitBreakerLayer, HealthRouter, State};

/// Short, so that the example ends soon. The default is 30 s.
const COOLDOWN: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
struct ToolCall {
    /// The tool, which is the key of its circuit.
    name: String,
    query: &'static str,
}

/// Which tools are up.
#[derive(Default)]
struct World {
    search: AtomicBool,
    mirror: AtomicBool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let world = Arc::new(World::default());
    world.mirror.store(true, Ordering::Relaxed);

    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(2)
        .recovery_duration(COOLDOWN)
        .per_key(|call: &ToolCall| call.name.as_str(), 100)
        .substitute(
            HealthRouter::new().route("search", ["search-mirror"]),
            |call: &mut ToolCall, name: &str| name.clone_into(&mut call.name),
        );
    let circuits = breaker.handle();
    let outside = Arc::clone(&world);
    let tools = ServiceBuilder::new()
        .layer(breaker)
        .service(service_fn(move |call: ToolCall| {
            let world = Arc::clone(&outside);
            async move {
                // Like a real call, this one takes a moment.
                sleep(Duration::from_millis(10)).await;
                run(&world, &call)
            }
        }));

    println!("the search is down, and its first calls fail:");
    for _ in 0..2 {
        show(&search(tools.clone()).await);
    }

    println!("the circuit of the search is open, so the mirror answers:");
    assert_eq!(circuits.state("search"), State::Open);
    assert_eq!(circuits.resolve("search"), Some("search-mirror"));
    show(&search(tools.clone()).await);

    println!(
        "the search works again; of four parallel calls one is the probe, the mirror takes the rest:"
    );
    world.search.store(true, Ordering::Relaxed);
    let due = async {
        // Asking changes nothing. Only a call can become the probe.
        while !circuits.would_allow("search") {
            sleep(circuits.snapshot("search").time_left.unwrap_or_default()).await;
        }
    };
    timeout(10 * COOLDOWN, due).await?;
    let crowd = join_all((0..4).map(|_| search(tools.clone()))).await;
    crowd.iter().for_each(show);
    let probes = crowd
        .iter()
        .flatten()
        .filter(|answer| answer.starts_with("`search` "));
    assert_eq!((crowd.iter().flatten().count(), probes.count()), (4, 1));
    assert_eq!(circuits.state("search"), State::Closed);

    println!("an operator opens both circuits; the refusal names the tool that was called:");
    circuits.force_open("search");
    circuits.force_open("search-mirror");
    show(&search(tools).await);
    Ok(())
}

/// Runs a tool.
fn run(world: &World, call: &ToolCall) -> Result<String, BoxError> {
    let up = match call.name.as_str() {
        "search" => &world.search,
        _ => &world.mirror,
    };
    if up.load(Ordering::Relaxed) {
        Ok(format!(
            "`{}` found three pages about {}",
            call.name, call.query
        ))
    } else {
        Err("connection refused".into())
    }
}

/// Calls `search`. The caller does not know of the mirror.
async fn search<S>(tools: S) -> Result<String, BoxError>
where
    S: Service<ToolCall, Response = String, Error = BoxError>,
{
    let call = ToolCall {
        name: "search".to_owned(),
        query: "circuits",
    };
    tools.oneshot(call).await
}

fn show(result: &Result<String, BoxError>) {
    match result {
        Ok(answer) => println!("  {answer}"),
        Err(err) => println!("  error: {err}"),
    }
}
