use proptest::prelude::*;

use super::*;

const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in all {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn after(all: &[(&'static str, &str)]) -> Option<Duration> {
    retry_after(&headers(all))
}

fn reset(all: &[(&'static str, &str)]) -> Option<Duration> {
    rate_limit_reset(&headers(all))
}

#[allow(clippy::unnecessary_wraps)] // The functions under test return an `Option`.
fn secs(secs: u64) -> Option<Duration> {
    Some(Duration::from_secs(secs))
}

#[allow(clippy::unnecessary_wraps)] // The functions under test return an `Option`.
fn nanos(nanos: u64) -> Option<Duration> {
    Some(Duration::from_nanos(nanos))
}

/// Texts that are no hint where a number is expected.
const NONE: [&str; 31] = [
    "",
    " ",
    "0",
    "0.0",
    "00",
    "0.000000000001",
    "-0",
    "-5",
    "+5",
    "-1.5",
    "1e999",
    "1e3",
    "NaN",
    "nan",
    "inf",
    "infinity",
    "-inf",
    ".5",
    "5.",
    ".",
    "1.2.3",
    "1,5",
    "5, 60",
    "5;",
    "0x10",
    "1_000",
    "5 s",
    "soon",
    "٣",
    "5\u{a0}",
    "\u{e9}",
];

const HUGE: [&str; 4] = [
    "9223372037000",
    "18446744073709551616",
    "9999999999999999999999999999999999999999",
    "340282366920938463463374607431768211456.5",
];

#[test]
fn seconds_are_a_hint() {
    for (text, hint) in [
        ("1", secs(1)),
        ("60", secs(60)),
        ("007", secs(7)),
        (" 20\t", secs(20)),
        ("1.5", nanos(1_500_000_000)),
        ("0.25", nanos(250_000_000)),
        ("0.000000001", nanos(1)),
        ("2.00000000000000000000000000000000000000001", secs(2)),
        ("9223372037", secs(9_223_372_037)),
        ("18446744073709551615", secs(u64::MAX)),
        ("18446744073709551616", Some(Duration::MAX)),
        (
            "9999999999999999999999999999999999999999",
            Some(Duration::MAX),
        ),
    ] {
        assert_eq!(after(&[("retry-after", text)]), hint, "{text:?}");
    }
}

#[test]
fn milliseconds_are_a_hint() {
    for (text, hint) in [
        ("1", nanos(1_000_000)),
        ("1500", nanos(1_500_000_000)),
        ("0.5", nanos(500_000)),
        ("9223372037", nanos(9_223_372_037_000_000)),
    ] {
        assert_eq!(after(&[("retry-after-ms", text)]), hint, "{text:?}");
    }
    for text in HUGE {
        let hint = after(&[("retry-after-ms", text)]);
        assert!(hint > secs(9_000_000_000), "{text:?}: {hint:?}");
    }
}

#[test]
fn garbage_zero_and_signs_are_no_hint() {
    for text in NONE {
        assert_eq!(after(&[("retry-after", text)]), None, "{text:?}");
        assert_eq!(after(&[("retry-after-ms", text)]), None, "{text:?}");
        let spent = ("x-ratelimit-remaining-tokens", "0");
        for text in [text.to_owned(), format!("{text}s")] {
            let hint = reset(&[spent, ("x-ratelimit-reset-tokens", &text)]);
            assert_eq!(hint, None, "{text:?}");
        }
    }
    assert_eq!(after(&[]), None);
    assert_eq!(reset(&[]), None);
}

#[test]
fn a_huge_number_is_a_huge_hint() {
    for text in HUGE {
        let hint = after(&[("retry-after", text)]);
        assert!(hint > secs(9_000_000_000_000 - 1), "{text:?}: {hint:?}");
    }
}

#[test]
fn a_date_is_measured_against_the_responses_own() {
    for (text, hint) in [
        ("Sun, 06 Nov 1994 08:50:37 GMT", secs(60)),
        ("Sunday, 06-Nov-94 08:49:38 GMT", secs(1)),
        ("Sun Nov  6 09:49:37 1994", secs(3600)),
        (" Mon, 06 Nov 1995 08:49:37 GMT ", secs(365 * 86_400)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", secs(252_618_189_022)),
        // Now, in the past, before 1970.
        (NOW, None),
        ("Sun, 06 Nov 1994 08:49:36 GMT", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Wed, 31 Dec 1969 23:59:59 GMT", None),
        // Not dates: the wrong day of the week, no such day, another zone, a leap second, a
        // year too far, other formats.
        ("Mon, 06 Nov 1994 08:50:37 GMT", None),
        ("Wed, 30 Feb 1995 00:00:00 GMT", None),
        ("Sun, 06 Nov 1994 08:50:37 CET", None),
        ("Sun, 06 Nov 1994 08:50:60 GMT", None),
        ("Sat, 01 Jan 10000 00:00:00 GMT", None),
        ("1994-11-06T08:50:37Z", None),
        ("784111837.", None),
    ] {
        let hint_of = after(&[("date", NOW), ("retry-after", text)]);
        assert_eq!(hint_of, hint, "{text:?}");
    }
}

#[test]
fn a_date_alone_is_measured_against_the_systems_clock() {
    let at = |at: SystemTime| httpdate::fmt_http_date(at);
    let hour = Duration::from_secs(3600);
    for own in [&[][..], &[("date", "yesterday")], &[("date", "\u{e9}")]] {
        let hint = |text: &str| after(&[own, &[("retry-after", text)]].concat());
        let wait = hint(&at(SystemTime::now() + hour)).unwrap();
        // A date has whole seconds, and the test itself takes time.
        assert!(
            wait <= hour && wait + Duration::from_secs(60) > hour,
            "{wait:?}"
        );
        assert_eq!(hint(&at(SystemTime::now() - hour)), None);
    }
}

#[test]
fn valid_milliseconds_go_before_seconds() {
    let after = |ms, text| after(&[("retry-after", text), ("retry-after-ms", ms)]);
    assert_eq!(after("1500", "2"), nanos(1_500_000_000));
    assert_eq!(after("90000", "2"), secs(90));
    assert_eq!(after("0", "2"), secs(2));
    assert_eq!(after("-1", "2"), secs(2));
    assert_eq!(after("soon", "2"), secs(2));
    assert_eq!(after("7000", "soon"), secs(7));
    assert_eq!(after("0", "0"), None);
}

#[test]
fn the_longest_value_of_a_repeated_header_is_the_hint() {
    let values = |texts: [&'static str; 3]| after(&texts.map(|text| ("retry-after", text)));
    assert_eq!(values(["5", "60", "7"]), secs(60));
    assert_eq!(values(["soon", "5", "-60"]), secs(5));
    let spent = ("x-ratelimit-remaining-requests", "0");
    let name = "x-ratelimit-reset-requests";
    assert_eq!(reset(&[spent, (name, "1s"), (name, "1m")]), secs(60));
}

#[test]
fn a_limits_reset_is_spelled_with_units() {
    for (text, hint) in [
        ("1s", secs(1)),
        ("6m0s", secs(360)),
        ("20ms", nanos(20_000_000)),
        ("1h2m3.5s", nanos(3_723_500_000_000)),
        ("2m59.56s", nanos(179_560_000_000)),
        ("7.66s", nanos(7_660_000_000)),
        ("1m", secs(60)),
        ("1.5h", secs(5400)),
        ("250us", nanos(250_000)),
        ("3ns", nanos(3)),
        (" 1s ", secs(1)),
        ("5124095576030431h15s", secs(18_446_744_073_709_551_615)),
        (
            "9999999999999999999999999999999999999999h1s",
            Some(Duration::MAX),
        ),
        (
            "340282366920938463463374607431768211455ns1h",
            Some(Duration::MAX),
        ),
        // Zero, no unit, no number, unknown units, a sign, a space.
        ("0s", None),
        ("0h0m0s", None),
        ("0.1ns", None),
        ("60", None),
        ("1712345678", None),
        ("6m0", None),
        ("s", None),
        ("ms", None),
        ("1d", None),
        ("1S", None),
        ("1 s", None),
        ("1m 30s", None),
        ("-1s", None),
        ("+1s", None),
        ("1m-30s", None),
        ("1.s", None),
        (".5s", None),
        ("1..5s", None),
        ("1e3s", None),
        ("5µs", None),
        ("NaNs", None),
        ("2026-11-30T00:00:00Z", None),
    ] {
        for kind in ["requests", "tokens"] {
            let (remaining, name) = match kind {
                "requests" => (
                    "x-ratelimit-remaining-requests",
                    "x-ratelimit-reset-requests",
                ),
                _ => ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
            };
            assert_eq!(reset(&[(remaining, "0"), (name, text)]), hint, "{text:?}");
            // Here the other limit is spent.
            let other = match kind {
                "requests" => "x-ratelimit-remaining-tokens",
                _ => "x-ratelimit-remaining-requests",
            };
            assert_eq!(reset(&[(other, "0"), (name, text)]), None, "{text:?}");
        }
    }
}

#[test]
fn a_reset_counts_only_for_a_spent_limit_and_the_longer_wins() {
    let both = |requests, tokens| {
        reset(&[
            ("x-ratelimit-remaining-requests", requests),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-remaining-tokens", tokens),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ])
    };
    assert_eq!(both("0", "0"), secs(360));
    assert_eq!(both("0", "149984"), secs(1));
    assert_eq!(both("59", "0"), secs(360));
    assert_eq!(both(" 0 ", "1"), secs(1));
    for some in ["59", "1", "-1", "0.5", "", "none", "\u{e9}"] {
        assert_eq!(both(some, some), None, "{some:?}");
    }
    assert_eq!(reset(&[("x-ratelimit-reset-tokens", "6m0s")]), None);
}

#[test]
fn a_header_without_a_certain_meaning_is_no_hint() {
    let github = [
        ("x-ratelimit-limit", "60"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1372700873"),
    ];
    assert_eq!((after(&github), reset(&github)), (None, None));
    // `retry_after` does not read the headers of `rate_limit_reset`.
    let limits = [
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    assert_eq!(after(&limits), None);
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..48),
        "[0-9.]{0,48}".prop_map(String::into_bytes),
        "([0-9]{0,42}[.]?[0-9]{0,4}(h|m|s|ms|us|ns|d)?){0,4}".prop_map(String::into_bytes),
        concat!(
            "(Mon|Tue|Sun|Sunday|Wednesday),? [0-9]{1,2}[ -](Feb|Nov|Dec)[ -][0-9]{2,4} ",
            "[0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
        )
        .prop_map(String::into_bytes),
        "(Mon|Sun) (Feb|Nov) [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4}"
            .prop_map(String::into_bytes),
        (0_u64..253_402_300_800).prop_map(|at| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            httpdate::fmt_http_date(at).into_bytes()
        }),
        Just(b"0".to_vec()),
    ]
}

proptest! {
    #[test]
    fn no_header_causes_a_panic_or_a_hint_of_zero(values in prop::collection::vec(value(), 7)) {
        let mut headers = HeaderMap::new();
        let names = [
            "retry-after",
            "retry-after-ms",
            "date",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-tokens",
        ];
        for (name, value) in names.into_iter().zip(&values) {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.insert(name, value);
            }
        }
        prop_assert_ne!(retry_after(&headers), Some(Duration::ZERO));
        prop_assert_ne!(rate_limit_reset(&headers), Some(Duration::ZERO));
    }

    #[test]
    fn a_written_hint_is_read_back(secs in 0_u64.., nanos in 0_u32..1_000_000_000) {
        let hint = Duration::new(secs, nanos);
        let text = format!("{secs}.{nanos:09}");
        let expected = (!hint.is_zero()).then_some(hint);
        prop_assert_eq!(after(&[("retry-after", &text)]), expected);
        let spent = ("x-ratelimit-remaining-tokens", "0");
        let text = format!("{}h{}m{}.{nanos:09}s", secs / 3600, secs / 60 % 60, secs % 60);
        prop_assert_eq!(reset(&[spent, ("x-ratelimit-reset-tokens", &text)]), expected);
    }
}
