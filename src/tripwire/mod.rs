//! A tripwire: ends an agent's loop that has spent its turns, repeats itself, or only fails.
//!
//! A [`TripwireLayer`] is a fence around one run of an agent, or around each of many
//! ([`per_session`](TripwireLayer::per_session)). It counts the calls that go through it, whatever
//! tools they are for: give all tools of an agent services of one layer. A call that it refuses
//! never reaches the tool. The refusal names the layer or the tool, the rule and the count, and
//! says what to do instead.
//!
//! ```text
//!                  identical_limit-th identical call in a row
//!                  max_turns spent
//!                  error_limit errors in a row
//!   ┌──────────┐ ───────────────────────────────────────────▶ ┌──────────┐
//!   │          │                                              │          │─┐ refused,
//!   │  closed  │                                              │   open   │ │ and counted
//!   │          │                                              │          │◀┘
//!   └──────────┘                                              └──────────┘
//!        ▲                                                      │      ▲
//!        │                 open_cooldown_rejects refused calls  │      │ the probe fails,
//!        │                                                      │      │ repeats itself, finds no
//!        │                                                      ▼      │ turn left, or is lost
//!        │                                                    ┌──────────┐
//!        └─────────────────────────────────────────────────── │ half_open│ one probe
//!                          the probe succeeds                 └──────────┘
//! ```
//!
//! The [guide's page](crate::guide::tripwire) has the tables of all calls and results, the
//! defaults and why they are so, and more on each section below.
//!
//! # Examples
//!
//! The defaults: 8 turns, 3 identical calls, 3 errors, 4 refusals.
//!
//! ```
//! use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
//! use tower_breaker::{Reason, Refusal, TripwireLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let tripwire = TripwireLayer::new().name("search");
//! let run = tripwire.handle();
//! let mut search = tripwire.layer(service_fn(|query: String| async move {
//!     Ok::<_, BoxError>(format!("nothing found for {query}"))
//! }));
//!
//! let query = || "tower rust".to_owned();
//! for _ in 0..2 {
//!     search.ready().await.unwrap().call(query()).await.unwrap();
//! }
//! let err = search.ready().await.unwrap().call(query()).await.unwrap_err();
//! let refusal = Refusal::find(&*err).unwrap();
//! assert_eq!(refusal.reason(), Reason::IdenticalCall);
//! assert_eq!(refusal.count(), Some(3));
//! assert_eq!(run.turns(), 2);
//! # }
//! ```
//!
//! One fence per run, for calls with an id of their own, and refusals that the model reads:
//!
//! ```
//! use std::convert::Infallible;
//! use tower_breaker::{Digest, Refusal, TripwireLayer};
//!
//! struct ToolCall { id: u64, run: String, tool: String, arguments: String }
//!
//! let tripwire = TripwireLayer::new()
//!     .max_turns(20)
//!     .digest(|call: &ToolCall| Digest::of(&(&call.tool, &call.arguments)))
//!     .name_of(|call: &ToolCall| call.tool.as_str())
//!     .refuse_with(|_: ToolCall, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()))
//!     .per_session(|call: &ToolCall| call.run.as_str(), 10_000);
//! # let _ = (tripwire, |call: ToolCall| call.id);
//! ```
//!
//! # States
//!
//! The cooldown is counted in refused calls, not in time, so tests need no clock. A refusal never
//! overwrites the reason of the trip ([`Refusal::tripped_by`](crate::Refusal::tripped_by)). A
//! spent turn budget is final until [`reset`](TripwireHandle::reset) or
//! [`extend`](TripwireHandle::extend).
//!
//! # Digests
//!
//! Two calls are identical when their digests are. The default is the request's own `Hash`. Leave
//! out what differs in every call and says nothing of what is asked, and put in the tool's name.
//! For JSON arguments there is `JsonDigest` (feature `json`).
//!
//! # Polling
//!
//! A tool that is polled gets the same call again and again. [`Limit::exempt`] leaves its turns as the only
//! bound, [`Limit::identical`] gives it more patience, and
//! [`same_result`](TripwireLayer::same_result) counts a repeat only if its answer was the same.
//!
//! # Turns
//!
//! Each admitted call spends a turn, with all its retries inside, and no turn is given back. The
//! turn is reserved at admission, so parallel calls never exceed the budget. With
//! [`turn_of`](TripwireLayer::turn_of) the parallel calls of one planner's turn spend one.
//!
//! # Sessions
//!
//! With a fence per session each run has its own counts and its own end. Tell the handle when a
//! run is over ([`forget`](KeyedTripwireHandle::forget)), or let the store evict idle fences. An
//! evicted run that goes on begins anew: choose a capacity above the number of runs that go on at
//! once.
//!
//! # Readiness and streams
//!
//! While any call would be refused, the inner service is not polled. A call on a service that was
//! not polled ready is refused with [`Reason::NotReady`](crate::Reason::NotReady), and is not
//! counted. With the feature `http`, [`judge`](TripwireLayer::judge) moves the verdict to the end
//! of the response's body.
//!
//! # Limits
//!
//! A fence sees calls, not intentions. It stops nothing that runs, and it does not end the loop:
//! look at the refusal's reason in your loop, and end it there. It counts in one process.

#[cfg(test)]
mod costs;
mod digest;
mod fence;
pub mod future;
mod gate;
mod handle;
mod layer;
/// The models of interleavings; see `tests/loom`.
#[cfg(tower_breaker_loom)]
#[doc(hidden)]
#[path = "../../tests/loom/tripwire.rs"]
pub mod models;
mod permit;
mod reader;
mod service;
mod snapshot;

#[cfg(feature = "json")]
#[cfg_attr(docsrs, doc(cfg(feature = "json")))]
pub use self::digest::JsonDigest;
pub use self::digest::{Digest, Digester, HashDigest, SameResult};
pub use self::gate::{One, PerSession};
pub use self::handle::{KeyedTripwireHandle, TripwireHandle};
pub use self::layer::TripwireLayer;
pub use self::reader::{Limit, Reader};
pub use self::service::Tripwire;
pub use self::snapshot::TripwireSnapshot;
pub use crate::machinery::keyed::{Borrowed, Owned};
