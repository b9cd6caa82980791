//! Tests with a server that is killed and restarted again and again under load. No call is lost,
//! the circuit follows, and no memory is kept.

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};
use tower::retry::Policy;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_breaker::http::{EndOfBody, StatusClassifier};
use tower_breaker::{CircuitBreakerHandle, CircuitBreakerLayer, Refusal, State};
use tower_breaker_clients::faulty::{Answer, Fault, Server};
use tower_http::timeout::ResponseBodyTimeoutLayer;

/// An allocator that counts the bytes that are allocated and not yet freed.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

fn count(size: usize, sign: isize) {
    LIVE.fetch_add(sign * isize::try_from(size).unwrap_or(isize::MAX), SeqCst);
}

// SAFETY: every call goes to the system's allocator, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TASKS: usize = 64;
const RESTARTS: usize = 20;

/// The restart after which memory may not grow any more.
const WARM: usize = 5;

/// How many bytes more may be allocated at the end than when all was warm. It is far less than 64
/// lost calls would keep.
const SLACK: isize = 64 * 1024;

const COOLDOWN: Duration = Duration::from_millis(5);

/// How long a test waits at most. Only a hang takes as long.
const DEADLINE: Duration = Duration::from_secs(60);

type Ask = Request<Empty<Bytes>>;

/// A retry policy with this many more attempts.
#[derive(Clone)]
struct Attempts(u32);

impl<Res> Policy<Ask, Res, BoxError> for Attempts {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Ask, result: &mut Result<Res, BoxError>) -> Option<Ready<()>> {
        if result.is_ok() {
            return None;
        }
        self.0 = self.0.checked_sub(1)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Ask) -> Option<Ask> {
        Some(request.clone())
    }
}

/// Counts of how the calls ended.
#[derive(Default)]
struct Tally {
    started: AtomicUsize,
    answered: AtomicUsize,
    failed: AtomicUsize,
    cut: AtomicUsize,
    refused: AtomicUsize,
    wrong: AtomicUsize,
}

impl Tally {
    fn ended(&self) -> usize {
        let all = [
            &self.answered,
            &self.failed,
            &self.cut,
            &self.refused,
            &self.wrong,
        ];
        all.iter().map(|count| count.load(SeqCst)).sum()
    }
}

