//! The refusal policies: what becomes of a refused call.

use std::fmt;

use super::Refusal;
use crate::vocabulary::BoxError;

/// Decides what becomes of a refused call, and of the inner service's errors.
///
/// The stock policies are [`AsBoxError`] (the default), [`IntoError`], and the closure that
/// [`refuse_with`](crate::CircuitBreakerLayer::refuse_with) takes.
pub trait Refuse<Req, Res, E> {
    /// The error of the guarded service.
    type Error;

    /// Answers a refused call.
    ///
    /// # Errors
    ///
    /// A policy may answer with an error, or with a response that reports the refusal.
    fn refuse(&self, req: Req, refusal: Refusal) -> Result<Res, Self::Error>;

    /// Converts an error of the inner service into one of the guarded service.
    fn convert(err: E) -> Self::Error;
}

/// The default refusal policy: a refusal becomes a boxed error, as tower's own errors do.
///
/// [`Refusal::find`] finds it again.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsBoxError;

impl<Req, Res, E: Into<BoxError>> Refuse<Req, Res, E> for AsBoxError {
    type Error = BoxError;

    fn refuse(&self, _: Req, refusal: Refusal) -> Result<Res, BoxError> {
        Err(refusal.into())
    }

    fn convert(err: E) -> BoxError {
        err.into()
    }
}

/// The refusal policy for a service whose own error is `From<Refusal>`. The error type stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct IntoError;

impl<Req, Res, E: From<Refusal>> Refuse<Req, Res, E> for IntoError {
    type Error = E;

    fn refuse(&self, _: Req, refusal: Refusal) -> Result<Res, E> {
        Err(refusal.into())
    }

    fn convert(err: E) -> E {
        err
    }
}

/// The refusal policy of a closure, as `refuse_with` makes it. The error type stays.
#[derive(Clone, Copy)]
pub struct RefuseWith<F> {
    f: F,
}

impl<F> RefuseWith<F> {
    /// Makes a policy that answers refused calls with `f`.
    pub const fn new(f: F) -> Self {
        Self { f }
    }
}

impl<F, Req, Res, E> Refuse<Req, Res, E> for RefuseWith<F>
where
    F: Fn(Req, Refusal) -> Result<Res, E>,
{
    type Error = E;

    fn refuse(&self, req: Req, refusal: Refusal) -> Result<Res, E> {
        (self.f)(req, refusal)
    }

    fn convert(err: E) -> E {
        err
    }
}

impl<F> fmt::Debug for RefuseWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RefuseWith")
            .field(&format_args!("{}", std::any::type_name::<F>()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Reason;

    #[test]
    fn the_stock_policies_refuse_and_convert() {
        #[derive(Debug, PartialEq)]
        enum Mine {
            Refused,
            Own,
        }
        impl From<Refusal> for Mine {
            fn from(_: Refusal) -> Self {
                Mine::Refused
            }
        }
        let refusal = Refusal::breaker(Reason::CircuitOpen);

        let boxed = Refuse::<(), (), BoxError>::refuse(&AsBoxError, (), refusal.clone());
        assert_eq!(
            boxed.map_err(|err| Refusal::find(&*err).cloned()),
            Err(Some(refusal.clone()))
        );
        let kept = <AsBoxError as Refuse<(), (), BoxError>>::convert("mine".into());
        assert_eq!(kept.to_string(), "mine");

        assert_eq!(
            Refuse::<(), (), Mine>::refuse(&IntoError, (), refusal.clone()),
            Err(Mine::Refused)
        );
        assert_eq!(
            <IntoError as Refuse<(), (), Mine>>::convert(Mine::Own),
            Mine::Own
        );

        let soft =
            RefuseWith::new(|req: u8, refusal: Refusal| Ok::<_, Mine>((req, refusal.reason())));
        assert_eq!(soft.refuse(7, refusal), Ok((7, Reason::CircuitOpen)));
        fn convert<P: Refuse<u8, (u8, Reason), Mine>>(_: &P, err: Mine) -> P::Error {
            P::convert(err)
        }
        let _: Mine = convert(&soft, Mine::Own);
        assert!(format!("{soft:?}").starts_with("RefuseWith("));
    }
}
