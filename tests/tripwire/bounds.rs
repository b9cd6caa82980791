//! The bounds of services and requests, and the types that go to other threads.

use std::error::Error;
use std::future::{Future, ready};
use std::task::{Context, Poll};

use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::{Digest, KeyedTripwireHandle, TripwireHandle, TripwireLayer};

use super::fixture::{Call, Tool, search};

/// A service that is not `Clone`. Its future is neither `Send` nor `'static`.
struct Borrowing<'a>(&'a std::cell::Cell<u32>);

impl<'a> Service<u32> for Borrowing<'a> {
    type Response = u32;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<u32, Self::Error>> + 'a>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u32) -> Self::Future {
        let cell = self.0;
        Box::pin(async move {
            cell.set(cell.get() + n);
            Ok(n)
        })
    }
}

// ===== the layer =====

#[tokio::test]
async fn a_clone_that_is_configured_further_is_another_fence() {
    let layer = TripwireLayer::new();
    let shared = layer.clone();
    let other = layer.clone().max_turns(3);
    let tool = Tool::default();
    layer.layer(tool.clone()).oneshot(search(1)).await.unwrap();
    shared.layer(tool.clone()).oneshot(search(2)).await.unwrap();
    assert_eq!(layer.handle().turns(), 2);
    assert_eq!(shared.handle().turns(), 2);
    assert_eq!(other.handle().turns(), 0);
}

#[test]
fn layers_services_futures_and_handles_go_to_other_threads_and_their_types_have_names() {
    fn crosses_threads<T: Send + Sync + 'static>(_: &T) {}
    struct Keeps {
        _run: TripwireHandle<()>,
        _runs: KeyedTripwireHandle<String, (), ()>,
    }
    let layer = TripwireLayer::new().digest(|call: &Call| Digest::of(call));
    let mut service = layer.layer(service_fn(|_: Call| ready(Ok::<_, BoxError>(()))));
    crosses_threads(&layer);
    crosses_threads(&layer.handle());
    crosses_threads(&service);
    crosses_threads(&service.call(search(1)));
    let sessions = layer.clone().per_session(|call: &Call| call.0, 10);
    crosses_threads(&sessions);
    crosses_threads(&sessions.handle());
    let keeps = Keeps {
        _run: layer.handle().without_requests(),
        _runs: sessions.handle().without_requests(),
    };
    crosses_threads(&keeps);
    for debug in [
        format!("{layer:?}"),
        format!("{sessions:?}"),
        format!("{:?}", layer.handle()),
        format!("{:?}", sessions.handle()),
    ] {
        assert!(debug.contains("Tripwire"), "{debug}");
    }
}

#[tokio::test]
async fn the_inner_service_is_asked_to_be_a_service_and_no_more() {
    let sum = std::cell::Cell::new(0);
    let mut tool = TripwireLayer::new().layer(Borrowing(&sum));
    for n in 1..4 {
        tool.ready().await.unwrap().call(n).await.unwrap();
    }
    assert_eq!(sum.get(), 6);
}
