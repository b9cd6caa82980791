//! What was found by the beginnings of lines is found all the same.

use http_body::Frame;
use tower_breaker::http::{ErrorEvents, Inspect};

use crate::support::{SUCCESS, TRANSIENT, judged};

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
        "{\"token\":\"a\"}\n{\"error\":{\"a\":1}}\n",
        "{\"type\":\"error\"}",
        "event: response.failed\ndata: {}\n\n",
        "event: response.failed",
        "\u{feff}event: error\n",
    ] {
        assert_eq!(judged(&ErrorEvents::new(), stream), TRANSIENT, "{stream:?}");
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
        assert_eq!(judged(&ErrorEvents::new(), stream), SUCCESS, "{stream:?}");
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
        assert_eq!(verdict, Some(SUCCESS), "{stream:?}");
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
    assert_eq!(
        judged(&ErrorEvents::new(), "event: error\ndata: [DONE]\n"),
        TRANSIENT
    );
}
