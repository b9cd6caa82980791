//! Cases 24 to 35 from the field, and case 17 for this layer. What 31, 33 and 34 say of bodies and HTTP is not here.

mod fallback_support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fallback_support::{
    Answer, DOWN, Does, FATAL, Model, ModelError, NEUTRAL, advance, classify, rate_limited,
    strikes, turn, turns,
};
use futures::future::join_all;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{
    CircuitBreakerLayer, Exhausted, FallbackHandle, FallbackLayer, FallbackState, Outcome, Reason,
    Refusal, State,
};

const SECOND: Duration = Duration::from_secs(1);

struct Models {
    primary: Model,
    a: Model,
    b: Model,
}

impl Models {
    fn new() -> Self {
        Self {
            primary: Model::new("primary"),
            a: Model::new("a"),
            b: Model::new("b"),
        }
    }

    /// The default layer with the chain [a, b].
    fn layer(
        &self,
    ) -> FallbackLayer<
        tower_breaker::fallback::Services<Model>,
        impl Fn(Result<&Answer, &ModelError>) -> Outcome + Clone + use<>,
    > {
        FallbackLayer::new("primary")
            .backup("a", self.a.clone())
            .backup("b", self.b.clone())
            .classify(classify)
    }
}

/// Trips the primary, which stays down.
async fn trip<S>(service: &S, handle: &FallbackHandle, models: &Models)
where
    S: Service<String, Response = Answer> + Clone,
    S::Error: std::fmt::Display,
{
    models.primary.does(DOWN);
    for _ in 0..3 {
        turn(service).await.unwrap_err();
    }
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(models.primary.count(), 3);
}

fn refusal(result: Result<Answer, BoxError>) -> Refusal {
    let err = result.expect_err("refused");
    Refusal::find(&*err).expect("a refusal").clone()
}

#[tokio::test(start_paused = true)]
async fn case_24_back_to_the_primary() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    assert!(handle.fallback_activated());

    advance(59).await;
    assert_eq!(turns(&service, 5).await, vec![Ok("a"); 5]);
    assert_eq!(handle.active_model().as_deref(), Some("a"));
    advance(1).await;
    assert_eq!(handle.active_model().as_deref(), Some("primary"));
    assert_eq!(handle.state(), FallbackState::Fallback);

    // Exactly one turn goes to the primary, of however many at once.
    models.primary.does(Does::Wait);
    let probe = tokio::spawn(service.clone().oneshot("probe".to_owned()));
    tokio::task::yield_now().await;
    assert_eq!(turns(&service, 10).await, vec![Ok("a"); 10]);
    assert_eq!(models.primary.calls(), ["probe"]);
    models.primary.release(Does::Answer);
    assert_eq!(probe.await.unwrap().unwrap().by, "primary");

    // One good, one transient, one good: still Recovering.
    models.primary.does(DOWN);
    turn(&service).await.unwrap_err();
    models.primary.does(Does::Answer);
    assert_eq!(turn(&service).await, Ok("primary"));
    assert_eq!(handle.state(), FallbackState::Recovering);
    assert_eq!(handle.snapshot().probe_successes, 1);
    assert_eq!(turn(&service).await, Ok("primary"));
    assert_eq!(handle.state(), FallbackState::Primary);
    assert!(handle.fallback_activated(), "for good");
    handle.reset();
    assert!(!handle.fallback_activated());
}

