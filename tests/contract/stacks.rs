//! Proves the layers in stacks: with tower's own middleware and with each other.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::balance::p2c::Balance;
use tower::buffer::{Buffer, BufferLayer};
use tower::discover::{Change, ServiceList};
use tower::limit::ConcurrencyLimitLayer;
use tower::load::{CompleteOnResponse, PendingRequests};
use tower::load_shed::LoadShedLayer;
use tower::load_shed::error::Overloaded;
use tower::retry::{Policy, Retry, RetryLayer};
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::util::{BoxCloneSyncService, BoxService};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{
    CircuitBreakerLayer, FallbackLayer, FallbackState, Reason, Refusal, State, TripwireLayer,
    WhenOpen,
};
use tower_test::mock::Spawn;

use crate::support::calls::{self, search};
use crate::support::model::{Answer, DOWN, Does, FATAL, Model, classify, turn, turns};
use crate::support::site::{Down, Query, Site, ask_now, poll, trip_by_hand};
use crate::support::tool::{self, Ask};
use crate::support::{pass, reason_and_wait, refused, secs};

const TIMEOUT: Duration = secs(10);

fn is_refusal(err: &BoxError) -> bool {
    Refusal::find(&**err).is_some()
}

/// Retries at once, up to so many attempts in all.
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

