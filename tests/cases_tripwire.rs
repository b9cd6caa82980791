//! The cases from the field that concern the tripwire, and the rules that they stand for.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, pending, ready};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{
    CircuitBreakerLayer, Digest, Event, HashDigest, KeyedTripwireHandle, Limit, Reason, Refusal,
    State, TripwireHandle, TripwireLayer,
};

/// A call of a tool: its name and its argument.
type Call = (&'static str, u64);

fn search(argument: u64) -> Call {
    ("search", argument)
}

/// A tool that counts its calls and fails those of `down`.
#[derive(Clone, Default)]
struct Tool {
    calls: Arc<AtomicUsize>,
}

impl Tool {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Service<Call> for Tool {
    type Response = u64;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<u64, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (name, argument): Call) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match name {
                "down" => Err("the tool's own error".into()),
                "hung" => pending().await,
                "slow" => {
                    tokio::task::yield_now().await;
                    Ok(argument)
                }
                _ => Ok(argument),
            }
        })
    }
}

/// One call, as an agent makes it.
async fn call<S: Service<Call>>(tool: &mut S, call: Call) -> Result<S::Response, S::Error> {
    tool.ready().await?.call(call).await
}

fn refusal<T: std::fmt::Debug>(result: Result<T, BoxError>) -> Refusal {
    let err = result.expect_err("a refusal");
    Refusal::find(&*err).expect("a refusal").clone()
}

fn reason<T: std::fmt::Debug>(result: Result<T, BoxError>) -> Reason {
    refusal(result).reason()
}

// ===== 37: parallel calls =====

#[tokio::test]
async fn with_three_turns_left_fifty_calls_at_once_run_three() {
    let layer = TripwireLayer::new().max_turns(3);
    let tool = Tool::default();
    let results = join_all((0..50).map(|n| layer.layer(tool.clone()).oneshot(("slow", n)))).await;
    assert_eq!(tool.calls(), 3);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
    assert_eq!(layer.handle().turns(), 3);
    let reasons: Vec<_> = results
        .into_iter()
        .filter(Result::is_err)
        .map(reason)
        .collect();
    assert!(
        reasons
            .iter()
            .all(|reason| matches!(reason, Reason::MaxTurns | Reason::TripwireOpen))
    );
}

#[test]
fn on_real_threads_the_budget_is_never_exceeded_by_one() {
    for _ in 0..50 {
        let layer = TripwireLayer::new().max_turns(3).identical_limit(u32::MAX);
        let tool = Tool::default();
        let at_once = std::sync::Barrier::new(50);
        std::thread::scope(|scope| {
            for n in 0..50 {
                let (layer, tool, at_once) = (&layer, tool.clone(), &at_once);
                scope.spawn(move || {
                    let service = layer.layer(tool);
                    at_once.wait();
                    let _ = futures::executor::block_on(service.oneshot(search(n)));
                });
            }
        });
        assert_eq!(tool.calls(), 3);
        assert_eq!(layer.handle().turns(), 3);
    }
}

#[test]
fn on_real_threads_a_sessions_budget_is_never_exceeded_while_others_come_and_go() {
    for round in 0..20 {
        let layer = TripwireLayer::new()
            .max_turns(3)
            .identical_limit(u32::MAX)
            .per_owned_session(
                |call: &Call| if call.0 == "ours" { 0 } else { call.1 + 1 },
                4,
            );
        let ours = Tool::default();
        let at_once = std::sync::Barrier::new(24);
        std::thread::scope(|scope| {
            for n in 0..24 {
                let (layer, ours, at_once) = (&layer, ours.clone(), &at_once);
                scope.spawn(move || {
                    at_once.wait();
                    if n % 2 == 0 {
                        let service = layer.layer(ours);
                        let _ = futures::executor::block_on(service.oneshot(("ours", n)));
                    } else {
                        // Three sessions at a time, so that ours, tripped or not, is never the one to go.
                        let service = layer.layer(Tool::default());
                        let _ = futures::executor::block_on(service.oneshot(("other", n % 3)));
                    }
                });
            }
        });
        assert_eq!(ours.calls(), 3, "round {round}");
    }
}

/// Trips by three errors and refuses four more calls.
async fn armed<S: Service<Call, Error = BoxError>>(tool: &mut S)
where
    S::Response: std::fmt::Debug,
{
    for n in 0..3 {
        let err = call(tool, ("down", n)).await.expect_err("its own error");
        assert_eq!(err.to_string(), "the tool's own error");
    }
    for n in 0..4 {
        assert_eq!(reason(call(tool, search(n)).await), Reason::TripwireOpen);
    }
}

