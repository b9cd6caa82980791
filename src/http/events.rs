//! Errors inside a stream that began well.

use http_body::Frame;

use super::inspect::Inspect;
use crate::vocabulary::{Failure, Outcome};

/// Finds the first error inside a stream of events whose status was a success, for [`EndOfBody::inspect`](super::EndOfBody::inspect). It is then a
/// transient failure at once; what follows passes as it is.
///
/// A line that begins so decides, white space left aside:
///
/// | the line | what it says |
/// | --- | --- |
/// | `event: error`, `event: response.failed` | an error |
/// | `data: {"error":`, and not `null` or `false`; `data: {"type":"error"` | an error |
/// | `{"error":`, likewise, `{"type":"error"`: in JSON lines | an error |
/// | `data: [DONE]`, `event: message_stop`, `event: response.completed`, `event: response.incomplete` | the end of the answer: a success at once, since whoever reads such a stream may stop there, and drop the body before its end |
///
/// A line may come in any number of frames, and ends with a line feed, a carriage return, or both. Nothing is kept of it but how far it
/// matches, and nothing is parsed: an error in another form passes for an answer. Write an [`Inspect`] for that. In a body that
/// is compressed nothing is found: put what decompresses it inside.
///
/// # Examples
///
/// ```
/// use tower_breaker::FallbackLayer;
/// use tower_breaker::http::{EndOfBody, ErrorEvents};
///
/// let layer = FallbackLayer::new("gpt-5").judge(EndOfBody.inspect(ErrorEvents::new()));
/// # let _ = layer;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ErrorEvents {
    line: Line,
    failure: Failure,
}

/// What lines begin with that give the verdict, without white space.
const BEGINNINGS: [(&[u8], When, Found); 10] = [
    (b"data:[DONE]", When::AtOnce, Found::Done),
    (b"event:error", When::TheLineEnds, Found::Error),
    (b"event:message_stop", When::TheLineEnds, Found::Done),
    (b"event:response.completed", When::TheLineEnds, Found::Done),
    (b"event:response.incomplete", When::TheLineEnds, Found::Done),
    (b"event:response.failed", When::TheLineEnds, Found::Error),
    (b"data:{\"error\":", When::AValueFollows, Found::Error),
    (b"data:{\"type\":\"error\"", When::AtOnce, Found::Error),
    (b"{\"error\":", When::AValueFollows, Found::Error),
    (b"{\"type\":\"error\"", When::AtOnce, Found::Error),
];

/// When a line that has begun so gives its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    AtOnce,
    /// It is the whole of the line.
    TheLineEnds,
    /// Neither `null` nor `false`.
    AValueFollows,
}

/// What a line gives as the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Error,
    /// The end of the answer, in order.
    Done,
}

/// How far the line matches, as it is known by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes have matched, with those of `BEGINNINGS` whose bits are set.
    Matching { matched: u8, with: u16 },
    /// It has begun so, and what comes next decides.
    Begun(When, Found),
    /// It gives no verdict, whatever comes.
    Other,
}

impl Line {
    const START: Self = Self::Matching {
        matched: 0,
        with: (1 << BEGINNINGS.len()) - 1,
    };

    /// Takes one more byte. Answers with what the line is, once that gives the verdict.
    fn take(&mut self, byte: u8) -> Option<Found> {
        if is_end(byte) {
            return std::mem::replace(self, Self::START).end();
        }
        if is_space(byte) {
            return None;
        }
        let next = self.next(byte);
        let Self::Begun(When::AtOnce, found) = next else {
            *self = next;
            return None;
        };
        *self = Self::Other;
        Some(found)
    }

    /// The line with one more byte that is no white space.
    fn next(self, byte: u8) -> Self {
        let (matched, with) = match self {
            Self::Matching { matched, with } => (matched, with),
            Self::Begun(When::AValueFollows, found) if byte != b'n' && byte != b'f' => {
                return Self::Begun(When::AtOnce, found);
            }
            Self::Begun(..) | Self::Other => return Self::Other,
        };
        let mut left = 0;
        for (n, (beginning, when, found)) in BEGINNINGS.iter().enumerate() {
            let bit = 1 << n;
            if with & bit == 0 || beginning.get(usize::from(matched)) != Some(&byte) {
                continue;
            }
            if usize::from(matched) + 1 == beginning.len() {
                return Self::Begun(*when, *found);
            }
            left |= bit;
        }
        if left == 0 {
            return Self::Other;
        }
        Self::Matching {
            matched: matched + 1,
            with: left,
        }
    }

    /// What the line is that ends here.
    fn end(self) -> Option<Found> {
        match self {
            Self::Begun(When::TheLineEnds, found) => Some(found),
            _ => None,
        }
    }
}

fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

/// The bytes of a byte order mark are left aside, too: a stream may begin with one.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0xef | 0xbb | 0xbf)
}

impl ErrorEvents {
    /// Errors are transient failures.
    #[must_use]
    pub const fn new() -> Self {
        Self::as_failure(Failure::transient())
    }

    /// Errors are failures of this kind.
    #[must_use]
    pub const fn as_failure(failure: Failure) -> Self {
        Self {
            line: Line::START,
            failure,
        }
    }

