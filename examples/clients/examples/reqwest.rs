//! A circuit around the client of `reqwest`: callers keep reqwest's own requests and responses, and a stream that dies in the middle counts.
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

/// Short, so that the example is. 30 s is the default.
const COOLDOWN: Duration = Duration::from_millis(300);

/// Short, so that the example is.
const PATIENCE: Duration = Duration::from_millis(300);

/// What a layer that judges at the end of a body takes. The conversion alone would leave the URL behind.
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

    // Everything is on loopback here.
    let client = reqwest::Client::builder().no_proxy();

    // Which layer where: the breaker outside, and the client's own timeout inside, which is for the head and for each frame of the body.
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

    println!("the server is well:");
    assert_eq!(ask(&mut search, &server).await?, "200: one two three");

    println!("it stops in the middle of an answer, then it hangs there, then it is gone:");
    server.set(Fault::CutInBody);
    ask(&mut search, &server).await.unwrap_err();
    server.set(Fault::HeadThenHang);
    ask(&mut search, &server).await.unwrap_err();
    server.kill().await;
    ask(&mut search, &server).await.unwrap_err();

    println!("those were three in a row, and now nobody waits:");
    assert_eq!(circuit.state(), State::Open);
    let refused = ask(&mut search, &server).await.unwrap_err();
    assert!(Refusal::find(&*refused).is_some());

    println!("it is back, and after the cooldown one call finds out:");
    server.set(Fault::Clean);
    server.restart().await?;
    due(&circuit).await?;
    assert_eq!(ask(&mut search, &server).await?, "200: one two three");
    assert_eq!(circuit.state(), State::Closed);

    println!("a response still knows where it came from:");
    server.set(Fault::Status(404));
    let request = Request::new(Method::GET, format!("{}/page", server.url()).parse()?);
    let response = search.ready().await?.call(request).await?;
    let err = response.error_for_status().unwrap_err();
    println!("  error: {err}");
    assert_eq!(err.url().map(reqwest::Url::path), Some("/page"));
    Ok(())
}

/// Asks, reads the answer to its end, and shows it.
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

/// Waits until the next call would be the probe. Asking changes nothing.
async fn due(circuit: &CircuitBreakerHandle) -> Result<(), BoxError> {
    let due = async {
        while !circuit.would_allow() {
            sleep(circuit.snapshot().time_left.unwrap_or_default()).await;
        }
    };
    Ok(timeout(10 * COOLDOWN, due).await?)
}
