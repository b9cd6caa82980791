//! What holds for every body.

use std::fmt::Write as _;

use std::collections::BTreeMap;
use std::fmt;

use http_body::Frame;
use proptest::prelude::*;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};
use tower_breaker::Outcome;
use tower_breaker::http::{ErrorEvents, Inspect};

use crate::support::{
    JSON, LINES, NEUTRAL, SSE, SUCCESS, TRANSIENT, framed, judged_in, models, with_type,
};

/// Strings that matter, and others.
fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "error", "type", "choices", "index", "finish_reason", "result", "isError", "jsonrpc",
            "response", "code", "message", "object", "__type", "done", "response.failed", "stop",
            "chat.completion.chunk", "insufficient_quota", "ThrottlingException", "candidates",
            "content", "message_stop", "response.completed", "", "\"", "\\", "\n", "a", "[DONE]",
        ])
        .prop_map(str::to_owned),
        1 => ".{0,12}",
    ]
}

/// Random JSON, with keys and values that matter.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-33_000_i64..1_000).prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        string().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((string(), inner), 0..6).prop_map(Value::from_iter),
        ]
    })
}

/// A JSON text with escapes and white space chosen by `seed`, and perhaps with equal keys.
fn spelled(value: &Value, seed: &mut u64, text: &mut String) {
    fn next(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *seed >> 33
    }
    fn string(string: &str, seed: &mut u64, text: &mut String) {
        text.push('"');
        for unit in string.encode_utf16() {
            let plain =
                char::from_u32(unit.into()).filter(|c| !c.is_control() && !"\"\\".contains(*c));
            match plain {
                Some(c) if next(seed) % 8 != 0 => text.push(c),
                _ => write!(text, "\\u{unit:04x}").unwrap(),
            }
        }
        text.push('"');
    }
    let space = |seed: &mut u64| [" ", "", "", "\t", "", " \n "][(next(seed) % 6) as usize];
    text.push_str(space(seed));
    match value {
        Value::Object(object) => {
            text.push('{');
            let mut first = true;
            for (key, value) in object {
                if next(seed) % 6 == 0 {
                    // It does not count, since the key comes again.
                    text.push_str(if first { "" } else { "," });
                    string(key, seed, text);
                    text.push_str(":{\"error\":[\"x\"]}");
                    first = false;
                }
                text.push_str(if first { "" } else { "," });
                first = false;
                text.push_str(space(seed));
                string(key, seed, text);
                text.push_str(space(seed));
                text.push(':');
                spelled(value, seed, text);
            }
            text.push_str(space(seed));
            text.push('}');
        }
        Value::Array(array) => {
            text.push('[');
            for (n, value) in array.iter().enumerate() {
                text.push_str(if n == 0 { "" } else { "," });
                spelled(value, seed, text);
            }
            text.push(']');
        }
        Value::String(value) => string(value, seed, text),
        value => text.push_str(&value.to_string()),
    }
    text.push_str(space(seed));
}

