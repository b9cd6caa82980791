//! Errors inside a body that began well, and ends that do not come.

mod due_end;
mod error_object;
mod framing;
mod ordinary;
mod scan;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use http_body::Frame;

use self::due_end::DueEnd;
use self::error_object::{ErrorObject, OwnCode};
use self::framing::{Found, Framing};
use self::scan::{Fact, Kind, Object, Scan};
use super::inspect::Inspect;
use crate::vocabulary::{Failure, FailureKind, Outcome};

/// Finds errors inside a body whose status was a success, and ends that do not come. For
/// [`EndOfBody::inspect`](super::EndOfBody::inspect).
///
/// It reads server-sent events, JSON lines, JSON arrays and plain JSON as they pass, in frames of
/// any size. The `content-type` and the first byte of the body tell which. Other bodies, and
/// compressed ones, are not read: put what decompresses them inside.
///
/// # What is an error
///
/// | where | what |
/// | --- | --- |
/// | a document | a key `error` at its top, whose value is none of `null`, `false`, `""`, `{}` and `[]` |
/// | | `"type":"error"`, `"object":"error"`, or a `__type` that names an exception |
/// | | `error` in one of its `choices`, or a `finish_reason` of `error` |
/// | | `"type":"response.failed"` |
/// | | a JSON-RPC result with `"isError":true` |
/// | an event | the name `error` or `response.failed`, whatever its data |
///
/// A document is the data of an event, a line, an element of an array, or the whole body. Keys may
/// come in any order and may be spelled with escapes; the last of several equal keys counts. What
/// stands deeper, or inside a string, only speaks of errors. What is no JSON says nothing.
///
/// # What an error says
///
/// | the error | [`models`](Self::models) | [`new`](Self::new) |
/// | --- | --- | --- |
/// | the key, the quota or the model is gone: `insufficient_quota`, `invalid_api_key`, `authentication_error`, `PERMISSION_DENIED`, 401, 402 … | fatal | neutral |
/// | `rate_limit_exceeded`, `rate_limit_error`, `RESOURCE_EXHAUSTED`, `ThrottlingException`, 429 … | rate limited | rate limited |
/// | `server_error`, `overloaded_error`, `UNAVAILABLE`, 5xx … | transient failure | transient failure |
/// | the caller's own mistake: `invalid_request_error`, `context_length_exceeded`, `content_filter`, `INVALID_ARGUMENT`, 400 … | neutral | neutral |
/// | in JSON-RPC: −32700, −32600 to −32602, −32002, −32042, and `isError` | neutral | neutral |
/// | in JSON-RPC: another code | transient failure | transient failure |
/// | anything else | transient failure | transient failure |
///
/// The presets differ as those of [`StatusClassifier`](super::StatusClassifier) do: a tool's `401`
/// says nothing of the tool, whose next caller may have another key. Failures carry the wait that
/// the error tells: `RetryInfo`, `Please try again in 7.66s`, `retry after 45 seconds`,
/// `retry_after`, or the headers in an error's `metadata`. A wait is at most a day.
///
/// An error gives the verdict at once. In an array a neutral one waits for the end of the array,
/// as a worse one may follow.
///
/// # Ends that are due
///
/// | what came | its end |
/// | --- | --- |
/// | events with chunks of a chat (`chat.completion.chunk`, `text_completion`) | a `finish_reason` for each choice seen, or `[DONE]` |
/// | events of the Responses API | `response.completed`, `response.incomplete` or `response.failed` |
/// | `message_start` of Anthropic | `message_stop` |
/// | `candidates` of Gemini, as events or in an array | a `finishReason` or a `blockReason` |
/// | lines of Ollama with `"done":false` | `"done":true` |
/// | a body of `application/json` | the end of its value |
///
/// A body that ends in order without the end that is due was cut off: a transient failure.
/// [`due_ends(false)`](Self::due_ends) turns that off. Nothing is due of other bodies.
///
/// `[DONE]`, `message_stop`, `response.completed`, `response.incomplete` and `"done":true` are a
/// success at once, as whoever reads such a body may stop there. After the others more may come: a
/// reader who leaves then has a success.
///
/// # Costs
///
/// The body passes as it comes, and is neither held back nor copied. What looks like an error is
/// collected, in less than 64 KiB; else a frame allocates nothing.
///
/// # Examples
///
/// ```
/// use tower_breaker::http::{EndOfBody, ErrorEvents};
/// use tower_breaker::{Failure, FallbackLayer};
///
/// let events = ErrorEvents::models().code("my_quota_code", Failure::fatal());
/// let layer = FallbackLayer::new("gpt-5").judge(EndOfBody.inspect(events));
/// # let _ = layer;
/// ```
#[derive(Clone)]
pub struct ErrorEvents {
    rules: Rules,
    framing: Framing,
    due: DueEnd,
}

