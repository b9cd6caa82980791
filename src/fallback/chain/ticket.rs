//! The ticket of a turn, from its admission to its verdict: who serves it, and since when.

use std::fmt;

use crate::machinery::packed_state::PackedState;

/// The server of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Server {
    Primary(Role),
    /// The entry of this index in the chain.
    Entry(usize),
}

/// The role of a turn of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Ordinary,
    Probe,
    /// The primary is down, and serves because nobody else can. The result says nothing.
    Uncounted,
}

/// Which services a caller has ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Readied {
    /// No service. Only an entry can serve, which is readied later.
    Nothing,
    /// The primary. An entry can serve too, which is readied later.
    Primary,
    /// This entry alone.
    Entry(usize),
}

/// The machine's part of a permit: it says what the turn's verdict applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    pub(crate) since: Since,
    pub(crate) server: Server,
}

impl Ticket {
    /// The ticket of a turn that `packed`, like every turn, sends to the primary.
    #[inline]
    pub(crate) fn ordinary(packed: PackedState) -> Self {
        Self {
            since: Since(u64::from(packed.generation())),
            server: Server::Primary(Role::Ordinary),
        }
    }
}

/// The generation and the epoch in which a turn was admitted.
///
/// A primary's result is judged by its generation, an entry's by its epoch. Both are in one
/// number, which a permit stores with one write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Since(u64);

impl Since {
    pub(crate) fn new(generation: u32, epoch: u32) -> Self {
        Self(u64::from(generation) | u64::from(epoch) << 32)
    }

    #[allow(clippy::cast_possible_truncation)] // The lower half is meant.
    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 & u64::from(u32::MAX)) as u32
    }

    pub(crate) fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.generation(), self.epoch())
    }
}
