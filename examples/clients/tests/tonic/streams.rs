//! Tests of when the verdict comes: at the head or at the end, for dropped calls, for probes with
//! a stream, and by which timeout.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codec::Streaming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::{Layer, Service, ServiceBuilder, service_fn};
use tower_breaker::circuit_breaker::{CircuitBreaker, One};
use tower_breaker::grpc::{self, Codes};
use tower_breaker::http::InspectBody;
use tower_breaker::{
    AsBoxError, BoxError, Cancelled, CircuitBreakerHandle, EndOfBody, Failure, FallbackLayer,
    FallbackState, Head, State,
};
use tower_breaker_clients::grpc::{Fault, Script, Server};
use tower_breaker_clients::proxy::Proxy;
use tower_breaker_clients::search::Answer;
use tower_breaker_clients::search::search_client::SearchClient;
use tower_breaker_clients::search::search_server::SearchServer;

use crate::support::{
    BOTH, Breaker, COOLDOWN, Call, Guarded, LEASE, PATIENCE, Seen, breaker, call, channel,
    in_memory, query, watched,
};

type Client<S = Channel> =
    SearchClient<CircuitBreaker<S, Codes, AsBoxError, One, InspectBody<Codes>>>;

fn client<S>(layer: &Breaker, service: S) -> (Client<S>, CircuitBreakerHandle)
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error: Into<BoxError>>,
    S::Error: 'static,
{
    let circuit = layer.handle();
    (SearchClient::new(layer.layer(service)), circuit)
}

// ===== at the head or at the end =====

#[tokio::test]
async fn by_default_a_failure_after_the_head_does_not_count() {
    for kind in BOTH {
        let server = Server::start().await.unwrap();
        let layer = breaker(Codes::new()).judge(Head);
        let circuit = layer.handle();
        let channel = channel(&format!("http://{}", server.addr()));
        let mut client = SearchClient::new(ServiceBuilder::new().layer(layer).service(channel));

        let script = server.script();
        script.set(Fault::FailAtEnd(Status::unavailable("down")));
        let seen = call(&mut client, kind).await;
        assert_eq!(seen.end, Err((Code::Unavailable, "down".to_owned())));
        assert_eq!(circuit.state(), State::Closed);
        script.set(Fault::Refuse(Status::unavailable("down")));
        let seen = call(&mut client, kind).await;
        assert_eq!(seen.end, Err((Code::Unavailable, "down".to_owned())));
        assert_eq!(circuit.state(), State::Open);
    }
}

#[tokio::test]
async fn three_streams_that_fail_at_their_end_trip_a_circuit() {
    let server = Server::start().await.unwrap();
    let script = server.script();
    script.set(Fault::FailAtEnd(Status::internal("broken")));
    let layer = breaker(Codes::new()).failure_threshold(3);
    let url = format!("http://{}", server.addr());
    let (mut client, circuit) = client(&layer, channel(&url));
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(client.follow(query()).await.unwrap().into_inner());
    }
    for (failures, mut answers) in (0..).zip(streams) {
        assert_eq!(circuit.snapshot().streak, failures);
        while let Ok(Some(_)) = answers.message().await {}
    }
    assert_eq!(circuit.state(), State::Open);
    assert!(client.find(query()).await.is_err());
    assert_eq!(script.seen(), 3);
}

/// A proxy may drop the trailers. tonic takes that for the end, and its caller does not notice.
#[tokio::test]
async fn a_stream_without_a_status_at_its_end_is_a_failure_although_tonic_reads_it_as_whole() {
    for kind in BOTH {
        let message = Answer {
            text: "rust 1".to_owned(),
        };
        let mut frame = vec![0, 0, 0, 0, u8::try_from(message.encoded_len()).unwrap()];
        frame.extend(message.encode_to_vec());
        let without_status = service_fn(move |_: http::Request<Body>| {
            let body = Body::new(Full::new(Bytes::from(frame.clone())).map_err(BoxError::from));
            ready(Ok::<_, BoxError>(http::Response::new(body)))
        });
        let (mut client, circuit) = client(&breaker(Codes::new()), without_status);
        let seen = call(&mut client, kind).await;
        assert_eq!(seen, Seen::whole(Call::Find));
        assert_eq!(circuit.state(), State::Open);
    }
}

#[tokio::test]
async fn a_mistake_of_the_caller_neither_ends_a_streak_nor_lengthens_it() {
    for kind in BOTH {
        let server = Server::start().await.unwrap();
        let url = format!("http://{}", server.addr());
        let layer = breaker(Codes::new()).failure_threshold(3);
        let (mut client, circuit) = client(&layer, channel(&url));
        for _ in 0..2 {
            circuit.try_acquire().unwrap().failure();
        }
        let mistake = Status::not_found("no such thing");
        for fault in [Fault::Refuse, Fault::FailAtEnd] {
            server.script().set(fault(mistake.clone()));
            let seen = call(&mut client, kind).await;
            assert_eq!(seen.end, Err((Code::NotFound, "no such thing".to_owned())));
            assert_eq!(circuit.snapshot().streak, 2);
        }
        server.script().set(Fault::Clean);
        assert_eq!(call(&mut client, kind).await, Seen::whole(kind));
        assert_eq!(circuit.snapshot().streak, 0);
    }
}

