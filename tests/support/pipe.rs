//! A body that does what the test says, and a server that answers with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_test::task;
use tower::{BoxError, Service, ServiceExt};
use tower_breaker::CircuitBreakerLayer;

pub const SECOND: Duration = Duration::from_secs(1);

// ===== the body =====

pub enum Step {
    Data(&'static str),
    Trailers(HeaderMap),
    Error,
    Panic,
}

/// The test's end of a body. Dropped, the body ends.
pub struct Pipe(UnboundedSender<Step>);

impl Pipe {
    pub fn send(&self, step: Step) {
        let _ = self.0.send(step);
    }
}

/// The claim of a body about its end, true or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Nothing,
    /// This many bytes are left, and each frame of data reduces that.
    Length(u64),
    /// This many bytes are left, and that never changes.
    Left(u64),
    /// It has ended, from the beginning.
    Ended,
    /// It panics when it is asked.
    Panics,
    /// It panics when it is asked how much is left.
    PanicsOfSize,
}

/// A body that panics if it is polled after its end.
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

/// A service whose answers the test sets beforehand.
#[derive(Clone, Debug, Default)]
pub struct Server {
    answers: Arc<Mutex<Vec<Answer>>>,
}

impl Server {
    /// The next answer's head is `200`, and its body the test's.
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

/// Makes a call, and returns the body of the response.
pub async fn call<S, B>(service: &mut S) -> Result<B, BoxError>
where
    S: Service<Request<()>, Response = Response<B>, Error = BoxError>,
{
    let response = service.ready().await?.call(Request::new(())).await?;
    Ok(response.into_body())
}

/// Reads the frames that have come. Returns whether and how the body has ended.
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

pub fn panics<T>(f: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

pub fn breaker() -> CircuitBreakerLayer {
    CircuitBreakerLayer::new().failure_threshold(1)
}