#[tokio::test]
async fn a_dropped_probe_is_armed_again_by_four_more_refusals_and_the_first_reason_stands() {
    let layer = TripwireLayer::new().max_turns(100);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    armed(&mut tool).await;
    assert_eq!(handle.state(), State::HalfOpen);

    let probe = tool.ready().await.unwrap().call(("hung", 1));
    assert!(handle.snapshot().probing);
    drop(probe);
    assert_eq!(handle.state(), State::Open);
    for n in 0..4 {
        assert_eq!(handle.state(), State::Open);
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    assert_eq!(handle.state(), State::HalfOpen);

    // Eight more beside a probe that hangs, which is lost at the fourth.
    let _out = tool.ready().await.unwrap().call(("hung", 2));
    for n in 0..8 {
        let refused = refusal(call(&mut tool, search(n)).await);
        assert_eq!(refused.reason(), Reason::TripwireOpen);
        assert_eq!(refused.tripped_by(), Some(Reason::ErrorStreak));
        assert_eq!(refused.count(), Some(3));
    }
    assert_eq!(handle.reason(), Some(Reason::ErrorStreak));
}

#[tokio::test]
async fn a_lost_probe_does_not_wedge_the_fence() {
    let layer = TripwireLayer::new().max_turns(100);
    let mut tool = layer.layer(Tool::default());
    armed(&mut tool).await;
    // It hangs for ever, and is never dropped.
    let hung = tool.ready().await.unwrap().call(("hung", 1));
    std::mem::forget(hung);
    for n in 0..8 {
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    assert_eq!(call(&mut tool, search(7)).await.unwrap(), 7);
    assert_eq!(layer.handle().state(), State::Closed);
}

#[tokio::test]
async fn a_dropped_call_spends_its_turn() {
    let layer = TripwireLayer::new().max_turns(2);
    let mut tool = layer.layer(Tool::default());
    drop(tool.ready().await.unwrap().call(("hung", 1)));
    assert_eq!(layer.handle().turns(), 1);
    call(&mut tool, search(1)).await.unwrap();
    assert_eq!(reason(call(&mut tool, search(2)).await), Reason::MaxTurns);
}

// ===== 38: ping-pong =====

#[tokio::test]
async fn ping_pong_is_refused_at_its_sixth_call_and_variety_is_not() {
    let layer = TripwireLayer::new().cycles(3, 3);
    let tool = Tool::default();
    let mut service = layer.layer(tool.clone());
    for n in [1, 2, 1, 2, 1] {
        call(&mut service, search(n)).await.unwrap();
    }
    let refused = refusal(call(&mut service, search(2)).await);
    assert_eq!(refused.reason(), Reason::IdenticalCall);
    assert_eq!(refused.count(), Some(3));
    assert_eq!(tool.calls(), 5);

    layer.handle().reset();
    for n in [1, 2, 3, 1, 2, 4] {
        call(&mut service, search(n)).await.unwrap();
    }
}

// ===== 39: honest polling =====

/// A tool that answers with what is on its list.
fn answering(
    answers: Vec<Result<u64, &'static str>>,
) -> impl Service<Call, Response = u64, Error = BoxError> {
    let answers = Mutex::new(answers.into_iter());
    service_fn(move |_: Call| {
        let answer = answers.lock().unwrap().next().expect("an answer");
        ready(answer.map_err(BoxError::from))
    })
}

#[tokio::test]
async fn ten_equal_calls_with_ten_different_results_pass_and_three_with_equal_ones_trip() {
    let layer = TripwireLayer::new().max_turns(100).same_result(HashDigest);
    let mut poll = layer.layer(answering((0..10).map(Ok).collect()));
    for n in 0..10 {
        assert_eq!(call(&mut poll, search(1)).await.unwrap(), n);
    }
    assert_eq!(layer.handle().state(), State::Closed);

    layer.handle().reset();
    let mut stuck = layer.layer(answering(vec![Ok(1); 3]));
    for _ in 0..2 {
        call(&mut stuck, search(1)).await.unwrap();
    }
    let third = call(&mut stuck, search(1)).await;
    assert_eq!(reason(third), Reason::IdenticalCall);
}

#[tokio::test]
async fn failures_are_never_progress() {
    let layer = TripwireLayer::new()
        .error_limit(100)
        .same_result(HashDigest);
    let mut tool = layer.layer(answering(vec![Err("one"), Err("two"), Err("three")]));
    for _ in 0..2 {
        call(&mut tool, search(1)).await.unwrap_err();
    }
    assert_eq!(
        reason(call(&mut tool, search(1)).await),
        Reason::IdenticalCall
    );
}

#[tokio::test]
async fn a_polling_tool_is_exempt_and_neither_a_repeat_nor_the_end_of_a_streak() {
    let layer = TripwireLayer::new()
        .max_turns(100)
        .limit_of(|call: &Call| match call.0 {
            "job_status" => Some(Limit::exempt()),
            "read" => Some(Limit::identical(5)),
            _ => None,
        });
    let mut tool = layer.layer(Tool::default());
    for _ in 0..20 {
        call(&mut tool, ("job_status", 1)).await.unwrap();
    }
    call(&mut tool, search(1)).await.unwrap();
    call(&mut tool, ("job_status", 1)).await.unwrap();
    call(&mut tool, search(1)).await.unwrap();
    call(&mut tool, ("job_status", 1)).await.unwrap();
    for _ in 0..4 {
        layer.handle().reset();
        for _ in 0..4 {
            call(&mut tool, ("read", 1)).await.unwrap();
        }
        assert!(!layer.handle().would_allow(&("read", 1)));
        assert!(layer.handle().would_allow(&search(1)));
    }
    layer.handle().reset();
    for _ in 0..2 {
        call(&mut tool, search(1)).await.unwrap();
        call(&mut tool, ("job_status", 1)).await.unwrap();
    }
    assert_eq!(
        reason(call(&mut tool, search(1)).await),
        Reason::IdenticalCall
    );
    let spent = layer.handle().turns();
    assert_eq!(spent, 4, "an exempt call spends its turn");
}

// ===== 40: the error streak =====

#[tokio::test]
async fn a_success_breaks_the_error_streak_and_a_reset_carries_nothing_over() {
    let layer = TripwireLayer::new().max_turns(100);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    for n in 0..20 {
        let down = if n % 3 == 2 { "up" } else { "down" };
        let _ = call(&mut tool, (down, n)).await;
        assert_eq!(handle.state(), State::Closed);
    }
    handle.reset();
    for n in 0..2 {
        call(&mut tool, ("down", n)).await.unwrap_err();
    }
    handle.reset();
    for n in 0..2 {
        call(&mut tool, ("down", n)).await.unwrap_err();
        assert_eq!(handle.state(), State::Closed);
    }
    let own = call(&mut tool, ("down", 2)).await.unwrap_err();
    assert_eq!(
        own.to_string(),
        "the tool's own error",
        "not masked by the trip"
    );
    assert_eq!(handle.reason(), Some(Reason::ErrorStreak));
}

#[tokio::test]
async fn an_error_of_any_type_counts() {
    #[derive(Debug)]
    struct Odd;
    let layer = TripwireLayer::new().refuse_with(|_: u8, _: Refusal| Ok::<_, Odd>("stop"));
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|_: u8| ready(Err::<&str, _>(Odd))));
    for n in 0..3 {
        tool.ready().await.unwrap().call(n).await.unwrap_err();
    }
    assert_eq!(handle.state(), State::Open);
    assert_eq!(tool.ready().await.unwrap().call(9).await.unwrap(), "stop");
}

