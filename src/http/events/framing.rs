//! Finds the documents of a body: events, lines, elements of an array, or the whole of it.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use memchr::memchr2;

use super::due_end::Came;
use super::scan::{Kind, Scan, Stop, is_space};
use crate::vocabulary::Outcome;

/// What the framing has found. The name is that of the event, if the document is an event's.
pub(super) enum Found<'a> {
    /// A whole document.
    Document(&'a mut Scan, Kind, Came),
    /// An event without a document of its own.
    Bare(Kind),
    /// The name of an event, at the end of its line.
    Name(Kind),
    /// The end of an array of documents.
    ArrayEnd,
    /// `[DONE]`
    Done,
}

/// How the documents of a body are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// Its first byte decides.
    Unknown,
    /// Nothing is read.
    Ignored,
    /// Server-sent events. JSON on a line of its own counts, too.
    Events,
    /// JSON values, one after the other.
    Json,
    /// A JSON value in each line.
    Lines,
}

/// What `content-type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Declared {
    Nothing,
    Events,
    Json,
    Lines,
}

/// Where the reader stands in a line of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Start,
    /// In the name of a field.
    Field,
    Data,
    Event,
    /// JSON without a field.
    Json,
    /// The rest does not matter.
    Rest,
}

#[derive(Clone, Debug)]
pub(super) struct Framing {
    scan: Scan,
    body: Body,
    declared: Declared,
    line: Line,
    /// The name of the event.
    name: Kind,
    /// The last line ended with a carriage return, so a line feed belongs to it.
    after_return: bool,
    /// No line has shown yet that these are events.
    doubtful: bool,
}

impl Framing {
    pub(super) const fn new() -> Self {
        Self {
            scan: Scan::new(),
            body: Body::Unknown,
            declared: Declared::Nothing,
            line: Line::Start,
            name: Kind::Other,
            after_return: false,
            doubtful: true,
        }
    }

    /// Reads the head of the response.
    pub(super) fn head(&mut self, headers: &HeaderMap) {
        let encodings = headers.get_all(CONTENT_ENCODING).iter();
        let plain = |value: &[u8]| value.trim_ascii().eq_ignore_ascii_case(b"identity");
        if !encodings
            .map(http::HeaderValue::as_bytes)
            .all(|value| plain(value) || value.trim_ascii().is_empty())
        {
            self.body = Body::Ignored;
            return;
        }
        let Some(kind) = headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
        else {
            return;
        };
        let kind = kind.split(';').next().unwrap_or_default();
        let kind = kind.trim().to_ascii_lowercase();
        let (kind, subtype) = kind.split_once('/').unwrap_or((&kind, ""));
        match (kind, subtype) {
            ("text", "event-stream") => {
                self.declared = Declared::Events;
                self.doubtful = false;
            }
            // Its status decides.
            ("application", "problem+json" | "vnd.amazon.eventstream") => {
                self.body = Body::Ignored;
            }
            ("application", "json-seq") => {}
            (
                _,
                "x-ndjson" | "ndjson" | "jsonl" | "x-jsonl" | "jsonlines" | "x-jsonlines"
                | "json-lines" | "x-json-lines" | "stream+json" | "x-json-stream",
            ) => self.declared = Declared::Lines,
            (_, subtype) if subtype == "json" || subtype.ends_with("+json") => {
                self.declared = Declared::Json;
            }
            ("text", subtype) if subtype != "plain" => self.body = Body::Ignored,
            ("image" | "audio" | "video" | "font" | "multipart" | "model", _) => {
                self.body = Body::Ignored;
            }
            _ => {}
        }
    }

    /// Whether the body, which has ended, is torn: it is declared to be JSON, and a value has no
    /// end.
    pub(super) fn is_torn(&self) -> bool {
        self.body == Body::Json && self.declared == Declared::Json && self.scan.is_inside()
    }

    /// Whether `data` is whole events, or whole lines, and nothing has come of the first.
    #[inline]
    pub(super) fn are_whole(&self, data: &[u8]) -> bool {
        if self.body == Body::Lines {
            return self.scan.is_start() && data.ends_with(b"\n");
        }
        self.body == Body::Events
            && self.line == Line::Start
            && self.name == Kind::Other
            && !self.doubtful
            && !self.after_return
            && self.scan.is_start()
            && (data.ends_with(b"\n\n") || data.ends_with(b"\r\n\r\n"))
    }