#[tokio::test(start_paused = true)]
async fn case_25_a_dead_primary() {
    let models = Models::new();
    let layer = models.layer().probation_limit(3);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    for minute in 0..4 {
        advance(60).await;
        let answers = turns(&service, 100).await;
        let reached = models.primary.count();
        assert!(reached <= 3, "minute {minute}: {reached}");
        let by_a = answers.iter().filter(|answer| **answer == Ok("a")).count();
        assert_eq!(by_a, 100 - reached);
    }

    let layer = models
        .layer()
        .probation_limit(3)
        .same_turn(|req: &String| Some(req.clone()));
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    assert_eq!(turns(&service, 3).await, vec![Ok("a"); 3]);
    assert_eq!(handle.state(), FallbackState::Fallback);
    models.primary.calls();
    advance(60).await;
    assert_eq!(turns(&service, 100).await, vec![Ok("a"); 100]);
    assert_eq!(models.primary.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn case_26_who_gets_the_strike() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;

    models.a.does(Does::Wait);
    models.b.does(Does::Wait);
    let on_a = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    handle.disable("a").unwrap();
    let on_b = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    models.b.release(DOWN);
    models.a.release(DOWN);
    assert!(
        on_a.await
            .unwrap()
            .unwrap_err()
            .to_string()
            .starts_with("a:")
    );
    assert!(
        on_b.await
            .unwrap()
            .unwrap_err()
            .to_string()
            .starts_with("b:")
    );
    assert_eq!(strikes(&handle.snapshot()), [1, 1]);

    // Ten turns in flight on the primary all fail: the chain has no strike at all.
    handle.reset();
    models.primary.does(Does::Wait);
    let flying = (0..10).map(|_| tokio::spawn(service.clone().oneshot(String::new())));
    let flying: Vec<_> = flying.collect();
    tokio::task::yield_now().await;
    for _ in 0..10 {
        models.primary.release(DOWN);
    }
    assert!(
        join_all(flying)
            .await
            .iter()
            .all(|turn| turn.as_ref().unwrap().is_err())
    );
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(strikes(&handle.snapshot()), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn case_27_exhausted() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    models.a.does(DOWN);
    models.b.does(DOWN);
    turns(&service, 4).await;
    assert_eq!((models.a.count(), models.b.count()), (2, 2));
    assert_eq!(strikes(&handle.snapshot()), [2, 2]);

    advance(20).await;
    assert_eq!(handle.active_model(), None);
    let refused = refusal(service.clone().oneshot(String::new()).await);
    assert_eq!(refused.reason(), Reason::FallbackExhausted);
    assert_eq!(refused.retry_after(), Some(40 * SECOND));
    assert_eq!(refused.name(), Some("primary"));
    assert_eq!(
        refused.to_string(),
        "model `primary` temporarily unavailable, and its backups too"
    );
    let none = (0, 0, 0);
    let counts = || (models.primary.count(), models.a.count(), models.b.count());
    assert_eq!(counts(), none);

    advance(40).await;
    models.primary.does(Does::Wait);
    let probe = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    advance(50).await;
    let refused = refusal(service.clone().oneshot(String::new()).await);
    assert_eq!(refused.reason(), Reason::ProbeInFlight);
    assert_eq!(refused.retry_after(), Some(70 * SECOND));
    models.primary.release(Does::Answer);
    assert_eq!(probe.await.unwrap().unwrap().by, "primary");
    assert_eq!(counts(), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn case_27_without_a_chain_it_is_never_refused() {
    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary").classify(classify);
    let (service, handle) = (layer.layer(primary.clone()), layer.handle());
    primary.does(DOWN);
    for _ in 0..200 {
        assert!(turn(&service).await.unwrap_err().starts_with("primary:"));
        advance(1).await;
    }
    assert_eq!(primary.count(), 200);
    assert!(handle.fallback_activated());
    assert_eq!(handle.active_model().as_deref(), Some("primary"));
}

#[test]
fn case_28_duplicates_and_the_primary_in_its_own_chain() {
    let message = |build: &dyn Fn()| {
        let payload = catch_unwind(AssertUnwindSafe(build)).expect_err("panics");
        payload.downcast::<String>().map_or_else(
            |payload| (*payload.downcast::<&str>().unwrap()).to_owned(),
            |message| *message,
        )
    };
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
        let message = message(build);
        assert!(message.contains(name), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn case_29_late_answers() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());

    models.primary.does(Does::Wait);
    let old = tokio::spawn(service.clone().oneshot(String::new()));
    tokio::task::yield_now().await;
    models.primary.calls();
    trip(&service, &handle, &models).await;
    models.a.does(Does::Wait);
    let late: Vec<_> = (0..5)
        .map(|_| tokio::spawn(service.clone().oneshot(String::new())))
        .collect();
    tokio::task::yield_now().await;
    advance(60).await;
    models.primary.does(Does::Answer);
    assert_eq!(turn(&service).await, Ok("primary"));
    for _ in 0..5 {
        models.a.release(Does::Answer);
    }
    for turn in join_all(late).await {
        assert_eq!(turn.unwrap().unwrap().by, "a");
    }
    assert_eq!(
        handle.snapshot().probe_successes,
        1,
        "never as the primary's"
    );
    assert_eq!(handle.state(), FallbackState::Recovering);
    assert_eq!(turn(&service).await, Ok("primary"));
    let recovered = handle.snapshot();
    assert_eq!(recovered.state, FallbackState::Primary);

    models.primary.release(FATAL);
    old.await.unwrap().unwrap_err();
    assert_eq!(handle.snapshot(), recovered);
}

#[tokio::test(start_paused = true)]
async fn case_30_spent_stays_remembered() {
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    models.a.does(DOWN);
    turns(&service, 2).await;
    models.a.does(Does::Answer);
    assert_eq!(models.a.count(), 2);
    assert_eq!(turns(&service, 10).await, vec![Ok("b"); 10]);
    assert_eq!(models.a.count(), 0);

    let layer = models
        .layer()
        .bench(Duration::from_secs(5 * 60))
        .recovery_timeout(Duration::MAX);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.primary.calls();
    trip(&service, &handle, &models).await;
    models.a.does(DOWN);
    turns(&service, 2).await;
    advance(5 * 60 - 1).await;
    assert_eq!(turn(&service).await, Ok("b"));
    assert_eq!(handle.snapshot().entries[0].bench_left, Some(SECOND));
    advance(1).await;
    models.a.calls();
    assert!(turn(&service).await.unwrap_err().starts_with("a:"));
    assert_eq!(strikes(&handle.snapshot()), [1, 0], "a fresh budget");
    turn(&service).await.unwrap_err();
    assert_eq!(turn(&service).await, Ok("b"));
}

#[tokio::test(start_paused = true)]
async fn case_31_an_answer_that_was_given_is_not_taken_back() {
    // The head of a stream is a success, and the turn's result: nothing goes on from it.
    let models = Models::new();
    let layer = models.layer().same_turn(|req: &String| Some(req.clone()));
    let service = layer.layer(models.primary.clone());
    assert_eq!(turn(&service).await, Ok("primary"));
    models.primary.does(NEUTRAL);
    assert!(turn(&service).await.unwrap_err().starts_with("primary:"));
    assert_eq!((models.a.count(), models.b.count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn case_32_the_inner_breaker_still_sees() {
    let down = Arc::new(Mutex::new(0));
    let calls = Arc::clone(&down);
    let primary = service_fn(move |_: String| {
        *calls.lock().unwrap() += 1;
        async { Err::<Answer, BoxError>("the primary is down".into()) }
    });
    let a = Model::new("a");
    let breaker = CircuitBreakerLayer::new().failure_threshold(2);
    let layer = FallbackLayer::new("primary").backup("a", a.clone().map_err(BoxError::from));
    let handle = layer.handle();
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(breaker.clone())
        .service(primary);

    let first = turns(&service, 2).await;
    assert!(
        first
            .iter()
            .all(|turn| *turn == Err("the primary is down".to_owned()))
    );
    assert_eq!(breaker.handle().state(), State::Open);
    let refused = service.clone().oneshot(String::new()).await;
    assert_eq!(refusal(refused).reason(), Reason::CircuitOpen);
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(turns(&service, 20).await, vec![Ok("a"); 20]);
    assert_eq!(*down.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn case_33_a_request_that_cannot_be_cloned_is_not_replayed_and_one_that_can_arrives_whole() {
    let models = Models::new();
    let layer = models
        .layer()
        .same_turn(|req: &String| (!req.starts_with("stream")).then(|| req.clone()));
    let service = layer.layer(models.primary.clone());
    models.primary.does(DOWN);
    let err = service
        .clone()
        .oneshot("stream 1".to_owned())
        .await
        .unwrap_err();
    assert_eq!(
        err.downcast_ref::<ModelError>().map(|err| err.by),
        Some("primary"),
        "the original error"
    );
    assert_eq!(models.a.count(), 0);

    let body = "identical \u{1f980} bytes".to_owned();
    let answer = service.clone().oneshot(body.clone()).await.unwrap();
    assert_eq!((answer.by, &answer.request), ("a", &body));
    assert_eq!(models.a.calls(), [body]);
}

#[tokio::test(start_paused = true)]
async fn case_34_which_results_move_on() {
    for (does, state, consecutive) in [
        (DOWN, FallbackState::Primary, 1),
        (rate_limited(1), FallbackState::Primary, 1),
        (NEUTRAL, FallbackState::Primary, 0),
        (FATAL, FallbackState::Fallback, 0),
    ] {
        let models = Models::new();
        let layer = models.layer();
        let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
        models.primary.does(does);
        turn(&service).await.unwrap_err();
        assert_eq!(handle.state(), state, "{does:?}");
        assert_eq!(handle.snapshot().consecutive_failures, consecutive);
    }
    // And a fatal result spends an entry at once.
    let models = Models::new();
    let layer = models.layer();
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    trip(&service, &handle, &models).await;
    models.a.does(FATAL);
    turn(&service).await.unwrap_err();
    assert_eq!(turn(&service).await, Ok("b"));
}

#[tokio::test(start_paused = true)]
async fn case_35_last_resort() {
    let models = Models::new();
    for exhausted in [Exhausted::Refuse, Exhausted::LastResort] {
        let layer = models.layer().when_exhausted(exhausted);
        let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
        trip(&service, &handle, &models).await;
        models.a.does(FATAL);
        models.b.does(FATAL);
        turns(&service, 2).await;
        models.primary.does(Does::Answer);
        let result = turn(&service).await;
        if exhausted == Exhausted::Refuse {
            assert!(result.unwrap_err().contains("and its backups too"));
            assert_eq!(models.primary.count(), 0);
        } else {
            assert_eq!(result, Ok("primary"));
            assert_eq!(models.primary.count(), 1);
            models.primary.does(DOWN);
            advance(30).await;
            turn(&service).await.unwrap_err();
            let left = handle.snapshot().time_until_probe;
            assert_eq!(left, Some(30 * SECOND), "its result says nothing");
            models.primary.calls();
        }
    }
}

#[test]
fn case_17_nonsense_settings_panic_and_name_the_setter() {
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
        let payload = catch_unwind(AssertUnwindSafe(build)).expect_err(name);
        let message = payload.downcast_ref::<&str>().unwrap();
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn case_17_times_without_end_and_of_no_length_are_as_documented() {
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
    advance(1_000_000_000).await;
    assert_eq!(turn(&service).await, Ok("a"));
    assert_eq!(handle.snapshot().lease_left, None);

    let layer = models
        .layer()
        .recovery_timeout(Duration::MAX)
        .retry_after_cap(Duration::MAX);
    let (service, handle) = (layer.layer(models.primary.clone()), layer.handle());
    models.primary.does(rate_limited(u64::MAX));
    turns(&service, 3).await;
    advance(1_000_000_000).await;
    assert_eq!(turn(&service).await, Ok("a"));
    assert_eq!(handle.snapshot().time_until_probe, None);
}
