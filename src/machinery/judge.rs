//! When a call is judged: at the head of its response, or at the end of its body.

#[cfg(feature = "http")]
use super::held_permit::HeldPermit;

/// Judges a call as soon as its response is there, and leaves the response as it is.
///
/// The default of every layer. The setter `judge` takes another one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head;

/// Says when a response of type `Res` is judged, and what the caller gets.
pub trait Judge<Res> {
    /// The response of the guarded service.
    type Response;

    /// Whether the head of a response decides alone.
    const AT_HEAD: bool;

    /// Makes the caller's response of one that has its verdict.
    fn pass(&self, response: Res) -> Self::Response;

    /// Makes the caller's response of one that takes the call's permit along, since its verdict is
    /// still to come.
    #[cfg(feature = "http")]
    fn hold(&self, response: Res, permit: HeldPermit) -> Self::Response;
}

impl<Res> Judge<Res> for Head {
    type Response = Res;

    const AT_HEAD: bool = true;

    #[inline]
    fn pass(&self, response: Res) -> Res {
        response
    }

    #[cfg(feature = "http")]
    fn hold(&self, response: Res, mut permit: HeldPermit) -> Res {
        permit.record(crate::vocabulary::Outcome::Success);
        response
    }
}
