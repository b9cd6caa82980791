//! Shared by the tests of clients that answer with a response and its body: the faults, and what
//! each means to the layers.

use std::time::Duration;

use futures::future::join_all;
use tower::BoxError;
use tower_breaker::{CircuitBreakerHandle, FailureKind, FallbackHandle, FallbackState, State};
use tower_breaker_clients::faulty::{Answer, Fault, Server};

/// The answer of a server without a fault.
pub const WHOLE: &str = "one two three";

/// The cooldown of the layers. It is longer than any test, so the time left shows whether a layer
/// used a hint.
pub const COOLDOWN: Duration = Duration::from_secs(600);

/// The wait that a throttled server asks for.
pub const HINT: Duration = Duration::from_secs(900);

/// How long a client waits in a cell where nothing comes.
const HUNG: Duration = Duration::from_millis(300);

/// How long a client waits where something comes before the hang.
const HUNG_LATER: Duration = Duration::from_secs(2);

/// How long a client waits where everything comes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    RefusedConnection,
    HangBeforeHead,
    HeadThenHang,
    CutInBody,
    ThrottledWithHint,
    Status500,
    SlowDrip,
    Clean,
}

impl Cell {
    pub const ALL: [Self; 8] = [
        Self::RefusedConnection,
        Self::HangBeforeHead,
        Self::HeadThenHang,
        Self::CutInBody,
        Self::ThrottledWithHint,
        Self::Status500,
        Self::SlowDrip,
        Self::Clean,
    ];

    fn fault(self) -> Fault {
        match self {
            Self::RefusedConnection | Self::Clean => Fault::Clean,
            Self::HangBeforeHead => Fault::HangBeforeHead,
            Self::HeadThenHang => Fault::HeadThenHang,
            Self::CutInBody => Fault::CutInBody,
            Self::ThrottledWithHint => Fault::Throttled(HINT.as_secs()),
            Self::Status500 => Fault::Status(500),
            Self::SlowDrip => Fault::Drip(Duration::from_millis(50)),
        }
    }

    /// Returns how long a client waits for the head.
    pub fn for_head(self) -> Duration {
        match self {
            Self::HangBeforeHead => HUNG,
            _ => LONG,
        }
    }

    /// Returns how long a client waits for each frame of the body.
    pub fn for_frame(self) -> Duration {
        match self {
            Self::HeadThenHang => HUNG_LATER,
            _ => LONG,
        }
    }

    /// Returns the failure that the layers count; `None` for a success.
    fn failure(self) -> Option<FailureKind> {
        match self {
            Self::SlowDrip | Self::Clean => None,
            Self::ThrottledWithHint => Some(FailureKind::RateLimited),
            _ => Some(FailureKind::Transient),
        }
    }

    /// Returns whether this cell is no failure.
    pub fn is_well(self) -> bool {
        self.failure().is_none()
    }

    /// Returns whether this cell fails after a head of a success.
    pub fn fails_after_its_head(self) -> bool {
        matches!(self, Self::HeadThenHang | Self::CutInBody)
    }
}

/// What a caller saw.
#[derive(Debug)]
pub enum Seen {
    /// The whole answer.
    Answer(u16, String),
    /// An error instead of a head.
    NoHead(BoxError),
    /// A head, this part of the body, and an error.
    NoEnd(u16, String, BoxError),
}

/// Starts a server with the fault of `cell`.
pub async fn server(cell: Cell) -> Server {
    let mut server = start().await;
    server.set(cell.fault());
    if cell == Cell::RefusedConnection {
        server.kill().await;
    }
    server
}

/// Starts a server without a fault.
pub async fn start() -> Server {
    Server::start(|_| Answer::of("text/plain", &["one ", "two ", "three"]))
        .await
        .unwrap()
}

/// Runs all cells in parallel, because some of them wait.
pub async fn each_cell(run: impl AsyncFn(Cell)) {
    join_all(Cell::ALL.map(|cell| run(cell))).await;
}

/// Asserts the state of a circuit with threshold 1 after one call, which it counts once.
pub fn assert_circuit(cell: Cell, circuit: &CircuitBreakerHandle) {
    let now = circuit.snapshot();
    assert_eq!(now.last_failure, cell.failure(), "{cell:?}");
    if cell.failure().is_none() {
        let expected = (State::Closed, 0, 0, None);
        let seen = (now.state, now.streak, now.trips, now.time_left);
        assert_eq!(seen, expected, "{cell:?}");
        return;
    }
    let seen = (now.state, now.streak, now.trips, now.due);
    assert_eq!(seen, (State::Open, 1, 1, false), "{cell:?}");
    assert_wait(cell, now.time_left.unwrap());
}

/// Asserts the state of a fallback with threshold 2 after one turn of its primary.
pub fn assert_primary(cell: Cell, fallback: &FallbackHandle) {
    let now = fallback.snapshot();
    assert_eq!(now.last_failure, cell.failure(), "{cell:?}");
    let failures = u32::from(cell.failure().is_some());
    let seen = (now.state, now.consecutive_failures, now.entries[0].strikes);
    assert_eq!(seen, (FallbackState::Primary, failures, 0), "{cell:?}");
}

/// Asserts the state of a fallback after a failed turn of its primary, which tripped it, and one
/// turn of its backup.
pub fn assert_backup(cell: Cell, fallback: &FallbackHandle) {
    let now = fallback.snapshot();
    let strikes = u32::from(cell.failure().is_some());
    let seen = (now.state, now.trips, now.entries[0].strikes);
    assert_eq!(seen, (FallbackState::Fallback, 1, strikes), "{cell:?}");
    // A backup's hint does not move the primary's cooldown.
    assert!(now.time_until_probe.unwrap() <= COOLDOWN, "{cell:?}");
}

/// Asserts that the time left is that of the cooldown, or of the hint if that is longer.
fn assert_wait(cell: Cell, left: Duration) {
    let whole = match cell {
        Cell::ThrottledWithHint => HINT,
        _ => COOLDOWN,
    };
    let gone = whole.checked_sub(left);
    assert!(gone.is_some_and(|gone| gone < LONG), "{cell:?}: {left:?}");
}
