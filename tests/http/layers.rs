//! Proves bodies under substitutes, under a fallback, under a tripwire, and in stacks of them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio_test::{assert_pending, assert_ready};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::http::{ErrorEvents, StatusClassifier};
use tower_breaker::{
    Cancelled, CircuitBreakerLayer, Digest, EndOfBody, Event, Failure, FallbackLayer,
    FallbackState, HealthRouter, Outcome, Reason, Refusal, State, TripwireLayer,
};

use crate::support::body::{Piped, Says, Server, Step, breaker, call, read};
use crate::support::{NS, pass, secs};

#[tokio::test(start_paused = true)]
async fn a_substitutes_body_is_judged_for_the_substitute() {
    let server = Server::default();
    let layer = breaker()
        .judge(EndOfBody)
        .per_key(|req: &Request<String>| req.body().as_str(), 10)
        .substitute(
            HealthRouter::new().route("search", ["mirror"]),
            |req: &mut Request<String>, name: &str| *req.body_mut() = name.to_owned(),
        );
    let circuits = layer.handle();
    let mut stack = layer.layer(server.clone());
    circuits.try_acquire("search").unwrap().failure();
    let pipe = server.answers();
    let req = Request::new("search".to_owned());
    let mut body = (&mut stack).oneshot(req).await.unwrap().into_body();
    pipe.send(Step::Error);
    assert_eq!(circuits.state("mirror"), State::Closed);
    assert_ready!(read(&mut body)).unwrap_err();
    assert_eq!(circuits.state("mirror"), State::Open);
    assert_eq!(circuits.snapshot("search").trips, 1);
}

// ===== the fallback =====

