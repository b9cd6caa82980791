//! The client's side of both acts: a service over HTTP, its classifier, its retries, and the text
//! for the model.

use std::fmt;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use hyper::{Request, Response, StatusCode};
use tokio::time::{Sleep, sleep};
use tower::retry::Policy;
use tower::{BoxError, Service, ServiceExt};
use tower_breaker::{Classify, ErrorsAsFailures, Failure, Outcome, Reason, Refusal};

use crate::loopback;

pub type Answer = Response<Bytes>;

/// Makes a client that sends calls over HTTP. `request` makes the request of a call.
pub fn client<Call>(
    request: impl Fn(Call) -> Request<Full<Bytes>> + Clone,
) -> impl Service<Call, Response = Answer, Error = BoxError> + Clone {
    loopback::client().map_request(request)
}

/// Classifies a result. Errors, `429` and `5xx` are failures.
pub fn judge(result: Result<&Answer, &BoxError>) -> Outcome {
    let Ok(answer) = result else {
        return ErrorsAsFailures.classify(result);
    };
    let failure = match answer.status() {
        StatusCode::TOO_MANY_REQUESTS => Failure::rate_limited(),
        status if status.is_server_error() => Failure::transient(),
        // The caller's own mistake says nothing of the callee.
        status if status.is_client_error() => return Outcome::Neutral,
        _ => return Outcome::Success,
    };
    let seconds = answer.headers().get(RETRY_AFTER);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    Outcome::Failure(match seconds {
        Some(seconds) => failure.with_retry_after(Duration::from_secs(seconds)),
        None => failure,
    })
}

/// A retry policy: one more attempt after each of these pauses, while attempts fail.
#[derive(Clone, Copy, Debug)]
pub struct Ladder(pub &'static [Duration]);

impl<Call: Clone> Policy<Call, Answer, BoxError> for Ladder {
    type Future = Sleep;

    fn retry(
        &mut self,
        _: &mut Call,
        result: &mut Result<Answer, BoxError>,
    ) -> Option<Self::Future> {
        match judge(result.as_ref()) {
            // A server that asked for a wait is not called before it ends.
            Outcome::Failure(failure) if failure.retry_after().is_none() => {
                let (pause, rest) = self.0.split_first()?;
                self.0 = rest;
                Some(sleep(*pause))
            }
            _ => None,
        }
    }

    fn clone_request(&mut self, call: &Call) -> Option<Call> {
        Some(call.clone())
    }
}

/// What the caller reads of a call, as text.
#[derive(Clone, Debug)]
pub enum Told {
    Answer(String),
    Failure(String),
    Refusal(String, Refusal),
}

impl Told {
    pub fn is_answer(&self) -> bool {
        matches!(self, Told::Answer(_))
    }

    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Told::Refusal(_, refusal) => Some(refusal),
            Told::Answer(_) | Told::Failure(_) => None,
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Told::Answer(words) | Told::Failure(words) | Told::Refusal(words, _)) = self;
        f.pad(words)
    }
}

/// Makes text of every result, also of a refusal by any layer inside. It goes outermost.
pub async fn in_words(result: Result<Answer, BoxError>) -> Result<Told, BoxError> {
    let answer = match result {
        Ok(answer) => answer,
        Err(err) => {
            let Some(refusal) = Refusal::find(&*err) else {
                return Ok(Told::Failure(format!("error: {err}")));
            };
            let words = match (refusal.reason(), refusal.retry_after()) {
                (Reason::ProbeInFlight, _) => format!("{refusal}, another call is testing it"),
                (_, Some(wait)) => format!("{refusal}, wait {:.1} s", wait.as_secs_f64()),
                (_, None) => refusal.to_string(),
            };
            return Ok(Told::Refusal(words, refusal.clone()));
        }
    };
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    Ok(match answer.status() {
        status if status.is_success() => Told::Answer(text),
        status => Told::Failure(format!("error: {status}: {text}")),
    })
}