// ===== 41: turns and calls =====

#[tokio::test]
async fn twenty_parallel_calls_of_one_turn_are_one_turn_only_where_turns_are_told() {
    let plain = TripwireLayer::new().max_turns(100).identical_limit(100);
    let tool = Tool::default();
    join_all((0..20).map(|_| plain.layer(tool.clone()).oneshot(search(1)))).await;
    assert_eq!(plain.handle().turns(), 20);

    let layer = TripwireLayer::new()
        .digest(|call: &Call| Digest::of(call.0))
        .turn_of(|call: &Call| call.1);
    for turn in 0..2 {
        let all = join_all((0..20).map(|_| layer.layer(tool.clone()).oneshot(search(turn)))).await;
        assert!(all.iter().all(Result::is_ok), "no repetition in time");
    }
    assert_eq!(layer.handle().turns(), 2);
    let third = layer.layer(tool.clone()).oneshot(search(2)).await;
    assert_eq!(reason(third), Reason::IdenticalCall);
}

// ===== 42: the budget's end =====

#[tokio::test]
async fn a_warning_comes_at_six_of_eight_and_the_end_is_final() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let warned = Arc::clone(&seen);
    let layer = TripwireLayer::new()
        .warn_at(6)
        .observe(move |event: &Event<'_>| {
            if let Event::Warned {
                turns, max_turns, ..
            } = event
            {
                warned.lock().unwrap().push((*turns, *max_turns));
            }
        });
    let handle = layer.handle();
    let tool = Tool::default();
    let mut service = layer.layer(tool.clone());
    for n in 0..8 {
        call(&mut service, search(n)).await.unwrap();
        assert_eq!(seen.lock().unwrap().len(), usize::from(n >= 5));
    }
    assert_eq!(*seen.lock().unwrap(), [(6, 8)]);
    let end = refusal(call(&mut service, search(8)).await);
    assert_eq!((end.reason(), end.count()), (Reason::MaxTurns, Some(8)));
    for n in 0..100 {
        let refused = refusal(call(&mut service, search(n)).await);
        let why = refused.tripped_by().unwrap_or(refused.reason());
        assert_eq!(why, Reason::MaxTurns);
    }
    assert_eq!((tool.calls(), handle.turns()), (8, 8));

    handle.extend(2);
    for n in 10..12 {
        call(&mut service, search(n)).await.unwrap();
    }
    assert_eq!(
        reason(call(&mut service, search(12)).await),
        Reason::MaxTurns
    );
    handle.reset();
    call(&mut service, search(12)).await.unwrap();
    assert_eq!(handle.turns(), 1);
}

// ===== 43: observe only =====

