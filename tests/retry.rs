//! Feature `retry`: `SkipRefusals` stops retrying at a refusal, and changes nothing else.

#![cfg(feature = "retry")]

mod support;

use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use tower::retry::{Policy, RetryLayer};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::retry::SkipRefusals;
use tower_breaker::{CircuitBreakerLayer, Event, IntoError, Reason, Refusal, State};

use support::site::{Down, trip_by_hand};
use support::{pass, secs};

/// Five attempts in all, a second apart. It counts the results that it was asked about.
#[derive(Clone, Default)]
struct Five {
    failed: usize,
    asked: Arc<AtomicUsize>,
    keeps_requests: bool,
}

impl Five {
    fn new() -> Self {
        Self {
            keeps_requests: true,
            ..Self::default()
        }
    }
}

impl<Res, E> Policy<&'static str, Res, E> for Five {
    type Future = Sleep;

    fn retry(&mut self, _: &mut &'static str, result: &mut Result<Res, E>) -> Option<Sleep> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.failed += 1;
        (result.is_err() && self.failed < 5).then(|| sleep(secs(1)))
    }

    fn clone_request(&mut self, req: &&'static str) -> Option<&'static str> {
        self.keeps_requests.then_some(*req)
    }
}

#[derive(Clone, Default)]
struct Site {
    calls: Arc<AtomicUsize>,
    well: Arc<AtomicBool>,
}

impl Site {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn answer<E>(&self, err: E) -> Ready<Result<&'static str, E>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        ready(if self.well.load(Ordering::SeqCst) {
            Ok("well")
        } else {
            Err(err)
        })
    }
}

async fn ask<S: Service<&'static str>>(service: &mut S) -> Result<S::Response, S::Error> {
    service.ready().await?.call("q").await
}

fn reason(err: &BoxError) -> Option<Reason> {
    Refusal::find(&**err).map(Refusal::reason)
}

