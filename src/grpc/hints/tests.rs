use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::HeaderValue;
use proptest::prelude::*;

use super::*;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

fn detail(type_url: &str, seconds: i64, nanos: i32) -> Any {
    let info = RetryInfo {
        retry_delay: Some(Delay { seconds, nanos }),
    };
    Any {
        type_url: type_url.into(),
        value: info.encode_to_vec(),
    }
}

fn status(details: impl Into<Vec<Any>>) -> Vec<u8> {
    let details = details.into();
    Status { details }.encode_to_vec()
}

fn told(details: impl Into<Vec<Any>>) -> Option<Duration> {
    retry_info(STANDARD.encode(status(details)).as_bytes())
}

fn delay(seconds: i64, nanos: i32) -> Option<Duration> {
    told([detail(RETRY_INFO, seconds, nanos)])
}

#[test]
fn a_pushback_is_milliseconds_in_plain_digits_and_never_zero() {
    let told = |value: &str| pushback(value.as_bytes());
    assert_eq!(told("1"), Some(Duration::from_millis(1)));
    assert_eq!(told("007"), Some(Duration::from_millis(7)));
    assert_eq!(told("60000"), Some(Duration::from_secs(60)));
    let most = Some(Duration::from_millis(u64::MAX));
    assert_eq!(told("18446744073709551615"), most);
    assert_eq!(told("18446744073709551616"), most);
    assert_eq!(told("184467440737095516150"), most);
    assert_eq!(told(&format!("1{}", "0".repeat(30))), most);
    assert_eq!(told(&"9".repeat(10_000)), most);
    for none in [
        "", "0", "000", "-1", "-5", "-0", "+5", " 5", "5 ", "5ms", "1e3", "1e999", "1.5", "NaN",
        "inf", "0x10", "\u{663}",
    ] {
        assert_eq!(told(none), None, "{none:?}");
    }
}

#[test]
fn a_retry_info_is_read_among_other_details_and_the_longest_counts() {
    assert_eq!(delay(5, 0), Some(Duration::from_secs(5)));
    assert_eq!(delay(0, 1), Some(Duration::from_nanos(1)));
    assert_eq!(delay(2, 500_000_000), Some(Duration::from_millis(2_500)));
    let several = [
        detail("type.googleapis.com/google.rpc.ErrorInfo", 90, 0),
        detail(RETRY_INFO, 3, 0),
        detail("google.rpc.RetryInfo", 7, 0),
        detail(RETRY_INFO, -9, 0),
        detail("example.com/not/my.google.rpc.RetryInfo", 80, 0),
        detail("google.rpc.RetryInfo/", 80, 0),
    ];
    assert_eq!(told(several), Some(Duration::from_secs(7)));
    assert_eq!(told([]), None);
}

#[test]
fn a_delay_of_zero_or_less_is_no_hint_and_a_huge_one_stays() {
    for (seconds, nanos) in [
        (0, 0),
        (-1, 0),
        (0, -1),
        (5, -1),
        (-5, 1),
        (1, 1_000_000_000),
        (i64::MAX, i32::MAX),
        (i64::MIN, i32::MIN),
    ] {
        assert_eq!(delay(seconds, nanos), None, "{seconds} {nanos}");
    }
    let huge = Duration::new(i64::MAX.unsigned_abs(), 999_999_999);
    assert_eq!(delay(i64::MAX, 999_999_999), Some(huge));
    let empty = Any {
        type_url: RETRY_INFO.into(),
        value: Vec::new(),
    };
    assert_eq!(told([empty]), None);
}

#[test]
fn the_bytes_are_those_of_the_published_messages() {
    // code: 14, message: "busy", details: [RetryInfo { retry_delay: 7 s }], written by hand.
    let mut any = vec![0x0a, 40];
    any.extend(RETRY_INFO.as_bytes());
    any.extend([0x12, 4, 0x0a, 2, 0x08, 7]);
    let mut status = vec![0x08, 14, 0x12, 4];
    status.extend(b"busy");
    status.extend([0x1a, u8::try_from(any.len()).unwrap()]);
    status.extend(any);
    let plain = STANDARD_NO_PAD.encode(&status);
    // Two bits of the last character belong to a byte. A sloppy encoder leaves the other four
    // unclean.
    assert!(plain.len() % 4 == 2 && plain.ends_with('w'), "{plain}");
    let sloppy = plain[..plain.len() - 1].to_owned() + "/";
    for value in [STANDARD.encode(&status), plain, sloppy] {
        assert_eq!(
            retry_info(value.as_bytes()),
            Some(Duration::from_secs(7)),
            "{value}"
        );
    }
}

