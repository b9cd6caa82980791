//! What an error object says: its code, its text and its wait.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::{
    DeserializeSeed, Deserializer as _, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::vocabulary::{Failure, Outcome};

/// A code of the user's own.
pub(super) type OwnCode = (Cow<'static, str>, Outcome);

/// What looks like an error: the members of a document that matter, as the text of a JSON object.
///
/// Long strings are cut, and what is not printable ASCII becomes a question mark or a space, so
/// its text has a limit and is valid wherever the document is.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    text: Vec<u8>,
    /// How much of the string has come.
    string: usize,
    /// More came than fits.
    full: bool,
}

impl Collected {
    /// Together with what its reader needs for the longest string it is less than 64 KiB.
    const LIMIT: usize = 32 * 1024;
    const STRING_LIMIT: usize = 4 * 1024;

    pub(super) fn member(&mut self, name: &str) {
        self.push(if self.text.is_empty() { b"{\"" } else { b",\"" });
        self.push(name.as_bytes());
        self.push(b"\":");
    }

    /// Adds bytes of JSON outside of strings, or a string's quotes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.string = 0;
        self.add(bytes);
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.text.len() + bytes.len() < Self::LIMIT {
            self.text.extend_from_slice(bytes);
        } else {
            self.full = true;
        }
    }

    /// Adds a piece of a string, whose escapes are resolved.
    pub(super) fn text(&mut self, piece: &[u8]) {
        let room = Self::STRING_LIMIT - self.string;
        let piece = &piece[..piece.len().min(room)];
        self.string += piece.len();
        for byte in piece {
            match byte {
                b'"' => self.add(b"\\\""),
                b'\\' => self.add(b"\\\\"),
                b' '..=b'~' => self.add(&[*byte]),
                0..=b'\x1f' | 0x7f => self.add(b" "),
                0x80.. => self.add(b"?"),
            }
        }
    }

    /// Adds a short value: a number or a literal as it is, anything else as a string.
    pub(super) fn value(&mut self, value: &[u8]) {
        let number = value
            .first()
            .is_some_and(|first| *first == b'-' || first.is_ascii_digit());
        if number || matches!(value, b"null" | b"true" | b"false") {
            self.push(value);
        } else {
            self.push(b"\"");
            self.text(value);
            self.push(b"\"");
        }
    }

    /// Whether the last string names an exception of AWS: `namespace#ThrottlingException:…`
    pub(super) fn ends_like_an_exception(&self) -> bool {
        let text = self.text.strip_suffix(b"\"").unwrap_or_default();
        let name = text.rsplit(|byte| *byte == b'"').next().unwrap_or_default();
        exception(name).ends_with(b"Exception")
    }

    /// Reads it. `error` is the name of the member with the error object. A text that is too long,
    /// or that is no JSON, says only that there is an error.
    pub(super) fn read(mut self, error: &'static str, own: &[OwnCode]) -> ErrorObject {
        let mut read = ErrorObject::default();
        if self.full {
            return read;
        }
        self.text.push(b'}');
        let mut json = serde_json::Deserializer::from_slice(&self.text);
        let walk = Walk {
            read: &mut read,
            own,
            error,
            at: At::Document,
        };
        match json.deserialize_any(walk) {
            Ok(()) => read,
            Err(_) => ErrorObject::default(),
        }
    }
}

/// The kinds of errors, as the model's preset takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Fatal,
    RateLimited,
    Transient,
    Neutral,
}

use Meaning::{Fatal, Neutral, RateLimited, Transient};

/// Whether a document with this `type` looks like an error, though it may have no `error`.
pub(super) fn looks_like_an_error(kind: &[u8]) -> bool {
    kind.ends_with(b"_error") || kind == b"rate_limited" || meaning(kind).is_some()
}

