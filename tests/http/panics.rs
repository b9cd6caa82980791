//! Proves that a panic of a body or of an inspector gives one verdict, and never loses a probe.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Frame;
use tokio_test::{assert_ready, assert_ready_ok, task};
use tower::Layer;
use tower_breaker::http::Inspect;
use tower_breaker::{Cancelled, CircuitBreakerLayer, EndOfBody, Outcome, State};

use crate::support::body::{Says, Server, Step, breaker, call, read};
use crate::support::{panics, pass, secs};

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_has_failed_and_an_inspector_that_panics_has_cancelled() {
    for rule in [Cancelled::Release, Cancelled::Failure] {
        let server = Server::default();
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(10)
            .on_cancel(rule)
            .judge(
                EndOfBody.inspect(|frame: &Frame<Bytes>| -> Option<Outcome> {
                    let fatal = frame.data_ref().is_some_and(|data| data == "panic");
                    assert!(!fatal, "the inspector panics");
                    None
                }),
            );
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Panic);
        assert!(panics(|| read(&mut body)));
        assert_eq!(circuit.snapshot().streak, 1, "before the body is dropped");
        drop(body);
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("panic"));
        assert!(panics(|| read(&mut body)));
        let counted = if rule == Cancelled::Failure { 2 } else { 1 };
        assert_eq!(circuit.snapshot().streak, counted);
        drop(body);
        assert_eq!(circuit.snapshot().streak, counted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panicked_is_judged_once_and_may_be_polled_again() {
    let server = Server::default();
    let layer = CircuitBreakerLayer::new()
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let pipe = server.answers();
    let mut body = call(&mut layer.layer(server)).await.unwrap();
    pipe.send(Step::Panic);
    assert!(panics(|| read(&mut body)));
    assert_eq!(circuit.snapshot().streak, 1);
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_ready!(read(&mut body)).unwrap();
    drop(body);
    assert_eq!(circuit.snapshot().streak, 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_when_asked_for_its_end_has_failed_and_its_call_panics() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let _pipe = server.answers_with(StatusCode::OK, Says::Panics);
    let mut called = task::spawn(call(&mut stack));
    assert!(panics(|| called.poll()));
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_body_that_panics_when_asked_is_a_dropped_call() {
    for says in [Says::Panics, Says::PanicsOfSize] {
        let server = Server::default();
        let layer = breaker().on_cancel(Cancelled::Failure).judge(EndOfBody);
        let circuit = layer.handle();
        let _pipe = server.answers();
        let mut body = call(&mut layer.layer(server)).await.unwrap();
        body.get_mut().says = says;
        drop(body);
        assert_eq!(circuit.state(), State::Open, "{says:?}");
    }
    // The same for an inspector that panics at the end.
    let server = Server::default();
    let layer = breaker()
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody.inspect(Panics("end")));
    let circuit = layer.handle();
    let _pipe = server.answers_with(StatusCode::OK, Says::Left(0));
    drop(call(&mut layer.layer(server)).await.unwrap());
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_when_it_is_dropped_loses_no_probe() {
    let server = Server::default();
    let layer = breaker().on_cancel(Cancelled::Release).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    pass(secs(30)).await;
    let _pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    body.get_mut().panics_when_dropped = true;
    assert!(!circuit.would_allow());
    assert!(panics(|| drop(body)));
    assert!(circuit.would_allow());
}

/// An inspector that panics where the test says.
#[derive(Debug)]
struct Panics(&'static str);

impl Clone for Panics {
    fn clone(&self) -> Self {
        assert_ne!(self.0, "clone");
        Self(self.0)
    }
}

impl Inspect<Bytes> for Panics {
    fn head(&mut self, _: StatusCode, _: &HeaderMap) {
        assert_ne!(self.0, "head");
    }

    fn frame(&mut self, _: &Frame<Bytes>) -> Option<Outcome> {
        assert_ne!(self.0, "frame");
        None
    }

    fn end(&mut self) -> Outcome {
        assert_ne!(self.0, "end");
        Outcome::Success
    }
}

#[tokio::test(start_paused = true)]
async fn an_inspector_that_panics_cancels_the_call_wherever_it_panics() {
    for place in ["head", "frame", "end", "clone"] {
        for says in [Says::Nothing, Says::Left(0), Says::Ended] {
            let server = Server::default();
            let layer = breaker()
                .on_cancel(Cancelled::Release)
                .judge(EndOfBody.inspect(Panics(place)));
            let circuit = layer.handle();
            circuit.try_acquire().unwrap().failure();
            pass(secs(30)).await;
            let inner = server.clone();
            let mut stack = if place == "clone" {
                // The layer clones the inspector for its service, and that panics.
                assert!(panics(|| layer.layer(inner)));
                continue;
            } else {
                layer.layer(inner)
            };
            let pipe = server.answers_with(StatusCode::OK, says);
            let mut called = task::spawn(call(&mut stack));
            let panicked = panics(|| {
                let mut body = assert_ready_ok!(called.poll());
                pipe.send(Step::Data("one"));
                drop(pipe);
                assert_ready!(read(&mut body)).unwrap();
            });
            // A body that ended with its head has no frames to inspect.
            let judged = place == "frame" && says == Says::Ended;
            assert_eq!(panicked, !judged, "{place} {says:?}");
            let state = if judged {
                State::Closed
            } else {
                State::HalfOpen
            };
            assert_eq!(circuit.state(), state, "{place} {says:?}");
            assert!(circuit.would_allow(), "{place} {says:?}");
        }
    }
}
