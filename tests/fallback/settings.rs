//! Proves that a setting has a documented meaning or panics with its name.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_breaker::FallbackLayer;

use crate::support::model::{Does, Model, Models, rate_limited, turn, turns};
use crate::support::{panic_message, pass, secs};

/// Case 17.
#[test]
fn a_nonsense_setting_panics_and_names_its_setter() {
    fn layer() -> FallbackLayer {
        FallbackLayer::new("primary")
    }
    let cases: [(&dyn Fn(), &str); 6] = [
        (&|| drop(layer().trip_threshold(0)), "trip_threshold"),
        (
            &|| drop(layer().recovery_successes_needed(0)),
            "recovery_successes_needed",
        ),
        (&|| drop(layer().max_fail_count(0)), "max_fail_count"),
        (&|| drop(layer().probation_limit(0)), "probation_limit"),
        (
            &|| drop(layer().probe_timeout(Duration::ZERO)),
            "probe_timeout",
        ),
        (&|| drop(layer().bench(Duration::ZERO)), "bench"),
    ];
    for (build, name) in cases {
        let message = panic_message(build);
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
}

/// Case 28.
#[test]
fn a_duplicate_or_empty_name_panics_and_the_message_holds_the_name() {
    let model = || Model::new("m");
    let rewriting = || FallbackLayer::rewriting("gpt-5", |_: &mut String, _: &str| ());
    let cases: [(&dyn Fn(), &str); 9] = [
        (
            &|| drop(FallbackLayer::new("gpt-5").backup("gpt-5", model())),
            "`gpt-5`",
        ),
        (
            &|| {
                drop(
                    FallbackLayer::new("p")
                        .backup("claude", model())
                        .backup("claude", model()),
                );
            },
            "`claude`",
        ),
        (
            &|| {
                drop(
                    FallbackLayer::new("p")
                        .backup("a", model())
                        .backup("p", model()),
                );
            },
            "`p`",
        ),
        (&|| drop(FallbackLayer::new("p").backup("", model())), "``"),
        (&|| drop(FallbackLayer::new("")), "``"),
        (&|| drop(rewriting().model("gpt-5")), "`gpt-5`"),
        (&|| drop(rewriting().model("a").model("a")), "`a`"),
        (&|| drop(rewriting().model("")), "``"),
        (
            &|| drop(FallbackLayer::rewriting("", |_: &mut String, _: &str| ())),
            "``",
        ),
    ];
    for (build, name) in cases {
        let message = panic_message(build);
        assert!(message.contains(name), "{message}");
    }
}

/// Case 17.
#[tokio::test(start_paused = true)]
async fn settings_at_their_limits_mean_what_the_docs_say() {
    let models = Models::new();
    let layer = models
        .layer()
        .recovery_timeout(Duration::ZERO)
        .probe_timeout(Duration::MAX)
        .retry_after_cap(Duration::ZERO)
        .bench(Duration::MAX);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.primary.does(rate_limited(1000));
    turns(&service, 10).await;
    assert_eq!(models.primary.count(), 10, "every turn is a probe");
    models.primary.does(Does::Hang);
    drop(tokio::spawn(service.clone().oneshot(String::new())));
    tokio::task::yield_now().await;
    pass(secs(1_000_000_000)).await;
    assert_eq!(turn(&service).await, Ok("a"));
    assert_eq!(handle.snapshot().lease_left, None);

    let layer = models
        .layer()
        .recovery_timeout(Duration::MAX)
        .retry_after_cap(Duration::MAX);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.primary.does(rate_limited(u64::MAX));
    turns(&service, 3).await;
    pass(secs(1_000_000_000)).await;
    assert_eq!(turn(&service).await, Ok("a"));
    assert_eq!(handle.snapshot().time_until_probe, None);
}
