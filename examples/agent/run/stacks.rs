//! The layers and their settings: one stack for the model, one for the tools.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use tower::{BoxError, Service, ServiceBuilder};
use tower_breaker::{
    CircuitBreakerLayer, CircuitBreakerSnapshot, Classify, Digest, ErrorsAsFailures, Failure,
    FallbackLayer, FallbackSnapshot, Outcome, RefusalsAsFailures, TripwireLayer, TripwireSnapshot,
};

use super::planner::AGENT;
use super::timeline::{Layer, Timeline};
use super::{LARGE, SMALL, Servers};
use crate::client::{Answer, Ladder, Told, client, in_words, judge};
use crate::server;

// ===== the settings =====

/// How long one request may take.
pub const TIMEOUT: Duration = Duration::from_millis(300);

/// The pauses of the retry ladder: so many more attempts, each after its pause.
const PAUSES: &[Duration] = &[Duration::from_millis(25)];

/// How many requests a call makes of a server that hangs, and how long they take together.
pub const ATTEMPTS: u32 = 2;
pub const LADDER: Duration = TIMEOUT.saturating_mul(ATTEMPTS).saturating_add(PAUSES[0]);

/// How many calls in a row trip a circuit, and how long it then refuses before it lets a probe through.
pub const FAILURES: u32 = 2;
pub const COOLDOWN: Duration = Duration::from_secs(1);

/// How long a probe may take. It must be longer than the whole ladder.
const LEASE: Duration = Duration::from_secs(2);

/// How many of the large model's turns in a row trip the fallback, and how long the small one then serves before the large one is probed.
/// Longer than the cooldown of the large one's circuit, which would refuse the probe.
pub const FAILED_TURNS: u32 = 3;
pub const FALLBACK_COOLDOWN: Duration = Duration::from_millis(1_500);

/// How many turns the run has. Nothing else ends it: the model always finds one more thing to do.
pub const MAX_TURNS: u32 = 37;

/// The call that comes so often in a row is refused; and so many errors in a row stop the run, too.
pub const IDENTICAL: u32 = 3;
pub const ERRORS: u32 = 3;

/// How many refused calls arm a probe of the run.
pub const REJECTS: u32 = 2;

// ===== the tools =====

/// One call of a tool. It is cloned for each attempt.
#[derive(Clone, Debug)]
pub struct ToolCall {
    pub id: String,
    pub tool: String,
    pub argument: String,
}

/// A service, and how its layers are.
pub struct Stack<S, L> {
    pub service: S,
    pub look: L,
}

/// The layers of a stack as they are at one moment.
#[derive(Clone, Debug)]
pub struct States {
    pub fence: TripwireSnapshot,
    pub fallback: Option<FallbackSnapshot>,
    pub circuit: CircuitBreakerSnapshot,
}

/// Every tool: one fence around the calls of them all, and inside of it a circuit for each.
///
/// The last service of the stack is told how to reach the tool. `look` is asked with a tool's name.
pub fn tools(
    servers: &Servers,
    timeline: &Arc<Timeline>,
) -> Stack<impl Service<ToolCall, Response = Told, Error = BoxError> + Clone, impl Fn(&str) -> States>
{
    let tripwire = TripwireLayer::new()
        .name("tools")
        // The planner's turns are counted by the model's fence. Here none of its calls is one too many.
        .max_turns(u32::MAX)
        .identical_limit(IDENTICAL)
        .error_limit(ERRORS)
        .open_cooldown_rejects(REJECTS)
        // A call's id says nothing of what it asks.
        .digest(|call: &ToolCall| Digest::of(&(&call.tool, &call.argument)))
        .name_of(|call: &ToolCall| call.tool.as_str())
        .classify(mistakes_too)
        .observe(timeline.watch(Layer::ToolsFence));
    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(FAILURES)
        .recovery_duration(COOLDOWN)
        .probe_timeout(LEASE)
        .classify(judge)
        .observe(timeline.watch(Layer::ToolsCircuits))
        .per_key(|call: &ToolCall| call.tool.as_str(), 100);
    // Taken last: a setter gives a layer state of its own.
    let (fence, circuits) = (tripwire.handle(), breaker.handle());

    let address = servers.addresses();
    let request = move |call: ToolCall| {
        let server = address(&call.tool).expect("the model names only the tools there are");
        Request::get(format!("http://{server}/{}/{}", call.tool, call.argument))
            .header(server::AGENT, AGENT)
            .header(server::CALL, call.id)
            .body(Full::default())
            .expect("the arguments make valid addresses")
    };

    Stack {
        service: ServiceBuilder::new()
            .then(in_words)
            .layer(tripwire)
            .layer(breaker)
            .retry(Ladder(PAUSES))
            .timeout(TIMEOUT)
            .service(client(request)),
        look: move |tool: &str| States {
            fence: fence.snapshot(),
            fallback: None,
            circuit: circuits.snapshot(tool),
        },
    }
}

