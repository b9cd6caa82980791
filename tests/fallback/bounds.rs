//! The bounds of services and requests, and the types that go to other threads.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::task::{Context, Poll};

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{FallbackLayer, FallbackState, Refusal};
use tower_test::assert_request_eq;

use super::fixture::{Mocks, mocks, trip_mocks};
use crate::support::models::{Answer, DOWN, Model, ModelError, classify, turn};

#[tokio::test(start_paused = true)]
async fn the_primary_and_the_request_need_no_further_bounds() {
    /// A service that borrows, and is neither `Clone` nor `Send`. Neither are its parts.
    struct Local<'a>(&'a str, Rc<()>);
    struct Request(Rc<()>);

    impl Service<Request> for Local<'_> {
        type Response = usize;
        type Error = Infallible;
        type Future = Ready<Result<usize, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request) -> Self::Future {
            ready(Ok(self.0.len() + Rc::strong_count(&request.0)))
        }
    }

    let text = "borrowed".to_owned();
    let mut services = FallbackLayer::new("primary")
        .refuse_with(|_: Request, _: Refusal| Ok::<_, Infallible>(0))
        .layer(Local(&text, Rc::new(())));
    let answer = services.ready().await.unwrap().call(Request(Rc::new(())));
    assert_eq!(answer.await, Ok(9));
    assert_eq!(services.get_ref().0, text);
    assert_eq!(Rc::strong_count(&services.get_mut().1), 1);
    assert_eq!(services.into_inner().0, text);

    let mut models = FallbackLayer::rewriting("primary", |_: &mut Request, _: &str| ())
        .model("a")
        .refuse_with(|_: Request, _: Refusal| Ok::<_, Infallible>(0))
        .layer(Local(&text, Rc::new(())));
    let answer = models.ready().await.unwrap().call(Request(Rc::new(())));
    assert_eq!(answer.await, Ok(9));
}

#[test]
fn a_service_and_its_future_are_send_if_their_parts_are_and_backups_need_not_be_sync() {
    fn is_send<T: Send>(_: &T) {}
    type Boxed = tower::util::BoxCloneService<String, Answer, ModelError>;
    let backup: Boxed = Boxed::new(Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", backup.clone())
        .backup("b", backup)
        .same_turn(|req: &String| Some(req.clone()));
    let mut service = layer.layer(Model::new("primary"));
    is_send(&layer);
    is_send(&service);
    is_send(&service.call(String::new()));
    assert!(!format!("{service:?} {layer:?} {:?}", layer.handle()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_service_and_of_a_layer_share_the_chain_until_a_setter() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .classify(classify);
    let handle = layer.handle();
    primary.does(DOWN);
    for service in [
        layer.layer(primary.clone()),
        layer.layer(primary.clone()).clone(),
        layer.clone().layer(primary.clone()),
    ] {
        turn(&service).await.unwrap_err();
    }
    assert_eq!(handle.state(), FallbackState::Fallback);
    let other = layer.clone().trip_threshold(1);
    assert_eq!(other.handle().state(), FallbackState::Primary);
    assert_eq!(handle.state(), FallbackState::Fallback);
}

#[tokio::test(start_paused = true)]
async fn a_future_shows_its_permit() {
    let mut mocks = mocks(|layer| layer);
    let show = async |mocks: &Mocks| {
        let mut service = mocks.service.clone();
        service.ready().await.unwrap();
        format!("{:?}", service.call("hello"))
    };
    let shown = show(&mocks).await;
    assert!(
        shown.contains("permit: Permit { generation: 0, server: Primary(Ordinary) }"),
        "{shown}"
    );
    // Nobody waits for this answer.
    assert_request_eq!(mocks.primary, "hello").send_response("from primary");
    trip_mocks(&mut mocks).await;
    let shown = show(&mocks).await;
    assert!(
        shown.contains("permit: Permit { generation: 1, server: Entry(0) }"),
        "{shown}"
    );
}
