//! Rows P31 to P37, P46 and P47: ends that are due.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_breaker::http::{EndOfBody, ErrorEvents, Inspect};
use tower_breaker::{Cancelled, CircuitBreakerLayer, Outcome, State};

use crate::support::{JSON, LINES, SSE, SUCCESS, TRANSIENT, judged, judged_in, models, with_type};

/// An event of a chat.
fn chunk(index: u32, content: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"{content}\"}},\"finish_reason\":{finish}}}]}}\n\n"
    )
}

/// What a body says with the rule and without it, and whether it is said before the end.
#[track_caller]
fn ends(content_type: Option<&str>, body: &str, outcome: Outcome, at_once: bool) {
    for preset in [models(), ErrorEvents::new()] {
        let events = with_type(preset, content_type);
        assert_eq!(judged(&events, body), outcome, "{content_type:?}: {body}");
        let whole = judged_in(events.clone(), [body.as_bytes()]);
        assert_eq!(whole, (outcome, at_once), "{content_type:?}: {body}");
        assert_eq!(judged(&events.due_ends(false), body), SUCCESS, "{body}");
    }
}

#[test]
fn p31_a_chat_ends_with_a_finish_reason_for_each_choice_or_done() {
    let (a, b) = (chunk(0, "a", "null"), chunk(0, "", "\"stop\""));
    for content_type in [None, Some(SSE)] {
        ends(content_type, &a, TRANSIENT, false);
        ends(
            content_type,
            &format!("{a}{a}data: {{\"object\":\"chat.comp"),
            TRANSIENT,
            false,
        );
        ends(
            content_type,
            &format!("{a}{a}data: [DONE]\n\n"),
            SUCCESS,
            true,
        );
        ends(content_type, &format!("{a}{b}"), SUCCESS, false);
        ends(
            content_type,
            &format!("{a}{b}data: [DONE]\n\n"),
            SUCCESS,
            true,
        );
    }
    let (c, d) = (chunk(1, "a", "null"), chunk(1, "", "\"length\""));
    ends(None, &format!("{a}{c}{b}"), TRANSIENT, false);
    ends(None, &format!("{a}{b}{c}"), TRANSIENT, false);
    ends(None, &format!("{a}{c}{b}{d}"), SUCCESS, false);
    ends(None, &format!("{a}{b}{c}{d}"), SUCCESS, false);
    // The last event may want its empty line.
    ends(None, format!("{a}{b}").trim_end(), SUCCESS, false);
    // Before the first choice, and after the last.
    let empty = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{}}\n\n";
    ends(None, empty, TRANSIENT, false);
    ends(None, &format!("{a}{b}{empty}"), SUCCESS, false);
    // The keys in another order.
    let other = "data: {\"choices\":[{\"finish_reason\":\"stop\",\"index\":1},{\"finish_reason\":null,\"index\":0}],\"object\":\"chat.completion.chunk\"}\n\n";
    ends(None, other, TRANSIENT, false);
    ends(None, &format!("{other}{b}"), SUCCESS, false);
    let text = "data: {\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n";
    ends(None, text, TRANSIENT, false);
    // One event that is no JSON learns nothing.
    let broken = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0}}\n\n";
    ends(None, broken, SUCCESS, false);
}

#[test]
fn p32_responses_end_with_their_last_event() {
    let begun = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"error\"}\n\n";
    ends(None, begun, TRANSIENT, false);
    ends(
        None,
        "data: {\"type\":\"response.created\"}\n\n",
        TRANSIENT,
        false,
    );
    for end in ["response.completed", "response.incomplete"] {
        ends(
            None,
            &format!("{begun}event: {end}\ndata: {{\"type\":\"{end}\"}}\n\n"),
            SUCCESS,
            true,
        );
        ends(
            None,
            &format!("{begun}data: {{\"type\":\"{end}\",\"response\":{{\"error\":null}}}}\n\n"),
            SUCCESS,
            true,
        );
    }
    for end in [
        "event: response.failed\ndata: {}\n\n",
        "data: {\"type\":\"error\"}\n\n",
    ] {
        assert_eq!(judged(&models(), format!("{begun}{end}")), TRANSIENT);
    }
}

#[test]
fn p33_anthropic_ends_with_message_stop() {
    let begun = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n";
    ends(None, begun, TRANSIENT, false);
    ends(
        None,
        &format!(
            "{begun}event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}}}}\n\n"
        ),
        TRANSIENT,
        false,
    );
    ends(
        None,
        &format!("{begun}event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"),
        SUCCESS,
        true,
    );
    ends(
        None,
        &format!("{begun}data: {{\"type\":\"message_stop\"}}\n\n"),
        SUCCESS,
        true,
    );
    ends(
        None,
        "data: {\"type\":\"message_start\"}\n\n",
        TRANSIENT,
        false,
    );
}