/// What a result says of the run: to it a caller's mistake is an error, too, though it says nothing of the tool.
fn mistakes_too(result: Result<&Answer, &BoxError>) -> Outcome {
    match result {
        Ok(answer) if !answer.status().is_success() => Failure::transient().into(),
        // A refusal from further inside is neutral.
        result => ErrorsAsFailures.classify(result),
    }
}

// ===== the model =====

/// One turn of the planner. It is cloned for each attempt.
#[derive(Clone, Debug, Hash)]
pub struct ModelCall {
    pub id: String,
    pub turn: u32,
    /// What the planner was told last.
    pub heard: String,
    /// Written by the fallback.
    pub model: String,
}

/// The model: the fence that ends the run, the fallback, and a circuit for each of the models behind it.
///
/// `look` is asked with a model's name.
pub fn model(
    servers: &Servers,
    timeline: &Arc<Timeline>,
) -> Stack<
    impl Service<ModelCall, Response = Told, Error = BoxError> + Clone,
    impl Fn(&str) -> States,
> {
    let tripwire = TripwireLayer::new()
        .name("model")
        .max_turns(MAX_TURNS)
        .warn_at(MAX_TURNS - 2)
        .open_cooldown_rejects(REJECTS)
        .classify(mistakes_too)
        .observe(timeline.watch(Layer::ModelsFence));
    let fallback = FallbackLayer::rewriting(LARGE, |call: &mut ModelCall, model: &str| {
        model.clone_into(&mut call.model);
    })
    .model(SMALL)
    .trip_threshold(FAILED_TURNS)
    .recovery_timeout(FALLBACK_COOLDOWN)
    .recovery_successes_needed(2)
    .probation_limit(2)
    // Until it has tripped, too, the planner gets its answer.
    .same_turn(|call: &ModelCall| Some(call.clone()))
    .classify(refusals_too)
    .observe(timeline.watch(Layer::Fallback));
    let breaker = CircuitBreakerLayer::new()
        .failure_threshold(FAILURES)
        .recovery_duration(COOLDOWN)
        .probe_timeout(LEASE)
        .classify(judge)
        .observe(timeline.watch(Layer::ModelsCircuits))
        .per_key(|call: &ModelCall| call.model.as_str(), 100);
    let (fence, chain, circuits) = (tripwire.handle(), fallback.handle(), breaker.handle());

    let address = servers.addresses();
    let request = move |call: ModelCall| {
        let server = address(&call.model).expect("the fallback names only the models there are");
        Request::post(format!("http://{server}/{}/{}", call.model, call.turn))
            .header(server::AGENT, AGENT)
            .header(server::CALL, call.id)
            .body(Full::from(call.heard))
            .expect("the turns make valid addresses")
    };

    Stack {
        service: ServiceBuilder::new()
            .then(in_words)
            .layer(tripwire)
            .layer(fallback)
            .layer(breaker)
            .retry(Ladder(PAUSES))
            .timeout(TIMEOUT)
            .service(client(request)),
        look: move |model: &str| States {
            fence: fence.snapshot(),
            fallback: Some(chain.snapshot()),
            circuit: circuits.snapshot(model),
        },
    }
}

/// What a result says of the model that served: one that is refused by its circuit did not answer.
fn refusals_too(result: Result<&Answer, &BoxError>) -> Outcome {
    match result {
        Ok(_) => judge(result),
        Err(_) => RefusalsAsFailures.classify(result),
    }
}
