//! Tests of the layers around a client that does not use tower, with every fault of a server.

#[allow(dead_code)] // The rest is for clients that answer with a head and a body.
mod web;

use std::future::ready;

use http::{HeaderMap, StatusCode};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::http::StatusClassifier;
use tower_breaker::{
    CircuitBreakerHandle, CircuitBreakerLayer, Failure, FallbackLayer, IntoError, Outcome, Reason,
    Refusal, State, TripwireLayer,
};

use web::{COOLDOWN, Cell, HINT, WHOLE};

type Seen = Result<String, ToolError>;

/// A client that reads the answer to its end and has its own error type.
#[derive(Clone)]
struct Tool {
    http: reqwest::Client,
}

#[derive(Debug)]
enum ToolError {
    Status(StatusCode, HeaderMap),
    Http(reqwest::Error),
    /// Added for the layers, with `From<Refusal>`.
    Refused(Refusal),
}

impl Tool {
    /// Makes a client with the timeouts of the cell.
    fn of(cell: Cell) -> Self {
        let patience = cell.for_head().min(cell.for_frame());
        let http = reqwest::Client::builder().read_timeout(patience);
        Self {
            http: http.no_proxy().build().unwrap(),
        }
    }

    async fn ask(&self, url: &str) -> Seen {
        let response = self.http.get(url).send().await?;
        if !response.status().is_success() {
            return Err(ToolError::Status(
                response.status(),
                response.headers().clone(),
            ));
        }
        Ok(response.text().await?)
    }

    /// Makes a service of the client with `service_fn`.
    fn service(self) -> impl Service<String, Response = String, Error = ToolError> + Clone {
        service_fn(move |url: String| {
            let tool = self.clone();
            async move { tool.ask(&url).await }
        })
    }
}

impl From<reqwest::Error> for ToolError {
    fn from(err: reqwest::Error) -> Self {
        Self::Http(err)
    }
}

impl From<Refusal> for ToolError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn verdict(result: Result<&String, &ToolError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(ToolError::Status(status, headers)) => {
            StatusClassifier::new().of_head(*status, headers)
        }
        Err(ToolError::Http(_)) => Failure::transient().into(),
        Err(ToolError::Refused(_)) => Outcome::Neutral,
    }
}

/// Puts the client behind a circuit that one failure trips.
fn guarded(
    cell: Cell,
) -> (
    impl Service<String, Response = String, Error = ToolError> + Clone,
    CircuitBreakerHandle,
) {
    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(COOLDOWN)
        .retry_after_cap(HINT)
        .classify(verdict)
        .refuse(IntoError);
    let circuit = breaker.handle();
    let service = ServiceBuilder::new()
        .layer(breaker)
        .service(Tool::of(cell).service());
    (service, circuit)
}

fn assert_seen(cell: Cell, seen: &Seen) {
    match (cell, seen) {
        (Cell::RefusedConnection, Err(ToolError::Http(err))) => {
            assert!(err.is_connect(), "{err:?}");
        }
        (Cell::HangBeforeHead, Err(ToolError::Http(err))) => {
            assert!(err.is_timeout() && !err.is_decode(), "{err:?}");
        }
        // The function reads the body itself, so no layer has to judge it.
        (Cell::HeadThenHang, Err(ToolError::Http(err))) => {
            assert!(err.is_timeout() && err.is_decode(), "{err:?}");
        }
        (Cell::CutInBody, Err(ToolError::Http(err))) => {
            assert!(err.is_decode() && !err.is_timeout(), "{err:?}");
        }
        (Cell::ThrottledWithHint, Err(ToolError::Status(status, _))) => assert_eq!(*status, 429),
        (Cell::Status500, Err(ToolError::Status(status, _))) => assert_eq!(*status, 500),
        (Cell::SlowDrip | Cell::Clean, Ok(text)) => assert_eq!(text, WHOLE),
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
            .classify(verdict)
            .refuse(IntoError);
        let fallback = layer.handle();
        let model = ServiceBuilder::new().layer(layer).service(primary);

        assert_seen(cell, &model.oneshot(server.url()).await);
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
            .classify(verdict)
            .refuse(IntoError);
        let fallback = layer.handle();
        let down = ToolError::Status(StatusCode::BAD_GATEWAY, HeaderMap::new());
        let mut down = Some(down);
        let mut model = ServiceBuilder::new()
            .layer(layer)
            .service_fn(move |_: String| ready(Err(down.take().expect("one turn"))));

        let failed = model.ready().await.unwrap().call(server.url()).await;
        assert!(matches!(failed, Err(ToolError::Status(status, _)) if status == 502));
        let seen = model.ready().await.unwrap().call(server.url()).await;
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
            .classify(verdict)
            .refuse(IntoError);
        let tripwire = layer.handle();
        let tool = ServiceBuilder::new()
            .layer(layer)
            .service(Tool::of(cell).service());

        assert_seen(cell, &tool.oneshot(server.url()).await);
        let reason = (!cell.is_well()).then_some(Reason::ErrorStreak);
        assert_eq!(
            (tripwire.turns(), tripwire.reason()),
            (1, reason),
            "{cell:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_open_circuit_spares_a_killed_server_and_a_probe_finds_it_restarted() {
    let mut server = web::start().await;
    let (mut tool, circuit) = guarded(Cell::Clean);
    let url = server.url();
    let mut call = async || tool.ready().await?.call(url.clone()).await;
    assert_seen(Cell::Clean, &call().await);

    server.kill().await;
    assert!(matches!(call().await, Err(ToolError::Http(_))));
    server.restart().await.unwrap();
    match call().await {
        Err(ToolError::Refused(refusal)) => assert_eq!(refusal.reason(), Reason::CircuitOpen),
        seen => panic!("{seen:?}"),
    }
    assert_eq!(server.seen(), 1);

    circuit.reset();
    assert_seen(Cell::Clean, &call().await);
    assert_eq!(server.seen(), 2);
}

#[tokio::test]
async fn a_permit_by_hand_guards_code_that_is_not_a_service() {
    web::each_cell(async |cell| {
        let server = web::server(cell).await;
        let (_, circuit) = guarded(cell);
        let permit = circuit.try_acquire().unwrap();
        let seen = Tool::of(cell).ask(&server.url()).await;
        permit.record(verdict(seen.as_ref()));
        assert_seen(cell, &seen);
        web::assert_circuit(cell, &circuit);
        let open = circuit.try_acquire().is_err();
        assert_eq!(open, circuit.state() == State::Open);
    })
    .await;
}
