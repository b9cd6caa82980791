//! Proves where a body ends, also where nobody reads on and where its length is wrong.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio_test::{assert_pending, assert_ready};
use tower::{BoxError, Layer, service_fn};
use tower_breaker::{Cancelled, EndOfBody, State};

use crate::support::body::{Says, Server, Step, breaker, call, read};

#[tokio::test(start_paused = true)]
async fn a_body_that_gave_all_it_announced_has_ended_though_nobody_reads_on() {
    // A server that writes a response with a `Content-Length` reads no further.
    let layer = breaker().on_cancel(Cancelled::Failure).judge(EndOfBody);
    let circuit = layer.handle();
    let mut full = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(Response::new(Full::new(Bytes::from("whole"))))
    }));
    let mut body = call(&mut full).await.unwrap();
    body.frame().await.unwrap().unwrap();
    assert!(body.is_end_stream());
    drop(body);
    assert_eq!(circuit.state(), State::Closed);
    // An empty one ends with its head.
    let mut empty = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(Response::new(Full::new(Bytes::new())))
    }));
    drop(call(&mut empty).await.unwrap());
    assert_eq!(circuit.state(), State::Closed);
    // A body that tells its length, but not that it has ended.
    for (read_on, state) in [(false, State::Closed), (true, State::Open)] {
        let server = Server::default();
        let pipe = server.answers_with(StatusCode::OK, Says::Length(6));
        let mut stack = layer.layer(server);
        let mut body = call(&mut stack).await.unwrap();
        assert_eq!(body.size_hint().exact(), Some(6), "the hint passes through");
        pipe.send(Step::Data("abc"));
        pipe.send(Step::Data("def"));
        assert_pending!(read(&mut body));
        assert_eq!(body.size_hint().exact(), Some(0));
        if read_on {
            // What follows still counts.
            pipe.send(Step::Error);
            assert_ready!(read(&mut body)).unwrap_err();
        }
        drop(body);
        assert_eq!(circuit.state(), state);
    }
    circuit.reset();
    // A body that breaks off before its announced length.
    let server = Server::default();
    let pipe = server.answers_with(StatusCode::OK, Says::Length(6));
    let mut body = call(&mut layer.layer(server)).await.unwrap();
    pipe.send(Step::Data("abc"));
    assert_pending!(read(&mut body));
    drop(body);
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_gave_its_trailers_has_ended_though_nobody_reads_on() {
    let server = Server::default();
    let layer = breaker().on_cancel(Cancelled::Failure).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("one"));
    pipe.send(Step::Trailers(HeaderMap::new()));
    assert_pending!(read(&mut body));
    drop(body);
    assert_eq!(circuit.state(), State::Closed);
    // An error after the trailers still counts.
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Trailers(HeaderMap::new()));
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ended_after_its_last_frame_has_ended_though_nobody_reads_on() {
    for (says, state) in [
        (Says::Ended, State::Closed),
        (Says::Left(0), State::Closed),
        (Says::Nothing, State::Open),
    ] {
        let server = Server::default();
        let layer = breaker().on_cancel(Cancelled::Failure).judge(EndOfBody);
        let circuit = layer.handle();
        let pipe = server.answers();
        let mut body = call(&mut layer.layer(server)).await.unwrap();
        pipe.send(Step::Data("one"));
        assert_pending!(read(&mut body));
        // In HTTP/2 an empty frame may follow the last frame of data.
        body.get_mut().says = says;
        assert_eq!(body.is_end_stream(), says == Says::Ended);
        drop(body);
        assert_eq!(circuit.state(), state, "{says:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_lies_about_its_length_is_judged_by_what_it_does() {
    for says in [Says::Left(0), Says::Left(3), Says::Left(u64::MAX)] {
        for (last, state) in [(None, State::Closed), (Some(Step::Error), State::Open)] {
            let server = Server::default();
            let layer = breaker().judge(EndOfBody);
            let circuit = layer.handle();
            let pipe = server.answers_with(StatusCode::OK, says);
            let mut body = call(&mut layer.layer(server)).await.unwrap();
            for _ in 0..10 {
                pipe.send(Step::Data("more"));
            }
            assert_pending!(read(&mut body));
            assert_eq!(circuit.state(), State::Closed);
            let clean = last.is_none();
            if let Some(step) = last {
                pipe.send(step);
            }
            drop(pipe);
            assert_eq!(assert_ready!(read(&mut body)).is_ok(), clean, "{says:?}");
            assert_eq!(circuit.state(), state, "{says:?}");
        }
    }
    // A body that says that it has ended is judged. What it does later says nothing.
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let pipe = server.answers_with(StatusCode::OK, Says::Ended);
    let mut body = call(&mut layer.layer(server)).await.unwrap();
    pipe.send(Step::Data("more"));
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(circuit.state(), State::Closed);
}
