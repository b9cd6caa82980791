//! Proves that a refused tool's call goes to a healthy substitute.

use std::time::Duration;

use tokio::task::JoinSet;
use tower::Layer;
use tower_breaker::{
    CircuitBreakerLayer, FailureKind, HealthRouter, KeyedCircuitBreakerHandle, Reason, State,
};

use crate::support::events::Recorder;
use crate::support::tool::{Ask, Guarded, Tool, ask, hold, ok, status, trip_key};
use crate::support::{on_threads, pass, refused, secs};

/// A keyed breaker for `search`, with the substitutes `mirror` and `second`.
pub fn routed(
    layer: CircuitBreakerLayer,
    tool: &Tool,
) -> (
    impl Guarded<Future: Send> + Clone + Send + 'static,
    KeyedCircuitBreakerHandle<String>,
) {
    let layer = layer
        .per_key(|ask: &Ask| ask.name.as_str(), 100)
        .substitute(
            HealthRouter::new()
                .route("search", ["mirror", "second"])
                .route("mirror", ["third"]),
            |ask: &mut Ask, name: &str| ask.name = name.into(),
        );
    let handle = layer.handle();
    (layer.layer(tool.clone()), handle)
}

/// Case 46.
#[test]
fn a_thousand_calls_at_a_due_circuit_send_one_probe_and_the_substitute_answers_the_rest() {
    on_threads(async {
        for _ in 0..5 {
            let tool = Tool::new();
            let (mut service, handle) = routed(
                CircuitBreakerLayer::new().recovery_duration(Duration::ZERO),
                &tool,
            );
            trip_key(&mut service, "search").await;

            let mut crowd = JoinSet::new();
            let mut senders = Vec::new();
            for _ in 0..1_000 {
                let mut service = service.clone();
                let (probe, sender) = Ask::held();
                senders.push(sender);
                crowd.spawn(async move { ask(&mut service, probe.of("search")).await });
            }
            // All calls are held, so wait until all have arrived.
            let deadline = tokio::time::Instant::now() + secs(20);
            while tool.calls() < 3 + 1_000 {
                assert!(
                    tokio::time::Instant::now() < deadline,
                    "{} calls",
                    tool.calls()
                );
                tokio::task::yield_now().await;
            }
            assert_eq!(tool.calls_of("search"), 3 + 1, "one probe");
            assert_eq!(tool.calls_of("mirror"), 999);
            assert_eq!(handle.state("search"), State::HalfOpen);

            for sender in senders {
                sender.send(ok()).unwrap();
            }
            let (mut by_search, mut by_mirror) = (0, 0);
            while let Some(answer) = crowd.join_next().await {
                match answer.unwrap().unwrap().by.as_str() {
                    "search" => by_search += 1,
                    "mirror" => by_mirror += 1,
                    other => panic!("answered by {other}"),
                }
            }
            assert_eq!((by_search, by_mirror), (1, 999));
            assert_eq!(handle.state("search"), State::Closed);
        }
    });
}

