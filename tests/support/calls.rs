//! A tool as an agent's loop calls it: by name, with an argument.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tower::{Service, ServiceExt};
use tower_breaker::{BoxError, Reason};

use super::refused;

/// A call of a tool: its name and its argument.
pub type Call = (&'static str, u64);

pub fn search(argument: u64) -> Call {
    ("search", argument)
}

/// A tool that counts its calls. Clones count together.
///
/// It fails calls of `down`, never answers `hung`, and panics if it is called without having been
/// polled ready.
#[derive(Debug, Default)]
pub struct Tool {
    calls: Arc<AtomicUsize>,
    stuck: Arc<AtomicBool>,
    ready: bool,
}

impl Tool {
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Whether it is never ready. It wakes nobody.
    pub fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::SeqCst);
    }
}

impl Clone for Tool {
    fn clone(&self) -> Self {
        Self {
            calls: Arc::clone(&self.calls),
            stuck: Arc::clone(&self.stuck),
            ready: false,
        }
    }
}

impl Service<Call> for Tool {
    type Response = u64;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<u64, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.stuck.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (name, argument): Call) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without having been polled ready"
        );
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

/// Trips by three errors and refuses four more calls.
pub async fn armed<S: Service<Call, Error = BoxError>>(tool: &mut S)
where
    S::Response: std::fmt::Debug,
{
    for n in 0..3 {
        let err = call(tool, ("down", n)).await.expect_err("its own error");
        assert_eq!(err.to_string(), "the tool's own error");
    }
    for n in 0..4 {
        assert_eq!(
            refused(call(tool, search(n)).await).reason(),
            Reason::TripwireOpen
        );
    }
}