#[tokio::test]
async fn a_hundred_identical_calls_all_run_and_98_events_say_what_would_have_been_refused() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let layer = TripwireLayer::new()
        .observe_only()
        .observe(move |event: &Event<'_>| {
            if let Event::Refused {
                refusal,
                observe_only: true,
                ..
            } = event
            {
                let why = refusal.tripped_by().unwrap_or(refusal.reason());
                assert_eq!(why, Reason::IdenticalCall);
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
    let tool = Tool::default();
    let mut service = layer.layer(tool.clone());
    for _ in 0..100 {
        call(&mut service, search(1)).await.unwrap();
    }
    assert_eq!(tool.calls(), 100);
    assert_eq!(told.load(Ordering::SeqCst), 98);
    assert!(layer.handle().would_allow(&search(1)));
    assert_eq!(layer.handle().turns(), 2, "the rest ran without a permit");
}

#[tokio::test]
async fn nobody_is_asked_for_the_verdict_of_a_call_that_runs_unguarded() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let layer = TripwireLayer::new()
        .observe_only()
        .classify(move |_: Result<&u64, &BoxError>| {
            count.fetch_add(1, Ordering::SeqCst);
            tower_breaker::Outcome::Success
        });
    let mut tool = layer.layer(Tool::default());
    for _ in 0..100 {
        call(&mut tool, search(1)).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

// ===== 44: a refused tool called again and again =====

#[tokio::test(start_paused = true)]
async fn a_refused_tool_called_again_and_again_is_seen_by_the_tripwire_and_not_by_the_breaker() {
    let breaker = CircuitBreakerLayer::new();
    let tripwire = TripwireLayer::new().max_turns(100);
    let tool = Tool::default();
    let mut service = ServiceBuilder::new()
        .layer(tripwire.clone())
        .layer(breaker.clone())
        .service(tool.clone());
    breaker.handle().force_open();
    for _ in 0..2 {
        assert_eq!(
            reason(call(&mut service, search(1)).await),
            Reason::ForcedOpen
        );
    }
    let before = breaker.handle().snapshot();
    assert_eq!(
        reason(call(&mut service, search(1)).await),
        Reason::IdenticalCall
    );
    for _ in 0..20 {
        call(&mut service, search(1)).await.unwrap_err();
    }
    assert_eq!(breaker.handle().snapshot(), before);
    assert_eq!(tool.calls(), 0);
    assert_eq!(tripwire.handle().reason(), Some(Reason::IdenticalCall));
}

// ===== 48: finished runs =====

#[tokio::test]
async fn after_five_thousand_finished_runs_the_next_one_is_still_fenced() {
    let evicted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&evicted);
    let layer = TripwireLayer::new()
        .max_turns(2)
        .observe(move |event: &Event<'_>| match event {
            Event::Evicted { state, .. } => {
                assert_eq!(*state, State::Open);
                count.fetch_add(1, Ordering::SeqCst);
            }
            Event::Unguarded { .. } => panic!("unguarded"),
            _ => {}
        })
        .per_owned_session(|call: &Call| call.1, 1_000);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    for run in 0..=5_000 {
        for name in ["a", "b"] {
            call(&mut tool, (name, run)).await.unwrap();
        }
        assert_eq!(reason(call(&mut tool, ("c", run)).await), Reason::MaxTurns);
    }
    assert_eq!(handle.keys().len(), 1_000);
    assert_eq!(evicted.load(Ordering::SeqCst), 4_001);
    assert_eq!(handle.reason(&5_000), Some(Reason::MaxTurns));
}

#[tokio::test]
async fn a_million_sessions_take_no_more_room_than_a_thousand_and_live_ones_are_kept() {
    let layer = TripwireLayer::new()
        .max_turns(4)
        .per_owned_session(|call: &Call| call.1, 1_000);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    let ten = || 2_000_000..2_000_010;
    // Ten sessions that tripped, and ten with a call in flight.
    for session in ten() {
        for _ in 0..3 {
            let _ = call(&mut tool, ("search", session)).await;
        }
    }
    let mut flying = Vec::new();
    for session in 3_000_000..3_000_010 {
        flying.push(tool.ready().await.unwrap().call(("hung", session)));
    }
    let mut before = None;
    for session in 0..1_000_000 {
        call(&mut tool, ("search", session)).await.unwrap();
        if session == 100_000 {
            assert_eq!(handle.keys().len(), 1_000);
            before = resident();
        }
    }
    assert_eq!(handle.keys().len(), 1_000);
    if let (Some(before), Some(after)) = (before, resident()) {
        // 900,000 fences would be far more, and what other tests hold meanwhile is far less.
        assert!(after < before + 64_000, "from {before} to {after} kB");
    }
    for session in ten() {
        assert_eq!(handle.reason(&session), Some(Reason::IdenticalCall));
    }
    for session in 3_000_000..3_000_010 {
        assert_eq!(handle.turns(&session), 1);
    }
    drop(flying);
}

/// How many kilobytes the process holds, where the system tells.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

// ===== 49: the clock of a run =====