/// The codes, types and statuses that are known, by who sends them.
const CODES: [(&str, Meaning); 52] = [
    // OpenAI, and those who speak its language.
    ("insufficient_quota", Fatal),
    ("billing_not_active", Fatal),
    ("billing_hard_limit_reached", Fatal),
    ("account_deactivated", Fatal),
    ("invalid_api_key", Fatal),
    ("model_not_found", Fatal),
    ("insufficient_balance", Fatal),
    ("rate_limit_exceeded", RateLimited),
    ("rate_limited", RateLimited),
    ("too_many_requests", RateLimited),
    ("server_error", Transient),
    ("internal_error", Transient),
    ("service_unavailable", Transient),
    ("overloaded", Transient),
    ("context_length_exceeded", Neutral),
    ("content_policy_violation", Neutral),
    ("content_filter", Neutral),
    ("invalid_request_error", Neutral),
    ("invalid_prefill", Neutral),
    // Anthropic
    ("authentication_error", Fatal),
    ("permission_error", Fatal),
    ("billing_error", Fatal),
    ("not_found_error", Fatal),
    ("enforced_spend_limit_reached", Fatal),
    ("rate_limit_error", RateLimited),
    ("overloaded_error", Transient),
    ("api_error", Transient),
    ("timeout_error", Transient),
    ("request_too_large", Neutral),
    // Google
    ("API_KEY_INVALID", Fatal),
    ("PERMISSION_DENIED", Fatal),
    ("UNAUTHENTICATED", Fatal),
    ("NOT_FOUND", Fatal),
    ("RESOURCE_EXHAUSTED", RateLimited),
    ("UNAVAILABLE", Transient),
    ("INTERNAL", Transient),
    ("DEADLINE_EXCEEDED", Transient),
    ("INVALID_ARGUMENT", Neutral),
    ("FAILED_PRECONDITION", Neutral),
    // Azure
    ("DeploymentNotFound", Fatal),
    // AWS
    ("ServiceQuotaExceededException", Fatal),
    ("AccessDeniedException", Fatal),
    ("ResourceNotFoundException", Fatal),
    ("ThrottlingException", RateLimited),
    ("ModelNotReadyException", RateLimited),
    ("TooManyRequestsException", RateLimited),
    ("ServiceUnavailableException", Transient),
    ("InternalServerException", Transient),
    ("ModelTimeoutException", Transient),
    ("ModelErrorException", Transient),
    ("ModelStreamErrorException", Transient),
    ("ValidationException", Neutral),
];

/// What a code, a type or a status in words means. A status in digits is one, too.
fn meaning(code: &[u8]) -> Option<Meaning> {
    let code = exception(code);
    let known = CODES.iter().find(|(known, _)| known.as_bytes() == code);
    match known {
        Some((_, meaning)) => Some(*meaning),
        None => number_of(code).and_then(meaning_of_number),
    }
}

/// The name of an exception of AWS, without its namespace and what follows a colon. Other codes
/// have neither.
fn exception(code: &[u8]) -> &[u8] {
    let code = code.rsplit(|byte| *byte == b'#').next().unwrap_or_default();
    code.split(|byte| *byte == b':').next().unwrap_or_default()
}

