//! Tests of what a tonic client reads of a refusal, and of interceptors outside the layers.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::service::{Interceptor, InterceptorLayer};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::grpc::{self, Codes, SoftRefusal};
use tower_breaker::{
    CircuitBreakerLayer, EndOfBody, Failure, FailureKind, FallbackLayer, Outcome, Reason, Refusal,
    State, TripwireLayer,
};
use tower_breaker_clients::grpc::{Fault, Script, Server};
use tower_breaker_clients::search::search_client::SearchClient;
use tower_breaker_clients::search::search_server::SearchServer;
use tower_breaker_clients::search::{Answer, Query};

use crate::support::{BOTH, Call, Guarded, Seen, breaker, call, channel, query};

const OPEN: &str = "tool `search` temporarily unavailable: circuit breaker open";

async fn server() -> (Server, Channel) {
    let server = Server::start().await.unwrap();
    let channel = channel(&format!("http://{}", server.addr()));
    (server, channel)
}

#[tokio::test]
async fn a_soft_refusal_is_unavailable_with_the_text_and_the_wait() {
    let (server, channel) = server().await;
    // The service's error is still tonic's own, and not boxed.
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .recovery_duration(Duration::from_secs(60))
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()))
        .refuse(SoftRefusal);
    let circuit = layer.handle();
    let mut client = SearchClient::new(ServiceBuilder::new().layer(layer).service(channel));
    for kind in BOTH {
        assert_eq!(call(&mut client, kind).await, Seen::whole(kind));
    }
    for _ in 0..3 {
        circuit.try_acquire().unwrap().failure();
    }
    for kind in BOTH {
        let refused = call(&mut client, kind).await;
        assert_eq!(refused, Seen::failed(0, Code::Unavailable, OPEN));
    }
    let status = client.find(query()).await.unwrap_err();
    let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    let millis: u32 = pushback.to_str().unwrap().parse().unwrap();
    assert!((50_000..=60_000).contains(&millis), "{millis}");
    assert_eq!(server.script().seen(), 2);
}

#[tokio::test]
async fn a_refusal_as_an_error_is_found_in_the_source_of_the_status() {
    let (server, channel) = server().await;
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()));
    layer.handle().force_open();
    let mut client = SearchClient::new(ServiceBuilder::new().layer(layer).service(channel));

    let unary = client.find(query()).await.unwrap_err();
    let stream = client.follow(query()).await.unwrap_err();
    for status in [unary, stream] {
        assert_eq!((status.code(), status.message()), (Code::Unknown, OPEN));
        let refusal = Refusal::find(&status).expect("it is the source");
        assert_eq!(refusal.reason(), Reason::ForcedOpen);
        // The refusal is also found in a boxed status, as `?` makes one, and in a clone.
        let boxed = BoxError::from(status.clone());
        assert_eq!(Refusal::find(&*boxed), Some(refusal));
    }
    assert_eq!(server.script().seen(), 0);
}

#[tokio::test]
async fn a_refusal_of_any_layer_is_made_soft_outermost() {
    async fn soften(
        result: Result<http::Response<Body>, BoxError>,
    ) -> Result<http::Response<Body>, BoxError> {
        result.or_else(|err| match Refusal::find(&*err) {
            Some(refusal) => Ok(SoftRefusal.response(refusal)),
            None => Err(err),
        })
    }

    let (server, channel) = server().await;
    let breaker = CircuitBreakerLayer::new()
        .name("search")
        .classify(Codes::new());
    let fallback = FallbackLayer::new("large").classify(Codes::models());
    let tripwire = TripwireLayer::new()
        .max_turns(2)
        .digest(|_: &http::Request<Body>| None)
        .classify(Codes::new());
    breaker.handle().force_open();
    let mut client = SearchClient::new(
        ServiceBuilder::new()
            .then(soften)
            .layer(tripwire)
            .layer(fallback)
            .layer(breaker)
            .service(channel),
    );
    for kind in BOTH {
        let refused = call(&mut client, kind).await;
        assert_eq!(refused, Seen::failed(0, Code::Unavailable, OPEN));
    }
    let stopped = call(&mut client, Call::Find).await;
    let text = "service was not called: all 2 turns of the run are spent. \
                Make no more calls, and answer with what you have";
    assert_eq!(stopped, Seen::failed(0, Code::Unavailable, text));
    assert_eq!(server.script().seen(), 0);
}

