//! Bodies that are judged at their end, with a hostile server, a careless reader, or an observer
//! that calls back.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::advance;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::buffer::Buffer;
use tower::{BoxError, Layer, ServiceExt};
use tower_breaker::http::{EndOfBody, ErrorEvents, Inspect, ResponseBody, StatusClassifier};
use tower_breaker::{
    Cancelled, CircuitBreakerLayer, Digest, Event, Failure, FallbackLayer, FallbackState,
    HealthRouter, Outcome, Reason, Refusal, State, TripwireLayer, WhenOpen, Window,
};

use crate::pipe::{Piped, SECOND, Says, Server, Step, breaker, call, panics, read};

// ===== where a body ends =====

#[tokio::test(start_paused = true)]
async fn a_body_that_gave_its_trailers_has_ended_even_if_it_is_not_polled_again() {
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
async fn a_body_that_reports_its_end_after_the_last_frame_has_ended_even_if_it_is_not_polled_again()
{
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
        // A body of HTTP/2 does so when an empty frame follows its last frame of data.
        body.get_mut().says = says;
        assert_eq!(body.is_end_stream(), says == Says::Ended);
        drop(body);
        assert_eq!(circuit.state(), state, "{says:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_body_a_server_writes_with_trailers_closes_the_circuit() {
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    circuit.try_acquire().unwrap().failure();
    advance(30 * SECOND).await;
    let stack = layer.layer(tower::service_fn(|_: Request<Incoming>| async {
        let frames = [
            Frame::data(Bytes::from("an answer")),
            Frame::trailers(HeaderMap::from_iter([(
                "checksum".parse().unwrap(),
                HeaderValue::from_static("1"),
            )])),
        ];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
        let response = Response::builder().header("trailer", "checksum");
        Ok::<_, BoxError>(response.body(body).unwrap())
    }));
    let (mut client, server) = tokio::io::duplex(10_000);
    let service = hyper::service::service_fn(move |req| stack.clone().oneshot(req));
    let serving = tokio::spawn(
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .into_future(),
    );
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: close\r\n\r\n";
    client.write_all(request).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("checksum: 1\r\n\r\n"), "{answer}");
    serving.await.unwrap().unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_lies_about_its_length_is_judged_by_its_frames() {
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
    // A body that says that it has ended has ended. Later frames change nothing.
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

/// An inspector that calls the end a failure, because its frame did not come.
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
async fn trailers_without_the_required_status_are_a_failure_even_if_nobody_reads_on() {
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

// ===== panics =====

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
async fn a_dropped_body_that_panics_when_asked_is_a_dropped_call_without_a_panic() {
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
    // A panic of the inspector is caught too.
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
async fn a_body_that_panics_when_it_is_dropped_loses_no_probe() {
    let server = Server::default();
    let layer = breaker().on_cancel(Cancelled::Release).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    advance(30 * SECOND).await;
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
async fn an_inspector_that_panics_anywhere_cancels_the_call() {
    for place in ["head", "frame", "end", "clone"] {
        for says in [Says::Nothing, Says::Left(0), Says::Ended] {
            let server = Server::default();
            let layer = breaker()
                .on_cancel(Cancelled::Release)
                .judge(EndOfBody.inspect(Panics(place)));
            let circuit = layer.handle();
            circuit.try_acquire().unwrap().failure();
            advance(30 * SECOND).await;
            let inner = server.clone();
            let mut stack = if place == "clone" {
                // The layer clones the inspector for its service, too.
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
            // If a body has ended with its head, the inspector gets no frames.
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

// ===== a body on its way =====

#[tokio::test(start_paused = true)]
async fn a_body_that_has_to_stay_pinned_is_judged_as_any_other() {
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    circuit.try_acquire().unwrap().failure();
    advance(30 * SECOND).await;
    let mut stack = layer.layer(tower::service_fn(|_: Request<()>| async {
        let frames = stream::unfold(3, |left| async move {
            tokio::task::yield_now().await;
            let frame = Ok::<_, BoxError>(Frame::data(Bytes::from("one")));
            (left > 0).then_some((frame, left - 1))
        });
        Ok::<_, BoxError>(Response::new(StreamBody::new(frames)))
    }));
    let mut body = pin!(call(&mut stack).await.unwrap());
    for _ in 0..3 {
        body.frame().await.unwrap().unwrap();
        assert_eq!(circuit.state(), State::HalfOpen);
    }
    assert!(body.frame().await.is_none());
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_permit_stays_with_its_body_inside_any_wrapper() {
    let server = Server::default();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let streak = || circuit.snapshot().streak;
    let mut stack = layer.layer(server.clone());

    // The body is taken out of its response, which is dropped.
    let pipe = server.answers();
    let response = (&mut stack).oneshot(Request::new(())).await.unwrap();
    let (_head, body) = response.into_parts();
    pipe.send(Step::Error);
    // A boxed body has to be `Send` and `Sync`.
    body.boxed().collect().await.unwrap_err();
    assert_eq!(streak(), 1);

    // The reader limits the body.
    let pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("too much"));
    Limited::new(body, 3).collect().await.unwrap_err();
    assert_eq!(streak(), 2, "a dropped call");

    let pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("enough"));
    drop(pipe);
    Limited::new(body, 6).collect().await.unwrap();
    assert_eq!(streak(), 0);

    // Behind a buffer, the worker makes the call.
    let mut buffer = Buffer::new(stack, 8);
    let pipe = server.answers();
    let response = (&mut buffer).oneshot(Request::new(())).await.unwrap();
    let mut body = response.into_body();
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(streak(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_body_is_leaked_has_failed_when_its_lease_is_over() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuit.try_acquire().unwrap().failure();
    advance(30 * SECOND).await;
    let _pipe = server.answers();
    std::mem::forget(call(&mut stack).await.unwrap());
    advance(60 * SECOND).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn each_layer_of_a_stack_judges_the_same_body_for_itself() {
    let server = Server::default();
    let breaker = breaker().judge(EndOfBody);
    let fallback = FallbackLayer::new("gpt-5").judge(EndOfBody.inspect(ErrorEvents::new()));
    let tripwire = TripwireLayer::new()
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let (circuit, chain, fence) = (breaker.handle(), fallback.handle(), tripwire.handle());
    circuit.try_acquire().unwrap().failure();
    advance(30 * SECOND).await;
    let mut stack = tower::ServiceBuilder::new()
        .layer(tripwire)
        .layer(fallback)
        .layer(breaker)
        .service(server.clone());
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("event: er"));
    pipe.send(Step::Data("ror\r"));
    pipe.send(Step::Data("\ndata: {}\r\n\r\n"));
    assert_pending!(read(&mut body));
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(circuit.state(), State::HalfOpen);
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(circuit.state(), State::Closed);
    assert_eq!(fence.snapshot().errors, 0);
}

#[tokio::test(start_paused = true)]
async fn an_inspector_remembers_only_its_own_response() {
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

// ===== what happens meanwhile =====

#[tokio::test(start_paused = true)]
async fn an_observer_may_end_and_drop_other_bodies_and_move_the_circuit() {
    type Parked = Arc<Mutex<Vec<ResponseBody<Piped>>>>;
    let server = Server::default();
    let (parked, told) = (Parked::default(), Arc::new(Mutex::new(Vec::new())));
    let (bodies, events) = (Arc::clone(&parked), Arc::clone(&told));
    let layer = breaker()
        .on_cancel(Cancelled::Failure)
        .observe(move |event: &Event<'_>| {
            let short = match event {
                Event::Transition { to, .. } => to.to_string(),
                Event::LateVerdict { .. } => "late".to_owned(),
                _ => return,
            };
            events.lock().unwrap().push(short);
            let all = std::mem::take(&mut *bodies.lock().unwrap());
            for mut body in all {
                // One body ends here, and the other is dropped.
                let _ = read(&mut body);
            }
        })
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let mut pipes = Vec::new();
    for _ in 0..2 {
        pipes.push(server.answers());
        let body = call(&mut stack).await.unwrap();
        parked.lock().unwrap().push(body);
    }
    pipes.pop();
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(*told.lock().unwrap(), ["open", "late", "late"]);
    assert_eq!(circuit.snapshot().trips, 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_says_nothing_of_a_circuit_that_was_moved_by_hand() {
    let server = Server::default();
    let layer = breaker().on_cancel(Cancelled::Failure).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for fails in [false, true] {
        for by_hand in ["force_open", "reset"] {
            circuit.reset();
            circuit.try_acquire().unwrap().failure();
            advance(30 * SECOND).await;
            let pipe = server.answers();
            let mut body = call(&mut stack).await.unwrap();
            let state = if by_hand == "reset" {
                circuit.reset();
                State::Closed
            } else {
                circuit.force_open();
                State::Open
            };
            // A frame of the old probe, in a newer generation of the circuit.
            pipe.send(Step::Data("more"));
            assert_pending!(read(&mut body));
            assert_eq!(circuit.snapshot().time_left, None);
            if fails {
                drop(body);
            } else {
                drop(pipe);
                assert_ready!(read(&mut body)).unwrap();
            }
            assert_eq!(circuit.state(), state, "{by_hand}");
            assert_eq!(circuit.snapshot().time_left, None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_says_nothing_of_a_key_that_was_forgotten() {
    let server = Server::default();
    let events = Arc::new(Mutex::new(0));
    let told = Arc::clone(&events);
    let layer = breaker()
        .observe(move |_: &Event<'_>| *told.lock().unwrap() += 1)
        .judge(EndOfBody)
        .per_owned_key(|req: &Request<()>| req.uri().path().to_owned(), 1);
    let circuits = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuits.try_acquire("/").unwrap().failure();
    advance(30 * SECOND).await;
    let pipe = server.answers();
    let mut probe = call(&mut stack).await.unwrap();
    assert!(circuits.forget("/"));
    let before = *events.lock().unwrap();
    pipe.send(Step::Data("more"));
    assert_pending!(read(&mut probe));
    pipe.send(Step::Error);
    assert_ready!(read(&mut probe)).unwrap_err();
    assert_eq!(*events.lock().unwrap(), before);
    assert_eq!(circuits.state("/"), State::Closed);
    assert!(circuits.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_an_open_circuit_waits_while_the_probe_renews_its_lease() {
    for clean in [true, false] {
        let server = Server::default();
        let layer = breaker().when_open(WhenOpen::NotReady).judge(EndOfBody);
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        let mut other = stack.clone();
        circuit.try_acquire().unwrap().failure();
        advance(30 * SECOND).await;
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        let mut waiting = task::spawn(ServiceExt::<Request<()>>::ready(&mut other));
        assert_pending!(waiting.poll());
        for _ in 0..5 {
            advance(20 * SECOND).await;
            pipe.send(Step::Data("more"));
            assert_pending!(read(&mut body));
            if waiting.is_woken() {
                // The timer ran out at the end of the old lease, but the lease was renewed.
                assert_pending!(waiting.poll());
            }
        }
        assert!(!waiting.is_woken());
        if clean {
            drop(pipe);
            assert_ready!(read(&mut body)).unwrap();
        } else {
            // The body is silent from now on, for the lease and the cooldown.
            for _ in 0..60 {
                assert!(!circuit.would_allow());
                advance(SECOND).await;
                if waiting.is_woken() && !circuit.would_allow() {
                    assert_pending!(waiting.poll());
                }
            }
        }
        assert!(waiting.is_woken());
        assert_ready_ok!(waiting.poll());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_lasts_to_the_end_of_its_body() {
    // The rule for dropped calls counts the time until the body was dropped.
    let server = Server::default();
    let layer = breaker()
        .on_cancel(Cancelled::FailureAfter(5 * SECOND))
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for (last, state) in [(SECOND, State::Closed), (2 * SECOND, State::Open)] {
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        for wait in [3 * SECOND, last] {
            advance(wait).await;
            pipe.send(Step::Data("more"));
            assert_pending!(read(&mut body));
        }
        drop(body);
        assert_eq!(circuit.state(), state);
    }
    // The rule for slow calls counts the time until the body ended.
    let layer = breaker().slow_call(5 * SECOND).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for (wait, state) in [(4, State::Closed), (5, State::Open)] {
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        advance(wait * SECOND).await;
        drop(pipe);
        assert_ready!(read(&mut body)).unwrap();
        assert_eq!(circuit.state(), state);
    }
    // The failure rate counts a call when its body has ended.
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .failure_rate(0.5, Window::Calls(4))
        .minimum_calls(4)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let mut streams = Vec::new();
    for _ in 0..4 {
        let pipe = server.answers();
        streams.push((pipe, call(&mut stack).await.unwrap()));
    }
    for (n, (pipe, mut body)) in streams.into_iter().enumerate() {
        assert_eq!(circuit.state(), State::Closed);
        if n % 2 == 0 {
            pipe.send(Step::Error);
        }
        drop(pipe);
        let _ = assert_ready!(read(&mut body));
    }
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_only_observed_carries_no_permit_into_its_body() {
    let server = Server::default();
    let layer = breaker()
        .observe_only()
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuit.try_acquire().unwrap().failure();
    advance(10 * SECOND).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(circuit.snapshot().time_left, Some(20 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_classifier_may_give_any_outcome_to_heads_and_errors() {
    let server = Server::default();
    let layer = breaker()
        .on_cancel(Cancelled::Failure)
        .classify(|result: Result<&Response<Piped>, &BoxError>| match result {
            Ok(response) if response.status() == StatusCode::OK => Failure::fatal().into(),
            _ => Outcome::Success,
        })
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    assert_eq!(circuit.state(), State::Closed, "an error that is a success");
    let pipe = server.answers_with(StatusCode::BAD_GATEWAY, Says::Nothing);
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.state(), State::Closed, "a `502` that is one");
    let _pipe = server.answers();
    drop(call(&mut stack).await.unwrap());
    assert_eq!(circuit.snapshot().trips, 1, "a `200` that is a failure");
}

// ===== substitutes, backups and runs =====

#[tokio::test(start_paused = true)]
async fn a_substitutes_body_is_judged_for_the_substitute() {
    let server = Server::default();
    let layer = breaker()
        .judge(EndOfBody)
        .per_key(|req: &Request<String>| req.body().as_str(), 10)
        .substitute(
            HealthRouter::new().route("search", ["mirror"]),
            |req: &mut Request<String>, name: &str| *req.body_mut() = name.to_owned(),
        );
    let circuits = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuits.try_acquire("search").unwrap().failure();
    let pipe = server.answers();
    let req = Request::new("search".to_owned());
    let mut body = (&mut stack).oneshot(req).await.unwrap().into_body();
    pipe.send(Step::Error);
    assert_eq!(circuits.state("mirror"), State::Closed);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(circuits.state("mirror"), State::Open);
    assert_eq!(circuits.snapshot("search").trips, 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_a_turn_moves_on_from_is_dropped_and_counts_once_at_each_layer() {
    let (primary, backup) = (Server::default(), Server::default());
    let inside = || {
        CircuitBreakerLayer::new()
            .on_cancel(Cancelled::Failure)
            .judge(EndOfBody)
    };
    let (first, second) = (inside(), inside());
    let (circuit, other) = (first.handle(), second.handle());
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", second.layer(backup.clone()))
        .classify(StatusClassifier::models())
        .same_turn(|_: &Request<()>| Some(Request::new(())))
        .judge(EndOfBody);
    let chain = layer.handle();
    let mut stack = layer.layer(first.layer(primary.clone()));
    // The classifier of the breaker does not look at statuses. It calls this head a success, and
    // nobody reads the body.
    let _unread = primary.answers_with(StatusCode::SERVICE_UNAVAILABLE, Says::Nothing);
    let pipe = backup.answers();
    let mut body = call(&mut stack).await.unwrap();
    assert_eq!(circuit.snapshot().streak, 1);
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    pipe.send(Step::Data("more"));
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    drop(body);
    assert_eq!(other.snapshot().streak, 1);
    assert_eq!(circuit.snapshot().streak, 1);
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(chain.snapshot().entries[0].strikes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_reported_when_its_body_ends_and_as_late_if_it_is_late() {
    let (primary, backup) = (Server::default(), Server::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&told);
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", backup.clone())
        .trip_threshold(1)
        .observe(move |event: &Event<'_>| {
            events.lock().unwrap().push(match event {
                Event::Served { by, outcome, .. } => {
                    format!("{by}: {}", matches!(outcome, Outcome::Success))
                }
                Event::LateVerdict { .. } => "late".to_owned(),
                Event::FallbackTransition { to, .. } => to.to_string(),
                _ => return,
            });
        })
        .judge(EndOfBody);
    let chain = layer.handle();
    let mut stack = layer.layer(primary.clone());
    let early = primary.answers();
    let mut slow = call(&mut stack).await.unwrap();
    let pipe = primary.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Error);
    assert!(told.lock().unwrap().is_empty());
    assert_ready!(read(&mut body)).unwrap_err();
    let pipe = backup.answers();
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    drop(early);
    assert_ready!(read(&mut slow)).unwrap();
    let served = [
        "fallback",
        "gpt-5: false",
        "claude: true",
        "late",
        "gpt-5: true",
    ];
    assert_eq!(*told.lock().unwrap(), served);
    assert_eq!(chain.state(), FallbackState::Fallback);
    // A probe that is in flight while the chain is reset.
    advance(60 * SECOND).await;
    let pipe = primary.answers();
    let mut probe = call(&mut stack).await.unwrap();
    chain.reset();
    pipe.send(Step::Data("more"));
    pipe.send(Step::Error);
    assert_ready!(read(&mut probe)).unwrap_err();
    assert_eq!(chain.state(), FallbackState::Primary);
    assert_eq!(chain.snapshot().consecutive_failures, 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_has_spent_its_turn_and_says_nothing_of_the_next_run() {
    let server = Server::default();
    let layer = TripwireLayer::new()
        .max_turns(1)
        .error_limit(1)
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let run = layer.handle();
    let mut stack = layer.layer(server.clone());
    let first = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    let refused = call(&mut stack).await.unwrap_err();
    assert_eq!(Refusal::find(&*refused).unwrap().reason(), Reason::MaxTurns);
    run.extend(1);
    let second = server.answers();
    let mut other = call(&mut stack).await.unwrap();
    run.reset();
    for (pipe, body) in [(first, &mut body), (second, &mut other)] {
        pipe.send(Step::Error);
        assert_ready!(read(body)).unwrap_err();
    }
    assert_eq!((run.state(), run.snapshot().errors), (State::Closed, 0));
    assert_eq!(run.turns(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_has_all_of_its_time_however_often_its_fence_has_moved() {
    let server = Server::default();
    let layer = TripwireLayer::new()
        .max_turns(100)
        .deadline(60 * SECOND)
        .error_limit(1)
        .open_cooldown_rejects(1)
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let run = layer.handle();
    let mut stack = layer.layer(server.clone());
    for _ in 0..2 {
        server.fails();
        call(&mut stack).await.unwrap_err();
        assert_eq!(run.state(), State::Open);
        // This one arms the probe.
        call(&mut stack).await.unwrap_err();
        let pipe = server.answers();
        let mut probe = call(&mut stack).await.unwrap();
        drop(pipe);
        assert_ready!(read(&mut probe)).unwrap();
        assert_eq!(run.state(), State::Closed);
    }
    advance(Duration::from_nanos(59_999_999_999)).await;
    assert!(run.would_allow(&Request::new(())));
    let _pipe = server.answers();
    call(&mut stack).await.unwrap();
    advance(Duration::from_nanos(1)).await;
    let refused = call(&mut stack).await.unwrap_err();
    assert_eq!(Refusal::find(&*refused).unwrap().reason(), Reason::Deadline);
}
