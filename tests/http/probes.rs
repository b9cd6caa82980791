//! Proves that a probe lasts until its body ends, and that frames renew its lease.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::{BoxError, Layer, ServiceExt};
use tower_breaker::{Cancelled, EndOfBody, Reason, Refusal, State, WhenOpen};

use crate::support::body::{Server, Step, breaker, call, read};
use crate::support::{NS, pass, secs};

/// Case 10.
#[tokio::test(start_paused = true)]
async fn a_probe_is_in_flight_until_its_body_ends_and_then_closes_or_opens() {
    for clean in [true, false] {
        let server = Server::default();
        let layer = breaker().judge(EndOfBody);
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        server.fails();
        call(&mut stack).await.unwrap_err();
        pass(secs(30)).await;
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("one"));
        assert_pending!(read(&mut body));
        assert_eq!(circuit.state(), State::HalfOpen);
        let refused = call(&mut stack).await.unwrap_err();
        let refusal = Refusal::find(&*refused).unwrap();
        assert_eq!(refusal.reason(), Reason::ProbeInFlight);
        if clean {
            drop(pipe);
            assert_ready!(read(&mut body)).unwrap();
            assert_eq!(circuit.state(), State::Closed);
        } else {
            pipe.send(Step::Error);
            assert_ready!(read(&mut body)).unwrap_err();
            assert_eq!(circuit.state(), State::Open);
            assert_eq!(circuit.snapshot().trips, 2);
        }
    }
}

/// Case 10.
#[tokio::test(start_paused = true)]
async fn every_frame_of_a_probe_renews_its_lease() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    pass(secs(30)).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    // The lease is 30 s. Frames come after 10 s, then after 25 s, ten times over.
    for wait in [10, 25].repeat(10) {
        pass(secs(wait)).await;
        pipe.send(Step::Data("more"));
        assert_pending!(read(&mut body));
        let snapshot = circuit.snapshot();
        assert_eq!(snapshot.state, State::HalfOpen);
        assert_eq!(snapshot.time_left, Some(secs(30)));
        let refused = call(&mut stack).await.unwrap_err();
        let refusal = Refusal::find(&*refused).unwrap();
        assert_eq!(refusal.retry_after(), Some(secs(30)));
    }
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_body_falls_silent_has_failed_when_its_lease_is_over() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    pass(secs(30)).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pass(secs(20)).await;
    pipe.send(Step::Data("the last"));
    assert_pending!(read(&mut body));
    pass(secs(30) - NS).await;
    assert_eq!(circuit.state(), State::HalfOpen);
    pass(NS).await;
    assert_eq!(circuit.state(), State::Open);
    // Later frames renew nothing, and the end of the body says nothing.
    pipe.send(Step::Data("too late"));
    assert_pending!(read(&mut body));
    pass(secs(29)).await;
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.snapshot().time_left, Some(secs(1)));
    // An ordinary call that falls silent says nothing at all.
    circuit.reset();
    let _pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    assert_pending!(read(&mut body));
    pass(secs(3600)).await;
    assert_eq!(
        (circuit.state(), circuit.snapshot().streak),
        (State::Closed, 0)
    );
}

/// Case 2.
#[tokio::test(start_paused = true)]
async fn a_probe_dropped_while_its_body_streams_never_leaves_the_circuit_stuck() {
    let lease = secs(30);
    for rule in [
        Cancelled::Ignore,
        Cancelled::Release,
        Cancelled::Failure,
        Cancelled::FailureAfter(secs(1)),
        Cancelled::FailureAfter(secs(3)),
    ] {
        let server = Server::default();
        let layer = breaker().on_cancel(rule).judge(EndOfBody);
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        server.fails();
        call(&mut stack).await.unwrap_err();
        pass(secs(30)).await;
        for n in 0..1_000 {
            let pipe = server.answers();
            let mut body = call(&mut stack).await.unwrap();
            pass(secs(2)).await;
            if n % 2 == 0 {
                pipe.send(Step::Data("one"));
                assert_pending!(read(&mut body));
            }
            assert!(!circuit.would_allow(), "one slot");
            drop(body);
            let wait = match rule {
                Cancelled::Ignore if n % 2 == 0 => lease + secs(30),
                Cancelled::Ignore => lease + secs(28),
                Cancelled::Failure => secs(30),
                Cancelled::FailureAfter(long) if long < secs(2) => secs(30),
                _ => Duration::ZERO,
            };
            if !wait.is_zero() {
                pass(wait - NS).await;
                assert!(!circuit.would_allow(), "{rule:?}");
                pass(NS).await;
            }
            assert!(circuit.would_allow(), "{rule:?}");
        }
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        drop(pipe);
        assert_ready!(read(&mut body)).unwrap();
        assert_eq!(circuit.state(), State::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_body_is_leaked_has_failed_when_its_lease_is_over() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuit.try_acquire().unwrap().failure();
    pass(secs(30)).await;
    let _pipe = server.answers();
    std::mem::forget(call(&mut stack).await.unwrap());
    pass(secs(60)).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_body_a_server_writes_with_trailers_closes_the_circuit() {
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    circuit.try_acquire().unwrap().failure();
    pass(secs(30)).await;
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
async fn a_caller_waits_for_an_open_circuit_while_its_probes_body_sends_frames() {
    for clean in [true, false] {
        let server = Server::default();
        let layer = breaker().when_open(WhenOpen::NotReady).judge(EndOfBody);
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        let mut other = stack.clone();
        circuit.try_acquire().unwrap().failure();
        pass(secs(30)).await;
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        let mut waiting = task::spawn(ServiceExt::<Request<()>>::ready(&mut other));
        assert_pending!(waiting.poll());
        for _ in 0..5 {
            pass(secs(20)).await;
            pipe.send(Step::Data("more"));
            assert_pending!(read(&mut body));
            if waiting.is_woken() {
                // The caller's timer ended, but the lease was renewed.
                assert_pending!(waiting.poll());
            }
        }
        assert!(!waiting.is_woken());
        if clean {
            drop(pipe);
            assert_ready!(read(&mut body)).unwrap();
        } else {
            // Silent from now on, for its lease and the cooldown.
            for _ in 0..60 {
                assert!(!circuit.would_allow());
                pass(secs(1)).await;
                if waiting.is_woken() && !circuit.would_allow() {
                    assert_pending!(waiting.poll());
                }
            }
        }
        assert!(waiting.is_woken());
        assert_ready_ok!(waiting.poll());
    }
}
