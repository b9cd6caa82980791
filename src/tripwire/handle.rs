//! The handles: the fence without the service.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;

use super::fence::Fence;
use super::gate::{self, FenceRef, Sessions};
use super::reader::{Read, Reader};
use super::snapshot::TripwireSnapshot;
use crate::machinery::keyed::ExtractKey;
use crate::machinery::machine::Machine;
use crate::machinery::shared_machine::{Retired, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::{Reason, State};

/// A handle on the fence of a [`TripwireLayer`](super::TripwireLayer).
///
/// It shows the run, gives it more turns, and begins another run.
///
/// # Examples
///
/// ```
/// use tower_breaker::{State, TripwireLayer};
///
/// let tripwire = TripwireLayer::new().max_turns(8);
/// let run = tripwire.handle();
/// assert!(run.would_allow(&"search rust"));
/// assert_eq!((run.state(), run.turns(), run.reason()), (State::Closed, 0, None));
/// run.extend(4);
/// assert_eq!(run.snapshot().turns_left, 12);
/// run.reset();
/// assert_eq!(run.snapshot().turns_left, 8);
/// ```
#[derive(Clone)]
pub struct TripwireHandle<Q = Reader> {
    machine_ref: FenceRef,
    reader: Q,
}

impl<Q> TripwireHandle<Q> {
    pub(super) fn new(machine_ref: &FenceRef, reader: Q) -> Self {
        Self {
            machine_ref: Arc::clone(machine_ref),
            reader,
        }
    }

    fn machine(&self) -> &SharedMachine<Fence> {
        self.machine_ref.machine()
    }

    /// Returns whether this call would be let through now: the oracle.
    ///
    /// It changes nothing, however often it is asked.
    #[must_use]
    #[allow(private_bounds)] // The set of readers is closed.
    pub fn would_allow<Req>(&self, req: &Req) -> bool
    where
        Q: Read<Req>,
    {
        gate::would_allow(self.machine(), &self.reader.read(req))
    }

    /// Returns the same handle without [`would_allow`](Self::would_allow).
    ///
    /// Its type can be named, whatever closures the layer was given.
    #[must_use]
    pub fn without_requests(&self) -> TripwireHandle<()> {
        TripwireHandle::new(&self.machine_ref, ())
    }

    /// Returns the state as it is now.
    ///
    /// Once the run's time is over it is open, even before a call has noticed.
    #[must_use]
    pub fn state(&self) -> State {
        self.snapshot().state
    }

    /// Returns how many turns the run has spent.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.snapshot().turns
    }

    /// Returns why the fence tripped last, if it has not closed since.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.snapshot().reason
    }

    /// Returns the run as it is now.
    #[must_use]
    pub fn snapshot(&self) -> TripwireSnapshot {
        snapshot(self.machine())
    }

    /// Gives the run `turns` more turns.
    ///
    /// After a trip by `max_turns` the fence closes again and keeps its streaks.
    pub fn extend(&self, turns: u32) {
        // A fence outside a store is never evicted.
        let _ = extend(self.machine(), turns);
    }

    /// Begins a new run, in every state.
    ///
    /// The results of calls in flight become stale.
    pub fn reset(&self) {
        reset(self.machine());
    }
}

impl<Q> fmt::Debug for TripwireHandle<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TripwireHandle")
            .field("fence", &self.machine_ref)
            .finish_non_exhaustive()
    }
}

fn snapshot(machine: &SharedMachine<Fence>) -> TripwireSnapshot {
    let now = gate::now_of(machine);
    machine.read(|fence, packed, rules| fence.snapshot(packed, rules, now))
}

fn extend(machine: &SharedMachine<Fence>, turns: u32) -> Result<(), Retired> {
    machine.step_unless_retired(|fence, _, events| fence.extend(turns, events))
}

fn reset(machine: &SharedMachine<Fence>) {
    machine.step(Fence::reset);
}

/// A handle on the fences of a layer with one per session.
///
/// Every method takes the session's id, or a request that holds it. A question makes no fence.
pub struct KeyedTripwireHandle<K, S, Q = Reader> {
    sessions: Arc<Sessions<K>>,
    extract: S,
    reader: Q,
}

impl<K, S, Q> KeyedTripwireHandle<K, S, Q> {
    pub(super) fn new(sessions: &Arc<Sessions<K>>, extract: S, reader: Q) -> Self {
        Self {
            sessions: Arc::clone(sessions),
            extract,
            reader,
        }
    }
}

