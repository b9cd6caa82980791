//! Proves that a setting has a documented meaning or panics with its name.

use std::time::Duration;

use tower::Layer;
use tower_breaker::{Limit, TripwireLayer};

use crate::support::calls::{Call, Tool, call, search};
use crate::support::panic_message;

/// Case 17.
#[test]
fn a_nonsense_setting_panics_and_names_its_setter() {
    let new = TripwireLayer::new;
    let cases: [(fn(), &str); 12] = [
        (
            || drop(TripwireLayer::new().identical_limit(0)),
            "`identical_limit`",
        ),
        (
            || drop(TripwireLayer::new().identical_limit(1)),
            "`identical_limit`",
        ),
        (
            || drop(TripwireLayer::new().error_limit(0)),
            "`error_limit`",
        ),
        (
            || drop(TripwireLayer::new().open_cooldown_rejects(0)),
            "`open_cooldown_rejects`",
        ),
        (
            || drop(TripwireLayer::new().deadline(Duration::ZERO)),
            "`deadline`",
        ),
        (|| drop(TripwireLayer::new().warn_at(0)), "`warn_at`"),
        (|| drop(TripwireLayer::new().cycles(0, 3)), "`max_period`"),
        (|| drop(TripwireLayer::new().cycles(1, 3)), "`max_period`"),
        (|| drop(TripwireLayer::new().cycles(3, 0)), "`repeats`"),
        (|| drop(TripwireLayer::new().cycles(3, 1)), "`repeats`"),
        (
            || drop(TripwireLayer::new().cycles(u32::MAX, u32::MAX)),
            "`cycles`",
        ),
        (
            || assert_eq!(Limit::identical(1), Limit::exempt()),
            "`Limit::identical`",
        ),
    ];
    for (case, names) in cases {
        let message = panic_message(case);
        assert!(message.contains(names), "{message}");
    }
    let capacity = panic_message(|| {
        drop(TripwireLayer::new().per_owned_session(|call: &Call| call.1, 0));
    });
    assert!(capacity.contains("`capacity`"), "{capacity}");
    let _ = new().deadline(Duration::MAX);
}

/// Case 17.
#[tokio::test]
async fn max_turns_of_zero_refuses_every_call_and_large_settings_overflow_nothing() {
    let layer = TripwireLayer::new().max_turns(0);
    let mut tool = layer.layer(Tool::default());
    for n in 0..20 {
        call(&mut tool, search(n)).await.unwrap_err();
    }
    let layer = TripwireLayer::new()
        .max_turns(u32::MAX)
        .identical_limit(u32::MAX)
        .error_limit(u32::MAX)
        .open_cooldown_rejects(u32::MAX)
        .warn_at(u32::MAX)
        .deadline(Duration::MAX);
    let mut tool = layer.layer(Tool::default());
    for _ in 0..20 {
        call(&mut tool, search(1)).await.unwrap();
        call(&mut tool, ("down", 1)).await.unwrap_err();
    }
    layer.handle().extend(u32::MAX);
    assert_eq!(layer.handle().turns(), 40);
}
