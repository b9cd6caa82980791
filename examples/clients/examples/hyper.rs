//! A circuit around the client of `hyper-util`. A stream that breaks after its `200 OK` counts as
//! a failure, as an answer that never began does.
//!
//! ```text
//! cargo run -p tower-breaker-clients --example hyper
//! ```

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::{sleep, timeout};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_breaker::http::{EndOfBody, StatusClassifier};
use tower_breaker::{CircuitBreakerHandle, CircuitBreakerLayer, Refusal, State};
use tower_breaker_clients::faulty::{Answer, Fault, Server};
use tower_http::timeout::ResponseBodyTimeoutLayer;

/// Short, so that the example ends soon. The default is 30 s.
const COOLDOWN: Duration = Duration::from_millis(300);

/// Short, so that the example ends soon.
const PATIENCE: Duration = Duration::from_millis(300);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let mut server =
        Server::start(|_| Answer::of("text/plain", &["one ", "two ", "three"])).await?;

    // Order: the breaker outside, the timeouts inside. They turn silence into an error, one for
    // the head and one for each frame of the body.
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .recovery_duration(COOLDOWN)
        .classify(StatusClassifier::new())
        .judge(EndOfBody);
    let circuit = breaker.handle();
    let mut search = ServiceBuilder::new()
        .layer(breaker)
        .timeout(PATIENCE)
        .layer(ResponseBodyTimeoutLayer::new(PATIENCE))
        .service(Client::builder(TokioExecutor::new()).build_http());

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

    println!("the caller's own mistakes do not count:");
    server.set(Fault::Status(404));
    for _ in 0..4 {
        ask(&mut search, &server).await?;
    }
    assert_eq!(circuit.state(), State::Closed);

    println!("a server that asks for a minute gets it:");
    server.set(Fault::Throttled(60));
    for _ in 0..3 {
        ask(&mut search, &server).await?;
    }
    let left = circuit.snapshot().time_left.unwrap_or_default();
    println!("  {}, for {left:.0?}", circuit.state());
    assert!(left > Duration::from_secs(30));
    Ok(())
}

/// Sends a request, reads the answer to its end, and prints it.
async fn ask<S, B>(search: &mut S, server: &Server) -> Result<String, BoxError>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>, Error = BoxError>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let request = Request::get(server.url()).body(Empty::new())?;
    let answer = async {
        let (head, body) = search.ready().await?.call(request).await?.into_parts();
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        let text = String::from_utf8_lossy(&body);
        Ok(format!("{}: {text}", head.status.as_u16()))
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
