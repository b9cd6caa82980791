//! How long a server asks its callers to wait.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, HeaderValue, RETRY_AFTER};

const SECOND: u64 = 1_000_000_000;

/// Reads from a response's headers how long the server asks its callers to wait.
///
/// | header | value | hint |
/// | --- | --- | --- |
/// | `retry-after-ms` | milliseconds | the value, even beside a `Retry-After`: `OpenAI` and Azure send both, and this one is more exact |
/// | `Retry-After` (RFC 9110, section 10.2.3) | seconds, also with a fraction | the value |
/// | `Retry-After` | a date | the time from the response's own `Date`, so that neither clock has to be right; from the system's clock if there is no `Date` that can be read |
/// | either, several times | | the longest |
/// | either | garbage, a sign, an exponent, zero, a date in the past | none: no value ever means "at once" |
/// | either | a huge number | a huge hint, at most [`Duration::MAX`]; a layer's `retry_after_cap` bounds it |
///
/// Only a date without a readable `Date` reads a clock.
///
/// [`StatusClassifier`](super::StatusClassifier) asks this function for every failure. Use it in
/// classifiers of your own.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::HeaderMap;
/// use tower_breaker::http::retry_after;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "20".parse().unwrap());
/// assert_eq!(retry_after(&headers), Some(Duration::from_secs(20)));
///
/// headers.insert("retry-after-ms", "19500".parse().unwrap());
/// assert_eq!(retry_after(&headers), Some(Duration::from_millis(19_500)));
/// ```
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    longest(headers, "retry-after-ms", |text| {
        hint(amount(text, SECOND / 1_000)?)
    })
    .or_else(|| {
        longest(headers, RETRY_AFTER.as_str(), |text| {
            amount(text, SECOND).map_or_else(|| deadline(text, headers), hint)
        })
    })
}

/// Reads from a rate-limited response (`429`) how long until the spent limit is whole again.
///
/// | header | counts if | value |
/// | --- | --- | --- |
/// | `x-ratelimit-reset-requests` | `x-ratelimit-remaining-requests` is `0` | a duration with units: `1s`, `6m0s`, `20ms`, `1h2m3.5s` |
/// | `x-ratelimit-reset-tokens` | `x-ratelimit-remaining-tokens` is `0` | the same |
///
/// `OpenAI` sends these, and so do servers with the same interface. If both count, the longer one
/// is the hint. It is the time until the whole limit is available again, so the server may admit a
/// call earlier. Therefore [`StatusClassifier`](super::StatusClassifier) asks [`retry_after`]
/// first.
///
/// Other values and headers of such names have no certain meaning, and are no hint:
///
/// - a bare number, which may be seconds, milliseconds or a date;
/// - a date in words;
/// - `x-ratelimit-reset`, which is a date in seconds since 1970 at GitHub, and seconds to wait
///   elsewhere;
/// - garbage and zero.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::HeaderMap;
/// use tower_breaker::http::rate_limit_reset;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-ratelimit-remaining-tokens", "0".parse().unwrap());
/// headers.insert("x-ratelimit-reset-tokens", "6m0s".parse().unwrap());
/// assert_eq!(rate_limit_reset(&headers), Some(Duration::from_secs(360)));
///
/// headers.insert("x-ratelimit-remaining-tokens", "150".parse().unwrap());
/// assert_eq!(rate_limit_reset(&headers), None);
/// ```
#[must_use]
pub fn rate_limit_reset(headers: &HeaderMap) -> Option<Duration> {
    let reset = |remaining: &str, reset: &str| {
        let spent = headers.get(remaining).and_then(text) == Some("0");
        spent.then(|| longest(headers, reset, |text| hint(spelled(text)?)))?
    };
    let requests = reset(
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    );
    let tokens = reset("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens");
    requests.max(tokens)
}

/// Returns the longest hint among the values of one header.
fn longest(
    headers: &HeaderMap,
    name: &str,
    read: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    let values = headers.get_all(name).iter();
    values.filter_map(text).filter_map(read).max()
}

/// Returns a value as text, if it is ASCII.
fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(str::trim)
}

/// Returns the time until a date, by the server's `Date` if there is one that can be read.
fn deadline(date: &str, headers: &HeaderMap) -> Option<Duration> {
    let date = httpdate::parse_http_date(date).ok()?;
    let now = headers
        .get(DATE)
        .and_then(text)
        .and_then(|now| httpdate::parse_http_date(now).ok())
        .unwrap_or_else(SystemTime::now);
    date.duration_since(now).ok().filter(|wait| !wait.is_zero())
}

/// Returns a hint of so many nanoseconds. Zero is no hint.
fn hint(nanos: u128) -> Option<Duration> {
    if nanos == 0 {
        return None;
    }
    let second = u128::from(SECOND);
    let Ok(seconds) = u64::try_from(nanos / second) else {
        return Some(Duration::MAX);
    };
    #[allow(clippy::cast_possible_truncation)] // The remainder is less than a second.
    Some(Duration::new(seconds, (nanos % second) as u32))
}

/// Reads a duration as Go writes it, numbers with units, in nanoseconds.
///
/// Go also writes `µs`, which is not ASCII and so never comes here.
fn spelled(text: &str) -> Option<u128> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut nanos = 0_u128;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let unit = match unit {
            "h" => 3_600 * SECOND,
            "m" => 60 * SECOND,
            "s" => SECOND,
            "ms" => SECOND / 1_000,
            "us" => SECOND / 1_000_000,
            "ns" => 1,
            _ => return None,
        };
        nanos = nanos.saturating_add(amount(number, unit)?);
        rest = after;
    }
    Some(nanos)
}

/// Reads a decimal number of units, in nanoseconds. `unit` is the nanoseconds of one unit.
///
/// The number has digits on both sides of its point, if it has one. It has neither a sign nor an
/// exponent.
fn amount(text: &str, unit: u64) -> Option<u128> {
    /// How many digits of the fraction count. Further digits are less than a nanosecond of any
    /// unit, and so many digits times the largest unit fit into the arithmetic.
    const EXACT: usize = 18;
    let unit = u128::from(unit);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = digits(whole.as_bytes())?.saturating_mul(unit);
    digits(fraction.as_bytes())?;
    let fraction = &fraction[..fraction.len().min(EXACT)];
    let scale = std::iter::repeat_n(10_u128, fraction.len()).product::<u128>();
    Some(whole.saturating_add(digits(fraction.as_bytes())? * unit / scale))
}

/// Reads a whole number in plain digits. A number that is too large becomes the largest one.
pub(crate) fn digits(text: &[u8]) -> Option<u128> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u128, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u128::from(byte - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

#[cfg(test)]
mod tests;
