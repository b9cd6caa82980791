//! The snapshot of a fallback, and how it is made from the chain.

use std::sync::Arc;
use std::time::Duration;

use super::chain::{Chain, Phase, Rules};
use crate::machinery::clock::Timestamp;
use crate::machinery::packed_state::PackedState;
use crate::vocabulary::{FailureKind, FallbackState};

/// A fallback as it is at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackSnapshot {
    /// The state. After the cooldown it still reads as [`FallbackState::Fallback`], until a turn
    /// moves it.
    pub state: FallbackState,
    /// Whether the next turn is a probe: the cooldown is over, or the slot is free.
    pub due: bool,
    /// How many turns of the primary failed in a row.
    pub consecutive_failures: u32,
    /// How many probes succeeded in a row.
    pub probe_successes: u32,
    /// How many probes failed transiently in a row.
    pub probe_failures: u32,
    /// The rest of the cooldown: the time until the primary is probed.
    ///
    /// It is zero when a probe is due. It is `None` while the primary serves, while a probe is in
    /// flight, and if the cooldown never ends.
    pub time_until_probe: Option<Duration>,
    /// The rest of the lease of the probe in flight. `None` if no probe is in flight, or its lease
    /// never ends.
    pub lease_left: Option<Duration>,
    /// How often it has gone to [`FallbackState::Fallback`] since it was made or reset.
    pub trips: u64,
    /// Whether it has ever tripped since it was made or reset.
    pub fallback_activated: bool,
    /// The kind of the last failure since it was made or reset, of any model.
    pub last_failure: Option<FailureKind>,
    /// The entries of the chain, in its order.
    pub entries: Vec<EntrySnapshot>,
}

/// An entry of a fallback's chain as it is at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntrySnapshot {
    /// The name.
    pub name: Arc<str>,
    /// How many of its turns failed since the chain was cleared, or since it came back from the
    /// bench.
    pub strikes: u32,
    /// Whether somebody disabled it.
    pub disabled: bool,
    /// Whether it serves no turn: it is disabled, or its budget is spent.
    pub failed: bool,
    /// The rest of its time on the bench. `None` if its budget is not spent, or stays spent.
    pub bench_left: Option<Duration>,
}

impl Chain {
    /// The chain as it is at `now`: what time alone has ended is taken into account, and stays to
    /// be noticed.
    ///
    /// The streak and the last failure come from `packed`, in which callers count without the
    /// lock.
    pub(super) fn snapshot(
        &self,
        packed: PackedState,
        rules: &Rules,
        now: Timestamp,
    ) -> FallbackSnapshot {
        let (phase, deadline) = self.phase_at(rules, now);
        let expired = self.has_expired(now);
        let tripped = expired && phase == Phase::Fallback;
        let due = phase == Phase::Vacant || phase == Phase::Fallback && now >= deadline;
        let entries = rules.entries.iter().zip(&self.entries);
        FallbackSnapshot {
            state: phase.state(),
            due,
            consecutive_failures: packed.streak_or(self.streak),
            probe_successes: if expired { 0 } else { self.successes },
            probe_failures: match (tripped, expired) {
                (true, _) => 0,
                (false, true) => self.failures.saturating_add(1),
                (false, false) => self.failures,
            },
            time_until_probe: match phase {
                Phase::Fallback => deadline.remaining(now),
                Phase::Vacant => Some(Duration::ZERO),
                Phase::Primary | Phase::Probing => None,
            },
            lease_left: if phase == Phase::Probing {
                deadline.remaining(now)
            } else {
                None
            },
            trips: self.trips + u64::from(tripped),
            fallback_activated: self.is_activated(),
            last_failure: if expired {
                self.last_at(now)
            } else {
                packed.last()
            },
            entries: entries
                .map(|(name, entry)| EntrySnapshot {
                    name: Arc::clone(name),
                    strikes: entry.strikes_at(rules, now),
                    disabled: entry.disabled,
                    failed: !entry.is_live(rules, now),
                    bench_left: if entry.strikes_at(rules, now) >= rules.max_fail_count {
                        entry.back_at(rules).remaining(now)
                    } else {
                        None
                    },
                })
                .collect(),
        }
    }
}
