//! What the layers are held to.

use std::fmt::Display;
use std::process::ExitCode;

/// Prints each check, and keeps what was broken.
#[derive(Debug, Default)]
pub struct Checks {
    made: usize,
    broken: Vec<String>,
}

impl Checks {
    pub fn check(&mut self, held: bool, what: impl Display) {
        self.made += 1;
        println!("{} {what}", if held { "    ok" } else { "BROKEN" });
        if !held {
            self.broken.push(what.to_string());
        }
    }

    /// Says so, a line for each, if anything was broken.
    pub fn verdict(&self) -> ExitCode {
        if self.broken.is_empty() {
            println!("\nall {} promises were kept", self.made);
            return ExitCode::SUCCESS;
        }
        for what in &self.broken {
            eprintln!("broken promise: {what}");
        }
        ExitCode::FAILURE
    }
}
