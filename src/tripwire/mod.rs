//! A tripwire: refuses to go on with an agent's loop, when it has spent its turns, repeats itself, or only fails.
//!
//! A [`TripwireLayer`] is a fence around one run of an agent, or around each of many ([`per_session`](TripwireLayer::per_session)). It
//! counts the calls that go through it, whatever tools they are for: give all tools of an agent services of the same layer. A call that it refuses never
//! reaches the tool. What the model is told instead names the tool, the rule and the count, and says what to do.
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
//!        │                 open_cooldown_rejects refused calls  │      │ the probe fails, repeats itself,
//!        │                                                      ▼      │ finds no turn left, or is lost
//!        │                                                    ┌──────────┐
//!        └─────────────────────────────────────────────────── │ half_open│ one probe
//!                          the probe succeeds                 └──────────┘
//! ```
//!
//! | a call comes | closed | open | half-open |
//! | --- | --- | --- | --- |
//! | the run's time is over | refused (`deadline`) | refused (`deadline`) | refused (`deadline`) |
//! | no turn is left | refused, trips (`max_turns`) | refused (`tripwire_open`) | refused, trips (`max_turns`) |
//! | as the last ones, and at its limit | refused, trips (`identical_call`) | refused (`tripwire_open`) | refused, trips (`identical_call`) |
//! | anything else | runs, spends a turn | refused (`tripwire_open`) | the first is the probe, the others are refused (`tripwire_open`) |
//!
//! | a result comes | closed | half-open, of the probe |
//! | --- | --- | --- |
//! | a success | ends the error streak | closes; both streaks are zeroed, no turn is given back |
//! | an error | the `error_limit`-th in a row trips (`error_streak`); its caller gets the error itself | trips (`error_streak`) |
//! | neutral | changes nothing | the next call is the probe |
//! | none: the call was dropped | changes nothing, the turn stays spent | opens; the reason stays |
//!
//! The cooldown is counted in refused calls, not in time: a model that calls on while it is refused gets its probe, and tests need no clock. A
//! refusal never overwrites the reason of the trip ([`Refusal::tripped_by`](crate::Refusal::tripped_by)). A spent turn budget is final until
//! [`reset`](TripwireHandle::reset) or [`extend`](TripwireHandle::extend).
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
//! assert_eq!(
//!     refusal.to_string(),
//!     "tool `search` was not called: the same call came 3 times in a row. Do not repeat it: \
//!      change its arguments, try something else, or answer with what you have",
//! );
//! assert_eq!(run.turns(), 2);
//! # }
//! ```
//!
//! Many runs at once, with parallel calls, a tool that is polled, and a refusal that is an ordinary answer:
//!
//! ```
//! use std::convert::Infallible;
//! use std::time::Duration;
//! use tower_breaker::{Digest, Limit, Refusal, TripwireLayer};
//!
//! struct ToolCall { id: u64, run: String, turn: u32, tool: String, arguments: String }
//!
//! let tripwire = TripwireLayer::new()
//!     .max_turns(20)
//!     .deadline(Duration::from_secs(600))
//!     .cycles(3, 3)
//!     .digest(|call: &ToolCall| Digest::of(&(&call.tool, &call.arguments)))
//!     .turn_of(|call: &ToolCall| call.turn)
//!     .limit_of(|call: &ToolCall| (call.tool == "job_status").then(Limit::exempt))
//!     .name_of(|call: &ToolCall| call.tool.as_str())
//!     .refuse_with(|_: ToolCall, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()))
//!     .per_session(|call: &ToolCall| call.run.as_str(), 10_000);
//! # let _ = (tripwire, |call: ToolCall| call.id);
//! ```
//!
//! # How to choose a digest
//!
//! Two calls are identical when their digests are. By default that is the request's own `Hash`, all of it. So leave out what differs in every
//! call and says nothing of what is asked, as a call's id, a time or a trace: else no call is ever identical with another. And put in
//! the tool's name: else two tools that are asked the same thing look like one.
//!
//! - A request that can be hashed, and has nothing in it that only says which call it is: the default.
//! - Parts of a request: a closure, and [`Digest::of`] over a tuple of them.
//! - JSON arguments, or anything `Serialize`: `JsonDigest` (feature `json`). Models write the same object with its keys in another order, and `1` for `1.0`.
//!   As text these differ, to the tool they are the same.
//! - What has no digest is exempt: a closure may answer `None`.
//!
//! A digest is keyed by the process. It says nothing in another one, and no one can search for two calls that only look alike.
//!
//! # Polling
//!
//! A tool that is asked again and again until something has changed repeats itself honestly. Three ways, from the loosest:
//! [`Limit::exempt`] for that tool, so that its turns alone bound it; [`Limit::identical`], for more patience;
//! [`same_result`](TripwireLayer::same_result), which counts a repeat only if its answer was the same, too.
//!
//! # Turns
//!
//! Each admitted call spends a turn, retries inside it included. A planner that makes several calls at once spends several, unless
//! [`turn_of`](TripwireLayer::turn_of) says to which of its turns a call belongs; then they are one, and the same call twice within it is no repetition.
//! The budget is reserved when a call is admitted, so calls in parallel never exceed it by one, and a call that is dropped has spent its turn.
//!
//! # Sessions
//!
//! With a fence per session the session's id decides, and each run has its own counts and its own end. Tell the handle when a run is over
//! ([`forget`](KeyedTripwireHandle::forget)), or let the store evict what was used longest ago: first the fences that are closed and without streaks,
//! then those that tripped, never one with a call in flight. An evicted run that goes on begins anew, with all its turns; so choose a
//! capacity above the number of runs that go on at once.
//!
//! # Streams
//!
//! A call is judged when its response is there. With the feature `http`, [`judge`](TripwireLayer::judge) moves the permit into the response's body, and the
//! verdict comes at its end. A fence has no lease that frames could renew: beside a probe whose body still streams, refused calls are counted as ever.
//!
//! # Readiness
//!
//! While any call would be refused (open, half-open with the probe out, turns spent), the inner service is not asked whether it is ready. A call on a service that
//! was not polled ready is refused with [`Reason::NotReady`](crate::Reason::NotReady), and is not counted. An error of the inner `poll_ready` is an error
//! of the streak that spends no turn; with sessions it counts for none. A refused service keeps what its inner service had reserved: use it or drop it.
//!
//! # What a fence cannot do
//!
//! - It sees calls, not intentions. A model that changes one letter in every call is new every time; only its turns bound it.
//! - It stops nothing that runs. A call that hangs is the business of a timeout inside; a deadline is looked at when a call comes.
//! - It does not know whether an answer was any good. Errors inside a success count only with a [classifier](TripwireLayer::classify) that sees them.
//! - A model that is told to stop may go on. It is refused each time, which costs next to nothing, but ending the loop is the loop's: look at the refusal's reason.
//! - It counts in one process. Two processes that share a run have two fences.

mod digest;
mod fence;
pub mod future;
mod gate;
mod handle;
mod layer;
/// The interleaving models; see `tests/loom`.
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
pub(crate) use self::permit::CallPermit;
pub use self::reader::{Limit, Reader};
pub use self::service::Tripwire;
pub use self::snapshot::TripwireSnapshot;
pub use crate::machinery::keyed::{Borrowed, Owned};
