//! The output while the run happens: each call with the states of its layers, and their
//! transitions.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tower_breaker::Event;

use super::Servers;
use super::planner::Call;
use crate::server::in_short;

/// Which layer an event came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    ToolsFence,
    ToolsCircuits,
    ModelsFence,
    Fallback,
    ModelsCircuits,
}

impl Layer {
    fn of(self, name: Option<&str>) -> String {
        let name = name.unwrap_or("?");
        match self {
            Layer::ToolsFence => "the tools' fence".to_owned(),
            Layer::ModelsFence => "the model's fence".to_owned(),
            Layer::Fallback => "the fallback".to_owned(),
            Layer::ToolsCircuits | Layer::ModelsCircuits => format!("the circuit of `{name}`"),
        }
    }
}

/// Prints what happens, and keeps the events of the layers.
pub struct Timeline {
    zero: Instant,
    kept: Mutex<Vec<Happened>>,
}

/// One event of a layer.
#[derive(Clone, Debug)]
pub struct Happened {
    pub layer: Layer,
    pub name: String,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    /// The layer went from one state to another.
    Moved { from: String, to: String },
    /// The layer admitted a probe.
    Probed,
    /// The layer refused a call.
    Refused,
    /// The fallback went on to the next model within the turn.
    MovedOn,
    /// This model served a turn.
    Served(String),
}

impl Timeline {
    pub fn new() -> Self {
        Self {
            zero: Instant::now(),
            kept: Mutex::default(),
        }
    }

    pub fn head() {
        let row = |columns: [&str; 8]| {
            let [time, turn, call, acts, fence, fallback, circuit, told] = columns;
            println!(
                "{time:>8}  {turn:>4}  {call:<21}  {acts:<33}  {fence:<9}  {fallback:<10}  {circuit:<9}  {told}"
            );
        };
        row([
            "time",
            "turn",
            "call",
            "the servers did",
            "fence",
            "fallback",
            "circuit",
            "what the planner read",
        ]);
        let lines = [4, 4, 4, 15, 5, 8, 7, 21].map(|length| "-".repeat(length));
        row(lines.each_ref().map(String::as_str));
    }

    pub fn scene(&self, title: &str) {
        println!("{}  == {title}", self.now());
    }

    /// Prints one call, and the states of its layers right after it. In a row of the model, the
    /// circuit is that of the large model.
    pub fn call(&self, servers: &Servers, call: &Call) {
        let what = match &call.tool {
            None => "model".to_owned(),
            Some(tool) => format!("{tool} {}", call.argument),
        };
        let acts = servers.acts_for(&call.id);
        let did: Vec<_> = acts
            .iter()
            .map(|(name, acts)| match &call.tool {
                None => format!("{name}: {}", in_short(acts)),
                Some(_) => in_short(acts),
            })
            .collect();
        let did = if did.is_empty() {
            in_short(&[])
        } else {
            did.join("; ")
        };
        let states = &call.states;
        let fallback = states.fallback.as_ref();
        let fallback = fallback.map_or("-".to_owned(), |fallback| fallback.state.to_string());
        println!(
            "{}  {:>4}  {what:<21}  {did:<33}  {:<9}  {fallback:<10}  {:<9}  {}",
            self.now(),
            call.turn,
            states.fence.state,
            states.circuit.state,
            call.told,
        );
    }

    /// Makes an observer of a layer.
    pub fn watch(
        self: &Arc<Self>,
        layer: Layer,
    ) -> impl Fn(&Event<'_>) + Send + Sync + 'static + use<> {
        let timeline = Arc::clone(self);
        move |event| timeline.event(layer, event)
    }

    fn event(&self, layer: Layer, event: &Event<'_>) {
        let (what, text) = match *event {
            Event::Transition {
                from, to, reason, ..
            } => (moved(&from, &to), Some(format!("{from} -> {to}: {reason}"))),
            Event::FallbackTransition {
                from,
                to,
                reason,
                first,
                ..
            } => {
                let serves = first.map(|first| format!(", `{first}` serves"));
                let text = format!("{from} -> {to}: {reason}{}", serves.unwrap_or_default());
                (moved(&from, &to), Some(text))
            }
            Event::ProbeStarted { .. } => (What::Probed, Some("admits a probe".to_owned())),
            Event::MovedOn { from, to, .. } => {
                let text = format!("`{from}` failed, the turn goes on to `{to}`");
                (What::MovedOn, Some(text))
            }
            Event::Warned {
                turns, max_turns, ..
            } => {
                self.print(
                    layer,
                    event,
                    &format!("{turns} of {max_turns} turns are spent"),
                );
                return;
            }
            Event::Served { by, .. } => (What::Served(by.to_owned()), None),
            // The row of its call shows the refusal, except behind the fallback.
            Event::Refused { .. } => {
                let text = (layer == Layer::ModelsCircuits).then(|| "refuses".to_owned());
                (What::Refused, text)
            }
            _ => return,
        };
        if let Some(text) = text {
            self.print(layer, event, &text);
        }
        self.kept().push(Happened {
            layer,
            name: event.name().unwrap_or_default().to_owned(),
            what,
        });
    }

    fn print(&self, layer: Layer, event: &Event<'_>, text: &str) {
        println!("{}  >> {}: {text}", self.now(), layer.of(event.name()));
    }

    fn now(&self) -> String {
        format!("{:6.2} s", self.zero.elapsed().as_secs_f64())
    }

    /// Returns all events of one layer, in order.
    pub fn of(&self, layer: Layer) -> Vec<Happened> {
        let mut told = self.kept().clone();
        told.retain(|happened| happened.layer == layer);
        told
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Happened>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn moved(from: &dyn Display, to: &dyn Display) -> What {
    What::Moved {
        from: from.to_string(),
        to: to.to_string(),
    }
}
