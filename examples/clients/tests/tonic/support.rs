//! A guarded client, its server, and the proxy between them.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::circuit_breaker::One;
use tower_breaker::grpc::Codes;
use tower_breaker::http::InspectBody;
use tower_breaker::{
    AsBoxError, CircuitBreakerHandle, CircuitBreakerLayer, EndOfBody, FailureKind, FallbackHandle,
    FallbackLayer, State, TripwireHandle, TripwireLayer,
};
use tower_breaker_clients::grpc::{Fault, Script, Server};
use tower_breaker_clients::proxy::Proxy;
use tower_breaker_clients::search::Query;
use tower_breaker_clients::search::search_client::SearchClient;
use tower_http::timeout::ResponseBodyTimeoutLayer;

/// The cooldown of the circuits.
pub const COOLDOWN: Duration = Duration::from_secs(30);
pub const LEASE: Duration = Duration::from_secs(10);

/// How long a client waits for a head, and for the next frame of a body.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// A boxed service of the type that the generated client takes.
pub type Grpc = BoxCloneService<http::Request<Body>, http::Response<Body>, BoxError>;

pub fn boxed<S, B>(service: S) -> Grpc
where
    S: Service<http::Request<Body>, Response = http::Response<B>, Error: Into<BoxError>>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    service
        .map_response(|response: http::Response<B>| response.map(Body::new))
        .map_err(Into::into)
        .boxed_clone()
}

/// Makes a service that notifies `frame` of each frame.
pub fn watched<S, B>(service: S, frame: &Arc<Notify>) -> Grpc
where
    S: Service<http::Request<Body>, Response = http::Response<B>, Error: Into<BoxError>>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let frame = Arc::clone(frame);
    boxed(service.map_response(move |response: http::Response<B>| {
        response.map(|body| {
            body.map_frame(move |passing| {
                frame.notify_one();
                passing
            })
        })
    }))
}

/// Makes what is inside the layers: a channel with a timeout for the head and one for each frame.
/// It notifies `frame` of each frame.
pub fn patient(channel: Channel, frame: &Arc<Notify>) -> Grpc {
    let patient = ServiceBuilder::new()
        .layer(ResponseBodyTimeoutLayer::new(PATIENCE))
        .timeout(PATIENCE)
        .service(channel);
    watched(patient, frame)
}

pub fn channel(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned())
        .unwrap()
        .connect_lazy()
}

/// Makes a channel to a server in the same process, without a socket. So a paused clock advances
/// only when both wait.
pub fn in_memory(script: &Script) -> Channel {
    let (client, server) = tokio::io::duplex(64 * 1024);
    let incoming = stream::iter([Ok::<_, io::Error>(server)]).chain(stream::pending());
    tokio::spawn(script.clone().serve(incoming));
    let mut client = Some(TokioIo::new(client));
    Endpoint::from_static("http://in.memory").connect_with_connector_lazy(service_fn(
        move |_: http::Uri| {
            ready(
                client
                    .take()
                    .ok_or_else(|| io::Error::other("connected once")),
            )
        },
    ))
}

/// Waits until the condition holds, for a limited time.
pub async fn eventually(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "it never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The two kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    Find,
    Follow,
}

pub const BOTH: [Call; 2] = [Call::Find, Call::Follow];

/// What the caller saw: the messages, and the end.
#[derive(Debug, PartialEq)]
pub struct Seen {
    pub messages: Vec<String>,
    pub end: Result<(), (Code, String)>,
}

impl Seen {
    /// The whole answer.
    pub fn whole(call: Call) -> Self {
        let messages = match call {
            Call::Find => 1,
            Call::Follow => 3,
        };
        Self {
            messages: (1..=messages).map(|n| format!("rust {n}")).collect(),
            end: Ok(()),
        }
    }

    /// This many messages, and an error.
    pub fn failed(messages: usize, code: Code, text: &str) -> Self {
        Self {
            messages: (1..=messages).map(|n| format!("rust {n}")).collect(),
            end: Err((code, text.to_owned())),
        }
    }
}

pub fn query() -> Query {
    Query {
        text: "rust".to_owned(),
    }
}

/// Makes the call and reads it to its end.
pub async fn call<S, B>(client: &mut SearchClient<S>, call: Call) -> Seen
where
    S: Service<http::Request<Body>, Response = http::Response<B>, Error: Into<BoxError>>,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
{
    let mut messages = Vec::new();
    let end = async {
        match call {
            Call::Find => messages.push(client.find(query()).await?.into_inner().text),
            Call::Follow => {
                let mut answers = client.follow(query()).await?.into_inner();
                while let Some(answer) = answers.message().await? {
                    messages.push(answer.text);
                }
            }
        }
        Ok(())
    };
    let end = end
        .await
        .map_err(|status: Status| (status.code(), status.message().to_owned()));
    Seen { messages, end }
}