/// A tool that answers after an hour, and counts its calls.
fn hanging(
    calls: &Arc<AtomicUsize>,
) -> impl Service<Query, Response = Query, Error = Infallible, Future: Send> + Clone + Send + 'static
{
    let calls = Arc::clone(calls);
    service_fn(move |query: Query| {
        calls.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(secs(3_600)).await;
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
        assert_eq!(
            reason_and_wait(ask().await),
            (Reason::CircuitOpen, Some(secs(30)))
        );
    }
    handle.force_open();
    assert_eq!(refused(ask().await).reason(), Reason::ForcedOpen);
    handle.reset();
    site.set_down(false);
    assert_eq!(ask().await.unwrap(), "q", "the buffer's worker is alive");
    assert_eq!(site.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_buffer_around_a_stuck_service_are_answered_once_it_trips() {
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
    sleep(secs(1)).await;
    assert!(callers.iter().all(|caller| !caller.is_finished()));
    trip_by_hand(&handle);
    for caller in callers {
        assert_eq!(refused(caller.await.unwrap()).reason(), Reason::CircuitOpen);
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

#[tokio::test(start_paused = true)]
async fn a_fallback_works_behind_a_buffer() {
    let primary = Model::new("primary");
    let a = Model::new("a");
    let layer = FallbackLayer::new("primary")
        .backup("a", a.clone())
        .classify(classify);
    let service = Buffer::new(layer.layer(primary.clone()), 8);
    primary.does(DOWN);
    let answers = turns(&service, 10).await;
    assert!(answers[..3].iter().all(Result::is_err));
    assert_eq!(answers[3..], vec![Ok("a"); 7]);
    a.does(FATAL);
    turn(&service).await.unwrap_err();
    assert!(
        turn(&service).await.unwrap_err().contains("backups too"),
        "refused, and the buffer lives"
    );
    a.does(Does::Answer);
    primary.does(Does::Answer);
    pass(secs(60)).await;
    assert_eq!(turns(&service, 3).await, vec![Ok("primary"); 3]);
}

// ===== Retry and Timeout, in both orders =====

#[tokio::test(start_paused = true)]
async fn a_breaker_outside_retry_counts_all_attempts_of_a_call_as_one_failure() {
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
        assert_eq!(
            reason_and_wait(answer),
            (Reason::CircuitOpen, Some(secs(30)))
        );
    }
    assert_eq!(site.calls(), 15, "an open circuit stops everything");

    // One turn is one probe, with all its attempts.
    pass(secs(30)).await;
    assert!(service.ready().await.unwrap().call("q").await.is_err());
    assert_eq!((site.calls(), handle.state()), (20, State::Open));
    pass(secs(30)).await;
    site.set_down(false);
    assert!(service.ready().await.unwrap().call("q").await.is_ok());
    assert_eq!((site.calls(), handle.state()), (21, State::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_inside_retry_counts_every_attempt() {
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
    assert_eq!(
        reason_and_wait(answer),
        (Reason::CircuitOpen, Some(secs(30)))
    );
    assert_eq!(site.calls(), 3, "the ladder's fourth attempt is refused");
    assert_eq!(handle.snapshot().trips, 1);

    // Recovered: the first attempt is the probe.
    pass(secs(30)).await;
    site.set_down(false);
    assert!(service.ready().await.unwrap().call("q").await.is_ok());
    assert_eq!((site.calls(), handle.state()), (4, State::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_inside_retry_is_polled_ready_for_each_attempt() {
    // The tool panics if it was not polled ready for each attempt.
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
        assert_eq!(
            reason_and_wait(answer),
            (Reason::CircuitOpen, Some(secs(30)))
        );
        assert_eq!(start.elapsed(), Duration::ZERO, "refused at once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_is_neutral_by_default_and_its_probe_ends_with_its_lease() {
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

    trip_by_hand(&handle);
    pass(secs(30)).await;
    let err = service.ready().await.unwrap().call("q").await.unwrap_err();
    assert!(err.is::<Elapsed>(), "{err}");
    assert_eq!(handle.state(), State::HalfOpen, "the slot is kept");
    let answer = service.ready().await.unwrap().call("q").await;
    let (reason, wait) = reason_and_wait(answer);
    assert_eq!(reason, Reason::ProbeInFlight);
    assert!(wait <= Some(secs(20)) && wait > Some(secs(19)), "{wait:?}");
    pass(secs(20)).await;
    assert_eq!(handle.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_works_inside_retry() {
    #[derive(Clone)]
    struct Attempts(u32);

    impl Policy<String, Answer, BoxError> for Attempts {
        type Future = Ready<()>;

        fn retry(
            &mut self,
            _: &mut String,
            result: &mut Result<Answer, BoxError>,
        ) -> Option<Ready<()>> {
            self.0 = self.0.checked_sub(1)?;
            result.is_err().then(|| ready(()))
        }

        fn clone_request(&mut self, req: &String) -> Option<String> {
            Some(req.clone())
        }
    }

    let primary = Model::new("primary");
    let layer = FallbackLayer::new("primary")
        .backup("a", Model::new("a"))
        .classify(classify);
    let service = Retry::new(Attempts(3), layer.layer(primary.clone()));
    primary.does(DOWN);
    assert_eq!(
        turn(&service).await,
        Ok("a"),
        "three failed, the fourth went to the chain"
    );
    assert_eq!(primary.count(), 3);
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
        trip_by_hand(&handle);
        assert_eq!(refused(first.call("q").await).reason(), Reason::CircuitOpen);
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
    trip_by_hand(&handle);
    assert!(second.is_woken());
    assert!(poll(&mut second).is_ready());
    assert_eq!(
        refused(second.call("q").await).reason(),
        Reason::CircuitOpen
    );
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
    trip_by_hand(&handle);
    let mut refused_ones: Vec<_> = (0..10).map(|_| service.clone()).collect();
    for one in &mut refused_ones {
        assert!(is_refusal(&ask_now(one).unwrap_err()));
    }
    handle.reset();
    assert_eq!(ask_now(&mut service.clone()).unwrap(), "q");
}

#[tokio::test(start_paused = true)]
async fn load_shedding_inside_makes_a_stuck_service_trip_the_circuit() {
    let site = Arc::new(Site::default());
    site.set_stuck(true);
    let mut service = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new())
        .layer(LoadShedLayer::new())
        .service(site.tool());
    for _ in 0..3 {
        assert!(ask_now(&mut service).unwrap_err().is::<Overloaded>());
    }
    assert_eq!(
        reason_and_wait(ask_now(&mut service)),
        (Reason::CircuitOpen, Some(secs(30)))
    );
}

#[tokio::test(start_paused = true)]
async fn load_shedding_outside_sheds_nothing_while_the_circuit_refuses() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    trip_by_hand(&layer.handle());
    let mut refusing = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(layer.clone())
        .service(site.tool());
    assert_eq!(
        refused(ask_now(&mut refusing)).reason(),
        Reason::CircuitOpen
    );

    let pending = layer.when_open(WhenOpen::NotReady);
    trip_by_hand(&pending.handle());
    let mut pending = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(pending)
        .service(site.tool());
    assert!(ask_now(&mut pending).unwrap_err().is::<Overloaded>());
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
        assert_eq!(is_refusal(&ask_now(&mut clone).unwrap_err()), turn >= 3);
    }
    assert_eq!(site.calls(), 3);
    assert!(is_refusal(&ask_now(&mut one).unwrap_err()));

    let mut boxed: BoxService<Query, Query, BoxError> = layer.layer(site.tool()).boxed();
    assert!(is_refusal(&ask_now(&mut boxed).unwrap_err()));
    handle.reset();
    site.set_down(false);
    assert_eq!(ask_now(&mut boxed).unwrap(), "q");
    assert_eq!(ask_now(&mut one).unwrap(), "q");

    let keyed = layer.per_key(|query: &Query| *query, 10);
    let keyed_handle = keyed.handle();
    let mut keyed = BoxCloneSyncService::new(keyed.layer(site.tool()));
    keyed_handle.force_open("q");
    assert!(is_refusal(&ask_now(&mut keyed.clone()).unwrap_err()));
    keyed_handle.reset("q");
    assert_eq!(ask_now(&mut keyed).unwrap(), "q");
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

    // The first endpoint breaks. Its three failures are all that the callers see of it.
    sites[0].set_down(true);
    let before = calls();
    let mut errors = 0;
    for _ in 0..200 {
        errors += usize::from(ask().await.is_err());
    }
    assert_eq!((errors, calls()[0] - before[0]), (3, 3));
    assert_eq!(calls()[1] - before[1], 197);
    assert_eq!(handles[0].state(), State::Open);

    // After the cooldown it is chosen again, by one call; the probe fails.
    pass(secs(31)).await;
    let before = calls();
    let mut errors = 0;
    for _ in 0..200 {
        errors += usize::from(ask().await.is_err());
    }
    assert_eq!((errors, calls()[0] - before[0]), (1, 1));

    // The endpoint is well again: after the next cooldown both serve.
    sites[0].set_down(false);
    pass(secs(31)).await;
    let before = calls();
    for _ in 0..200 {
        ask().await.unwrap();
    }
    assert_eq!(handles[0].state(), State::Closed);
    assert!(calls()[0] - before[0] > 10, "{:?}", calls());

    // Both down: callers wait, and are served when one of the cooldowns ends.
    handles[0].force_open();
    trip_by_hand(&handles[1]);
    let start = Instant::now();
    assert_eq!(ask().await.unwrap(), "q");
    assert!((30_000..=30_002).contains(&start.elapsed().as_millis()));
    // A reset wakes a waiting caller too.
    handles[1].force_open();
    let waits = tokio::spawn(async move { ServiceExt::<Query>::ready(&mut balance).await.is_ok() });
    pass(secs(1_000)).await;
    assert!(!waits.is_finished());
    handles[0].reset();
    assert!(waits.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_balancer_never_drops_an_endpoint_because_its_circuit_is_open() {
    // The balancer removes an endpoint whose readiness is an error. One that refuses must stay.
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let endpoint = PendingRequests::new(layer.layer(site.tool()), CompleteOnResponse::default());
    let discover = futures::stream::iter([Ok::<_, Infallible>(Change::Insert(0, endpoint))]);
    let mut balance = Balance::new(Box::pin(futures::StreamExt::chain(
        discover,
        futures::stream::pending(),
    )));
    trip_by_hand(&handle);
    let answer = ServiceExt::<Query>::ready(&mut balance)
        .await
        .unwrap()
        .call("q")
        .await;
    assert_eq!(refused(answer).reason(), Reason::CircuitOpen);
    assert_eq!(balance.len(), 1);
    handle.reset();
    let answer = ServiceExt::<Query>::ready(&mut balance)
        .await
        .unwrap()
        .call("q")
        .await;
    assert_eq!(answer.unwrap(), "q");
}

// ===== one layer inside another =====

#[tokio::test(start_paused = true)]
async fn a_breaker_counts_the_refusals_of_a_breaker_inside_it_as_neutral() {
    let outer = CircuitBreakerLayer::new()
        .name("outer")
        .failure_threshold(4);
    let inner = CircuitBreakerLayer::new().name("inner");
    let (outside, inside) = (outer.handle(), inner.handle());
    let mut service = ServiceBuilder::new()
        .layer(outer)
        .layer(inner)
        .service(tool::Tool::new());
    tool::trip(&mut service).await;
    assert_eq!(
        (inside.state(), outside.snapshot().streak),
        (State::Open, 3)
    );
    for _ in 0..10 {
        let refusal = refused(tool::ask(&mut service, Ask::ok()).await);
        assert_eq!(refusal.name(), Some("inner"));
        assert_eq!(
            (outside.state(), outside.snapshot().streak),
            (State::Closed, 3)
        );
    }
    // One more failure is the fourth in a row.
    pass(secs(30)).await;
    tool::ask(&mut service, Ask::fail()).await.unwrap_err();
    assert_eq!(outside.state(), State::Open);
}

/// Case 32.
#[tokio::test(start_paused = true)]
async fn a_breaker_around_the_primary_trips_and_its_refusals_trip_the_fallback() {
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
    let refusal = service.clone().oneshot(String::new()).await;
    assert_eq!(refused(refusal).reason(), Reason::CircuitOpen);
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(turns(&service, 20).await, vec![Ok("a"); 20]);
    assert_eq!(*down.lock().unwrap(), 2);
}

/// Case 44.
#[tokio::test(start_paused = true)]
async fn a_refused_tool_called_again_trips_the_tripwire_outside_and_leaves_the_breaker_alone() {
    let breaker = CircuitBreakerLayer::new();
    let tripwire = TripwireLayer::new().max_turns(100);
    let tool = calls::Tool::default();
    let mut service = ServiceBuilder::new()
        .layer(tripwire.clone())
        .layer(breaker.clone())
        .service(tool.clone());
    breaker.handle().force_open();
    for _ in 0..2 {
        assert_eq!(
            refused(calls::call(&mut service, search(1)).await).reason(),
            Reason::ForcedOpen
        );
    }
    let before = breaker.handle().snapshot();
    assert_eq!(
        refused(calls::call(&mut service, search(1)).await).reason(),
        Reason::IdenticalCall
    );
    for _ in 0..20 {
        calls::call(&mut service, search(1)).await.unwrap_err();
    }
    assert_eq!(breaker.handle().snapshot(), before);
    assert_eq!(tool.calls(), 0);
    assert_eq!(tripwire.handle().reason(), Some(Reason::IdenticalCall));
}

/// Case 50.
#[tokio::test]
async fn the_refusals_of_a_breaker_inside_change_no_streak_of_the_tripwire() {
    let breaker = CircuitBreakerLayer::new();
    let tripwire = TripwireLayer::new().max_turns(100);
    let mut service = ServiceBuilder::new()
        .then(|result: Result<u64, BoxError>| async move {
            match result {
                Ok(answer) => Ok(answer.to_string()),
                Err(err) => Refusal::find(&*err).map(ToString::to_string).ok_or(err),
            }
        })
        .layer(tripwire.clone())
        .layer(breaker.clone())
        .service(calls::Tool::default());
    for n in 0..2 {
        calls::call(&mut service, ("down", n)).await.unwrap_err();
    }
    breaker.handle().force_open();
    for n in 2..20 {
        let told = calls::call(&mut service, search(n)).await.unwrap();
        assert_eq!(told, "tool temporarily unavailable: circuit breaker open");
        assert_eq!(
            tripwire.handle().snapshot().errors,
            2,
            "neither raised nor ended"
        );
        assert_eq!(tripwire.handle().state(), State::Closed);
    }
}