#[tokio::test(start_paused = true)]
async fn a_deadline_of_a_minute_lets_a_call_run_at_59_seconds_and_none_at_60() {
    let layer = TripwireLayer::new().deadline(Duration::from_secs(60));
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    advance(Duration::from_secs(3600)).await;
    call(&mut tool, search(0)).await.unwrap();
    advance(Duration::from_secs(59)).await;
    call(&mut tool, search(1)).await.unwrap();
    assert_eq!(handle.snapshot().time_left, Some(Duration::from_secs(1)));
    advance(Duration::from_secs(1)).await;
    assert_eq!(handle.state(), State::Open);
    assert!(!handle.would_allow(&search(2)));
    for n in 2..20 {
        let refused = refusal(call(&mut tool, search(n)).await);
        assert_eq!(refused.reason(), Reason::Deadline);
        assert_eq!(refused.reason().to_string(), "deadline");
    }
    handle.extend(10);
    assert_eq!(reason(call(&mut tool, search(20)).await), Reason::Deadline);
    handle.reset();
    call(&mut tool, search(20)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_between_readiness_and_call_refuses_the_call() {
    let layer = TripwireLayer::new().deadline(Duration::from_secs(60));
    let mut tool = layer.layer(Tool::default());
    call(&mut tool, search(0)).await.unwrap();
    let ready = tool.ready().await.unwrap();
    advance(Duration::from_secs(60)).await;
    assert_eq!(reason(ready.call(search(1)).await), Reason::Deadline);
}

// ===== 50: softened refusals =====

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
        .service(Tool::default());
    for n in 0..2 {
        call(&mut service, ("down", n)).await.unwrap_err();
    }
    breaker.handle().force_open();
    for n in 2..20 {
        let told = call(&mut service, search(n)).await.unwrap();
        assert_eq!(told, "tool temporarily unavailable: circuit breaker open");
        assert_eq!(
            tripwire.handle().snapshot().errors,
            2,
            "neither raised nor ended"
        );
        assert_eq!(tripwire.handle().state(), State::Closed);
    }
}

// ===== 17: nonsense settings =====

#[test]
fn nonsense_settings_panic_and_name_the_setter() {
    let message = |f: fn()| {
        let payload = std::panic::catch_unwind(f).expect_err("it should panic");
        payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap()
    };
    let new = TripwireLayer::new;
    let cases: [(fn(), &str); 12] = [
        (
            || drop(TripwireLayer::new().identical_limit(0)),
            "`identical_limit`",
        ),
        (
            || drop(TripwireLayer::new().identical_limit(1)),
            "`identical_limit`",
        ),
        (
            || drop(TripwireLayer::new().error_limit(0)),
            "`error_limit`",
        ),
        (
            || drop(TripwireLayer::new().open_cooldown_rejects(0)),
            "`open_cooldown_rejects`",
        ),
        (
            || drop(TripwireLayer::new().deadline(Duration::ZERO)),
            "`deadline`",
        ),
        (|| drop(TripwireLayer::new().warn_at(0)), "`warn_at`"),
        (|| drop(TripwireLayer::new().cycles(0, 3)), "`max_period`"),
        (|| drop(TripwireLayer::new().cycles(1, 3)), "`max_period`"),
        (|| drop(TripwireLayer::new().cycles(3, 0)), "`repeats`"),
        (|| drop(TripwireLayer::new().cycles(3, 1)), "`repeats`"),
        (
            || drop(TripwireLayer::new().cycles(u32::MAX, u32::MAX)),
            "`cycles`",
        ),
        (
            || assert_eq!(Limit::identical(1), Limit::exempt()),
            "`Limit::identical`",
        ),
    ];
    for (case, names) in cases {
        let message = message(case);
        assert!(message.contains(names), "{message}");
    }
    let capacity = message(|| {
        drop(TripwireLayer::new().per_owned_session(|call: &Call| call.1, 0));
    });
    assert!(capacity.contains("`capacity`"), "{capacity}");
    let _ = new().deadline(Duration::MAX);
}

#[tokio::test]
async fn no_turns_refuse_every_call_and_large_settings_overflow_nothing() {
    let layer = TripwireLayer::new().max_turns(0);
    let mut tool = layer.layer(Tool::default());
    for n in 0..20 {
        call(&mut tool, search(n)).await.unwrap_err();
    }
    let layer = TripwireLayer::new()
        .max_turns(u32::MAX)
        .identical_limit(u32::MAX)
        .error_limit(u32::MAX)
        .open_cooldown_rejects(u32::MAX)
        .warn_at(u32::MAX)
        .deadline(Duration::MAX);
    let mut tool = layer.layer(Tool::default());
    for _ in 0..20 {
        call(&mut tool, search(1)).await.unwrap();
        call(&mut tool, ("down", 1)).await.unwrap_err();
    }
    layer.handle().extend(u32::MAX);
    assert_eq!(layer.handle().turns(), 40);
}

// ===== readiness =====

/// A service that may be stuck, and panics when it is called without having been.
#[derive(Clone, Debug, Default)]
struct Strict {
    stuck: Arc<AtomicBool>,
    readied: bool,
}

impl Service<Call> for Strict {
    type Response = u64;
    type Error = BoxError;
    type Future = std::future::Ready<Result<u64, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.stuck.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.readied = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (name, argument): Call) -> Self::Future {
        assert!(
            std::mem::take(&mut self.readied),
            "called without being ready"
        );
        ready(match name {
            "down" => Err("the tool's own error".into()),
            _ => Ok(argument),
        })
    }
}

