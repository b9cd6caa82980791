//! The locked path: a step of the machine, the wake-ups and the events that follow it.
//!
//! The [module above](super) states the order of a step, and the invariant that the order keeps.
//!
//! Three kinds of foreign code follow a step, and all of them run after the lock is free: wakers,
//! observers, and what an observer sets off when it calls back. Each of them may use this very
//! machine.

use std::task::Context;

use super::{Inside, Retired, SharedMachine};
use crate::machinery::clock::Timestamp;
use crate::machinery::event_queue::{EventQueue, Queued};
use crate::machinery::machine::Machine;
use crate::machinery::packed_state::PackedState;
use crate::machinery::sync::{Ordering, lock};
use crate::machinery::waiters::WaiterGuard;
use crate::vocabulary::{Event, Name};

impl<M: Machine> SharedMachine<M> {
    /// Lets the machine move, publishes its new state, wakes the waiters and delivers the events.
    pub(crate) fn step<R>(
        &self,
        f: impl FnOnce(&mut M, &M::Rules, &mut EventQueue<M::Pending>) -> R,
    ) -> R {
        self.step_inside(|inside, rules| f(&mut inside.machine, rules, &mut inside.events))
    }

    /// Does what [`step`](Self::step) does, unless the machine has left its store.
    pub(crate) fn step_unless_retired<R>(
        &self,
        f: impl FnOnce(&mut M, &M::Rules, &mut EventQueue<M::Pending>) -> R,
    ) -> Result<R, Retired> {
        self.step_inside(|inside, rules| {
            if inside.retired {
                return Err(Retired);
            }
            Ok(f(&mut inside.machine, rules, &mut inside.events))
        })
    }

    /// Lets the machine change what neither its packed state nor its deadline mirrors.
    ///
    /// This costs the lock and nothing else. The packed state is not marked as busy, and the
    /// machine does not take over what lock-free callers have counted.
    ///
    /// Returns `None`, with nothing changed, if `f` finds that this is not enough, or if the
    /// machine has left its store. The caller then takes a [`step`](Self::step).
    // It stands on the tripwire's closed path, whose instructions are limited. The closure is
    // short, and a call of its own would cost a tenth of the whole.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn update_unmirrored<R>(
        &self,
        f: impl FnOnce(&mut M, &M::Rules) -> Option<R>,
    ) -> Option<R> {
        let mut inside = lock(&self.inside);
        if inside.retired {
            return None;
        }
        f(&mut inside.machine, &self.environment.rules)
    }

    /// Takes a step. `f` gets all that the lock guards, and is the part in which the machine
    /// moves.
    pub(super) fn step_inside<R>(&self, f: impl FnOnce(&mut Inside<M>, &M::Rules) -> R) -> R {
        let mut inside = lock(&self.inside);
        let (before, old_deadline) = self.mark_busy(&mut inside);
        let result = f(&mut inside, &self.environment.rules);
        let after = self.publish(&inside, old_deadline);

        let mut to_wake = Vec::new();
        if before.differs_for_waiters(after) {
            to_wake = inside.waiters.still_waiting();
        }
        if !self.observed() {
            inside.events.discard();
        }
        let deliver = inside.events.begin();
        drop(inside);

        for waiter in to_wake {
            waiter.wake();
        }
        if deliver {
            self.deliver();
        }
        result
    }

    /// Sends lock-free callers to the lock, and hands the machine what they have changed. Returns
    /// the packed state and the deadline as they were.
    pub(super) fn mark_busy(&self, inside: &mut Inside<M>) -> (PackedState, Timestamp) {
        // Relaxed: the releasing writes of the deadline and of the packed state come later.
        let packed = PackedState::from_bits(
            self.packed
                .swap(PackedState::BUSY.bits(), Ordering::Relaxed),
        );
        let mut deadline = self.any_deadline();
        // A deadline that never comes is not renewed.
        if deadline != Timestamp::NEVER {
            // The deadline is read by a write, so that this read has a place among the renewals.
            // Each renewal is read here, or it comes later. Release: a caller that sees a later
            // renewal also sees the busy mark.
            deadline = Timestamp::from_nanos(self.deadline.fetch_or(0, Ordering::Release));
        }
        if !packed.is_busy() {
            inside.machine.take_over(packed, deadline);
        }
        (packed, deadline)
    }

    /// Publishes the state of the machine, whose deadline was `old_deadline` before the step.
    pub(super) fn publish(&self, inside: &Inside<M>, old_deadline: Timestamp) -> PackedState {
        let packed = if inside.retired {
            PackedState::BUSY
        } else {
            inside.machine.packed()
        };
        let deadline = inside.machine.deadline();
        // A deadline that the machine has not moved stays as it is. It may have been renewed
        // since.
        if deadline != old_deadline {
            // Release, after the busy mark: a caller that reads this deadline sees that mark, or
            // the packed state that follows. A store would do. It is a swap because loom lets a
            // store come before a renewal that it cannot come before.
            self.deadline.swap(deadline.as_nanos(), Ordering::Release);
        }
        // Release, after the deadline: a caller that reads this packed state sees its deadline.
        self.packed.store(packed.bits(), Ordering::Release);
        packed
    }

    /// Reads the machine, and the packed state with what was counted in it. Changes nothing.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&M, PackedState, &M::Rules) -> R) -> R {
        let mut inside = lock(&self.inside);
        let mut packed = PackedState::from_bits(self.packed.load(Ordering::Relaxed));
        // Under the lock, the packed state is busy only if the machine is retired.
        if packed.is_busy() {
            packed = inside.machine.packed();
        } else {
            // The next step would take over the same.
            inside.machine.take_over(packed, self.any_deadline());
        }
        f(&inside.machine, packed, &self.environment.rules)
    }

    /// Delivers the events of the machine, in order and one at a time. Events that an observer
    /// causes by calling back come after those that are already in the queue.
    fn deliver(&self) {
        let name = self.name.as_ref().map(Name::as_str);
        loop {
            let queued = lock(&self.inside).events.next();
            match queued {
                Some(Queued::Event(pending)) => self.tell(&M::event(pending, name, self.rules())),
                Some(Queued::Missed(count)) => self.tell(&Event::Missed { name, count }),
                None => return,
            }
        }
    }

    /// Wakes `cx` at the next transition. The caller looks at the packed state once more before it
    /// trusts that it must wait; see [`waiters`](crate::machinery::waiters).
    pub(crate) fn wait(&self, waiter: &mut Option<WaiterGuard>, cx: &mut Context<'_>) {
        let waiter = waiter.get_or_insert_with(|| {
            let waiter = WaiterGuard::new();
            lock(&self.inside).waiters.add(&waiter);
            waiter
        });
        waiter.set(Some(cx.waker().clone()));
    }
}
