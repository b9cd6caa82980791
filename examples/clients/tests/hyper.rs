//! Tests of the layers around the client of `hyper-util`, with every fault of a server.

mod web;

use std::error::Error;
use std::future::ready;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::timeout::error::Elapsed;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::http::{EndOfBody, ResponseBody, StatusClassifier};
use tower_breaker::{
    CircuitBreakerHandle, CircuitBreakerLayer, Digest, FallbackHandle, FallbackLayer, Reason,
    Refusal, State, TripwireLayer,
};
use tower_breaker_clients::faulty::Fault;
use tower_http::timeout::{ResponseBodyTimeoutLayer, TimeoutBody};

use web::{COOLDOWN, Cell, HINT, Seen, WHOLE};

type Ask = Request<Empty<Bytes>>;
type Timed = Response<TimeoutBody<Incoming>>;

fn ask(url: &str) -> Ask {
    Request::get(url).body(Empty::new()).unwrap()
}

/// Makes the client alone, with the timeouts of the cell.
fn client(cell: Cell) -> impl Service<Ask, Response = Timed, Error = BoxError> + Clone {
    ServiceBuilder::new()
        .timeout(cell.for_head())
        .layer(ResponseBodyTimeoutLayer::new(cell.for_frame()))
        .service(Client::builder(TokioExecutor::new()).build_http())
}

/// Puts the client behind a circuit that one failure trips.
fn guarded(
    cell: Cell,
) -> (
    impl Service<Ask, Response = Response<ResponseBody<TimeoutBody<Incoming>>>, Error = BoxError>
    + Clone,
    CircuitBreakerHandle,
) {
    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(COOLDOWN)
        .retry_after_cap(HINT)
        .classify(StatusClassifier::new())
        .judge(EndOfBody);
    let circuit = breaker.handle();
    (
        ServiceBuilder::new().layer(breaker).service(client(cell)),
        circuit,
    )
}

/// Reads an answer to its end.
async fn read<B>(answer: Result<Response<B>, BoxError>) -> Seen
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let (head, body) = match answer {
        Ok(response) => response.into_parts(),
        Err(err) => return Seen::NoHead(err),
    };
    let status = head.status.as_u16();
    let mut body = pin!(body);
    let mut text = String::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let data = frame.into_data().unwrap_or_default();
                text.push_str(std::str::from_utf8(&data).unwrap());
            }
            Err(err) => return Seen::NoEnd(status, text, err.into()),
        }
    }
    Seen::Answer(status, text)
}

fn assert_seen(cell: Cell, seen: &Seen) {
    match (cell, seen) {
        (Cell::RefusedConnection, Seen::NoHead(err)) => {
            let err = err.downcast_ref::<hyper_util::client::legacy::Error>();
            assert!(err.unwrap().is_connect(), "{err:?}");
        }
        (Cell::HangBeforeHead, Seen::NoHead(err)) => assert!(err.is::<Elapsed>(), "{err:?}"),
        (Cell::HeadThenHang, Seen::NoEnd(200, read, err)) => {
            assert_eq!(read, "one ");
            assert!(err.is::<tower_http::timeout::TimeoutError>(), "{err:?}");
        }
        (Cell::CutInBody, Seen::NoEnd(200, read, err)) => {
            assert_eq!(read, "one ");
            assert!(err.is::<hyper::Error>(), "{err:?}");
            let cause = err
                .source()
                .and_then(<dyn Error>::downcast_ref::<io::Error>);
            assert_eq!(cause.unwrap().kind(), io::ErrorKind::UnexpectedEof);
        }
        (Cell::ThrottledWithHint, Seen::Answer(429, text)) => {
            assert!(text.contains("status 429"), "{text}");
        }
        (Cell::Status500, Seen::Answer(500, text)) => {
            assert!(text.contains("status 500"), "{text}");
        }
        (Cell::SlowDrip | Cell::Clean, Seen::Answer(200, text)) => assert_eq!(text, WHOLE),
        (cell, seen) => panic!("{cell:?}: {seen:?}"),
    }
}

#[tokio::test]
async fn each_fault_counts_once_for_the_circuit_and_once_for_the_primary_of_a_fallback() {
    web::each_cell(async |cell| {
        let server = web::server(cell).await;
        let (client, circuit) = guarded(cell);
        let (other, unused) = guarded(cell);
        let layer = FallbackLayer::new("primary")
            .trip_threshold(2)
            .backup("backup", other)
            .classify(StatusClassifier::models())
            .judge(EndOfBody);
        let fallback: FallbackHandle = layer.handle();
        let model = ServiceBuilder::new().layer(layer).service(client);

        let seen = read(model.oneshot(ask(&server.url())).await).await;
        assert_seen(cell, &seen);
        web::assert_circuit(cell, &circuit);
        web::assert_primary(cell, &fallback);
        assert_eq!(unused.snapshot().last_failure, None);
    })
    .await;
}