/// Case 46.
#[tokio::test(start_paused = true)]
async fn a_substitutes_own_circuit_gets_its_verdicts() {
    let told = Recorder::new();
    let tool = Tool::new();
    let (mut service, handle) = routed(CircuitBreakerLayer::new().observe(told.clone()), &tool);
    trip_key(&mut service, "search").await;
    told.take();
    // Three failures of the mirror trip the mirror, and the second mirror takes over.
    for failures in 1..=3 {
        ask(&mut service, Ask::fail().of("search"))
            .await
            .unwrap_err();
        assert_eq!(handle.snapshot("mirror").streak, failures);
    }
    assert_eq!(
        told.take(),
        ["mirror: closed -> open (failure_threshold) #1"],
        "nobody was refused"
    );
    let answer = ask(&mut service, Ask::ok().of("search")).await.unwrap();
    assert_eq!(answer.by, "second");
    assert_eq!(handle.snapshot("search").trips, 1);
    assert_eq!(handle.resolve("search"), Some("second"));

    // Both are due. The first call probes the original, and the next one its substitute.
    pass(secs(30)).await;
    let (probe, held) = hold(&mut service, "search").await;
    assert_eq!(tool.calls_of("search"), 4);
    assert_eq!(
        ask(&mut service, Ask::ok().of("search")).await.unwrap().by,
        "mirror"
    );
    assert_eq!(handle.state("mirror"), State::Closed);
    held.send(ok()).unwrap();
    probe.await.unwrap();
    assert_eq!(
        ask(&mut service, Ask::ok().of("search")).await.unwrap().by,
        "search"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_taken_by_a_substitute_is_told_as_no_refusal() {
    let (told, tool) = (Recorder::new(), Tool::new());
    let layer = CircuitBreakerLayer::new().observe(told.clone());
    let (mut service, _) = routed(layer, &tool);
    trip_key(&mut service, "search").await;
    trip_key(&mut service, "mirror").await;
    told.take();
    let reply = ask(&mut service, Ask::ok().of("search")).await.unwrap();
    assert_eq!(reply.by, "second");
    assert_eq!(told.take(), [""; 0]);
    // Both are due. The first call probes the original, and the next one its substitute.
    pass(secs(30)).await;
    let (first, held) = hold(&mut service, "search").await;
    let reply = ask(&mut service, Ask::ok().of("search")).await.unwrap();
    assert_eq!(reply.by, "mirror");
    held.send(ok()).unwrap();
    assert_eq!(first.await.unwrap().by, "search");
    assert_eq!(
        told.take(),
        [
            "search: open -> half_open (cooldown_over) #2",
            "search: probe for 30s #2",
            "mirror: open -> half_open (cooldown_over) #2",
            "mirror: probe for 30s #2",
            "mirror: half_open -> closed (probe_succeeded) #3",
            "search: half_open -> closed (probe_succeeded) #3",
        ]
    );
}

/// Case 46.
#[tokio::test(start_paused = true)]
async fn when_all_refuse_one_refusal_names_the_tool_asked_for_and_the_shortest_wait() {
    let names = ["search", "mirror", "second"];
    for shortest in names {
        let told = Recorder::new();
        let tool = Tool::new();
        let (mut service, handle) = routed(CircuitBreakerLayer::new().observe(told.clone()), &tool);
        // By hand, so that no substitute takes the failures.
        let trip = |name: &str| {
            for _ in 0..3 {
                handle.try_acquire(name).unwrap().failure();
            }
        };
        trip(shortest);
        pass(secs(10)).await;
        names
            .iter()
            .filter(|name| **name != shortest)
            .for_each(|name| trip(name));
        told.take();
        let refusal = refused(ask(&mut service, Ask::ok().of("search")).await);
        assert_eq!(refusal.name(), Some("search"));
        assert_eq!(refusal.retry_after(), Some(secs(20)), "{shortest} first");
        assert_eq!(refusal.reason(), Reason::CircuitOpen);
        assert_eq!(refusal.last_failure(), Some(FailureKind::Transient));
        assert_eq!(
            refusal.to_string(),
            "tool `search` temporarily unavailable: circuit breaker open"
        );
        assert_eq!(told.take(), ["search: refused circuit_open for 20s"]);
        assert_eq!(handle.resolve("search"), None);
        assert_eq!(tool.calls(), 0);
        assert!(
            !handle.keys().contains(&"third".to_owned()),
            "a substitute's own are not asked"
        );
    }
    // A pinned circuit has no wait, so the others' counts. When all are pinned there is none.
    let (mut service, handle) = routed(CircuitBreakerLayer::new(), &Tool::new());
    handle.force_open("search");
    handle.force_open("mirror");
    for _ in 0..3 {
        handle.try_acquire("second").unwrap().failure();
    }
    let refusal = refused(ask(&mut service, Ask::ok().of("search")).await);
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (Reason::ForcedOpen, Some(secs(30)))
    );
    handle.force_open("second");
    let refusal = refused(ask(&mut service, Ask::ok().of("search")).await);
    assert_eq!(refusal.retry_after(), None);
}

// ===== resolve =====

/// Case 46.
#[tokio::test(start_paused = true)]
async fn resolve_changes_nothing() {
    let tool = Tool::new();
    let (mut service, handle) = routed(CircuitBreakerLayer::new(), &tool);
    for _ in 0..1_000 {
        assert_eq!(handle.resolve("search"), Some("search"));
        assert_eq!(handle.resolve("nobody"), Some("nobody"));
    }
    assert_eq!(handle.keys(), [""; 0]);
    trip_key(&mut service, "search").await;
    assert_eq!(handle.resolve("search"), Some("mirror"));
    assert_eq!(handle.keys(), ["search"]);
    pass(secs(30)).await;
    for _ in 0..1_000 {
        assert_eq!(
            handle.resolve("search"),
            Some("search"),
            "it is due, and stays so"
        );
    }
    assert!(handle.snapshot("search").due);
    let (probe, held) = hold(&mut service, "search").await;
    assert_eq!(handle.resolve("search"), Some("mirror"));
    held.send(status(503)).unwrap();
    probe.await.unwrap_err();
    assert_eq!(tool.calls_of("search"), 4);
}

/// Runs through a history of outages.
#[tokio::test(start_paused = true)]
async fn the_next_call_goes_where_resolve_says() {
    let tool = Tool::new();
    let (mut service, handle) = routed(CircuitBreakerLayer::new(), &tool);
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..500_u32 {
        let expected = handle.resolve("search").map(str::to_owned);
        *seen.entry(expected.clone()).or_insert(0) += 1;
        let asked = if round % 40 < 25 {
            Ask::fail()
        } else {
            Ask::ok()
        };
        let before = |name: &String| tool.calls_of(name);
        let calls = expected.as_ref().map(before);
        let answer = ask(&mut service, asked.of("search")).await;
        match &expected {
            Some(name) => assert_eq!(before(name), calls.unwrap() + 1),
            None => assert_eq!(refused(answer).name(), Some("search")),
        }
        pass(secs(1)).await;
    }
    assert_eq!(seen.len(), 4, "every answer came: {seen:?}");
}