#[test]
fn p34_gemini_ends_with_a_reason() {
    let (a, end) = (
        r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"index":0}]}"#,
        r#"{"candidates":[{"content":{},"finishReason":"STOP"}],"usageMetadata":{}}"#,
    );
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY"}}"#;
    let usage = r#"{"usageMetadata":{}}"#;
    for (all, outcome) in [
        (vec![a], TRANSIENT),
        (vec![a, a, end], SUCCESS),
        (vec![end], SUCCESS),
        (vec![a, end, usage], SUCCESS),
        (vec![a, blocked], SUCCESS),
        (vec![blocked], SUCCESS),
    ] {
        let events: Vec<String> = all
            .iter()
            .map(|one| format!("data: {one}\r\n\r\n"))
            .collect();
        let stream = events.concat();
        ends(Some(SSE), &stream, outcome, false);
        let array = format!("[{}]", all.join("\n,\r\n"));
        ends(Some(JSON), &array, outcome, false);
        ends(None, &array, outcome, false);
        ends(Some(JSON), array.trim_end_matches(']'), TRANSIENT, false);
    }
    // Candidates of an election.
    for fine in [
        r#"{"candidates":["a","b"]}"#,
        r#"{"candidates":[{"name":"a"}]}"#,
        r#"{"candidates":{"content":1}}"#,
    ] {
        ends(Some(JSON), fine, SUCCESS, false);
        ends(Some(SSE), &format!("data: {fine}\n\n"), SUCCESS, false);
        ends(Some(JSON), &format!("[{fine}]"), SUCCESS, false);
    }
    ends(Some(JSON), a, SUCCESS, false);
}

#[test]
fn p35_ollama_ends_with_done() {
    let a = "{\"model\":\"llama3\",\"created_at\":\"2024\",\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"done\":false}\n";
    let end =
        "{\"model\":\"llama3\",\"done_reason\":\"stop\",\"done\":true,\"total_duration\":1}\n";
    for content_type in [None, Some(LINES), Some(JSON)] {
        ends(content_type, &format!("{a}{a}"), TRANSIENT, false);
        ends(content_type, &format!("{a}{a}{end}"), SUCCESS, true);
        ends(content_type, end, SUCCESS, true);
    }
    ends(None, a, TRANSIENT, false);
    // An element of an array is no line.
    assert_eq!(
        judged(&models(), "[{\"done\":true},{\"error\":true}]"),
        TRANSIENT
    );
    ends(Some(JSON), "[{\"a\":1},{\"done\":false}]", SUCCESS, false);
    // One page of several is no answer of Ollama's.
    ends(
        Some(JSON),
        "{\"totalSize\":9,\"done\":false,\"records\":[]}",
        SUCCESS,
        false,
    );
    ends(
        Some(LINES),
        "{\"status\":\"pulling\"}\n{\"done\":\"no\"}\n{\"a\":{\"done\":false}}\n",
        SUCCESS,
        false,
    );
}

#[test]
fn p36_nothing_is_due_of_other_events() {
    for stream in [
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n",
        "data: {\"kind\":\"status-update\",\"final\":false}\n\n",
        "event: update\ndata: hello\n\n",
        "data: {\"type\":\"response.chunk\"}\n\n",
        "data: {\"object\":\"list\",\"choices\":[{\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n",
        "data: {\"object\":{\"object\":\"chat.completion.chunk\"}}\n\n",
        ": ping\n\n",
        "",
    ] {
        ends(Some(SSE), stream, SUCCESS, false);
        ends(None, stream, SUCCESS, false);
    }
}

#[test]
fn p37_a_json_body_that_ends_inside_a_value_is_cut() {
    let body = "{\"a\":[1,{\"b\":\"c\\\"\\u00e9\"},null,true],\"d\":1.5}";
    for end in 0..body.len() {
        let cut = &body[..end];
        let outcome = if end == 0 { SUCCESS } else { TRANSIENT };
        ends(Some("application/json; charset=utf-8"), cut, outcome, false);
        ends(Some("application/vnd.api+json"), cut, outcome, false);
        ends(None, cut, SUCCESS, false);
        ends(Some("text/plain"), cut, SUCCESS, false);
    }
    for whole in [body, "  ", "7", "\"a\"", "null", "[]", "{} \n", "[1,[2]]"] {
        ends(Some(JSON), whole, SUCCESS, false);
    }
    ends(Some(JSON), "\"a", TRANSIENT, false);
    // What is no JSON at all is not cut.
    for other in ["hello", "<html>", "{\"a\":b", "{]"] {
        ends(Some(JSON), other, SUCCESS, false);
    }
}

