//! Takes permits by hand: one circuit per tool around plain functions, without a service or a
//! runtime.
//!
//! ```text
//! cargo run --example by_hand
//! ```

use std::thread;
use std::time::{Duration, Instant};

use tower_breaker::{
    BoxError, CircuitBreakerLayer, Event, Failure, KeyedCircuitBreakerHandle, Refusal, State,
};

/// Short, so that the example ends soon. The default is 30 s.
const COOLDOWN: Duration = Duration::from_millis(300);

fn main() -> Result<(), BoxError> {
    // The layer is only the builder here. Take the handle last: every setter makes a new circuit.
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

    println!("the search works again, and the cooldown ends:");
    // Asking the oracle changes nothing. The next call gets the permit of the probe.
    let deadline = Instant::now() + 10 * COOLDOWN;
    while !tools.would_allow("search") {
        if Instant::now() > deadline {
            return Err("the cooldown of `search` did not end in 3 s".into());
        }
        let left = tools.snapshot("search").time_left;
        thread::sleep(left.unwrap_or(COOLDOWN));
    }
    report("search", ask(&tools, "search", || Ok("three results")));
    assert_eq!(tools.state("search"), State::Closed);

    println!("an operator opens the circuit of the calendar, and resets it:");
    tools.force_open("calendar");
    report("calendar", ask(&tools, "calendar", || Ok("free at one")));
    tools.reset("calendar");
    report("calendar", ask(&tools, "calendar", || Ok("free at two")));
    Ok(())
}

/// Calls a tool if its circuit admits the call, and gives the verdict.
fn ask(
    tools: &KeyedCircuitBreakerHandle<String>,
    name: &str,
    tool: impl FnOnce() -> Result<&'static str, &'static str>,
) -> Result<&'static str, BoxError> {
    // The gate. A refusal is an error, so `?` passes it on.
    let permit = tools.try_acquire(name)?;
    // A permit that is dropped without a verdict, for example by an early return, is a cancelled
    // call.
    match tool() {
        Ok(answer) => {
            permit.success();
            Ok(answer)
        }
        Err(err) => {
            // The same as `permit.failure()`. A `Failure` can also be a rate limit, or carry the
            // wait that the tool asked for.
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

/// An observer. It runs outside every lock, on the call's thread.
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
