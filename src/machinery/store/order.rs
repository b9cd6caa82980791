//! The order in which the store evicts machines.
//!
//! The least recently used clean and idle machine goes first. If there is none, the least recently
//! used unclean one goes. A live machine never goes, nor does one with a call in flight.
//!
//! # The four places
//!
//! Each entry is in one of these:
//!
//! | place | what it holds | sorted by |
//! | --- | --- | --- |
//! | `candidates` | machines that are clean, for all that is known | the last look-up that the order knows of |
//! | `unclean` | machines that were neither clean nor live when they were examined | their last look-up |
//! | `live` | machines that were live when they were examined, with no call in flight | the deadline until which they are live |
//! | `in_use` | machines that had a call in flight when they were examined | nothing; it is a list |
//!
//! A candidate that was looked up in the meantime goes back to the candidates with its new rank.
//! Every other candidate is examined: it is evicted, or it moves to one of the other three places.
//!
//! # Parked machines
//!
//! The entries of `unclean` and `live` are *parked*: a bit beside their last look-up says so. Only
//! time changes a parked machine, unless somebody looks it up. Such a look-up clears the bit and
//! sets the store's `touched` flag. So an insertion examines again only the machines that may
//! have changed, and reads one reference count for each machine in use.

use std::cmp::{Ordering as Cmp, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::map::Id;
use crate::machinery::clock::Timestamp;
use crate::machinery::machine::Machine;
use crate::machinery::shared_machine::{MachineRef, Retirement, SharedMachine};
use crate::machinery::sync::{Arc, AtomicU64, Ordering};

/// How many references the store holds to each of its machines: one in the map, one in its entry.
const STORE_REFS: usize = 2;

/// A bit beside a machine's last look-up. While it is set, the machine is parked, and nobody has
/// looked it up since.
pub(super) const PARKED: u64 = 1 << 63;

/// The machines of a store, by when they may be evicted.
pub(super) struct Order<M: Machine> {
    candidates: Heap<M>,
    unclean: Heap<M>,
    live: Heap<M>,
    in_use: Vec<Entry<M>>,
    /// How many keys were ever inserted.
    inserted: u64,
}

type Heap<M> = BinaryHeap<Reverse<Entry<M>>>;

/// A machine, and how the store knows it.
pub(super) struct Entry<M: Machine> {
    /// The key of the sort order: the last look-up, or the deadline until which the machine is
    /// live.
    rank: u64,
    pub(super) id: Id,
    pub(super) machine_ref: Arc<MachineRef<M>>,
}

pub(super) struct Evicted<M: Machine> {
    pub(super) entry: Entry<M>,
    pub(super) clean: bool,
}

impl<M: Machine> Order<M> {
    pub(super) fn new() -> Self {
        Self {
            candidates: BinaryHeap::new(),
            unclean: BinaryHeap::new(),
            live: BinaryHeap::new(),
            in_use: Vec::new(),
            inserted: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.candidates.len() + self.unclean.len() + self.live.len() + self.in_use.len()
    }

    /// Makes the id of a key that is about to be inserted.
    pub(super) fn next_id(&mut self, hash: u64) -> Id {
        self.inserted += 1;
        let number = self.inserted;
        Id { hash, number }
    }

    /// Adds a new machine, which was looked up at `last_used`.
    pub(super) fn insert(&mut self, id: Id, last_used: u64, machine_ref: Arc<MachineRef<M>>) {
        self.candidates.push(Reverse(Entry {
            rank: last_used,
            id,
            machine_ref,
        }));
    }

    /// Evicts the machine that goes first, if there is one that may go.
    pub(super) fn evict(&mut self, now: Timestamp) -> Option<Evicted<M>> {
        self.requeue_changed(now);
        while let Some(Reverse(entry)) = self.candidates.pop() {
            // The entry is parked before its references are counted. A caller that the count
            // misses finds the machine parked, and sets the flag.
            let last_used = entry.park();
            if last_used == entry.rank {
                if let Some(evicted) = self.try_evict(entry, false, now) {
                    return Some(evicted);
                }
            } else {
                self.requeue(entry);
            }
        }
        while let Some(Reverse(entry)) = self.unclean.pop() {
            if let Some(evicted) = self.try_evict(entry, true, now) {
                return Some(evicted);
            }
        }
        None
    }

    /// Evicts a parked machine if it may go. Otherwise puts its entry where it belongs.
    fn try_evict(
        &mut self,
        mut entry: Entry<M>,
        accept_unclean: bool,
        now: Timestamp,
    ) -> Option<Evicted<M>> {
        match SharedMachine::retire(&entry.machine_ref, STORE_REFS, accept_unclean, now) {
            Retirement::Done { clean } => return Some(Evicted { entry, clean }),
            Retirement::Unclean => self.unclean.push(Reverse(entry)),
            Retirement::InUse => {
                entry.unpark();
                self.in_use.push(entry);
            }
            Retirement::Live(deadline) => {
                entry.rank = deadline.as_nanos();
                self.live.push(Reverse(entry));
            }
        }
        None
    }

    /// Moves back to the candidates: the machines whose last call has ended, and those whose
    /// deadline has passed.
    fn requeue_changed(&mut self, now: Timestamp) {
        let mut at = 0;
        while at < self.in_use.len() {
            if Arc::strong_count(&self.in_use[at].machine_ref) > STORE_REFS {
                at += 1;
            } else {
                let entry = self.in_use.swap_remove(at);
                self.requeue(entry);
            }
        }
        while let Some(top) = self.live.peek_mut() {
            if top.0.rank > now.as_nanos() {
                break;
            }
            let Reverse(entry) = PeekMut::pop(top);
            requeue(&mut self.candidates, entry);
        }
    }

    /// Moves back to the candidates: the parked machines that were looked up.
    pub(super) fn requeue_touched(&mut self) {
        for heap in [&mut self.unclean, &mut self.live] {
            let (parked, touched): (Vec<_>, _) = std::mem::take(heap)
                .into_iter()
                .partition(|Reverse(entry)| entry.is_parked());
            *heap = parked.into();
            for Reverse(entry) in touched {
                requeue(&mut self.candidates, entry);
            }
        }
    }

    fn requeue(&mut self, entry: Entry<M>) {
        requeue(&mut self.candidates, entry);
    }

    /// Removes the entry of `machine_ref`.
    pub(super) fn remove(&mut self, machine_ref: &Arc<MachineRef<M>>) -> Option<Id> {
        let mut removed = None;
        // No machine is dropped here under the lock, because the caller holds a reference to it.
        let mut keep = |entry: &Entry<M>| {
            let found = Arc::ptr_eq(&entry.machine_ref, machine_ref);
            if found {
                removed = Some(entry.id);
            }
            !found
        };
        for heap in [&mut self.candidates, &mut self.unclean, &mut self.live] {
            heap.retain(|Reverse(entry)| keep(entry));
        }
        self.in_use.retain(keep);
        removed
    }
}

fn requeue<M: Machine>(candidates: &mut Heap<M>, mut entry: Entry<M>) {
    entry.rank = entry.unpark();
    candidates.push(Reverse(entry));
}

impl<M: Machine> Entry<M> {
    /// Parks the machine. Returns when it was last looked up.
    fn park(&self) -> u64 {
        self.last_used().fetch_or(PARKED, Ordering::Relaxed) & !PARKED
    }

    /// Ends the parking. Returns when the machine was last looked up.
    fn unpark(&self) -> u64 {
        self.last_used().fetch_and(!PARKED, Ordering::Relaxed) & !PARKED
    }

    fn is_parked(&self) -> bool {
        self.last_used().load(Ordering::Relaxed) & PARKED != 0
    }

    fn last_used(&self) -> &AtomicU64 {
        self.machine_ref.machine().last_used()
    }
}

impl<M: Machine> Ord for Entry<M> {
    fn cmp(&self, other: &Self) -> Cmp {
        self.rank.cmp(&other.rank)
    }
}

impl<M: Machine> PartialOrd for Entry<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Cmp> {
        Some(self.cmp(other))
    }
}

impl<M: Machine> PartialEq for Entry<M> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl<M: Machine> Eq for Entry<M> {}
