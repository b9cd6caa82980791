use std::borrow::Cow;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::vocabulary::Reason;

fn open(name: Option<&str>, left: Option<Duration>) -> Refusal {
    let name = name.map(|name| Cow::Owned::<str>(name.to_owned()).into());
    Refusal::breaker(Reason::CircuitOpen)
        .with_name(name)
        .with_retry_after(left)
}

fn parsed(response: &Response<String>) -> Value {
    serde_json::from_str(response.body()).unwrap()
}

fn header<'a>(response: &'a Response<String>, name: &str) -> Option<&'a str> {
    Some(response.headers().get(name)?.to_str().unwrap())
}

#[test]
fn a_text_response_has_the_refusals_text() {
    let refusal = open(Some("search"), Some(Duration::from_secs(20)));
    let response = SoftRefusal::text().response::<String>(&refusal);
    assert_eq!(response.status(), 503);
    assert_eq!(*response.body(), refusal.to_string());
    let kind = header(&response, "content-type");
    assert_eq!(kind, Some("text/plain; charset=utf-8"));
    assert_eq!(header(&response, "retry-after"), Some("20"));
    assert_eq!(response.headers().len(), 2);
}

#[test]
fn a_problem_has_the_members_of_the_standard_and_of_a_refusal() {
    let refusal = open(Some("search"), Some(Duration::from_secs(20)));
    let response = SoftRefusal::problem().response(&refusal);
    assert_eq!(response.status(), 503);
    let kind = header(&response, "content-type");
    assert_eq!(kind, Some("application/problem+json"));
    assert_eq!(header(&response, "retry-after"), Some("20"));
    assert_eq!(
        parsed(&response),
        json!({
            "type": "about:blank",
            "title": "Service Unavailable",
            "status": 503,
            "detail": "tool `search` temporarily unavailable: circuit breaker open",
            "reason": "circuit_open",
            "name": "search",
            "retry_after": 20,
        })
    );
}

#[test]
fn unknown_members_and_headers_are_left_out() {
    let refusal = Refusal::tripwire(Reason::MaxTurns, 1).with_count(Some(8));
    for policy in [SoftRefusal::text(), SoftRefusal::problem()] {
        let response = policy.response::<String>(&refusal);
        assert_eq!(header(&response, "retry-after"), None);
    }
    let odd = StatusCode::from_u16(599).unwrap();
    let response = SoftRefusal::problem().status(odd).response(&refusal);
    assert_eq!(response.status(), 599);
    assert_eq!(
        parsed(&response),
        json!({
            "type": "about:blank",
            "status": 599,
            "detail": refusal.to_string(),
            "reason": "max_turns",
        })
    );
}

#[test]
fn seconds_are_rounded_up() {
    let nano = Duration::from_nanos(1);
    let second = Duration::from_secs(1);
    for (wait, text) in [
        (Duration::ZERO, "0"),
        (nano, "1"),
        (Duration::from_nanos(999_999_999), "1"),
        (second, "1"),
        (second + nano, "2"),
        (20 * second, "20"),
        (Duration::from_nanos(u64::MAX - 1), "18446744074"),
    ] {
        let refusal = open(None, Some(wait));
        let response = SoftRefusal::problem().response(&refusal);
        assert_eq!(header(&response, "retry-after"), Some(text));
        assert_eq!(parsed(&response)["retry_after"].to_string(), text);
    }
}

#[test]
fn another_status_has_its_own_title() {
    let refusal = open(None, None);
    for (status, title) in [
        (StatusCode::CONFLICT, "Conflict"),
        (StatusCode::TOO_MANY_REQUESTS, "Too Many Requests"),
        (StatusCode::OK, "OK"),
    ] {
        let response = SoftRefusal::problem().status(status).response(&refusal);
        assert_eq!(response.status(), status);
        assert_eq!(parsed(&response)["title"], title);
        assert_eq!(parsed(&response)["status"], status.as_u16());
        let text = SoftRefusal::text().status(status);
        assert_eq!(text.response::<String>(&refusal).status(), status);
    }
}

#[test]
fn a_status_without_a_body_panics() {
    for code in [100, 101, 199, 204, 205, 304] {
        let status = StatusCode::from_u16(code).unwrap();
        let panic = std::panic::catch_unwind(|| SoftRefusal::text().status(status));
        let message = *panic.unwrap_err().downcast::<String>().unwrap();
        let expected = format!("`status` needs one whose response has a body, not {code}");
        assert_eq!(message, expected);
    }
}

#[test]
fn a_hostile_name_cannot_leave_its_string() {
    for name in [
        "a\"b",
        "\\",
        "\\\"",
        "\",\"status\":200,\"x\":\"",
        "line\nfeed\r\t\0\u{1f}\u{7f}",
        "\u{2028}é😀\u{202e}",
        "",
    ] {
        let response = SoftRefusal::problem().response(&open(Some(name), None));
        let problem = parsed(&response);
        assert_eq!(problem["name"], name);
        assert_eq!(problem["status"], 503);
        assert_eq!(problem.as_object().unwrap().len(), 6);
        assert!(!response.body().contains(|c| c < ' '), "{response:?}");
    }
}

proptest! {
    #[test]
    fn any_name_is_read_back_as_it_was_written(name in any::<String>()) {
        let refusal = open(Some(&name), None);
        let problem = parsed(&SoftRefusal::problem().response(&refusal));
        prop_assert_eq!(problem["name"].as_str(), Some(&*name));
        prop_assert_eq!(problem["detail"].as_str(), Some(&*refusal.to_string()));
    }
}
