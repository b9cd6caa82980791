//! When a call's verdict is given: at the head of its response, or at the end of its body.

use crate::tripwire::Digest;
use crate::vocabulary::Outcome;
use crate::{circuit_breaker, fallback, tripwire};

/// The verdict is given as soon as the response is there, and the response is left as it is. What layers do unless they are told
/// otherwise by `judge`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head;

/// When a response of type `Res` is judged, and what becomes of it.
pub trait Judge<Res> {
    /// The response as the guarded service answers with it.
    type Response;

    /// Whether the head says all there is to say.
    const AT_HEAD: bool;

    /// A response whose verdict is given.
    fn pass(&self, response: Res) -> Self::Response;

    /// A response whose verdict is yet to come: it takes the call's permit along.
    fn hold(&self, response: Res, permit: Permit) -> Self::Response;
}

impl<Res> Judge<Res> for Head {
    type Response = Res;

    const AT_HEAD: bool = true;

    #[inline]
    fn pass(&self, response: Res) -> Res {
        response
    }

    fn hold(&self, response: Res, mut permit: Permit) -> Res {
        permit.record(Outcome::Success);
        response
    }
}

/// What a response takes along until its verdict: the permit of the layer whose call it answers. Dropped without a verdict, it gives the one of
/// a cancelled call.
#[derive(Debug)]
pub enum Permit {
    Circuit(circuit_breaker::CallPermit),
    Chain(fallback::CallPermit),
    /// And what the head answered, where answers are compared.
    Fence(tripwire::CallPermit, Option<Digest>),
}

impl Permit {
    /// Gives the verdict.
    pub(crate) fn record(&mut self, outcome: Outcome) {
        match self {
            Permit::Circuit(permit) => {
                permit.record(outcome);
            }
            Permit::Chain(permit) => {
                if let Some(settled) = permit.record(outcome) {
                    settled.tell(outcome);
                }
            }
            Permit::Fence(permit, answer) => permit.record(outcome, *answer),
        }
    }
}
