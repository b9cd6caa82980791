use proptest::prelude::*;

use super::*;

const FAILED: Outcome = Outcome::Failure(Failure::transient());

/// The verdict on a stream that comes in `pieces` and then ends.
fn judged<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut events = ErrorEvents::new();
    for piece in pieces {
        if let Some(outcome) = events.frame(&Frame::data(piece)) {
            return outcome;
        }
    }
    Inspect::<&[u8]>::end(&mut events)
}

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
        "{\"token\":\"a\"}\n{\"error\":{}}\n",
        "{\"type\":\"error\"}",
        "event: response.failed\ndata: {}\n\n",
        "event: response.failed",
        "\u{feff}event: error\n",
    ] {
        assert_eq!(judged([stream.as_bytes()]), FAILED, "{stream:?}");
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
        assert_eq!(judged([stream.as_bytes()]), Outcome::Success, "{stream:?}");
    }
}

#[test]
fn the_line_that_ends_an_answer_is_a_success_at_once() {
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
        assert_eq!(verdict, Some(Outcome::Success), "{stream:?}");
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
    assert_eq!(judged(["event: error\ndata: [DONE]\n".as_bytes()]), FAILED);
}

#[test]
fn an_error_may_be_a_failure_of_another_kind() {
    let mut events = ErrorEvents::as_failure(Failure::rate_limited());
    let found = events.frame(&Frame::data("event: error\n"));
    assert_eq!(found, Some(Failure::rate_limited().into()));
}

proptest! {
    #[test]
    fn the_verdict_does_not_depend_on_where_a_stream_is_cut(
        lines in prop::collection::vec(
            prop::sample::select(vec![
                "event: error", "event: errors", "event: message_stop", "data: [DONE]",
                "data: {\"error\":", "{\"type\": \"error\"", "data: ", "null", "{", "1}",
                " ", "\n", "\r\n", "x",
            ]),
            0..12,
        ),
        cuts in prop::collection::vec(0..200_usize, 0..12),
    ) {
        let stream = lines.concat().into_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]);
        let bytes = stream.chunks(1);
        let whole = judged([&stream[..]]);
        prop_assert_eq!(judged(pieces), whole);
        prop_assert_eq!(judged(bytes), whole);
    }
}
