//! Checks of what the layers promise.

use std::fmt::Display;
use std::process::ExitCode;

/// Prints each check, and keeps the broken promises.
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

    /// Prints every broken promise on a line of its own, and returns whether there was none.
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
