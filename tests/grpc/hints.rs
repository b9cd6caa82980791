//! Proves that failures carry the server's hint, and that no header does harm.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::Full;
use proptest::prelude::{
    Just, Strategy, any, prop_assert_eq, prop_assert_ne, prop_oneof, proptest,
};
use tower_breaker::grpc::{Code, Codes, retry_after};
use tower_breaker::http::Inspect;
use tower_breaker::{Failure, Outcome};

use crate::support::secs;
use crate::{Answer, TABLE, TRANSIENT, body, head, hint, response};

#[test]
fn failures_of_every_kind_carry_the_hint_and_other_outcomes_do_not() {
    let wait = Duration::from_millis(1_500);
    for (code, tool, model) in TABLE {
        let number = code.number().to_string();
        let fields: &[_] = &[
            ("grpc-status", &*number),
            ("grpc-retry-pushback-ms", "1500"),
        ];
        let expected = |outcome| match outcome {
            Outcome::Failure(failure) => Outcome::Failure(failure.with_retry_after(wait)),
            other => other,
        };
        assert_eq!(head(&Codes::new(), &response(200, fields)), expected(tool));
        let plain = response(200, &[]);
        assert_eq!(
            body(&Codes::models(), &plain, Some(fields)),
            expected(model)
        );
    }
    let proxy = response(503, &[("grpc-retry-pushback-ms", "1500")]);
    assert_eq!(hint(head(&Codes::new(), &proxy)), Some(wait));
}

#[test]
fn a_hint_in_the_table_goes_before_the_servers() {
    let wait = Failure::transient().with_retry_after(secs(5));
    let codes = Codes::new().code(Code::Unavailable, wait);
    let told = |pushback| {
        let fields = [("grpc-status", "14"), ("grpc-retry-pushback-ms", pushback)];
        hint(head(&codes, &response(200, &fields)))
    };
    assert_eq!(told("1000"), Some(secs(5)));
    assert_eq!(told("9000"), Some(secs(5)));
    assert_eq!(told("-1"), Some(secs(5)));
}

#[test]
fn never_and_nonsense_are_no_hints() {
    for pushback in ["-1", "0", "1e999", "NaN", "soon", ""] {
        let fields = [("grpc-status", "14"), ("grpc-retry-pushback-ms", pushback)];
        assert_eq!(head(&Codes::new(), &response(200, &fields)), TRANSIENT);
    }
}

#[test]
fn the_retry_after_of_a_proxy_is_heeded_and_one_beside_a_grpc_status_is_not() {
    let told = |status, fields: &[_]| hint(head(&Codes::new(), &response(status, fields)));
    let after = ("retry-after", "20");
    assert_eq!(told(503, &[after]), Some(secs(20)));
    assert_eq!(told(429, &[after]), Some(secs(20)));
    assert_eq!(told(401, &[after]), None, "neutral");
    assert_eq!(told(503, &[("retry-after", "-20")]), None);
    assert_eq!(told(200, &[("grpc-status", "14"), after]), None);
    assert_eq!(told(503, &[("grpc-status", "14"), after]), None);
    for (pushback, seconds) in [("19000", 20), ("21000", 21)] {
        let both = [after, ("grpc-retry-pushback-ms", pushback)];
        assert_eq!(told(503, &both), Some(secs(seconds)));
    }
}

proptest! {
    #[test]
    fn no_header_makes_a_panic_or_a_hint_of_zero(
        status in any::<u16>(),
        fields in proptest::collection::vec(
            (
                prop_oneof![
                    Just("grpc-status"),
                    Just("grpc-retry-pushback-ms"),
                    Just("grpc-status-details-bin"),
                    Just("retry-after"),
                    Just("grpc-message"),
                ],
                prop_oneof![
                    any::<Vec<u8>>(),
                    "-?[0-9]{0,24}".prop_map(String::into_bytes),
                    "[A-Za-z0-9+/]{0,64}={0,2}".prop_map(String::into_bytes),
                ],
            ),
            0..8,
        ),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in &fields {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        *response.headers_mut() = headers.clone();
        let plain: Answer = Response::new(Full::default());
        for codes in [Codes::new(), Codes::new().code(Code::Ok, Failure::fatal())] {
            let in_head = head(&codes, &response);
            let mut inspect = codes.clone();
            Inspect::<Bytes>::head(&mut inspect, plain.status(), plain.headers());
            let in_trailers = inspect.frame(&Frame::<Bytes>::trailers(headers.clone()));
            prop_assert_eq!(in_trailers, codes.status_in(&headers));
            for outcome in [Some(in_head), in_trailers].into_iter().flatten() {
                prop_assert_ne!(hint(outcome), Some(Duration::ZERO));
            }
        }
        prop_assert_ne!(retry_after(&headers), Some(Duration::ZERO));
    }
}