#[tokio::test]
async fn where_any_call_would_be_refused_a_service_that_is_never_ready_does_not_hold_up_the_answer()
{
    let layer = TripwireLayer::new().max_turns(9);
    let handle = layer.handle();
    let inner = Strict::default();
    let mut tool = layer.layer(inner.clone());
    for n in 0..3 {
        call(&mut tool, ("down", n)).await.unwrap_err();
    }
    inner.stuck.store(true, Ordering::SeqCst);
    // Open.
    for n in 0..4 {
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    // Armed: a probe may go, so readiness is asked for, and a waiting caller is woken when that changes.
    let mut waiting = tokio_test::task::spawn(tool.ready());
    tokio_test::assert_pending!(waiting.poll());
    inner.stuck.store(false, Ordering::SeqCst);
    let mut other = layer.layer(Strict::default());
    let probe = other.ready().await.unwrap().call(search(1));
    assert!(waiting.is_woken(), "the probe is out");
    inner.stuck.store(true, Ordering::SeqCst);
    tokio_test::assert_ready!(waiting.poll()).unwrap();
    drop(waiting);
    assert_eq!(reason(tool.call(search(2)).await), Reason::TripwireOpen);
    probe.await.unwrap();
    assert_eq!(handle.state(), State::Closed);
    // Spent.
    for n in 10..15 {
        call(&mut other, search(n)).await.unwrap();
    }
    assert_eq!((handle.turns(), handle.state()), (9, State::Closed));
    assert_eq!(reason(call(&mut tool, search(1)).await), Reason::MaxTurns);
}

#[tokio::test]
async fn a_call_without_readiness_is_refused_and_not_counted() {
    let layer = TripwireLayer::new();
    let handle = layer.handle();
    let mut tool = layer.layer(Strict::default());
    for n in 0..20 {
        let refused = refusal(tool.call(search(n)).await);
        assert_eq!(refused.reason(), Reason::NotReady);
        assert_eq!(refused.retry_after(), Some(Duration::ZERO));
    }
    assert_eq!((handle.turns(), handle.state()), (0, State::Closed));

    // Polled while open, called when armed: it takes no probe.
    armed(&mut tool).await;
    let probe = tool.ready().await.unwrap().call(("search", 9));
    let mut late = tool.clone();
    late.ready().await.unwrap();
    drop(probe);
    for n in 0..4 {
        assert_eq!(
            reason(call(&mut tool, search(n)).await),
            Reason::TripwireOpen
        );
    }
    assert_eq!(handle.state(), State::HalfOpen);
    assert_eq!(reason(late.call(search(1)).await), Reason::NotReady);
    assert_eq!(handle.state(), State::HalfOpen);
    assert!(!handle.snapshot().probing);

    let mut sessions = TripwireLayer::new()
        .per_owned_session(|call: &Call| call.1, 10)
        .layer(Strict::default());
    assert_eq!(reason(sessions.call(search(1)).await), Reason::NotReady);
}

#[tokio::test]
async fn readiness_holds_for_one_call_and_a_clone_carries_none() {
    let layer = TripwireLayer::new();
    let mut tool = layer.layer(Strict::default());
    tool.ready().await.unwrap();
    let mut clone = tool.clone();
    assert_eq!(reason(clone.call(search(1)).await), Reason::NotReady);
    tool.call(search(1)).await.unwrap();
    assert_eq!(reason(tool.call(search(2)).await), Reason::NotReady);
}

#[tokio::test]
async fn an_error_of_readiness_is_an_error_of_the_streak_and_is_passed_on() {
    #[derive(Clone)]
    struct Broken;
    impl Service<Call> for Broken {
        type Response = u64;
        type Error = BoxError;
        type Future = std::future::Ready<Result<u64, BoxError>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Err("broken".into()))
        }
        fn call(&mut self, _: Call) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let layer = TripwireLayer::new();
    let mut tool = layer.layer(Broken);
    for _ in 0..3 {
        let err = call(&mut tool, search(1)).await.unwrap_err();
        assert_eq!(err.to_string(), "broken");
    }
    assert_eq!(layer.handle().turns(), 0, "no call was admitted");
    assert_eq!(
        reason(call(&mut tool, search(1)).await),
        Reason::TripwireOpen
    );
    assert_eq!(layer.handle().reason(), Some(Reason::ErrorStreak));
}

// ===== panics =====