#[test]
fn details_are_read_padded_or_not_and_only_up_to_64_kib() {
    let mut lengths = [false; 3];
    for filler in 1..=3 {
        let other = Any {
            type_url: "x".repeat(filler),
            value: Vec::new(),
        };
        let bytes = status([other, detail(RETRY_INFO, 5, 0)]);
        lengths[bytes.len() % 3] = true;
        for value in [STANDARD.encode(&bytes), STANDARD_NO_PAD.encode(&bytes)] {
            assert_eq!(
                retry_info(value.as_bytes()),
                Some(Duration::from_secs(5)),
                "{value}"
            );
        }
    }
    assert_eq!(lengths, [true; 3], "each kind of padding was tried");

    let sized = |size: usize| {
        let with = |filler| {
            let other = Any {
                type_url: String::new(),
                value: vec![0; filler],
            };
            STANDARD.encode(status([detail(RETRY_INFO, 5, 0), other]))
        };
        let beside = with(size * 3 / 4).len() - size;
        let value = with(size * 3 / 4 - beside * 3 / 4);
        assert_eq!(value.len(), size);
        retry_info(value.as_bytes())
    };
    assert_eq!(sized(65_536), Some(Duration::from_secs(5)));
    assert_eq!(sized(65_540), None);
}

#[test]
fn garbage_in_details_is_no_hint() {
    for garbage in ["", "=", "!", "AAAA", "a-_b", "GgUKA2Zvb", "\u{e9}"] {
        assert_eq!(retry_info(garbage.as_bytes()), None, "{garbage}");
    }
    let whole = status([detail(RETRY_INFO, 5, 0)]);
    for cut in 0..whole.len() {
        assert_eq!(retry_info(STANDARD.encode(&whole[..cut]).as_bytes()), None);
    }
}

#[test]
fn the_longest_of_several_hints_counts() {
    let both = |pushback: &'static str, seconds| {
        let mut headers = HeaderMap::new();
        headers.insert(PUSHBACK, HeaderValue::from_static(pushback));
        let details = STANDARD.encode(status([detail(RETRY_INFO, seconds, 0)]));
        headers.insert(DETAILS, details.try_into().unwrap());
        retry_after(&headers)
    };
    assert_eq!(both("4000", 3), Some(Duration::from_secs(4)));
    assert_eq!(both("4000", 5), Some(Duration::from_secs(5)));
    assert_eq!(both("-1", 5), Some(Duration::from_secs(5)));
    assert_eq!(both("4000", -1), Some(Duration::from_secs(4)));
    assert_eq!(both("-1", -1), None);
    let mut headers = HeaderMap::new();
    for pushback in ["7", "soon", "9", "8"] {
        headers.append(PUSHBACK, HeaderValue::from_static(pushback));
    }
    assert_eq!(retry_after(&headers), Some(Duration::from_millis(9)));
    assert_eq!(retry_after(&HeaderMap::new()), None);
}

proptest! {
    #[test]
    fn no_bytes_make_a_hint_of_zero_or_a_panic(
        pushed in any::<Vec<u8>>(),
        raw in any::<Vec<u8>>(),
        value in any::<Vec<u8>>(),
        type_url in prop_oneof![Just(RETRY_INFO.to_owned()), any::<String>()],
        seconds in any::<i64>(),
        nanos in any::<i32>(),
    ) {
        let hidden = Any { type_url, value };
        for details in [
            raw.clone(),
            STANDARD.encode(&raw).into_bytes(),
            STANDARD.encode(status([hidden])).into_bytes(),
            STANDARD.encode(status([detail(RETRY_INFO, seconds, nanos)])).into_bytes(),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(PUSHBACK, &pushed), (DETAILS, &details)] {
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    headers.insert(name, value);
                }
            }
            prop_assert_ne!(retry_after(&headers), Some(Duration::ZERO));
            prop_assert_ne!(retry_info(&details), Some(Duration::ZERO));
        }
        prop_assert_ne!(pushback(&pushed), Some(Duration::ZERO));
    }

    #[test]
    fn a_delay_is_read_exactly(seconds in 0..=i64::MAX, nanos in 1..1_000_000_000_i32) {
        let exact = Duration::new(seconds.unsigned_abs(), nanos.unsigned_abs());
        prop_assert_eq!(delay(seconds, nanos), Some(exact));
    }
}
