//! Permits by hand: one circuit per tool around plain functions, without a service and without a runtime.
//!
//! ```text
//! cargo run --example by_hand
//! ```

use std::thread;
use std::time::{Duration, Instant};

use tower_breaker::{
    BoxError, CircuitBreakerLayer, Event, Failure, KeyedCircuitBreakerHandle, Refusal, State,
};

/// Short, so that the example is. 30 s is the default.
const COOLDOWN: Duration = Duration::from_millis(300);

fn main() -> Result<(), BoxError> {
    // The layer is only the builder here: all that is kept of it is the handle. It is taken last.
    let tools = CircuitBreakerLayer::new()
        .failure_threshold(2)
        .recovery_duration(COOLDOWN)
        .observe(print_event)
        .per_key(|name: &String| name.as_str(), 100)
        .handle();

    println!("the search is down:");
    for _ in 0..3 {
        report(
            "search",
            ask(&tools, "search", || Err("connection refused")),
        );
    }
    assert_eq!(tools.state("search"), State::Open);

    println!("the calendar has a circuit of its own:");
    report("calendar", ask(&tools, "calendar", || Ok("free at noon")));
    assert_eq!(tools.state("calendar"), State::Closed);

    println!("the search is back, and the cooldown runs out:");
    // The oracle changes nothing, however often it is asked; the permit of the next call is the probe's.
    let deadline = Instant::now() + 10 * COOLDOWN;
    while !tools.would_allow("search") {
        if Instant::now() > deadline {
            return Err("the cooldown never ended".into());
        }
        let left = tools.snapshot("search").time_left;
        thread::sleep(left.unwrap_or(COOLDOWN));
    }
    report("search", ask(&tools, "search", || Ok("three results")));
    assert_eq!(tools.state("search"), State::Closed);

    println!("an operator takes the calendar away, and gives it back:");
    tools.force_open("calendar");
    report("calendar", ask(&tools, "calendar", || Ok("free at one")));
    tools.reset("calendar");
    report("calendar", ask(&tools, "calendar", || Ok("free at two")));
    Ok(())
}

/// Asks a tool, if its circuit lets the call through, and gives the verdict.
fn ask(
    tools: &KeyedCircuitBreakerHandle<String>,
    name: &str,
    tool: impl FnOnce() -> Result<&'static str, &'static str>,
) -> Result<&'static str, BoxError> {
    // The gate. A refusal is an error like any other, so `?` will do.
    let permit = tools.try_acquire(name)?;
    // A permit that is dropped without a verdict, by an early return for instance, is a cancelled call.
    match tool() {
        Ok(answer) => {
            permit.success();
            Ok(answer)
        }
        Err(err) => {
            // `permit.failure()` in full. `Failure` also knows rate limits, and how long the tool asked to be left alone.
            permit.record(Failure::transient());
            Err(err.into())
        }
    }
}

fn report(name: &str, result: Result<&str, BoxError>) {
    match result {
        Ok(answer) => println!("  {name}: {answer}"),
        Err(err) if Refusal::find(&*err).is_some() => println!("  {name}, not called: {err}"),
        Err(err) => println!("  {name}: error: {err}"),
    }
}

/// An observer: it runs outside every lock, on the thread of the call.
fn print_event(event: &Event<'_>) {
    let name = event.name().unwrap_or("?");
    match event {
        Event::Transition {
            from, to, reason, ..
        } => println!("    [{name}] {from} -> {to}: {reason}"),
        Event::ProbeStarted { .. } => println!("    [{name}] this call is the probe"),
        Event::Refused { refusal, .. } => println!("    [{name}] refused: {}", refusal.reason()),
        _ => {}
    }
}
