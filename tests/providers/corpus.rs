//! Row P28 at length: answers that only speak of errors. None of them is a failure.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tower_breaker::http::ErrorEvents;

use crate::support::{JSON, LINES, SSE, SUCCESS, framed, judged, models, with_type};

/// Texts about errors: documents, code, logs, JSON, events.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "error",
        "event: error",
        "data: {\"error\":\"x\"}",
        "data: [DONE]",
        "\nevent: error\ndata: {\"error\":{\"code\":429}}\n\n",
        "\r\revent: error\r\r",
        "{\"error\":{\"code\":\"insufficient_quota\"}}",
        "\n{\"error\":\"overloaded\"}\n",
        "\\\"error\\\":\\\"x\\\"",
        "\",\"error\":\"x",
        "\"}],\"error\":{\"a\":1},\"b\":[{\"c\":\"",
        "}}}]]],\"error\":1",
        "\\",
        "\\\\\"",
        "\u{0}\u{1}\u{1f}error",
        "\u{feff}event: error",
        "\u{2028}event: error\u{2029}",
        "Rate limit reached. Please try again in 20s.",
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 20\r\n\r\n",
        "Your credit balance is too low",
        "if err != nil { return fmt.Errorf(\"error: %w\", err) }",
        "match result { Err(error) => json!({\"error\": error}), Ok(_) => json!({}) }",
        "try { f() } catch (error) { console.log({error, \"type\": \"error\"}) }",
        "## Errors\n\n| key | value |\n| --- | --- |\n| `error` | `{\"type\":\"error\"}` |",
        "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32603}}",
        "finish_reason: \"error\"",
        "日本語のエラー: \"error\"",
        "🦀 \"error\": {\"a\": 1}",
    ]
    .map(str::to_owned)
    .into();
    // And as JSON in JSON in JSON.
    let mut nested = "{\"error\":\"x\"}".to_owned();
    for _ in 0..4 {
        nested = json!({"error": nested, "type": "error"}).to_string();
        texts.push(nested.clone());
    }
    texts
}

/// Values that hold errors deeper than where one counts.
fn values() -> Vec<Value> {
    let mut values: Vec<_> = texts().into_iter().map(Value::from).collect();
    values.extend([
        json!({"error": {"code": "insufficient_quota"}}),
        json!([{"error": "x"}, {"type": "error"}]),
        json!({"result": {"error": "x", "isError": true}}),
        json!({"a": {"b": {"c": {"error": [{"error": {}}]}}}}),
        json!({"type": "error", "code": "rate_limit_exceeded", "message": "m"}),
        json!({"choices": [{"error": "x", "finish_reason": "error"}]}),
    ]);
    values
}

/// Answers with such a value where an answer has a value of the user's or the model's.
fn answers(value: &Value) -> Vec<Value> {
    let text = match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    vec![
        json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}),
        json!({"choices": [{"index": 0, "delta": {"content": text, "x": value}, "finish_reason": "stop"}]}),
        json!({"choices": [{"message": {"tool_calls": [{"function": {"name": "error", "arguments": text}, "x": value}]}}]}),
        json!({"type": "message", "content": [{"type": "text", "text": text}, {"type": "tool_use", "input": value}]}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}),
        json!({"candidates": [{"content": {"parts": [{"text": text}, {"functionCall": {"args": value}}]}, "finishReason": "STOP"}]}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}], "structuredContent": value, "isError": false}}),
        json!({"data": value, "error": null, "errors": value, "error_count": 3, "is_error": false}),
        json!({"results": [value, value], "error": {}, "text": text}),
        json!({"message": text, "code": text, "x": value, "error": ""}),
        json!({"response": {"output": [value], "error": null}, "type": "x", "text": text, "error": false}),
        json!([value, [value], text]),
    ]
}

#[test]
fn p28_hundreds_of_answers_that_speak_of_errors_are_answers() {
    let mut count = 0;
    for value in values() {
        for answer in answers(&value) {
            // At the top of an array an object is a document of its own.
            if answer.is_array() && (value.is_object() || value.is_array()) {
                continue;
            }
            count += 1;
            for (content_type, body) in framed(&answer.to_string()) {
                for preset in [models(), ErrorEvents::new()] {
                    let events = with_type(preset, content_type);
                    assert_eq!(judged(&events, &body), SUCCESS, "{body}");
                }
            }
        }
    }
    assert!(count >= 200, "{count} answers");
}

#[test]
fn p28_streams_whose_tokens_spell_errors_are_answers() {
    for text in texts() {
        let mut chat = String::new();
        let mut ollama = String::new();
        let letters: Vec<_> = text.chars().collect();
        for piece in letters.chunks(2) {
            let piece: String = piece.iter().collect();
            let chunk = json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": null}]});
            write!(chat, "data: {chunk}\n\n").unwrap();
            writeln!(ollama, "{}", json!({"response": piece, "done": false})).unwrap();
        }
        chat.push_str("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
        ollama.push_str("{\"response\":\"\",\"done\":true}\n");
        assert_eq!(judged(&with_type(models(), Some(SSE)), chat), SUCCESS);
        for content_type in [None, Some(LINES), Some(JSON)] {
            assert_eq!(judged(&with_type(models(), content_type), &ollama), SUCCESS);
        }
    }
}

#[test]
fn p28_documents_that_are_no_answers_of_an_api_are_not_read() {
    for text in texts() {
        for document in [
            format!("# A document\n\n{text}\n"),
            format!("fn main() {{\n{text}\n}}\n"),
            format!("<p>{text}</p>\n{text}\n"),
        ] {
            for content_type in [
                None,
                Some("text/plain"),
                Some("text/markdown"),
                Some("text/html"),
                Some("application/octet-stream"),
            ] {
                assert_eq!(
                    judged(&with_type(models(), content_type), &document),
                    SUCCESS,
                    "{document}"
                );
            }
        }
    }
}
