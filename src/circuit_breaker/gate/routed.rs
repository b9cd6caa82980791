//! One circuit for each key, with substitutes for the keys whose circuits refuse.

use std::fmt;
use std::time::Duration;

use super::deny;
use super::per_key::{Circuits, Route};
use crate::circuit_breaker::permit::CallPermit;
use crate::machinery::keyed::{Borrowed, ExtractKey};
use crate::vocabulary::Refusal;

/// Finds the key in the request, and sends the call to a substitute if the key's circuit refuses.
#[derive(Clone)]
pub struct Routed<F, W> {
    pub(crate) key: Borrowed<F, str>,
    pub(crate) rewrite: W,
}

impl<F, W, Req> Route<String, Req> for Routed<F, W>
where
    F: Fn(&Req) -> &str,
    W: Fn(&mut Req, &str),
{
    fn key(&self) -> &impl ExtractKey<String, Req> {
        &self.key
    }

    fn admit(&self, circuits: &Circuits<String>, req: &mut Req) -> Result<CallPermit, Refusal> {
        let (key, store) = (self.key.of(req), circuits.keyed().store());
        let mut by = match circuits.acquire(store.get(key), || key.to_owned()) {
            Ok(permit) => return Ok(permit),
            Err(by) => by,
        };
        // Under `observe_only` the call runs as it is, so it is not sent elsewhere.
        let substitutes = if circuits.keyed().rules().observe_only {
            &[]
        } else {
            circuits.router().substitutes(key)
        };
        for name in substitutes {
            match circuits.acquire(store.get(name), || name.to_owned()) {
                Ok(permit) => {
                    (self.rewrite)(req, name);
                    return Ok(permit);
                }
                Err(other) => by.denied.wait = shorter(by.denied.wait, other.denied.wait),
            }
        }
        deny(by.machine_ref.machine(), by.denied)
    }
}

/// The shorter of two waits. `None` is a wait without end, which is longer than any other.
fn shorter(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl<F, W> fmt::Debug for Routed<F, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Routed")
    }
}
