//! Proves that hints in headers lengthen the cooldown, and that no header does harm.

use std::time::{Duration, SystemTime};

use http::Response;
use tokio::sync::oneshot;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::http::StatusClassifier;
use tower_breaker::{CircuitBreakerLayer, State};

use crate::support::{NS, pass, secs};
use crate::{ask, fallback, left, response, server};

/// Case 9.
#[tokio::test(start_paused = true)]
async fn a_late_rate_limit_with_a_longer_hint_keeps_the_circuit_open() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .recovery_duration(secs(5))
        .classify(StatusClassifier::new());
    let handle = layer.handle();
    let held = service_fn(|answer: oneshot::Receiver<Response<String>>| async move {
        Ok::<_, BoxError>(answer.await?)
    });
    let mut service = layer.layer(held);

    let (late, receive) = oneshot::channel();
    let late_call = service.ready().await.unwrap().call(receive);
    let (first, receive) = oneshot::channel();
    let first_call = service.ready().await.unwrap().call(receive);

    first.send(response(429, &[("retry-after", "1")])).unwrap();
    first_call.await.unwrap();
    // One second is less than the cooldown.
    assert_eq!((handle.state(), left(&handle)), (State::Open, secs(5)));

    late.send(response(429, &[("retry-after", "60")])).unwrap();
    late_call.await.unwrap();
    assert_eq!(left(&handle), secs(60));
    pass(secs(60) - NS).await;
    assert!(!handle.would_allow());
    assert_eq!(left(&handle), NS);
    pass(NS).await;
    assert!(handle.would_allow());
}

/// How long such a response keeps a circuit open. Its cooldown is 30 s, and the cap 5 minutes.
async fn open_for(status: u16, headers: &[(&'static str, &str)]) -> Duration {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .classify(StatusClassifier::new());
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(server));
    let answer = ask(&mut service, Ok(response(status, headers))).await;
    assert!(answer.is_some());
    assert_eq!(handle.state(), State::Open);

    let open = left(&handle);
    pass(open - NS).await;
    assert!(!handle.would_allow(), "{headers:?}");
    pass(NS).await;
    assert!(handle.would_allow(), "{headers:?}");
    open
}

/// Case 9.
#[tokio::test(start_paused = true)]
async fn a_hint_lengthens_the_cooldown_and_never_shortens_it_or_passes_the_cap() {
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let (cooldown, cap) = (secs(30), secs(300));
    for (text, open) in [
        ("60", secs(60)),
        ("31.5", Duration::from_millis(31_500)),
        ("Sun, 06 Nov 1994 08:51:37 GMT", secs(120)),
        ("29", cooldown),
        ("1", cooldown),
        // Garbage, zero, negative, past.
        ("-5", cooldown),
        ("0", cooldown),
        ("1e999", cooldown),
        ("NaN", cooldown),
        ("soon", cooldown),
        ("", cooldown),
        ("\u{e9}", cooldown),
        (NOW, cooldown),
        ("Sat, 05 Nov 1994 08:49:37 GMT", cooldown),
        // Huge.
        ("301", cap),
        ("9223372037", cap),
        ("18446744073709551616", cap),
        ("9999999999999999999999999999999999999999", cap),
        ("Mon, 06 Nov 1995 08:49:37 GMT", cap),
        ("Fri, 31 Dec 9999 23:59:59 GMT", cap),
    ] {
        for status in [429, 503, 408] {
            let headers = [("date", NOW), ("retry-after", text)];
            assert_eq!(open_for(status, &headers).await, open, "{status} {text:?}");
        }
    }
    for (text, open) in [
        ("60500", Duration::from_millis(60_500)),
        ("-5", secs(45)),
        ("0", secs(45)),
        ("9223372037", cap),
        ("18446744073709551616", cap),
    ] {
        let headers = [("retry-after", "45"), ("retry-after-ms", text)];
        assert_eq!(open_for(429, &headers).await, open, "{text:?}");
    }
}

/// Case 9.
#[tokio::test(start_paused = true)]
async fn a_date_alone_is_measured_by_the_systems_clock() {
    let date = |at: SystemTime| httpdate::fmt_http_date(at);
    let year = secs(365 * 86_400);
    let ahead = date(SystemTime::now() + year);
    assert_eq!(open_for(503, &[("retry-after", &ahead)]).await, secs(300));
    let past = date(SystemTime::now() - year);
    assert_eq!(open_for(503, &[("retry-after", &past)]).await, secs(30));
}

#[tokio::test(start_paused = true)]
async fn the_reset_of_a_rate_limit_is_a_hint_of_a_429_only() {
    let spent = [
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "4m0s"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "1m30s"),
    ];
    assert_eq!(open_for(429, &spent).await, secs(90));
    assert_eq!(open_for(503, &spent).await, secs(30));
    let told = [&spent[..], &[("retry-after", "40")]].concat();
    assert_eq!(open_for(429, &told).await, secs(40));
    // GitHub sends a time in seconds since 1970, which is no hint.
    let github = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1372700873"),
    ];
    assert_eq!(open_for(429, &github).await, secs(30));
}

/// Case 9.
#[tokio::test(start_paused = true)]
async fn a_huge_hint_without_a_cap_never_panics() {
    for text in ["9223372037", "18446744073709551616", "584554531"] {
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .retry_after_cap(Duration::MAX)
            .classify(StatusClassifier::new());
        let handle = layer.handle();
        let mut service = layer.layer(service_fn(server));
        let answer = response(429, &[("retry-after", text)]);
        assert!(ask(&mut service, Ok(answer)).await.is_some());
        pass(secs(1_000_000)).await;
        assert!(!handle.would_allow(), "{text}");
        handle.reset();
        assert!(handle.would_allow());
    }
}

/// A backup's hint moves nothing.
#[tokio::test(start_paused = true)]
async fn a_fallback_heeds_only_the_hints_of_its_primary() {
    let (handle, mut service) = fallback(StatusClassifier::models());
    for _ in 0..3 {
        let limited = response(429, &[("retry-after", "90")]);
        ask(&mut service, Ok(limited)).await.unwrap().unwrap();
    }
    assert_eq!(handle.snapshot().time_until_probe, Some(secs(90)));
    let limited = response(429, &[("retry-after", "300")]);
    ask(&mut service, Ok(limited)).await.unwrap().unwrap();
    assert_eq!(handle.snapshot().entries[0].strikes, 1);
    assert_eq!(handle.snapshot().time_until_probe, Some(secs(90)));
}
