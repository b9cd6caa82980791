//! Circuits on the server's side of `axum`, one for each tenant. A tenant whose backend is down is
//! refused at once, and no other is. The error type stays `Infallible`, so no `HandleErrorLayer`
//! is needed.
//!
//! ```text
//! cargo run -p tower-breaker-clients --example axum
//! ```

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, serve};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tower::BoxError;
use tower_breaker::http::{EndOfBody, SoftRefusal, StatusClassifier};
use tower_breaker::{Cancelled, CircuitBreakerLayer, State as Circuit};

/// Short, so that the example ends soon. The default is 30 s.
const COOLDOWN: Duration = Duration::from_millis(300);

/// The tenants whose backend is down.
type Down = Arc<Mutex<HashSet<String>>>;

/// Returns the tenant of a request. Real code takes it from the authentication: a forged header
/// would let anyone trip the circuit of another tenant.
fn tenant(headers: &HeaderMap) -> &str {
    let tenant = headers.get("x-tenant").and_then(|name| name.to_str().ok());
    tenant.unwrap_or("nobody")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let down = Down::default();

    // The layer goes on each route whose handlers call the tenant's backend. Its clones share the
    // circuits. A caller who leaves early or sends `HEAD` says nothing of the backend.
    let breaker = CircuitBreakerLayer::new()
        .recovery_duration(COOLDOWN)
        .classify(StatusClassifier::new())
        .refuse(SoftRefusal::problem())
        .judge(EndOfBody)
        .on_cancel(Cancelled::Release)
        .per_key(|request: &Request| tenant(request.headers()), 10_000);
    let circuits = breaker.handle();
    let guarded = |route: MethodRouter<Down>| route.layer(breaker.clone());
    let app = Router::new()
        .route("/search", guarded(get(ask)))
        .route("/answer", guarded(post(ask)))
        .route("/health", get(|| async { "well" }))
        .with_state(Arc::clone(&down));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { serve(listener, app).await });
    let client = reqwest::Client::builder().no_proxy().build()?;
    let call = async |tenant: &str, path: &str| {
        let request = match path {
            "/answer" => client.post(format!("{url}{path}")),
            _ => client.get(format!("{url}{path}")),
        };
        let response = request.header("x-tenant", tenant).send().await?;
        let status = response.status();
        let wait = response.headers().get("retry-after").cloned();
        println!("  {tenant} {path}: {status} {}", response.text().await?);
        Ok::<_, BoxError>((status, wait))
    };

    println!("the backend of `blue` is down, and its calls fail on every route:");
    down.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert("blue".to_owned());
    for path in ["/search", "/answer", "/search"] {
        assert_eq!(call("blue", path).await?.0, StatusCode::BAD_GATEWAY);
    }

    println!("its circuit refuses, on every route:");
    assert_eq!(circuits.state("blue"), Circuit::Open);
    for path in ["/search", "/answer"] {
        let (status, wait) = call("blue", path).await?;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(wait.unwrap(), "1");
    }

    println!("other tenants are served, and so are routes without a backend:");
    assert_eq!(call("green", "/answer").await?.0, StatusCode::OK);
    assert_eq!(call("blue", "/health").await?.0, StatusCode::OK);

    println!("the backend works again, and after the cooldown one call is the probe:");
    down.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove("blue");
    let due = async {
        while !circuits.would_allow("blue") {
            sleep(circuits.snapshot("blue").time_left.unwrap_or_default()).await;
        }
    };
    timeout(10 * COOLDOWN, due).await?;
    assert_eq!(call("blue", "/search").await?.0, StatusCode::OK);
    assert_eq!(circuits.state("blue"), Circuit::Closed);
    Ok(())
}

/// Answers from the tenant's own backend.
async fn ask(State(down): State<Down>, headers: HeaderMap) -> Result<String, StatusCode> {
    let tenant = tenant(&headers);
    let down = down.lock().unwrap_or_else(PoisonError::into_inner);
    if down.contains(tenant) {
        return Err(StatusCode::BAD_GATEWAY);
    }
    Ok(format!("an answer for {tenant}"))
}
