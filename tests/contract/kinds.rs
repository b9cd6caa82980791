//! Proves that the layers guard services, futures, requests and errors of every kind that tower
//! allows.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, Ready, poll_fn, ready};
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{
    CircuitBreakerLayer, Failure, FallbackLayer, Outcome, Reason, Refusal, State, TripwireLayer,
};

use crate::support::refused;
use crate::support::site::{Down, Query, ask_now, now, trip_by_hand};

// ===== the circuit breaker =====

fn flagged(result: Result<&String, &Infallible>) -> Outcome {
    match result {
        Ok(text) if text.starts_with("error") => Failure::transient().into(),
        _ => Outcome::Success,
    }
}

#[test]
fn a_service_that_cannot_fail_still_cannot_under_refuse_with() {
    let layer = CircuitBreakerLayer::new()
        .name("search")
        .classify(flagged)
        .refuse_with(|query: String, refusal: Refusal| {
            Ok::<_, Infallible>(format!("{query}: {refusal}"))
        });
    let mut service = layer.layer(service_fn(|query: String| {
        ready(Ok::<_, Infallible>(format!("error at {query}")))
    }));
    let mut ask = || -> Result<String, Infallible> {
        now(poll_fn(|cx| service.poll_ready(cx)))?;
        now(service.call("q".to_owned()))
    };
    for _ in 0..3 {
        let Ok(answer) = ask();
        assert_eq!(answer, "error at q");
    }
    let Ok(answer) = ask();
    assert_eq!(
        answer,
        "q: tool `search` temporarily unavailable: circuit breaker open"
    );
}

#[test]
fn a_keyed_service_that_cannot_fail_still_cannot_under_refuse_with() {
    let layer = CircuitBreakerLayer::new()
        .classify(flagged)
        .refuse_with(|_: String, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()))
        .per_key(|query: &String| query.as_str(), 10);
    let mut service = layer.layer(service_fn(|query: String| {
        ready(Ok::<_, Infallible>(format!("error at {query}")))
    }));
    let mut answers = Vec::new();
    for _ in 0..4 {
        let Ok(()) = now(poll_fn(|cx| service.poll_ready(cx)));
        let Ok(answer) = now(service.call("search".to_owned()));
        answers.push(answer);
    }
    assert_eq!(answers[..3], ["error at search"; 3]);
    assert_eq!(
        answers[3],
        "tool `search` temporarily unavailable: circuit breaker open"
    );
}

#[test]
fn refuse_with_keeps_an_error_type_that_no_box_can_hold() {
    // The error is neither `'static` nor `Send` nor an `Error`. The stock classifier asks for
    // `'static`, so the test has its own.
    struct Local<'a>(Rc<Cell<u32>>, &'a str);
    let text = String::from("borrowed");
    let count = Rc::new(Cell::new(0));
    let layer = CircuitBreakerLayer::new()
        .classify(|result: Result<&(), &Local<'_>>| match result {
            Ok(()) => Outcome::Success,
            Err(_) => Failure::transient().into(),
        })
        .refuse_with(|(): (), _: Refusal| Ok::<(), Local<'_>>(()));
    let mut service = layer.layer(service_fn(|(): ()| {
        count.set(count.get() + 1);
        ready(Err::<(), _>(Local(Rc::clone(&count), &text)))
    }));
    for _ in 0..3 {
        now(poll_fn(|cx| service.poll_ready(cx))).ok().unwrap();
        let err = now(service.call(())).err().unwrap();
        assert_eq!((err.0.get(), err.1), (count.get(), "borrowed"));
    }
    now(poll_fn(|cx| service.poll_ready(cx))).ok().unwrap();
    assert!(now(service.call(())).is_ok());
    assert_eq!(count.get(), 3);
}

/// A service that is neither `Clone` nor `'static` nor `Send`. Neither is its future, which is
/// not `Unpin` either.
struct Local<'a> {
    log: &'a RefCell<Vec<String>>,
    down: Rc<Cell<bool>>,
}

