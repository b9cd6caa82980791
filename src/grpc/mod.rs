//! gRPC: what a status says, in headers or in trailers, and soft refusals.
//!
//! A gRPC server answers `200 OK` to nearly everything, and says how the call went in `grpc-status`: in the headers of a response that has
//! no body (trailers-only), else in the trailers after it. [`Codes`] reads both, and decides what each [`Code`] says of the guarded thing:
//!
//! | code | outcome | why |
//! | --- | --- | --- |
//! | `OK` | success | |
//! | `UNAVAILABLE`, `INTERNAL`, `UNKNOWN`, `DATA_LOSS` | transient failure | the server is down, overloaded or broken |
//! | `DEADLINE_EXCEEDED` | transient failure | it was too slow, which is how a hung server shows |
//! | `RESOURCE_EXHAUSTED` | rate limited | it asked for fewer calls |
//! | `INVALID_ARGUMENT`, `OUT_OF_RANGE`, `FAILED_PRECONDITION` | neutral | the request was wrong, or came at the wrong time |
//! | `NOT_FOUND`, `ALREADY_EXISTS` | neutral | the server answered, and truly |
//! | `UNIMPLEMENTED` | neutral | the caller asked for what is not there |
//! | `UNAUTHENTICATED`, `PERMISSION_DENIED` | neutral | the caller's credentials are wrong, and the next caller's may not be |
//! | `CANCELLED` | neutral | the caller went away; or a server of `tonic` ran into its own timeout, so for one of those let [`Codes::code`] make it a failure |
//! | `ABORTED` | neutral | a transaction lost against another, on a server that works |
//!
//! For a model that one key pays for, [`Codes::models`] takes `UNAUTHENTICATED`, `PERMISSION_DENIED`, `NOT_FOUND` and `UNIMPLEMENTED` for
//! fatal: the key or the model is gone. Either table can be changed, with [`Codes::code`].
//!
//! A failure carries how long the server asked to be left alone, as [`retry_after`] reads it.
//!
//! # In the head, and at the end
//!
//! As a classifier, `Codes` sees the head of a response: a trailers-only status, or the HTTP error of a proxy. A failure that comes after a
//! body, even an empty one, is not in the head. To see it, give the layer the same codes twice: to `classify` for the head, and to
//! [`EndOfBody`] for the trailers. A body that ends in order without any status is a transient failure then: it was cut off by somebody in
//! between. Put the layer outside of a client that speaks gRPC-Web, whose trailers are part of the body.
//!
//! ```
//! use tower_breaker::CircuitBreakerLayer;
//! use tower_breaker::grpc::Codes;
//! use tower_breaker::http::EndOfBody;
//!
//! let layer = CircuitBreakerLayer::new()
//!     .classify(Codes::new())
//!     .judge(EndOfBody.inspect(Codes::new()));
//! # let _ = layer;
//! ```
//!
//! [`EndOfBody`]: crate::http::EndOfBody
//!
//! # What a client is told
//!
//! A refusal is an error of the service, unless the layer has a policy for them. A client of `tonic` makes a status of it, as of every error: the code is
//! `UNKNOWN`, the message is the refusal's text, and the refusal is its source, so that `Refusal::find(&status)` finds it. With
//! [`SoftRefusal`] the code is `UNAVAILABLE`, the wait is in the status's metadata, and there is only the text.
//!
//! A layer around the calls of such a client, a tripwire that compares messages for instance, has the status for an error. It needs a classifier
//! that looks: [`Refusal::find`](crate::Refusal::find) for the refusals of the layers inside, and [`Codes::outcome`] for the rest.
//!
//! # Examples
//!
//! By default, and for a service whose refused calls are to be read by a gRPC client:
//!
//! ```
//! use http::{Request, Response};
//! use tower::{BoxError, ServiceBuilder, service_fn};
//! use tower_breaker::grpc::{Code, Codes, SoftRefusal};
//! use tower_breaker::{CircuitBreakerLayer, Failure};
//!
//! let layer = CircuitBreakerLayer::new().classify(Codes::new());
//! # let _ = layer;
//!
//! let layer = CircuitBreakerLayer::new()
//!     .name("search")
//!     .classify(Codes::new().code(Code::Aborted, Failure::transient()))
//!     .refuse(SoftRefusal);
//! let channel = ServiceBuilder::new().layer(layer).service(service_fn(
//!     |_: Request<String>| async { Ok::<_, BoxError>(Response::new(String::new())) },
//! ));
//! # let _ = tower::ServiceExt::oneshot(channel, Request::new(String::new()));
//! ```

mod code;
mod codes;
mod hints;
mod refuse;

pub use self::code::Code;
pub use self::codes::Codes;
pub use self::hints::retry_after;
pub use self::refuse::SoftRefusal;
