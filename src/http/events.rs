//! Errors inside a stream of events.

use http_body::Frame;

use super::inspect::Inspect;
use crate::vocabulary::{Failure, Outcome};

/// Finds the first error inside a stream of events, for
/// [`EndOfBody::inspect`](super::EndOfBody::inspect).
///
/// An error is a transient failure at once. The end of the answer is a success at once, because
/// many readers stop there and drop the body before its end. What follows the verdict passes as it
/// is.
///
/// The beginning of a line decides. White space in it does not count.
///
/// | a line that begins with | what it says |
/// | --- | --- |
/// | `event: error`, `event: response.failed`, each as the whole line | an error |
/// | `data: {"error":` and a value other than `null` or `false` | an error |
/// | `data: {"type":"error"` | an error |
/// | `{"error":` and a value other than `null` or `false`, in JSON lines | an error |
/// | `{"type":"error"`, in JSON lines | an error |
/// | `data: [DONE]` | the end of the answer |
/// | `event: message_stop`, `event: response.completed`, `event: response.incomplete`, each as the whole line | the end of the answer |
///
/// A line may come in any number of frames. It ends with a line feed, a carriage return, or both.
/// The inspector keeps only how far a line matches, and parses nothing. So an error in another
/// form passes for an answer: write an [`Inspect`] for it.
///
/// The inspector finds nothing in a compressed body. Put the decompression inside of the layer.
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

/// The beginnings of the lines that give a verdict, without white space.
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

/// When a line with such a beginning gives its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    AtOnce,
    /// If the line has nothing more.
    TheLineEnds,
    /// If a value other than `null` or `false` follows.
    AValueFollows,
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Error,
    /// The answer has ended in order.
    Done,
}

/// How far the present line matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The first `matched` bytes are those of each beginning whose bit in `with` is set.
    Matching { matched: u8, with: u16 },
    /// A beginning is complete. What comes next decides.
    Begun(When, Found),
    /// The line gives no verdict, whatever follows.
    Other,
}

impl Line {
    const START: Self = Self::Matching {
        matched: 0,
        with: (1 << BEGINNINGS.len()) - 1,
    };

    /// Takes one more byte. Returns what the line says, if this byte decides it.
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

    /// Returns the line with one more byte, which is not white space.
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

    /// Returns what the line says if it ends here.
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

/// Whether a byte does not count. A byte order mark does not either: a stream may begin with one.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0xef | 0xbb | 0xbf)
}

impl ErrorEvents {
    /// Makes an inspector for which errors are transient failures.
    #[must_use]
    pub const fn new() -> Self {
        Self::as_failure(Failure::transient())
    }

    /// Makes an inspector for which errors are this failure.
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
                // The rest of the line does not matter.
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

    /// Judges the last line, which may end with the stream.
    fn end(&mut self) -> Outcome {
        let found = self.line.end().unwrap_or(Found::Done);
        self.outcome(found)
    }
}

#[cfg(test)]
mod tests;
