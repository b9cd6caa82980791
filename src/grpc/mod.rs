//! gRPC: what codes and hints say, in headers or in trailers, and refusals as statuses.
//!
//! A gRPC server answers `200 OK` to nearly everything. How the call went stands in
//! `grpc-status`: in the headers of a response without a body (trailers-only), else in the
//! trailers after the body.
//!
//! | part | given to | what it does |
//! | --- | --- | --- |
//! | [`Codes`] | `classify`, for the head | judges a trailers-only status, or the HTTP error of a proxy |
//! | [`Codes`] | [`EndOfBody`](crate::http::EndOfBody)`.inspect(..)`, for the trailers | judges the status after a body; the whole goes to `judge` |
//! | [`Code`] | [`Codes::code`] | the codes of gRPC |
//! | [`retry_after`] | a classifier of yours | reads how long to wait; `Codes` asks it |
//! | [`SoftRefusal`] | `refuse` | answers a refused call with `UNAVAILABLE` |
//!
//! The guide has a page on [streams](crate::guide::streams#grpc): why each code has its outcome,
//! what a client of `tonic` reads, and what a layer around a generated client needs.
//!
//! # Examples
//!
//! By default, and with a changed table, for a service whose clients read refusals as statuses:
//!
//! ```
//! use tower_breaker::grpc::{Code, Codes, SoftRefusal};
//! use tower_breaker::http::EndOfBody;
//! use tower_breaker::{CircuitBreakerLayer, Failure};
//!
//! let layer = CircuitBreakerLayer::new()
//!     .classify(Codes::new())
//!     .judge(EndOfBody.inspect(Codes::new()));
//! # let _ = layer;
//!
//! let codes = Codes::new().code(Code::Aborted, Failure::transient());
//! let layer = CircuitBreakerLayer::new()
//!     .name("search")
//!     .classify(codes.clone())
//!     .judge(EndOfBody.inspect(codes))
//!     .refuse(SoftRefusal);
//! # let _ = layer;
//! ```

mod code;
mod codes;
mod hints;
mod refuse;

pub use self::code::Code;
pub use self::codes::Codes;
pub use self::hints::retry_after;
pub use self::refuse::SoftRefusal;
