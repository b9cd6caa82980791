//! Shared by the measurements: the inner services, the layers around them, the loop that drives a
//! call, and the counting allocator.
//!
//! Nothing here needs a runtime. The inner services answer at once, so a call is `poll_ready`,
//! `call` and `poll` with a waker that does nothing.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::{Ready, ready},
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use http::Response;
use http_body::{Body, Frame};
use tower_service::Service;

pub mod allocator;
pub mod guarded;
#[cfg(feature = "peers")]
pub mod peers;

/// The request that the inner service fails.
pub const POISON: u64 = u64::MAX;

/// The inner service's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the inner service failed")
    }
}

impl Error for Failed {}

/// The inner service. It is always ready, answers at once with its request, and fails [`POISON`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Inner;

impl Service<u64> for Inner {
    type Response = u64;
    type Error = Failed;
    type Future = Ready<Result<u64, Failed>>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: u64) -> Self::Future {
        ready(if request == POISON {
            Err(Failed)
        } else {
            Ok(request)
        })
    }
}

/// A request of 32 bytes.
pub type Line = [u8; 32];

/// The inner service of calls of 32 bytes, which all differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lines;

impl Service<Line> for Lines {
    type Response = u64;
    type Error = Failed;
    type Future = Ready<Result<u64, Failed>>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Line) -> Self::Future {
        ready(if request[31] == u8::MAX {
            Err(Failed)
        } else {
            Ok(u64::from(request[0]))
        })
    }
}

/// The inner service that cannot fail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sure;

impl Service<u64> for Sure {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

/// A body with `u64::MAX` frames, so it practically never ends.
#[derive(Debug, Default)]
pub struct Endless {
    frames: u64,
}

impl Body for Endless {
    type Data = &'static [u8];
    type Error = Failed;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<&'static [u8]>, Failed>>> {
        self.frames += 1;
        let token: &'static [u8] = b"a token";
        Poll::Ready((self.frames != u64::MAX).then(|| Ok(Frame::data(token))))
    }
}

/// The inner service of calls whose answer is a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams;

impl Service<u64> for Streams {
    type Response = Response<Endless>;
    type Error = Failed;
    type Future = Ready<Result<Response<Endless>, Failed>>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: u64) -> Self::Future {
        ready(if request == POISON {
            Err(Failed)
        } else {
            Ok(Response::new(Endless::default()))
        })
    }
}

/// Reads this many frames of a body.
///
/// # Panics
///
/// If the body has fewer frames.
#[inline(always)]
pub fn frames<B: Body + Unpin>(body: &mut B, frames: u64) {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..frames {
        let frame = black_box(Pin::new(&mut *body).poll_frame(&mut context));
        assert!(matches!(frame, Poll::Ready(Some(Ok(_)))));
    }
}

/// A call of a tool, for circuits by key.
#[derive(Clone, Debug)]
pub struct ToolCall {
    pub name: String,
    pub argument: u64,
}

impl ToolCall {
    /// Makes `count` calls, each of another tool. They live for ever. So a request is a reference,
    /// and the measurement does not include moves and clones of a call.
    #[must_use]
    pub fn many(count: usize) -> &'static [Self] {
        (0..count)
            .map(|n| Self {
                name: format!("tool-{n:05}"),
                argument: n as u64,
            })
            .collect::<Vec<_>>()
            .leak()
    }
}

/// The inner service of calls by key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tools;

impl Service<&'static ToolCall> for Tools {
    type Response = u64;
    type Error = Failed;
    type Future = Ready<Result<u64, Failed>>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: &'static ToolCall) -> Self::Future {
        ready(if request.argument == POISON {
            Err(Failed)
        } else {
            Ok(request.argument)
        })
    }
}

/// Drives one call to its end. A pending future or service is polled again at once. On one thread
/// nothing is ever pending. On two threads a peer with an asynchronous lock may be.
///
/// # Errors
///
/// Returns the error of `poll_ready` or of the call.
#[inline(always)]
pub fn drive<S, R>(service: &mut S, request: R) -> Result<S::Response, S::Error>
where
    S: Service<R>,
{
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match service.poll_ready(&mut context) {
            Poll::Ready(Ok(())) => break,
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => std::hint::spin_loop(),
        }
    }
    let mut future = pin!(service.call(black_box(request)));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return black_box(result),
            Poll::Pending => std::hint::spin_loop(),
        }
    }
}

/// Makes `calls` calls that succeed, or are refused if the service's circuit is open.
#[inline(always)]
pub fn calls<S: Service<u64>>(service: &mut S, calls: u64) {
    for request in 0..calls {
        let _ = drive(service, request);
    }
}

/// Makes `calls` calls that succeed and fail by turns.
#[inline(always)]
pub fn calls_by_turns<S: Service<u64>>(service: &mut S, calls: u64) {
    for _ in 0..calls / 2 {
        let _ = drive(service, 0);
        let _ = drive(service, POISON);
    }
}

/// Makes `calls` calls of 32 bytes, which all differ.
#[inline(always)]
pub fn calls_of_lines<S: Service<Line>>(service: &mut S, calls: u64) {
    let mut line = [7; 32];
    for request in 0..calls {
        line[..8].copy_from_slice(&request.to_le_bytes());
        let _ = drive(service, line);
    }
}

/// Makes one call of each tool, `rounds` times.
#[inline(always)]
pub fn calls_by_key<S: Service<&'static ToolCall>>(
    service: &mut S,
    tools: &'static [ToolCall],
    rounds: u64,
) {
    for _ in 0..rounds {
        for tool in tools {
            let _ = drive(service, tool);
        }
    }
}