    /// Reads on, and tells of what it finds until that gives a verdict.
    #[inline]
    pub(super) fn read(
        &mut self,
        data: &[u8],
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        match self.body {
            Body::Events => self.events(data, tell),
            Body::Json => self.json(data, tell),
            Body::Lines => self.lines(data, tell),
            Body::Ignored => None,
            Body::Unknown => {
                let data = self.begin(data)?;
                self.read(data, tell)
            }
        }
    }

    /// The body has ended: the last line and the last event may end with it.
    pub(super) fn end(
        &mut self,
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        if self.body != Body::Events {
            return None;
        }
        self.end_line(tell).or_else(|| self.dispatch(tell))
    }

    /// Looks for the first byte, which tells what the body is. `None` if it has not come.
    fn begin<'a>(&mut self, data: &'a [u8]) -> Option<&'a [u8]> {
        // A byte order mark may come first.
        let first = |byte: &u8| !is_space(*byte) && !matches!(byte, 0xef | 0xbb | 0xbf);
        let at = data.iter().position(first)?;
        let byte = data[at];
        super::ordinary::prepare();
        self.body = match (self.declared, byte) {
            (Declared::Lines, b'{' | b'[') => Body::Lines,
            (_, b'{' | b'[') => Body::Json,
            (Declared::Events, _) | (_, b'd' | b'e' | b'i' | b'r' | b':') => Body::Events,
            (Declared::Json, _) => Body::Json,
            (Declared::Lines, _) => Body::Lines,
            (Declared::Nothing, _) => Body::Ignored,
        };
        Some(&data[at..])
    }

    // ===== JSON =====

    fn json(
        &mut self,
        mut data: &[u8],
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        while !data.is_empty() {
            if self.scan.is_broken() {
                // Maybe the next line is JSON again.
                let end = memchr2(b'\n', b'\r', data)?;
                data = &data[end + 1..];
                self.scan.restart();
                continue;
            }
            let (read, stop) = self.scan.read(data);
            data = &data[read..];
            let found = stop.and_then(|stop| self.stopped(stop, tell));
            if found.is_some() {
                return found;
            }
            if self.scan.is_whole() {
                self.scan.restart();
            }
        }
        None
    }

    fn stopped(
        &mut self,
        stop: Stop,
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        match stop {
            Stop::Document => self.document(Kind::Other, tell),
            Stop::Array => tell(Found::ArrayEnd),
            Stop::Done => None,
        }
    }

    fn lines(
        &mut self,
        mut data: &[u8],
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        loop {
            let Some(end) = memchr2(b'\n', b'\r', data) else {
                return self.json(data, tell);
            };
            let found = self.json(&data[..end], tell);
            if found.is_some() {
                return found;
            }
            self.scan.restart();
            data = &data[end + 1..];
        }
    }

    // ===== events =====

    #[inline]
    fn events(
        &mut self,
        mut data: &[u8],
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        while let Some(&byte) = data.first() {
            let found = match self.line {
                Line::Start => {
                    let after_return = std::mem::take(&mut self.after_return);
                    if byte == b'\n' && after_return {
                        data = &data[1..];
                        None
                    } else if is_end(byte) {
                        data = &data[1..];
                        self.after_return = byte == b'\r';
                        self.dispatch(tell)
                    } else if let Some(value) = data.strip_prefix(b"data:") {
                        data = value;
                        self.doubtful = false;
                        self.begin_data(tell)
                    } else {
                        self.scan.short.clear();
                        self.line = Line::Field;
                        None
                    }
                }
                Line::Field => {
                    data = &data[1..];
                    self.field(byte, tell)
                }
                Line::Data | Line::Event | Line::Json | Line::Rest => {
                    let end = memchr2(b'\n', b'\r', data);
                    let (value, rest) = data.split_at(end.unwrap_or(data.len()));
                    let found = self.value(value, tell);
                    if found.is_some() {
                        return found;
                    }
                    data = rest;
                    if let Some((end, rest)) = rest.split_first() {
                        data = rest;
                        self.after_return = *end == b'\r';
                        self.end_line(tell)
                    } else {
                        None
                    }
                }
            };
            if found.is_some() {
                return found;
            }
            if self.body == Body::Ignored {
                return None;
            }
        }
        None
    }

    /// One more byte of the name of a field.
    fn field(
        &mut self,
        byte: u8,
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        let field = self.scan.short.get().trim_ascii_end();
        match byte {
            b'\n' | b'\r' => {
                self.after_return = byte == b'\r';
                self.line = Line::Start;
                self.doubt(!field.is_empty());
            }
            b':' => {
                let (line, known) = match field {
                    b"data" => (Line::Data, true),
                    b"event" => (Line::Event, true),
                    b"" | b"id" | b"retry" => (Line::Rest, true),
                    _ => (Line::Rest, false),
                };
                self.line = line;
                self.doubt(!known);
                self.doubtful &= !known;
                if line == Line::Data {
                    return self.begin_data(tell);
                }
                self.scan.short.clear();
            }
            b'{' | b'[' if field.is_empty() => {
                let found = self.whole(tell);
                self.scan.restart();
                self.line = Line::Json;
                return found.or_else(|| self.value(&[byte], tell));
            }
            // The bytes of a byte order mark are left aside, too.
            b' ' | b'\t' | 0xef | 0xbb | 0xbf if field.is_empty() => {}
            _ => {
                self.scan.short.push(&[byte]);
                if self.scan.short.is_too_long() {
                    self.line = Line::Rest;
                    self.doubt(true);
                }
            }
        }
        None
    }

    /// The first line is no field: these are no events.
    fn doubt(&mut self, unknown: bool) {
        if unknown && self.doubtful {
            self.body = Body::Ignored;
        }
    }

    /// Another line of data begins. If the data so far are a whole document, they are an event of
    /// their own: some servers send no empty lines.
    #[inline]
    fn begin_data(
        &mut self,
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        self.line = Line::Data;
        if self.scan.is_start() {
            return None;
        }
        let found = self.whole(tell);
        if self.scan.is_whole() {
            self.scan.restart();
        }
        found
    }

    #[inline]
    fn document(
        &mut self,
        name: Kind,
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        let came = Came {
            as_event: self.body == Body::Events,
            in_array: self.scan.is_in_array(),
            as_declared_json: self.declared == Declared::Json,
        };
        tell(Found::Document(&mut self.scan, name, came))
    }

    /// Tells of the document, if it is whole and was not told of.
    fn whole(&mut self, tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>) -> Option<Outcome> {
        if self.scan.is_whole() && !self.scan.is_in_array() {
            return self.document(self.name, tell);
        }
        None
    }

    /// More of the value of a line.
    #[inline]
    fn value(
        &mut self,
        mut value: &[u8],
        tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        match self.line {
            Line::Data | Line::Json => {
                while !value.is_empty() && !self.scan.is_broken() {
                    let (read, stop) = self.scan.read(value);
                    value = &value[read..];
                    let found = match stop {
                        // In an array each document counts at once. Another waits for the event's
                        // end.
                        Some(Stop::Document) if !self.scan.is_in_array() => None,
                        Some(Stop::Document) => self.document(Kind::Other, tell),
                        Some(Stop::Array) => tell(Found::ArrayEnd),
                        Some(Stop::Done) if self.line == Line::Data => match self.name {
                            Kind::Error | Kind::ResponseFailed => None,
                            _ => tell(Found::Done),
                        },
                        Some(Stop::Done) | None => None,
                    };
                    if found.is_some() {
                        return found;
                    }
                }
            }
            Line::Event => {
                let name = match self.scan.short.get() {
                    [] => value.trim_ascii_start(),
                    _ => value,
                };
                self.scan.short.push(name);
            }
            Line::Start | Line::Field | Line::Rest => {}
        }
        None
    }

    #[inline]
    fn end_line(&mut self, tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>) -> Option<Outcome> {
        match std::mem::replace(&mut self.line, Line::Start) {
            Line::Data if !self.scan.is_whole() && !self.scan.is_start() => {
                // The line feed ends a number, and tears a string.
                self.scan.read(b"\n");
                None
            }
            Line::Event => {
                self.name = Kind::of(self.scan.short.get().trim_ascii_end());
                tell(Found::Name(self.name))
            }
            Line::Json => {
                let found = self.whole(tell);
                self.scan.restart();
                found
            }
            _ => None,
        }
    }

    /// An empty line ends an event.
    #[inline]
    fn dispatch(&mut self, tell: &mut impl FnMut(Found<'_>) -> Option<Outcome>) -> Option<Outcome> {
        let found = if self.scan.is_whole() && !self.scan.is_in_array() {
            self.whole(tell)
        } else if self.name == Kind::Other {
            None
        } else {
            tell(Found::Bare(self.name))
        };
        self.name = Kind::Other;
        if !self.scan.is_start() {
            self.scan.restart();
        }
        found
    }
}

fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}
