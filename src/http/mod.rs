//! HTTP: what a response's head says, what its body says, and soft refusals.
//!
//! Around any client or server of [`http::Response`]s; nothing here knows a client.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`StatusClassifier`] | what a status says: `5xx`, `408` and `429` are failures, other `4xx` neutral; with a preset for models, and a table that you can change |
//! | [`retry_after`], [`rate_limit_reset`] | how long a server asked to be left alone; the classifier reads them |
//! | [`EndOfBody`] | verdicts at the end of the body, since a stream fails after its `200 OK`: for `judge` of all three layers |
//! | [`Inspect`], [`ErrorEvents`] | who looks at the frames as they pass: errors inside a stream of events |
//! | [`SoftRefusal`] | a refusal as a `503` with `Retry-After`, and a text or problem JSON for the body |
//!
//! # Examples
//!
//! A tool behind HTTP. The head alone decides, which is enough for short answers:
//!
//! ```
//! use http::{Request, Response};
//! use tower::{BoxError, ServiceBuilder, service_fn};
//! use tower_breaker::CircuitBreakerLayer;
//! use tower_breaker::http::StatusClassifier;
//!
//! let tool = ServiceBuilder::new()
//!     .layer(CircuitBreakerLayer::new().name("search").classify(StatusClassifier::new()))
//!     .service(service_fn(|_: Request<String>| async {
//!         Ok::<_, BoxError>(Response::new("an answer".to_owned()))
//!     }));
//! # let _ = tool;
//! ```
//!
//! A model that streams: an error in the midst of the stream counts against the model that served it, and the permit lives until the
//! end of the body.
//!
//! ```
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use hyper::body::Bytes;
//! use tower::{BoxError, ServiceBuilder, service_fn};
//! use tower_breaker::FallbackLayer;
//! use tower_breaker::http::{EndOfBody, ErrorEvents, StatusClassifier};
//!
//! async fn ask(_: Request<String>) -> Result<Response<Full<Bytes>>, BoxError> {
//!     Ok(Response::new(Full::new(Bytes::from("data: {\"text\":\"hello\"}\n\n"))))
//! }
//!
//! let layer = FallbackLayer::new("gpt-5")
//!     .backup("claude", service_fn(ask))
//!     .probation_limit(3)
//!     .classify(StatusClassifier::models())
//!     .judge(EndOfBody.inspect(ErrorEvents::new()));
//! let model = ServiceBuilder::new().layer(layer).service(service_fn(ask));
//! # let _ = model;
//! ```
//!
//! # The end of a body
//!
//! | the body | what it says |
//! | --- | --- |
//! | ends, or has given its trailers, or all that it announced | a success |
//! | has a frame that an inspector calls a failure | that failure, at once |
//! | fails | a transient failure |
//! | is dropped before its end | what `on_cancel` says of a dropped call |
//! | says nothing any more | nothing; but a probe has failed when its lease is over, counted from its admission, and anew from each frame |
//!
//! A verdict is given once. Under a body whose reader may wait for ever put a timeout for bodies, so that silence becomes an error of the body. A lease
//! has to be longer than the longest silence, that before the first frame included. It need not be as long as the whole answer.
//!
//! While a probe's body goes on everybody else is refused, and a server that drips, or only sends signs of life, may make it go on for ever. Where streams are
//! long, or have no end, put a limit on the whole of a body inside, or let the first frame be the verdict:
//!
//! ```
//! use http_body::Frame;
//! use hyper::body::Bytes;
//! use tower_breaker::http::EndOfBody;
//! use tower_breaker::{CircuitBreakerLayer, Outcome};
//!
//! let layer = CircuitBreakerLayer::new()
//!     .judge(EndOfBody.inspect(|_: &Frame<Bytes>| Some(Outcome::Success)));
//! # let _ = layer;
//! ```

mod body;
mod end_of_body;
mod events;
mod hints;
mod inspect;
mod refuse;
mod status;

pub use self::body::ResponseBody;
pub use self::end_of_body::{EndOfBody, InspectBody};
pub use self::events::ErrorEvents;
#[cfg(feature = "grpc")]
pub(crate) use self::hints::digits;
pub use self::hints::{rate_limit_reset, retry_after};
pub use self::inspect::Inspect;
pub use self::refuse::SoftRefusal;
pub use self::status::StatusClassifier;
