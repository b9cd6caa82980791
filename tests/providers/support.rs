//! Bodies in, verdicts out.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use tower_breaker::http::{ErrorEvents, Inspect};
use tower_breaker::{Failure, Outcome};

pub const SUCCESS: Outcome = Outcome::Success;
pub const NEUTRAL: Outcome = Outcome::Neutral;
pub const TRANSIENT: Outcome = Outcome::Failure(Failure::transient());
pub const LIMITED: Outcome = Outcome::Failure(Failure::rate_limited());
pub const FATAL: Outcome = Outcome::Failure(Failure::fatal());

pub const SSE: &str = "text/event-stream; charset=utf-8";
pub const JSON: &str = "application/json";
pub const LINES: &str = "application/x-ndjson";

pub fn limited(wait: Duration) -> Outcome {
    Failure::rate_limited().with_retry_after(wait).into()
}

pub fn secs(secs: f64) -> Duration {
    Duration::from_secs_f64(secs)
}

/// The model's preset.
pub fn models() -> ErrorEvents {
    ErrorEvents::models()
}

pub fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = HeaderValue::from_str(value).unwrap();
        (name.parse().unwrap(), value)
    });
    pairs.collect()
}

/// `events` with a head of this `content-type`, if any.
pub fn with_type(mut events: ErrorEvents, content_type: Option<&str>) -> ErrorEvents {
    if let Some(content_type) = content_type {
        let headers = headers(&[("content-type", content_type)]);
        Inspect::<&[u8]>::head(&mut events, StatusCode::OK, &headers);
    }
    events
}

/// The verdict on a body that comes in `pieces` and then ends, and whether it was given before the
/// end.
pub fn judged_in<'a>(
    mut events: ErrorEvents,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Outcome, bool) {
    for piece in pieces {
        if let Some(outcome) = events.frame(&Frame::data(piece)) {
            return (outcome, true);
        }
    }
    (Inspect::<&[u8]>::end(&mut events), false)
}

/// The verdict on a body, in one frame, in frames of one byte, and in frames of seven.
#[track_caller]
pub fn judged(events: &ErrorEvents, body: impl AsRef<[u8]>) -> Outcome {
    let body = body.as_ref();
    let shown = String::from_utf8_lossy(body);
    let whole = judged_in(events.clone(), [body]);
    assert_eq!(judged_in(events.clone(), body.chunks(1)), whole, "{shown}");
    assert_eq!(judged_in(events.clone(), body.chunks(7)), whole, "{shown}");
    whole.0
}

/// The document in every frame in which it may come in a body: as an event, with other line ends,
/// over several lines of data, beside a name, as a line, in an array, as the whole body.
pub fn framed(document: &str) -> Vec<(Option<&'static str>, String)> {
    let pretty = serde_json::from_str::<serde_json::Value>(document).map_or_else(
        |_| document.to_owned(),
        |value| serde_json::to_string_pretty(&value).unwrap(),
    );
    let lines = pretty.replace('\n', "\ndata: ");
    vec![
        (Some(SSE), format!("data: {document}\n\n")),
        (Some(SSE), format!("data:{document}\r\n\r\n")),
        (
            Some(SSE),
            format!("\u{feff}: hello\rid: 7\rdata:   {document}\r\r"),
        ),
        (Some(SSE), format!("event: message\ndata: {lines}\n\n")),
        (
            Some(SSE),
            format!("data: {lines}\nevent: delta\nretry: 10\n\n"),
        ),
        (
            Some(SSE),
            format!("data: {{}}\n\ndata: {document}\n\ndata: {{}}\n\n"),
        ),
        (None, format!("data: {document}\n\n")),
        (None, format!("data: {document}")),
        (Some(JSON), document.to_owned()),
        (Some(JSON), format!(" \r\n\t{pretty}\n")),
        (Some("application/vnd.api+json"), pretty.clone()),
        (None, document.to_owned()),
        (None, pretty.clone()),
        (Some(LINES), format!("{{}}\n{document}\n{{}}\n")),
        (Some(LINES), format!("{document}\r\n")),
        (None, format!("{{}}\n{document}\n{{}}\n")),
        (Some(JSON), format!("[{document}]")),
        (Some(JSON), format!("[{{}},\n{pretty}\n, {{}}]")),
        (None, format!("[{{}}\n,\r\n{document}]\n")),
    ]
}

/// Asserts what the document says in every frame.
#[track_caller]
pub fn says(events: &ErrorEvents, document: &str, outcome: Outcome) {
    for (content_type, body) in framed(document) {
        let events = with_type(events.clone(), content_type);
        assert_eq!(judged(&events, &body), outcome, "{content_type:?}: {body}");
    }
}
