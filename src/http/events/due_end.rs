//! Which end is due, and whether it has come.
//!
//! | what came | its end |
//! | --- | --- |
//! | chunks of a chat | a `finish_reason` for each choice seen, or `[DONE]` |
//! | events of the Responses API | `response.completed`, `response.incomplete`, or an error |
//! | `message_start` of Anthropic | `message_stop` |
//! | candidates of Gemini, as events or in an array | a `finishReason`, or a `blockReason` |
//! | lines of Ollama with `"done":false` | `"done":true` |
//! | anything else | nothing is due |
//!
//! `[DONE]`, `message_stop`, `response.completed`, `response.incomplete` and `"done":true` end an
//! answer at once. After the others more may come, so they only make the end of the body good.

use super::scan::{Fact, Facts, Kind, Object};

/// How the document came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    /// As the data of an event.
    pub(super) as_event: bool,
    /// In an array of documents.
    pub(super) in_array: bool,
    /// In a body that is declared to be one JSON value.
    pub(super) as_declared_json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Unknown,
    Chat,
    Responses,
    Anthropic,
    Gemini,
    Ollama,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DueEnd {
    dialect: Dialect,
    /// Gemini has given a reason.
    finished: bool,
    /// Whether a document came before.
    several: bool,
    /// A neutral error stands in the array: a worse one may follow.
    pub(super) neutral: bool,
    choices: u16,
    choices_finished: u16,
}

impl DueEnd {
    pub(super) const fn new() -> Self {
        Self {
            dialect: Dialect::Unknown,
            finished: false,
            several: false,
            neutral: false,
            choices: 0,
            choices_finished: 0,
        }
    }

    /// Learns from the name of an event, or the type of a document. Answers with whether it is the
    /// end.
    pub(super) fn kind(&mut self, kind: Kind) -> bool {
        match kind {
            Kind::MessageStart => self.dialect = Dialect::Anthropic,
            Kind::Responding => self.dialect = Dialect::Responses,
            Kind::MessageStop | Kind::ResponseEnd => return true,
            Kind::Other | Kind::Error | Kind::ResponseFailed => {}
        }
        false
    }

    /// Learns from a document without an error. Answers with whether it is the end.
    pub(super) fn document(&mut self, facts: Facts, came: Came) -> bool {
        let several = std::mem::replace(&mut self.several, true);
        if came.in_array {
            // Only Gemini sends an answer so.
        } else if came.as_event {
            if self.kind(facts.kind) {
                return true;
            }
            if facts.object == Object::Chunk {
                self.dialect = Dialect::Chat;
            }
        } else if facts.has(Fact::Done) {
            return true;
        } else if facts.has(Fact::NotDone) && (several || !came.as_declared_json) {
            self.dialect = Dialect::Ollama;
        }
        if facts.has(Fact::Candidates) && (came.as_event || came.in_array) {
            self.dialect = Dialect::Gemini;
        }
        self.finished |= facts.has(Fact::CandidatesFinished) || facts.has(Fact::Blocked);
        self.choices |= facts.choices;
        self.choices_finished |= facts.choices_finished;
        false
    }

    pub(super) fn dialect(self) -> Dialect {
        self.dialect
    }

    /// Whether choices with these indexes, a bit for each, were all seen.
    pub(super) fn has_seen(self, choices: u16) -> bool {
        choices & !self.choices == 0
    }

    /// Whether the answer has come to its end, though more may follow.
    pub(super) fn is_reached(self) -> bool {
        match self.dialect {
            Dialect::Chat => self.choices != 0 && self.choices & !self.choices_finished == 0,
            Dialect::Gemini => self.finished,
            _ => false,
        }
    }

    /// Whether an end is due that has not come.
    pub(super) fn is_missing(self) -> bool {
        self.dialect != Dialect::Unknown && !self.is_reached()
    }
}
