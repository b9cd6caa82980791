//! A body that does what the test says, and a server that answers with it.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_test::task;
use tower::{BoxError, Service, ServiceExt};
use tower_breaker::CircuitBreakerLayer;

// ===== the body =====

pub enum Step {
    Data(&'static str),
    Trailers(HeaderMap),
    Error,
    Panic,
}

/// The writing end of a body. The body ends when it is dropped.
pub struct Pipe(UnboundedSender<Step>);

impl Pipe {
    pub fn send(&self, step: Step) {
        let _ = self.0.send(step);
    }
}

/// What a body says about its end and its length, true or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Nothing,
    /// How many bytes are left. Each frame of data makes it less.
    Length(u64),
    /// That so many bytes are left, always.
    Left(u64),
    /// That it has ended, from the start.
    Ended,
    /// It panics when it is asked whether it has ended.
    Panics,
    /// It panics when it is asked how much is left.
    PanicsOfSize,
}

/// A body that the test writes through a [`Pipe`]. It panics when it is polled after its end.
#[derive(Debug)]
pub struct Piped {
    steps: UnboundedReceiver<Step>,
    pub says: Says,
    pub ended: bool,
    pub panics_when_dropped: bool,
}

impl Body for Piped {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        assert!(!self.ended, "polled after its end");
        self.steps.poll_recv(cx).map(|step| match step {
            Some(Step::Data(data)) => {
                if let Says::Length(left) = &mut self.says {
                    *left -= data.len() as u64;
                }
                Some(Ok(Frame::data(data.into())))
            }
            Some(Step::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Some(Step::Error) => {
                self.ended = true;
                Some(Err("cut".into()))
            }
            Some(Step::Panic) => panic!("the body panics"),
            None => {
                self.ended = true;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        assert!(self.says != Says::Panics, "asked whether it has ended");
        self.says == Says::Ended
    }

    fn size_hint(&self) -> SizeHint {
        assert!(self.says != Says::PanicsOfSize, "asked how much is left");
        match self.says {
            Says::Length(left) | Says::Left(left) => SizeHint::with_exact(left),
            _ => SizeHint::default(),
        }
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        assert!(!self.panics_when_dropped, "dropped");
    }
}

pub fn piped(says: Says) -> (Pipe, Piped) {
    let (sender, steps) = unbounded_channel();
    let body = Piped {
        steps,
        says,
        ended: false,
        panics_when_dropped: false,
    };
    (Pipe(sender), body)
}

// ===== the server =====

type Answer = Result<Response<Piped>, BoxError>;

/// A service whose answers the test queues before the calls.
#[derive(Clone, Debug, Default)]
pub struct Server {
    answers: Arc<Mutex<Vec<Answer>>>,
}

impl Server {
    /// Queues an answer with status `200`, and returns the writing end of its body.
    pub fn answers(&self) -> Pipe {
        self.answers_with(StatusCode::OK, Says::Nothing)
    }

    pub fn answers_with(&self, status: StatusCode, says: Says) -> Pipe {
        let (pipe, body) = piped(says);
        let mut response = Response::new(body);
        *response.status_mut() = status;
        self.answers.lock().unwrap().insert(0, Ok(response));
        pipe
    }

    pub fn fails(&self) {
        let down = Err("down".into());
        self.answers.lock().unwrap().insert(0, down);
    }
}

impl<T> Service<Request<T>> for Server {
    type Response = Response<Piped>;
    type Error = BoxError;
    type Future = std::future::Ready<Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<T>) -> Self::Future {
        let answer = self.answers.lock().unwrap().pop();
        std::future::ready(answer.unwrap_or_else(|| Err("nobody expected this call".into())))
    }
}

// ===== what tests do with them =====

/// Calls, and returns the body of the response.
pub async fn call<S, B>(service: &mut S) -> Result<B, BoxError>
where
    S: Service<Request<()>, Response = Response<B>, Error = BoxError>,
{
    let response = service.ready().await?.call(Request::new(())).await?;
    Ok(response.into_body())
}

/// Reads the frames that are there, and returns whether the body has ended, and how.
pub fn read<B: Body<Error = BoxError> + Unpin>(body: &mut B) -> Poll<Result<(), BoxError>> {
    task::spawn(()).enter(|cx, _| {
        loop {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(err))) => return Poll::Ready(Err(err)),
                Poll::Ready(Some(Ok(_))) => {}
            }
        }
    })
}

pub fn breaker() -> CircuitBreakerLayer {
    CircuitBreakerLayer::new().failure_threshold(1)
}
