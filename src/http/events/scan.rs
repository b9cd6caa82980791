//! Reads JSON as it comes, in pieces of any size, and keeps the few facts that a verdict needs.
//!
//! A document is one JSON value: the data of an event, a line, an element of an array, or a whole
//! body. The scanner knows the place where it stands, so a key counts only where it has a meaning:
//!
//! | place | keys that count |
//! | --- | --- |
//! | the document's object | `error`, `type`, `object`, `code`, `message`, `__type`, `jsonrpc`, `done`, and the containers below |
//! | `choices[]` | `index`, `finish_reason`, `error` |
//! | `candidates[]` | `content`, `finishReason` |
//! | `promptFeedback` | `blockReason` |
//! | `response` | `error` |
//! | `result` | `isError` |
//!
//! Every other container is skipped: only its brackets are counted. Strings are passed with
//! `memchr`. Where something looks like an error, its text is collected for
//! [`error_object`].

use memchr::memchr3;

use super::error_object::{self, Collected};

/// What one document has said. The last of several equal keys counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// The document's `type`.
    pub(super) kind: Kind,
    pub(super) object: Object,
    flags: u16,
    /// The choices seen, and those that have finished: a bit for each index, modulo 16.
    pub(super) choices: u16,
    pub(super) choices_finished: u16,
}

/// A fact that holds or does not. One bit each, since every body has a scanner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Fact {
    /// `error` is there, and is none of `null`, `false`, `""`, `{}` and `[]`.
    Error = 1,
    /// The same of `response.error`.
    ResponseError = 1 << 1,
    /// The same of `choices[].error`, or a `finish_reason` of `error`.
    ChoiceError = 1 << 2,
    /// `__type` names an exception of AWS.
    Exception = 1 << 3,
    JsonRpc = 1 << 4,
    /// `result.isError` is `true`.
    ToolError = 1 << 5,
    /// Candidates of Gemini.
    Candidates = 1 << 6,
    CandidatesFinished = 1 << 7,
    Blocked = 1 << 8,
    /// `done` is `true`.
    Done = 1 << 9,
    /// `done` is `false`.
    NotDone = 1 << 10,
}

impl Facts {
    const NONE: Self = Self {
        kind: Kind::Other,
        object: Object::Other,
        flags: 0,
        choices: 0,
        choices_finished: 0,
    };

    #[inline]
    pub(super) fn has(self, fact: Fact) -> bool {
        self.flags & fact as u16 != 0
    }

    #[inline]
    fn set(&mut self, fact: Fact, holds: bool) {
        if holds {
            self.flags |= fact as u16;
        } else {
            self.flags &= !(fact as u16);
        }
    }
}

/// The `type` of a document, or the name of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Other,
    Error,
    MessageStart,
    MessageStop,
    /// An event of the Responses API in the midst of an answer.
    Responding,
    ResponseEnd,
    ResponseFailed,
}

impl Kind {
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"error" => Kind::Error,
            b"message_start" => Kind::MessageStart,
            b"message_stop" => Kind::MessageStop,
            b"response.completed" | b"response.incomplete" => Kind::ResponseEnd,
            b"response.failed" => Kind::ResponseFailed,
            b"response.created" | b"response.in_progress" | b"response.queued" => Kind::Responding,
            _ if name.starts_with(b"response.output_") => Kind::Responding,
            _ if name.starts_with(b"response.content_part") => Kind::Responding,
            _ => Kind::Other,
        }
    }
}

/// The `object` of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Object {
    #[default]
    Other,
    Error,
    /// A piece of a chat, or of a completion.
    Chunk,
}

/// What the scanner stops for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// A document is whole.
    Document,
    /// The array around the documents is whole.
    Array,
    /// `[DONE]`, which is no JSON.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A document is due.
    Start,
    /// A value is due.
    Value,
    /// A value is due, or the array's end.
    ValueOrEnd,
    /// A key is due.
    Key,
    /// A key is due, or the object's end.
    KeyOrEnd,
    Colon,
    /// A comma is due, or the container's end.
    Next,
    InKey,
    InText,
    /// In a number or a literal.
    InScalar,
    /// In a container that is skipped.
    Skip,
    /// In a string of one.
    SkipText,
    /// In `[DONE]`.
    Done,
    /// The document is whole, and only white space may follow.
    Whole,
    /// This is no JSON.
    Broken,
}

