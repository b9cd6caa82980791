//! The names of feature `retry`.

use std::future::{Ready, ready};

use tower::ServiceBuilder;
use tower_breaker::CircuitBreakerLayer;

use crate::circuit_breaker::Tool;

#[cfg(feature = "retry")]
#[test]
fn a_retry_policy_is_wrapped_unchanged() {
    use tower::retry::Policy;
    use tower_breaker::retry::SkipRefusals;

    #[derive(Clone, Debug, Default)]
    struct Twice(bool);

    impl<Req: Clone, Res, E> Policy<Req, Res, E> for Twice {
        type Future = Ready<()>;

        fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Ready<()>> {
            (result.is_err() && !std::mem::replace(&mut self.0, true)).then(|| ready(()))
        }

        fn clone_request(&mut self, req: &Req) -> Option<Req> {
            Some(req.clone())
        }
    }

    let _ = ServiceBuilder::new()
        .retry(SkipRefusals(Twice::default()))
        .layer(CircuitBreakerLayer::new())
        .service(Tool);
    let SkipRefusals(Twice(spent)) = SkipRefusals::<Twice>::default();
    assert!(!spent);
}
