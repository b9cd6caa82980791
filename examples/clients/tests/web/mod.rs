//! What the clients that answer with a response and its body have in common: the ways to fail, and what each says to the layers.

use std::time::Duration;

use futures::future::join_all;
use tower::BoxError;
use tower_breaker::{CircuitBreakerHandle, FailureKind, FallbackHandle, FallbackState, State};
use tower_breaker_clients::faulty::{Answer, Fault, Server};

/// What the server answers when it is well.
pub const WHOLE: &str = "one two three";

/// The layers' cooldown: longer than any test, so that what is left of it tells whether a hint was heeded.
pub const COOLDOWN: Duration = Duration::from_secs(600);

/// What a throttled server asks for.
pub const HINT: Duration = Duration::from_secs(900);

/// How long a client waits for nothing in a cell where nothing comes.
const HUNG: Duration = Duration::from_millis(300);

/// As that, but what comes before has to be there by then.
const HUNG_LATER: Duration = Duration::from_secs(2);

/// How long it waits where something comes, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

/// The ways to fail.
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

    /// How long a client waits for the head.
    pub fn for_head(self) -> Duration {
        match self {
            Self::HangBeforeHead => HUNG,
            _ => LONG,
        }
    }

    /// How long a client waits for each frame of the body.
    pub fn for_frame(self) -> Duration {
        match self {
            Self::HeadThenHang => HUNG_LATER,
            _ => LONG,
        }
    }

    /// What it says to the layers; `None` for a success.
    fn failure(self) -> Option<FailureKind> {
        match self {
            Self::SlowDrip | Self::Clean => None,
            Self::ThrottledWithHint => Some(FailureKind::RateLimited),
            _ => Some(FailureKind::Transient),
        }
    }

    /// Whether it is no failure at all.
    pub fn is_well(self) -> bool {
        self.failure().is_none()
    }

    /// Whether it fails after a head that promised success.
    pub fn fails_after_its_head(self) -> bool {
        matches!(self, Self::HeadThenHang | Self::CutInBody)
    }
}

/// What a caller got.
#[derive(Debug)]
pub enum Seen {
    /// The whole answer.
    Answer(u16, String),
    /// An error instead of a head.
    NoHead(BoxError),
    /// A head, so much of the body, and an error.
    NoEnd(u16, String, BoxError),
}

/// A server in the state of `cell`.
pub async fn server(cell: Cell) -> Server {
    let mut server = start().await;
    server.set(cell.fault());
    if cell == Cell::RefusedConnection {
        server.kill().await;
    }
    server
}

/// A server that is well.
pub async fn start() -> Server {
    Server::start(|_| Answer::of("text/plain", &["one ", "two ", "three"]))
        .await
        .unwrap()
}

/// Runs all cells at once, since some of them wait.
pub async fn each_cell(run: impl AsyncFn(Cell)) {
    join_all(Cell::ALL.map(|cell| run(cell))).await;
}

/// The circuit after one call, which it counted once. Its threshold is 1.
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

/// The fallback after one turn that its primary served. Its threshold is 2.
pub fn assert_primary(cell: Cell, fallback: &FallbackHandle) {
    let now = fallback.snapshot();
    assert_eq!(now.last_failure, cell.failure(), "{cell:?}");
    let failures = u32::from(cell.failure().is_some());
    let seen = (now.state, now.consecutive_failures, now.entries[0].strikes);
    assert_eq!(seen, (FallbackState::Primary, failures, 0), "{cell:?}");
}

/// The fallback after a turn that its primary failed, and tripped, and one that its backup served.
pub fn assert_backup(cell: Cell, fallback: &FallbackHandle) {
    let now = fallback.snapshot();
    let strikes = u32::from(cell.failure().is_some());
    let seen = (now.state, now.trips, now.entries[0].strikes);
    assert_eq!(seen, (FallbackState::Fallback, 1, strikes), "{cell:?}");
    // A backup's hint is not the primary's.
    assert!(now.time_until_probe.unwrap() <= COOLDOWN, "{cell:?}");
}

/// The cooldown, or the hint if that is longer.
fn assert_wait(cell: Cell, left: Duration) {
    let whole = match cell {
        Cell::ThrottledWithHint => HINT,
        _ => COOLDOWN,
    };
    let gone = whole.checked_sub(left);
    assert!(gone.is_some_and(|gone| gone < LONG), "{cell:?}: {left:?}");
}
