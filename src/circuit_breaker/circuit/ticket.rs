//! The ticket that an admitted call carries.

use crate::machinery::packed_state::PackedState;

/// The generation in which a call was admitted, and its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    pub(crate) generation: u32,
    pub(crate) role: Role,
}

impl Ticket {
    /// The ticket of a call that `packed` admits without a look at the machine.
    #[inline]
    pub(crate) fn ordinary(packed: PackedState) -> Self {
        Self {
            generation: packed.generation(),
            role: Role::Ordinary,
        }
    }
}

/// Whether an admitted call is an ordinary one or the probe.
///
/// It is an enum and not a `bool`, because the compiler stores the variant of a future in the
/// unused values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Ordinary,
    Probe,
}
