//! The second act: one agent whose tools and models are behind all three layers.
//!
//! - `play.rs`: what happens, scene by scene
//! - `stacks.rs`: the layers and their settings
//! - `planner.rs`: the agent's loop, which does not know of the layers
//! - `timeline.rs`: the output while it happens
//! - `report.rs`: what each layer saved, and the checks

mod planner;
mod play;
mod report;
mod stacks;
mod timeline;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tower::BoxError;

use self::planner::Planner;
use self::report::Story;
use self::timeline::Timeline;
use crate::checks::Checks;
use crate::server::{Act, Pages, Seen, Server};

/// The names of the tools and of the models. `large` is the primary, `small` its backup.
const SEARCH: &str = "search";
const FETCH: &str = "fetch";
const LARGE: &str = "large";
const SMALL: &str = "small";

pub async fn play(checks: &mut Checks) -> Result<(), BoxError> {
    let servers = Servers::start().await?;
    let timeline = Arc::new(Timeline::new());
    let model = stacks::model(&servers, &timeline);
    let tools = stacks::tools(&servers, &timeline);

    Timeline::head();
    let planner = Planner::new(model, tools, &servers, &timeline);
    let calls = planner.work().await?;

    let story = Story::new(&calls, &servers, &timeline);
    println!();
    story.summary();
    println!();
    story.hold(checks);
    Ok(())
}

/// One server for each tool and each model.
struct Servers([(&'static str, Server); 4]);

impl Servers {
    async fn start() -> io::Result<Self> {
        let healthy = |pages: Pages| Server::start(&[], pages);
        Ok(Self([
            (SEARCH, healthy(play::found).await?),
            (FETCH, healthy(play::page).await?),
            (LARGE, healthy(play::plan).await?),
            (SMALL, healthy(play::plan).await?),
        ]))
    }

    fn get(&self, name: &str) -> &Server {
        let found = self.0.iter().find(|(other, _)| *other == name);
        &found.expect("the play names only these servers").1
    }

    /// Returns a function from the name of a server to its address.
    fn addresses(&self) -> impl Fn(&str) -> Option<SocketAddr> + Clone + 'static {
        let addresses = self.0.each_ref();
        let addresses = addresses.map(|(name, server)| (*name, server.address()));
        move |name| {
            let found = addresses.iter().find(|(other, _)| *other == name);
            found.map(|(_, address)| *address)
        }
    }

    /// Returns what each server did with the requests of one call, from its own log.
    fn acts_for(&self, call: &str) -> Vec<(&'static str, Vec<Act>)> {
        let acts = |(name, server): &(&'static str, Server)| {
            (*name, server.acts_for(planner::AGENT, call))
        };
        let acts = self.0.iter().map(acts);
        acts.filter(|(_, acts)| !acts.is_empty()).collect()
    }

    fn log(&self, name: &str) -> Vec<Seen> {
        self.get(name).log()
    }
}