    fn outcome(&self, found: Found) -> Outcome {
        match found {
            Found::Error => self.failure.into(),
            Found::Done => Outcome::Success,
        }
    }
}

impl Default for ErrorEvents {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: AsRef<[u8]>> Inspect<D> for ErrorEvents {
    fn frame(&mut self, frame: &Frame<D>) -> Option<Outcome> {
        let mut data = frame.data_ref()?.as_ref();
        loop {
            if self.line == Line::Other {
                // The rest of the line matters no more.
                let end = data.iter().position(|byte| is_end(*byte))?;
                data = &data[end..];
            }
            let (byte, rest) = data.split_first()?;
            if let Some(found) = self.line.take(*byte) {
                return Some(self.outcome(found));
            }
            data = rest;
        }
    }

    /// The last line may end with the stream.
    fn end(&mut self) -> Outcome {
        let found = self.line.end().unwrap_or(Found::Done);
        self.outcome(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAILED: Outcome = Outcome::Failure(Failure::transient());

    /// The verdict on a stream that comes in `pieces` and then ends.
    fn judged<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
        let mut events = ErrorEvents::new();
        for piece in pieces {
            if let Some(outcome) = events.frame(&Frame::data(piece)) {
                return outcome;
            }
        }
        Inspect::<&[u8]>::end(&mut events)
    }

    #[test]
    fn errors_inside_a_stream_are_found_and_answers_are_not() {
        for stream in [
            "event: error\ndata: {}\n\n",
            "event:error\r\n",
            "event: error",
            " event\t: error \n",
            "data: {\"a\":1}\n\nevent: error\n",
            "data: {}\revent: error\r",
            "data: {\"error\": {\"message\": \"overloaded\"}}\n\n",
            "data: {\"error\":\"overloaded\"}",
            "data:{ \"type\" : \"error\", \"error\": {} }",
            "{\"error\": \"overloaded\"}\n",
            "{\"token\":\"a\"}\n{\"error\":{}}\n",
            "{\"type\":\"error\"}",
            "event: response.failed\ndata: {}\n\n",
            "event: response.failed",
            "\u{feff}event: error\n",
        ] {
            assert_eq!(judged([stream.as_bytes()]), FAILED, "{stream:?}");
        }
        for stream in [
            "",
            "\n\n",
            "event: errors\n",
            "event: error_recovered\n",
            "event: message\ndata: event: error\n",
            "data: error\n",
            "data: {\"text\":\"event: error\"}\n",
            "data: {\"errors\":[]}\n",
            "data: {\"error\":null,\"text\":\"fine\"}\n",
            "data: {\"error\": false}\n",
            "data: {\"type\":\"error_count\"}\n",
            ": event: error\n",
            "{\"error\"",
            "{\"error\":",
            "data: [DONE]\n\n",
        ] {
            assert_eq!(judged([stream.as_bytes()]), Outcome::Success, "{stream:?}");
        }
    }

    #[test]
    fn the_line_that_ends_an_answer_is_a_success_before_the_stream_ends() {
        for stream in [
            "data: [DONE]\n\n",
            "data:[DONE]",
            "data: {\"a\":1}\n\ndata: [DONE]\n\n",
            "data: [DONE]\n\nevent: error\n",
            "event: message_stop\ndata: {}\n\n",
            "event: response.completed\r\n",
            "event: response.incomplete\n",
        ] {
            let verdict = ErrorEvents::new().frame(&Frame::data(stream));
            assert_eq!(verdict, Some(Outcome::Success), "{stream:?}");
        }
        for stream in [
            "data: {\"text\":\"data: [DONE]\"}\n",
            "data: [DONE",
            "data: [\"DONE\"]\n",
            "[DONE]\n",
            "event: [DONE]\n",
            "event: message_stopped\n",
            "event: response.complete\n",
            "event: response.created\nevent: message_start\n",
            "data: message_stop\n",
        ] {
            let verdict = ErrorEvents::new().frame(&Frame::data(stream));
            assert_eq!(verdict, None, "{stream:?}");
        }
        assert_eq!(judged(["event: error\ndata: [DONE]\n".as_bytes()]), FAILED);
    }

    #[test]
    fn an_error_may_be_a_failure_of_another_kind() {
        let mut events = ErrorEvents::as_failure(Failure::rate_limited());
        let found = events.frame(&Frame::data("event: error\n"));
        assert_eq!(found, Some(Failure::rate_limited().into()));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_a_stream_is_cut(
            lines in prop::collection::vec(
                prop::sample::select(vec![
                    "event: error", "event: errors", "data: {\"error\":", "null", "{", "1}", " ", "data: ", "{\"type\": \"error\"", "data: [DONE]", "event: message_stop", "\n", "\r\n", "x",
                ]),
                0..12,
            ),
            cuts in prop::collection::vec(0..200_usize, 0..12),
        ) {
            let stream = lines.concat().into_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut % (stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]);
            let bytes = stream.chunks(1);
            let whole = judged([&stream[..]]);
            prop_assert_eq!(judged(pieces), whole);
            prop_assert_eq!(judged(bytes), whole);
        }
    }
}
