//! Runs an agent whose tools and models go down, behind the layers of this crate.
//!
//! ```text
//! cargo run --example agent
//! ```
//!
//! Two acts, over HTTP on loopback:
//!
//! 1. Two agents meet the same outage: one with plain retries, one with a circuit breaker around
//!    them.
//! 2. One agent runs behind all three layers. It meets an outage of a tool, an outage of the
//!    model, a loop of identical calls, a series of errors, and the end of its turns.
//!
//! All times are a thirtieth of realistic ones, so the program takes about twenty seconds. If a
//! layer breaks a promise, the program prints it and exits with an error. The checks read what the
//! servers saw from the servers' own logs.
//!
//! - `server.rs`, `client.rs`: HTTP, for both acts (`../support/loopback.rs` serves other examples
//!   too)
//! - `outage/`: the first act
//! - `run/`: the second act; `run/stacks.rs` has its layers, `run/play.rs` its scenes
//! - `checks.rs`: the promises

mod checks;
mod client;
#[path = "../support/loopback.rs"]
mod loopback;
mod outage;
mod run;
mod server;

use std::process::ExitCode;

use tower::BoxError;

use crate::checks::Checks;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, BoxError> {
    let mut checks = Checks::default();

    println!("Act 1: an outage of a tool, with plain retries and with a circuit breaker\n");
    outage::play(&mut checks).await?;

    println!("\n\nAct 2: a whole run behind all three layers\n");
    run::play(&mut checks).await?;

    Ok(checks.verdict())
}
