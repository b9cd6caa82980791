//! Tests of the layers on the server's side of `axum`, with one circuit for each tenant. The error
//! type stays `Infallible`.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use futures::{StreamExt, stream};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tower::ServiceBuilder;
use tower_breaker::http::{EndOfBody, SoftRefusal, StatusClassifier};
use tower_breaker::{Cancelled, CircuitBreakerLayer, FailureKind, State};
use tower_http::timeout::TimeoutLayer;

/// How long a test waits at most. Only a hang takes as long.
const DEADLINE: Duration = Duration::from_secs(30);

fn tenant(headers: &HeaderMap) -> &str {
    let tenant = headers.get("x-tenant").and_then(|name| name.to_str().ok());
    tenant.unwrap_or("nobody")
}

/// Makes a layer with one circuit for each tenant in a header. `$set` has the other settings.
macro_rules! per_tenant {
    ($($set:tt)*) => {
        CircuitBreakerLayer::new()
            .classify(StatusClassifier::new())
            .refuse(SoftRefusal::problem())
            .judge(EndOfBody)
            $($set)*
            .per_key(|request: &Request| tenant(request.headers()), 100)
    };
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn client() -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy();
    client.timeout(DEADLINE).build().unwrap()
}

async fn call(url: &str, path: &str, tenant: &str) -> reqwest::Result<reqwest::Response> {
    let request = client().get(format!("{url}{path}"));
    request.header("x-tenant", tenant).send().await
}

async fn status(url: &str, path: &str, tenant: &str) -> u16 {
    let response = call(url, path, tenant).await.unwrap();
    let status = response.status();
    response.bytes().await.unwrap();
    status.as_u16()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "not in time: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn an_open_circuit_refuses_its_tenant_on_every_route_and_no_other_tenant() {
    let asked = Arc::new(AtomicUsize::new(0));
    let handler = {
        let asked = Arc::clone(&asked);
        async move |headers: HeaderMap| {
            asked.fetch_add(1, SeqCst);
            match tenant(&headers) {
                "blue" => Err(StatusCode::BAD_GATEWAY),
                "red" => Err(StatusCode::FORBIDDEN),
                tenant => Ok(tenant.to_owned()),
            }
        }
    };
    let breaker = per_tenant!();
    let circuits = breaker.handle();
    let app = Router::new()
        .route("/one", get(handler.clone()).layer(breaker.clone()))
        .route("/two", get(handler).layer(breaker.clone()))
        .route("/free", get(async || "free"));
    let url = serve(app).await;

    for path in ["/one", "/two", "/one"] {
        assert_eq!(status(&url, path, "blue").await, 502);
    }
    assert_eq!(asked.load(SeqCst), 3);
    for path in ["/one", "/two"] {
        let response = call(&url, path, "blue").await.unwrap();
        assert_eq!(response.status(), 503);
        let headers = response.headers();
        assert_eq!(headers["content-type"], "application/problem+json");
        let seconds: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=30).contains(&seconds), "{seconds}");
        let problem: serde_json::Value = response.json().await.unwrap();
        assert_eq!(problem["reason"], "circuit_open");
        assert_eq!(problem["name"], "blue");
    }
    assert_eq!(asked.load(SeqCst), 3, "a refused call reaches no handler");

    assert_eq!(status(&url, "/free", "blue").await, 200);
    assert_eq!(status(&url, "/one", "green").await, 200);
    for _ in 0..5 {
        assert_eq!(status(&url, "/two", "red").await, 403);
    }
    assert_eq!(
        client()
            .get(format!("{url}/one"))
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "nobody"
    );

    let mut known = circuits.keys();
    known.sort();
    assert_eq!(known, ["blue", "green", "nobody", "red"]);
    assert_eq!(circuits.state("blue"), State::Open);
    for tenant in ["green", "red", "nobody"] {
        assert_eq!(circuits.state(tenant), State::Closed);
        assert_eq!(circuits.snapshot(tenant).streak, 0);
    }

    circuits.reset("blue");
    assert_eq!(status(&url, "/one", "blue").await, 502);
}

#[tokio::test]
async fn the_tenant_may_come_from_an_extension_of_the_authentication() {
    #[derive(Clone)]
    struct Tenant(String);

    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(StatusClassifier::new())
        .refuse(SoftRefusal::text())
        .per_owned_key(
            |request: &Request| {
                request
                    .extensions()
                    .get::<Tenant>()
                    .map(|tenant| tenant.0.clone())
            },
            100,
        );
    let circuits = breaker.handle();
    let authentication = from_fn(async |mut request: Request, next: Next| {
        let tenant = Tenant(tenant(request.headers()).to_owned());
        request.extensions_mut().insert(tenant);
        next.run(request).await
    });
    let layers = ServiceBuilder::new().layer(authentication).layer(breaker);
    let app = Router::new().route("/", get(async || StatusCode::BAD_GATEWAY).layer(layers));
    let url = serve(app).await;
    assert_eq!(status(&url, "/", "blue").await, 502);
    assert_eq!(status(&url, "/", "blue").await, 503);
    assert_eq!(status(&url, "/", "green").await, 502);
    assert_eq!(circuits.state(&Some("blue".to_owned())), State::Open);
}

