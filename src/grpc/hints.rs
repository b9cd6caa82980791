//! How long a gRPC server asks its callers to wait.

use std::time::Duration;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderMap;
use prost::Message;

use crate::http::digits;

pub(super) const PUSHBACK: &str = "grpc-retry-pushback-ms";
const DETAILS: &str = "grpc-status-details-bin";

/// The longest value that is decoded, in bytes. The value comes from outside, so its cost is
/// bounded.
const LONGEST: usize = 64 * 1024;

/// Binary fields may have padding or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Reads from headers or trailers how long a gRPC server asks its callers to wait.
///
/// | field | value |
/// | --- | --- |
/// | `grpc-retry-pushback-ms` | milliseconds |
/// | `grpc-status-details-bin` | a `google.rpc.Status` with a `google.rpc.RetryInfo`; not read if it is longer than 64 KiB |
///
/// The longest of several hints counts. Zero, negative numbers and garbage are no hint. A huge
/// hint stays as it is, and a layer's `retry_after_cap` bounds it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue};
/// use tower_breaker::grpc::retry_after;
///
/// let mut trailers = HeaderMap::new();
/// trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("1500"));
/// assert_eq!(retry_after(&trailers), Some(Duration::from_millis(1500)));
/// trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("-1"));
/// assert_eq!(retry_after(&trailers), None);
/// ```
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    // `None` is less than any hint.
    longest(headers, PUSHBACK, pushback).max(longest(headers, DETAILS, retry_info))
}

/// Returns the longest hint among the values of one field.
fn longest(
    headers: &HeaderMap,
    name: &str,
    read: impl Fn(&[u8]) -> Option<Duration>,
) -> Option<Duration> {
    let values = headers.get_all(name).iter();
    values.filter_map(|value| read(value.as_bytes())).max()
}

/// Reads milliseconds in plain digits. A negative value means not to retry at all, so it is no
/// hint.
fn pushback(value: &[u8]) -> Option<Duration> {
    let millis = u64::try_from(digits(value)?).unwrap_or(u64::MAX);
    (millis > 0).then(|| Duration::from_millis(millis))
}

/// Reads the longest `retry_delay` in a `google.rpc.Status`.
fn retry_info(value: &[u8]) -> Option<Duration> {
    if value.len() > LONGEST {
        return None;
    }
    let status = Status::decode(&*BASE64.decode(value).ok()?).ok()?;
    status
        .details
        .iter()
        .filter(|detail| detail.type_url.rsplit('/').next() == Some("google.rpc.RetryInfo"))
        .filter_map(|detail| RetryInfo::decode(&*detail.value).ok()?.retry_delay?.wait())
        .max()
}

// ===== The messages, with the fields that are read =====

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl Delay {
    /// Returns the delay as a hint, if it is one.
    fn wait(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.seconds).ok()?;
        let nanos = u32::try_from(self.nanos).ok()?;
        let wait = (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))?;
        (!wait.is_zero()).then_some(wait)
    }
}

#[cfg(test)]
mod tests;
