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

/// The pauses of the retry ladder: one more attempt after each.
const PAUSES: &[Duration] = &[Duration::from_millis(25)];

/// How many requests a call sends to a server that hangs, and how long they take together.
pub const ATTEMPTS: u32 = 2;
pub const LADDER: Duration = TIMEOUT.saturating_mul(ATTEMPTS).saturating_add(PAUSES[0]);

/// How many failures in a row trip a circuit, and how long it then refuses before it admits a
/// probe.
pub const FAILURES: u32 = 2;
pub const COOLDOWN: Duration = Duration::from_secs(1);

/// How long a probe may take. It must be longer than the whole ladder.
const LEASE: Duration = Duration::from_secs(2);

/// How many failed turns of the large model in a row trip the fallback, and how long the small one
/// then serves before a probe of the large one. This is longer than the cooldown of the large
/// one's circuit, which would refuse the probe.
pub const FAILED_TURNS: u32 = 3;
pub const FALLBACK_COOLDOWN: Duration = Duration::from_millis(1_500);

/// How many turns the run has. Nothing else ends it, because the model always plans one more call.
pub const MAX_TURNS: u32 = 37;

/// How many identical calls in a row are refused, and how many errors in a row stop the run.
pub const IDENTICAL: u32 = 3;
pub const ERRORS: u32 = 3;

/// How many refused calls arm a probe.
pub const REJECTS: u32 = 2;

// ===== the tools =====

/// One call of a tool. The retries clone it for each attempt.
#[derive(Clone, Debug)]
pub struct ToolCall {
    pub id: String,
    pub tool: String,
    pub argument: String,
}

/// A service, and a function that looks at the states of its layers.
pub struct Stack<S, L> {
    pub service: S,
    pub look: L,
}

/// The states of the layers of a stack at one moment.
#[derive(Clone, Debug)]
pub struct States {
    pub fence: TripwireSnapshot,
    pub fallback: Option<FallbackSnapshot>,
    pub circuit: CircuitBreakerSnapshot,
}

/// Makes the stack of the tools: one fence around the calls of all tools, and inside it one
/// circuit for each tool.
///
/// `look` takes the name of a tool.
pub fn tools(
    servers: &Servers,
    timeline: &Arc<Timeline>,
) -> Stack<impl Service<ToolCall, Response = Told, Error = BoxError> + Clone, impl Fn(&str) -> States>
{
    let tripwire = TripwireLayer::new()
        .name("tools")
        // The model's fence counts the planner's turns. This one does not limit them.
        .max_turns(u32::MAX)
        .identical_limit(IDENTICAL)
        .error_limit(ERRORS)
        .open_cooldown_rejects(REJECTS)
        // The id is left out: it differs between identical calls.
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
    // Taken last, because a setter gives the layer new state.
    let (fence, circuits) = (tripwire.handle(), breaker.handle());

    let address = servers.addresses();
    let request = move |call: ToolCall| {
        let server = address(&call.tool).expect("the model names only tools that have a server");
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

/// Classifies a result for the run. A caller's mistake is an error of the run, although it says
/// nothing of the tool.
fn mistakes_too(result: Result<&Answer, &BoxError>) -> Outcome {
    match result {
        Ok(answer) if !answer.status().is_success() => Failure::transient().into(),
        // A refusal by a layer inside is neutral.
        result => ErrorsAsFailures.classify(result),
    }
}

// ===== the model =====

/// One turn of the planner. The retries clone it for each attempt.
#[derive(Clone, Debug, Hash)]
pub struct ModelCall {
    pub id: String,
    pub turn: u32,
    /// What the planner read last.
    pub heard: String,
    /// Written by the fallback.
    pub model: String,
}

/// Makes the stack of the model: the fence that ends the run, the fallback, and one circuit for
/// each of the models behind it.
///
/// `look` takes the name of a model.
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
    // The planner gets its answer also before the fallback has tripped.
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
        let server =
            address(&call.model).expect("the fallback names only models that have a server");
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

/// Classifies a result for the fallback. A refusal by a model's circuit is a failure of that
/// model.
fn refusals_too(result: Result<&Answer, &BoxError>) -> Outcome {
    match result {
        Ok(_) => judge(result),
        Err(_) => RefusalsAsFailures.classify(result),
    }
}