#[tokio::test]
async fn a_stream_gets_its_verdict_from_its_end() {
    let breaker = per_tenant!(.failure_threshold(1).recovery_duration(Duration::ZERO));
    let circuits = breaker.handle();
    // Lets one body continue to its end.
    let go = Arc::new(Semaphore::new(0));
    let handler = {
        let go = Arc::clone(&go);
        async move |headers: HeaderMap| {
            let fails = tenant(&headers) == "blue";
            let end = stream::once(async move {
                go.acquire().await.unwrap().forget();
                if fails {
                    Err("the backend is gone")
                } else {
                    Ok("two")
                }
            });
            Body::from_stream(stream::iter([Ok("one ")]).chain(end))
        }
    };
    let app = Router::new().route("/", get(handler).layer(breaker));
    let url = serve(app).await;
    circuits.try_acquire("green").unwrap().failure();

    for (tenant, during, whole, after) in [
        ("blue", State::Closed, None, State::Open),
        ("green", State::HalfOpen, Some("one two"), State::Closed),
    ] {
        let response = call(&url, "/", tenant).await.unwrap();
        assert_eq!(
            (response.status(), circuits.state(tenant)),
            (StatusCode::OK, during)
        );
        go.add_permits(1);
        assert_eq!(response.text().await.ok().as_deref(), whole);
        until("the verdict is given", || circuits.state(tenant) == after).await;
    }
}

#[tokio::test]
async fn a_caller_who_leaves_during_a_stream_counts_as_on_cancel_says() {
    for (rule, failures) in [(Cancelled::Ignore, 0), (Cancelled::Failure, 1)] {
        let breaker = per_tenant!(.on_cancel(rule));
        let circuits = breaker.handle();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let handler = async move || {
            let held = Arc::clone(&held);
            let endless = stream::repeat(()).then(move |()| {
                let held = Arc::clone(&held);
                async move {
                    sleep(Duration::from_millis(1)).await;
                    drop(held);
                    Ok::<_, Infallible>("more ")
                }
            });
            Body::from_stream(endless)
        };
        let app = Router::new().route("/", get(handler).layer(breaker));
        let url = serve(app).await;

        let before = Arc::strong_count(&alive);
        let mut response = call(&url, "/", "blue").await.unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), "more ");
        assert!(Arc::strong_count(&alive) > before);
        drop(response);
        until("the stream is dropped", || {
            Arc::strong_count(&alive) == before
        })
        .await;
        until("the verdict is given", || {
            circuits.snapshot("blue").streak == failures
        })
        .await;
        assert_eq!(circuits.state("blue"), State::Closed);
    }
}

#[tokio::test]
async fn a_handler_that_panics_or_hangs_has_failed() {
    let breaker = per_tenant!(.failure_threshold(2));
    let circuits = breaker.handle();
    let hung =
        TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(100));
    let app = Router::new()
        .route(
            "/hang",
            get(pending::<Response>)
                .layer(ServiceBuilder::new().layer(breaker.clone()).layer(hung)),
        )
        .route(
            "/panic",
            get(async || -> Response { panic!("on purpose") }).layer(breaker),
        );
    let url = serve(app).await;

    assert_eq!(status(&url, "/hang", "blue").await, 408);
    assert_eq!(circuits.snapshot("blue").streak, 1);
    assert!(call(&url, "/panic", "blue").await.is_err());
    assert_eq!(circuits.state("blue"), State::Open);
    let kind = circuits.snapshot("blue").last_failure;
    assert_eq!(kind, Some(FailureKind::Transient));
    assert_eq!(status(&url, "/hang", "blue").await, 503);
}

/// The framework drops the body unread. For the layer this is a dropped call.
#[tokio::test]
async fn an_answer_to_head_gives_no_verdict_at_the_end_of_the_body() {
    let breaker = per_tenant!(
        .failure_threshold(1)
        .recovery_duration(Duration::ZERO)
        .on_cancel(Cancelled::Release)
    );
    let circuits = breaker.handle();
    circuits.try_acquire("blue").unwrap().failure();
    let app = Router::new().route("/", get(async || "an answer").layer(breaker));
    let url = serve(app).await;
    let request = client().head(&url).header("x-tenant", "blue");
    assert_eq!(request.send().await.unwrap().status(), 200);
    // `Cancelled::Release` frees the probe's slot.
    assert_eq!(circuits.state("blue"), State::HalfOpen);
    assert!(circuits.would_allow("blue"));
    assert_eq!(status(&url, "/", "blue").await, 200);
    assert_eq!(circuits.state("blue"), State::Closed);
}
