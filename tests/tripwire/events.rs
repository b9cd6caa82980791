//! Proves what observers are told, and in which order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower::{Layer, Service, ServiceExt};
use tower_breaker::{Event, TripwireLayer};

use crate::support::calls::{Tool, armed, call, search};

#[tokio::test]
async fn transitions_come_in_order_though_another_listener_panics() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let layer = TripwireLayer::new()
        .max_turns(100)
        .observe(|_: &Event<'_>| panic!("a listener's own"))
        .observe(move |event: &Event<'_>| {
            if let Event::Transition {
                from, to, reason, ..
            } = event
            {
                told.lock().unwrap().push(format!("{from} {to} {reason}"));
            }
        });
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    armed(&mut tool).await;
    call(&mut tool, search(1)).await.unwrap();
    handle.reset();
    assert_eq!(
        *seen.lock().unwrap(),
        [
            "closed open error_streak",
            "open half_open cooldown_over",
            "half_open closed probe_succeeded",
            "closed closed reset",
        ]
    );
}

#[tokio::test]
async fn late_verdicts_and_probes_are_told() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let layer =
        TripwireLayer::new()
            .name("tools")
            .max_turns(100)
            .observe(move |event: &Event<'_>| {
                assert!(event.name().is_some());
                told.lock().unwrap().push(match event {
                    Event::LateVerdict { .. } => "late",
                    Event::ProbeStarted { lease, .. } if *lease == Duration::MAX => "probe",
                    Event::Transition { .. } => "transition",
                    Event::Refused { .. } => "refused",
                    _ => "other",
                });
            });
    let mut tool = layer.layer(Tool::default());
    let early = tool.ready().await.unwrap().call(search(77));
    armed(&mut tool).await;
    early.await.unwrap();
    call(&mut tool, search(1)).await.unwrap();
    let refused = ["refused"; 3];
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], "transition");
    assert_eq!(seen[1..4], refused);
    // The caller tells the fourth refusal, and the delivering thread its transition, in either
    // order.
    let mut fourth = seen[4..6].to_vec();
    fourth.sort_unstable();
    assert_eq!(fourth, ["refused", "transition"]);
    assert_eq!(seen[6..], ["late", "probe", "transition"]);
}