impl<'a> Service<&'a mut String> for Local<'a> {
    type Response = &'a str;
    type Error = Down;
    type Future = Pinned<'a>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Down>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, query: &'a mut String) -> Pinned<'a> {
        self.log.borrow_mut().push(query.clone());
        query.push('!');
        Pinned {
            answer: query.as_str(),
            down: Rc::clone(&self.down),
            polled: false,
            _pin: PhantomPinned,
        }
    }
}

struct Pinned<'a> {
    answer: &'a str,
    down: Rc<Cell<bool>>,
    polled: bool,
    _pin: PhantomPinned,
}

impl<'a> Future for Pinned<'a> {
    type Output = Result<&'a str, Down>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.polled, "polled again after it was ready");
        Poll::Ready(if self.down.get() {
            Err(Down)
        } else {
            Ok(self.answer)
        })
    }
}

#[test]
fn a_breaker_guards_a_service_that_is_neither_clone_nor_static_nor_send() {
    let log = RefCell::new(Vec::new());
    let down = Rc::new(Cell::new(false));
    let mut queries: Vec<String> = (0..5).map(|i| format!("q{i}")).collect();
    let mut queries = queries.iter_mut();

    let layer = CircuitBreakerLayer::new().failure_threshold(1);
    let mut service = layer.layer(Local {
        log: &log,
        down: Rc::clone(&down),
    });
    let mut ask = |query| -> Result<&str, BoxError> {
        now(poll_fn(|cx| service.poll_ready(cx)))?;
        now(service.call(query))
    };
    // The answer borrows from the request.
    assert_eq!(ask(queries.next().unwrap()).unwrap(), "q0!");
    down.set(true);
    assert!(ask(queries.next().unwrap()).unwrap_err().is::<Down>());
    let refusal = ask(queries.next().unwrap());
    assert_eq!(refused(refusal).reason(), Reason::CircuitOpen);
    assert_eq!(*log.borrow(), ["q0", "q1"]);
}

#[test]
fn a_keyed_breaker_guards_such_a_service_by_a_key_inside_a_borrowed_request() {
    struct Ask<'a> {
        tool: &'a str,
        seen: &'a RefCell<Vec<String>>,
    }
    let seen = RefCell::new(Vec::new());
    let names = [String::from("search"), String::from("fetch")];
    let count = Rc::new(Cell::new(0));
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .per_key(|ask: &Ask<'_>| ask.tool, 10);
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|ask: Ask<'_>| {
        count.set(count.get() + 1);
        ask.seen.borrow_mut().push(ask.tool.to_owned());
        ready(if ask.tool == "search" {
            Err(Down)
        } else {
            Ok(count.get())
        })
    }));
    let mut answers = Vec::new();
    for tool in names.iter().chain(&names) {
        now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
        answers.push(now(service.call(Ask { tool, seen: &seen })));
    }
    assert_eq!(handle.state("search"), State::Open);
    assert_eq!(handle.state("fetch"), State::Closed);
    assert_eq!(*seen.borrow(), ["search", "fetch", "fetch"]);
    assert_eq!(refused(answers.remove(2)).reason(), Reason::CircuitOpen);
}

#[tokio::test]
async fn a_request_that_is_neither_clone_nor_static_is_handed_on_or_given_to_the_policy() {
    struct Once<'a>(&'a Cell<u32>);
    impl Drop for Once<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Cell::new(0);
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|once: Once<'_>| {
        ready(Ok::<_, Down>(once.0.get()))
    }));
    let answer = service.ready().await.unwrap().call(Once(&dropped)).await;
    assert_eq!((answer.unwrap(), dropped.get()), (0, 1));
    trip_by_hand(&handle);
    let answer = service.ready().await.unwrap().call(Once(&dropped)).await;
    assert_eq!(
        (refused(answer).reason(), dropped.get()),
        (Reason::CircuitOpen, 2)
    );

    // The policy gets the whole request back.
    let layer = CircuitBreakerLayer::new()
        .refuse_with(|once: Once<'_>, _: Refusal| Ok::<_, Down>(once.0.get() + 100));
    layer.handle().force_open();
    let mut service = layer.layer(service_fn(|once: Once<'_>| {
        ready(Ok::<_, Down>(once.0.get()))
    }));
    let answer = service.ready().await.unwrap().call(Once(&dropped)).await;
    assert_eq!(answer.unwrap(), 102);
}