// ===== dropped calls =====

#[tokio::test]
async fn a_stream_that_its_reader_drops_early_says_nothing_by_default() {
    let mut guarded = Guarded::start().await;
    guarded.set(Fault::HeadThenHang);
    let mut answers = guarded.client.follow(query()).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    drop(answers);
    guarded.assert_clean();
    guarded.set(Fault::Clean);
    assert_eq!(guarded.call(Call::Follow).await, Seen::whole(Call::Follow));
    assert_eq!(guarded.fence.snapshot().turns, 2);
}

/// Begins a stream, reads its first message, and returns the rest.
async fn begun(client: &mut Client) -> Streaming<Answer> {
    let mut answers = client.follow(query()).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    answers
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_reader_drops_early_counts_as_on_cancel_says() {
    let after = Cancelled::FailureAfter(Duration::from_secs(5));
    for (rule, ran, state) in [
        (Cancelled::Ignore, 10, State::Closed),
        (Cancelled::Release, 10, State::Closed),
        (Cancelled::Failure, 0, State::Open),
        (after, 4, State::Closed),
        (after, 5, State::Open),
    ] {
        let script = Script::default();
        script.set(Fault::HeadThenHang);
        let layer = breaker(Codes::new()).failure_threshold(2).on_cancel(rule);
        let (mut client, circuit) = client(&layer, in_memory(&script));
        circuit.try_acquire().unwrap().failure();
        let answers = begun(&mut client).await;
        tokio::time::advance(Duration::from_secs(ran)).await;
        drop(answers);
        assert_eq!(circuit.state(), state, "{rule:?}");
        let streak = if state == State::Open { 2 } else { 1 };
        assert_eq!(circuit.snapshot().streak, streak, "it is no success either");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_the_client_is_a_failure_after_a_time() {
    for (kind, fault) in [
        (Call::Find, Fault::HangBeforeHead),
        (Call::Find, Fault::HeadThenHang),
        (Call::Follow, Fault::HangBeforeHead),
        (Call::Follow, Fault::HeadThenHang),
    ] {
        let script = Script::default();
        script.set(fault);
        let rule = Cancelled::FailureAfter(Duration::from_secs(9));
        let (mut client, circuit) =
            client(&breaker(Codes::new()).on_cancel(rule), in_memory(&script));
        let answer = tokio::time::timeout(Duration::from_secs(10), call(&mut client, kind));
        assert!(answer.await.is_err());
        assert_eq!(script.seen(), 1);
        assert_eq!(circuit.state(), State::Open);
    }
}

// ===== probes =====

/// Makes a circuit whose next call is the probe.
async fn due(rule: Cancelled, script: &Script) -> (Client, CircuitBreakerHandle) {
    let layer = breaker(Codes::new()).on_cancel(rule);
    let (client, circuit) = client(&layer, in_memory(script));
    circuit.try_acquire().unwrap().failure();
    tokio::time::advance(COOLDOWN).await;
    (client, circuit)
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_frames_keep_coming_outlives_its_lease_and_closes_the_circuit() {
    for kind in BOTH {
        let script = Script::default();
        script.set(Fault::Drip(LEASE * 9 / 10));
        let (mut probe, circuit) = due(Cancelled::Ignore, &script).await;
        let mut other = probe.clone();
        let began = tokio::time::Instant::now();
        let (seen, ()) = tokio::join!(call(&mut probe, kind), async {
            tokio::time::sleep(LEASE * 2).await;
            assert_eq!(circuit.state(), State::HalfOpen);
            assert!(other.find(query()).await.is_err());
        });
        assert_eq!(seen, Seen::whole(kind));
        assert!(began.elapsed() > LEASE * 2);
        assert_eq!(circuit.state(), State::Closed);
        assert_eq!(script.seen(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_frames_come_too_late_has_failed_whatever_its_end_says() {
    for kind in BOTH {
        let script = Script::default();
        script.set(Fault::Drip(LEASE * 11 / 10));
        let (mut probe, circuit) = due(Cancelled::Ignore, &script).await;
        assert_eq!(call(&mut probe, kind).await, Seen::whole(kind));
        assert_eq!(circuit.state(), State::Open);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_at_its_end_opens_the_circuit_again() {
    for kind in BOTH {
        let script = Script::default();
        script.set(Fault::FailAtEnd(Status::unavailable("still down")));
        let (mut probe, circuit) = due(Cancelled::Ignore, &script).await;
        assert!(call(&mut probe, kind).await.end.is_err());
        let circuit = circuit.snapshot();
        assert_eq!((circuit.state, circuit.trips), (State::Open, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_during_its_stream_never_blocks_the_circuit() {
    let after = Cancelled::FailureAfter(LEASE / 2);
    for (rule, at_once, in_the_end) in [
        (Cancelled::Ignore, State::HalfOpen, State::Open),
        (Cancelled::Release, State::HalfOpen, State::HalfOpen),
        (Cancelled::Failure, State::Open, State::Open),
        (after, State::HalfOpen, State::HalfOpen),
    ] {
        let script = Script::default();
        script.set(Fault::HeadThenHang);
        let (mut client, circuit) = due(rule, &script).await;
        drop(begun(&mut client).await);
        assert_eq!(circuit.state(), at_once, "{rule:?}");
        let released = at_once == in_the_end && at_once == State::HalfOpen;
        assert_eq!(circuit.would_allow(), released, "{rule:?}");
        tokio::time::advance(LEASE).await;
        assert_eq!(circuit.state(), in_the_end, "{rule:?}");
        tokio::time::advance(COOLDOWN).await;
        script.set(Fault::Clean);
        let seen = call(&mut client, Call::Follow).await;
        assert_eq!(seen, Seen::whole(Call::Follow));
        assert_eq!(circuit.state(), State::Closed, "{rule:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn frames_also_renew_the_lease_of_the_probe_of_a_fallback() {
    for (pause, state) in [
        (LEASE * 9 / 10, FallbackState::Primary),
        (LEASE * 11 / 10, FallbackState::Recovering),
    ] {
        let (large, small) = (Script::default(), Script::default());
        let layer = FallbackLayer::new("large")
            .backup("small", in_memory(&small))
            .trip_threshold(1)
            .recovery_timeout(COOLDOWN)
            .recovery_successes_needed(1)
            .probe_timeout(LEASE)
            .classify(Codes::models())
            .judge(EndOfBody.inspect(Codes::models()));
        let chain = layer.handle();
        let mut client = SearchClient::new(layer.layer(in_memory(&large)));

        large.set(Fault::FailAtEnd(Status::unavailable("down")));
        assert!(call(&mut client, Call::Follow).await.end.is_err());
        assert_eq!(chain.state(), FallbackState::Fallback);
        tokio::time::advance(COOLDOWN).await;
        large.set(Fault::Drip(pause));
        let seen = call(&mut client, Call::Follow).await;
        assert_eq!(seen, Seen::whole(Call::Follow));
        assert_eq!(chain.state(), state);
        assert_eq!((large.seen(), small.seen()), (2, 0));
    }
}

// ===== whose timeout =====

#[tokio::test]
async fn a_connection_that_hangs_during_a_stream_is_a_failure_by_the_keep_alive_of_the_channel() {
    for kind in BOTH {
        let server = Server::start().await.unwrap();
        server.script().set(Fault::HeadThenHang);
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let channel = Endpoint::from_shared(proxy.url())
            .unwrap()
            .http2_keep_alive_interval(PATIENCE / 4)
            .keep_alive_timeout(PATIENCE)
            .connect_lazy();
        let frame = Arc::new(Notify::new());
        let (mut client, circuit) = client(&breaker(Codes::new()), watched(channel, &frame));
        let (seen, ()) = tokio::join!(call(&mut client, kind), async {
            frame.notified().await;
            proxy.hang();
        });
        let text = "h2 protocol error: error reading a body from connection";
        assert_eq!(seen.end, Err((Code::Unknown, text.to_owned())));
        assert_eq!(circuit.state(), State::Open);
    }
}

#[tokio::test]
async fn a_timeout_of_the_channel_or_of_the_request_is_a_failure_that_reads_as_cancelled() {
    for of_the_request in [false, true] {
        let server = Server::start().await.unwrap();
        server.script().set(Fault::HangBeforeHead);
        let mut endpoint = Endpoint::from_shared(format!("http://{}", server.addr())).unwrap();
        if !of_the_request {
            endpoint = endpoint.timeout(PATIENCE);
        }
        let (mut client, circuit) = client(&breaker(Codes::new()), endpoint.connect_lazy());
        let mut req = tonic::Request::new(query());
        if of_the_request {
            req.set_timeout(PATIENCE);
        }
        let status = client.find(req).await.unwrap_err();
        let seen = (status.code(), status.message());
        assert_eq!(seen, (Code::Cancelled, "Timeout expired"));
        assert_eq!(circuit.state(), State::Open);
    }
}

#[tokio::test]
async fn a_tonic_server_that_times_out_answers_cancelled_which_counts_only_if_the_codes_say_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let script = Script::default();
    script.set(Fault::HangBeforeHead);
    let server = tonic::transport::Server::builder()
        .timeout(PATIENCE)
        .add_service(SearchServer::new(script))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);

    let counted = Codes::new().code(grpc::Code::Cancelled, Failure::transient());
    for (codes, state) in [(Codes::new(), State::Closed), (counted, State::Open)] {
        let (mut client, circuit) = client(&breaker(codes), channel(&url));
        let status = client.find(query()).await.unwrap_err();
        let seen = (status.code(), status.message());
        assert_eq!(seen, (Code::Cancelled, "Timeout expired"));
        assert_eq!(circuit.state(), state);
    }
}
