//! Stacks with tower's own middleware.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::balance::p2c::Balance;
use tower::buffer::BufferLayer;
use tower::discover::{Change, ServiceList};
use tower::limit::ConcurrencyLimitLayer;
use tower::load::{CompleteOnResponse, PendingRequests};
use tower::load_shed::LoadShedLayer;
use tower::load_shed::error::Overloaded;
use tower::retry::{Policy, RetryLayer};
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::util::{BoxCloneSyncService, BoxService};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{Cancelled, CircuitBreakerLayer, Reason, Refusal, State, WhenOpen};
use tower_test::mock::Spawn;

use crate::site::{Down, Query, Site, advance_secs, ask, poll, refused, secs, trip};

const TIMEOUT: Duration = Duration::from_secs(10);

fn is_refusal(err: &BoxError) -> bool {
    Refusal::find(&**err).is_some()
}

/// Tries again at once, this many times in all.
#[derive(Clone)]
struct Attempts(u32);

impl<E> Policy<Query, Query, E> for Attempts {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut Query, result: &mut Result<Query, E>) -> Option<Self::Future> {
        self.0 = self.0.saturating_sub(1);
        (result.is_err() && self.0 > 0).then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, query: &Query) -> Option<Query> {
        Some(query)
    }
}

/// Calls of a tool that never answers.
fn hanging(
    calls: &Arc<AtomicUsize>,
) -> impl Service<Query, Response = Query, Error = Infallible, Future: Send> + Clone + Send + 'static
{
    let calls = Arc::clone(calls);
    service_fn(move |query: Query| {
        calls.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(Duration::from_secs(3_600)).await;
            Ok(query)
        }
    })
}

// ===== Buffer =====