/// The container in which the scanner stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Outside of every document.
    Outside,
    /// In the array around the documents.
    Array,
    /// In the document's object.
    Top,
    Choices,
    Choice,
    Candidates,
    Candidate,
    Feedback,
    Response,
    Result,
}

/// A key that counts in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Other,
    Error,
    Type,
    Object,
    Code,
    Message,
    AwsType,
    JsonRpc,
    Done,
    Choices,
    Candidates,
    Feedback,
    Response,
    Result,
    ChoiceError,
    Index,
    FinishReason,
    Content,
    CandidateFinish,
    BlockReason,
    ResponseError,
    IsError,
}

impl Key {
    fn of(place: Place, name: &[u8]) -> Self {
        match (place, name) {
            (Place::Top, b"error") => Key::Error,
            (Place::Top, b"type") => Key::Type,
            (Place::Top, b"object") => Key::Object,
            (Place::Top, b"code") => Key::Code,
            (Place::Top, b"message") => Key::Message,
            (Place::Top, b"__type") => Key::AwsType,
            (Place::Top, b"jsonrpc") => Key::JsonRpc,
            (Place::Top, b"done") => Key::Done,
            (Place::Top, b"choices") => Key::Choices,
            (Place::Top, b"candidates") => Key::Candidates,
            (Place::Top, b"promptFeedback") => Key::Feedback,
            (Place::Top, b"response") => Key::Response,
            (Place::Top, b"result") => Key::Result,
            (Place::Choice, b"error") => Key::ChoiceError,
            (Place::Choice, b"index") => Key::Index,
            (Place::Choice, b"finish_reason") => Key::FinishReason,
            (Place::Candidate, b"content") => Key::Content,
            (Place::Candidate, b"finishReason") => Key::CandidateFinish,
            (Place::Feedback, b"blockReason") => Key::BlockReason,
            (Place::Response, b"error") => Key::ResponseError,
            (Place::Result, b"isError") => Key::IsError,
            _ => Key::Other,
        }
    }

    /// The name under which its value is collected, if a text there looks like an error.
    fn collected(self) -> Option<&'static str> {
        match self {
            Key::Error => Some("error"),
            Key::ChoiceError => Some("choice.error"),
            Key::ResponseError => Some("response.error"),
            Key::Code => Some("code"),
            Key::Type => Some("type"),
            Key::Message => Some("message"),
            Key::AwsType => Some("__type"),
            _ => None,
        }
    }

    fn is_error(self) -> bool {
        matches!(self, Key::Error | Key::ChoiceError | Key::ResponseError)
    }
}

/// The beginning of a key, of a short value, or of the name of a field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    bytes: [u8; Short::MAX],
    /// More than `MAX` if it was longer.
    len: u8,
}

impl Short {
    /// No key, value or name that counts is longer.
    const MAX: usize = 22;

    const EMPTY: Self = Self {
        bytes: [0; Self::MAX],
        len: 0,
    };

    /// What it holds; nothing that counts if it was longer.
    pub(super) fn get(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(b"?")
    }

    pub(super) fn is_too_long(&self) -> bool {
        usize::from(self.len) > Self::MAX
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline]
    pub(super) fn push(&mut self, more: &[u8]) {
        let from = usize::from(self.len);
        let to = from.saturating_add(more.len());
        if let Some(room) = self.bytes.get_mut(from..to) {
            room.copy_from_slice(more);
            #[allow(clippy::cast_possible_truncation)] // It is at most `MAX`.
            let len = to as u8;
            self.len = len;
        } else {
            self.len = u8::MAX;
        }
    }
}

/// How far an escape has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// Behind so many hexadecimal digits of `\u`.
    Hex0,
    Hex1,
    Hex2,
    Hex3,
}

/// So large that with more digits it stays so.
const NOT_ASCII: u8 = u8::MAX;

/// Where one choice stands.
#[derive(Clone, Copy, Debug)]
struct Choice {
    index: u8,
    flags: u8,
}

impl Choice {
    const NEW: Self = Self { index: 0, flags: 0 };