fn number_of(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What a number means: that of a status, as `OpenRouter` and others send it.
fn meaning_of_number(number: i64) -> Option<Meaning> {
    Some(match number {
        401..=404 => Fatal,
        408 | 498 | 500..=599 => Transient,
        429 => RateLimited,
        400..=499 => Neutral,
        _ => return None,
    })
}

/// What a number means in JSON-RPC.
fn meaning_in_json_rpc(number: i64) -> Meaning {
    match number {
        -32700 | -32602..=-32600 | -32002 | -32042 => Neutral,
        _ => Transient,
    }
}

/// What an error object has said.
#[derive(Debug, Default)]
pub(super) struct ErrorObject {
    inner: Said,
    /// What stands beside it in the document.
    outer: Said,
}

#[derive(Debug, Default)]
struct Said {
    /// What the user says of the code.
    own: Option<Outcome>,
    code: Option<Meaning>,
    kind: Option<Meaning>,
    status: Option<Meaning>,
    /// Of `details`.
    detail: Option<Meaning>,
    number: Option<i64>,
    text: Option<Meaning>,
    /// It names a moderation.
    moderated: bool,
    wait: Option<Duration>,
}

impl Said {
    fn wait(&mut self, wait: Option<Duration>) {
        self.wait = self.wait.max(wait);
    }

    /// The meaning, from the most exact to the least.
    fn meaning(&self) -> Option<Meaning> {
        let all = [self.detail, self.code, self.kind, self.status];
        if self.text == Some(Fatal) || all.contains(&Some(Fatal)) {
            return Some(Fatal);
        }
        let limited = all.contains(&Some(RateLimited));
        if limited && self.text == Some(Neutral) {
            return Some(Neutral);
        }
        let number = match self.number {
            Some(403) if self.moderated => Some(Neutral),
            number => number.and_then(meaning_of_number),
        };
        let words = all.into_iter().flatten().next();
        words
            .or(number)
            .or(self.text.filter(|text| *text == RateLimited))
    }
}

impl ErrorObject {
    /// What the user's own codes say of it.
    pub(super) fn own(&self) -> Option<Outcome> {
        let own = self.inner.own.or(self.outer.own);
        own.map(|outcome| outcome.hinted(|_| self.wait()))
    }

    fn wait(&self) -> Option<Duration> {
        self.inner.wait.max(self.outer.wait)
    }

    /// What it says, in the model's preset or in a tool's.
    pub(super) fn outcome(&self, json_rpc: bool, models: bool) -> Outcome {
        let number = self.inner.number.filter(|number| json_rpc || *number < 0);
        let known = match number {
            Some(number) => Some(meaning_in_json_rpc(number)),
            None => self.inner.meaning().or_else(|| self.outer.meaning()),
        };
        let failure = match known {
            Some(Fatal) if models => return Failure::fatal().into(),
            Some(Fatal | Neutral) => return Outcome::Neutral,
            Some(RateLimited) => Failure::rate_limited(),
            Some(Transient) | None => Failure::transient(),
        };
        Outcome::from(failure).hinted(|_| self.wait())
    }
}

// ===== reading =====

/// What the value is that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Document,
    /// An error object, or its text.
    Error,
    Details,
    Metadata,
    Headers,
    /// Of the document, not of its error object.
    Outer(Field),
    Inner(Field),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Code,
    Kind,
    Status,
    Detail,
    Message,
    /// A duration, or a number of seconds.
    Wait,
    /// When the limit ends, in seconds or milliseconds since 1970.
    Reset,
}

impl At {
    /// What the value of a key is. `None` if it does not matter.
    fn child(self, key: &str, error: &str) -> Option<Self> {
        use Field::{Code, Detail, Kind, Message, Reset, Status, Wait};
        Some(match (self, key) {
            (At::Document, key) if key == error => At::Error,
            (At::Document, "code") => At::Outer(Code),
            (At::Document, "type" | "__type") => At::Outer(Kind),
            (At::Document, "message") => At::Outer(Message),
            (At::Error, "code") => At::Inner(Code),
            (At::Error, "type" | "__type") => At::Inner(Kind),
            (At::Error, "status") => At::Inner(Status),
            (At::Error, "message") => At::Inner(Message),
            (At::Error, "details") => At::Details,
            (At::Error, "metadata") => At::Metadata,
            (At::Error, "retry_after") | (At::Details, "retryDelay") => At::Inner(Wait),
            (At::Details, "reason" | "error_code") => At::Inner(Detail),
            (At::Metadata, "headers") => At::Headers,
            (At::Headers, key) if key.eq_ignore_ascii_case("retry-after") => At::Inner(Wait),
            (At::Headers, key) if key.eq_ignore_ascii_case("x-ratelimit-reset") => At::Inner(Reset),
            _ => return None,
        })
    }
}

