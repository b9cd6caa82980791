//! `tower::retry` around a circuit breaker.

use std::any::Any;

use tower::retry::Policy;

use crate::vocabulary::in_error;

/// Keeps a retry policy from spending attempts on refusals.
///
/// It is for `retry(breaker(..))`: an open circuit ends the retries. The caller gets the refusal
/// as it is, and the wrapped policy does not see it.
///
/// The policy looks at the error as the service returns it. It recognises an error that is a
/// [`Refusal`](crate::Refusal), and a [`BoxError`](crate::BoxError) with a refusal anywhere in its
/// chain of sources.
///
/// # Examples
///
/// ```
/// use std::future;
/// use tower::{BoxError, ServiceBuilder, retry::Policy, service_fn};
/// use tower_breaker::{CircuitBreakerLayer, retry::SkipRefusals};
///
/// #[derive(Clone)]
/// struct Attempts(u32);
///
/// impl Policy<String, String, BoxError> for Attempts {
///     type Future = future::Ready<()>;
///
///     fn retry(
///         &mut self,
///         _: &mut String,
///         result: &mut Result<String, BoxError>,
///     ) -> Option<Self::Future> {
///         self.0 = self.0.checked_sub(1)?;
///         result.is_err().then(|| future::ready(()))
///     }
///
///     fn clone_request(&mut self, req: &String) -> Option<String> {
///         Some(req.clone())
///     }
/// }
///
/// let tool = ServiceBuilder::new()
///     .retry(SkipRefusals(Attempts(5)))
///     .layer(CircuitBreakerLayer::new())
///     .service(service_fn(|query: String| async move { Ok::<_, BoxError>(query) }));
/// # let _ = tool;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SkipRefusals<P>(pub P);

impl<P, Req, Res, E> Policy<Req, Res, E> for SkipRefusals<P>
where
    P: Policy<Req, Res, E>,
    E: 'static,
{
    type Future = P::Future;

    fn retry(&mut self, req: &mut Req, result: &mut Result<Res, E>) -> Option<Self::Future> {
        match result {
            Err(err) if in_error(err as &dyn Any).is_some() => None,
            result => self.0.retry(req, result),
        }
    }

    fn clone_request(&mut self, req: &Req) -> Option<Req> {
        self.0.clone_request(req)
    }
}
