//! Passes ordinary events and lines at a glance, as nearly all of an answer are.
//!
//! Whatever an event can say, it says with one of a few words. An event without them, or with them
//! where they change nothing, need not be scanned. A word that leaves a doubt sends the event to
//! the scanner, so the glance never decides anything but that there is nothing to decide.
//!
//! | word | the event is ordinary all the same if |
//! | --- | --- |
//! | `rror`, of `error` and `isError` | it is no whole key, value or name of an event |
//! | `\u00`, an escape that may spell a key | never |
//! | `eason`, of `finish_reason`, `finishReason` and `blockReason` | it is no key, or `null` follows |
//! | `choices`, with `index` | each index was seen |
//! | `completion`, of the `object` of a chat's chunk | these are known to be chunks of a chat |
//! | `candidates` | these are known to be candidates of Gemini |
//! | `response.`, of the events of the Responses API | these are known to be such, and it is in the midst of them |
//! | `done` | it is no key, or `false` follows and these are known to be lines of Ollama |
//! | `message_st`, of `message_start` and `message_stop`; `DONE`; `__type` | never |

use std::sync::OnceLock;

use aho_corasick::packed::Searcher;

use super::due_end::{Dialect, DueEnd};

const WORDS: [&str; 12] = [
    "rror",
    "done",
    "\\u00",
    "eason",
    "choices",
    "index",
    "completion",
    "candidates",
    "response.",
    "message_st",
    "DONE",
    "__type",
];

/// `None` inside if this machine has no fast way to look for several words.
static SEARCHER: OnceLock<Option<Searcher>> = OnceLock::new();

/// Makes what [`is_ordinary`] needs, once in a process. Before that it finds nothing ordinary.
pub(super) fn prepare() {
    SEARCHER.get_or_init(|| Searcher::new(WORDS));
}

/// Whether whole events or lines, of which nothing has come before, change nothing.
#[inline]
pub(super) fn is_ordinary(events: &[u8], due: DueEnd) -> bool {
    let Some(Some(searcher)) = SEARCHER.get() else {
        return false;
    };
    let mut choices = false;
    let mut indexes = 1;
    for word in searcher.find_iter(events) {
        let rest = &events[word.end()..];
        let ends = rest.first() == Some(&b'"');
        let ordinary = match WORDS[word.pattern().as_usize()] {
            "rror" => !ends && !is_line_end(rest),
            "done" => {
                !ends || is_no_key(rest) || (due.dialect() == Dialect::Ollama && is_false(rest))
            }
            "eason" => !ends || is_no_key(rest) || is_null(rest),
            "choices" => {
                choices |= ends;
                true
            }
            "index" => {
                let index = index(rest);
                indexes |= index.unwrap_or_default();
                !ends || is_no_key(rest) || index.is_some()
            }
            "completion" => {
                due.dialect() == Dialect::Chat || !(ends || rest.starts_with(b".chunk"))
            }
            "candidates" => due.dialect() == Dialect::Gemini || !ends,
            "response." => match rest.first() {
                Some(b'o') => due.dialect() == Dialect::Responses,
                Some(b'c' | b'f' | b'i' | b'q') | None => false,
                Some(_) => true,
            },
            _ => false,
        };
        if !ordinary {
            return false;
        }
    }
    !choices || due.has_seen(indexes)
}

/// Whether the string that ends here is a value, as the byte behind its quote shows.
fn is_no_key(rest: &[u8]) -> bool {
    matches!(rest.get(1), Some(b',' | b'}' | b']'))
}

fn is_null(rest: &[u8]) -> bool {
    rest.starts_with(b"\":null") || rest.starts_with(b"\": null")
}

fn is_false(rest: &[u8]) -> bool {
    rest.starts_with(b"\":false") || rest.starts_with(b"\": false")
}

/// The bit of the index that follows.
fn index(rest: &[u8]) -> Option<u16> {
    let number = rest.strip_prefix(b"\":")?;
    let number = number.strip_prefix(b" ").unwrap_or(number);
    match number {
        [digit @ b'0'..=b'9', b',' | b'}', ..] => Some(1 << (digit - b'0')),
        _ => None,
    }
}

/// Whether nothing but white space follows in the line.
fn is_line_end(rest: &[u8]) -> bool {
    let mut rest = rest.iter().skip_while(|byte| matches!(byte, b' ' | b'\t'));
    matches!(rest.next(), Some(b'\n' | b'\r') | None)
}
