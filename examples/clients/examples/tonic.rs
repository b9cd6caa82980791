//! A circuit around a tonic client. A call that fails at the end of its stream counts as a
//! failure. A refused call reads as `UNAVAILABLE`.
//!
//! ```text
//! cargo run -p tower-breaker-clients --example tonic
//! ```

use std::time::Duration;

use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status, Streaming};
use tower::{BoxError, ServiceBuilder};
use tower_breaker::grpc::{Codes, SoftRefusal};
use tower_breaker::{CircuitBreakerHandle, CircuitBreakerLayer, EndOfBody, State};
use tower_breaker_clients::grpc::{Fault, Server};
use tower_breaker_clients::proxy::Proxy;
use tower_breaker_clients::search::search_client::SearchClient;
use tower_breaker_clients::search::{Answer, Query};

/// Short, so that the example ends soon. The default is 30 s.
const COOLDOWN: Duration = Duration::from_millis(300);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let server = Server::start().await?;
    let mut network = Proxy::start(server.addr()).await?;
    let url = network.url();

    // Order, from outside to inside: the interceptor, the breaker, a timeout, the channel.
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .recovery_duration(COOLDOWN)
        .classify(Codes::new()) // errors, and what the headers say
        .judge(EndOfBody.inspect(Codes::new())) // what the trailers say, and streams that break
        .refuse(SoftRefusal); // what a client reads as `UNAVAILABLE`
    let circuit = breaker.handle();
    let channel = Endpoint::from_shared(url)?
        .http2_keep_alive_interval(Duration::from_secs(10)) // notices that a stream hangs with its connection
        .connect_lazy();
    let service = ServiceBuilder::new()
        .layer(breaker)
        .timeout(Duration::from_secs(10)) // for the head
        .service(channel);
    let mut search = SearchClient::with_interceptor(service, authorize);

    println!("the server works:");
    let answer = search.find(query()).await?.into_inner();
    println!("  {}", answer.text);
    assert_eq!(read(search.follow(query()).await).await?, 3);

    println!("streams begin, and fail at their end:");
    server
        .script()
        .set(Fault::FailAtEnd(Status::internal("out of memory")));
    for failures in 1..=3 {
        let failed = read(search.follow(query()).await).await.unwrap_err();
        assert_eq!(failed.code(), Code::Internal);
        assert_eq!(circuit.state() == State::Open, failures == 3);
    }

    println!("the circuit is open, and no call reaches the server:");
    let called = server.script().seen();
    let refused = read(search.follow(query()).await).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(server.script().seen(), called);

    println!("the server works again, and the next call is the probe:");
    server.script().set(Fault::Clean);
    wait_until_due(&circuit).await;
    assert_eq!(read(search.follow(query()).await).await?, 3);
    assert_eq!(circuit.state(), State::Closed);

    println!("the network to the server is down:");
    network.kill().await;
    for failures in 1..=3 {
        assert!(read(search.follow(query()).await).await.is_err());
        assert_eq!(circuit.state() == State::Open, failures == 3);
    }

    println!("the network works again:");
    network.restart().await?;
    wait_until_due(&circuit).await;
    assert_eq!(read(search.follow(query()).await).await?, 3);
    assert_eq!(circuit.state(), State::Closed);
    Ok(())
}

/// Adds a token. An interceptor goes outside, so the layers do not count the calls that it
/// rejects.
fn authorize(mut req: Request<()>) -> Result<Request<()>, Status> {
    let token = "Bearer of-good-news".parse();
    let token = token.map_err(|_| Status::unauthenticated("no token"))?;
    req.metadata_mut().insert("authorization", token);
    Ok(req)
}

fn query() -> Query {
    Query {
        text: "rust".to_owned(),
    }
}

/// Reads a stream to its end and counts the messages. The verdict comes at the end. A stream that
/// is dropped earlier is a cancelled call.
async fn read(answers: Result<Response<Streaming<Answer>>, Status>) -> Result<usize, Status> {
    let read = async {
        let mut answers = answers?.into_inner();
        let mut messages = 0;
        while let Some(answer) = answers.message().await? {
            println!("  {}", answer.text);
            messages += 1;
        }
        Ok(messages)
    };
    read.await.inspect_err(|status: &Status| {
        println!("  {:?}: {}", status.code(), status.message());
    })
}

async fn wait_until_due(circuit: &CircuitBreakerHandle) {
    if let Some(left) = circuit.snapshot().time_left {
        tokio::time::sleep(left).await;
    }
}
