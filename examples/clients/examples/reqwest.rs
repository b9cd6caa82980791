//! A circuit around the client of `reqwest`. Callers keep reqwest's own requests and responses. A
//! stream that breaks counts as a failure.
//!
//! ```text
//! cargo run -p tower-breaker-clients --example reqwest
//! ```

use std::time::Duration;

use reqwest::{Body, Method, Request, Response, ResponseBuilderExt};
use tokio::time::{sleep, timeout};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_breaker::http::{EndOfBody, StatusClassifier};
use tower_breaker::{CircuitBreakerHandle, CircuitBreakerLayer, Refusal, State};
use tower_breaker_clients::faulty::{Answer, Fault, Server};

/// Short, so that the example ends soon. The default is 30 s.
const COOLDOWN: Duration = Duration::from_millis(300);

/// Short, so that the example ends soon.
const PATIENCE: Duration = Duration::from_millis(300);

/// Converts a response for a layer that judges at the end of a body. `http::Response::from` alone
/// would drop the URL.
fn to_http(response: Response) -> http::Response<Body> {
    let url = http::Response::builder().url(response.url().clone());
    let mut response = http::Response::from(response);
    if let Ok(url) = url.body(()) {
        response
            .extensions_mut()
            .extend(url.into_parts().0.extensions);
    }
    response
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let mut server =
        Server::start(|_| Answer::of("text/plain", &["one ", "two ", "three"])).await?;

    // Every server is on loopback, so no proxy may be used.
    let client = reqwest::Client::builder().no_proxy();

    // Order: the breaker outside, the client's own timeout inside. It holds for the head and for
    // each frame of the body.
    let client = client.read_timeout(PATIENCE).build()?;
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .recovery_duration(COOLDOWN)
        .classify(StatusClassifier::new())
        .judge(EndOfBody);
    let circuit = breaker.handle();
    let mut search = ServiceBuilder::new()
        .map_response(|response: http::Response<_>| Response::from(response.map(Body::wrap)))
        .layer(breaker)
        .map_response(to_http)
        .service(client);

    println!("the server works:");
    assert_eq!(ask(&mut search, &server).await?, "200: one two three");

    println!("it cuts an answer, then it hangs in an answer, then it is killed:");
    server.set(Fault::CutInBody);
    ask(&mut search, &server).await.unwrap_err();
    server.set(Fault::HeadThenHang);
    ask(&mut search, &server).await.unwrap_err();
    server.kill().await;
    ask(&mut search, &server).await.unwrap_err();

    println!("after three failures in a row the circuit refuses at once:");
    assert_eq!(circuit.state(), State::Open);
    let refused = ask(&mut search, &server).await.unwrap_err();
    assert!(Refusal::find(&*refused).is_some());

    println!("the server runs again, and after the cooldown one call is the probe:");
    server.set(Fault::Clean);
    server.restart().await?;
    due(&circuit).await?;
    assert_eq!(ask(&mut search, &server).await?, "200: one two three");
    assert_eq!(circuit.state(), State::Closed);

    println!("a response still knows its URL:");
    server.set(Fault::Status(404));
    let request = Request::new(Method::GET, format!("{}/page", server.url()).parse()?);
    let response = search.ready().await?.call(request).await?;
    let err = response.error_for_status().unwrap_err();
    println!("  error: {err}");
    assert_eq!(err.url().map(reqwest::Url::path), Some("/page"));
    Ok(())
}

/// Sends a request, reads the answer to its end, and prints it.
async fn ask<S>(search: &mut S, server: &Server) -> Result<String, BoxError>
where
    S: Service<Request, Response = Response, Error = BoxError>,
{
    let request = Request::new(Method::GET, server.url().parse()?);
    let answer = async {
        let response = search.ready().await?.call(request).await?;
        let status = response.status().as_u16();
        Ok(format!("{status}: {}", response.text().await?))
    };
    let answer = answer.await;
    match &answer {
        Ok(answer) => println!("  {answer}"),
        Err(err) => println!("  error: {err}"),
    }
    answer
}

/// Waits until the next call would be the probe. Asking the oracle changes nothing.
async fn due(circuit: &CircuitBreakerHandle) -> Result<(), BoxError> {
    let due = async {
        while !circuit.would_allow() {
            sleep(circuit.snapshot().time_left.unwrap_or_default()).await;
        }
    };
    Ok(timeout(10 * COOLDOWN, due).await?)
}
