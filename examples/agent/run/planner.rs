//! The agent's loop. It does not know of the layers in front of its model and its tools.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower::{BoxError, Service, ServiceExt};

use super::play::{self, Cue, Part};
use super::stacks::{MAX_TURNS, ModelCall, Stack, States, ToolCall};
use super::timeline::Timeline;
use super::{LARGE, Servers};
use crate::client::Told;

/// The planner's name in the servers' logs.
pub const AGENT: &str = "planner";

/// How long the planner thinks between two turns.
const RHYTHM: Duration = Duration::from_millis(100);

/// How many turns in a row without an answer of the model make the planner give up. There are
/// enough of them to show that a finished run stays finished.
pub const STUBBORN: u32 = 6;

/// The loop ends at the latest after this many turns.
const LONGEST: u32 = MAX_TURNS + 3 * STUBBORN;

/// One call of the planner, as the planner saw it.
#[derive(Clone, Debug)]
pub struct Call {
    pub turn: u32,
    pub part: Part,
    pub id: String,
    /// The tool, or `None` for the model.
    pub tool: Option<String>,
    /// What is asked of the tool.
    pub argument: String,
    pub told: Told,
    pub took: Duration,
    /// The states of the layers right after the call.
    pub states: States,
}

pub struct Planner<'a, M, ML, T, TL> {
    model: Stack<M, ML>,
    tools: Stack<T, TL>,
    servers: &'a Servers,
    timeline: &'a Timeline,
    calls: Vec<Call>,
}

impl<'a, M, ML, T, TL> Planner<'a, M, ML, T, TL>
where
    M: Service<ModelCall, Response = Told, Error = BoxError> + Clone,
    ML: Fn(&str) -> States,
    T: Service<ToolCall, Response = Told, Error = BoxError> + Clone,
    TL: Fn(&str) -> States,
{
    pub fn new(
        model: Stack<M, ML>,
        tools: Stack<T, TL>,
        servers: &'a Servers,
        timeline: &'a Timeline,
    ) -> Self {
        Self {
            model,
            tools,
            servers,
            timeline,
            calls: Vec::new(),
        }
    }

    /// Asks the model what to do and does it, turn after turn, until the model no longer answers.
    pub async fn work(mut self) -> Result<Vec<Call>, BoxError> {
        let mut heard = "what do we know about tides?".to_owned();
        let mut unanswered = 0;
        for turn in 1..=LONGEST {
            self.begin(turn).await;
            let told = self.ask_model(turn, heard).await?;
            heard = told.to_string();
            if told.is_answer() {
                unanswered = 0;
                heard = self.use_tool(turn, &heard).await?.to_string();
            } else {
                unanswered += 1;
            }
            if unanswered == STUBBORN {
                break;
            }
            sleep(RHYTHM).await;
        }
        Ok(self.calls)
    }

    /// Plays the scene that begins with this turn, if one does.
    async fn begin(&self, turn: u32) {
        let Some(scene) = play::begins(turn) else {
            return;
        };
        self.timeline.scene(scene.title);
        for cue in scene.cues {
            match cue {
                Cue::Now(server, act) => self.servers.get(server).now_does(*act),
                Cue::Wait(time) => sleep(*time).await,
            }
        }
    }

    async fn ask_model(&mut self, turn: u32, heard: String) -> Result<Told, BoxError> {
        let id = format!("{turn}-model");
        let call = ModelCall {
            id: id.clone(),
            turn,
            heard,
            model: String::new(),
        };
        let started = Instant::now();
        // Failed calls come as text. An error here says that the service did not become ready.
        let told = self.model.service.clone().oneshot(call).await?;
        Ok(self.keep(Call {
            turn,
            part: play::part(turn),
            id,
            tool: None,
            argument: String::new(),
            told,
            took: started.elapsed(),
            states: (self.model.look)(LARGE),
        }))
    }

    /// Does what the model said: calls a tool with an argument.
    async fn use_tool(&mut self, turn: u32, plan: &str) -> Result<Told, BoxError> {
        let (tool, argument) = plan
            .split_once(' ')
            .ok_or("the plan of the model must be two words: a tool and its argument")?;
        let id = format!("{turn}-tool");
        let call = ToolCall {
            id: id.clone(),
            tool: tool.to_owned(),
            argument: argument.to_owned(),
        };
        let started = Instant::now();
        let told = self.tools.service.clone().oneshot(call).await?;
        Ok(self.keep(Call {
            turn,
            part: play::part(turn),
            id,
            tool: Some(tool.to_owned()),
            argument: argument.to_owned(),
            told,
            took: started.elapsed(),
            states: (self.tools.look)(tool),
        }))
    }

    fn keep(&mut self, call: Call) -> Told {
        self.timeline.call(self.servers, &call);
        let told = call.told.clone();
        self.calls.push(call);
        told
    }
}