#[tokio::test(start_paused = true)]
async fn an_open_circuit_does_not_kill_a_buffer() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = ServiceBuilder::new()
        .layer(BufferLayer::new(8))
        .layer(layer)
        .service(site.tool());
    let mut ask = async || {
        ServiceExt::<Query>::ready(&mut service)
            .await?
            .call("q")
            .await
    };

    site.set_down(true);
    for _ in 0..3 {
        assert!(ask().await.unwrap_err().is::<Down>());
    }
    for _ in 0..10 {
        assert_eq!(refused(ask().await), (Reason::CircuitOpen, secs(30)));
    }
    handle.force_open();
    assert_eq!(refused(ask().await).0, Reason::ForcedOpen);
    handle.reset();
    site.set_down(false);
    assert_eq!(ask().await.unwrap(), "q", "the buffer's worker is alive");
    assert_eq!(site.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_buffer_around_a_stuck_service_are_answered_once_it_trips() {
    let site = Arc::new(Site::default());
    site.set_stuck(true);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let service = ServiceBuilder::new()
        .layer(BufferLayer::new(8))
        .layer(layer)
        .service(site.tool());
    let callers: Vec<_> = (0..4)
        .map(|_| tokio::spawn(service.clone().oneshot("q")))
        .collect();
    sleep(Duration::from_secs(1)).await;
    assert!(callers.iter().all(|caller| !caller.is_finished()));
    trip(&handle);
    for caller in callers {
        assert_eq!(refused(caller.await.unwrap()).0, Reason::CircuitOpen);
    }
    assert_eq!(site.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_outside_a_buffer_guards_it() {
    let site = Arc::new(Site::default());
    site.set_down(true);
    let mut service = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new())
        .layer(BufferLayer::new(8))
        .service(site.tool());
    for turn in 0..10 {
        let err = service.ready().await.unwrap().call("q").await.unwrap_err();
        assert_eq!(is_refusal(&err), turn >= 3, "{err}");
    }
    assert_eq!(site.calls(), 3);
}

// ===== Retry and Timeout, in both orders =====

#[tokio::test(start_paused = true)]
async fn breaker_outside_retry_counts_a_whole_ladder_as_one_failure() {
    let site = Arc::new(Site::default());
    site.set_down(true);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .layer(RetryLayer::new(Attempts(5)))
        .layer(TimeoutLayer::new(TIMEOUT))
        .service(site.tool());
    for turn in 1..=3 {
        let err = service.ready().await.unwrap().call("q").await.unwrap_err();
        assert!(err.is::<Down>(), "{err}");
        assert_eq!(site.calls(), 5 * turn);
        assert_eq!(handle.snapshot().streak, u32::try_from(turn).unwrap());
    }
    for _ in 0..10 {
        let answer = service.ready().await.unwrap().call("q").await;
        assert_eq!(refused(answer), (Reason::CircuitOpen, secs(30)));
    }
    assert_eq!(site.calls(), 15, "an open circuit stops everything");

    // A whole turn, with all its attempts, is one probe.
    advance_secs(30).await;
    assert!(service.ready().await.unwrap().call("q").await.is_err());
    assert_eq!((site.calls(), handle.state()), (20, State::Open));
    advance_secs(30).await;
    site.set_down(false);
    assert!(service.ready().await.unwrap().call("q").await.is_ok());
    assert_eq!((site.calls(), handle.state()), (21, State::Closed));
}

#[tokio::test(start_paused = true)]
async fn breaker_inside_retry_counts_every_attempt() {
    let site = Arc::new(Site::default());
    site.set_down(true);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(Attempts(5)))
        .layer(layer)
        .layer(TimeoutLayer::new(TIMEOUT))
        .service(site.tool());
    let answer = service.ready().await.unwrap().call("q").await;
    assert_eq!(refused(answer), (Reason::CircuitOpen, secs(30)));
    assert_eq!(site.calls(), 3, "the ladder's fourth attempt is refused");
    assert_eq!(handle.snapshot().trips, 1);

    // The tool has recovered. The first attempt is the probe.
    advance_secs(30).await;
    site.set_down(false);
    assert!(service.ready().await.unwrap().call("q").await.is_ok());
    assert_eq!((site.calls(), handle.state()), (4, State::Closed));
}

#[tokio::test(start_paused = true)]
async fn breaker_inside_retry_is_polled_ready_for_each_attempt() {
    // `Retry` polls the service again before it calls it. Otherwise the tool panics.
    let site = Arc::new(Site::default());
    site.set_down(true);
    let layer = CircuitBreakerLayer::new().failure_threshold(100);
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(Attempts(7)))
        .layer(layer)
        .service(site.tool());
    assert!(service.ready().await.unwrap().call("q").await.is_err());
    assert_eq!(site.calls(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_inside_is_an_error_that_the_breaker_sees() {
    let calls = Arc::default();
    for outside_retry in [true, false] {
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        let mut service = if outside_retry {
            BoxService::new(
                ServiceBuilder::new()
                    .layer(layer)
                    .layer(RetryLayer::new(Attempts(2)))
                    .layer(TimeoutLayer::new(TIMEOUT))
                    .service(hanging(&calls)),
            )
        } else {
            BoxService::new(
                ServiceBuilder::new()
                    .layer(RetryLayer::new(Attempts(1)))
                    .layer(layer)
                    .layer(TimeoutLayer::new(TIMEOUT))
                    .service(hanging(&calls)),
            )
        };
        calls.store(0, Ordering::SeqCst);
        let start = Instant::now();
        for _ in 0..3 {
            let err = service.ready().await.unwrap().call("q").await.unwrap_err();
            assert!(err.is::<Elapsed>(), "{err}");
        }
        assert_eq!(handle.state(), State::Open);
        let attempts: u32 = if outside_retry { 6 } else { 3 };
        assert_eq!(calls.load(Ordering::SeqCst), attempts as usize);
        assert!(start.elapsed() >= TIMEOUT * attempts);

        let start = Instant::now();
        let answer = service.ready().await.unwrap().call("q").await;
        assert_eq!(refused(answer), (Reason::CircuitOpen, secs(30)));
        assert_eq!(start.elapsed(), Duration::ZERO, "refused at once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_drops_the_call_and_failure_after_makes_it_count() {
    // Case 22: with a rule of 5 s, a call that is dropped at 10 s counts, and one dropped at 1 s
    // does not.
    for (timeout, state) in [(10, State::Open), (1, State::Closed)] {
        let calls = Arc::default();
        let layer =
            CircuitBreakerLayer::new().on_cancel(Cancelled::FailureAfter(Duration::from_secs(5)));
        let handle = layer.handle();
        let mut service = ServiceBuilder::new()
            .layer(TimeoutLayer::new(Duration::from_secs(timeout)))
            .layer(layer)
            .service(hanging(&calls));
        for _ in 0..3 {
            let err = service.ready().await.unwrap().call("q").await.unwrap_err();
            assert!(err.is::<Elapsed>(), "{err}");
        }
        assert_eq!(handle.state(), state, "dropped at {timeout} s");
        let err = service.ready().await.unwrap().call("q").await.unwrap_err();
        assert_eq!(is_refusal(&err), state == State::Open);
        let expected = if state == State::Open { 3 } else { 4 };
        assert_eq!(calls.load(Ordering::SeqCst), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_says_nothing_by_default_and_a_probe_ends_with_its_lease() {
    let calls = Arc::default();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(TIMEOUT))
        .layer(layer)
        .service(hanging(&calls));
    for _ in 0..5 {
        assert!(service.ready().await.unwrap().call("q").await.is_err());
    }
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.state, snapshot.streak), (State::Closed, 0));

    trip(&handle);
    advance_secs(30).await;
    let err = service.ready().await.unwrap().call("q").await.unwrap_err();
    assert!(err.is::<Elapsed>(), "{err}");
    assert_eq!(handle.state(), State::HalfOpen, "the slot is kept");
    let answer = service.ready().await.unwrap().call("q").await;
    let (reason, wait) = refused(answer);
    assert_eq!(reason, Reason::ProbeInFlight);
    assert!(wait <= secs(20) && wait > secs(19), "{wait:?}");
    advance_secs(20).await;
    assert_eq!(handle.state(), State::Open);
}

// ===== ConcurrencyLimit and LoadShed =====

#[tokio::test(start_paused = true)]
async fn a_refused_service_keeps_its_place_in_a_concurrency_limit_until_it_is_used_or_dropped() {
    for is_used in [true, false] {
        let site = Arc::new(Site::default());
        let layer = CircuitBreakerLayer::new();
        let handle = layer.handle();
        let mut first = Spawn::new(
            ServiceBuilder::new()
                .layer(layer)
                .layer(ConcurrencyLimitLayer::new(1))
                .service(site.tool()),
        );
        let mut second = first.clone();
        assert!(poll(&mut first).is_ready());
        trip(&handle);
        assert_eq!(refused(first.call("q").await).0, Reason::CircuitOpen);
        handle.reset();

        assert!(poll(&mut second).is_pending(), "the only place is taken");
        if is_used {
            assert!(poll(&mut first).is_ready());
            assert_eq!(first.call("q").await.unwrap(), "q");
        } else {
            drop(first);
        }
        assert!(second.is_woken());
        assert!(poll(&mut second).is_ready());
        assert_eq!(second.call("q").await.unwrap(), "q");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_for_a_place_is_refused_when_the_circuit_trips() {
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let calls = Arc::default();
    let mut first = Spawn::new(
        ServiceBuilder::new()
            .layer(layer)
            .layer(ConcurrencyLimitLayer::new(1))
            .service(hanging(&calls)),
    );
    let mut second = first.clone();
    assert!(poll(&mut first).is_ready());
    let in_flight = first.call("q");
    assert!(poll(&mut second).is_pending());
    trip(&handle);
    assert!(second.is_woken());
    assert!(poll(&mut second).is_ready());
    assert_eq!(refused(second.call("q").await).0, Reason::CircuitOpen);
    drop(in_flight);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_takes_no_place_in_a_concurrency_limit_inside() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(ConcurrencyLimitLayer::new(1))
        .service(site.tool());
    trip(&handle);
    let mut refused_ones: Vec<_> = (0..10).map(|_| service.clone()).collect();
    for one in &mut refused_ones {
        assert!(is_refusal(&ask(one).unwrap_err()));
    }
    handle.reset();
    assert_eq!(ask(&mut service.clone()).unwrap(), "q");
}

#[tokio::test(start_paused = true)]
async fn load_shedding_inside_makes_a_service_that_is_never_ready_trip() {
    let site = Arc::new(Site::default());
    site.set_stuck(true);
    let mut service = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new())
        .layer(LoadShedLayer::new())
        .service(site.tool());
    for _ in 0..3 {
        assert!(ask(&mut service).unwrap_err().is::<Overloaded>());
    }
    assert_eq!(refused(ask(&mut service)), (Reason::CircuitOpen, secs(30)));
}

#[tokio::test(start_paused = true)]
async fn load_shedding_outside_sheds_nothing_while_the_circuit_refuses() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    trip(&layer.handle());
    let mut refusing = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(layer.clone())
        .service(site.tool());
    assert_eq!(refused(ask(&mut refusing)).0, Reason::CircuitOpen);

    let pending = layer.when_open(WhenOpen::NotReady);
    trip(&pending.handle());
    let mut pending = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(pending)
        .service(site.tool());
    assert!(ask(&mut pending).unwrap_err().is::<Overloaded>());
}

// ===== boxes =====

#[tokio::test(start_paused = true)]
async fn boxed_services_and_their_clones_share_the_circuit() {
    let site = Arc::new(Site::default());
    site.set_down(true);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut one: BoxCloneSyncService<Query, Query, BoxError> =
        BoxCloneSyncService::new(layer.layer(site.tool()));
    for turn in 0..10 {
        let mut clone = one.clone();
        assert_eq!(is_refusal(&ask(&mut clone).unwrap_err()), turn >= 3);
    }
    assert_eq!(site.calls(), 3);
    assert!(is_refusal(&ask(&mut one).unwrap_err()));

    let mut boxed: BoxService<Query, Query, BoxError> = layer.layer(site.tool()).boxed();
    assert!(is_refusal(&ask(&mut boxed).unwrap_err()));
    handle.reset();
    site.set_down(false);
    assert_eq!(ask(&mut boxed).unwrap(), "q");
    assert_eq!(ask(&mut one).unwrap(), "q");

    let keyed = layer.per_key(|query: &Query| *query, 10);
    let keyed_handle = keyed.handle();
    let mut keyed = BoxCloneSyncService::new(keyed.layer(site.tool()));
    keyed_handle.force_open("q");
    assert!(is_refusal(&ask(&mut keyed.clone()).unwrap_err()));
    keyed_handle.reset("q");
    assert_eq!(ask(&mut keyed).unwrap(), "q");
}

// ===== Balance =====

#[tokio::test(start_paused = true)]
async fn a_balancer_chooses_the_healthy_endpoint_and_comes_back_after_the_cooldown() {
    let sites = [Arc::new(Site::default()), Arc::new(Site::default())];
    let layers = [0, 1].map(|_| CircuitBreakerLayer::new().when_open(WhenOpen::NotReady));
    let handles = [layers[0].handle(), layers[1].handle()];
    let endpoints: Vec<_> = layers
        .iter()
        .zip(&sites)
        .map(|(layer, site)| {
            PendingRequests::new(layer.layer(site.tool()), CompleteOnResponse::default())
        })
        .collect();
    let mut balance = Balance::new(ServiceList::new::<Query>(endpoints));
    let mut ask = async || {
        ServiceExt::<Query>::ready(&mut balance)
            .await?
            .call("q")
            .await
    };

    for _ in 0..100 {
        ask().await.unwrap();
    }
    let calls = || [sites[0].calls(), sites[1].calls()];
    assert!(calls().iter().all(|&calls| calls > 0), "{:?}", calls());

    // The first endpoint breaks. The callers see its three failures, and no more.
    sites[0].set_down(true);
    let before = calls();
    let mut errors = 0;
    for _ in 0..200 {
        errors += usize::from(ask().await.is_err());
    }
    assert_eq!((errors, calls()[0] - before[0]), (3, 3));
    assert_eq!(calls()[1] - before[1], 197);
    assert_eq!(handles[0].state(), State::Open);

    // After the cooldown one call goes to it. That probe fails.
    advance_secs(31).await;
    let before = calls();
    let mut errors = 0;
    for _ in 0..200 {
        errors += usize::from(ask().await.is_err());
    }
    assert_eq!((errors, calls()[0] - before[0]), (1, 1));

    // The endpoint has recovered. After the next cooldown both serve.
    sites[0].set_down(false);
    advance_secs(31).await;
    let before = calls();
    for _ in 0..200 {
        ask().await.unwrap();
    }
    assert_eq!(handles[0].state(), State::Closed);
    assert!(calls()[0] - before[0] > 10, "{:?}", calls());

    // Both are down. Callers wait, and are served when one of the cooldowns ends.
    handles[0].force_open();
    trip(&handles[1]);
    let start = Instant::now();
    assert_eq!(ask().await.unwrap(), "q");
    assert!((30_000..=30_002).contains(&start.elapsed().as_millis()));
    // A reset by hand wakes them too.
    handles[1].force_open();
    let waits = tokio::spawn(async move { ServiceExt::<Query>::ready(&mut balance).await.is_ok() });
    advance_secs(1_000).await;
    assert!(!waits.is_finished());
    handles[0].reset();
    assert!(waits.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_balancer_never_drops_an_endpoint_because_its_circuit_is_open() {
    // The balancer removes an endpoint with a readiness error for good. It keeps one that refuses.
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let endpoint = PendingRequests::new(layer.layer(site.tool()), CompleteOnResponse::default());
    let discover = futures::stream::iter([Ok::<_, Infallible>(Change::Insert(0, endpoint))]);
    let mut balance = Balance::new(Box::pin(futures::StreamExt::chain(
        discover,
        futures::stream::pending(),
    )));
    trip(&handle);
    let answer = ServiceExt::<Query>::ready(&mut balance)
        .await
        .unwrap()
        .call("q")
        .await;
    assert_eq!(refused(answer).0, Reason::CircuitOpen);
    assert_eq!(balance.len(), 1);
    handle.reset();
    let answer = ServiceExt::<Query>::ready(&mut balance)
        .await
        .unwrap()
        .call("q")
        .await;
    assert_eq!(answer.unwrap(), "q");
}

// ===== one breaker inside another =====

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_breaker_inside_says_nothing_to_the_one_outside() {
    let site = Arc::new(Site::default());
    let inner = CircuitBreakerLayer::new().name("inner");
    let outer = CircuitBreakerLayer::new().name("outer");
    let (inside, outside) = (inner.handle(), outer.handle());
    let mut service = ServiceBuilder::new()
        .layer(outer)
        .layer(inner)
        .service(site.tool());
    trip(&inside);
    outside.try_acquire().unwrap().failure();
    for _ in 0..10 {
        let err = ask(&mut service).unwrap_err();
        assert_eq!(Refusal::find(&*err).unwrap().name(), Some("inner"));
    }
    let snapshot = outside.snapshot();
    assert_eq!((snapshot.state, snapshot.streak), (State::Closed, 1));
}
