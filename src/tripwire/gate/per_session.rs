//! The gate of a layer with one fence per session.

use std::fmt;
use std::hash::Hash;
use std::task::{Context, Poll};

use super::{
    Gate, Renew, acquire, acquire_fast, deny, now, refuse_if_none_allowed, would_allow_some,
};
use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::keyed::{self, ExtractKey, KeyedMachine, KeyedMachines};
use crate::machinery::packed_state::PackedState;
use crate::machinery::shared_machine::{Environment, Retired, SharedMachine};
use crate::machinery::sync::Arc;
use crate::tripwire::fence::{CallFacts, Denied, Fence, Rules, Ticket};
use crate::tripwire::permit::CallPermit;
use crate::tripwire::reader::Read;
use crate::vocabulary::{FailureKind, Name, Refusal, State};

/// One fence for each session. `S` finds the session of a request.
pub struct PerSession<K, S> {
    sessions: Arc<Sessions<K>>,
    extract: S,
    /// The inner service was polled ready for one call.
    ready: bool,
}

impl<K, S> PerSession<K, S> {
    pub(in crate::tripwire) fn new(sessions: Sessions<K>, extract: S) -> Self {
        Self {
            sessions: Arc::new(sessions),
            extract,
            ready: false,
        }
    }

    pub(in crate::tripwire) fn sessions(&self) -> &Arc<Sessions<K>> {
        &self.sessions
    }

    pub(in crate::tripwire) fn extract(&self) -> &S {
        &self.extract
    }
}

impl<K, S: Clone> Clone for PerSession<K, S> {
    fn clone(&self) -> Self {
        Self {
            sessions: Arc::clone(&self.sessions),
            extract: self.extract.clone(),
            // New clones shouldn't carry the readiness state.
            ready: false,
        }
    }
}

impl<K, S> fmt::Debug for PerSession<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerSession")
            .field("sessions", &self.sessions)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone, S> Renew for PerSession<K, S> {
    fn renew(self, environment: &Arc<Environment<Rules>>, name: Option<&Name>) -> Self {
        Self::new(self.sessions.renew(environment, name, ()), self.extract)
    }
}

impl<K, S, Req> Gate<Req> for PerSession<K, S>
where
    K: Hash + Eq + Clone,
    S: ExtractKey<K, Req>,
{
    fn ask(&mut self) -> bool {
        // The session is not known yet.
        self.ready = false;
        true
    }

    fn poll_wait(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn readied(&mut self) {
        self.ready = true;
    }

    fn readiness_failed(&mut self, _: FailureKind) {}

    fn admit(&mut self, reader: &impl Read<Req>, req: &Req) -> Result<CallPermit, Refusal> {
        let sessions = &*self.sessions;
        let denied = if std::mem::take(&mut self.ready) {
            match acquire_in(sessions, &self.extract, reader, req) {
                Ok(permit) => return Ok(permit),
                Err(denied) => denied,
            }
        } else {
            Denied::NOT_READY
        };
        deny(sessions.rules(), sessions.observers(), denied, || {
            reader.name_of(req).or_else(|| sessions.name().cloned())
        })
    }
}

/// The fences of a layer by session.
pub(in crate::tripwire) type Sessions<K> = KeyedMachines<K, Fence>;

impl KeyedMachine for Fence {
    type Seed = ();

    fn made<K: Hash>(rules: &Rules, (): (), _: &K) -> Self {
        Self::new(rules)
    }

    fn now(rules: &Rules, clock: &Clock) -> Timestamp {
        now(rules, || clock.now())
    }

    fn state(&self, packed: PackedState, rules: &Rules, now: Timestamp) -> State {
        self.snapshot(packed, rules, now).state
    }
}

/// Asks the gate of the request's session.
///
/// If the store is full of fences with calls in flight, a new session's call runs without a
/// permit.
pub(in crate::tripwire) fn acquire_in<K: Hash + Eq, Req>(
    sessions: &Sessions<K>,
    extract: &impl ExtractKey<K, Req>,
    reader: &impl Read<Req>,
    req: &Req,
) -> Result<CallPermit, Denied> {
    let found = extract.get(sessions.store(), req);
    let ask = |machine: &SharedMachine<Fence>| acquire_stored(machine, || reader.read(req));
    match sessions.ask(found, || extract.own(req), ask) {
        Ok((machine_ref, Ok(ticket))) => Ok(CallPermit::new(machine_ref, ticket)),
        Ok((_, Err(denied))) => Err(denied),
        Err(unguarded) => {
            keyed::tell_unguarded(unguarded.machine());
            Ok(CallPermit::none())
        }
    }
}

/// The gate of a fence in a store. It reads the request only if some call would be let through.
#[inline]
fn acquire_stored(
    machine: &SharedMachine<Fence>,
    read: impl FnOnce() -> CallFacts,
) -> Result<Result<Ticket, Denied>, Retired> {
    if !would_allow_some(machine) {
        if let Some(denied) = refuse_if_none_allowed(machine)? {
            return Ok(Err(denied));
        }
        // The fence has moved since the oracle was asked.
    }
    let facts = read();
    match acquire_fast(machine, &facts) {
        Some(ticket) => Ok(Ok(ticket)),
        None => acquire(machine, &facts),
    }
}
