//! The circuit as the shared machinery sees it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::rules::Rules;
use super::{Circuit, PendingEvent, Phase};
use crate::machinery::clock::{Clock, Timestamp};
use crate::machinery::keyed::KeyedMachine;
use crate::machinery::machine::{Machine, Retention};
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{Event, State};

impl Machine for Circuit {
    type Rules = Rules;
    type Pending = PendingEvent;

    fn packed(&self) -> PackedState {
        // Only the machine can count a result where it moves a retry deadline, or where there is a
        // window.
        let lock_free = self.phase == Phase::Closed
            && self.retry_deadline == Timestamp::START
            && self.window.is_none();
        PackedState::new(self.generation, self.phase as u8)
            .with_last(self.last_failure)
            .with_streak(self.streak)
            .lock_free(lock_free)
            .timed(self.timed)
    }

    fn deadline(&self) -> Timestamp {
        self.deadline
    }

    fn take_over(&mut self, packed: PackedState, deadline: Timestamp) {
        self.streak = packed.streak_or(self.streak);
        self.last_failure = packed.last();
        if self.phase == Phase::Probing {
            self.deadline = deadline;
        }
    }

    fn retention(&self, rules: &Rules, now: Timestamp) -> Retention {
        match self.phase_at(rules, now) {
            (Phase::Closed, _) if self.streak == 0 && !self.window_has_failures(now) => {
                Retention::Clean
            }
            (Phase::Closed | Phase::Vacant, _) => Retention::Unclean,
            (Phase::Open, deadline) if now >= deadline => Retention::Unclean,
            (Phase::Open | Phase::Probing | Phase::Forced, _) => Retention::Live,
        }
    }

    fn live_until(&self, rules: &Rules, now: Timestamp) -> Timestamp {
        // If the lease is over, the end of the cooldown after it, noticed or not.
        self.phase_at(rules, now).1
    }

    fn event<'a>(pending: PendingEvent, name: Option<&'a str>, rules: &Rules) -> Event<'a> {
        match pending {
            PendingEvent::Transition {
                from,
                to,
                reason,
                generation,
            } => Event::Transition {
                name,
                from,
                to,
                reason,
                generation,
            },
            PendingEvent::ProbeStarted { generation } => Event::ProbeStarted {
                name,
                generation,
                lease: rules.probe_timeout,
            },
            PendingEvent::LeaseExpired { generation } => Event::LeaseExpired { name, generation },
        }
    }
}

impl KeyedMachine for Circuit {
    /// The seed of the jitter.
    type Seed = u64;

    fn made<K: Hash>(rules: &Rules, seed: u64, key: &K) -> Self {
        // The same seed and key give the same jitter, in whatever order the keys come.
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        key.hash(&mut hasher);
        Self::new(rules, hasher.finish())
    }

    fn now(_: &Rules, clock: &Clock) -> Timestamp {
        clock.now()
    }

    fn state(&self, packed: PackedState, rules: &Rules, now: Timestamp) -> State {
        self.snapshot(packed, rules, now).state
    }
}

impl Circuit {
    fn window_has_failures(&self, now: Timestamp) -> bool {
        self.window
            .as_ref()
            .is_some_and(|window| window.totals(now).1 > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machinery::observers::Observers;
    use crate::machinery::shared_machine::{Environment, MachineRef, Retirement, SharedMachine};
    use crate::machinery::sync::Arc;
    use crate::vocabulary::Failure;

    /// Otherwise the store would look at such a circuit again for each new key, from the end of
    /// the lease to the end of the cooldown.
    #[test]
    fn a_circuit_whose_lease_is_over_is_live_until_the_cooldown_after_it_is_over() {
        let environment = Arc::new(Environment {
            rules: Rules::default(),
            clock: Clock::start(),
            observers: Observers::default(),
        });
        let circuit = Circuit::new(&environment.rules, 0);
        let machine_ref = Arc::new(MachineRef::new(SharedMachine::new(
            circuit,
            None,
            environment,
        )));
        let at = |secs| Timestamp::START.saturating_add(Duration::from_secs(secs));
        machine_ref.machine().step(|circuit, rules, events| {
            let ticket = circuit.try_acquire(rules, at(0), events).unwrap();
            let fatal = Failure::fatal().into();
            circuit.record(rules, at(0), ticket, fatal, events);
            circuit.try_acquire(rules, at(30), events).unwrap();
        });
        for (now, deadline) in [(30, 60), (59, 60), (60, 90), (89, 90)] {
            assert_eq!(
                SharedMachine::retire(&machine_ref, 1, true, at(now)),
                Retirement::Live(at(deadline)),
                "at {now} s"
            );
        }
        assert_eq!(
            SharedMachine::retire(&machine_ref, 1, true, at(90)),
            Retirement::Done { clean: false }
        );
    }

    #[test]
    fn a_shared_circuit_takes_at_most_192_bytes() {
        let size = size_of::<SharedMachine<Circuit>>();
        assert!(size <= 192, "{size}");
    }
}
