//! The shared machinery: what the three layers are built from. Nothing here knows a layer.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `clock` | time as the state machines see it |
//! | `machine` | what a state machine is |
//! | `packed_state` | the 64 bits that mirror a machine |
//! | `event_queue` | the events of a machine that wait to be delivered |
//! | `observers` | who gets the events of a layer |
//! | `shared_machine` | a machine that many threads share: its lock, its packed state, its deadline |
//! | `machine_ref` | counted references to a shared machine |
//! | `waiters` | the callers that wait for a machine to move |
//! | `store` | machines by key: bounded, and what is live is never evicted |
//! | `keyed` | the machines of a layer by key, and the events that an insertion causes |
//! | `extract_key` | how the key of a request is found |
//! | `denied` | why a machine does not admit a call |
//! | `cooldown` | how the wait that a failure asks for moves a cooldown |
//! | `judge` | when a call is judged: at its head, or at the end of its body |
//! | `held_permit` | the permit that a response body holds until the verdict |
//! | `sync` | the locks and atomics: the standard ones, or those that loom watches |
//! | `unwind` | verdicts when foreign code unwinds |
//! | `test_machine` | the machine that the unit tests move by hand |

pub(crate) mod clock;
pub(crate) mod cooldown;
pub(crate) mod denied;
pub(crate) mod event_queue;
pub(crate) mod extract_key;
#[cfg(feature = "http")]
pub(crate) mod held_permit;
pub(crate) mod judge;
pub(crate) mod keyed;
pub(crate) mod machine;
pub(crate) mod machine_ref;
pub(crate) mod observers;
pub(crate) mod packed_state;
pub(crate) mod shared_machine;
pub(crate) mod store;
pub(crate) mod sync;
#[cfg(test)]
pub(crate) mod test_machine;
pub(crate) mod unwind;
pub(crate) mod waiters;
