//! The settings of a chain, and the names of its members.

use std::sync::Arc;
use std::time::Duration;

use super::super::Exhausted;
use super::ticket::Server;
use crate::vocabulary::Cancelled;

/// How a chain decides, and the names of the primary and of the entries.
///
/// The setters of [`FallbackLayer`](crate::FallbackLayer) say what each setting means.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) primary: Arc<str>,
    pub(crate) entries: Vec<Arc<str>>,
    pub(crate) trip_threshold: u32,
    pub(crate) recovery_timeout: Duration,
    pub(crate) recovery_successes_needed: u32,
    pub(crate) max_fail_count: u32,
    pub(crate) probe_timeout: Duration,
    pub(crate) retry_after_cap: Duration,
    pub(crate) probation_limit: Option<u32>,
    pub(crate) bench: Option<Duration>,
    pub(crate) strikes_reset_on_success: bool,
    pub(crate) on_cancel: Cancelled,
    pub(crate) when_exhausted: Exhausted,
    /// Whether the layer has an observer.
    pub(crate) observed: bool,
}

impl Rules {
    pub(crate) fn new(primary: Arc<str>) -> Self {
        Self {
            primary,
            entries: Vec::new(),
            trip_threshold: 3,
            recovery_timeout: Duration::from_secs(60),
            recovery_successes_needed: 2,
            max_fail_count: 2,
            probe_timeout: Duration::from_secs(120),
            retry_after_cap: Duration::from_secs(5 * 60),
            probation_limit: None,
            bench: None,
            strikes_reset_on_success: false,
            on_cancel: Cancelled::Ignore,
            when_exhausted: Exhausted::Refuse,
            observed: false,
        }
    }

    /// Whether `failures` transient failures of probes in a row reach `probation_limit`.
    pub(super) fn ends_probation(&self, failures: u32) -> bool {
        self.probation_limit.is_some_and(|limit| failures >= limit)
    }

    /// The name of `server`.
    #[inline]
    pub(crate) fn name(&self, server: Server) -> &Arc<str> {
        match server {
            Server::Primary(_) => &self.primary,
            Server::Entry(entry) => &self.entries[entry],
        }
    }

    /// The index of the entry called `name`. The primary is not an entry.
    pub(crate) fn entry(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| **entry == *name)
    }
}
