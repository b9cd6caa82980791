//! Rows P25 to P30 and P45: where an error can stand, and what only speaks of one.

use http::StatusCode;
use tower_breaker::http::Inspect;

use crate::support::{
    FATAL, JSON, LIMITED, LINES, NEUTRAL, SSE, SUCCESS, TRANSIENT, headers, judged, judged_in,
    models, says, with_type,
};

#[test]
fn p25_a_key_error_at_the_top_in_any_position_and_with_any_white_space() {
    for error in [
        r#"{"error":{"message":"m"}}"#,
        r#"{ "error" : { "message" : "m" } }"#,
        "{\t\"id\"\t:\t1 ,\t\"error\"\t:\t\"m\"\t}",
        r#"{"id":1,"choices":[],"error":{"a":1}}"#,
        r#"{"a":{"b":[{}]},"error":1,"c":2}"#,
        r#"{"a":"}\"{","error":[0]}"#,
        r#"{"error":true}"#,
        r#"{"error":[[]]}"#,
        r#"{"error":{"":""}}"#,
        r#"{"error":[{}]}"#,
        r#"{"error":" "}"#,
        r#"{"error":0}"#,
    ] {
        says(&models(), error, TRANSIENT);
    }
    for none in ["null", "false", "\"\"", "{}", "[]", "{ \t}", "[ ]"] {
        says(
            &models(),
            &format!(r#"{{"id":1,"error":{none},"text":"fine"}}"#),
            SUCCESS,
        );
        says(
            &models(),
            &format!(r#"{{"text":"fine", "error" : {none} }}"#),
            SUCCESS,
        );
    }
}

#[test]
fn p26_errors_inside_a_chunk() {
    for (error, outcome) in [
        (
            r#"{"id":"gen-1","choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":502,"message":"m"}}"#,
            TRANSIENT,
        ),
        (r#"{"id":"x","error":{"code":429},"choices":[]}"#, LIMITED),
        (
            r#"{"choices":[{"index":0,"delta":{}},{"index":1,"error":{"code":402,"message":"m"}}]}"#,
            FATAL,
        ),
        (r#"{"choices":[{"error":"x"}]}"#, TRANSIENT),
        (
            r#"{"choices":[{"delta":{},"finish_reason":"error","index":0}]}"#,
            TRANSIENT,
        ),
        (
            r#"{"choices":[{"finish_reason":"error","error":{"code":400}}]}"#,
            NEUTRAL,
        ),
    ] {
        says(&models(), error, outcome);
    }
    for fine in [
        r#"{"choices":[{"error":null,"finish_reason":null}]}"#,
        r#"{"choices":[{"error":{},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"delta":{"error":"x","finish_reason":"error"}}]}"#,
        r#"{"choices":[[{"error":"x"}]]}"#,
        r#"{"choices":{"error":"x"}}"#,
        r#"{"choices":[{"error":"x"}],"choices":[]}"#,
        r#"{"choices":[{"error":"x"}],"choices":7}"#,
        r#"{"choices":[{"error":"x","error":null}]}"#,
        r#"{"choices":[{"finish_reason":"error","finish_reason":"stop"}]}"#,
    ] {
        says(&models(), fine, SUCCESS);
    }
}

#[test]
fn p27_events_that_are_errors() {
    for (stream, outcome) in [
        ("event: error\ndata: anything\n\n", TRANSIENT),
        ("event: error\n\n", TRANSIENT),
        ("event:error\r\rdata: {}\r\r", TRANSIENT),
        ("event: error\ndata: null\n\n", TRANSIENT),
        ("event: error\ndata: {}\n\n", TRANSIENT),
        ("event: error\ndata: [{}]\n\n", TRANSIENT),
        (
            "event: error\ndata: {\"code\":\"insufficient_quota\",\"message\":\"m\"}\n\n",
            FATAL,
        ),
        (
            "data: {\"code\":\"rate_limit_exceeded\"}\nevent: error\n\n",
            LIMITED,
        ),
        (
            "event: error\ndata: {\"error\":{\"type\":\"rate_limit_error\"}}\n\n",
            LIMITED,
        ),
        ("event: error\ndata: {\"error\":{}}\n\n", TRANSIENT),
        ("event: error\ndata: [DONE]\n\n", TRANSIENT),
        (
            "data: {\"type\":\"error\",\"code\":\"rate_limit_exceeded\",\"message\":\"m\",\"param\":null,\"sequence_number\":1}\n\n",
            LIMITED,
        ),
        (
            "data: {\"code\":\"server_error\",\"message\":\"m\",\"type\":\"error\"}\n\n",
            TRANSIENT,
        ),
        (
            "data: {\"message\":\"m\",\"type\":\"error\",\"code\":\"insufficient_quota\"}\n\n",
            FATAL,
        ),
        ("data: {\"type\":\"error\"}\n\n", TRANSIENT),
        (
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"r\",\"status\":\"failed\",\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"m\"}}}\n\n",
            LIMITED,
        ),
        (
            "data: {\"response\":{\"error\":{\"code\":\"server_error\"}},\"type\":\"response.failed\"}\n\n",
            TRANSIENT,
        ),
        (
            "data: {\"response\":{\"error\":{\"code\":\"insufficient_quota\"}},\"type\":\"response.failed\"}\n\n",
            FATAL,
        ),
        (
            "event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"insufficient_quota\"}}}\n\n",
            FATAL,
        ),
        ("event: response.failed\ndata: {}\n\n", TRANSIENT),
        ("event: response.failed\n\n", TRANSIENT),
        (
            "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"error\":null}}\n\n",
            SUCCESS,
        ),
        ("data: {\"type\":\"response.incomplete\"}\n\n", SUCCESS),
        (
            "data: {\"type\":\"x\",\"response\":{\"error\":{\"code\":\"server_error\"}}}\n\n",
            SUCCESS,
        ),
        ("event: errors\ndata: {}\n\n", SUCCESS),
        ("event: ERROR\ndata: {}\n\n", SUCCESS),
    ] {
        for content_type in [None, Some(SSE)] {
            let events = with_type(models(), content_type);
            assert_eq!(judged(&events, stream), outcome, "{stream}");
        }
    }
    // The name is that of one event.
    assert_eq!(
        judged(&models(), "event: ping\ndata: {}\n\ndata: {\"code\":1}\n\n"),
        SUCCESS
    );
}

#[test]
fn p28_what_only_speaks_of_errors_is_an_answer() {
    for fine in [
        r#"{"choices":[{"message":{"content":"{\"error\": {\"code\": \"insufficient_quota\"}}"}}]}"#,
        r#"{"choices":[{"message":{"tool_calls":[{"function":{"arguments":"{\"error\":\"x\"}","error":"x"}}]}}]}"#,
        r#"{"result":{"error":"x"}}"#,
        r#"{"response":{"error":"x"}}"#,
        r#"{"data":{"error":{"code":429}}}"#,
        r#"{"errors":[{"error":"x"}]}"#,
        r#"{"error_count":3,"is_error":false,"error_":"x","errorr":"x","Error":"x"," error":"x"}"#,
        r#"{"a\"error":"x","\\\"error":"x"}"#,
        r#"{"text":"\"error\":\"x\""}"#,
        r#"{"type":"error_count"}"#,
        r#"{"type":{"type":"error"}}"#,
        r#"{"object":"errors"}"#,
        r#"{"content":[{"type":"error","error":"x"}]}"#,
        r#"{"type":"message","message":"error: x","code":"insufficient_quota"}"#,
        r#"["error","x",{"e":1}]"#,
    ] {
        says(&models(), fine, SUCCESS);
    }
}

#[test]
fn p29_comments_pings_and_marks_say_nothing() {
    for stream in [
        ": OPENROUTER PROCESSING\n\n",
        ": keep-alive\n\n: error\n\n:event: error\n\n",
        "\u{feff}: hello\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "retry: 3000\n\n",
        "id: error\n\n",
        "error\n\n",
        "error: x\n\n",
        "data\n\n",
        "data:\n\n",
        "\n\n\r\r\r\n\r\n",
        "event: error_recovered\n\n",
    ] {
        assert_eq!(
            judged(&with_type(models(), Some(SSE)), stream),
            SUCCESS,
            "{stream:?}"
        );
        let later = format!("{stream}data: {{\"error\":\"x\"}}\n\n");
        assert_eq!(
            judged(&with_type(models(), Some(SSE)), &later),
            TRANSIENT,
            "{later:?}"
        );
    }
    assert_eq!(
        judged(&models(), "\u{feff}data: {\"error\":\"x\"}\n\n"),
        TRANSIENT
    );
    assert_eq!(judged(&models(), "\u{feff}{\"error\":\"x\"}"), TRANSIENT);
}

#[test]
fn p30_escapes_and_equal_keys() {
    for error in [
        r#"{"\u0065rror":"x"}"#,
        r#"{"\u0065\u0072\u0072\u006F\u0072":{"\u0063ode":"\u0069nsufficient_quota"}}"#,
        r#"{"error":null,"error":"x"}"#,
        r#"{"error":{},"error":{"a":1}}"#,
        r#"{"typ\u0065":"\u0065rror"}"#,
        r#"{"type":"x","type":"error"}"#,
    ] {
        let outcome = if error.contains("nsufficient") {
            FATAL
        } else {
            TRANSIENT
        };
        says(&models(), error, outcome);
    }
    says(
        &models(),
        r#"{"error":"busy","error":{"code":"invalid_api_key"}}"#,
        FATAL,
    );
    says(
        &models(),
        r#"{"error":{"code":"invalid_api_key"},"error":"busy"}"#,
        TRANSIENT,
    );
    says(
        &models(),
        r#"{"error":{"code":"invalid_api_key","code":"server_error"}}"#,
        TRANSIENT,
    );
    for fine in [
        r#"{"error":"x","error":null}"#,
        r#"{"error":{"a":1},"error":{}}"#,
        r#"{"error":"x","\u0065rror":false}"#,
        r#"{"type":"error","type":"x"}"#,
        r#"{"err\u00f6r":"x"}"#,
        r#"{"\\u0065rror":"x"}"#,
        r#"{"erro\u0000r":"x"}"#,
    ] {
        says(&models(), fine, SUCCESS);
    }
}

#[test]
fn p30_frames_with_many_events_and_lines_without_empty_ones() {
    let many = "data: {\"a\":\"b\"}\n\n".repeat(1_000);
    assert_eq!(
        judged(
            &models(),
            format!("{many}data: {{\"error\":{{\"code\":429}}}}\n\n{many}")
        ),
        LIMITED
    );
    assert_eq!(judged(&models(), many), SUCCESS);
    let lines = "data: {\"a\":1}\ndata: {\"error\":{\"code\":429}}\ndata: {\"a\":1}\n";
    assert_eq!(judged(&models(), lines), LIMITED);
    assert_eq!(
        judged(&models(), "data: {\"a\":1}\ndata: [DONE]\n"),
        SUCCESS
    );
    // JSON on a line of its own, in the midst of events.
    let bare = "data: {\"a\":1}\n\n{\"error\":{\"code\":429}}\n\ndata: {}\n\n";
    assert_eq!(judged(&with_type(models(), Some(SSE)), bare), LIMITED);
    assert_eq!(
        judged(
            &with_type(models(), Some(SSE)),
            "{\n \"error\": {\"code\":429}\n}\n"
        ),
        LIMITED
    );
    // Whatever is declared, the first byte shows events.
    assert_eq!(
        judged(
            &with_type(models(), Some(JSON)),
            "data: {\"error\":{\"code\":429}}\n\n"
        ),
        LIMITED
    );
}

#[test]
fn p45_what_is_no_json_says_nothing_and_the_rest_decides() {
    for broken in [
        "<html>",
        "{\"error\":\"x\"",
        "{\"error\":\"x\"}}",
        "{\"error\":{\"a\":1},}",
        "{error:1}",
        "{\"error\" \"x\"}",
        "[{\"error\":\"x\"]",
        "{\"error\":\"x]\n",
        "\"",
        "{\"a\":\"\\q\",\"error\":1}",
    ] {
        let stream = format!("data: {{\"a\":1}}\n\ndata: {broken}\n\ndata: {{\"a\":1}}\n\n");
        assert_eq!(judged(&models(), &stream), SUCCESS, "{stream}");
        let stream = format!("{stream}data: {{\"error\":{{\"code\":429}}}}\n\n");
        assert_eq!(judged(&models(), &stream), LIMITED, "{stream}");
    }
    for broken in [
        "<html>",
        "{\"a\":",
        "{\"a\":\"b",
        "]",
        "nonsense {\"error\":1}",
    ] {
        let lines = format!("{{\"a\":1}}\n{broken}\n{{\"a\":1}}\n");
        assert_eq!(
            judged(&with_type(models(), Some(LINES)), &lines),
            SUCCESS,
            "{lines}"
        );
        let lines = format!("{lines}{{\"error\":{{\"code\":429}}}}\n");
        assert_eq!(
            judged(&with_type(models(), Some(LINES)), &lines),
            LIMITED,
            "{lines}"
        );
    }
}

#[test]
fn compressed_bodies_are_passed_over() {
    for (encoding, outcome) in [
        ("gzip", SUCCESS),
        ("br", SUCCESS),
        ("identity", TRANSIENT),
        ("", TRANSIENT),
    ] {
        let mut events = models();
        let headers = headers(&[("content-type", JSON), ("content-encoding", encoding)]);
        Inspect::<&[u8]>::head(&mut events, StatusCode::OK, &headers);
        assert_eq!(judged(&events, "{\"error\":\"x\"}"), outcome, "{encoding}");
        assert_eq!(
            judged(&events, "{\"error\":"),
            if encoding.is_empty() || encoding == "identity" {
                TRANSIENT
            } else {
                SUCCESS
            }
        );
    }
}

#[test]
fn other_kinds_of_bodies_are_passed_over() {
    for kind in [
        "text/html",
        "text/markdown",
        "text/csv",
        "image/png",
        "audio/mpeg",
        "video/mp4",
        "multipart/mixed",
        "application/vnd.amazon.eventstream",
    ] {
        let events = with_type(models(), Some(kind));
        for body in [
            "{\"error\":\"x\"}\n",
            "data: {\"error\":\"x\"}\n\n",
            "event: error\n\n",
        ] {
            assert_eq!(judged(&events, body), SUCCESS, "{kind}");
        }
    }
    // A text that is neither events nor JSON, though a line of it could be.
    for text in [
        "An answer may be:\n{\"error\":\"x\"}\n",
        "hello\n\ndata: {\"error\":\"x\"}\n\n",
        "description: x\nevent: error\n\n",
        "# Errors\nevent: error\n\n",
    ] {
        assert_eq!(judged(&models(), text), SUCCESS, "{text}");
        assert_eq!(
            judged(&with_type(models(), Some("text/plain")), text),
            SUCCESS,
            "{text}"
        );
    }
}

#[test]
fn an_error_is_a_verdict_before_the_body_ends() {
    for body in [
        "data: {\"error\":\"x\"}\n\n",
        "{\"error\":\"x\"}",
        "{\"error\":\"x\"}\n",
        "[{\"error\":\"x\"}",
        "event: error\n\n",
    ] {
        assert_eq!(
            judged_in(models(), [body.as_bytes()]),
            (TRANSIENT, true),
            "{body}"
        );
    }
}
