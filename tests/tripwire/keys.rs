//! One fence for each session. Their number is bounded, and they are independent.

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::{Digest, Event, Reason, State, TripwireLayer};

use super::fixture::{Call, Tool, call, reason};

/// Returns how many kilobytes the process holds, if the system says so.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

// ===== 48: finished runs =====

#[tokio::test]
async fn after_five_thousand_finished_runs_the_next_one_is_still_fenced() {
    let evicted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&evicted);
    let layer = TripwireLayer::new()
        .max_turns(2)
        .observe(move |event: &Event<'_>| match event {
            Event::Evicted { state, .. } => {
                assert_eq!(*state, State::Open);
                count.fetch_add(1, Ordering::SeqCst);
            }
            Event::Unguarded { .. } => panic!("unguarded"),
            _ => {}
        })
        .per_owned_session(|call: &Call| call.1, 1_000);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    for run in 0..=5_000 {
        for name in ["a", "b"] {
            call(&mut tool, (name, run)).await.unwrap();
        }
        assert_eq!(reason(call(&mut tool, ("c", run)).await), Reason::MaxTurns);
    }
    assert_eq!(handle.keys().len(), 1_000);
    assert_eq!(evicted.load(Ordering::SeqCst), 4_001);
    assert_eq!(handle.reason(&5_000), Some(Reason::MaxTurns));
}

#[tokio::test]
async fn a_million_sessions_take_no_more_room_than_a_thousand_and_live_ones_are_kept() {
    let layer = TripwireLayer::new()
        .max_turns(4)
        .per_owned_session(|call: &Call| call.1, 1_000);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    let ten = || 2_000_000..2_000_010;
    // Ten sessions that tripped, and ten with a call in flight.
    for session in ten() {
        for _ in 0..3 {
            let _ = call(&mut tool, ("search", session)).await;
        }
    }
    let mut flying = Vec::new();
    for session in 3_000_000..3_000_010 {
        flying.push(tool.ready().await.unwrap().call(("hung", session)));
    }
    let mut before = None;
    for session in 0..1_000_000 {
        call(&mut tool, ("search", session)).await.unwrap();
        if session == 100_000 {
            assert_eq!(handle.keys().len(), 1_000);
            before = resident();
        }
    }
    assert_eq!(handle.keys().len(), 1_000);
    if let (Some(before), Some(after)) = (before, resident()) {
        // 900,000 fences would take far more. Other tests hold far less meanwhile.
        assert!(after < before + 64_000, "from {before} to {after} kB");
    }
    for session in ten() {
        assert_eq!(handle.reason(&session), Some(Reason::IdenticalCall));
    }
    for session in 3_000_000..3_000_010 {
        assert_eq!(handle.turns(&session), 1);
    }
    drop(flying);
}

#[tokio::test]
async fn each_session_has_its_own_named_fence_and_can_be_forgotten_by_hand() {
    #[derive(Clone, Hash)]
    struct Ask {
        session: String,
        query: u64,
    }
    let names = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&names);
    let layer = TripwireLayer::new()
        .digest(|ask: &Ask| Digest::of(&ask.query))
        .observe(move |event: &Event<'_>| {
            if let Event::Transition { name, .. } = event {
                told.lock().unwrap().push(name.map(str::to_owned));
            }
        })
        .per_session(|ask: &Ask| ask.session.as_str(), 100);
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|ask: Ask| ready(Ok::<_, BoxError>(ask.query))));
    let ask = |session: &str| Ask {
        session: session.to_owned(),
        query: 7,
    };
    for _ in 0..2 {
        for session in ["a", "b"] {
            tool.ready()
                .await
                .unwrap()
                .call(ask(session))
                .await
                .unwrap();
        }
    }
    assert!(!handle.would_allow(&ask("a")));
    assert!(handle.would_allow(&ask("c")));
    assert_eq!(handle.keys().len(), 2, "a question makes no fence");
    tool.ready()
        .await
        .unwrap()
        .call(ask("a"))
        .await
        .unwrap_err();
    assert_eq!(
        (handle.state("a"), handle.state("b")),
        (State::Open, State::Closed)
    );
    assert_eq!(*names.lock().unwrap(), [Some("a".to_owned())]);
    handle.reset("a");
    assert_eq!(
        (handle.state("a"), handle.turns("a"), handle.turns("b")),
        (State::Closed, 0, 2)
    );
    assert!(handle.forget("b"));
    assert!(!handle.forget("b"));
    assert!(handle.extend("c", 5));
    assert_eq!(handle.snapshot("c").turns_left, 13);
    assert_eq!(handle.snapshot("d").turns_left, 8);
}
