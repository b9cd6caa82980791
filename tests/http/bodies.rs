//! Proves when a body is judged at its end, and for whom.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use tokio_test::{assert_pending, assert_ready};
use tower::buffer::Buffer;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::http::{ErrorEvents, ResponseBody};
use tower_breaker::{
    Cancelled, CircuitBreakerLayer, EndOfBody, Event, Failure, Outcome, State, Window,
};

use crate::support::body::{Piped, Says, Server, Step, breaker, call, read};
use crate::support::{pass, secs};

/// Case 10.
#[tokio::test(start_paused = true)]
async fn three_bodies_that_fail_after_their_head_trip_the_circuit_and_heads_alone_do_not() {
    let server = Server::default();
    let head = CircuitBreakerLayer::new();
    let end = CircuitBreakerLayer::new().judge(EndOfBody);
    let (by_head, by_end) = (head.handle(), end.handle());
    let mut stack = end.layer(server.clone());
    let mut unjudged = head.layer(server.clone());
    for n in 1..=3 {
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("one"));
        assert_pending!(read(&mut body));
        assert_eq!(by_end.snapshot().streak, n - 1, "nothing is known yet");
        pipe.send(Step::Error);
        assert_ready!(read(&mut body)).unwrap_err();
        assert_eq!(by_end.snapshot().streak, n);

        let pipe = server.answers();
        let body = call(&mut unjudged).await.unwrap();
        pipe.send(Step::Error);
        body.collect().await.unwrap_err();
    }
    assert_eq!(by_end.state(), State::Open);
    assert_eq!(by_head.snapshot().streak, 0);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_a_failure_or_neutral_is_judged_at_once() {
    let server = Server::default();
    let layer = breaker()
        .classify(|result: Result<&Response<Piped>, &BoxError>| match result {
            Ok(response) if response.status().is_success() => Outcome::Success,
            Ok(response) if response.status().is_client_error() => Outcome::Neutral,
            _ => Failure::transient().into(),
        })
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let _pipe = server.answers_with(StatusCode::BAD_GATEWAY, Says::Nothing);
    let body = call(&mut stack).await.unwrap();
    assert_eq!(circuit.state(), State::Open);
    drop(body);
    pass(secs(30)).await;
    let pipe = server.answers_with(StatusCode::NOT_FOUND, Says::Nothing);
    let mut body = call(&mut stack).await.unwrap();
    assert_eq!(circuit.state(), State::HalfOpen);
    assert!(circuit.would_allow(), "a neutral probe gave its slot back");
    // The body cannot change the verdict.
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert!(circuit.would_allow());
    assert_eq!(circuit.snapshot().trips, 1);
}

#[tokio::test(start_paused = true)]
async fn a_classifier_decides_alone_about_heads_and_errors() {
    let server = Server::default();
    let layer = breaker()
        .on_cancel(Cancelled::Failure)
        .classify(|result: Result<&Response<Piped>, &BoxError>| match result {
            Ok(response) if response.status() == StatusCode::OK => Failure::fatal().into(),
            _ => Outcome::Success,
        })
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    assert_eq!(circuit.state(), State::Closed, "an error that is a success");
    let pipe = server.answers_with(StatusCode::BAD_GATEWAY, Says::Nothing);
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.state(), State::Closed, "a `502` that is one");
    let _pipe = server.answers();
    drop(call(&mut stack).await.unwrap());
    assert_eq!(circuit.snapshot().trips, 1, "a `200` that is a failure");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_recorded_twice_and_a_body_that_is_over_stays_over() {
    let server = Server::default();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(10)
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    // The inner body panics when it is polled after its end.
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("one"));
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    for _ in 0..3 {
        assert_ready!(read(&mut body)).unwrap();
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
    }
    drop(body);
    assert_eq!(circuit.snapshot().streak, 1);
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    for _ in 0..3 {
        assert_ready!(read(&mut body)).unwrap();
    }
    drop(body);
    assert_eq!(circuit.snapshot().streak, 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_from_before_the_trip_is_stale_when_it_ends() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let good = server.answers();
    let mut early = call(&mut stack).await.unwrap();
    let bad = server.answers();
    let mut late = call(&mut stack).await.unwrap();
    server.fails();
    call(&mut stack).await.unwrap_err();
    pass(secs(10)).await;
    drop(good);
    assert_ready!(read(&mut early)).unwrap();
    assert_eq!(circuit.state(), State::Open);
    assert_eq!(circuit.snapshot().time_left, Some(secs(20)));
    bad.send(Step::Error);
    assert_ready!(read(&mut late)).unwrap_err();
    assert_eq!(circuit.snapshot().time_left, Some(secs(30)));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_fail_still_cannot_with_judged_bodies() {
    let mut stack = breaker()
        .refuse_with(|_: Request<()>, _| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        })
        .judge(EndOfBody)
        .layer(service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("fine"))))
        }));
    let Ok(ready) = stack.ready().await;
    let Ok(response) = ready.call(Request::new(())).await;
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "fine"
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_shows_its_permit_until_the_verdict() {
    let judge = EndOfBody.inspect(ErrorEvents::new());
    assert_eq!(format!("{judge:?}"), "InspectBody");
    let server = Server::default();
    let mut stack = breaker().judge(judge).layer(server.clone());
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    let before = format!("{body:?}");
    assert!(before.contains("permit: Some(Permit {"), "{before}");
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    let after = format!("{body:?}");
    assert!(after.contains("permit: None, over: true"), "{after}");
    assert!(body.get_ref().ended && body.get_mut().ended);
}

