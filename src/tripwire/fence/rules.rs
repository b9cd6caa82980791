//! The rules by which a fence decides.

use std::time::Duration;

/// The rules of one layer. All its fences share them.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) max_turns: u32,
    pub(crate) identical_limit: u32,
    pub(crate) error_limit: u32,
    pub(crate) open_cooldown_rejects: u32,
    pub(crate) deadline: Option<Duration>,
    pub(crate) cycles: Option<Cycles>,
    pub(crate) warn_at: Option<u32>,
    /// Each call says to which of its planner's turns it belongs.
    pub(crate) by_turn: bool,
    pub(crate) observe_only: bool,
}

/// Which cycles of calls are a repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycles {
    pub(crate) max_period: usize,
    pub(crate) repeats: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            max_turns: 8,
            identical_limit: 3,
            error_limit: 3,
            open_cooldown_rejects: 4,
            deadline: None,
            cycles: None,
            warn_at: None,
            by_turn: false,
            observe_only: false,
        }
    }
}

impl Rules {
    /// Whether they need more of the past than the last call.
    pub(super) fn need_memory(&self) -> bool {
        self.by_turn || self.cycles.is_some()
    }
}