/// Case 31.
#[tokio::test(start_paused = true)]
async fn a_turn_that_fails_in_its_body_is_not_replayed_and_the_next_one_goes_to_the_chain() {
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
async fn a_failed_head_goes_on_to_the_next_entry_within_the_turn() {
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
async fn a_fallbacks_probe_is_in_flight_until_its_body_ends_and_frames_renew_its_lease() {
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
    pass(secs(60)).await;
    let pipe = primary.answers();
    let mut probe = call(&mut stack).await.unwrap();
    for _ in 0..10 {
        // The lease is 120 s.
        pass(secs(100)).await;
        pipe.send(Step::Data("more"));
        assert_pending!(read(&mut probe));
        let beside = backup.answers();
        let mut body = call(&mut stack).await.unwrap();
        drop(beside);
        assert_ready!(read(&mut body)).unwrap();
        assert_eq!(chain.state(), FallbackState::Recovering);
        assert_eq!(chain.snapshot().lease_left, Some(secs(120)));
    }
    drop(pipe);
    assert_ready!(read(&mut probe)).unwrap();
    assert_eq!(chain.state(), FallbackState::Primary);
}

#[tokio::test(start_paused = true)]
async fn a_turn_whose_body_is_dropped_counts_by_the_rule_for_the_entry_that_served() {
    for (rule, failed) in [
        (Cancelled::Ignore, false),
        (Cancelled::Release, false),
        (Cancelled::Failure, true),
        (Cancelled::FailureAfter(secs(2)), true),
        (Cancelled::FailureAfter(secs(3)), false),
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
            pass(secs(2)).await;
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

        pass(secs(60)).await;
        dropped(&mut stack, &primary).await;
        let now = chain.snapshot();
        assert_eq!(now.state, FallbackState::Recovering, "{rule:?}");
        assert_eq!(now.probe_failures, failures, "{rule:?}");
        // The lease is 120 s, and counts from the frame.
        let kept = (rule == Cancelled::Ignore).then_some(secs(118));
        assert_eq!(now.lease_left, kept, "{rule:?}");
        pass(kept.unwrap_or_default()).await;
        // Never stuck: the next turn is the probe.
        let pipe = primary.answers();
        let mut probe = call(&mut stack).await.unwrap();
        drop(pipe);
        assert_ready!(read(&mut probe)).unwrap();
        assert_eq!(chain.snapshot().probe_successes, 1, "{rule:?}");
    }
}

/// Case 33, for the bodies of requests.
#[tokio::test(start_paused = true)]
async fn a_replayed_request_has_identical_bytes_and_one_without_a_clone_is_not_replayed() {
    /// What a model was asked.
    type Asked = Arc<Mutex<Vec<Bytes>>>;

    /// A model that reads each request, and answers if it is well.
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

    // The same with a body that is not `Clone`.
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
async fn an_answer_that_a_turn_moves_on_from_is_dropped_and_counts_once_in_each_layer() {
    let (primary, backup) = (Server::default(), Server::default());
    let inside = || {
        CircuitBreakerLayer::new()
            .on_cancel(Cancelled::Failure)
            .judge(EndOfBody)
    };
    let (first, second) = (inside(), inside());
    let (circuit, other) = (first.handle(), second.handle());
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", second.layer(backup.clone()))
        .classify(StatusClassifier::models())
        .same_turn(|_: &Request<()>| Some(Request::new(())))
        .judge(EndOfBody);
    let chain = layer.handle();
    let mut stack = layer.layer(first.layer(primary.clone()));
    // The breaker looks at no status. To it this head is a success whose body nobody reads.
    let _unread = primary.answers_with(StatusCode::SERVICE_UNAVAILABLE, Says::Nothing);
    let pipe = backup.answers();
    let mut body = call(&mut stack).await.unwrap();
    assert_eq!(circuit.snapshot().streak, 1);
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    pipe.send(Step::Data("more"));
    pipe.send(Step::Error);
    assert_ready!(read(&mut body)).unwrap_err();
    drop(body);
    assert_eq!(other.snapshot().streak, 1);
    assert_eq!(circuit.snapshot().streak, 1);
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(chain.snapshot().entries[0].strikes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_told_when_its_body_ends_and_a_late_turn_as_late() {
    let (primary, backup) = (Server::default(), Server::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&told);
    let layer = FallbackLayer::new("gpt-5")
        .backup("claude", backup.clone())
        .trip_threshold(1)
        .observe(move |event: &Event<'_>| {
            events.lock().unwrap().push(match event {
                Event::Served { by, outcome, .. } => {
                    format!("{by}: {}", matches!(outcome, Outcome::Success))
                }
                Event::LateVerdict { .. } => "late".to_owned(),
                Event::FallbackTransition { to, .. } => to.to_string(),
                _ => return,
            });
        })
        .judge(EndOfBody);
    let chain = layer.handle();
    let mut stack = layer.layer(primary.clone());
    let early = primary.answers();
    let mut slow = call(&mut stack).await.unwrap();
    let pipe = primary.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Error);
    assert!(told.lock().unwrap().is_empty());
    assert_ready!(read(&mut body)).unwrap_err();
    let pipe = backup.answers();
    let mut body = call(&mut stack).await.unwrap();
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    drop(early);
    assert_ready!(read(&mut slow)).unwrap();
    let served = [
        "fallback",
        "gpt-5: false",
        "claude: true",
        "late",
        "gpt-5: true",
    ];
    assert_eq!(*told.lock().unwrap(), served);
    assert_eq!(chain.state(), FallbackState::Fallback);
    // A probe in flight when the chain was reset.
    pass(secs(60)).await;
    let pipe = primary.answers();
    let mut probe = call(&mut stack).await.unwrap();
    chain.reset();
    pipe.send(Step::Data("more"));
    pipe.send(Step::Error);
    assert_ready!(read(&mut probe)).unwrap_err();
    assert_eq!(chain.state(), FallbackState::Primary);
    assert_eq!(chain.snapshot().consecutive_failures, 0);
}

// ===== the tripwire =====

#[tokio::test(start_paused = true)]
async fn a_tripwire_counts_the_errors_of_bodies_and_its_probe_ends_with_its_body() {
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
async fn after_a_tripwires_probe_is_dropped_in_its_body_refusals_arm_the_next() {
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
async fn a_tripwire_compares_answers_before_their_bodies_are_wrapped() {
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
async fn a_body_that_streams_has_spent_its_turn_and_says_nothing_of_a_later_run() {
    let server = Server::default();
    let layer = TripwireLayer::new()
        .max_turns(1)
        .error_limit(1)
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let run = layer.handle();
    let mut stack = layer.layer(server.clone());
    let first = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    let refused = call(&mut stack).await.unwrap_err();
    assert_eq!(Refusal::find(&*refused).unwrap().reason(), Reason::MaxTurns);
    run.extend(1);
    let second = server.answers();
    let mut other = call(&mut stack).await.unwrap();
    run.reset();
    for (pipe, body) in [(first, &mut body), (second, &mut other)] {
        pipe.send(Step::Error);
        assert_ready!(read(body)).unwrap_err();
    }
    assert_eq!((run.state(), run.snapshot().errors), (State::Closed, 0));
    assert_eq!(run.turns(), 0);
}

#[tokio::test(start_paused = true)]
async fn transitions_of_the_fence_do_not_shorten_a_runs_deadline() {
    let server = Server::default();
    let layer = TripwireLayer::new()
        .max_turns(100)
        .deadline(secs(60))
        .error_limit(1)
        .open_cooldown_rejects(1)
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let run = layer.handle();
    let mut stack = layer.layer(server.clone());
    for _ in 0..2 {
        server.fails();
        call(&mut stack).await.unwrap_err();
        assert_eq!(run.state(), State::Open);
        // This one arms the probe.
        call(&mut stack).await.unwrap_err();
        let pipe = server.answers();
        let mut probe = call(&mut stack).await.unwrap();
        drop(pipe);
        assert_ready!(read(&mut probe)).unwrap();
        assert_eq!(run.state(), State::Closed);
    }
    pass(Duration::from_nanos(59_999_999_999)).await;
    assert!(run.would_allow(&Request::new(())));
    let _pipe = server.answers();
    call(&mut stack).await.unwrap();
    pass(NS).await;
    let refused = call(&mut stack).await.unwrap_err();
    assert_eq!(Refusal::find(&*refused).unwrap().reason(), Reason::Deadline);
}

// ===== stacks =====

#[tokio::test(start_paused = true)]
async fn a_stack_of_all_three_layers_judges_one_body_at_its_end() {
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
    // A refusal of the circuit is a failed turn of the chain, and neutral for the fence.
    call(&mut stack).await.unwrap_err();
    assert_eq!(chain.snapshot().consecutive_failures, 2);
    assert_eq!(fence.snapshot().errors, 1);
}

#[tokio::test(start_paused = true)]
async fn each_layer_of_a_stack_judges_one_body_for_itself() {
    let server = Server::default();
    let breaker = breaker().judge(EndOfBody);
    let fallback = FallbackLayer::new("gpt-5").judge(EndOfBody.inspect(ErrorEvents::new()));
    let tripwire = TripwireLayer::new()
        .digest(|_: &Request<()>| None::<Digest>)
        .judge(EndOfBody);
    let (circuit, chain, fence) = (breaker.handle(), fallback.handle(), tripwire.handle());
    circuit.try_acquire().unwrap().failure();
    pass(secs(30)).await;
    let mut stack = tower::ServiceBuilder::new()
        .layer(tripwire)
        .layer(fallback)
        .layer(breaker)
        .service(server.clone());
    let pipe = server.answers();
    let mut body = call(&mut stack).await.unwrap();
    pipe.send(Step::Data("event: er"));
    pipe.send(Step::Data("ror\r"));
    pipe.send(Step::Data("\ndata: {}\r\n\r\n"));
    assert_pending!(read(&mut body));
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(circuit.state(), State::HalfOpen);
    drop(pipe);
    assert_ready!(read(&mut body)).unwrap();
    assert_eq!(chain.snapshot().consecutive_failures, 1);
    assert_eq!(circuit.state(), State::Closed);
    assert_eq!(fence.snapshot().errors, 0);
}
