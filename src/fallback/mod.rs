//! A model breaker with a chain of backups: routes to the chain while the primary is down, until probes have proved it.
//!
//! ```text
//!                trip_threshold failures in a row,
//!                or a fatal one
//!   ┌─────────┐ ───────────────────────────────────► ┌──────────┐
//!   │ Primary │                                      │ Fallback │ ◄─┐
//!   └─────────┘                                      └──────────┘   │ a probe is rate limited
//!        ▲                                              │           │ or fatal, or the
//!        │ recovery_successes_needed        a turn, when│           │ probation_limit-th in a row
//!        │ probes succeed in a row          the cooldown            │ fails or outlives its lease
//!        │                                  is over     ▼           │
//!        │                                           ┌────────────┐ │
//!        └────────────────────────────────────────── │ Recovering │─┘
//!                                                    └────────────┘
//!                                                      ▲        │ a probe fails transiently,
//!                                                      └────────┘ or outlives its lease: the
//!                                                                 count of successes is zeroed
//! ```
//!
//! # The table
//!
//! | state | event | what happens |
//! | --- | --- | --- |
//! | Primary | success | the consecutive failures = 0 |
//! | Primary | failure | + 1; at `trip_threshold` → Fallback: the cooldown starts, [`on_fallback`](FallbackLayer::on_fallback) is called. A fatal one trips at once |
//! | Fallback | a turn | the first entry that is not failed serves it |
//! | Fallback | a turn, cooldown over | → Recovering first |
//! | Fallback | a turn, no entry is live | refused ([`Reason::FallbackExhausted`](crate::Reason::FallbackExhausted)), with the time until the primary is probed |
//! | Fallback | a backup fails | that entry's strikes + 1, at `max_fail_count` its budget is spent; a success changes nothing |
//! | Fallback | stale failure of the primary | the cooldown restarts from now |
//! | Recovering | a turn | it is the probe, and goes to the primary; while it is in flight the chain serves the others |
//! | Recovering | a turn, probe in flight, no entry is live | refused ([`Reason::ProbeInFlight`](crate::Reason::ProbeInFlight)), with the rest of the lease |
//! | Recovering | the probe succeeds | + 1; at `recovery_successes_needed` → Primary: everything zeroed, every entry's strikes cleared |
//! | Recovering | the probe is rate limited, or fatal | → Fallback at once, new cooldown |
//! | Recovering | the probe fails transiently | success count 0, still Recovering; the `probation_limit`-th in a row → Fallback |
//! | Recovering | the probe's lease ends | as a transient failure at the lease's end, however late it is noticed |
//! | Recovering | the probe is neutral | the slot is free |
//!
//! An entry of the chain is failed when it is disabled by hand, or its budget is spent. Strikes go to the entry that served, whatever the state is by then, unless
//! the chain was cleared since. A `retry_after` that the primary's failure carries lengthens the cooldown, up to
//! [`retry_after_cap`](FallbackLayer::retry_after_cap); of two deadlines the later one wins. A backup's never does.
//!
//! Without a chain no turn is refused: the layer trips for the record, and keeps serving the primary. What such a turn says, beside the probes, is not counted.
//!
//! # One outage
//!
//! With the defaults, the chain `claude`, `llama`, and `probation_limit(3)`:
//!
//! | time | turn | served by | what happens |
//! | --- | --- | --- | --- |
//! | 0:00 | 1–3 | `gpt-5`, each fails | the third trips it: `on_fallback("gpt-5", Some("claude"))`, the cooldown runs until 1:00 |
//! | 0:05 | 4 | `claude` | |
//! | 0:20 | 5, 6 | `claude`, both fail | its budget of 2 is spent |
//! | 0:30 | 7 | `llama` | |
//! | 1:00 | 8 | `gpt-5`, the probe | → Recovering; it runs until 1:10 and fails: the next turn is a probe again |
//! | 1:05 | 9 | `llama` | the probe is in flight |
//! | 1:12 | 10, 11 | `gpt-5`, both fail | three probes in a row: → Fallback, until 2:12 |
//! | 1:20 | 12–20 | `llama` | |
//! | 2:12 | 21 | `gpt-5`, the probe: it answers | 1 of 2 |
//! | 2:15 | 22 | `gpt-5`, the probe: it answers | → Primary; `claude` has no strikes any more |
//!
//! # What to set
//!
//! - **[`probation_limit`](FallbackLayer::probation_limit): set it**, to 2 or 3. It is off by default. Without it the state stays Recovering while the primary fails, and
//!   the next turn is the next probe: a lone caller, whose turns come one after the other, spends every one of them on a dead primary.
//!   Or use [`same_turn`](FallbackLayer::same_turn), which lets a failed probe's turn go on down the chain.
//! - **Budgets** ([`max_fail_count`](FallbackLayer::max_fail_count)) are kept until the primary is back, successes or not: a long outage spends them. Where outages are
//!   long, give spent entries a fresh budget with [`bench`](FallbackLayer::bench), or let failures count in a row only, with
//!   [`strikes_reset_on_success`](FallbackLayer::strikes_reset_on_success).
//! - **Leases** ([`probe_timeout`](FallbackLayer::probe_timeout)) must be longer than the longest call that may succeed, with all its retries inside the layer: a model's long
//!   answer takes minutes. A probe that outlives its lease has failed, even if it answers in the end.
//! - **A timeout inside.** A primary that never answers in state Primary never fails, and one that is never ready never begins a turn: put a
//!   `timeout`, or `load_shed`, inside. The same holds for the backups.
//! - **[`Fatal`](crate::FailureKind::Fatal)** is for what no later call would fare better with, a revoked key, a spent quota, a model that is gone: let the classifier say so, and
//!   nobody pays for further attempts.
//!
//! # Examples
//!
//! A chain of services, and who served:
//!
//! ```
//! use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
//! use tower_breaker::{FallbackLayer, FallbackState};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! struct Answer { text: String, model: Option<String> }
//!
//! let claude = service_fn(|prompt: String| async move {
//!     Ok::<_, BoxError>(Answer { text: format!("you said: {prompt}"), model: None })
//! });
//! let layer = FallbackLayer::new("gpt-5")
//!     .backup("claude", claude)
//!     .probation_limit(3)
//!     .on_fallback(|from: &str, to: Option<&str>| eprintln!("{from} is down, next is {to:?}"))
//!     .served_by(|answer: &mut Answer, name: &str| answer.model = Some(name.to_owned()));
//! let fallback = layer.handle();
//! let model = ServiceBuilder::new()
//!     .layer(layer)
//!     .service(service_fn(|_: String| async { Err::<Answer, BoxError>("503".into()) }));
//!
//! for _ in 0..3 {
//!     assert!(model.clone().oneshot("hello".to_owned()).await.is_err());
//! }
//! assert_eq!(fallback.state(), FallbackState::Fallback);
//! let answer = model.clone().oneshot("hello".to_owned()).await?;
//! assert_eq!(answer.text, "you said: hello");
//! assert_eq!(answer.model.as_deref(), Some("claude"));
//! # Ok(())
//! # }
//! ```
//!
//! A chain of models behind one service: [`FallbackLayer::rewriting`].
//!
//! # Readiness
//!
//! `poll_ready` asks who would serve, changes nothing, and polls that service; a caller that waits there is woken by every transition, and whenever an entry
//! may have become live or failed. The service that was polled ready is the one that is called:
//!
//! - When a probe is due and the primary is not ready, the first live entry is readied instead. A primary that is stuck blocks no healthy backup.
//! - A backup that was readied serves, even if the primary has recovered since, or the entry is failed.
//! - A primary that was readied, and may no longer be called because another turn took the probe or it has tripped, is not: the turn goes to the first live entry, whose
//!   clone the future readies first.
//! - A service that fails to become ready is a failed turn of its own, and the error is passed on. A `Buffer` outside would take it for the end: where a model's readiness may fail,
//!   put it into a service that reports this when it is called.
//!
//! A call of a service that was not polled ready is refused with [`Reason::NotReady`](crate::Reason::NotReady), and takes no probe.
//!
//! # Streams
//!
//! A turn is judged when its response is there. With the feature `http`, [`judge`](FallbackLayer::judge) moves the permit into the response's body, and the verdict comes at
//! its end: a model that breaks off in the midst of its answer has a failed turn. There is no silent switch after the first byte: the error surfaces, the strike
//! counts, and the next turn routes on. [`same_turn`](FallbackLayer::same_turn) goes on from a head that failed, and from nothing later. Each frame starts a probe's lease anew, so
//! the lease has to be longer than a model's longest silence, and need not be as long as its whole answer.
//!
//! # Panics and dropped calls
//!
//! A panic in a model's `call` or in its future is a failure of that model, whoever catches it. A panic in a classifier, or in another closure that the
//! layer was given, is a cancelled call. What a cancelled call says is set by [`on_cancel`](FallbackLayer::on_cancel), a
//! [`Cancelled`](crate::Cancelled). The slot is never lost.

mod backends;
mod chain;
#[cfg(test)]
mod costs;
pub mod future;
mod gate;
mod handle;
mod layer;
/// The interleaving models; see `tests/loom`.
#[cfg(tower_breaker_loom)]
#[doc(hidden)]
#[path = "../../tests/loom/fallback.rs"]
pub mod models;
mod permit;
mod same_turn;
mod served_by;
mod service;
mod snapshot;

pub use self::backends::{Models, NoBackups, Services};
pub use self::handle::{FallbackHandle, UnknownEntry};
pub use self::layer::FallbackLayer;
pub(crate) use self::permit::CallPermit;
pub use self::same_turn::{Kept, Once, SameTurn};
pub use self::served_by::ServedBy;
pub use self::service::Fallback;
pub use self::snapshot::{EntrySnapshot, FallbackSnapshot};

/// What becomes of a turn while the primary is down and no entry of its chain is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exhausted {
    /// It is refused.
    Refuse,
    /// The primary serves it, and its result says nothing. So it does when a probe is in flight.
    LastResort,
}
