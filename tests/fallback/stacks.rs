//! The fallback beside other layers.

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};

use tower::buffer::Buffer;
use tower::retry::{Policy, Retry};
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{CircuitBreakerLayer, FallbackLayer, FallbackState, Reason, State};

use super::fixture::refusal;
use crate::support::models::{Answer, DOWN, Does, FATAL, Model, advance, classify, turn, turns};

#[tokio::test(start_paused = true)]
async fn case_32_a_breaker_inside_counts_the_primarys_results() {
    let down = Arc::new(Mutex::new(0));
    let calls = Arc::clone(&down);
    let primary = service_fn(move |_: String| {
        *calls.lock().unwrap() += 1;
        async { Err::<Answer, BoxError>("the primary is down".into()) }
    });
    let a = Model::new("a");
    let breaker = CircuitBreakerLayer::new().failure_threshold(2);
    let layer = FallbackLayer::new("primary").backup("a", a.clone().map_err(BoxError::from));
    let handle = layer.handle();
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(breaker.clone())
        .service(primary);

    let first = turns(&service, 2).await;
    assert!(
        first
            .iter()
            .all(|turn| *turn == Err("the primary is down".to_owned()))
    );
    assert_eq!(breaker.handle().state(), State::Open);
    let refused = service.clone().oneshot(String::new()).await;
    assert_eq!(refusal(refused).reason(), Reason::CircuitOpen);
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(turns(&service, 20).await, vec![Ok("a"); 20]);
    assert_eq!(*down.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_works_behind_a_buffer() {
    let primary = Model::new("primary");
    let a = Model::new("a");
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .classify(classify);
    let service = Buffer::new(layer.layer(primary.clone()), 8);
    primary.does(DOWN);
    let answers = turns(&service, 10).await;
    assert!(answers[..3].iter().all(Result::is_err));
    assert_eq!(answers[3..], vec![Ok("a"); 7]);
    a.does(FATAL);
    turn(&service).await.unwrap_err();
    assert!(
        turn(&service).await.unwrap_err().contains("backups too"),
        "refused, and the buffer lives"
    );
    a.does(Does::Answer);
    primary.does(Does::Answer);
    advance(60).await;
    assert_eq!(turns(&service, 3).await, vec![Ok("primary"); 3]);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_works_inside_retry() {
    #[derive(Clone)]
    struct Attempts(u32);

    impl Policy<String, Answer, BoxError> for Attempts {
        type Future = Ready<()>;

        fn retry(
            &mut self,
            _: &mut String,
            result: &mut Result<Answer, BoxError>,
        ) -> Option<Ready<()>> {
            self.0 = self.0.checked_sub(1)?;
            result.is_err().then(|| ready(()))
        }

        fn clone_request(&mut self, req: &String) -> Option<String> {
            Some(req.clone())
        }
    }

    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .classify(classify);
    let service = Retry::new(Attempts(3), layer.layer(primary.clone()));
    primary.does(DOWN);
    assert_eq!(
        turn(&service).await,
        Ok("a"),
        "three failed, the fourth went to the chain"
    );
    assert_eq!(primary.count(), 3);
}