    const FINISHED: u8 = 1;
    const FAILED: u8 = 1 << 1;
    /// Its `finish_reason` is `error`.
    const STOPPED_BY_ERROR: u8 = 1 << 2;

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u8, holds: bool) {
        if holds {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Scan {
    state: State,
    place: Place,
    key: Key,
    /// Whether documents stand in an array.
    in_array: bool,
    /// Whether the value is collected.
    collecting: bool,
    /// Whether the container that is collected holds anything.
    holds_something: bool,
    escape: Escape,
    /// The value of an escape's digits so far; `NOT_ASCII` if it is too large for ASCII.
    hex: u8,
    /// How many containers that are skipped are open.
    skipped: u32,
    choice: Choice,
    facts: Facts,
    /// Lent to the framing between two documents.
    pub(super) short: Short,
    /// What looks like an error.
    collected: Option<Box<Collected>>,
}

impl Scan {
    pub(super) const fn new() -> Self {
        Self {
            state: State::Start,
            place: Place::Outside,
            key: Key::Other,
            in_array: false,
            collecting: false,
            holds_something: false,
            escape: Escape::None,
            hex: 0,
            skipped: 0,
            choice: Choice::NEW,
            facts: Facts::NONE,
            short: Short::EMPTY,
            collected: None,
        }
    }

    /// Forgets the document, and the array around it: another document begins.
    pub(super) fn restart(&mut self) {
        self.state = State::Start;
        self.place = Place::Outside;
        self.in_array = false;
        self.begin();
    }

    /// Forgets what the last document said.
    fn begin(&mut self) {
        self.key = Key::Other;
        self.collecting = false;
        self.escape = Escape::None;
        self.facts = Facts::NONE;
        self.collected = None;
    }

    pub(super) fn facts(&self) -> Facts {
        self.facts
    }

    /// Takes what looked like an error.
    pub(super) fn take_collected(&mut self) -> Option<Box<Collected>> {
        self.collected.take()
    }

    /// Whether the document stands in an array, or is one.
    pub(super) fn is_in_array(&self) -> bool {
        self.in_array
    }

    pub(super) fn is_start(&self) -> bool {
        self.state == State::Start
    }

    pub(super) fn is_whole(&self) -> bool {
        self.state == State::Whole
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Whether a value has begun and not ended. A number may end anywhere.
    pub(super) fn is_inside(&self) -> bool {
        match self.state {
            State::Start | State::Whole | State::Broken => false,
            State::InScalar => self.place != Place::Outside,
            _ => true,
        }
    }

    /// Reads on. Stops behind the end of a document or of the array around it, and near the first
    /// byte that is no JSON, but before the end of its line. Answers with how many bytes it has
    /// read.
    #[inline]
    pub(super) fn read(&mut self, data: &[u8]) -> (usize, Option<Stop>) {
        let mut at = 0;
        while let Some(&byte) = data.get(at) {
            match self.state {
                State::InText | State::InKey | State::SkipText => {
                    at = self.text(data, at);
                    if self.state == State::Whole {
                        return (at, Some(Stop::Document));
                    }
                }
                State::Skip => at = self.skip(data, at),
                State::InScalar => {
                    at = self.scalar(data, at);
                    if self.state == State::Whole {
                        return (at, Some(Stop::Document));
                    }
                }
                State::Broken => return (at, None),
                _ => {
                    let stop = self.structure(byte);
                    at += 1;
                    if stop.is_some() {
                        return (at, stop);
                    }
                    if self.state == State::KeyOrEnd && data.get(at) == Some(&b'"') {
                        self.short.clear();
                        self.state = State::InKey;
                        at += 1;
                    }
                }
            }
        }
        (at, None)
    }

    /// A byte outside of strings, numbers and literals.
    #[inline]
    fn structure(&mut self, byte: u8) -> Option<Stop> {
        if is_space(byte) && self.state != State::Done {
            return None;
        }
        match (self.state, byte) {
            (State::Key | State::KeyOrEnd, b'"') => {
                self.short.clear();
                self.state = State::InKey;
            }
            (State::Colon, b':') => self.state = State::Value,
            (State::Next, b',') => {
                self.state = match self.place {
                    Place::Array | Place::Choices | Place::Candidates => State::Value,
                    _ => State::Key,
                };
            }
            (State::Next | State::KeyOrEnd | State::ValueOrEnd, b'}' | b']') => {
                return self.close(byte);
            }
            (State::Start | State::Value | State::ValueOrEnd, _) => self.open(byte),
            (State::Done, _) => return self.done(byte),
            _ => self.break_off(),
        }
        None
    }

    /// The first byte of a value.
    #[inline]
    fn open(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.short.clear();
                if self.key == Key::Type || self.place == Place::Outside {
                    // A type is collected once it is known to look like an error.
                    self.collecting = self.key == Key::Type && self.collected.is_some();
                } else {
                    self.collecting = self.key.collected().is_some();
                }
                if self.collecting {
                    self.collect_member();
                    self.collect(b"\"");
                }
                self.state = State::InText;
            }
            b'{' | b'[' => self.open_container(byte),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                self.short.clear();
                self.short.push(&[byte]);
                self.state = State::InScalar;
            }
            b'D' if self.state == State::ValueOrEnd && self.place == Place::Array => {
                self.skipped = 1;
                self.state = State::Done;
            }
            _ => self.break_off(),
        }
    }

    fn open_container(&mut self, byte: u8) {
        let place = match (self.place, self.key, byte) {
            (Place::Outside | Place::Array, _, b'{') => {
                self.begin();
                Place::Top
            }
            (Place::Outside, _, _) => {
                self.in_array = true;
                Place::Array
            }
            (Place::Top, Key::Choices, b'[') => Place::Choices,
            (Place::Top, Key::Candidates, b'[') => Place::Candidates,
            (Place::Top, Key::Feedback, b'{') => Place::Feedback,
            (Place::Top, Key::Response, b'{') => Place::Response,
            (Place::Top, Key::Result, b'{') => Place::Result,
            (Place::Choices, _, b'{') => {
                self.choice = Choice::NEW;
                Place::Choice
            }
            (Place::Candidates, _, b'{') => Place::Candidate,
            _ => {
                self.collecting = self.key.is_error();
                if self.collecting {
                    self.holds_something = false;
                    self.collect_member();
                    self.collect(&[byte]);
                }
                self.skipped = 1;
                self.state = State::Skip;
                return;
            }
        };
        self.place = place;
        self.key = Key::Other;
        self.state = match byte {
            b'{' => State::KeyOrEnd,
            _ => State::ValueOrEnd,
        };
    }

    /// The end of a container that is not skipped.
    fn close(&mut self, byte: u8) -> Option<Stop> {
        let (opening, outer) = match self.place {
            Place::Outside => (0, Place::Outside),
            Place::Array => (b']', Place::Outside),
            Place::Top if self.in_array => (b'}', Place::Array),
            Place::Top => (b'}', Place::Outside),
            Place::Choices | Place::Candidates => (b']', Place::Top),
            Place::Choice => (b'}', Place::Choices),
            Place::Candidate => (b'}', Place::Candidates),
            Place::Feedback | Place::Response | Place::Result => (b'}', Place::Top),
        };
        if byte != opening {
            self.break_off();
            return None;
        }
        let place = std::mem::replace(&mut self.place, outer);
        self.key = Key::Other;
        self.state = match outer {
            Place::Outside => State::Whole,
            _ => State::Next,
        };
        match place {
            Place::Top => return Some(Stop::Document),
            Place::Array => return Some(Stop::Array),
            Place::Choice => self.end_choice(),
            _ => {}
        }
        None
    }

    fn end_choice(&mut self) {
        let bit = 1 << (self.choice.index % 16);
        self.facts.choices |= bit;
        if self.choice.has(Choice::FINISHED) {
            self.facts.choices_finished |= bit;
        }
        if self.choice.has(Choice::FAILED) || self.choice.has(Choice::STOPPED_BY_ERROR) {
            self.facts.set(Fact::ChoiceError, true);
        }
    }

    /// One more byte of `[DONE]`.
    fn done(&mut self, byte: u8) -> Option<Stop> {
        const MARK: &[u8] = b"DONE]";
        let at = self.skipped as usize;
        if MARK.get(at) != Some(&byte) {
            self.break_off();
            return None;
        }
        self.skipped += 1;
        if at + 1 < MARK.len() {
            return None;
        }
        self.state = State::Whole;
        self.place = Place::Outside;
        Some(Stop::Done)
    }

    fn break_off(&mut self) {
        self.state = State::Broken;
        self.collected = None;
    }

    // ===== strings =====

    /// More of a string. Answers with where it has read to.
    #[inline]
    fn text(&mut self, data: &[u8], at: usize) -> usize {
        let rest = &data[at..];
        if self.escape != Escape::None {
            self.escaped(rest[0]);
            return at + 1;
        }
        let Some(end) = end_of_plain(rest) else {
            self.take(rest);
            return data.len();
        };
        let piece = &rest[..end];
        if rest[end] == b'"' && self.state == State::InKey && self.short.len == 0 {
            // The whole key is here, as nearly always.
            let key = Key::of(self.place, piece);
            self.end_key(key);
            let at = at + end + 1;
            if data.get(at) != Some(&b':') {
                return at;
            }
            if key == Key::Other && data.get(at + 1) == Some(&b'"') {
                // So is the beginning of a string that does not count.
                self.state = State::InText;
                return at + 2;
            }
            self.state = State::Value;
            return at + 1;
        }
        self.take(piece);
        match rest[end] {
            b'"' => {
                self.close_text();
                return self.next_key(data, at + end + 1);
            }
            b'\\' => self.escape = Escape::Begun,
            // No string goes over a line. The line feed is left for whoever looks for the next
            // line.
            _ => {
                self.break_off();
                return at + end;
            }
        }
        at + end + 1
    }

    /// Passes a comma and the quote of the next key at once, if both are here.
    #[inline]
    fn next_key(&mut self, data: &[u8], at: usize) -> usize {
        let in_object = !matches!(
            self.place,
            Place::Outside | Place::Array | Place::Choices | Place::Candidates
        );
        if self.state == State::Next && in_object && data[at..].starts_with(b",\"") {
            self.short.clear();
            self.state = State::InKey;
            return at + 2;
        }
        at
    }

    /// A piece of a string, without escapes.
    #[inline]
    fn take(&mut self, piece: &[u8]) {
        let counts = match self.state {
            State::InKey => true,
            State::InText => self.key != Key::Other,
            _ => false,
        };
        if counts {
            self.short.push(piece);
        }
        if self.collecting {
            self.collect_text(piece);
        }
    }

    /// A byte behind a backslash.
    #[cold]
    fn escaped(&mut self, byte: u8) {
        let byte = match (self.escape, byte) {
            (Escape::Begun, b'u') => {
                self.escape = Escape::Hex0;
                self.hex = 0;
                return;
            }
            (Escape::Hex0 | Escape::Hex1 | Escape::Hex2 | Escape::Hex3, _) => {
                let Some(digit) = char::from(byte).to_digit(16) else {
                    return self.break_off();
                };
                self.hex = match u8::try_from(u32::from(self.hex) * 16 + digit) {
                    Ok(value) if value.is_ascii() => value,
                    _ => NOT_ASCII,
                };
                let next = match self.escape {
                    Escape::Hex0 => Escape::Hex1,
                    Escape::Hex1 => Escape::Hex2,
                    Escape::Hex2 => Escape::Hex3,
                    _ => Escape::None,
                };
                if next != Escape::None {
                    self.escape = next;
                    return;
                }
                // Nothing that counts is spelled with more than ASCII.
                if self.hex == NOT_ASCII {
                    b'?'
                } else {
                    self.hex
                }
            }
            (_, b'"' | b'\\' | b'/') => byte,
            (_, b'b' | b'f' | b'n' | b'r' | b't') => b' ',
            _ => return self.break_off(),
        };
        self.escape = Escape::None;
        self.take(&[byte]);
    }

    fn close_text(&mut self) {
        match self.state {
            State::InKey => self.end_key(Key::of(self.place, self.short.get())),
            State::SkipText => {
                if self.collecting {
                    self.collect(b"\"");
                }
                self.state = State::Skip;
            }
            _ => {
                if self.collecting {
                    self.collect(b"\"");
                    self.collecting = false;
                }
                if self.key != Key::Other {
                    self.learn_text();
                }
                self.value_ends();
            }
        }
    }

    #[inline]
    fn end_key(&mut self, key: Key) {
        self.key = key;
        self.state = State::Colon;
        if key != Key::Other {
            self.forget();
        }
    }

    /// The key has come, maybe not for the first time: what was said under it no longer holds.
    #[inline]
    fn forget(&mut self) {
        let facts = &mut self.facts;
        match self.key {
            Key::Other | Key::Code | Key::Message => {}
            Key::Error => facts.set(Fact::Error, false),
            Key::Type => facts.kind = Kind::Other,
            Key::Object => facts.object = Object::Other,
            Key::AwsType => facts.set(Fact::Exception, false),
            Key::JsonRpc => facts.set(Fact::JsonRpc, true),
            Key::Done => {
                facts.set(Fact::Done, false);
                facts.set(Fact::NotDone, false);
            }
            Key::Choices => {
                facts.choices = 0;
                facts.choices_finished = 0;
                facts.set(Fact::ChoiceError, false);
            }
            Key::Candidates => {
                facts.set(Fact::Candidates, false);
                facts.set(Fact::CandidatesFinished, false);
            }
            Key::Feedback | Key::BlockReason => facts.set(Fact::Blocked, false),
            Key::Response | Key::ResponseError => facts.set(Fact::ResponseError, false),
            Key::Result | Key::IsError => facts.set(Fact::ToolError, false),
            Key::ChoiceError => self.choice.set(Choice::FAILED, false),
            Key::Index => self.choice.index = 0,
            Key::FinishReason => {
                self.choice.set(Choice::FINISHED, false);
                self.choice.set(Choice::STOPPED_BY_ERROR, false);
            }
            Key::Content | Key::CandidateFinish => facts.set(Fact::Candidates, true),
        }
    }

    /// The value of the key is a string.
    #[inline]
    fn learn_text(&mut self) {
        let text = self.short.get();
        let filled = !text.is_empty();
        match self.key {
            Key::Error => self.facts.set(Fact::Error, filled),
            Key::ResponseError => self.facts.set(Fact::ResponseError, filled),
            Key::ChoiceError => self.choice.set(Choice::FAILED, filled),
            Key::Type => {
                self.facts.kind = Kind::of(text);
                if self.collected.is_none() && error_object::looks_like_an_error(text) {
                    self.collect_short("type");
                }
            }
            Key::Object => {
                self.facts.object = match text {
                    b"error" => Object::Error,
                    b"chat.completion.chunk" | b"text_completion" => Object::Chunk,
                    _ => Object::Other,
                };
            }
            Key::AwsType => {
                let collected = self.collected.as_deref();
                self.facts.set(
                    Fact::Exception,
                    collected.is_some_and(Collected::ends_like_an_exception),
                );
            }
            Key::FinishReason => {
                self.choice.set(Choice::FINISHED, filled);
                self.choice.set(Choice::STOPPED_BY_ERROR, text == b"error");
            }
            Key::CandidateFinish => {
                let finished = filled && text != b"FINISH_REASON_UNSPECIFIED";
                // Of several candidates one that has finished is enough.
                let before = self.facts.has(Fact::CandidatesFinished);
                self.facts.set(Fact::CandidatesFinished, before || finished);
            }
            Key::BlockReason => self.facts.set(Fact::Blocked, filled),
            _ => {}
        }
    }

    // ===== numbers and literals =====

    /// More of a number or a literal. Answers with where it has read to.
    #[inline]
    fn scalar(&mut self, data: &[u8], at: usize) -> usize {
        let mut end = at;
        while data
            .get(end)
            .is_some_and(|byte| IN_SCALAR[usize::from(*byte)])
        {
            end += 1;
        }
        let number = !self
            .short
            .get()
            .first()
            .is_some_and(u8::is_ascii_alphabetic);
        let counts = self.key != Key::Other;
        if counts || !number {
            self.short.push(&data[at..end]);
        }
        if end == data.len() {
            return end;
        }
        if (number && !counts) || is_scalar(self.short.get()) {
            if counts {
                self.learn_scalar();
            }
            self.value_ends();
        } else {
            self.break_off();
        }
        self.next_key(data, end)
    }

    /// The value of the key is a number or a literal.
    fn learn_scalar(&mut self) {
        let text = self.short.get();
        let filled = !matches!(text, b"null" | b"false");
        match self.key {
            Key::Error => self.facts.set(Fact::Error, filled),
            Key::ResponseError => self.facts.set(Fact::ResponseError, filled),
            Key::ChoiceError => self.choice.set(Choice::FAILED, filled),
            Key::Code => {}
            Key::Done => {
                let (done, not_done) = (text == b"true", text == b"false");
                self.facts.set(Fact::Done, done);
                self.facts.set(Fact::NotDone, not_done);
                return;
            }
            Key::IsError => {
                self.facts.set(Fact::ToolError, text == b"true");
                return;
            }
            Key::Index => {
                let digits = text.iter().filter(|byte| byte.is_ascii_digit());
                self.choice.index = digits.fold(0, |index: u8, digit| {
                    index.wrapping_mul(10).wrapping_add(digit - b'0')
                });
                return;
            }
            _ => return,
        }
        let Some(name) = self.key.collected() else {
            return;
        };
        // A number that is too long to be kept says nothing.
        if self.collected.is_some() || filled {
            self.collect_short(name);
        }
    }

    #[inline]
    fn value_ends(&mut self) {
        self.key = Key::Other;
        self.state = match self.place {
            Place::Outside => State::Whole,
            _ => State::Next,
        };
    }

    // ===== what is skipped =====

    /// More of a container that is skipped. Answers with where it has read to.
    #[inline]
    fn skip(&mut self, data: &[u8], mut at: usize) -> usize {
        while let Some(&byte) = data.get(at) {
            if self.collecting {
                self.collect_structure(byte);
            }
            at += 1;
            match byte {
                b'"' => {
                    // A string that is all here is passed at once.
                    let rest = &data[at..];
                    match end_of_plain(rest) {
                        Some(end) if rest[end] == b'"' && !self.collecting => at += end + 1,
                        _ => {
                            self.state = State::SkipText;
                            return at;
                        }
                    }
                }
                b'{' | b'[' => self.skipped = self.skipped.saturating_add(1),
                b'}' | b']' => {
                    self.skipped -= 1;
                    if self.skipped == 0 {
                        self.end_of_skipped();
                        return self.next_key(data, at);
                    }
                }
                _ => {}
            }
        }
        at
    }

    fn end_of_skipped(&mut self) {
        if self.collecting {
            self.collecting = false;
            match self.key {
                Key::Error => self.facts.set(Fact::Error, self.holds_something),
                Key::ResponseError => self.facts.set(Fact::ResponseError, self.holds_something),
                Key::ChoiceError => self.choice.set(Choice::FAILED, self.holds_something),
                _ => {}
            }
        }
        self.value_ends();
    }

    // ===== what is collected =====

    /// Begins a member of what is collected.
    #[cold]
    fn collect_member(&mut self) {
        if let Some(name) = self.key.collected() {
            self.collected.get_or_insert_default().member(name);
        }
    }

    #[cold]
    fn collect_short(&mut self, name: &str) {
        let collected = self.collected.get_or_insert_default();
        collected.member(name);
        collected.value(self.short.get());
    }

    #[cold]
    fn collect(&mut self, bytes: &[u8]) {
        if let Some(collected) = &mut self.collected {
            collected.push(bytes);
        }
    }

    #[cold]
    fn collect_text(&mut self, piece: &[u8]) {
        if let Some(collected) = &mut self.collected {
            collected.text(piece);
        }
    }

    #[cold]
    fn collect_structure(&mut self, byte: u8) {
        if is_space(byte) {
            return;
        }
        if self.skipped > 1 || !matches!(byte, b'}' | b']') {
            self.holds_something = true;
        }
        self.collect(&[byte]);
    }
}