/// What the user has decided. The failure stands in its parts, which need less room: every body
/// has these rules.
#[derive(Clone)]
struct Rules {
    models: bool,
    due_ends: bool,
    tool_errors: bool,
    /// The kind of the failure that each error is taken for.
    failure: Option<FailureKind>,
    /// Its wait: the nanoseconds, and `NO_WAIT` if it has none.
    nanos: u32,
    /// The seconds of its wait.
    seconds: u64,
    /// The codes of the user's own; the later ones win.
    codes: Option<Arc<Vec<OwnCode>>>,
}

impl ErrorEvents {
    /// For any service. Where [`models`](Self::models) says fatal, an error says nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(false, None)
    }

    /// For models: errors that no later call will be spared are fatal.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_breaker::FallbackLayer;
    /// use tower_breaker::http::{EndOfBody, ErrorEvents, StatusClassifier};
    ///
    /// let layer = FallbackLayer::new("gpt-5")
    ///     .classify(StatusClassifier::models())
    ///     .judge(EndOfBody.inspect(ErrorEvents::models()));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub const fn models() -> Self {
        Self::of(true, None)
    }

    /// Takes each error for this failure, whatever its code. Only [`code`](Self::code) goes before
    /// it.
    #[must_use]
    pub const fn as_failure(failure: Failure) -> Self {
        Self::of(false, Some(failure))
    }

    const fn of(models: bool, failure: Option<Failure>) -> Self {
        let (kind, wait) = match failure {
            Some(failure) => (Some(failure.kind()), failure.retry_after()),
            None => (None, None),
        };
        let (seconds, nanos) = match wait {
            Some(wait) => (wait.as_secs(), wait.subsec_nanos()),
            None => (0, NO_WAIT),
        };
        Self {
            rules: Rules {
                models,
                due_ends: true,
                tool_errors: false,
                failure: kind,
                nanos,
                seconds,
                codes: None,
            },
            framing: Framing::new(),
            due: DueEnd::new(),
        }
    }

    /// Changes what an error with this code says. The later of two for one code wins.
    ///
    /// The code is what an error has for its `code`, `type` or `status`, or in its `details` for a
    /// `reason` or an `error_code`. It is a text in ASCII, or a number. A failure without a hint
    /// of its own takes the wait that the error tells.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_breaker::http::ErrorEvents;
    /// use tower_breaker::{Failure, Outcome};
    ///
    /// let events = ErrorEvents::models()
    ///     .code("my_quota_code", Failure::fatal())
    ///     .code("1305", Failure::rate_limited())
    ///     .code("model_not_found", Outcome::Neutral);
    /// # let _ = events;
    /// ```
    #[must_use]
    pub fn code(mut self, code: impl Into<Cow<'static, str>>, outcome: impl Into<Outcome>) -> Self {
        let codes = self.rules.codes.get_or_insert_default();
        Arc::make_mut(codes).push((code.into(), outcome.into()));
        self
    }

    /// Decides whether a body that ends without the end that is due is a failure. It is, by
    /// default.
    #[must_use]
    pub const fn due_ends(mut self, due: bool) -> Self {
        self.rules.due_ends = due;
        self
    }

    /// Decides whether a JSON-RPC result with `"isError":true` is a transient failure. It is
    /// neutral by default, as it is the tool's answer.
    #[must_use]
    pub const fn tool_errors(mut self, failures: bool) -> Self {
        self.rules.tool_errors = failures;
        self
    }
}

/// More nanoseconds than a second has.
const NO_WAIT: u32 = u32::MAX;

