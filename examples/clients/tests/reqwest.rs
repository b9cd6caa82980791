//! Tests of the layers around the client of `reqwest`, with every fault of a server.

mod web;

use std::future::ready;
use std::time::Duration;

use reqwest::{Body, Method, Request, Response, ResponseBuilderExt};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::http::{EndOfBody, ResponseBody, StatusClassifier};
use tower_breaker::{
    CircuitBreakerHandle, CircuitBreakerLayer, FallbackLayer, Reason, Refusal, State,
};
use tower_breaker_clients::faulty::Fault;

use web::{COOLDOWN, Cell, HINT, Seen, WHOLE};

fn ask(url: &str) -> Request {
    Request::new(Method::GET, url.parse().unwrap())
}

/// Makes the client alone, with the timeouts of the cell. It has its own timeout, for the head and
/// for each frame of the body.
fn client(cell: Cell) -> reqwest::Client {
    let patience = cell.for_head().min(cell.for_frame());
    let client = reqwest::Client::builder().read_timeout(patience);
    client.no_proxy().build().unwrap()
}

/// Converts to a response of `http`, for a layer that judges at the end of a body. The conversion
/// drops the URL.
fn to_http(response: Response) -> http::Response<Body> {
    let url = http::Response::builder().url(response.url().clone());
    let mut response = http::Response::from(response);
    response
        .extensions_mut()
        .extend(url.body(()).unwrap().into_parts().0.extensions);
    response
}

/// Puts the client behind a circuit that one failure trips.
fn guarded(
    cell: Cell,
) -> (
    impl Service<Request, Response = http::Response<ResponseBody<Body>>, Error = BoxError> + Clone,
    CircuitBreakerHandle,
) {
    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(COOLDOWN)
        .retry_after_cap(HINT)
        .classify(StatusClassifier::new())
        .judge(EndOfBody);
    let circuit = breaker.handle();
    let client = ServiceBuilder::new()
        .layer(breaker)
        .map_response(to_http)
        .service(client(cell));
    (client, circuit)
}

/// Reads an answer as a caller of reqwest does.
async fn read(answer: Result<Response, BoxError>) -> Seen {
    let mut response = match answer {
        Ok(response) => response,
        Err(err) => return Seen::NoHead(err),
    };
    let status = response.status().as_u16();
    let mut text = String::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => text.push_str(std::str::from_utf8(&chunk).unwrap()),
            Ok(None) => return Seen::Answer(status, text),
            Err(err) => return Seen::NoEnd(status, text, err.into()),
        }
    }
}

fn assert_seen(cell: Cell, seen: &Seen) {
    let error = |err: &BoxError| -> (bool, bool, bool) {
        let err: &reqwest::Error = err.downcast_ref().unwrap();
        (
            err.is_connect(),
            err.is_timeout(),
            err.is_decode() || err.is_body(),
        )
    };
    match (cell, seen) {
        (Cell::RefusedConnection, Seen::NoHead(err)) => {
            assert_eq!(error(err), (true, false, false), "{err:?}");
        }
        (Cell::HangBeforeHead, Seen::NoHead(err)) => {
            assert_eq!(error(err), (false, true, false), "{err:?}");
        }
        (Cell::HeadThenHang, Seen::NoEnd(200, read, err)) => {
            assert_eq!(read, "one ");
            assert_eq!(error(err), (false, true, true), "{err:?}");
        }
        (Cell::CutInBody, Seen::NoEnd(200, read, err)) => {
            assert_eq!(read, "one ");
            assert_eq!(error(err), (false, false, true), "{err:?}");
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
        let (primary, circuit) = guarded(cell);
        let (other, unused) = guarded(cell);
        let layer = FallbackLayer::new("primary")
            .trip_threshold(2)
            .backup("backup", other)
            .classify(StatusClassifier::models())
            .judge(EndOfBody);
        let fallback = layer.handle();
        let model = ServiceBuilder::new()
            .map_response(|response: http::Response<_>| Response::from(response.map(Body::wrap)))
            .layer(layer)
            .service(primary);

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
        let (backup, circuit) = guarded(cell);
        let layer = FallbackLayer::new("primary")
            .trip_threshold(1)
            .recovery_timeout(COOLDOWN)
            .backup("backup", backup)
            .classify(StatusClassifier::models())
            .judge(EndOfBody);
        let fallback = layer.handle();
        let mut model = ServiceBuilder::new()
            .map_response(|response: http::Response<_>| Response::from(response.map(Body::wrap)))
            .layer(layer)
            .service(service_fn(|_: Request| ready(Err("down".into()))));

        let down = model.ready().await.unwrap().call(ask(&server.url())).await;
        assert_eq!(down.unwrap_err().to_string(), "down");
        let seen = read(model.oneshot(ask(&server.url())).await).await;
        assert_seen(cell, &seen);
        web::assert_circuit(cell, &circuit);
        web::assert_backup(cell, &fallback);
    })
    .await;
}

#[tokio::test]
async fn a_layer_that_judges_heads_takes_calls_that_fail_later_for_successes() {
    web::each_cell(async |cell| {
        let server = web::server(cell).await;
        let statuses = StatusClassifier::new();
        let breaker = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .recovery_duration(COOLDOWN)
            // The response is not one of `http`, so the closure passes on its status and headers.
            .classify(
                move |result: Result<&Response, &reqwest::Error>| match result {
                    Ok(response) => statuses.of_head(response.status(), response.headers()),
                    Err(_) => tower_breaker::Failure::transient().into(),
                },
            );
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
    let (client, circuit) = guarded(Cell::Clean);
    let mut client = ServiceBuilder::new()
        .map_response(|response: http::Response<_>| Response::from(response.map(Body::wrap)))
        .service(client);
    let url = server.url();
    let mut call = async || client.ready().await?.call(ask(&url)).await;
    assert_seen(Cell::Clean, &read(call().await).await);

    server.kill().await;
    assert!(matches!(read(call().await).await, Seen::NoHead(_)));
    server.restart().await.unwrap();
    let refused = call().await.unwrap_err();
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
        .recovery_duration(Duration::ZERO)
        .judge(EndOfBody);
    let circuit = breaker.handle();
    let mut client = ServiceBuilder::new()
        .map_response(|response: http::Response<_>| Response::from(response.map(Body::wrap)))
        .layer(breaker)
        .map_response(to_http)
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
        let whole = response.text().await;
        assert_eq!(whole.is_ok(), after == State::Closed);
        assert_eq!(circuit.state(), after);
    }
}

#[tokio::test]
async fn a_response_keeps_its_url_its_headers_and_its_length_on_the_way() {
    let server = web::start().await;
    server.set(Fault::Status(404));
    let (client, _) = guarded(Cell::Clean);
    let client = ServiceBuilder::new()
        .map_response(|response: http::Response<_>| Response::from(response.map(Body::wrap)))
        .service(client);
    let url = format!("{}/page?of=7", server.url());
    let response = client.oneshot(ask(&url)).await.unwrap();
    assert_eq!(response.url().as_str(), url);
    assert_eq!(response.headers()["content-type"], "application/json");
    let length = response.content_length().unwrap();
    let json: serde_json::Value = response.json().await.unwrap();
    assert_eq!(json.to_string().len() as u64, length);
}