/// JSON whose objects keep the last of equal keys, as `serde_json` reads it.
#[derive(Clone, Debug)]
struct Read(Value);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Reads;
        impl<'de> Visitor<'de> for Reads {
            type Value = Read;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<Read, E> {
                Ok(Read(Value::Null))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Read, E> {
                Ok(Read(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Read, E> {
                Ok(Read(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Read, E> {
                Ok(Read(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Read, E> {
                Ok(Read(json!(value)))
            }
            fn visit_str<E>(self, value: &str) -> Result<Read, E> {
                Ok(Read(value.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Read, A::Error> {
                let mut all = Vec::new();
                while let Some(Read(value)) = seq.next_element()? {
                    all.push(value);
                }
                Ok(Read(all.into()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((key, Read(value))) = map.next_entry::<String, Read>()? {
                    all.insert(key, value);
                }
                Ok(Read(Value::from_iter(all)))
            }
        }
        json.deserialize_any(Reads)
    }
}

fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(array) => !array.is_empty(),
        Value::Object(object) => !object.is_empty(),
        _ => true,
    }
}

/// Whether a document is an error, by the table, from the whole of it.
fn is_error(document: &Value) -> bool {
    let Value::Object(document) = document else {
        return false;
    };
    let get = |key: &str| document.get(key).unwrap_or(&Value::Null);
    let exception = get("__type").as_str().unwrap_or_default();
    let exception = exception.rsplit('#').next().unwrap_or_default();
    let exception = exception.split(':').next().unwrap_or_default();
    let choice = get("choices").as_array().is_some_and(|choices| {
        choices.iter().any(|choice| {
            choice.is_object()
                && (is_filled(&choice["error"]) || choice["finish_reason"] == "error")
        })
    });
    is_filled(get("error"))
        || get("type") == "error"
        || get("object") == "error"
        || get("type") == "response.failed"
        || exception.ends_with("Exception")
        || choice
        || (document.contains_key("jsonrpc") && get("result")["isError"] == true)
}

fn failed(outcome: Outcome) -> bool {
    outcome != SUCCESS
}

fn cut_at(body: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (body.len() + 1)).collect();
    cuts.extend([0, body.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|cut| body[cut[0]..cut[1]].to_vec())
        .collect()
}

/// What is asked of each body here: nothing is due, so that only errors count.
fn lenient() -> ErrorEvents {
    models().due_ends(false)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_scan_agrees_with_serde_json_on_the_whole_event(value in value(), seed in any::<u64>()) {
        let mut text = String::new();
        spelled(&value, &mut seed.clone(), &mut text);
        let Read(read) = serde_json::from_str(&text).unwrap();
        let error = is_error(&read);
        for (content_type, body) in [
            (Some(SSE), format!("data: {}\n\n", text.replace('\n', "\ndata: "))),
            (Some(JSON), text.clone()),
            (None, text.clone()),
        ] {
            // Elements of an array, or events, are documents of their own.
            let error = match &read {
                Value::Array(all) => all.iter().any(is_error),
                Value::Object(_) => error,
                _ => false,
            };
            for size in [1, 3, 1_000_000] {
                let events = with_type(lenient(), content_type);
                let (outcome, _) = judged_in(events, body.as_bytes().chunks(size));
                prop_assert_eq!(failed(outcome), error, "{:?} {}", content_type, body);
            }
        }
    }

    #[test]
    fn a_document_that_serde_json_rejects_says_nothing_of_errors(value in value(), at in any::<usize>(), byte in any::<u8>()) {
        let mut text = json!({"a": value, "error": "x"}).to_string().into_bytes();
        let at = at % text.len();
        text[at] = byte;
        let rejected = serde_json::from_slice::<Value>(&text).is_err();
        if !rejected || text.contains(&b'\n') || text.contains(&b'\r') {
            return Ok(());
        }
        // It may say one thing or the other, but the same in every framing, and the next event
        // counts.
        let mut stream = b"data: ".to_vec();
        stream.extend_from_slice(&text);
        stream.extend_from_slice(b"\n\ndata: {\"error\":\"x\"}\n\n");
        prop_assert_eq!(judged_in(lenient(), [&stream[..]]).0, TRANSIENT);
        prop_assert_eq!(judged_in(lenient(), stream.chunks(1)).0, TRANSIENT);
    }

    #[test]
    fn p28_a_value_inside_an_answer_never_changes_the_verdict(value in value()) {
        let text = value.to_string();
        for (answer, outcome) in [
            (json!({"choices": [{"message": {"content": text, "x": value}}]}), SUCCESS),
            (json!({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": text}, "y": value}]}}]}), SUCCESS),
            (json!({"type": "tool_result", "content": [value], "input": value}), SUCCESS),
            (json!({"jsonrpc": "2.0", "result": {"structuredContent": value}}), SUCCESS),
            (json!({"result": value, "output": text}), SUCCESS),
            (json!({"error": {"code": "invalid_request_error"}, "x": value, "y": text}), NEUTRAL),
        ] {
            for (content_type, body) in framed(&answer.to_string()) {
                let events = with_type(models(), content_type);
                let (found, _) = judged_in(events, [body.as_bytes()]);
                prop_assert_eq!(found, outcome, "{}", body);
            }
        }
    }

    #[test]
    fn p30_it_does_not_matter_where_a_body_is_cut(
        lines in prop::collection::vec(
            prop::sample::select(vec![
                "event: error", "event: errors", "data: {\"error\":", "null", "{", "1}", " ", "data: ",
                "{\"type\": \"error\"", "data: [DONE]", "event: message_stop", "\n", "\n\n", "\r\n", "\r", "x", "}",
                "\"", "\\", "\\u0065", "{\"done\":false}", "{\"done\":true}", "[", "]", ",", ":", "data:",
                "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"finish_reason\":null}]}\n\n",
                "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n",
                "data: {\"type\":\"message_start\"}\n\n", "{\"error\":{\"code\":429}}", "\u{feff}", "data: {\"a\":\"é\"}\n\n",
            ]),
            0..16,
        ),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        kind in prop::sample::select(vec![None, Some(SSE), Some(JSON), Some(LINES)]),
    ) {
        let body = lines.concat().into_bytes();
        let events = || with_type(models(), kind);
        let (whole, _) = judged_in(events(), [&body[..]]);
        let pieces = cut_at(&body, &cuts);
        prop_assert_eq!(judged_in(events(), pieces.iter().map(Vec::as_slice)).0, whole);
        prop_assert_eq!(judged_in(events(), body.chunks(1)).0, whole);
    }

    #[test]
    fn a_glance_agrees_with_the_scan(
        pieces in prop::collection::vec(
            prop_oneof![
                6 => prop::sample::select(vec![
                    "{\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}",
                    "{\"object\": \"chat.completion.chunk\", \"choices\": [{\"index\": 1, \"delta\": {}, \"finish_reason\": null}]}",
                    "{\"object\":\"text_completion\",\"choices\":[{\"finish_reason\":\"stop\",\"index\":0}]}",
                    "{\"choices\":[{\"index\":1,\"finish_reason\" :\"stop\"}]}",
                    "{\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}",
                    "{\"choices\":[{\"index\":12,\"finish_reason\":null}]}",
                    "{\"choices\":[{\"index\":0,\"error\":{\"code\":429}}]}",
                    "{\"candidates\":[{\"content\":{\"parts\":[]}}]}",
                    "{\"candidates\":[{\"content\":{},\"finishReason\":\"STOP\"}]}",
                    "{\"promptFeedback\":{\"blockReason\":\"SAFETY\"}}",
                    "{\"type\":\"response.created\",\"response\":{\"error\":null}}",
                    "{\"type\":\"response.output_text.delta\",\"delta\":\"error\"}",
                    "{\"type\":\"response.completed\"}",
                    "{\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}",
                    "{\"type\":\"message_start\"}",
                    "{\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"text\":\"the index of errors, done\"}}",
                    "{\"type\":\"message_stop\"}",
                    "{\"type\":\"error\"}",
                    "{\"typ\\u0065\":\"error\"}",
                    "{\"\\u0065rror\":1}",
                    "{\"err\\u006fr\":1}",
                    "{\"result\":{\"isError\":true},\"jsonrpc\":\"2.0\"}",
                    "{\"__type\":\"ThrottlingException\"}",
                    "{\"model\":\"m\",\"response\":\"a\",\"done\":false}",
                    "{\"done\":true}",
                    "{\"done\" : true}",
                    "{\"text\":\"an error: \\\"error\\\":1, for a reason\"}",
                    "[DONE]", "{\"error\":\"x\"", "{\"error\":1}", "{}", "",
                ]).prop_map(str::to_owned),
                1 => value().prop_map(|value| value.to_string()),
            ],
            0..8,
        ),
        names in prop::collection::vec(prop::sample::select(vec![
            "", "", "", "event: x\n", "event: error\n", "event: er ror\n", "event: error \n", "event:\tmessage_stop\n",
            "event: response.created\n", ": error\n", "event: message_start\n", "id: 1\n", "{\"error\":1}\n",
        ]), 8),
        end in prop::sample::select(vec!["\n", "\r\n"]),
    ) {
        let events: Vec<_> = pieces.iter().zip(&names)
            .map(|(piece, name)| format!("{name}data: {piece}\n\n").replace('\n', end)).collect();
        let lines: Vec<_> = pieces.iter().map(|piece| format!("{piece}{end}")).collect();
        for (kind, frames) in [(SSE, events), (LINES, lines)] {
            let all = frames.concat();
            let mut glance = with_type(models(), Some(kind));
            let mut scan = with_type(models(), Some(kind));
            let glanced = judged_in(glance.clone(), frames.iter().map(String::as_bytes));
            prop_assert_eq!(judged_in(scan.clone(), all.as_bytes().chunks(1)), glanced, "{}", all);
            // And as to what is said of a reader who leaves.
            let found = frames.iter().find_map(|frame| glance.frame(&Frame::data(frame.as_bytes())));
            let mut bytes = all.as_bytes().chunks(1);
            let same = bytes.find_map(|byte| scan.frame(&Frame::data(byte)));
            prop_assert_eq!(found, same);
            if found.is_none() {
                let left = Inspect::<&[u8]>::dropped(&mut glance);
                prop_assert_eq!(left, Inspect::<&[u8]>::dropped(&mut scan));
            }
        }
    }

    #[test]
    fn random_bytes_do_no_harm_and_cuts_do_not_matter(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\":,\\\n\rdatevn0tfu ".to_vec())], 0..200),
        start in prop::sample::select(vec!["", "data: ", "{", "[{\"error\":", "event: error\ndata: {\"code\":"]),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
        kind in prop::sample::select(vec![None, Some(SSE), Some(JSON), Some(LINES)]),
    ) {
        let mut body = start.as_bytes().to_vec();
        body.extend(bytes);
        let events = || with_type(models(), kind);
        let (whole, _) = judged_in(events(), [&body[..]]);
        let pieces = cut_at(&body, &cuts);
        prop_assert_eq!(judged_in(events(), pieces.iter().map(Vec::as_slice)).0, whole);
        prop_assert_eq!(judged_in(events(), body.chunks(1)).0, whole);
    }
}
