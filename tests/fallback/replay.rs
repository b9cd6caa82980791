//! Proves `same_turn`: a failed turn goes on down the chain, with the same request.

use std::sync::{Arc, Mutex};

use tower::{Layer, ServiceExt};
use tower_breaker::{Event, FallbackLayer, FallbackState};
use tower_test::assert_request_eq;

use crate::support::mocks::{Text, pair};
use crate::support::model::{
    DOWN, Does, Model, ModelError, Models, NEUTRAL, classify, strikes, turn,
};

#[tokio::test(start_paused = true)]
async fn a_failed_turn_goes_down_the_live_chain_to_each_entry_once() {
    let (primary, a, b) = (Model::new("primary"), Model::new("a"), Model::new("b"));
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .backup("b", b.clone())
        .classify(classify)
        .same_turn(|req: &String| Some(req.clone()))
        .observe(move |event: &Event<'_>| {
            let line = match *event {
                Event::Served { by, outcome, .. } => {
                    format!(
                        "{by} served: {}",
                        outcome == tower_breaker::Outcome::Success
                    )
                }
                Event::MovedOn { from, to, .. } => format!("{from} to {to}"),
                _ => return,
            };
            log.lock().unwrap().push(line);
        });
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    let told = || std::mem::take(&mut *told.lock().unwrap());
    primary.does(DOWN);
    a.does(DOWN);
    assert_eq!(turn(&service).await, Ok("b"));
    assert_eq!(told(), ["primary to a", "a to b", "b served: true"]);
    assert_eq!((primary.count(), a.count(), b.count()), (1, 1, 1));
    assert_eq!(strikes(&handle.snapshot()), [1, 0]);

    // The last entry's failure is the turn's result.
    b.does(DOWN);
    assert!(turn(&service).await.unwrap_err().starts_with("b:"));
    assert_eq!(told(), ["primary to a", "a to b", "b served: false"]);
    assert_eq!((primary.count(), a.count(), b.count()), (1, 1, 1));
    assert_eq!(strikes(&handle.snapshot()), [2, 1]);

    // A failed entry is skipped.
    b.does(Does::Answer);
    assert_eq!(turn(&service).await, Ok("b"));
    assert_eq!(told(), ["primary to b", "b served: true"]);
    assert_eq!((primary.count(), a.count(), b.count()), (1, 0, 1));
    assert_eq!(handle.state(), FallbackState::Fallback);
}

#[tokio::test(start_paused = true)]
async fn a_failed_turn_goes_on_from_one_model_to_the_next_behind_one_service() {
    let service = Model::new("service");
    let primary = service.clone();
    let failing = tower::service_fn(move |req: String| {
        let inner = primary.clone();
        async move {
            if req.starts_with("gpt-4") {
                inner.oneshot(req).await
            } else {
                inner
                    .does(DOWN)
                    .clone()
                    .oneshot(req.clone())
                    .await
                    .inspect_err(|_| {
                        inner.does(Does::Answer);
                    })
            }
        }
    });
    let layer = FallbackLayer::rewriting("gpt-5", |req: &mut String, model: &str| {
        req.insert_str(0, &format!("{model}: "));
    })
    .model("gpt-5-mini")
    .model("gpt-4")
    .classify(classify)
    .same_turn(|req: &String| Some(req.clone()));
    let guarded = layer.layer(failing);
    guarded.oneshot("hello".to_owned()).await.unwrap();
    assert_eq!(
        service.calls(),
        ["gpt-5: hello", "gpt-5-mini: hello", "gpt-4: hello"],
        "each from the original request"
    );
}

#[tokio::test(start_paused = true)]
async fn a_turn_goes_on_from_a_backup_that_fails_to_become_ready() {
    let (service, mut primary) = pair();
    let (backup_a, mut a) = pair();
    let (backup_b, mut b) = pair();
    let layer = FallbackLayer::new("primary")
        .backup("a", backup_a)
        .backup("b", backup_b)
        .same_turn(|req: &Text| Some(*req));
    a.send_error("gone");
    let turn = layer.layer(service).oneshot("hello");
    let answer = async {
        assert_request_eq!(primary, "hello").send_error("down");
        assert_request_eq!(b, "hello").send_response("from b");
    };
    assert_eq!(tokio::join!(turn, answer).0.unwrap(), "from b");
    assert_eq!(strikes(&layer.handle().snapshot()), [1, 0]);
}

/// Case 31: the head of a stream is the turn's result, so no other entry is asked after it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_was_answered_goes_no_further() {
    let models = Models::new();
    let layer = models.layer().same_turn(|req: &String| Some(req.clone()));
    let service = layer.layer(models.primary.clone());
    assert_eq!(turn(&service).await, Ok("primary"));
    models.primary.does(NEUTRAL);
    assert!(turn(&service).await.unwrap_err().starts_with("primary:"));
    assert_eq!((models.a.count(), models.b.count()), (0, 0));
}

/// Case 33.
#[tokio::test(start_paused = true)]
async fn a_request_is_replayed_whole_or_not_at_all() {
    let models = Models::new();
    let layer = models
        .layer()
        .same_turn(|req: &String| (!req.starts_with("stream")).then(|| req.clone()));
    let service = layer.layer(models.primary.clone());
    models.primary.does(DOWN);
    let err = service
        .clone()
        .oneshot("stream 1".to_owned())
        .await
        .unwrap_err();
    assert_eq!(
        err.downcast_ref::<ModelError>().map(|err| err.by),
        Some("primary"),
        "the original error"
    );
    assert_eq!(models.a.count(), 0);

    let body = "identical \u{1f980} bytes".to_owned();
    let answer = service.clone().oneshot(body.clone()).await.unwrap();
    assert_eq!((answer.by, &answer.request), ("a", &body));
    assert_eq!(models.a.calls(), [body]);
}
