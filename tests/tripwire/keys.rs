//! Proves that sessions have independent fences, however many sessions have ended.

use std::future::ready;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::{Digest, Event, Reason, State, TripwireLayer};

use crate::support::calls::{Call, Tool, call};
use crate::support::refused;

#[tokio::test]
async fn sessions_are_apart_and_named_and_can_be_forgotten() {
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

/// Case 37.
#[test]
fn on_real_threads_a_sessions_budget_is_never_exceeded_beside_other_sessions() {
    for round in 0..20 {
        let layer = TripwireLayer::new()
            .max_turns(3)
            .identical_limit(u32::MAX)
            .per_owned_session(
                |call: &Call| if call.0 == "ours" { 0 } else { call.1 + 1 },
                4,
            );
        let ours = Tool::default();
        let at_once = std::sync::Barrier::new(24);
        std::thread::scope(|scope| {
            for n in 0..24 {
                let (layer, ours, at_once) = (&layer, ours.clone(), &at_once);
                scope.spawn(move || {
                    at_once.wait();
                    if n % 2 == 0 {
                        let service = layer.layer(ours);
                        let _ = futures::executor::block_on(service.oneshot(("ours", n)));
                    } else {
                        // Three other sessions at a time, so that ours is never evicted.
                        let service = layer.layer(Tool::default());
                        let _ = futures::executor::block_on(service.oneshot(("other", n % 3)));
                    }
                });
            }
        });
        assert_eq!(ours.calls(), 3, "round {round}");
    }
}

/// Case 48.
#[tokio::test]
async fn after_five_thousand_finished_runs_the_next_is_still_fenced() {
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
        assert_eq!(
            refused(call(&mut tool, ("c", run)).await).reason(),
            Reason::MaxTurns
        );
    }
    assert_eq!(handle.keys().len(), 1_000);
    assert_eq!(evicted.load(Ordering::SeqCst), 4_001);
    assert_eq!(handle.reason(&5_000), Some(Reason::MaxTurns));
}
