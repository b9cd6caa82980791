//! Bodies that want to do harm: no panic, and bounded memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use http_body::Frame;
use tower_breaker::http::{ErrorEvents, Inspect};

use crate::support::{FATAL, JSON, LINES, SSE, SUCCESS, TRANSIENT, judged_in, models, with_type};

/// The system's allocator, which counts what each thread holds, and held at most.
struct Counting;

thread_local! {
    // Constant and without a destructor, so that to count takes no memory.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: isize) {
    let held = HELD.get() + sign * isize::try_from(bytes).expect("a size");
    HELD.set(held);
    MOST.set(MOST.get().max(held));
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: everything is handed to the system's allocator as it came; to count touches integers of
// this thread alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `f` answers, how much it held at most beyond what was held before, and how often it
/// allocated.
fn counted<T>(f: impl FnOnce() -> T) -> (T, usize, usize) {
    let (held, calls) = (HELD.get(), CALLS.get());
    MOST.set(held);
    let answer = f();
    let most = usize::try_from(MOST.get() - held).expect("no less than before");
    (answer, most, CALLS.get() - calls)
}

const KIB_64: usize = 64 * 1024;

/// Bodies of many megabytes, each of a piece that is repeated, with its beginning and its end.
fn hostile() -> Vec<(&'static str, String, usize, &'static str)> {
    vec![
        ("a long line", "data: ".into(), 10_000_000, "x"),
        ("a long string", "data: {\"a\":\"".into(), 10_000_000, "x"),
        ("a long error", "{\"error\":\"".into(), 10_000_000, "x"),
        (
            "a long message",
            "{\"error\":{\"message\":\"".into(),
            2_000_000,
            "x\\\"\\u00e9é",
        ),
        ("a long number", "{\"error\":".into(), 1_000_000, "1"),
        ("a long code", "{\"code\":".into(), 1_000_000, "1"),
        ("nested arrays", String::new(), 1_000_000, "["),
        ("nested objects", String::new(), 500_000, "{\"a\":"),
        (
            "nested arrays in an error",
            "{\"error\":".into(),
            1_000_000,
            "[",
        ),
        (
            "nested objects in an error",
            "{\"error\":".into(),
            500_000,
            "{\"error\":",
        ),
        (
            "members of an error",
            "{\"error\":{".into(),
            500_000,
            "\"message\":\"a\",",
        ),
        (
            "details of an error",
            "{\"error\":{\"details\":[".into(),
            500_000,
            "{\"reason\":\"a\"},",
        ),
        (
            "equal errors",
            "{\"a\":1".into(),
            300_000,
            ",\"error\":{\"code\":1}",
        ),
        (
            "equal codes",
            "{\"a\":1".into(),
            300_000,
            ",\"code\":\"a\",\"type\":\"x_error\"",
        ),
        ("a long key", "{\"".into(), 1_000_000, "k"),
        (
            "a long key of an error",
            "{\"error\":{\"".into(),
            1_000_000,
            "k",
        ),
        ("a long name", "event: ".into(), 1_000_000, "error"),
        ("a long field", "data".into(), 1_000_000, "a"),
        ("comments", String::new(), 1_000_000, ": keep-alive\n"),
        ("empty lines", "data: {}\n".into(), 1_000_000, "\r\n"),
        (
            "events",
            String::new(),
            200_000,
            "data: {\"a\":[1,{\"b\":null}]}\n\n",
        ),
        (
            "errors that are none",
            String::new(),
            200_000,
            "data: {\"error\":{},\"type\":\"x_error\"}\n\n",
        ),
        (
            "lines",
            String::new(),
            200_000,
            "{\"message\":\"a\",\"code\":1}\n",
        ),
        (
            "elements",
            "[{}".into(),
            200_000,
            ",{\"code\":\"a\",\"error\":null}",
        ),
        (
            "choices",
            "{\"choices\":[{}".into(),
            200_000,
            ",{\"error\":{\"a\":1},\"index\":99999999999999999999999999}",
        ),
        ("backslashes", "{\"a\":\"".into(), 1_000_000, "\\\\"),
        ("white space", "{".into(), 1_000_000, " \t\n"),
    ]
}

#[test]
fn whatever_comes_memory_is_bounded() {
    for (what, begin, times, piece) in hostile() {
        let body = begin + &piece.repeat(times);
        for (content_type, size) in [(None, 1_000), (Some(SSE), body.len()), (Some(LINES), 1_001)] {
            let events = with_type(models(), content_type);
            let (_, most, _) = counted(|| judged_in(events, body.as_bytes().chunks(size)));
            assert!(most <= KIB_64, "{what}, {content_type:?}: {most} bytes");
        }
    }
}

#[test]
fn bytes_that_are_no_text_do_no_harm() {
    let all: Vec<u8> = (0..=255).collect();
    let invalid =
        [&b"{\"error\":{\"message\":\"\xff\xfe\xc3\x28\",\"code\":\"insufficient_quota\"}}"[..]];
    assert_eq!(judged_in(models(), invalid).0, FATAL);
    let surrogates = br#"{"error":{"message":"\ud83d\u0000\udc00","code":"insufficient_quota"}}"#;
    assert_eq!(judged_in(models(), [&surrogates[..]]).0, FATAL);
    for start in [
        &b"data: {\"a\":\""[..],
        b"data: ",
        b"{\"error\":\"",
        b"event: ",
        b"",
        b"[",
    ] {
        let body = [start, &all, &all].concat();
        for size in [1, 1_000] {
            judged_in(models(), body.chunks(size));
        }
    }
}

#[test]
fn frames_of_an_answer_allocate_nothing() {
    for (content_type, frame) in [
        (
            SSE,
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a word\"},\"finish_reason\":null}]}\n\n",
        ),
        (
            SSE,
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a word\"}}\n\n",
        ),
        (
            SSE,
            "data: {\"type\":\"response.in_progress\",\"response\":{\"error\":null}}\n\n",
        ),
        (
            SSE,
            "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"error\"}]}}],\"error\":null}\n\n",
        ),
        (SSE, ": ping\n\n"),
        (
            LINES,
            "{\"model\":\"m\",\"message\":{\"content\":\"an \\\"error\\\"\"},\"done\":false}\n",
        ),
        (JSON, "{\"a\":[1,2,{\"error\":\"x\"}],\"error\":false}\n"),
    ] {
        let mut events = with_type(models(), Some(content_type));
        let (found, most, calls) = counted(|| {
            (0..1_000).find_map(|_| {
                let whole = events.frame(&Frame::data(frame.as_bytes()));
                let bytes = frame.as_bytes().chunks(1);
                whole.or_else(|| {
                    bytes
                        .into_iter()
                        .find_map(|byte| events.frame(&Frame::data(byte)))
                })
            })
        });
        assert_eq!((found, most, calls), (None, 0, 0), "{frame}");
    }
}

#[test]
fn it_takes_64_bytes_more_than_it_did() {
    assert!(
        size_of::<ErrorEvents>() <= 32 + 64,
        "{} bytes",
        size_of::<ErrorEvents>()
    );
}

#[test]
fn the_scan_goes_on_after_what_is_hostile() {
    let long = "[".repeat(1_000_000);
    let stream = format!("data: {long}\n\ndata: {{\"error\":\"x\"}}\n\n");
    assert_eq!(judged_in(models(), [stream.as_bytes()]).0, TRANSIENT);
    let closed = format!("{}{}", long, "]".repeat(1_000_000));
    assert_eq!(
        judged_in(with_type(models(), Some(JSON)), [closed.as_bytes()]).0,
        SUCCESS
    );
    let inside = format!("{{\"a\":{closed},\"error\":\"x\"}}");
    assert_eq!(
        judged_in(models(), inside.as_bytes().chunks(4_096)).0,
        TRANSIENT
    );
    let key = "k".repeat(1_000_000);
    let keys = format!("{{\"{key}\":1,\"error\":{{\"{key}\":1,\"code\":\"insufficient_quota\"}}}}");
    assert_eq!(judged_in(models(), keys.as_bytes().chunks(4_096)).0, FATAL);
}
