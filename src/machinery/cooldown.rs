//! How the wait that a failure asks for moves a cooldown.

use std::time::Duration;

use super::clock::Timestamp;
use crate::vocabulary::Failure;

/// Returns until when `failure` asks the caller to wait, at most `cap` from `now`. Returns
/// [`Timestamp::START`] if the failure carries no wait.
pub(crate) fn retry_deadline(failure: Failure, now: Timestamp, cap: Duration) -> Timestamp {
    failure
        .retry_after()
        .map_or(Timestamp::START, |wait| now.saturating_add(wait.min(cap)))
}

/// Returns the end of a cooldown that ran until `deadline`, after a stale `failure` has restarted
/// it at `now`. The later deadline wins.
pub(crate) fn restarted(
    failure: Failure,
    deadline: Timestamp,
    now: Timestamp,
    cooldown: Duration,
    cap: Duration,
) -> Timestamp {
    let restarted = deadline
        .max(now.saturating_add(cooldown))
        .max(retry_deadline(failure, now, cap));
    // A cooldown that is over stays as it is. It may be the cooldown of a lease that has just
    // ended, and the deadline of that lease must stay unique.
    if restarted > now { restarted } else { deadline }
}