#[tokio::test]
async fn each_fault_is_a_strike_of_the_backup_that_served() {
    web::each_cell(async |cell| {
        let server = web::server(cell).await;
        let (client, circuit) = guarded(cell);
        let layer = FallbackLayer::new("primary")
            .trip_threshold(1)
            .recovery_timeout(COOLDOWN)
            .backup("backup", client)
            .classify(StatusClassifier::models())
            .judge(EndOfBody);
        let fallback = layer.handle();
        let mut model = ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(|_: Ask| ready(Err("down".into()))));

        let down = model.ready().await.unwrap().call(ask(&server.url())).await;
        assert_eq!(down.err().unwrap().to_string(), "down");
        let seen = read(model.oneshot(ask(&server.url())).await).await;
        assert_seen(cell, &seen);
        web::assert_circuit(cell, &circuit);
        web::assert_backup(cell, &fallback);
    })
    .await;
}

#[tokio::test]
async fn each_fault_is_an_error_of_the_run_of_a_tripwire() {
    web::each_cell(async |cell| {
        let server = web::server(cell).await;
        let layer = TripwireLayer::new()
            .error_limit(1)
            .digest(|ask: &Ask| Some(Digest::of(ask.uri())))
            .classify(StatusClassifier::new())
            .judge(EndOfBody);
        let tripwire = layer.handle();
        let tool = ServiceBuilder::new().layer(layer).service(client(cell));

        let seen = read(tool.oneshot(ask(&server.url())).await).await;
        assert_seen(cell, &seen);
        let expected = if cell.is_well() {
            (State::Closed, 1, None)
        } else {
            (State::Open, 1, Some(Reason::ErrorStreak))
        };
        let now = (tripwire.state(), tripwire.turns(), tripwire.reason());
        assert_eq!(now, expected, "{cell:?}");
    })
    .await;
}

#[tokio::test]
async fn a_layer_that_judges_heads_takes_calls_that_fail_later_for_successes() {
    web::each_cell(async |cell| {
        let server = web::server(cell).await;
        let breaker = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .recovery_duration(COOLDOWN)
            .classify(StatusClassifier::new());
        let circuit = breaker.handle();
        let client = ServiceBuilder::new().layer(breaker).service(client(cell));

        let seen = read(client.oneshot(ask(&server.url())).await).await;
        assert_seen(cell, &seen);
        if cell.fails_after_its_head() {
            web::assert_circuit(Cell::Clean, &circuit);
        } else {
            assert_eq!(circuit.snapshot().streak, u32::from(!cell.is_well()));
        }
    })
    .await;
}

#[tokio::test]
async fn an_open_circuit_spares_a_killed_server_and_a_probe_finds_it_restarted() {
    let mut server = web::start().await;
    let (mut client, circuit) = guarded(Cell::Clean);
    let url = server.url();
    let mut call = async || client.ready().await?.call(ask(&url)).await;
    assert_seen(Cell::Clean, &read(call().await).await);

    server.kill().await;
    assert!(matches!(read(call().await).await, Seen::NoHead(_)));
    server.restart().await.unwrap();
    let refused = call().await.err().unwrap();
    let refusal = Refusal::find(&*refused).unwrap();
    assert_eq!(refusal.reason(), Reason::CircuitOpen);
    assert_eq!(server.seen(), 1);

    circuit.reset();
    assert_seen(Cell::Clean, &read(call().await).await);
    assert_eq!(server.seen(), 2);
}

#[tokio::test]
async fn a_probe_gets_its_verdict_when_its_body_ends_and_not_before() {
    let server = web::start().await;
    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(1)
        // The next call is the probe.
        .recovery_duration(std::time::Duration::ZERO)
        .judge(EndOfBody);
    let circuit = breaker.handle();
    let mut client = ServiceBuilder::new()
        .layer(breaker)
        .service(client(Cell::Clean));
    for (fault, during, after) in [
        (Fault::CutInBody, State::Closed, State::Open),
        (Fault::CutInBody, State::HalfOpen, State::Open),
        (Fault::Clean, State::HalfOpen, State::Closed),
    ] {
        server.set(fault);
        let call = client.ready().await.unwrap().call(ask(&server.url()));
        let response = call.await.unwrap();
        assert_eq!(circuit.state(), during);
        let whole = response.into_body().collect().await;
        assert_eq!(whole.is_ok(), after == State::Closed);
        assert_eq!(circuit.state(), after);
    }
}