/// Makes a circuit that judges at the end and trips at the first failure.
pub type Breaker = CircuitBreakerLayer<Codes, AsBoxError, One, InspectBody<Codes>>;

pub fn breaker(codes: Codes) -> Breaker {
    CircuitBreakerLayer::new()
        .name("search")
        .failure_threshold(1)
        .recovery_duration(COOLDOWN)
        .probe_timeout(LEASE)
        .classify(codes.clone())
        .judge(EndOfBody.inspect(codes))
}

/// `tripwire(fallback(breaker(timeouts(channel))))`, and a backup for the fallback.
pub struct Guarded {
    pub server: Server,
    pub proxy: Proxy,
    pub backup: Server,
    pub backup_proxy: Proxy,
    pub circuit: CircuitBreakerHandle,
    pub chain: FallbackHandle,
    pub fence: TripwireHandle<()>,
    pub client: SearchClient<Grpc>,
    /// The guarded service under the client.
    pub service: Grpc,
    /// Notified of each frame of the primary.
    pub frame: Arc<Notify>,
    /// Notified of each frame of the backup.
    pub backup_frame: Arc<Notify>,
}

impl Guarded {
    pub async fn start() -> Self {
        Self::with_cooldown(COOLDOWN).await
    }

    pub async fn with_cooldown(cooldown: Duration) -> Self {
        let server = Server::start().await.unwrap();
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let backup = Server::start().await.unwrap();
        let backup_proxy = Proxy::start(backup.addr()).await.unwrap();
        let [frame, backup_frame] = [(); 2].map(|()| Arc::new(Notify::new()));

        let breaker = breaker(Codes::new()).recovery_duration(cooldown);
        let of_backup = breaker
            .clone()
            .failure_threshold(100)
            .layer(patient(channel(&backup_proxy.url()), &backup_frame));
        let fallback = FallbackLayer::new("primary")
            .backup("backup", of_backup)
            .classify(Codes::models())
            .judge(EndOfBody.inspect(Codes::models()));
        let tripwire = TripwireLayer::new()
            .digest(|_: &http::Request<Body>| None)
            .classify(Codes::new())
            .judge(EndOfBody.inspect(Codes::new()));

        let circuit = breaker.handle();
        let chain = fallback.handle();
        let fence = tripwire.handle().without_requests();
        let service = boxed(
            ServiceBuilder::new()
                .layer(tripwire)
                .layer(fallback)
                .layer(breaker)
                .service(patient(channel(&proxy.url()), &frame)),
        );
        Self {
            circuit,
            chain,
            fence,
            client: SearchClient::new(service.clone()),
            service,
            server,
            proxy,
            backup,
            backup_proxy,
            frame,
            backup_frame,
        }
    }

    /// Starts like `start`. Then the primary fails three turns, and the backup serves.
    pub async fn tripped(call: Call) -> Self {
        let mut guarded = Self::start().await;
        // The primary fails the first turn. Its open circuit refuses the next two.
        guarded.set(Fault::FailAtEnd(Status::unavailable("down")));
        for _ in 0..3 {
            assert!(guarded.call(call).await.end.is_err());
        }
        assert_eq!(guarded.server.script().seen(), 1);
        assert_eq!(guarded.chain.active_model().as_deref(), Some("backup"));
        guarded
    }

    pub fn set(&self, fault: Fault) {
        self.server.script().set(fault);
    }

    pub async fn call(&mut self, kind: Call) -> Seen {
        call(&mut self.client, kind).await
    }

    /// Asserts what each layer counted of one failed call.
    #[track_caller]
    pub fn assert_failed(&self, kind: FailureKind) {
        let circuit = self.circuit.snapshot();
        assert_eq!(
            (circuit.state, circuit.last_failure),
            (State::Open, Some(kind))
        );
        let chain = self.chain.snapshot();
        assert_eq!(
            (chain.consecutive_failures, chain.last_failure),
            (1, Some(kind))
        );
        assert_eq!(chain.entries[0].strikes, 0, "who served was the primary");
        let fence = self.fence.snapshot();
        assert_eq!(
            (fence.turns, fence.errors, fence.last_failure),
            (1, 1, Some(kind))
        );
    }

    /// Asserts that each layer has seen a call and counted no failure.
    #[track_caller]
    pub fn assert_clean(&self) {
        let circuit = self.circuit.snapshot();
        assert_eq!((circuit.state, circuit.streak), (State::Closed, 0));
        assert_eq!(self.chain.snapshot().consecutive_failures, 0);
        let fence = self.fence.snapshot();
        assert_eq!((fence.turns, fence.errors), (1, 0));
    }
}