/// Where a string has its next quote, backslash or line feed. Most strings are short, and for them
/// `memchr` would have to set out too often.
#[inline]
fn end_of_plain(text: &[u8]) -> Option<usize> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = EACH << 7;
    // The lowest high bit that is set is that of the first byte that is `wanted`.
    let marks = |word: u64, wanted: u8| {
        let zero_where_equal = word ^ (EACH * u64::from(wanted));
        zero_where_equal.wrapping_sub(EACH) & !zero_where_equal
    };
    let mut from = 0;
    while let (Some(word), true) = (text[from..].first_chunk(), from < 16) {
        let word = u64::from_le_bytes(*word);
        let found = (marks(word, b'"') | marks(word, b'\\') | marks(word, b'\n')) & HIGH;
        if found != 0 {
            return Some(from + found.trailing_zeros() as usize / 8);
        }
        from += 8;
    }
    let end = memchr3(b'"', b'\\', b'\n', &text[from..])?;
    Some(from + end)
}

/// The bytes of numbers and literals.
static IN_SCALAR: [bool; 256] = {
    let bytes = b"0123456789+-.eEnultrfas";
    let mut table = [false; 256];
    let mut n = 0;
    while n < bytes.len() {
        table[bytes[n] as usize] = true;
        n += 1;
    }
    table
};

/// Whether this is a number or a literal. Of a long number only the beginning is known.
fn is_scalar(text: &[u8]) -> bool {
    match text {
        b"null" | b"true" | b"false" | b"?" => true,
        _ => text
            .iter()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')),
    }
}

/// White space of JSON. A record separator begins each text of a JSON text sequence.
pub(super) fn is_space(byte: u8) -> bool {
    byte <= b' ' && matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x1e)
}