#[tokio::test(start_paused = true)]
async fn a_call_lasts_to_the_end_of_its_body() {
    // The rule asks how long a dropped call ran.
    let server = Server::default();
    let layer = breaker()
        .on_cancel(Cancelled::FailureAfter(secs(5)))
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for (last, state) in [(secs(1), State::Closed), (secs(2), State::Open)] {
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        for wait in [secs(3), last] {
            pass(wait).await;
            pipe.send(Step::Data("more"));
            assert_pending!(read(&mut body));
        }
        drop(body);
        assert_eq!(circuit.state(), state);
    }
    // Slow calls.
    let layer = breaker().slow_call(secs(5)).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for (wait, state) in [(4, State::Closed), (5, State::Open)] {
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pass(secs(wait)).await;
        drop(pipe);
        assert_ready!(read(&mut body)).unwrap();
        assert_eq!(circuit.state(), state);
    }
    // The failure rate.
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .failure_rate(0.5, Window::Calls(4))
        .minimum_calls(4)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let mut streams = Vec::new();
    for _ in 0..4 {
        let pipe = server.answers();
        streams.push((pipe, call(&mut stack).await.unwrap()));
    }
    for (n, (pipe, mut body)) in streams.into_iter().enumerate() {
        assert_eq!(circuit.state(), State::Closed);
        if n % 2 == 0 {
            pipe.send(Step::Error);
        }
        drop(pipe);
        let _ = assert_ready!(read(&mut body));
    }
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_only_observed_carries_no_permit_into_its_body() {
    let server = Server::default();
    let layer = breaker()
        .observe_only()
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuit.try_acquire().unwrap().failure();
    pass(secs(10)).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(circuit.snapshot().time_left, Some(secs(20)));
}

// ===== a body on its way =====

#[tokio::test(start_paused = true)]
async fn a_body_that_must_stay_pinned_is_judged_as_any_other() {
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    circuit.try_acquire().unwrap().failure();
    pass(secs(30)).await;
    let mut stack = layer.layer(tower::service_fn(|_: Request<()>| async {
        let frames = stream::unfold(3, |left| async move {
            tokio::task::yield_now().await;
            let frame = Ok::<_, BoxError>(Frame::data(Bytes::from("one")));
            (left > 0).then_some((frame, left - 1))
        });
        Ok::<_, BoxError>(Response::new(StreamBody::new(frames)))
    }));
    let mut body = pin!(call(&mut stack).await.unwrap());
    for _ in 0..3 {
        body.frame().await.unwrap().unwrap();
        assert_eq!(circuit.state(), State::HalfOpen);
    }
    assert!(body.frame().await.is_none());
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_permit_goes_with_its_body_through_wrappers() {
    let server = Server::default();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(100)
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let streak = || circuit.snapshot().streak;
    let mut stack = layer.layer(server.clone());

    // The body is taken out of its response, and the response dropped.
    let pipe = server.answers();
    let response = (&mut stack).oneshot(Request::new(())).await.unwrap();
    let (_head, body) = response.into_parts();
    pipe.send(Step::Error);
    // Boxed, which asks for `Send` and `Sync`.
    body.boxed().collect().await.unwrap_err();
    assert_eq!(streak(), 1);

    // The reader cuts it off.
    let pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("too much"));
    Limited::new(body, 3).collect().await.unwrap_err();
    assert_eq!(streak(), 2, "a dropped call");

    let pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("enough"));
    drop(pipe);
    Limited::new(body, 6).collect().await.unwrap();
    assert_eq!(streak(), 0);

    // Behind a buffer, whose worker makes the call.
    let mut buffer = Buffer::new(stack, 8);
    let pipe = server.answers();
    let response = (&mut buffer).oneshot(Request::new(())).await.unwrap();
    let mut body = response.into_body();
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(streak(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_may_be_dropped_or_read_on_another_thread() {
    let server = Server::default();
    let layer = CircuitBreakerLayer::new()
        .on_cancel(Cancelled::Failure)
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let _pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    std::thread::spawn(move || drop(body)).join().unwrap();
    assert_eq!(circuit.snapshot().streak, 1);
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    std::thread::spawn(move || assert_ready!(read(&mut body)).unwrap())
        .join()
        .unwrap();
    assert_eq!(circuit.snapshot().streak, 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_pins_its_key() {
    let server = Server::default();
    let layer = breaker()
        .judge(EndOfBody)
        .per_owned_key(|req: &Request<()>| req.uri().path().to_owned(), 1);
    let circuits = layer.handle();
    let mut stack = layer.layer(server.clone());
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    let _other = server.answers();
    let other = Request::builder().uri("/other").body(()).unwrap();
    drop(stack.ready().await.unwrap().call(other).await.unwrap());
    assert_eq!(circuits.keys(), ["/"], "the other call is unguarded");
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(circuits.state("/"), State::Open);
}

// ===== what happens meanwhile =====

#[tokio::test(start_paused = true)]
async fn an_observer_may_end_and_drop_other_bodies_and_move_the_circuit() {
    type Parked = Arc<Mutex<Vec<ResponseBody<Piped>>>>;
    let server = Server::default();
    let (parked, told) = (Parked::default(), Arc::new(Mutex::new(Vec::new())));
    let (bodies, events) = (Arc::clone(&parked), Arc::clone(&told));
    let layer = breaker()
        .on_cancel(Cancelled::Failure)
        .observe(move |event: &Event<'_>| {
            let short = match event {
                Event::Transition { to, .. } => to.to_string(),
                Event::LateVerdict { .. } => "late".to_owned(),
                _ => return,
            };
            events.lock().unwrap().push(short);
            let all = std::mem::take(&mut *bodies.lock().unwrap());
            for mut body in all {
                // One has ended, and the other is dropped.
                let _ = read(&mut body);
            }
        })
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let mut pipes = Vec::new();
    for _ in 0..2 {
        pipes.push(server.answers());
        let body = call(&mut stack).await.unwrap();
        parked.lock().unwrap().push(body);
    }
    pipes.pop();
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(*told.lock().unwrap(), ["open", "late", "late"]);
    assert_eq!(circuit.snapshot().trips, 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_says_nothing_of_a_circuit_that_was_moved_by_hand() {
    let server = Server::default();
    let layer = breaker().on_cancel(Cancelled::Failure).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for fails in [false, true] {
        for by_hand in ["force_open", "reset"] {
            circuit.reset();
            circuit.try_acquire().unwrap().failure();
            pass(secs(30)).await;
            let pipe = server.answers();
            let mut body = call(&mut stack).await.unwrap();
            let state = if by_hand == "reset" {
                circuit.reset();
                State::Closed
            } else {
                circuit.force_open();
                State::Open
            };
            // A frame of the old probe must not start a lease in the new state.
            pipe.send(Step::Data("more"));
            assert_pending!(read(&mut body));
            assert_eq!(circuit.snapshot().time_left, None);
            if fails {
                drop(body);
            } else {
                drop(pipe);
                assert_ready!(read(&mut body)).unwrap();
            }
            assert_eq!(circuit.state(), state, "{by_hand}");
            assert_eq!(circuit.snapshot().time_left, None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_says_nothing_of_a_key_that_was_forgotten() {
    let server = Server::default();
    let events = Arc::new(Mutex::new(0));
    let told = Arc::clone(&events);
    let layer = breaker()
        .observe(move |_: &Event<'_>| *told.lock().unwrap() += 1)
        .judge(EndOfBody)
        .per_owned_key(|req: &Request<()>| req.uri().path().to_owned(), 1);
    let circuits = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuits.try_acquire("/").unwrap().failure();
    pass(secs(30)).await;
    let pipe = server.answers();
    let mut probe = call(&mut stack).await.unwrap();
    assert!(circuits.forget("/"));
    let before = *events.lock().unwrap();
    pipe.send(Step::Data("more"));
    assert_pending!(read(&mut probe));
    pipe.send(Step::Error);
    assert_ready!(read(&mut probe)).unwrap_err();
    assert_eq!(*events.lock().unwrap(), before);
    assert_eq!(circuits.state("/"), State::Closed);
    assert!(circuits.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn taking_out_the_inner_body_is_a_dropped_call_unless_the_body_has_ended() {
    // The claim of the inner body about its end, and the streak after the body was taken out.
    for (says, streak) in [(Says::Nothing, 2), (Says::Length(3), 0)] {
        let server = Server::default();
        let layer = CircuitBreakerLayer::new()
            .on_cancel(Cancelled::Failure)
            .judge(EndOfBody);
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        server.fails();
        call(&mut stack).await.unwrap_err();
        let pipe = server.answers_with(StatusCode::OK, says);
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("one"));
        assert_pending!(read(&mut body));
        let mut inner: Piped = body.into_inner();
        assert_eq!(circuit.snapshot().streak, streak);
        // Later frames are no longer counted.
        pipe.send(Step::Error);
        assert_ready!(read(&mut inner)).unwrap_err();
        assert_eq!(circuit.snapshot().streak, streak);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_inner_body_is_taken_out_gives_its_slot_back() {
    let server = Server::default();
    let layer = breaker().on_cancel(Cancelled::Release).judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    pass(secs(30)).await;
    let _pipe = server.answers();
    let probe = call(&mut stack).await.unwrap();
    assert!(!circuit.would_allow());
    drop(probe.into_inner());
    assert!(circuit.would_allow());
}