/// 64 tasks that make calls until they are stopped.
struct Load {
    tally: Arc<Tally>,
    /// Each call takes one permit. Whoever holds all of them has stopped the load.
    permits: Arc<Semaphore>,
    over: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start<S, B>(service: &S, url: &str) -> Self
    where
        S: Service<Ask, Response = Response<B>, Error = BoxError, Future: Send>,
        S: Clone + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + std::fmt::Debug,
    {
        let tally = Arc::new(Tally::default());
        let permits = Arc::new(Semaphore::new(TASKS));
        let over = Arc::new(AtomicBool::new(false));
        let tasks = (0..TASKS).map(|_| {
            let (tally, permits, over) = (tally.clone(), permits.clone(), over.clone());
            let (mut service, url) = (service.clone(), url.to_owned());
            tokio::spawn(async move {
                while !over.load(SeqCst) {
                    let _permit = permits.acquire().await.unwrap();
                    tally.started.fetch_add(1, SeqCst);
                    call(&mut service, &url, &tally).await;
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            tally,
            permits,
            over,
        }
    }

    /// Lets no new call begin, and waits for the running ones.
    async fn stop(&self) -> SemaphorePermit<'_> {
        let all = u32::try_from(TASKS).unwrap();
        let stopped = timeout(DEADLINE, self.permits.acquire_many(all)).await;
        let stopped = stopped.expect("a call hangs").unwrap();
        assert_eq!(self.tally.started.load(SeqCst), self.tally.ended());
        stopped
    }

    /// Ends the tasks after their last call.
    async fn end(self) -> Arc<Tally> {
        self.over.store(true, SeqCst);
        for task in self.tasks {
            timeout(DEADLINE, task)
                .await
                .expect("a call hangs")
                .unwrap();
        }
        self.tally
    }
}

async fn call<S, B>(service: &mut S, url: &str, tally: &Tally)
where
    S: Service<Ask, Response = Response<B>, Error = BoxError>,
    B: Body<Data = Bytes>,
{
    let ask = Request::get(url).body(Empty::new()).unwrap();
    let answer = match service.ready().await {
        Ok(service) => service.call(ask).await,
        Err(err) => Err(err),
    };
    let ended = match answer {
        Ok(response) => match response.into_body().collect().await {
            Ok(body) => match &*body.to_bytes() {
                b"one two three" => &tally.answered,
                _ => &tally.wrong,
            },
            Err(_) => &tally.cut,
        },
        Err(err) if Refusal::find(&*err).is_some() => {
            // A caller that heeds the hint waits too, so the machine has time for the other tasks.
            sleep(Duration::from_millis(1)).await;
            &tally.refused
        }
        Err(_) => &tally.failed,
    };
    ended.fetch_add(1, SeqCst);
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "not in time: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Kills and restarts the server several times. Returns the allocated bytes of each time when the
/// server is down, no call runs and no connection is left.
async fn restarts(server: &mut Server, circuit: &CircuitBreakerHandle, load: &Load) -> Vec<isize> {
    let tally = &load.tally;
    let alive = || Handle::current().metrics().num_alive_tasks();
    let mut live = Vec::new();
    for _ in 0..RESTARTS {
        let answered = tally.answered.load(SeqCst);
        until("the circuit is closed, and calls are answered", || {
            circuit.state() == State::Closed && tally.answered.load(SeqCst) > answered + TASKS
        })
        .await;

        server.kill().await;
        // Answers that have already been sent are read first.
        drop(load.stop().await);
        until("no connection is left", || alive() == TASKS).await;
        let refused = tally.refused.load(SeqCst);
        until("the circuit is open, and calls are refused", || {
            circuit.state() != State::Closed && tally.refused.load(SeqCst) > refused + TASKS
        })
        .await;

        let stopped = load.stop().await;
        until("no connection is left", || alive() == TASKS).await;
        assert_ne!(circuit.state(), State::Closed);
        live.push(LIVE.load(SeqCst));
        drop(stopped);

        let begun = Instant::now();
        while let Err(err) = server.restart().await {
            // While the port was free, the system may have given it to a connection.
            assert!(begun.elapsed() < DEADLINE, "{err}");
            sleep(Duration::from_millis(1)).await;
        }
    }
    live
}

async fn scenario(attempts: u32) {
    let mut server = Server::start(|_| Answer::of("text/plain", &["one ", "two ", "three"]))
        .await
        .unwrap();
    // So most of the cuts are inside a body.
    server.set(Fault::Drip(Duration::from_millis(1)));
    let breaker = CircuitBreakerLayer::new()
        .recovery_duration(COOLDOWN)
        .probe_timeout(DEADLINE)
        .classify(StatusClassifier::new())
        .judge(EndOfBody);
    let circuit = breaker.handle();
    let service = ServiceBuilder::new()
        .layer(breaker)
        .retry(Attempts(attempts))
        .timeout(DEADLINE)
        .layer(ResponseBodyTimeoutLayer::new(DEADLINE))
        .service(Client::builder(TokioExecutor::new()).build_http());

    let load = Load::start(&service, &server.url());
    drop(service);
    let live = restarts(&mut server, &circuit, &load).await;
    until("the circuit is closed at last", || {
        circuit.state() == State::Closed
    })
    .await;
    let tally = load.end().await;

    let grown = live[RESTARTS - 1] - live[WARM];
    println!("allocated: {live:?}");
    assert!(grown < SLACK, "grown by {grown} bytes: {live:?}");
    assert_eq!(tally.started.load(SeqCst), tally.ended());
    assert_eq!(tally.wrong.load(SeqCst), 0);
    assert!(tally.cut.load(SeqCst) > 0, "no bodies were cut");
    let seen = [&tally.answered, &tally.failed, &tally.cut, &tally.refused];
    println!("{:?}", seen.map(|count| count.load(SeqCst)));

    server.kill().await;
    until("no task is left", || {
        Handle::current().metrics().num_alive_tasks() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_lost_while_a_server_restarts_under_load_and_the_circuit_follows() {
    let idle = {
        scenario(0).await;
        LIVE.load(SeqCst)
    };
    // With retries, the circuit sees only the calls that they could not save.
    scenario(2).await;
    let grown = LIVE.load(SeqCst) - idle;
    assert!(grown < SLACK, "{grown} bytes are never freed");
}