#[tokio::test]
async fn a_layer_around_a_tonic_server_judges_its_answers_and_refuses_softly() {
    for kind in BOTH {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = Script::default();
        // Each connection has its own service, and all share one circuit.
        let layer = breaker(Codes::new()).refuse(SoftRefusal);
        let circuit = layer.handle();
        let server = tonic::transport::Server::builder()
            .layer(layer)
            .add_service(SearchServer::new(script.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);

        let whole = call(&mut SearchClient::new(channel(&url)), Call::Follow).await;
        assert_eq!(whole, Seen::whole(Call::Follow));
        script.set(Fault::FailAtEnd(Status::internal("broken")));
        let failed = call(&mut SearchClient::new(channel(&url)), Call::Follow).await;
        assert_eq!(failed, Seen::failed(2, Code::Internal, "broken"));
        assert_eq!(circuit.state(), State::Open);
        let refused = call(&mut SearchClient::new(channel(&url)), kind).await;
        assert_eq!(refused, Seen::failed(0, Code::Unavailable, OPEN));
        assert_eq!(script.seen(), 2);
    }
}

/// Admits only calls with a token.
fn authorize(req: Request<()>) -> Result<Request<()>, Status> {
    match req.metadata().get("token") {
        Some(_) => Ok(req),
        None => Err(Status::unauthenticated("no token")),
    }
}

fn with_token<T>(message: T) -> Request<T> {
    let mut req = Request::new(message);
    req.metadata_mut().insert("token", "t".parse().unwrap());
    req
}

/// Makes a classifier for which this status of a server would be fatal.
fn codes() -> Codes {
    Codes::new().code(grpc::Code::Unauthenticated, Failure::fatal())
}

#[tokio::test]
async fn an_interceptor_outside_sees_every_call_and_no_layer_counts_its_errors() {
    let (server, channel) = server().await;
    let breaker = breaker(codes());
    let circuit = breaker.handle();
    let guarded = ServiceBuilder::new().layer(breaker).service(channel);
    let mut client = SearchClient::with_interceptor(guarded, authorize);

    let turned_away = client.find(query()).await.unwrap_err();
    assert_eq!(turned_away.code(), Code::Unauthenticated);
    assert_eq!(
        client.follow(query()).await.unwrap_err().message(),
        "no token"
    );
    assert_eq!(circuit.snapshot().streak, 0);
    assert_eq!(
        (circuit.state(), server.script().seen()),
        (State::Closed, 0)
    );

    let answer = client.find(with_token(query())).await.unwrap();
    assert_eq!(answer.get_ref().text, "rust 1");

    server
        .script()
        .set(Fault::FailAtEnd(Status::unavailable("down")));
    let mut answers = client
        .follow(with_token(query()))
        .await
        .unwrap()
        .into_inner();
    assert!(answers.message().await.is_ok());
    assert!(answers.message().await.is_ok());
    assert_eq!(circuit.state(), State::Closed, "it has not ended yet");
    let failed = answers.message().await.unwrap_err();
    assert_eq!(
        (failed.code(), failed.message()),
        (Code::Unavailable, "down")
    );
    assert_eq!(circuit.state(), State::Open);

    let refused = client.find(with_token(query())).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unknown, OPEN));
    let reason = Refusal::find(&refused).map(Refusal::reason);
    assert_eq!(reason, Some(Reason::CircuitOpen));
    // The interceptor runs first, even for a call that the circuit refuses.
    let turned_away = client.find(query()).await.unwrap_err();
    assert_eq!(turned_away.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn an_interceptor_can_be_a_layer_outside_of_soft_refusals() {
    let (server, channel) = server().await;
    let breaker = breaker(codes()).refuse(SoftRefusal);
    let circuit = breaker.handle();
    let mut client = SearchClient::new(
        ServiceBuilder::new()
            .layer(InterceptorLayer::new(authorize))
            .layer(breaker)
            .service(channel),
    );
    let answer = client.find(with_token(query())).await.unwrap();
    assert_eq!(answer.get_ref().text, "rust 1");
    circuit.force_open();
    let refused = client.follow(with_token(query())).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, OPEN)
    );
    assert_eq!(server.script().seen(), 1);
}

#[tokio::test]
async fn every_layer_passes_on_what_an_interceptor_around_the_stack_adds() {
    #[derive(Clone)]
    struct Token;

    impl Interceptor for Token {
        fn call(&mut self, mut req: Request<()>) -> Result<Request<()>, Status> {
            req.metadata_mut().insert("token", "t".parse().unwrap());
            Ok(req)
        }
    }

    let guarded = Guarded::start().await;
    guarded.set(Fault::FailAtEnd(Status::internal("broken")));
    let mut client = SearchClient::with_interceptor(guarded.service.clone(), Token);
    let seen = call(&mut client, Call::Follow).await;
    assert_eq!(seen, Seen::failed(2, Code::Internal, "broken"));
    guarded.assert_failed(FailureKind::Transient);
}

#[tokio::test]
async fn a_tripwire_around_the_generated_client_sees_the_messages_and_the_refusals_in_a_status() {
    let (server, channel) = server().await;
    let breaker = breaker(codes());
    let circuit = breaker.handle();
    let client = SearchClient::new(breaker.layer(channel));
    let tripwire = TripwireLayer::new().max_turns(20).classify(
        |result: Result<&Answer, &Status>| match result {
            Ok(_) => Outcome::Success,
            Err(status) if Refusal::find(status).is_some() => Outcome::Neutral,
            Err(status) => Codes::new().outcome(grpc::Code::from_number(i32::from(status.code()))),
        },
    );
    let fence = tripwire.handle();
    let mut search = tripwire.layer(service_fn(move |query: Query| {
        let mut client = client.clone();
        async move { client.find(query).await.map(Response::into_inner) }
    }));
    let mut ask = async |text: &str| {
        let text = text.to_owned();
        search.ready().await.unwrap().call(Query { text }).await
    };

    assert_eq!(ask("rust").await.unwrap().text, "rust 1");
    server
        .script()
        .set(Fault::Refuse(Status::internal("broken")));
    assert!(ask("tower").await.is_err());
    assert_eq!((fence.snapshot().errors, circuit.state()), (1, State::Open));
    for text in ["tonic", "hyper"] {
        let refused = ask(text).await.unwrap_err();
        let reason = Refusal::find(&*refused).map(Refusal::reason);
        assert_eq!(reason, Some(Reason::CircuitOpen));
        assert_eq!(fence.snapshot().errors, 1);
    }
    assert!(ask("hyper").await.is_err());
    let repeated = ask("hyper").await.unwrap_err();
    let reason = Refusal::find(&*repeated).map(Refusal::reason);
    assert_eq!(reason, Some(Reason::IdenticalCall));
    assert_eq!(server.script().seen(), 2);
}