impl Rules {
    /// The failure that each error is taken for.
    fn failure(&self) -> Option<Failure> {
        let failure = Failure::of(self.failure?);
        Some(match self.nanos {
            NO_WAIT => failure,
            nanos => failure.with_retry_after(Duration::new(self.seconds, nanos)),
        })
    }

    /// The verdict that a document or an event gives.
    fn judge(&self, found: Found<'_>, due: &mut DueEnd) -> Option<Outcome> {
        match found {
            Found::Document(scan, name, came) => match self.error(scan, name) {
                // A worse one may follow.
                Some(Outcome::Neutral) if came.in_array => {
                    due.neutral = true;
                    None
                }
                None if due.document(scan.facts(), came) => Some(Outcome::Success),
                error => error,
            },
            Found::Bare(Kind::Error | Kind::ResponseFailed) => {
                Some(self.failure().unwrap_or(Failure::transient()).into())
            }
            Found::Bare(_) => None,
            Found::Name(name) => due.kind(name).then_some(Outcome::Success),
            Found::ArrayEnd => due.neutral.then_some(Outcome::Neutral),
            Found::Done => Some(Outcome::Success),
        }
    }

    /// What the error of a document says, if it has one.
    #[inline]
    fn error(&self, scan: &mut Scan, name: Kind) -> Option<Outcome> {
        let facts = scan.facts();
        let is = |kind| facts.kind == kind || name == kind;
        let at_top = [Fact::Error, Fact::Exception].map(|fact| facts.has(fact));
        let is_error = is(Kind::Error) || facts.object == Object::Error;
        let object = if is_error || at_top.contains(&true) {
            "error"
        } else if is(Kind::ResponseFailed) {
            "response.error"
        } else if facts.has(Fact::ChoiceError) {
            "choice.error"
        } else if facts.has(Fact::ToolError) && facts.has(Fact::JsonRpc) {
            return Some(match (self.tool_errors, self.failure()) {
                (true, failure) => failure.unwrap_or(Failure::transient()).into(),
                (false, _) => Outcome::Neutral,
            });
        } else {
            return None;
        };
        let own = self.codes.as_deref().map_or(&[][..], Vec::as_slice);
        let error = match scan.take_collected() {
            Some(collected) => collected.read(object, own),
            None => ErrorObject::default(),
        };
        Some(match (error.own(), self.failure()) {
            (Some(own), _) => own,
            (None, Some(failure)) => failure.into(),
            (None, None) => error.outcome(facts.has(Fact::JsonRpc), self.models),
        })
    }
}

impl<D: AsRef<[u8]>> Inspect<D> for ErrorEvents {
    fn head(&mut self, _: StatusCode, headers: &HeaderMap) {
        ordinary::prepare();
        self.framing.head(headers);
    }

    fn frame(&mut self, frame: &Frame<D>) -> Option<Outcome> {
        let data = frame.data_ref()?.as_ref();
        if self.framing.are_whole(data) && ordinary::is_ordinary(data, self.due) {
            return None;
        }
        let (rules, due) = (&self.rules, &mut self.due);
        self.framing
            .read(data, &mut |found| rules.judge(found, due))
    }

    fn end(&mut self) -> Outcome {
        let (rules, due) = (&self.rules, &mut self.due);
        let found = self.framing.end(&mut |found| rules.judge(found, due));
        if let Some(outcome) = found {
            outcome
        } else if self.rules.due_ends && (self.due.is_missing() || self.framing.is_torn()) {
            Failure::transient().into()
        } else if self.due.neutral {
            Outcome::Neutral
        } else {
            Outcome::Success
        }
    }

    fn dropped(&mut self) -> Option<Outcome> {
        self.due.is_reached().then_some(Outcome::Success)
    }
}

impl Default for ErrorEvents {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ErrorEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What has come of a body is left out: it may be secret.
        f.debug_struct("ErrorEvents")
            .field("models", &self.rules.models)
            .field("due_ends", &self.rules.due_ends)
            .field("tool_errors", &self.rules.tool_errors)
            .field("failure", &self.rules.failure())
            .field("codes", &self.rules.codes)
            .finish_non_exhaustive()
    }
}
