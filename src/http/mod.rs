//! HTTP: what responses, their bodies and their hints say, and refusals as responses.
//!
//! The parts fit around any client or server of [`http::Response`]s. None of them knows a client.
//!
//! | part | given to | what it does |
//! | --- | --- | --- |
//! | [`StatusClassifier`] | `classify` | judges a response by its status; has a preset for tools and one for models, and both can be changed |
//! | [`retry_after`], [`rate_limit_reset`] | a classifier of yours | read from the headers how long to wait; `StatusClassifier` asks them |
//! | [`EndOfBody`] | `judge` | gives the verdict at the end of the body: a stream may break after its `200 OK` |
//! | [`ErrorEvents`] | `EndOfBody.inspect(..)` | finds errors inside a stream of events |
//! | [`Inspect`] | `EndOfBody.inspect(..)` | the trait of whatever looks at the frames as they pass |
//! | [`SoftRefusal`] | `refuse` | answers a refused call with a `503` and `Retry-After` |
//!
//! The guide has a page on [streams](crate::guide::streams): what each response and each end of a
//! body says, how a probe's lease goes with a stream, and what to do about silence.
//!
//! # Examples
//!
//! A tool with short answers, whose head decides, and a model that streams, whose body decides:
//!
//! ```
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use hyper::body::Bytes;
//! use tower::{BoxError, ServiceBuilder, service_fn};
//! use tower_breaker::http::{EndOfBody, ErrorEvents, StatusClassifier};
//! use tower_breaker::{CircuitBreakerLayer, FallbackLayer};
//!
//! async fn ask(_: Request<String>) -> Result<Response<Full<Bytes>>, BoxError> {
//!     Ok(Response::new(Full::new(Bytes::from("data: {\"text\":\"hello\"}\n\n"))))
//! }
//!
//! let breaker = CircuitBreakerLayer::new().name("search").classify(StatusClassifier::new());
//! let tool = ServiceBuilder::new().layer(breaker).service(service_fn(ask));
//!
//! let fallback = FallbackLayer::new("gpt-5")
//!     .backup("claude", service_fn(ask))
//!     .probation_limit(3)
//!     .classify(StatusClassifier::models())
//!     .judge(EndOfBody.inspect(ErrorEvents::models()));
//! let model = ServiceBuilder::new().layer(fallback).service(service_fn(ask));
//! # let _ = (tool, model);
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
