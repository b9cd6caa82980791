//! Shared by the tests of the tripwire.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tower::{BoxError, Service, ServiceExt};
use tower_breaker::{Reason, Refusal};

/// A call of a tool: its name and its argument.
pub type Call = (&'static str, u64);

pub fn search(argument: u64) -> Call {
    ("search", argument)
}

/// A tool that counts its calls and fails those of `down`.
#[derive(Clone, Default)]
pub struct Tool {
    pub calls: Arc<AtomicUsize>,
}

impl Tool {
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Service<Call> for Tool {
    type Response = u64;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<u64, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (name, argument): Call) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match name {
                "down" => Err("the tool's own error".into()),
                "hung" => pending().await,
                "slow" => {
                    tokio::task::yield_now().await;
                    Ok(argument)
                }
                _ => Ok(argument),
            }
        })
    }
}

/// One call, as an agent makes it.
pub async fn call<S: Service<Call>>(tool: &mut S, call: Call) -> Result<S::Response, S::Error> {
    tool.ready().await?.call(call).await
}

pub fn refusal<T: std::fmt::Debug>(result: Result<T, BoxError>) -> Refusal {
    let err = result.expect_err("a refusal");
    Refusal::find(&*err).expect("a refusal").clone()
}

pub fn reason<T: std::fmt::Debug>(result: Result<T, BoxError>) -> Reason {
    refusal(result).reason()
}

/// Trips the fence by three errors, and lets it refuse four more calls.
pub async fn armed<S: Service<Call, Error = BoxError>>(tool: &mut S)
where
    S::Response: std::fmt::Debug,
{
    for n in 0..3 {
        let err = call(tool, ("down", n)).await.expect_err("its own error");
        assert_eq!(err.to_string(), "the tool's own error");
    }
    for n in 0..4 {
        assert_eq!(reason(call(tool, search(n)).await), Reason::TripwireOpen);
    }
}
