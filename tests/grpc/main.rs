//! Feature `grpc`: what a status says in the head and in the trailers, and refusals that a client
//! reads.

#![cfg(feature = "grpc")]

#[path = "../support/mod.rs"]
mod support;

mod bodies;
mod heads;
mod hints;
mod layers;
mod refusal;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::Full;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::grpc::{Code, Codes};
use tower_breaker::http::Inspect;
use tower_breaker::{Classify, Failure, Outcome};

type Answer = Response<Full<Bytes>>;

const TRANSIENT: Outcome = Outcome::Failure(Failure::transient());

const RATE_LIMITED: Outcome = Outcome::Failure(Failure::rate_limited());

const FATAL: Outcome = Outcome::Failure(Failure::fatal());

/// What each code says: to a tool's circuit, and to a model's fallback.
const TABLE: [(Code, Outcome, Outcome); 17] = [
    (Code::Ok, Outcome::Success, Outcome::Success),
    (Code::Cancelled, Outcome::Neutral, Outcome::Neutral),
    (Code::Unknown, TRANSIENT, TRANSIENT),
    (Code::InvalidArgument, Outcome::Neutral, Outcome::Neutral),
    (Code::DeadlineExceeded, TRANSIENT, TRANSIENT),
    (Code::NotFound, Outcome::Neutral, FATAL),
    (Code::AlreadyExists, Outcome::Neutral, Outcome::Neutral),
    (Code::PermissionDenied, Outcome::Neutral, FATAL),
    (Code::ResourceExhausted, RATE_LIMITED, RATE_LIMITED),
    (Code::FailedPrecondition, Outcome::Neutral, Outcome::Neutral),
    (Code::Aborted, Outcome::Neutral, Outcome::Neutral),
    (Code::OutOfRange, Outcome::Neutral, Outcome::Neutral),
    (Code::Unimplemented, Outcome::Neutral, FATAL),
    (Code::Internal, TRANSIENT, TRANSIENT),
    (Code::Unavailable, TRANSIENT, TRANSIENT),
    (Code::DataLoss, TRANSIENT, TRANSIENT),
    (Code::Unauthenticated, Outcome::Neutral, FATAL),
];

fn response(status: u16, headers: &[(&'static str, &str)]) -> Answer {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Full::default()).unwrap()
}

fn trailers_only(status: i32) -> Answer {
    response(200, &[("grpc-status", &status.to_string())])
}

fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
    response(200, headers).into_parts().0.headers
}

/// What the codes say about a head.
fn head<E: Classify<Answer, BoxError>>(codes: &Codes<E>, response: &Answer) -> Outcome {
    codes.classify(Ok(response))
}

/// What the codes say about a body: in its trailers, or at its end.
fn body<E: Clone>(
    codes: &Codes<E>,
    head: &Answer,
    trailers: Option<&[(&'static str, &str)]>,
) -> Outcome {
    fn judged<I: Inspect<Bytes>>(
        mut inspect: I,
        head: &Answer,
        trailers: Option<&[(&'static str, &str)]>,
    ) -> Outcome {
        inspect.head(head.status(), head.headers());
        assert_eq!(inspect.frame(&Frame::data(Bytes::from("first"))), None);
        assert_eq!(inspect.frame(&Frame::data(Bytes::new())), None);
        trailers
            .and_then(|trailers| inspect.frame(&Frame::trailers(map(trailers))))
            .unwrap_or_else(|| inspect.end())
    }
    judged(codes.clone(), head, trailers)
}

fn hint(outcome: Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Failure(failure) => failure.retry_after(),
        _ => None,
    }
}

// ===== a channel =====

/// A channel that counts its calls.
#[derive(Clone, Default)]
struct Channel {
    calls: Arc<AtomicUsize>,
}

impl Channel {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Answers each request with the status that is its body, and the pushback that is its header.
    fn service(
        &self,
    ) -> impl Service<Request<i32>, Response = Answer, Error = BoxError, Future: Send> + Clone + use<>
    {
        let calls = Arc::clone(&self.calls);
        service_fn(move |req: Request<i32>| {
            calls.fetch_add(1, Ordering::SeqCst);
            let mut answer = trailers_only(*req.body());
            answer.headers_mut().extend(req.headers().clone());
            async move { Ok::<_, BoxError>(answer) }
        })
    }
}

fn asks(status: i32) -> Request<i32> {
    Request::new(status)
}

fn status_of(response: &Answer) -> Code {
    Code::from_bytes(response.headers()["grpc-status"].as_bytes())
}

async fn call<S>(service: &mut S, req: Request<i32>) -> Result<Answer, S::Error>
where
    S: Service<Request<i32>, Response = Answer>,
{
    service.ready().await?.call(req).await
}

fn layer_on<L, S>(layer: &L, channel: &Channel) -> S
where
    L: Layer<tower::util::BoxCloneService<Request<i32>, Answer, BoxError>, Service = S>,
{
    layer.layer(tower::util::BoxCloneService::new(channel.service()))
}
