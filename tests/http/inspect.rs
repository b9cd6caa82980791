//! Proves what an inspector of frames sees and decides.

use std::cell::Cell;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio_test::assert_pending;
use tower::Layer;
use tower_breaker::http::{ErrorEvents, Inspect};
use tower_breaker::{Cancelled, CircuitBreakerLayer, EndOfBody, Failure, Outcome, State};

use crate::support::body::{Says, Server, Step, breaker, call, read};

#[tokio::test(start_paused = true)]
async fn an_inspector_gives_the_verdict_before_the_end_and_the_rest_passes() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody.inspect(ErrorEvents::new()));
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("data: {\"text\":\"a\"}\n\nevent: er"));
    pipe.send(Step::Data("ror\ndata: overloaded\n\n"));
    let mut body = Box::pin(body);
    body.frame().await.unwrap().unwrap();
    assert_eq!(circuit.state(), State::Closed);
    body.frame().await.unwrap().unwrap();
    assert_eq!(circuit.state(), State::Open);
    pipe.send(Step::Data("data: the rest\n\n"));
    let rest = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(rest, "data: the rest\n\n");
    drop(pipe);
    assert!(body.frame().await.is_none());
    assert_eq!(circuit.snapshot().trips, 1);
}

#[tokio::test(start_paused = true)]
async fn each_response_has_an_inspector_of_its_own() {
    let server = Server::default();
    let frames = Cell::new(0);
    let layer = CircuitBreakerLayer::new().judge(EndOfBody.inspect(move |_: &Frame<Bytes>| {
        frames.set(frames.get() + 1);
        (frames.get() == 3).then(|| Failure::transient().into())
    }));
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let mut bodies = Vec::new();
    for _ in 0..3 {
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("one"));
        pipe.send(Step::Data("two"));
        assert_pending!(read(&mut body));
        bodies.push((pipe, body));
    }
    assert_eq!(circuit.snapshot().streak, 0);
    for (n, (pipe, body)) in (1..).zip(&mut bodies) {
        pipe.send(Step::Data("three"));
        assert_pending!(read(body));
        assert_eq!(circuit.snapshot().streak, n);
    }
}

// ===== trailers =====

/// An inspector that expects a status in the trailers.
#[derive(Clone, Default)]
struct Status {
    wanted: bool,
}

impl Inspect<Bytes> for Status {
    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        assert_eq!(status, StatusCode::OK);
        self.wanted = !headers.contains_key("status");
    }

    fn frame(&mut self, frame: &Frame<Bytes>) -> Option<Outcome> {
        let status = frame.trailers_ref()?.get("status")?;
        Some(match status.as_bytes() {
            b"0" => Outcome::Success,
            b"1" => Outcome::Neutral,
            _ => Failure::transient().into(),
        })
    }

    fn end(&mut self) -> Outcome {
        if self.wanted {
            Failure::transient().into()
        } else {
            Outcome::Success
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_inspector_sees_the_trailers_and_they_pass_through() {
    let server = Server::default();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(10)
        .judge(EndOfBody.inspect(Status::default()));
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for (status, streak) in [
        (Some("2"), 1),
        (Some("1"), 1),
        (None, 2),
        (Some("2"), 3),
        (Some("0"), 0),
    ] {
        let pipe = server.answers();
        let body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("answer"));
        let mut trailers = HeaderMap::new();
        if let Some(status) = status {
            trailers.insert("status", HeaderValue::from_static(status));
        }
        pipe.send(Step::Trailers(trailers.clone()));
        drop(pipe);
        let answer = body.collect().await.unwrap();
        assert_eq!(answer.trailers(), Some(&trailers));
        assert_eq!(answer.to_bytes(), "answer");
        assert_eq!(circuit.snapshot().streak, streak, "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_leaves_before_the_expected_trailers_is_a_cancelled_call() {
    for (rule, streak) in [(Cancelled::Ignore, 0), (Cancelled::Failure, 1)] {
        let layer = CircuitBreakerLayer::new()
            .on_cancel(rule)
            .judge(EndOfBody.inspect(Status::default()));
        let circuit = layer.handle();
        let server = Server::default();
        let pipe = server.answers_with(StatusCode::OK, Says::Length(3));
        let mut body = call(&mut layer.layer(server)).await.unwrap();
        pipe.send(Step::Data("abc"));
        assert_pending!(read(&mut body));
        drop(body);
        assert_eq!(circuit.snapshot().streak, streak, "{rule:?}");
    }
}

/// An inspector that takes every end of a body for a failure.
#[derive(Clone)]
struct Waits;

impl Inspect<Bytes> for Waits {
    fn frame(&mut self, _: &Frame<Bytes>) -> Option<Outcome> {
        None
    }

    fn end(&mut self) -> Outcome {
        Failure::transient().into()
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_without_the_expected_status_are_a_failure_though_nobody_reads_on() {
    for says in [Says::Nothing, Says::Left(0)] {
        let server = Server::default();
        let layer = breaker().judge(EndOfBody.inspect(Waits));
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        let pipe = server.answers_with(StatusCode::OK, says);
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("one"));
        assert_pending!(read(&mut body));
        drop(body);
        assert_eq!(circuit.state(), State::Closed, "{says:?}: it went away");
        let pipe = server.answers_with(StatusCode::OK, says);
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Trailers(HeaderMap::new()));
        assert_pending!(read(&mut body));
        drop(body);
        assert_eq!(circuit.state(), State::Open, "{says:?}");
    }
}
