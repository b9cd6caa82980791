//! The names of the circuit breaker and of the shared vocabulary.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::circuit_breaker::future::ResponseFuture;
use tower_breaker::{
    AsBoxError, Cancelled, CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer,
    CircuitBreakerSnapshot, Classify, ErrorsAsFailures, Event, Failure, FailureKind, HealthRouter,
    IntoError, KeyedCircuitBreakerHandle, Observe, Outcome, Permit, Reason, Recorded, Refusal,
    RefusalsAsFailures, Refuse, RefuseWith, State, TransitionReason, WhenOpen, Window,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
struct ToolCall {
    name: String,
    id: u64,
    provider: String,
    model: String,
}

impl ToolCall {
    fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            id: 7,
            provider: "openai".to_owned(),
            model: "gpt-5".to_owned(),
        }
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Clone, Debug, PartialEq)]
struct ToolResult {
    text: String,
    is_error: bool,
}

#[derive(Debug)]
enum ToolError {
    Down,
    Refused(Refusal),
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tool error")
    }
}

impl Error for ToolError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ToolError::Down => None,
            ToolError::Refused(refusal) => Some(refusal),
        }
    }
}

impl From<Refusal> for ToolError {
    fn from(refusal: Refusal) -> Self {
        ToolError::Refused(refusal)
    }
}

/// A tool that answers with its name, and fails as `down`.
#[derive(Clone, Debug)]
pub struct Tool;

impl Service<ToolCall> for Tool {
    type Response = ToolResult;
    type Error = ToolError;
    type Future = Ready<Result<ToolResult, ToolError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        ready(match call.name.as_str() {
            "down" => Err(ToolError::Down),
            _ => Ok(ToolResult {
                text: call.name,
                is_error: false,
            }),
        })
    }
}

// ===== setters =====

#[tokio::test]
async fn the_designs_example_compiles_unchanged() {
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .failure_threshold(3)
        .recovery_duration(Duration::from_secs(30))
        .probe_timeout(Duration::from_secs(30))
        .success_threshold(1)
        .on_cancel(Cancelled::Ignore)
        .backoff(2, Duration::from_secs(60))
        .jitter(0.15)
        .jitter_seed(42)
        .failure_rate(0.5, Window::Calls(20))
        .minimum_calls(10)
        .slow_call(Duration::from_secs(10))
        .retry_after_cap(Duration::from_secs(300))
        .observe_only()
        .when_open(WhenOpen::Refuse)
        .classify(|result: Result<&ToolResult, &Infallible>| match result {
            Ok(answer) if answer.is_error => Outcome::Failure(Failure::transient()),
            _ => Outcome::Success,
        })
        .refuse_with(
            |_call: ToolCall, refusal: Refusal| -> Result<ToolResult, Infallible> {
                Ok(ToolResult {
                    text: refusal.to_string(),
                    is_error: true,
                })
            },
        )
        .observe(|event: &Event<'_>| {
            let _ = event;
        })
        .per_key(|call: &ToolCall| call.name.as_str(), 1_000);
    let handle = layer.handle();
    let mut tools =
        ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(|call: ToolCall| async move {
                Ok::<_, Infallible>(ToolResult {
                    text: call.name,
                    is_error: false,
                })
            }));
    let Ok(answer) = tools.ready().await.unwrap().call(ToolCall::of("a")).await;
    assert_eq!(
        (answer.text.as_str(), handle.state("a")),
        ("a", State::Closed)
    );
}

#[test]
fn setters_take_numbers_names_and_rules_of_each_kind() {
    let layer = CircuitBreakerLayer::new()
        .backoff(2, SECOND)
        .backoff(2_u32, SECOND)
        .backoff(1.5, SECOND)
        .backoff(1.5_f32, SECOND)
        .backoff(1.5_f64, Duration::MAX)
        .jitter(0)
        .jitter(1)
        .jitter(0.2)
        .jitter(0.2_f32)
        .jitter_seed(u64::MAX)
        .failure_rate(1, Window::Calls(20))
        .failure_rate(0.5, Window::Time(60 * SECOND))
        .failure_rate(0.5_f32, Window::Time(Duration::from_secs(60)))
        .on_cancel(Cancelled::Release)
        .on_cancel(Cancelled::Failure)
        .on_cancel(Cancelled::FailureAfter(SECOND))
        .when_open(WhenOpen::NotReady);
    let name = format!("tool {}", 7);
    for (layer, expected) in [
        (layer.clone().name("static"), "static"),
        (layer.clone().name(name), "tool 7"),
        (layer.clone().name(String::from("owned")), "owned"),
        (layer.clone().name(Cow::Borrowed("cow")), "cow"),
        (
            layer.clone().name(Cow::Owned("own cow".to_owned())),
            "own cow",
        ),
    ] {
        let handle = layer.handle();
        handle.force_open();
        assert_eq!(handle.try_acquire().unwrap_err().name(), Some(expected));
    }
    let _ = CircuitBreakerLayer::default();
}

