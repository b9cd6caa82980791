//! The settings of a layer, as its circuits read them.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::time::Duration;

use super::window::{Window, WindowCounts};
use crate::machinery::clock::{Timestamp, nanos};
use crate::vocabulary::{Cancelled, Failure, Outcome};

/// The behaviour of `poll_ready` while the circuit would refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenOpen {
    /// `poll_ready` is ready, and the call is refused at once.
    Refuse,
    /// `poll_ready` is pending until the circuit would allow a call: until the cooldown is over,
    /// the probe's slot is free, or the circuit is closed.
    ///
    /// So `tower::balance` and its like choose another endpoint. It needs a tokio runtime with
    /// time.
    NotReady,
}

/// The settings of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) failure_threshold: u32,
    pub(crate) recovery_duration: Duration,
    pub(crate) probe_timeout: Duration,
    pub(crate) success_threshold: u32,
    pub(crate) retry_after_cap: Duration,
    pub(crate) backoff: Option<Backoff>,
    /// The largest part of a cooldown that is added to it.
    pub(crate) jitter: f64,
    pub(crate) rate: Option<Rate>,
    /// How many calls the window must hold before the rate counts. A window of fewer calls must be
    /// full.
    pub(crate) minimum_calls: u32,
    pub(crate) slow_call: Option<Duration>,
    pub(crate) on_cancel: Cancelled,
    pub(crate) observe_only: bool,
    pub(crate) when_open: WhenOpen,
}

/// How the cooldown grows after each failed probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) factor: f64,
    pub(crate) max: Duration,
}

/// The failure rate that trips the circuit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) fraction: f64,
    pub(crate) window: Window,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            failure_threshold: 3,
            recovery_duration: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(30),
            success_threshold: 1,
            retry_after_cap: Duration::from_secs(5 * 60),
            backoff: None,
            jitter: 0.0,
            rate: None,
            minimum_calls: 10,
            slow_call: None,
            on_cancel: Cancelled::Ignore,
            observe_only: false,
            when_open: WhenOpen::Refuse,
        }
    }
}

// ===== verdicts =====

impl Rules {
    /// Whether a verdict may depend on how long the call ran.
    pub(crate) fn are_timed(&self) -> bool {
        self.slow_call.is_some() || self.on_cancel.is_timed()
    }

    /// The outcome that counts: a success that took too long is a transient failure.
    #[inline]
    pub(crate) fn judge(&self, outcome: Outcome, ran: impl FnOnce() -> Duration) -> Outcome {
        match (outcome, self.slow_call) {
            (Outcome::Success, Some(slow)) if ran() >= slow => Failure::transient().into(),
            _ => outcome,
        }
    }

    /// Whether the failure rate, if one is set, trips the circuit.
    pub(super) fn rate_is_reached(&self, window: Option<&WindowCounts>, now: Timestamp) -> bool {
        let (Some(rate), Some(window)) = (self.rate, window) else {
            return false;
        };
        let minimum = match rate.window {
            Window::Calls(calls) => calls.min(self.minimum_calls),
            Window::Time(_) => self.minimum_calls,
        };
        let (calls, failures) = window.totals(now);
        // A division, not a multiplication: the quotient is rounded as the fraction was, so the
        // two are equal where they should be. The counts are far below 2⁵³, where an f64 is exact.
        #[allow(clippy::cast_precision_loss)]
        let reached = failures as f64 / calls as f64 >= rate.fraction;
        calls >= u64::from(minimum) && reached
    }
}

// ===== cooldowns =====

impl Rules {
    /// The cooldown that follows one of `cooldown`, without jitter.
    pub(super) fn grown(&self, cooldown: Duration) -> Duration {
        match self.backoff {
            // Never shorter than it was: `max` may be less than the cooldown, and a float rounds.
            Some(Backoff { factor, max }) => times(cooldown, factor).min(max).max(cooldown),
            None => cooldown,
        }
    }

    /// `cooldown` with its jitter, which depends on the seed and on the number of trips so far.
    pub(super) fn jittered(&self, cooldown: Duration, seed: u64, trips: u64) -> Duration {
        if self.jitter == 0.0 {
            return cooldown;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        hasher.write_u64(trips);
        // The upper 53 bits, which an f64 holds exactly, as a number from 0 to 1.
        #[allow(clippy::cast_precision_loss)]
        let part = (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64;
        cooldown.saturating_add(times(cooldown, self.jitter * part))
    }
}

/// `duration` times `factor`, in nanoseconds, saturating.
fn times(duration: Duration, factor: f64) -> Duration {
    // Casts of floats to integers saturate. The setters let no factor pass that is negative or not
    // finite.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    Duration::from_nanos((nanos(duration) as f64 * factor).round() as u64)
}
