//! Proves what the status in the trailers does to each layer.

use std::vec;

use bytes::Bytes;
use futures::stream;
use http::Response;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::grpc::Codes;
use tower_breaker::{
    CircuitBreakerLayer, Classify, EndOfBody, FailureKind, FallbackLayer, FallbackState, State,
    TripwireLayer,
};

use crate::map;
use crate::support::{pass, secs};

type Stream = StreamBody<stream::Iter<vec::IntoIter<Result<Frame<Bytes>, BoxError>>>>;

type Streamed = Response<Stream>;

/// A response whose body sends these frames.
fn streamed(frames: impl IntoIterator<Item = Result<Frame<Bytes>, BoxError>>) -> Streamed {
    let frames: Vec<_> = frames.into_iter().collect();
    Response::new(StreamBody::new(stream::iter(frames)))
}

/// A stream of two messages that ends with these trailers.
fn ended_with(fields: &[(&'static str, &str)]) -> Streamed {
    streamed([message(), message(), Ok(Frame::trailers(map(fields)))])
}

fn ended(status: i32) -> Streamed {
    ended_with(&[("grpc-status", &status.to_string())])
}

#[allow(clippy::unnecessary_wraps)] // It is an item of a stream.
fn message() -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x01m")))
}

/// Sends the answer as the request, and reads the response to its end. Returns whether the body
/// ended well.
async fn read<S, B>(service: &mut S, answer: Streamed) -> bool
where
    S: Service<Streamed, Response = Response<B>, Error = BoxError>,
    B: Body,
{
    let response = service.ready().await.unwrap().call(answer).await.unwrap();
    response.into_body().collect().await.is_ok()
}

fn answers() -> impl Service<Streamed, Response = Streamed, Error = BoxError> + Clone {
    service_fn(|answer: Streamed| async move { Ok::<_, BoxError>(answer) })
}

#[tokio::test(start_paused = true)]
async fn a_breaker_counts_a_failure_in_the_trailers_and_heeds_its_hint() {
    let layer = CircuitBreakerLayer::new()
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()));
    let circuit = layer.handle();
    let mut service = layer.layer(answers());
    for _ in 0..10 {
        assert!(read(&mut service, ended(14)).await);
        assert!(read(&mut service, ended(14)).await);
        // The caller's own mistake ends no streak; a success does.
        assert!(read(&mut service, ended(3)).await);
        assert_eq!(circuit.snapshot().streak, 2);
        assert!(read(&mut service, ended(0)).await);
        assert_eq!(circuit.snapshot().streak, 0);
    }
    for last in [false, false, true] {
        assert_eq!(circuit.state(), State::Closed);
        let wait = if last { "45000" } else { "-1" };
        let busy = ended_with(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", wait)]);
        assert!(read(&mut service, busy).await);
    }
    let refusal = circuit.try_acquire().unwrap_err();
    assert_eq!(refusal.retry_after(), Some(secs(45)));
    assert_eq!(refusal.last_failure(), Some(FailureKind::RateLimited));

    pass(secs(45)).await;
    let probe = service.ready().await.unwrap().call(ended(0)).await.unwrap();
    assert_eq!(circuit.state(), State::HalfOpen);
    probe.into_body().collect().await.unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_without_a_status_or_with_an_error_is_a_failure() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()));
    let circuit = layer.handle();
    let mut service = layer.layer(answers());
    let without_status = Frame::trailers(map(&[("x-trace", "7")]));
    for (answer, ends_well) in [
        (streamed([message(), message()]), true),
        (streamed([]), true),
        (streamed([message(), Ok(without_status)]), true),
        (streamed([message(), Err("cut".into())]), false),
    ] {
        assert_eq!(read(&mut service, answer).await, ends_well);
        assert_eq!(circuit.state(), State::Open);
        circuit.reset();
    }
    assert!(read(&mut service, ended(0)).await);
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_trailers_only_status_counts_once_whoever_judges_the_head() {
    let trailers_only = |status: i32| {
        let mut answer = streamed([]);
        let fields = map(&[("grpc-status", &status.to_string())]);
        *answer.headers_mut() = fields;
        answer
    };
    async fn counts<C>(layer: CircuitBreakerLayer<C>, trailers_only: impl Fn(i32) -> Streamed)
    where
        C: Classify<Streamed, BoxError> + Clone,
    {
        let layer = layer.judge(EndOfBody.inspect(Codes::new()));
        let circuit = layer.handle();
        let mut service = layer.layer(answers());
        for (status, failures) in [(14, 1), (14, 2), (5, 2), (0, 0), (13, 1)] {
            assert!(read(&mut service, trailers_only(status)).await);
            assert_eq!(circuit.snapshot().streak, failures, "{status}");
        }
    }
    counts(
        CircuitBreakerLayer::new().classify(Codes::new()),
        trailers_only,
    )
    .await;
    counts(CircuitBreakerLayer::new(), trailers_only).await;
}

#[tokio::test(start_paused = true)]
async fn a_status_in_the_trailers_is_a_strike_of_a_backup_and_an_error_of_a_run() {
    let fallback = FallbackLayer::new("large")
        .backup("small", answers())
        .max_fail_count(1)
        .classify(Codes::models())
        .judge(EndOfBody.inspect(Codes::models()));
    let handle = fallback.handle();
    let mut model = fallback.layer(answers());
    assert!(read(&mut model, ended(14)).await);
    assert_eq!(handle.state(), FallbackState::Primary);
    assert!(read(&mut model, ended(5)).await);
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(handle.active_model().as_deref(), Some("small"));
    assert!(read(&mut model, ended(14)).await);
    assert_eq!(handle.active_model(), None);

    let tripwire = TripwireLayer::new()
        .digest(|_: &Streamed| None)
        .error_limit(2)
        .classify(Codes::new())
        .judge(EndOfBody.inspect(Codes::new()));
    let fence = tripwire.handle();
    let mut tool = tripwire.layer(answers());
    for status in [14, 0, 14, 3, 14] {
        assert_eq!(fence.state(), State::Closed);
        assert!(read(&mut tool, ended(status)).await);
    }
    assert_eq!(fence.state(), State::Open);
}
