//! An agent whose tools and models go down, and the layers that keep it from failing for ever.
//!
//! ```text
//! cargo run --example agent
//! ```
//!
//! Two acts, over HTTP on loopback:
//!
//! 1. One outage, lived through twice side by side: with plain retries, and with a circuit breaker around them.
//! 2. A whole run of an agent behind all three layers: an outage of a tool and one of the model, a loop of identical calls, a run of
//!    errors, and the end of its turns.
//!
//! The times are a thirtieth of what tools and models would be given, so that it all takes some twenty seconds. It exits with an error,
//! and a line for each broken promise, if a layer did not do its work; what the servers saw is read from their own logs.
//!
//! - `server.rs`, `client.rs`: HTTP, and what both acts need around it (`../support/loopback.rs` is shared with other examples)
//! - `outage/`: the first act
//! - `run/`: the second; its stacks of layers are in `run/stacks.rs`, what happens in `run/play.rs`
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

    println!("Act 1: a tool goes down, with plain retries and with a circuit breaker\n");
    outage::play(&mut checks).await?;

    println!("\n\nAct 2: a whole run behind all three layers\n");
    run::play(&mut checks).await?;

    Ok(checks.verdict())
}