/// Walks through the text, and keeps nothing of it but what was said.
struct Walk<'a> {
    read: &'a mut ErrorObject,
    own: &'a [OwnCode],
    error: &'static str,
    at: At,
}

impl Walk<'_> {
    fn walk(&mut self, at: At) -> Walk<'_> {
        Walk {
            read: self.read,
            own: self.own,
            error: self.error,
            at,
        }
    }

    fn said(&mut self) -> (&mut Said, Option<Field>) {
        match self.at {
            At::Outer(field) => (&mut self.read.outer, Some(field)),
            At::Inner(field) => (&mut self.read.inner, Some(field)),
            // A text in place of an object is its code and its message.
            At::Error => (&mut self.read.inner, Some(Field::Message)),
            _ => (&mut self.read.inner, None),
        }
    }

    fn own(&self, code: &str) -> Option<Outcome> {
        let mut own = self.own.iter().rev();
        own.find(|(own, _)| own == code)
            .map(|(_, outcome)| *outcome)
    }

    /// A code in words.
    fn code(&mut self, text: &str, field: Field) {
        let own = self.own(text);
        let code = meaning(text.as_bytes());
        let (said, _) = self.said();
        said.own = said.own.or(own);
        match field {
            Field::Code => {
                said.number = number_of(text.as_bytes());
                // A number is heard last.
                said.code = code.filter(|_| said.number.is_none());
            }
            Field::Kind => said.kind = code,
            Field::Status => said.status = code,
            Field::Detail => said.detail = said.detail.or(code),
            Field::Message | Field::Wait | Field::Reset => {}
        }
    }

    fn text(&mut self, text: &str) {
        let whole = self.at == At::Error;
        let (said, Some(field)) = self.said() else {
            return;
        };
        match field {
            Field::Message => {
                said.text = meaning_of_message(text);
                said.moderated |= has(text, "moderation") || has(text, "flagged");
                said.wait(wait_of_message(text));
                if whole {
                    self.code(text, Field::Code);
                }
            }
            Field::Wait => said.wait(durations(text).or_else(|| seconds(text.parse().ok()?))),
            Field::Reset => said.wait(text.trim().parse().ok().and_then(until)),
            _ => self.code(text, field),
        }
    }

    fn number(&mut self, number: f64) {
        let (said, Some(field)) = self.said() else {
            return;
        };
        match field {
            Field::Code | Field::Message => {
                #[allow(clippy::cast_possible_truncation)] // Codes are small; others mean nothing.
                let whole = number as i64;
                said.code = None;
                said.number = Some(whole);
                let own = self.own(&whole.to_string());
                let (said, _) = self.said();
                said.own = said.own.or(own);
            }
            Field::Wait => said.wait(seconds(number)),
            Field::Reset => said.wait(until(number)),
            Field::Kind | Field::Status | Field::Detail => {}
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        if self.at == At::Error {
            // The last of several counts.
            self.read.inner = Said::default();
        }
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if self.at == At::Metadata && (key == "reasons" || key == "flagged_input") {
                self.read.inner.moderated = true;
            }
            match self.at.child(&key, self.error) {
                Some(at) => map.next_value_seed(self.walk(at))?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        if self.at == At::Details {
            while seq.next_element_seed(self.walk(At::Details))?.is_some() {}
        } else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.text(text);
        Ok(())
    }

    #[allow(clippy::cast_precision_loss)] // No code and no wait is so long.
    fn visit_i64<E: Error>(mut self, number: i64) -> Result<(), E> {
        self.number(number as f64);
        Ok(())
    }

    #[allow(clippy::cast_precision_loss)] // No code and no wait is so long.
    fn visit_u64<E: Error>(mut self, number: u64) -> Result<(), E> {
        self.number(number as f64);
        Ok(())
    }

    fn visit_f64<E: Error>(mut self, number: f64) -> Result<(), E> {
        self.number(number);
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

// ===== messages =====

/// Whether a text holds a phrase, in whatever case.
fn has(text: &str, phrase: &str) -> bool {
    after(text, phrase).is_some()
}

/// What follows the phrase.
fn after<'a>(text: &'a str, phrase: &str) -> Option<&'a str> {
    let (text_bytes, phrase) = (text.as_bytes(), phrase.as_bytes());
    let at = text_bytes
        .windows(phrase.len())
        .position(|window| window.eq_ignore_ascii_case(phrase))?;
    text.get(at + phrase.len()..)
}

/// What the text of an error object means. A text is heard where the codes leave it open, or where
/// providers are known to send a wrong one.
fn meaning_of_message(text: &str) -> Option<Meaning> {
    let any = |phrases: &[&str]| phrases.iter().any(|phrase| has(text, phrase));
    if any(&[
        "credit balance is too low",
        "insufficient balance",
        "spend limit",
        "spending limit",
    ]) {
        return Some(Fatal);
    }
    if any(&["request too large"]) {
        return Some(Neutral);
    }
    any(&["rate limit"]).then_some(RateLimited)
}

/// The longest wait that a text tells: `Please try again in 1m30s`, `retry after 45 seconds`.
fn wait_of_message(text: &str) -> Option<Duration> {
    const PHRASES: [&str; 3] = ["try again in ", "retry in ", "retry after "];
    let waits = PHRASES.map(|phrase| {
        let mut longest = None;
        let mut rest = text;
        while let Some(told) = after(rest, phrase) {
            longest = longest.max(durations(told));
            rest = told;
        }
        longest
    });
    waits.into_iter().max().flatten()
}

/// The durations that a text begins with, as one: `2m59.56s`, `20ms`, `45 seconds`. A number
/// without a unit means seconds if it stands alone.
fn durations(text: &str) -> Option<Duration> {
    let mut sum: Option<Duration> = None;
    let mut rest = text.trim_start();
    loop {
        let number = number_prefix(rest);
        if number.is_empty() {
            break;
        }
        let after = &rest[number.len()..];
        let unit_at = after.trim_start_matches(' ');
        let letters = unit_at.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, after_unit) = unit_at.split_at(letters.unwrap_or(unit_at.len()));
        let unit = match unit {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3_600.0,
            "d" | "day" | "days" => 86_400.0,
            _ if sum.is_none() => {
                sum = seconds(number.parse().ok()?);
                break;
            }
            _ => break,
        };
        let part = number.parse::<f64>().ok()? * unit;
        let part = Duration::try_from_secs_f64(part).unwrap_or(DAY);
        sum = Some(sum.unwrap_or_default().saturating_add(part));
        rest = after_unit.trim_start_matches(' ');
    }
    sum.and_then(bounded)
}

/// The digits that a text begins with, with a fraction.
fn number_prefix(text: &str) -> &str {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    let fraction = match text[whole..].strip_prefix('.') {
        Some(fraction) if whole > 0 => digits(fraction),
        _ => 0,
    };
    match fraction {
        0 => &text[..whole],
        _ => &text[..whole + 1 + fraction],
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// A wait; more than a day is a day, and nothing is no hint.
fn bounded(wait: Duration) -> Option<Duration> {
    (!wait.is_zero()).then(|| wait.min(DAY))
}

fn seconds(seconds: f64) -> Option<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(wait) => bounded(wait),
        Err(_) => (seconds > 0.0).then_some(DAY),
    }
}

/// How long it is until a time since 1970, in seconds or, if it is that large, in milliseconds.
fn until(reset: f64) -> Option<Duration> {
    const LARGE: f64 = 1e11;
    let seconds = if reset > LARGE {
        reset / 1_000.0
    } else {
        reset
    };
    let reset = Duration::try_from_secs_f64(seconds).ok()?;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()?;
    reset.checked_sub(now).and_then(bounded)
}