#[tokio::test]
async fn a_panic_of_the_inner_service_is_an_error_and_one_of_a_classifier_a_dropped_call() {
    use futures::FutureExt;
    use std::panic::AssertUnwindSafe;

    let layer = TripwireLayer::new().max_turns(100);
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|(name, n): Call| async move {
        assert_ne!(name, "panic");
        Ok::<_, BoxError>(n)
    }));
    for n in 0..3 {
        let panicking = AssertUnwindSafe(call(&mut tool, ("panic", n))).catch_unwind();
        panicking.await.unwrap_err();
    }
    assert_eq!(handle.reason(), Some(Reason::ErrorStreak));
    for n in 0..4 {
        call(&mut tool, search(n)).await.unwrap_err();
    }
    let probe = AssertUnwindSafe(call(&mut tool, ("panic", 9))).catch_unwind();
    probe.await.unwrap_err();
    assert_eq!((handle.state(), handle.snapshot().trips), (State::Open, 2));

    let layer = TripwireLayer::new()
        .max_turns(100)
        .classify(|result: Result<&u64, &BoxError>| match result {
            Ok(13) => panic!("a classifier's own"),
            Ok(_) => tower_breaker::Outcome::Success,
            Err(_) => tower_breaker::Failure::transient().into(),
        });
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    let unlucky = AssertUnwindSafe(call(&mut tool, search(13))).catch_unwind();
    unlucky.await.unwrap_err();
    assert_eq!((handle.snapshot().errors, handle.turns()), (0, 1));
    armed(&mut tool).await;
    let probe = AssertUnwindSafe(call(&mut tool, search(13))).catch_unwind();
    probe.await.unwrap_err();
    assert_eq!((handle.state(), handle.snapshot().trips), (State::Open, 1));
}

// ===== what a refusal tells =====

#[tokio::test]
async fn a_refusal_names_the_tool_the_rule_the_count_and_what_to_do_instead() {
    let layer = TripwireLayer::new()
        .max_turns(5)
        .cycles(2, 2)
        .name_of(|call: &Call| call.0);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    for _ in 0..2 {
        call(&mut tool, search(1)).await.unwrap();
    }
    let mut told = Vec::new();
    let identical = refusal(call(&mut tool, search(1)).await);
    assert_eq!(identical.name(), Some("search"));
    told.push(identical.to_string());
    told.push(refusal(call(&mut tool, ("fetch", 1)).await).to_string());

    handle.reset();
    for n in [1, 2, 1] {
        call(&mut tool, search(n)).await.unwrap();
    }
    told.push(refusal(call(&mut tool, search(2)).await).to_string());

    handle.reset();
    for n in 0..5 {
        call(&mut tool, search(n)).await.unwrap();
    }
    told.push(refusal(call(&mut tool, search(9)).await).to_string());

    handle.reset();
    for n in 0..3 {
        call(&mut tool, ("down", n)).await.unwrap_err();
    }
    told.push(refusal(call(&mut tool, ("down", 3)).await).to_string());
    assert_eq!(
        told,
        [
            "tool `search` was not called: the same call came 3 times in a row. Do not repeat it: \
             change its arguments, try something else, or answer with what you have",
            "tool `fetch` was not called, because this run was stopped: the same call came 3 times in a row. \
             Do not repeat it: change its arguments, try something else, or answer with what you have",
            "tool `search` was not called: the same 2 calls came 2 times in a row. Do not go round again: \
             change the arguments, try something else, or answer with what you have",
            "tool `search` was not called: all 5 turns of the run are spent. \
             Make no more calls, and answer with what you have",
            "tool `down` was not called, because this run was stopped: 3 calls failed in a row. \
             Do not try the same again: read the errors, change the approach, or say what is wrong",
        ]
    );
}

#[tokio::test]
async fn a_soft_refusal_keeps_the_error_type_even_where_there_is_none() {
    let layer = TripwireLayer::new()
        .name("shell")
        .refuse_with(|_: String, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()));
    let mut tool = layer.layer(service_fn(|req: String| ready(Ok::<_, Infallible>(req))));
    let mut last = String::new();
    for _ in 0..3 {
        last = tool.ready().await.unwrap().call("ls".into()).await.unwrap();
    }
    assert!(
        last.starts_with("tool `shell` was not called: the same call"),
        "{last}"
    );
}

// ===== the layer =====

#[tokio::test]
async fn a_clone_that_is_configured_further_is_another_fence() {
    let layer = TripwireLayer::new();
    let shared = layer.clone();
    let other = layer.clone().max_turns(3);
    let tool = Tool::default();
    layer.layer(tool.clone()).oneshot(search(1)).await.unwrap();
    shared.layer(tool.clone()).oneshot(search(2)).await.unwrap();
    assert_eq!(layer.handle().turns(), 2);
    assert_eq!(shared.handle().turns(), 2);
    assert_eq!(other.handle().turns(), 0);
}

#[tokio::test]
async fn a_listener_may_call_back_and_transitions_come_in_order() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let layer = TripwireLayer::new()
        .max_turns(100)
        .observe(|_: &Event<'_>| panic!("a listener's own"))
        .observe(move |event: &Event<'_>| {
            if let Event::Transition {
                from, to, reason, ..
            } = event
            {
                told.lock().unwrap().push(format!("{from} {to} {reason}"));
            }
        });
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    armed(&mut tool).await;
    call(&mut tool, search(1)).await.unwrap();
    handle.reset();
    assert_eq!(
        *seen.lock().unwrap(),
        [
            "closed open error_streak",
            "open half_open cooldown_over",
            "half_open closed probe_succeeded",
            "closed closed reset",
        ]
    );
}

