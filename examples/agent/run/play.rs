//! The script of the second act, scene by scene: what the servers do, and what the model tells the
//! planner to do.

use std::time::Duration;

use super::stacks::{COOLDOWN, FALLBACK_COOLDOWN};
use super::{FETCH, LARGE, SEARCH};
use crate::server::{Act, topic};

/// One part of the act.
#[derive(Debug)]
pub struct Scene {
    pub part: Part,
    pub title: &'static str,
    /// What happens when the scene begins.
    pub cues: &'static [Cue],
    /// What the model answers, one line for each of the planner's turns: a tool and its argument.
    pub lines: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Calm,
    ToolDown,
    ToolRepaired,
    ModelDown,
    ModelRepaired,
    Loop,
    Errors,
    End,
}

#[derive(Clone, Copy, Debug)]
pub enum Cue {
    /// From now on the server does this.
    Now(&'static str, Act),
    /// This much time passes.
    Wait(Duration),
}

/// Added to a cooldown, so that it has surely ended.
const MARGIN: Duration = Duration::from_millis(100);

pub const SCENES: &[Scene] = &[
    Scene {
        part: Part::Calm,
        title: "everything works",
        cues: &[],
        lines: &["search tides", "fetch almanac"],
    },
    Scene {
        part: Part::ToolDown,
        title: "the search tool hangs",
        cues: &[Cue::Now(SEARCH, Act::Hang)],
        lines: &[
            "search spring-tides",
            "search neap-tides",
            "search tidal-range",
            "search tidal-bores",
            "search slack-water",
            "fetch moon",
        ],
    },
    Scene {
        part: Part::ToolRepaired,
        title: "the search tool is repaired",
        cues: &[
            Cue::Now(SEARCH, Act::Answer),
            Cue::Wait(COOLDOWN.saturating_add(MARGIN)),
        ],
        lines: &["search spring-tides", "search neap-tides"],
    },
    Scene {
        part: Part::ModelDown,
        title: "the large model hangs",
        cues: &[Cue::Now(LARGE, Act::Hang)],
        lines: &[
            "search eddies",
            "fetch harbour",
            "search whirlpools",
            "fetch moon",
            "search currents",
        ],
    },
    Scene {
        part: Part::ModelRepaired,
        title: "the large model is repaired",
        cues: &[
            Cue::Now(LARGE, Act::Answer),
            Cue::Wait(FALLBACK_COOLDOWN.saturating_add(MARGIN)),
        ],
        lines: &["fetch almanac", "search waves"],
    },
    Scene {
        part: Part::Loop,
        title: "the model repeats one call",
        cues: &[],
        lines: &[
            LOOPED,
            LOOPED,
            LOOPED, // refused before it runs
            LOOPED,
            "fetch harbour", // refused too, and arms a probe
            LOOPED,          // the probe, which repeats the call
            LOOPED,
            LOOPED,
            "search low-tide",
        ],
    },
    Scene {
        part: Part::Errors,
        title: "the model invents pages",
        cues: &[],
        lines: &[
            "fetch atlantis",
            "fetch lemuria",
            "fetch avalon", // runs, and its error trips the fence
            "fetch camelot",
            "search sunken-cities", // arms a probe
            "fetch hyperborea",     // the probe, which fails
            "fetch thule",
            "fetch shangri-la",
            "fetch harbour",
        ],
    },
    Scene {
        part: Part::End,
        title: "the model does not stop",
        cues: &[],
        lines: &["search footnotes", "search more-footnotes"],
    },
];

pub const LOOPED: &str = "search high-tide";

/// Returns the scene that begins with this turn of the planner, if one does.
pub fn begins(turn: u32) -> Option<&'static Scene> {
    let scene = scene(turn);
    (turn == 1 || scene.part != self::scene(turn - 1).part).then_some(scene)
}

/// Returns the part that this turn of the planner belongs to. The last part never ends.
pub fn part(turn: u32) -> Part {
    scene(turn).part
}

fn scene(turn: u32) -> &'static Scene {
    let lines = SCENES
        .iter()
        .flat_map(|scene| scene.lines.iter().map(move |_| scene));
    let turn = usize::try_from(turn).unwrap_or(usize::MAX);
    lines.take(turn).last().unwrap_or(&SCENES[0])
}

// ===== the answers of healthy servers =====

/// Answers as a model: with the line of the turn in the path.
pub fn plan(path: &str) -> (u16, String) {
    let turn: usize = topic(path).parse().unwrap_or(1);
    let mut lines = SCENES.iter().flat_map(|scene| scene.lines);
    let line = lines.nth(turn - 1).map(ToString::to_string);
    (
        200,
        line.unwrap_or_else(|| format!("search footnote-{turn}")),
    )
}

/// Answers as the search tool.
pub fn found(path: &str) -> (u16, String) {
    (200, format!("three pages about {}", topic(path)))
}

/// Answers as the tool that fetches pages: with the page, or `404`.
pub fn page(path: &str) -> (u16, String) {
    match topic(path) {
        page @ ("almanac" | "moon" | "harbour") => (200, format!("the page `{page}`")),
        page => (404, no_page(page)),
    }
}

pub fn no_page(page: &str) -> String {
    format!("there is no page `{page}`, see `{FETCH} almanac`")
}
