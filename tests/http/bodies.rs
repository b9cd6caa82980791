//! Verdicts at the end of a body, as users of the layers see them. Cases 2, 10, 31 and 33.

#![allow(clippy::unchecked_time_subtraction)] // A test panics below zero.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tokio::time::advance;
use tokio_test::{assert_pending, assert_ready};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::http::{EndOfBody, ErrorEvents, Inspect, ResponseBody};
use tower_breaker::{
    Cancelled, CircuitBreakerLayer, Digest, Event, Failure, FallbackLayer, FallbackState, Outcome,
    Reason, Refusal, State, TripwireLayer,
};

use crate::pipe::{Piped, SECOND, Says, Server, Step, breaker, call, panics, piped, read};

// ===== one circuit =====

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
async fn a_probe_is_out_until_its_body_ends_and_then_closes_or_opens() {
    for clean in [true, false] {
        let server = Server::default();
        let layer = breaker().judge(EndOfBody);
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        server.fails();
        call(&mut stack).await.unwrap_err();
        advance(30 * SECOND).await;
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("one"));
        assert_pending!(read(&mut body));
        assert_eq!(circuit.state(), State::HalfOpen);
        let refused = call(&mut stack).await.unwrap_err();
        let refusal = Refusal::find(&*refused).unwrap();
        assert_eq!(refusal.reason(), Reason::ProbeInFlight);
        if clean {
            drop(pipe);
            assert_ready!(read(&mut body)).unwrap();
            assert_eq!(circuit.state(), State::Closed);
        } else {
            pipe.send(Step::Error);
            assert_ready!(read(&mut body)).unwrap_err();
            assert_eq!(circuit.state(), State::Open);
            assert_eq!(circuit.snapshot().trips, 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_frame_of_a_probe_starts_its_lease_anew() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    advance(30 * SECOND).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    // The lease is 30 s. Frames come after 10 s, then after 25 s, ten times over.
    for wait in [10, 25].repeat(10) {
        advance(wait * SECOND).await;
        pipe.send(Step::Data("more"));
        assert_pending!(read(&mut body));
        let snapshot = circuit.snapshot();
        assert_eq!(snapshot.state, State::HalfOpen);
        assert_eq!(snapshot.time_left, Some(30 * SECOND));
        let refused = call(&mut stack).await.unwrap_err();
        let refusal = Refusal::find(&*refused).unwrap();
        assert_eq!(refusal.retry_after(), Some(30 * SECOND));
    }
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_body_falls_silent_has_failed_when_its_lease_is_over() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    advance(30 * SECOND).await;
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    advance(20 * SECOND).await;
    pipe.send(Step::Data("the last"));
    assert_pending!(read(&mut body));
    advance(30 * SECOND - Duration::from_nanos(1)).await;
    assert_eq!(circuit.state(), State::HalfOpen);
    advance(Duration::from_nanos(1)).await;
    assert_eq!(circuit.state(), State::Open);
    // Later frames renew nothing, and the end of the body changes nothing.
    pipe.send(Step::Data("too late"));
    assert_pending!(read(&mut body));
    advance(29 * SECOND).await;
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(circuit.snapshot().time_left, Some(SECOND));
    // An ordinary call whose body falls silent has no verdict.
    circuit.reset();
    let _pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    assert_pending!(read(&mut body));
    advance(3600 * SECOND).await;
    assert_eq!(
        (circuit.state(), circuit.snapshot().streak),
        (State::Closed, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_dropped_while_its_body_streams_never_wedges_the_circuit() {
    let lease = 30 * SECOND;
    for rule in [
        Cancelled::Ignore,
        Cancelled::Release,
        Cancelled::Failure,
        Cancelled::FailureAfter(SECOND),
        Cancelled::FailureAfter(3 * SECOND),
    ] {
        let server = Server::default();
        let layer = breaker().on_cancel(rule).judge(EndOfBody);
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        server.fails();
        call(&mut stack).await.unwrap_err();
        advance(30 * SECOND).await;
        for n in 0..1_000 {
            let pipe = server.answers();
            let mut body = call(&mut stack).await.unwrap();
            advance(2 * SECOND).await;
            if n % 2 == 0 {
                pipe.send(Step::Data("one"));
                assert_pending!(read(&mut body));
            }
            assert!(!circuit.would_allow(), "one slot");
            drop(body);
            let wait = match rule {
                Cancelled::Ignore if n % 2 == 0 => lease + 30 * SECOND,
                Cancelled::Ignore => lease + 28 * SECOND,
                Cancelled::Failure => 30 * SECOND,
                Cancelled::FailureAfter(long) if long < 2 * SECOND => 30 * SECOND,
                _ => Duration::ZERO,
            };
            if !wait.is_zero() {
                advance(wait - Duration::from_nanos(1)).await;
                assert!(!circuit.would_allow(), "{rule:?}");
                advance(Duration::from_nanos(1)).await;
            }
            assert!(circuit.would_allow(), "{rule:?}");
        }
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        drop(pipe);
        assert_ready!(read(&mut body)).unwrap();
        assert_eq!(circuit.state(), State::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_failed_or_says_nothing_is_judged_at_once() {
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
    advance(30 * SECOND).await;
    let pipe = server.answers_with(StatusCode::NOT_FOUND, Says::Nothing);
    let mut body = call(&mut stack).await.unwrap();
    assert_eq!(circuit.state(), State::HalfOpen);
    assert!(circuit.would_allow(), "a neutral probe gave its slot back");
    // The rest of the body changes nothing.
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert!(circuit.would_allow());
    assert_eq!(circuit.snapshot().trips, 1);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_is_recorded_once_and_an_ended_body_stays_ended() {
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
async fn a_body_that_has_given_its_announced_length_has_ended_even_if_it_is_not_polled_again() {
    // This is how a server writes a response with a `Content-Length`.
    let layer = breaker().on_cancel(Cancelled::Failure).judge(EndOfBody);
    let circuit = layer.handle();
    let mut full = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(Response::new(Full::new(Bytes::from("whole"))))
    }));
    let mut body = call(&mut full).await.unwrap();
    body.frame().await.unwrap().unwrap();
    assert!(body.is_end_stream());
    drop(body);
    assert_eq!(circuit.state(), State::Closed);
    // An empty body ends with its head.
    let mut empty = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(Response::new(Full::new(Bytes::new())))
    }));
    drop(call(&mut empty).await.unwrap());
    assert_eq!(circuit.state(), State::Closed);
    // A body that announces its length, and does not report its end.
    for (read_on, state) in [(false, State::Closed), (true, State::Open)] {
        let server = Server::default();
        let pipe = server.answers_with(StatusCode::OK, Says::Length(6));
        let mut stack = layer.layer(server);
        let mut body = call(&mut stack).await.unwrap();
        assert_eq!(body.size_hint().exact(), Some(6), "the hint passes through");
        pipe.send(Step::Data("abc"));
        pipe.send(Step::Data("def"));
        assert_pending!(read(&mut body));
        assert_eq!(body.size_hint().exact(), Some(0));
        if read_on {
            // An error after the announced length still counts.
            pipe.send(Step::Error);
            assert_ready!(read(&mut body)).unwrap_err();
        }
        drop(body);
        assert_eq!(circuit.state(), state);
    }
    circuit.reset();
    // A body that breaks off before its announced length.
    let server = Server::default();
    let pipe = server.answers_with(StatusCode::OK, Says::Length(6));
    let mut body = call(&mut layer.layer(server)).await.unwrap();
    pipe.send(Step::Data("abc"));
    assert_pending!(read(&mut body));
    drop(body);
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_has_failed_and_an_inspector_that_panics_has_cancelled() {
    for rule in [Cancelled::Release, Cancelled::Failure] {
        let server = Server::default();
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(10)
            .on_cancel(rule)
            .judge(
                EndOfBody.inspect(|frame: &Frame<Bytes>| -> Option<Outcome> {
                    let fatal = frame.data_ref().is_some_and(|data| data == "panic");
                    assert!(!fatal, "the inspector panics");
                    None
                }),
            );
        let circuit = layer.handle();
        let mut stack = layer.layer(server.clone());
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Panic);
        assert!(panics(|| read(&mut body)));
        assert_eq!(circuit.snapshot().streak, 1, "before the body is dropped");
        drop(body);
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("panic"));
        assert!(panics(|| read(&mut body)));
        let counted = if rule == Cancelled::Failure { 2 } else { 1 };
        assert_eq!(circuit.snapshot().streak, counted);
        drop(body);
        assert_eq!(circuit.snapshot().streak, counted);
    }
}

#[tokio::test(start_paused = true)]
async fn an_inspector_may_give_the_verdict_before_the_end_and_the_rest_passes() {
    let server = Server::default();
    let layer = breaker().judge(EndOfBody.inspect(ErrorEvents::new()));
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    let pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("data: {\"text\":\"a\"}\n\nevent: er"));
    pipe.send(Step::Data("ror\ndata: overloaded\n\n"));
    let mut body = Box::pin(body);
    body.frame().await.unwrap().unwrap();
    assert_eq!(circuit.state(), State::Closed);
    body.frame().await.unwrap().unwrap();
    assert_eq!(circuit.state(), State::Open);
    pipe.send(Step::Data("data: the rest\n\n"));
    let rest = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(rest, "data: the rest\n\n");
    drop(pipe);
    assert!(body.frame().await.is_none());
    assert_eq!(circuit.snapshot().trips, 1);
}

/// An inspector that requires a status in the trailers.
#[derive(Clone, Default)]
struct Status {
    wanted: bool,
}

impl Inspect<Bytes> for Status {
    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        assert_eq!(status, StatusCode::OK);
        self.wanted = !headers.contains_key("status");
    }

    fn frame(&mut self, frame: &Frame<Bytes>) -> Option<Outcome> {
        let status = frame.trailers_ref()?.get("status")?;
        Some(match status.as_bytes() {
            b"0" => Outcome::Success,
            b"1" => Outcome::Neutral,
            _ => Failure::transient().into(),
        })
    }

    fn end(&mut self) -> Outcome {
        if self.wanted {
            Failure::transient().into()
        } else {
            Outcome::Success
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_are_seen_and_pass_through() {
    let server = Server::default();
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(10)
        .judge(EndOfBody.inspect(Status::default()));
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    for (status, streak) in [
        (Some("2"), 1),
        (Some("1"), 1),
        (None, 2),
        (Some("2"), 3),
        (Some("0"), 0),
    ] {
        let pipe = server.answers();
        let body = call(&mut stack).await.unwrap();
        pipe.send(Step::Data("answer"));
        let mut trailers = HeaderMap::new();
        if let Some(status) = status {
            trailers.insert("status", HeaderValue::from_static(status));
        }
        pipe.send(Step::Trailers(trailers.clone()));
        drop(pipe);
        let answer = body.collect().await.unwrap();
        assert_eq!(answer.trailers(), Some(&trailers));
        assert_eq!(answer.to_bytes(), "answer");
        assert_eq!(circuit.snapshot().streak, streak, "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_leaves_before_required_trailers_cancels_the_call() {
    for (rule, streak) in [(Cancelled::Ignore, 0), (Cancelled::Failure, 1)] {
        let layer = CircuitBreakerLayer::new()
            .on_cancel(rule)
            .judge(EndOfBody.inspect(Status::default()));
        let circuit = layer.handle();
        let server = Server::default();
        let pipe = server.answers_with(StatusCode::OK, Says::Length(3));
        let mut body = call(&mut layer.layer(server)).await.unwrap();
        pipe.send(Step::Data("abc"));
        assert_pending!(read(&mut body));
        drop(body);
        assert_eq!(circuit.snapshot().streak, streak, "{rule:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_soft_refusal_is_judged_already() {
    let server = Server::default();
    let layer = breaker()
        .on_cancel(Cancelled::Failure)
        .refuse_with(|_: Request<()>, _| {
            let (pipe, body) = piped(Says::Nothing);
            pipe.send(Step::Data("try later"));
            Ok::<_, BoxError>(Response::new(body))
        })
        .judge(EndOfBody);
    let circuit = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    for read in [true, false] {
        let body = call(&mut stack).await.unwrap();
        if read {
            assert_eq!(body.collect().await.unwrap().to_bytes(), "try later");
        }
    }
    advance(30 * SECOND).await;
    assert!(circuit.would_allow(), "its bodies moved nothing");
    let text: ResponseBody<Full<Bytes>> = "made of a text".to_owned().into();
    assert_eq!(text.collect().await.unwrap().to_bytes(), "made of a text");
    let empty = ResponseBody::<Full<Bytes>>::default();
    assert!(empty.collect().await.unwrap().to_bytes().is_empty());
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
    advance(10 * SECOND).await;
    drop(good);
    assert_ready!(read(&mut early)).unwrap();
    assert_eq!(circuit.state(), State::Open);
    assert_eq!(circuit.snapshot().time_left, Some(20 * SECOND));
    bad.send(Step::Error);
    assert_ready!(read(&mut late)).unwrap_err();
    assert_eq!(circuit.snapshot().time_left, Some(30 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_read_pins_its_key() {
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

// ===== the other layers =====

#[tokio::test(start_paused = true)]
async fn a_turn_that_fails_in_its_body_is_not_sent_elsewhere_but_the_next_one_is() {
    let (primary, backup) = (Server::default(), Server::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&told);
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", backup.clone())
        .trip_threshold(1)
        .max_fail_count(1)
        .same_turn(|_: &Request<()>| Some(Request::new(())))
        .served_by(|response: &mut Response<Piped>, name: &str| {
            let name = HeaderValue::from_str(name).unwrap();
            response.headers_mut().insert("served-by", name);
        })
        .observe(move |event: &Event<'_>| {
            if let Event::Served { by, outcome, .. } = event {
                events.lock().unwrap().push(((*by).to_owned(), *outcome));
            }
        })
        .judge(EndOfBody);
    let chain = layer.handle();
    let mut stack = layer.layer(primary.clone());
    for (server, name, state) in [
        (&primary, "gpt-5", FallbackState::Primary),
        (&backup, "claude", FallbackState::Fallback),
    ] {
        assert_eq!(chain.state(), state);
        let pipe = server.answers();
        let response = stack.ready().await.unwrap();
        let response = response.call(Request::new(())).await.unwrap();
        assert_eq!(response.headers()["served-by"], name);
        let mut body = response.into_body();
        pipe.send(Step::Data("an answer begins"));
        assert_pending!(read(&mut body));
        pipe.send(Step::Error);
        assert_eq!(
            assert_ready!(read(&mut body)).unwrap_err().to_string(),
            "cut"
        );
    }
    let failed = Outcome::Failure(Failure::transient());
    let turns = [("gpt-5".to_owned(), failed), ("claude".to_owned(), failed)];
    assert_eq!(*told.lock().unwrap(), turns);
    let snapshot = chain.snapshot();
    assert_eq!(snapshot.entries[0].strikes, 1);
    let refused = call(&mut stack).await.unwrap_err();
    let refusal = Refusal::find(&*refused).unwrap();
    assert_eq!(refusal.reason(), Reason::FallbackExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_failed_goes_on_to_the_next_entry_within_the_turn() {
    let (primary, backup) = (Server::default(), Server::default());
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", backup.clone())
        .same_turn(|_: &Request<()>| Some(Request::new(())))
        .judge(EndOfBody);
    let chain = layer.handle();
    let mut stack = layer.layer(primary.clone());
    primary.fails();
    let pipe = backup.answers();
    let mut body = call(&mut stack).await.unwrap();
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(chain.snapshot().entries[0].strikes, 0);
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(
        chain.snapshot().entries[0].strikes,
        1,
        "who served, not who failed first"
    );
    assert_eq!(chain.snapshot().consecutive_failures, 1);
}

#[tokio::test(start_paused = true)]
async fn a_fallbacks_probe_is_out_until_its_body_ends_and_lives_by_its_frames() {
    let (primary, backup) = (Server::default(), Server::default());
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", backup.clone())
        .trip_threshold(1)
        .recovery_successes_needed(1)
        .judge(EndOfBody);
    let chain = layer.handle();
    let mut stack = layer.layer(primary.clone());
    primary.fails();
    call(&mut stack).await.unwrap_err();
    advance(60 * SECOND).await;
    let pipe = primary.answers();
    let mut probe = call(&mut stack).await.unwrap();
    for _ in 0..10 {
        // The lease is 120 s.
        advance(100 * SECOND).await;
        pipe.send(Step::Data("more"));
        assert_pending!(read(&mut probe));
        let beside = backup.answers();
        let mut body = call(&mut stack).await.unwrap();
        drop(beside);
        assert_ready!(read(&mut body)).unwrap();
        assert_eq!(chain.state(), FallbackState::Recovering);
        assert_eq!(chain.snapshot().lease_left, Some(120 * SECOND));
    }
    drop(pipe);
    assert_ready!(read(&mut probe)).unwrap();
    assert_eq!(chain.state(), FallbackState::Primary);
}

#[tokio::test(start_paused = true)]
async fn a_turn_whose_body_is_dropped_has_the_outcome_of_on_cancel() {
    for (rule, failed) in [
        (Cancelled::Ignore, false),
        (Cancelled::Release, false),
        (Cancelled::Failure, true),
        (Cancelled::FailureAfter(2 * SECOND), true),
        (Cancelled::FailureAfter(3 * SECOND), false),
    ] {
        let (primary, backup) = (Server::default(), Server::default());
        let layer = FallbackLayer::new("gpt-5")
            .backup("claude", backup.clone())
            .trip_threshold(2)
            .on_cancel(rule)
            .judge(EndOfBody);
        let chain = layer.handle();
        let mut stack = layer.layer(primary.clone());
        let dropped = async |stack: &mut _, server: &Server| {
            let pipe = server.answers();
            let mut body = call(stack).await.unwrap();
            pipe.send(Step::Data("an answer begins"));
            assert_pending!(read(&mut body));
            advance(2 * SECOND).await;
            drop(body);
        };
        let failures = u32::from(failed);

        dropped(&mut stack, &primary).await;
        let now = chain.snapshot();
        let seen = (now.consecutive_failures, now.entries[0].strikes);
        assert_eq!(seen, (failures, 0), "{rule:?}");

        while chain.state() == FallbackState::Primary {
            primary.fails();
            call(&mut stack).await.unwrap_err();
        }
        dropped(&mut stack, &backup).await;
        assert_eq!(chain.snapshot().entries[0].strikes, failures, "{rule:?}");

        advance(60 * SECOND).await;
        dropped(&mut stack, &primary).await;
        let now = chain.snapshot();
        assert_eq!(now.state, FallbackState::Recovering, "{rule:?}");
        assert_eq!(now.probe_failures, failures, "{rule:?}");
        // The lease is 120 s, and counts from the frame.
        let kept = (rule == Cancelled::Ignore).then_some(118 * SECOND);
        assert_eq!(now.lease_left, kept, "{rule:?}");
        advance(kept.unwrap_or_default()).await;
        // The slot is not lost: the next turn is the probe.
        let pipe = primary.answers();
        let mut probe = call(&mut stack).await.unwrap();
        drop(pipe);
        assert_ready!(read(&mut probe)).unwrap();
        assert_eq!(chain.snapshot().probe_successes, 1, "{rule:?}");
    }
}

/// Case 33: the bodies of requests.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_replayed_arrives_with_identical_bytes_and_one_that_cannot_be_is_not_replayed()
 {
    /// The requests that a model got.
    type Asked = Arc<Mutex<Vec<Bytes>>>;

    /// Reads its request, and answers if it is up.
    fn model<B>(
        well: bool,
        asked: &Asked,
    ) -> impl Service<Request<B>, Response = Response<Full<Bytes>>, Error = BoxError> + Clone + use<B>
    where
        B: Body<Data = Bytes, Error = Infallible>,
    {
        let asked = Arc::clone(asked);
        service_fn(move |request: Request<B>| {
            let log = Arc::clone(&asked);
            async move {
                let Ok(body) = request.into_body().collect().await;
                log.lock().unwrap().push(body.to_bytes());
                if well {
                    Ok(Response::new(Full::from("answered")))
                } else {
                    Err::<_, BoxError>("down".into())
                }
            }
        })
    }

    let text = Bytes::from("{ \"a\": 1,\n \"b\": \"\u{e9}\" }");
    let [first, second] = [(); 2].map(|()| Asked::default());
    let mut stack = FallbackLayer::new("gpt-5")
        .backup("claude", model(true, &second))
        .same_turn(|request: &Request<Full<Bytes>>| Some(request.clone()))
        .judge(EndOfBody)
        .layer(model(false, &first));
    let request = Request::new(Full::new(text.clone()));
    let answer = stack.ready().await.unwrap().call(request).await.unwrap();
    let answer = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(answer, "answered");
    for asked in [first, second] {
        assert_eq!(*asked.lock().unwrap(), std::slice::from_ref(&text));
    }

    // A request whose body is not `Clone`.
    type Once = http_body_util::combinators::BoxBody<Bytes, Infallible>;
    let [first, second] = [(); 2].map(|()| Asked::default());
    let mut stack = FallbackLayer::new("gpt-5")
        .backup("claude", model(true, &second))
        .same_turn(|_: &Request<Once>| None)
        .judge(EndOfBody)
        .layer(model(false, &first));
    let request = Request::new(Once::new(Full::new(text.clone())));
    let err = stack.ready().await.unwrap().call(request).await.err();
    assert_eq!(err.unwrap().to_string(), "down", "the original error");
    assert_eq!(*first.lock().unwrap(), [text]);
    assert!(second.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_tripwire_counts_the_errors_of_bodies_and_its_probe_ends_with_one() {
    let server = Server::default();
    let layer = TripwireLayer::new()
        .max_turns(100)
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let fence = layer.handle();
    let mut stack = layer.layer(server.clone());
    for errors in 1..=3 {
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        assert_eq!(fence.snapshot().errors, errors - 1);
        pipe.send(Step::Data("one"));
        pipe.send(Step::Error);
        assert_ready!(read(&mut body)).unwrap_err();
        assert_eq!(fence.snapshot().errors, errors);
    }
    assert_eq!(fence.state(), State::Open);
    for (clean, state) in [(false, State::Open), (true, State::Closed)] {
        for _ in 0..4 {
            call(&mut stack).await.unwrap_err();
        }
        let pipe = server.answers();
        let mut body = call(&mut stack).await.unwrap();
        assert_eq!(fence.state(), State::HalfOpen);
        if !clean {
            pipe.send(Step::Error);
        }
        drop(pipe);
        assert_eq!(assert_ready!(read(&mut body)).is_ok(), clean);
        assert_eq!(fence.state(), state);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tripwires_probe_that_is_dropped_in_its_body_re_arms_by_refusals() {
    let server = Server::default();
    let layer = TripwireLayer::new()
        .error_limit(1)
        .max_turns(100)
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let fence = layer.handle();
    let mut stack = layer.layer(server.clone());
    server.fails();
    call(&mut stack).await.unwrap_err();
    for _ in 0..3 {
        for _ in 0..4 {
            call(&mut stack).await.unwrap_err();
        }
        let _pipe = server.answers();
        drop(call(&mut stack).await.unwrap());
        assert_eq!(fence.state(), State::Open);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tripwire_compares_the_response_before_it_wraps_the_body() {
    let server = Server::default();
    let layer = TripwireLayer::new()
        .max_turns(100)
        .digest(|_: &Request<()>| Some(Digest::of("the same")))
        .same_result(|response: &Response<Piped>| Some(Digest::of(response.status().as_str())))
        .judge(EndOfBody);
    let mut stack = layer.layer(server.clone());
    let mut calls = 0;
    for status in [200, 201, 202, 203, 200, 200] {
        let pipe = server.answers_with(StatusCode::from_u16(status).unwrap(), Says::Nothing);
        let mut body = call(&mut stack).await.unwrap();
        drop(pipe);
        assert_ready!(read(&mut body)).unwrap();
        calls += 1;
    }
    assert_eq!(calls, 6);
    call(&mut stack).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_stack_of_all_three_judges_one_body_at_its_end() {
    let server = Server::default();
    let breaker = breaker().judge(EndOfBody);
    let fallback = FallbackLayer::new("gpt-5").judge(EndOfBody);
    let tripwire = TripwireLayer::new()
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let (circuit, chain, fence) = (breaker.handle(), fallback.handle(), tripwire.handle());
    let mut stack = tower::ServiceBuilder::new()
        .layer(tripwire)
        .layer(fallback)
        .layer(breaker)
        .service(server.clone());
    let pipe = server.answers();
    let body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("one"));
    pipe.send(Step::Error);
    body.collect().await.unwrap_err();
    assert_eq!(circuit.state(), State::Open);
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(fence.snapshot().errors, 1);
    // A refusal of the circuit is a failed turn for the chain, and neutral for the fence.
    call(&mut stack).await.unwrap_err();
    assert_eq!(chain.snapshot().consecutive_failures, 2);
    assert_eq!(fence.snapshot().errors, 1);
}

#[tokio::test(start_paused = true)]
async fn an_infallible_error_type_stays_infallible() {
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
    advance(30 * SECOND).await;
    let _pipe = server.answers();
    let probe = call(&mut stack).await.unwrap();
    assert!(!circuit.would_allow());
    drop(probe.into_inner());
    assert!(circuit.would_allow());
}
