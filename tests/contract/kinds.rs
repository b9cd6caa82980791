//! Services, futures, requests and errors of every kind that tower allows.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{
    CircuitBreakerLayer, Failure, IntoError, Outcome, Reason, Refusal, Refuse, State,
};

use crate::site::{Down, Query, Site, ask, now, refused, trip};

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
fn a_call_that_is_not_ready_goes_to_refuse_with_too() {
    let layer = CircuitBreakerLayer::new()
        .refuse_with(|_: Query, refusal: Refusal| Err::<Query, _>(refusal));
    let mut service = layer.layer(service_fn(|query: Query| ready(Ok::<_, Refusal>(query))));
    let refusal = now(service.call("q")).unwrap_err();
    assert_eq!(refusal.reason(), Reason::NotReady);
    assert_eq!(
        refusal.to_string(),
        "tool was called before it was ready: call it again"
    );
}

#[derive(Clone, Debug, PartialEq)]
enum Mine {
    Broken,
    Refused(Refusal),
}

impl From<Refusal> for Mine {
    fn from(refusal: Refusal) -> Self {
        Mine::Refused(refusal)
    }
}

#[test]
fn an_error_that_can_be_made_from_a_refusal_is_kept_by_into_error() {
    let layer = CircuitBreakerLayer::new().refuse(IntoError);
    let mut service = layer.layer(service_fn(|_: Query| ready(Err::<Query, _>(Mine::Broken))));
    for _ in 0..3 {
        assert_eq!(ask(&mut service), Err(Mine::Broken));
    }
    let Err(Mine::Refused(refusal)) = ask(&mut service) else {
        panic!("not refused");
    };
    assert_eq!(refusal.reason(), Reason::CircuitOpen);
}

/// A policy that answers some requests and changes the error's type.
#[derive(Clone)]
struct Cached;

#[derive(Debug, PartialEq)]
enum Told {
    Refused(Query, Reason),
    Inner(String),
}

impl<E: fmt::Display> Refuse<Query, Query, E> for Cached {
    type Error = Told;

    fn refuse(&self, query: Query, refusal: Refusal) -> Result<Query, Told> {
        match query {
            "q" => Ok("from the cache"),
            other => Err(Told::Refused(other, refusal.reason())),
        }
    }

    fn convert(err: E) -> Told {
        Told::Inner(err.to_string())
    }
}

#[test]
fn a_refusal_policy_of_the_users_decides_by_the_request_and_names_its_own_error() {
    let site = Arc::new(Site::default());
    site.set_down(true);
    let mut service = CircuitBreakerLayer::new().refuse(Cached).layer(site.tool());
    let down = Told::Inner("the tool is down".to_owned());
    for _ in 0..2 {
        assert_eq!(ask(&mut service).as_ref(), Err(&down));
    }
    // A readiness error is converted like any other.
    site.set_lost(true);
    assert_eq!(ask(&mut service).as_ref(), Err(&down));
    assert_eq!(ask(&mut service), Ok("from the cache"));
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    assert_eq!(
        now(service.call("other")),
        Err(Told::Refused("other", Reason::CircuitOpen))
    );
    assert_eq!(site.calls(), 2);
}

#[test]
fn a_typed_error_that_no_box_can_hold_is_kept_by_refuse_with() {
    // The error is neither `'static`, nor `Send`, nor an `Error`. The stock classifier asks for
    // `'static`, so the test uses one of its own.
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

/// A service that is neither `Clone`, nor `'static`, nor `Send`. Its future is none of these
/// either, nor `Unpin`.
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
fn a_service_that_is_neither_clone_nor_static_nor_send_is_guarded_all_the_same() {
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
    assert_eq!(refused(refusal).0, Reason::CircuitOpen);
    assert_eq!(*log.borrow(), ["q0", "q1"]);
}

#[test]
fn a_keyed_service_of_that_kind_is_guarded_too_by_a_key_inside_a_borrowed_request() {
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
    assert_eq!(refused(answers.remove(2)).0, Reason::CircuitOpen);
}

#[tokio::test]
async fn a_request_that_can_neither_be_cloned_nor_live_long_is_handed_on_or_given_to_the_policy() {
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
    trip(&handle);
    let answer = service.ready().await.unwrap().call(Once(&dropped)).await;
    assert_eq!((refused(answer).0, dropped.get()), (Reason::CircuitOpen, 2));

    // The policy gets the request back whole.
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

/// The same stack serves requests of two types, as in frameworks.
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
    assert_eq!(ask(&mut service).unwrap(), "q");
    now(poll_fn(|cx| Service::<u8>::poll_ready(&mut service, cx))).unwrap();
    assert!(now(service.call(1_u8)).is_err());
    assert_eq!(refused(ask(&mut service)).0, Reason::CircuitOpen);
}