/// Case 21.
#[tokio::test(start_paused = true)]
async fn five_attempts_over_an_open_breaker_are_one_refusal_and_no_inner_call() {
    let site = Site::default();
    let refusals = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refusals);
    let layer = CircuitBreakerLayer::new().observe(move |event: &Event<'_>| {
        if matches!(event, Event::Refused { .. }) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let handle = layer.handle();
    let policy = Five::new();
    let asked = Arc::clone(&policy.asked);
    let tool = site.clone();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(SkipRefusals(policy)))
        .layer(layer)
        .service(service_fn(move |_: &'static str| tool.answer(Down)));
    trip_by_hand(&handle);
    let start = Instant::now();
    let err = ask(&mut service).await.unwrap_err();
    assert_eq!(reason(&err), Some(Reason::CircuitOpen));
    assert_eq!(refusals.load(Ordering::SeqCst), 1);
    assert_eq!((site.calls(), asked.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(handle.snapshot().trips, 1);
}

#[tokio::test(start_paused = true)]
async fn without_it_the_ladder_is_climbed_over_refusals() {
    let site = Site::default();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let policy = Five::new();
    let asked = Arc::clone(&policy.asked);
    let tool = site.clone();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(policy))
        .layer(layer)
        .service(service_fn(move |_: &'static str| tool.answer(Down)));
    trip_by_hand(&handle);
    let start = Instant::now();
    assert!(ask(&mut service).await.is_err());
    assert_eq!((site.calls(), asked.load(Ordering::SeqCst)), (0, 5));
    assert!(start.elapsed() >= secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_trips_on_the_ladder_stops_it_and_a_later_one_probes() {
    let site = Site::default();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let policy = Five::new();
    let asked = Arc::clone(&policy.asked);
    let tool = site.clone();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(SkipRefusals(policy)))
        .layer(layer)
        .service(service_fn(move |_: &'static str| tool.answer(Down)));
    let err = ask(&mut service).await.unwrap_err();
    assert_eq!(reason(&err), Some(Reason::CircuitOpen));
    assert_eq!((site.calls(), asked.load(Ordering::SeqCst)), (3, 3));

    pass(secs(30)).await;
    site.well.store(true, Ordering::SeqCst);
    assert_eq!(ask(&mut service).await.unwrap(), "well");
    assert_eq!((site.calls(), handle.state()), (4, State::Closed));
}

#[tokio::test(start_paused = true)]
async fn other_errors_are_retried_as_before() {
    let site = Site::default();
    let policy = Five::new();
    let asked = Arc::clone(&policy.asked);
    let tool = site.clone();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(SkipRefusals(policy)))
        .layer(CircuitBreakerLayer::new().failure_threshold(100))
        .service(service_fn(move |_: &'static str| tool.answer(Down)));
    let start = Instant::now();
    assert!(ask(&mut service).await.unwrap_err().is::<Down>());
    assert_eq!((site.calls(), asked.load(Ordering::SeqCst)), (5, 5));
    assert!(start.elapsed() >= secs(4), "the policy's own waits");
    site.well.store(true, Ordering::SeqCst);
    assert_eq!(ask(&mut service).await.unwrap(), "well");
    assert_eq!(
        asked.load(Ordering::SeqCst),
        6,
        "successes are the policy's to judge"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_policy_does_not_keep_is_not_retried() {
    let site = Site::default();
    let tool = site.clone();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(SkipRefusals(Five::default())))
        .layer(CircuitBreakerLayer::new())
        .service(service_fn(move |_: &'static str| tool.answer(Down)));
    assert!(ask(&mut service).await.is_err());
    assert_eq!(site.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_the_error_type_itself_is_recognised() {
    let site = Site::default();
    let layer = CircuitBreakerLayer::new().refuse(IntoError);
    let handle = layer.handle();
    let policy = Five::new();
    let asked = Arc::clone(&policy.asked);
    let tool = site.clone();
    let unlike = CircuitBreakerLayer::new().handle();
    unlike.force_open();
    let unlike = unlike.try_acquire().unwrap_err();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(SkipRefusals(policy)))
        .layer(layer)
        .service(service_fn(move |_: &'static str| {
            tool.answer(unlike.clone())
        }));
    handle.force_open();
    let refusal: Refusal = ask(&mut service).await.unwrap_err();
    assert_eq!(refusal.reason(), Reason::ForcedOpen);
    assert_eq!((site.calls(), asked.load(Ordering::SeqCst)), (0, 0));
    // The same for a refusal from further inside.
    handle.reset();
    assert!(ask(&mut service).await.is_err());
    assert_eq!((site.calls(), asked.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(handle.snapshot().streak, 0);
}

#[derive(Debug)]
enum Mine {
    Down,
    Refused(Refusal),
}

impl From<Refusal> for Mine {
    fn from(refusal: Refusal) -> Self {
        Mine::Refused(refusal)
    }
}

impl fmt::Display for Mine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mine")
    }
}

impl std::error::Error for Mine {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Mine::Down => None,
            Mine::Refused(refusal) => Some(refusal),
        }
    }
}

/// The documented limit: the policy itself must recognise a typed error that hides a refusal.
#[tokio::test(start_paused = true)]
async fn a_typed_error_that_hides_a_refusal_is_not_recognised_until_it_is_boxed() {
    for is_boxed in [false, true] {
        let site = Site::default();
        let layer = CircuitBreakerLayer::new().refuse(IntoError);
        let handle = layer.handle();
        trip_by_hand(&handle);
        let policy = Five::new();
        let asked = Arc::clone(&policy.asked);
        let tool = site.clone();
        let guarded = ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(move |_: &'static str| tool.answer(Mine::Down)));
        let stack = ServiceBuilder::new().layer(RetryLayer::new(SkipRefusals(policy)));
        let refusal = if is_boxed {
            let mut service = stack.map_err(BoxError::from).service(guarded);
            let err = ask(&mut service).await.unwrap_err();
            Refusal::find(&*err).cloned()
        } else {
            let mut service = stack.service(guarded);
            match ask(&mut service).await.unwrap_err() {
                Mine::Refused(refusal) => Some(refusal),
                Mine::Down => None,
            }
        };
        assert_eq!(refusal.unwrap().reason(), Reason::CircuitOpen);
        let expected = if is_boxed { 0 } else { 5 };
        assert_eq!(asked.load(Ordering::SeqCst), expected, "boxed: {is_boxed}");
        assert_eq!(site.calls(), 0);
    }
}

#[derive(Debug)]
struct Wrapped(BoxError);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrapped")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_found_anywhere_in_a_boxed_errors_chain_of_sources() {
    let site = Site::default();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let policy = Five::new();
    let asked = Arc::clone(&policy.asked);
    let tool = site.clone();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(SkipRefusals(policy)))
        .map_err(|err: BoxError| -> BoxError { Wrapped(Wrapped(err).into()).into() })
        .layer(layer)
        .service(service_fn(move |_: &'static str| tool.answer(Down)));
    let err = ask(&mut service).await.unwrap_err();
    assert_eq!(reason(&err), Some(Reason::CircuitOpen));
    // Wrapped errors of the tool were still retried.
    assert_eq!((site.calls(), asked.load(Ordering::SeqCst)), (3, 3));
    handle.force_open();
    let err = ask(&mut service).await.unwrap_err();
    assert_eq!(reason(&err), Some(Reason::ForcedOpen));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

/// A policy that answers errors itself, and whose future is not `Unpin`, `Send` or `Sync`.
#[derive(Clone)]
struct Softens;

impl Policy<&'static str, &'static str, BoxError> for Softens {
    type Future = Pin<Box<dyn Future<Output = ()>>>;

    fn retry(
        &mut self,
        req: &mut &'static str,
        result: &mut Result<&'static str, BoxError>,
    ) -> Option<Self::Future> {
        if *req == "again" {
            *result = Ok("softened");
            return None;
        }
        *req = "again";
        Some(Box::pin(ready(())))
    }

    fn clone_request(&mut self, req: &&'static str) -> Option<&'static str> {
        Some(*req)
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_policy_makes_of_requests_and_results_is_kept_but_for_refusals() {
    let site = Site::default();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let tool = site.clone();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(SkipRefusals(Softens)))
        .layer(layer)
        .service(service_fn(move |_: &'static str| tool.answer(Down)));
    assert_eq!(ask(&mut service).await.unwrap(), "softened");
    assert_eq!(site.calls(), 2);
    handle.force_open();
    assert!(
        ask(&mut service).await.is_err(),
        "a refusal reaches the caller as it is"
    );
}