#[derive(Clone)]
struct Strict;

impl Classify<ToolResult, ToolError> for Strict {
    fn classify(&self, result: Result<&ToolResult, &ToolError>) -> Outcome {
        match result {
            Ok(answer) if answer.is_error => Failure::transient().into(),
            Ok(_) => Outcome::Success,
            Err(ToolError::Down) => {
                Outcome::Failure(Failure::rate_limited().with_retry_after(SECOND))
            }
            Err(ToolError::Refused(_)) => Outcome::Neutral,
        }
    }
}

#[derive(Clone)]
struct AsText;

impl<E> Refuse<ToolCall, ToolResult, E> for AsText {
    type Error = E;

    fn refuse(&self, call: ToolCall, refusal: Refusal) -> Result<ToolResult, E> {
        Ok(ToolResult {
            text: format!("{}: {refusal}", call.name()),
            is_error: true,
        })
    }

    fn convert(err: E) -> E {
        err
    }
}

#[derive(Clone, Default)]
struct Counter(Arc<AtomicU32>);

impl Observe for Counter {
    fn observe(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn by_function(result: Result<&ToolResult, &ToolError>) -> Outcome {
    ErrorsAsFailures.classify(result)
}

fn watch(event: &Event) {
    let _ = event.name();
}

#[tokio::test]
async fn classifiers_policies_and_observers_may_be_closures_functions_boxes_and_types() {
    let counter = Counter::default();
    let boxed: Box<dyn Fn(&Event<'_>) + Send + Sync> = Box::new(|_| ());
    // The trait is implemented for closures, so not for shared or boxed observers. A closure
    // lends them.
    let shared: Arc<dyn Observe + Send + Sync> = Arc::new(counter.clone());
    let other: Box<dyn Observe + Send + Sync> = Box::new(counter.clone());
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .observe(counter.clone())
        .observe(boxed)
        .observe(watch)
        .observe(move |event: &Event<'_>| shared.observe(event))
        .observe(move |event: &Event| other.observe(event));

    let _ = layer.clone().classify(ErrorsAsFailures).layer(Tool);
    let _ = layer.clone().classify(RefusalsAsFailures).layer(Tool);
    let _ = layer.clone().classify(by_function).layer(Tool);
    let _ = layer.clone().refuse(AsBoxError).layer(Tool);
    let _ = layer
        .clone()
        .refuse(RefuseWith::new(|_: ToolCall, refusal: Refusal| {
            Err::<ToolResult, ToolError>(refusal.into())
        }))
        .layer(Tool);
    let mut kept = layer.clone().classify(Strict).refuse(IntoError).layer(Tool);
    let mut told = layer.classify(Strict).refuse(AsText).layer(Tool);

    let down = || ToolCall::of("down");
    for _ in 0..2 {
        let _: Result<ToolResult, ToolError> = kept.ready().await.unwrap().call(down()).await;
        let _: Result<ToolResult, ToolError> = told.ready().await.unwrap().call(down()).await;
    }
    match kept.ready().await.unwrap().call(down()).await {
        Err(ToolError::Refused(refusal)) => assert_eq!(refusal.reason(), Reason::CircuitOpen),
        other => panic!("{other:?}"),
    }
    let answer = told.ready().await.unwrap().call(down()).await.unwrap();
    assert_eq!(
        answer.text,
        "down: tool temporarily unavailable: circuit breaker open"
    );
    assert!(counter.0.load(Ordering::Relaxed) > 0);
}

// ===== layers, services and futures =====

struct Agent {
    layer: CircuitBreakerLayer,
    tool: CircuitBreaker<Tool>,
    handle: CircuitBreakerHandle,
    by_name: KeyedCircuitBreakerHandle<String>,
    permit: Option<Permit>,
    snapshot: CircuitBreakerSnapshot,
}

type Asked = ResponseFuture<
    Ready<Result<ToolResult, ToolError>>,
    ErrorsAsFailures,
    AsBoxError,
    ToolCall,
    Result<ToolResult, BoxError>,
>;

#[tokio::test]
async fn layers_are_given_by_value_by_reference_and_as_clones() {
    let layer = CircuitBreakerLayer::new();
    let mut one = ServiceBuilder::new().layer(layer.clone()).service(Tool);
    let _ = ServiceBuilder::new().layer(&layer).service(Tool);
    let mut agent = Agent {
        tool: layer.layer(Tool),
        handle: layer.handle(),
        by_name: layer
            .clone()
            .per_key(|call: &ToolCall| call.name.as_str(), 1)
            .handle(),
        permit: layer.handle().try_acquire().ok(),
        snapshot: layer.handle().snapshot(),
        layer,
    };
    let asked: Asked = agent.tool.ready().await.unwrap().call(ToolCall::of("a"));
    assert_eq!(asked.await.unwrap().text, "a");
    one.ready().await.unwrap();
    let boxed = ServiceBuilder::new()
        .boxed_clone_sync()
        .layer(&agent.layer)
        .service(Tool);
    let answer: Result<ToolResult, BoxError> = boxed.oneshot(ToolCall::of("b")).await;
    assert_eq!(answer.unwrap().text, "b");

    let _: &Tool = agent.tool.get_ref();
    let _: &mut Tool = agent.tool.get_mut();
    let _: Tool = agent.tool.into_inner();
    agent.permit.take().unwrap().success();
    agent.by_name.reset("a");
    assert_eq!(agent.handle.clone().snapshot(), agent.snapshot);
}

// ===== handles =====

fn guarded(handle: &CircuitBreakerHandle) -> Result<u32, Box<dyn Error>> {
    let permit = handle.try_acquire()?;
    permit.success();
    Ok(42)
}

fn guarded_by_name(handle: &KeyedCircuitBreakerHandle<String>) -> Result<u32, BoxError> {
    let permit = handle.try_acquire("search")?;
    permit.record(Outcome::Success);
    Ok(42)
}

fn guarded_typed(handle: &CircuitBreakerHandle) -> Result<(), ToolError> {
    let _ = handle.try_acquire()?.success();
    Ok(())
}

#[test]
fn the_results_of_a_handle_may_be_ignored() {
    let handle = CircuitBreakerLayer::new().failure_threshold(10).handle();
    assert_eq!(guarded(&handle).unwrap(), 42);
    guarded_typed(&handle).unwrap();

    let permit = handle.try_acquire().unwrap();
    assert!(!permit.is_probe());
    permit.success();
    handle.try_acquire().unwrap().failure();
    handle.try_acquire().unwrap().record(Outcome::Neutral);
    let permit = handle.try_acquire().unwrap();
    permit.record(Outcome::Failure(Failure::transient()));
    let permit = handle.try_acquire().unwrap();
    permit.record(Failure::rate_limited().with_retry_after(SECOND));
    let recorded = handle.try_acquire().unwrap().record(Failure::fatal());
    assert_eq!(recorded, Recorded::Applied);

    assert!(!handle.would_allow());
    assert_eq!(handle.state(), State::Open);
    let CircuitBreakerSnapshot {
        state,
        due,
        forced,
        streak,
        time_left,
        trips,
        last_failure,
        ..
    } = handle.snapshot();
    assert_eq!(
        (state, due, forced, streak, trips),
        (State::Open, false, false, 4, 1)
    );
    assert!(time_left.unwrap() <= 30 * SECOND);
    assert_eq!(last_failure, Some(FailureKind::Fatal));

    handle.reset();
    let late = handle.try_acquire().unwrap();
    handle.force_open();
    assert!(matches!(late.failure(), Recorded::Stale));
    if let Err(refusal) = handle.try_acquire() {
        let _: (Option<&str>, Option<Duration>) = (refusal.name(), refusal.retry_after());
        let _: (Option<Reason>, Option<u32>) = (refusal.tripped_by(), refusal.count());
        let _: Option<FailureKind> = refusal.last_failure();
        assert_eq!(refusal.reason().to_string(), "forced_open");
        assert_eq!(refusal.clone(), refusal);
    }
    handle.clone().reset();
    assert_eq!(handle.state().to_string(), "closed");
}

#[test]
fn a_keyed_handle_takes_keys_as_a_map_does() {
    let new = || CircuitBreakerLayer::new().failure_threshold(1);

    // Keys of borrowed text, asked for with any form of text.
    let layer = new().per_key(|call: &ToolCall| call.name.as_str(), 100);
    let _ = new().per_key(ToolCall::name, 100);
    let handle = layer.handle();
    assert_eq!(guarded_by_name(&handle).unwrap(), 42);
    let owned = String::from("a");
    assert!(handle.would_allow("a"));
    assert!(handle.would_allow(&owned));
    handle.try_acquire(&owned).unwrap().success();
    handle.try_acquire(owned.as_str()).unwrap().failure();
    assert_eq!(handle.state(&owned), State::Open);
    assert_eq!(handle.snapshot("a").trips, 1);
    handle.reset("a");
    handle.force_open("x");
    handle.forget("x");
    let _: Option<&str> = handle.resolve("a");
    let mut keys: Vec<String> = handle.keys();
    keys.sort();
    assert_eq!(keys, ["a", "search"]);

    // Requests that are the key.
    let handle = new().per_key(|name: &String| name.as_str(), 100).handle();
    handle.force_open("a");
    let handle = new().per_key(|name: &&'static str| *name, 100).handle();
    handle.force_open("a");

    // The owned text itself.
    let handle = new().per_key(|call: &ToolCall| &call.name, 100).handle();
    handle.try_acquire("a").unwrap().failure();
    assert_eq!(handle.state("a"), State::Open);

    // A number.
    let handle = new().per_key(|call: &ToolCall| &call.id, 100).handle();
    handle.try_acquire(&7).unwrap().failure();
    assert_eq!(handle.try_acquire(&7).unwrap_err().name(), Some("7"));
    assert_eq!((handle.state(&7), handle.keys()), (State::Open, vec![7]));
    let handle = new().per_owned_key(|call: &ToolCall| call.id, 100).handle();
    handle.force_open(&7);
    assert!(!handle.would_allow(&7_u64));

    // A pair.
    let layer = new().per_owned_key(
        |call: &ToolCall| (call.provider.clone(), call.model.clone()),
        100,
    );
    let handle: KeyedCircuitBreakerHandle<(String, String)> = layer.handle();
    let pair = ("openai".to_owned(), "gpt-5".to_owned());
    handle.try_acquire(&pair).unwrap().failure();
    assert!(!handle.would_allow(&pair));
    assert!(handle.would_allow(&("openai".to_owned(), "gpt-4".to_owned())));
    handle.reset(&pair);
    handle.forget(&pair);
    let _ = layer.layer(Tool);

    // Keys that are `'static`.
    let handle = new().per_owned_key(|_: &ToolCall| "search", 100).handle();
    handle.try_acquire(&"search").unwrap().failure();
    assert_eq!(handle.keys(), ["search"]);
}

#[tokio::test]
async fn substitutes_are_given_in_any_form_of_text() {
    let router = HealthRouter::new()
        .route("search", ["search-mirror"])
        .route(
            String::from("maps"),
            vec![String::from("maps-b"), String::from("maps-c")],
        )
        .route("mail", ["mail-b", "mail-c"].map(String::from))
        .route("none", Vec::<String>::new());
    // The types of the closure's arguments follow from the key function.
    let _ = CircuitBreakerLayer::new()
        .per_key(|call: &ToolCall| call.name.as_str(), 100)
        .substitute(router.clone(), |call, name| call.name = name.into())
        .layer(Tool);
    let _ = CircuitBreakerLayer::new()
        .per_key(ToolCall::name, 100)
        .substitute(router.clone(), |call, name| call.name = name.into())
        .layer(Tool);
    let layer = CircuitBreakerLayer::new()
        .per_key(|call: &ToolCall| call.name.as_str(), 100)
        .substitute(router.clone(), |call: &mut ToolCall, name: &str| {
            call.name = name.into();
        })
        .name("tools")
        .observe(|_: &Event<'_>| ());
    let handle = layer.handle();
    handle.force_open("search");
    assert_eq!(handle.resolve("search"), Some("search-mirror"));
    let mut tools = layer.layer(Tool);
    let answer = tools.ready().await.unwrap().call(ToolCall::of("search"));
    assert_eq!(answer.await.unwrap().text, "search-mirror");
}

// ===== the vocabulary =====

#[test]
fn refusals_are_found_in_errors_of_every_form() {
    let handle = CircuitBreakerLayer::new().name("search").handle();
    handle.force_open();
    let refusal = handle.try_acquire().unwrap_err();
    let typed = ToolError::from(refusal.clone());
    assert!(Refusal::find(&refusal).is_some());
    assert!(Refusal::find(&typed).is_some());
    let boxed: BoxError = typed.into();
    assert!(Refusal::find(&*boxed).is_some());
    assert!(Refusal::find(boxed.as_ref()).is_some());
    let boxed: tower_breaker::BoxError = boxed;
    let local: Box<dyn Error> = boxed;
    assert!(Refusal::find(&*local).is_some());
    assert!(Refusal::find(local.as_ref()).is_some());
    let lent: &(dyn Error + Send + Sync + 'static) = &refusal;
    assert!(Refusal::find(lent).is_some());
    let down: BoxError = ToolError::Down.into();
    assert!(Refusal::find(&*down).is_none());
    assert!(refusal.to_string().starts_with("tool `search` "));
}

#[test]
fn outcomes_states_and_reasons_are_matched_compared_and_displayed() {
    const HINTED: Failure = Failure::rate_limited().with_retry_after(SECOND);
    for failure in [Failure::transient(), Failure::fatal(), HINTED] {
        let outcome = Outcome::from(failure);
        match outcome {
            Outcome::Success => unreachable!("a success"),
            Outcome::Failure(same) => assert_eq!(same, failure),
            Outcome::Neutral => unreachable!("neutral"),
            _ => unreachable!(),
        }
        match failure.kind() {
            FailureKind::RateLimited => assert_eq!(failure.retry_after(), Some(SECOND)),
            FailureKind::Transient | FailureKind::Fatal => {
                assert!(failure.retry_after().is_none());
            }
            _ => unreachable!(),
        }
    }
    match State::HalfOpen {
        State::Closed | State::Open => unreachable!(),
        State::HalfOpen => assert_eq!(State::HalfOpen.to_string(), "half_open"),
    }
    assert_eq!(format!("{:>12}", Reason::CircuitOpen), "circuit_open");
    for reason in [
        Reason::CircuitOpen,
        Reason::ProbeInFlight,
        Reason::ForcedOpen,
        Reason::FallbackExhausted,
        Reason::TripwireOpen,
        Reason::MaxTurns,
        Reason::IdenticalCall,
        Reason::ErrorStreak,
        Reason::Deadline,
        Reason::NotReady,
    ] {
        assert!(!reason.to_string().contains(char::is_uppercase));
    }
    // A closure of the right shape is a classifier by itself.
    let classify = |result: Result<&u8, &String>| ErrorsAsFailures.classify(result);
    assert_eq!(classify.classify(Ok(&1)), Outcome::Success);
    let outcome = RefusalsAsFailures.classify(Err::<&u8, _>(&Refused));
    assert_eq!(outcome, Outcome::Failure(Failure::transient()));
}

struct Refused;

#[test]
fn events_are_matched_by_their_variants() {
    let layer = CircuitBreakerLayer::new().observe(|event: &Event<'_>| match event {
        Event::Transition {
            name,
            from,
            to,
            reason,
            generation,
            ..
        } => {
            let _: (Option<&str>, State, State, u32) = (*name, *from, *to, *generation);
            match reason {
                TransitionReason::FailureThreshold
                | TransitionReason::FailureRate
                | TransitionReason::FatalFailure
                | TransitionReason::CooldownOver
                | TransitionReason::ProbeSucceeded
                | TransitionReason::ProbeFailed
                | TransitionReason::LeaseExpired
                | TransitionReason::ForcedOpen
                | TransitionReason::Reset => (),
                _ => unreachable!(),
            }
        }
        Event::ProbeStarted { lease, .. } => assert!(!lease.is_zero()),
        Event::LeaseExpired { generation, .. } => assert!(*generation > 0),
        Event::LateVerdict { outcome, .. } => assert!(matches!(outcome, Outcome::Failure(_))),
        Event::Refused {
            refusal,
            observe_only,
            ..
        } => assert!(!observe_only && refusal.name().is_none()),
        Event::Unguarded { .. } | Event::Evicted { .. } | Event::Missed { .. } => (),
        _ => unreachable!(),
    });
    let handle = layer.handle();
    handle.force_open();
    assert!(handle.try_acquire().is_err());
    // An event is `Copy` and may be matched by value.
    let _ = CircuitBreakerLayer::new().observe(|event: &Event<'_>| {
        if let Event::Transition {
            to: State::Open, ..
        } = *event
        {
            println!("{event:?}");
        }
    });
}
