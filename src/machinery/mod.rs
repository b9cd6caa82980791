//! The shared machinery: what the three layers are built from. Nothing here knows a layer.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `clock` | time as the state machines see it |
//! | `machine` | what a state machine is |
//! | `packed_state` | the 64 bits that mirror a machine |
//! | `event_queue`, `observers` | events that wait to be delivered, and who gets them |
//! | `shared_machine` | a machine that many threads share: its lock, its packed state, its waiters |
//! | `store` | machines by key: bounded, and what is live is never evicted |
//! | `keyed` | the machines of a layer by key, and how the key of a request is found |
//! | `denied`, `cooldown` | why a machine does not admit a call; how a failure's wait moves a cooldown |
//! | `judge`, `held_permit` | when a call is judged; the permit that a response body holds until then |
//! | `sync`, `unwind` | locks and atomics; verdicts when foreign code unwinds |

pub(crate) mod clock;
pub(crate) mod cooldown;
pub(crate) mod denied;
pub(crate) mod event_queue;
#[cfg(feature = "http")]
pub(crate) mod held_permit;
pub(crate) mod judge;
pub(crate) mod keyed;
pub(crate) mod machine;
pub(crate) mod observers;
pub(crate) mod packed_state;
pub(crate) mod shared_machine;
pub(crate) mod store;
pub(crate) mod sync;
pub(crate) mod unwind;