#[tokio::test]
async fn a_classifier_may_borrow_from_its_surroundings() {
    let codes = [503_u16, 429];
    let layer = CircuitBreakerLayer::new().classify(|result: Result<&u16, &Down>| match result {
        Ok(code) if codes.contains(code) => Failure::transient().into(),
        Ok(_) => Outcome::Neutral,
        Err(_) => Failure::fatal().into(),
    });
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|code: u16| ready(Ok::<_, Down>(code))));
    for code in [503, 404, 404, 429] {
        assert_eq!(
            service.ready().await.unwrap().call(code).await.unwrap(),
            code
        );
    }
    assert_eq!(handle.snapshot().streak, 2);
}

/// Frameworks use one stack for requests of two types.
#[test]
fn one_circuit_guards_calls_of_several_request_types() {
    #[derive(Clone)]
    struct Both;
    impl Service<u8> for Both {
        type Response = u8;
        type Error = Down;
        type Future = std::future::Ready<Result<u8, Down>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Down>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: u8) -> Self::Future {
            ready(Err(Down))
        }
    }
    impl Service<Query> for Both {
        type Response = Query;
        type Error = Down;
        type Future = std::future::Ready<Result<Query, Down>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Down>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, query: Query) -> Self::Future {
            ready(Ok(query))
        }
    }
    let mut service = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new().failure_threshold(1))
        .service(Both);
    assert_eq!(ask_now(&mut service).unwrap(), "q");
    now(poll_fn(|cx| Service::<u8>::poll_ready(&mut service, cx))).unwrap();
    assert!(now(service.call(1_u8)).is_err());
    assert_eq!(refused(ask_now(&mut service)).reason(), Reason::CircuitOpen);
}

// ===== the fallback =====

#[tokio::test(start_paused = true)]
async fn a_fallback_asks_only_for_a_service_and_its_request() {
    /// A service that borrows, and that is neither `Clone` nor `Send`.
    struct Local<'a>(&'a str, Rc<()>);
    struct Request(Rc<()>);

    impl Service<Request> for Local<'_> {
        type Response = usize;
        type Error = Infallible;
        type Future = Ready<Result<usize, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request) -> Self::Future {
            ready(Ok(self.0.len() + Rc::strong_count(&request.0)))
        }
    }

    let text = "borrowed".to_owned();
    let mut services = FallbackLayer::new("primary")
        .refuse_with(|_: Request, _: Refusal| Ok::<_, Infallible>(0))
        .layer(Local(&text, Rc::new(())));
    let answer = services.ready().await.unwrap().call(Request(Rc::new(())));
    assert_eq!(answer.await, Ok(9));
    assert_eq!(services.get_ref().0, text);
    assert_eq!(Rc::strong_count(&services.get_mut().1), 1);
    assert_eq!(services.into_inner().0, text);

    let mut models = FallbackLayer::rewriting("primary", |_: &mut Request, _: &str| ())
        .model("a")
        .refuse_with(|_: Request, _: Refusal| Ok::<_, Infallible>(0))
        .layer(Local(&text, Rc::new(())));
    let answer = models.ready().await.unwrap().call(Request(Rc::new(())));
    assert_eq!(answer.await, Ok(9));
}

// ===== the tripwire =====

/// A service that is not `Clone`, with a future that is neither `Send` nor `'static`.
struct Borrowing<'a>(&'a std::cell::Cell<u32>);

impl<'a> Service<u32> for Borrowing<'a> {
    type Response = u32;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<u32, Self::Error>> + 'a>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u32) -> Self::Future {
        let cell = self.0;
        Box::pin(async move {
            cell.set(cell.get() + n);
            Ok(n)
        })
    }
}

#[tokio::test]
async fn a_tripwire_asks_only_for_a_service() {
    let sum = std::cell::Cell::new(0);
    let mut tool = TripwireLayer::new().layer(Borrowing(&sum));
    for n in 1..4 {
        tool.ready().await.unwrap().call(n).await.unwrap();
    }
    assert_eq!(sum.get(), 6);
}