#[test]
fn the_end_counts_once_and_what_follows_it_does_not() {
    for stream in [
        "data: [DONE]\n\nevent: error\n\n",
        "data: [DONE]",
        "data:[DONE]\r\n\r\n",
        "event: message_stop\ndata: {}\n\nevent: error\n\n",
        "{\"done\":true}\n{\"error\":\"x\"}\n",
    ] {
        ends(None, stream, SUCCESS, true);
    }
    for stream in [
        "data: [DONE",
        "data: [\"DONE\"]\n\n",
        "data: [DONE]]\n\n".trim_start_matches('d'),
        "event: [DONE]\n\n",
        "data: \"[DONE]\"\n\n",
        "data: {\"text\":\"data: [DONE]\"}\n\n",
        "event: message_stopped\n\n",
        "event: response.complete\n\n",
    ] {
        ends(None, stream, SUCCESS, false);
    }
    // An error in the event that ends an answer is an error.
    assert_eq!(
        judged(&models(), "{\"done\":true,\"error\":\"x\"}\n"),
        TRANSIENT
    );
    assert_eq!(
        judged(
            &models(),
            "data: {\"type\":\"message_stop\",\"error\":\"x\"}\n\n"
        ),
        TRANSIENT
    );
}

// ===== with a layer =====

type Frames = Vec<Result<Frame<Bytes>, BoxError>>;

/// Reads as many frames of a body and drops it. Answers with the circuit's state and streak.
async fn read(frames: Frames, reads: usize) -> (State, u32) {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(2)
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody.inspect(models()));
    let circuit = layer.handle();
    // So that a success shows.
    circuit.try_acquire().unwrap().failure();
    let frames = std::sync::Mutex::new(Some(frames));
    let stack = layer.layer(service_fn(|_: Request<()>| {
        let frames = frames.lock().unwrap().take().unwrap();
        let body = StreamBody::new(futures::stream::iter(frames));
        let response = Response::builder().header("content-type", SSE).body(body);
        std::future::ready(Ok::<_, BoxError>(response.unwrap()))
    }));
    let response = stack.oneshot(Request::new(())).await.unwrap();
    let mut body = response.into_body();
    for _ in 0..reads {
        let _ = body.frame().await;
    }
    drop(body);
    (circuit.state(), circuit.snapshot().streak)
}

fn frames(events: &[String]) -> Frames {
    events
        .iter()
        .map(|event| Ok(Frame::data(Bytes::from(event.clone()))))
        .collect()
}

#[tokio::test]
async fn p46_all_choices_finished_is_a_success_at_the_end_of_the_body() {
    let events = [chunk(0, "a", "null"), chunk(0, "", "\"stop\"")];
    assert_eq!(read(frames(&events), 3).await, (State::Closed, 0));
}

#[tokio::test]
async fn a_reader_who_leaves_after_the_end_has_not_dropped_a_call() {
    let events = [
        chunk(0, "a", "null"),
        chunk(0, "", "\"stop\""),
        "data: [DONE]\n\n".into(),
    ];
    assert_eq!(
        read(frames(&events), 3).await,
        (State::Closed, 0),
        "after [DONE]"
    );
    assert_eq!(
        read(frames(&events), 2).await,
        (State::Closed, 0),
        "after the last choice"
    );
    assert_eq!(read(frames(&events), 1).await.0, State::Open, "before");
    // Without the rule as well.
    let mut events = models().due_ends(false);
    events.frame(&Frame::data(chunk(0, "", "\"stop\"")));
    assert_eq!(Inspect::<String>::dropped(&mut events), Some(SUCCESS));
    assert_eq!(Inspect::<String>::dropped(&mut models()), None);
}

#[tokio::test]
async fn p47_a_cut_or_a_missing_end_is_a_transient_failure_though_tokens_came() {
    let mut cut = frames(&[chunk(0, "a", "null")]);
    cut.push(Err("reset".into()));
    assert_eq!(read(cut, 2).await.0, State::Open);
    assert_eq!(
        read(frames(&[chunk(0, "a", "null")]), 2).await.0,
        State::Open
    );
}

#[tokio::test]
async fn p45_every_byte_is_passed_on() {
    let mut bytes = chunk(0, "a", "null").into_bytes();
    bytes.extend_from_slice(b"data: {\"error\xff\":\n\n\0\xfe: [[[\n\n");
    bytes.extend_from_slice(b"data: {\"error\":\"x\"}\n\ndata: the rest\r");
    let layer = CircuitBreakerLayer::new().judge(EndOfBody.inspect(models()));
    let sent = bytes.clone();
    let stack = layer.layer(service_fn(move |_: Request<()>| {
        let frames: Vec<_> = sent
            .chunks(5)
            .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        std::future::ready(Ok::<_, BoxError>(Response::new(StreamBody::new(
            futures::stream::iter(frames),
        ))))
    }));
    let response = stack.oneshot(Request::new(())).await.unwrap();
    let read = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(read, bytes);
}