impl<K: Hash + Eq + Clone, S, Q> KeyedTripwireHandle<K, S, Q> {
    /// Returns whether this call would be let through now, in its own session: the oracle.
    ///
    /// It changes nothing, however often it is asked.
    #[must_use]
    #[allow(private_bounds)] // The set of readers is closed.
    pub fn would_allow<Req>(&self, req: &Req) -> bool
    where
        S: ExtractKey<K, Req>,
        Q: Read<Req>,
    {
        let facts = self.reader.read(req);
        let store = self.sessions.store();
        let seen = self
            .extract
            .read(store, req, |machine| gate::would_allow(machine, &facts));
        seen.unwrap_or_else(|| {
            let rules = self.sessions.rules();
            rules.observe_only || Fence::new(rules).would_allow(rules, self.sessions.now(), &facts)
        })
    }

    /// Returns the same handle without [`would_allow`](Self::would_allow).
    ///
    /// Its type can be named, whatever closures the layer was given.
    #[must_use]
    pub fn without_requests(&self) -> KeyedTripwireHandle<K, (), ()> {
        KeyedTripwireHandle::new(&self.sessions, (), ())
    }

    /// Returns the session's state as it is now; closed for one without a fence.
    #[must_use]
    pub fn state<B>(&self, session: &B) -> State
    where
        K: Borrow<B>,
        B: Hash + Eq + ?Sized,
    {
        self.snapshot(session).state
    }

    /// Returns how many turns the session has spent.
    #[must_use]
    pub fn turns<B>(&self, session: &B) -> u32
    where
        K: Borrow<B>,
        B: Hash + Eq + ?Sized,
    {
        self.snapshot(session).turns
    }

    /// Returns why the session's fence tripped last, if it has not closed since.
    #[must_use]
    pub fn reason<B>(&self, session: &B) -> Option<Reason>
    where
        K: Borrow<B>,
        B: Hash + Eq + ?Sized,
    {
        self.snapshot(session).reason
    }

    /// Returns the session as it is now; as new for one without a fence.
    #[must_use]
    pub fn snapshot<B>(&self, session: &B) -> TripwireSnapshot
    where
        K: Borrow<B>,
        B: Hash + Eq + ?Sized,
    {
        if let Some(seen) = self.sessions.store().read(session, snapshot) {
            return seen;
        }
        let rules = self.sessions.rules();
        let fence = Fence::new(rules);
        fence.snapshot(fence.packed(), rules, self.sessions.now())
    }

    /// Gives the session `turns` more turns, and makes its fence if it has none.
    ///
    /// Returns `false` if the fence could not be made, because every fence in the store has a
    /// call in flight.
    pub fn extend<B>(&self, session: &B, turns: u32) -> bool
    where
        K: Borrow<B>,
        B: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found = self.sessions.store().get(session);
        let extended = self.sessions.ask(
            found,
            || session.to_owned(),
            |machine| extend(machine, turns),
        );
        extended.is_ok()
    }

    /// Begins a new run in the session, if it has a fence.
    pub fn reset<B>(&self, session: &B)
    where
        K: Borrow<B>,
        B: Hash + Eq + ?Sized,
    {
        // A look-up as for a call. It marks the fence as touched, because it may be clean now.
        if let Some(machine_ref) = self.sessions.store().get(session) {
            reset(machine_ref.machine());
        }
    }

    /// Takes the session's fence out of the store, for instance when its run has ended.
    ///
    /// The next call with its id gets a new fence. The results of calls in flight are lost.
    /// Returns whether the session had a fence.
    pub fn forget<B>(&self, session: &B) -> bool
    where
        K: Borrow<B>,
        B: Hash + Eq + ?Sized,
    {
        self.sessions.store().forget(session)
    }

    /// Returns the sessions that have a fence, in no particular order.
    #[must_use]
    pub fn keys(&self) -> Vec<K> {
        self.sessions.store().keys()
    }
}

impl<K, S: Clone, Q: Clone> Clone for KeyedTripwireHandle<K, S, Q> {
    fn clone(&self) -> Self {
        Self::new(&self.sessions, self.extract.clone(), self.reader.clone())
    }
}

impl<K, S, Q> fmt::Debug for KeyedTripwireHandle<K, S, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedTripwireHandle")
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}