#[tokio::test]
async fn sessions_are_apart_and_named_and_forgotten_by_hand() {
    #[derive(Clone, Hash)]
    struct Ask {
        session: String,
        query: u64,
    }
    let names = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&names);
    let layer = TripwireLayer::new()
        .digest(|ask: &Ask| Digest::of(&ask.query))
        .observe(move |event: &Event<'_>| {
            if let Event::Transition { name, .. } = event {
                told.lock().unwrap().push(name.map(str::to_owned));
            }
        })
        .per_session(|ask: &Ask| ask.session.as_str(), 100);
    let handle = layer.handle();
    let mut tool = layer.layer(service_fn(|ask: Ask| ready(Ok::<_, BoxError>(ask.query))));
    let ask = |session: &str| Ask {
        session: session.to_owned(),
        query: 7,
    };
    for _ in 0..2 {
        for session in ["a", "b"] {
            tool.ready()
                .await
                .unwrap()
                .call(ask(session))
                .await
                .unwrap();
        }
    }
    assert!(!handle.would_allow(&ask("a")));
    assert!(handle.would_allow(&ask("c")));
    assert_eq!(handle.keys().len(), 2, "a question makes no fence");
    tool.ready()
        .await
        .unwrap()
        .call(ask("a"))
        .await
        .unwrap_err();
    assert_eq!(
        (handle.state("a"), handle.state("b")),
        (State::Open, State::Closed)
    );
    assert_eq!(*names.lock().unwrap(), [Some("a".to_owned())]);
    handle.reset("a");
    assert_eq!(
        (handle.state("a"), handle.turns("a"), handle.turns("b")),
        (State::Closed, 0, 2)
    );
    assert!(handle.forget("b"));
    assert!(!handle.forget("b"));
    assert!(handle.extend("c", 5));
    assert_eq!(handle.snapshot("c").turns_left, 13);
    assert_eq!(handle.snapshot("d").turns_left, 8);
}

#[test]
fn layers_services_futures_and_handles_go_to_other_threads_and_their_types_have_names() {
    fn crosses_threads<T: Send + Sync + 'static>(_: &T) {}
    struct Keeps {
        _run: TripwireHandle<()>,
        _runs: KeyedTripwireHandle<String, (), ()>,
    }
    let layer = TripwireLayer::new().digest(|call: &Call| Digest::of(call));
    let mut service = layer.layer(service_fn(|_: Call| ready(Ok::<_, BoxError>(()))));
    crosses_threads(&layer);
    crosses_threads(&layer.handle());
    crosses_threads(&service);
    crosses_threads(&service.call(search(1)));
    let sessions = layer.clone().per_session(|call: &Call| call.0, 10);
    crosses_threads(&sessions);
    crosses_threads(&sessions.handle());
    let keeps = Keeps {
        _run: layer.handle().without_requests(),
        _runs: sessions.handle().without_requests(),
    };
    crosses_threads(&keeps);
    for debug in [
        format!("{layer:?}"),
        format!("{sessions:?}"),
        format!("{:?}", layer.handle()),
        format!("{:?}", sessions.handle()),
    ] {
        assert!(debug.contains("Tripwire"), "{debug}");
    }
}

#[tokio::test]
async fn late_verdicts_and_probes_are_told() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let layer =
        TripwireLayer::new()
            .name("tools")
            .max_turns(100)
            .observe(move |event: &Event<'_>| {
                assert!(event.name().is_some());
                told.lock().unwrap().push(match event {
                    Event::LateVerdict { .. } => "late",
                    Event::ProbeStarted { lease, .. } if *lease == Duration::MAX => "probe",
                    Event::Transition { .. } => "transition",
                    Event::Refused { .. } => "refused",
                    _ => "other",
                });
            });
    let mut tool = layer.layer(Tool::default());
    let early = tool.ready().await.unwrap().call(search(77));
    armed(&mut tool).await;
    early.await.unwrap();
    call(&mut tool, search(1)).await.unwrap();
    let refused = ["refused"; 3];
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], "transition");
    assert_eq!(seen[1..4], refused);
    // The fourth refusal is told by its caller, its transition by whoever delivers.
    let mut fourth = seen[4..6].to_vec();
    fourth.sort_unstable();
    assert_eq!(fourth, ["refused", "transition"]);
    assert_eq!(seen[6..], ["late", "probe", "transition"]);
}

/// A service whose future is neither `Send` nor `'static`, and that is no `Clone`.
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
async fn the_inner_service_is_asked_to_be_a_service_and_no_more() {
    let sum = std::cell::Cell::new(0);
    let mut tool = TripwireLayer::new().layer(Borrowing(&sum));
    for n in 1..4 {
        tool.ready().await.unwrap().call(n).await.unwrap();
    }
    assert_eq!(sum.get(), 6);
}
