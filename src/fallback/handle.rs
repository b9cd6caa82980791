//! The handle: a chain without its services.

use std::error::Error;
use std::fmt;
use std::sync::Arc as StdArc;

use super::chain::Chain;
use super::gate;
use super::snapshot::FallbackSnapshot;
use crate::machinery::shared_machine::{MachineRef, SharedMachine};
use crate::machinery::sync::Arc;
use crate::vocabulary::FallbackState;

/// A handle on the chain of a [`FallbackLayer`](super::FallbackLayer): shows it, and moves it by
/// hand.
///
/// # Examples
///
/// ```
/// # use tower_breaker::{FallbackLayer, FallbackState};
/// let rewrite = |request: &mut String, model: &str| *request = model.into();
/// let layer = FallbackLayer::rewriting("gpt-5", rewrite)
///     .model("gpt-5-mini")
///     .model("gpt-4");
/// let fallback = layer.handle();
///
/// assert_eq!(fallback.state(), FallbackState::Primary);
/// assert_eq!(fallback.active_model().as_deref(), Some("gpt-5"));
/// assert!(!fallback.fallback_activated());
///
/// fallback.disable("gpt-5-mini")?;
/// let unknown = fallback.disable("gpt-6").unwrap_err();
/// assert_eq!(unknown.to_string(), "no entry `gpt-6` in the chain: it has `gpt-5-mini`, `gpt-4`");
/// # Ok::<_, tower_breaker::UnknownEntry>(())
/// ```
#[derive(Clone)]
pub struct FallbackHandle {
    machine_ref: Arc<MachineRef<Chain>>,
}

impl FallbackHandle {
    pub(super) fn new(machine_ref: &Arc<MachineRef<Chain>>) -> Self {
        Self {
            machine_ref: Arc::clone(machine_ref),
        }
    }

    fn machine(&self) -> &SharedMachine<Chain> {
        self.machine_ref.machine()
    }

    /// The state. After the cooldown it still reads as [`FallbackState::Fallback`], until a turn
    /// moves it.
    #[must_use]
    pub fn state(&self) -> FallbackState {
        self.snapshot().state
    }

    /// The name of the model that would serve the next turn. `None` if the turn would be refused.
    ///
    /// Asking changes nothing, however often.
    #[must_use]
    pub fn active_model(&self) -> Option<StdArc<str>> {
        let machine = self.machine();
        let server = gate::would_serve(machine).ok()?;
        Some(StdArc::clone(machine.rules().name(server)))
    }

    /// Whether the primary has ever tripped since the layer was made, or since
    /// [`reset`](Self::reset).
    #[must_use]
    pub fn fallback_activated(&self) -> bool {
        self.machine().read(|chain, _, _| chain.is_activated())
    }

    /// The fallback as it is now.
    #[must_use]
    pub fn snapshot(&self) -> FallbackSnapshot {
        let machine = self.machine();
        let now = machine.now();
        machine.read(|chain, packed, rules| chain.snapshot(packed, rules, now))
    }

    /// Takes an entry out of the chain, until [`enable`](Self::enable). No turn is sent to it any
    /// more.
    ///
    /// A turn whose service was polled ready before is still served by it.
    ///
    /// # Errors
    ///
    /// If the chain has no entry of that name. The primary is not an entry.
    pub fn disable(&self, name: &str) -> Result<(), UnknownEntry> {
        self.set_disabled(name, true)
    }

    /// Puts a disabled entry back into the chain. Its strikes are as they were.
    ///
    /// # Errors
    ///
    /// If the chain has no entry of that name.
    pub fn enable(&self, name: &str) -> Result<(), UnknownEntry> {
        self.set_disabled(name, false)
    }

    fn set_disabled(&self, name: &str, disabled: bool) -> Result<(), UnknownEntry> {
        let machine = self.machine();
        let rules = machine.rules();
        let entry = rules.entry(name).ok_or_else(|| UnknownEntry {
            name: name.into(),
            known: rules.entries.clone(),
        })?;
        machine.step(|chain, _, events| chain.set_disabled(entry, disabled, events));
        Ok(())
    }

    /// Begins anew: the primary serves, and strikes, counts and hints are forgotten.
    ///
    /// Disabled entries stay disabled. Results of turns in flight are stale.
    pub fn reset(&self) {
        let machine = self.machine();
        let now = machine.now();
        machine.step(|chain, rules, events| chain.reset(rules, now, events));
    }
}

impl fmt::Debug for FallbackHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackHandle")
            .field("chain", &self.machine_ref)
            .finish()
    }
}

/// The error for a name that no entry of a chain has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEntry {
    name: StdArc<str>,
    known: Vec<StdArc<str>>,
}

impl UnknownEntry {
    /// The name that was asked for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of the entries, in the chain's order.
    #[must_use]
    pub fn known(&self) -> &[StdArc<str>] {
        &self.known
    }
}

impl fmt::Display for UnknownEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no entry `{}` in the chain: it ", self.name)?;
        let mut known = self.known.iter();
        match known.next() {
            None => return f.write_str("is empty"),
            Some(first) => write!(f, "has `{first}`")?,
        }
        known.try_for_each(|name| write!(f, ", `{name}`"))
    }
}

impl Error for UnknownEntry {}
