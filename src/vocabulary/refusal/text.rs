//! The text of a refusal, as a model or a person reads it.

use std::fmt::{self, Write as _};

use super::{Layer, Name, Reason, Refusal};

/// How many characters of a name the text shows. A model may make up the name, and another may
/// read the text.
const SHOWN: usize = 64;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_subject(f)?;
        match self.layer {
            _ if self.reason == Reason::NotReady => {
                f.write_str(" was called before it was ready: call it again")
            }
            Layer::CircuitBreaker => f.write_str(" temporarily unavailable: circuit breaker open"),
            Layer::Fallback if self.reason == Reason::ProbeInFlight => f.write_str(
                " temporarily unavailable: its recovery is being tested, \
                 and its backups are unavailable too",
            ),
            Layer::Fallback => f.write_str(" temporarily unavailable, and its backups too"),
            Layer::Tripwire { period } => self.write_tripwire(period, f),
        }
    }
}

impl Refusal {
    /// Writes what was not called.
    ///
    /// A circuit breaker says "tool". A fallback and a tripwire guard tools and models alike, so
    /// they say the name alone, or "service" without one.
    fn write_subject(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().map(Name::as_str).map(Quoted);
        match (self.layer, name) {
            (Layer::CircuitBreaker, Some(name)) => write!(f, "tool {name}"),
            (Layer::CircuitBreaker, None) => f.write_str("tool"),
            (Layer::Fallback | Layer::Tripwire { .. }, Some(name)) => write!(f, "{name}"),
            (Layer::Fallback | Layer::Tripwire { .. }, None) => f.write_str("service"),
        }
    }

    /// Writes which rule stopped the call, at which count, and what to do instead.
    fn write_tripwire(&self, period: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count.unwrap_or_default();
        f.write_str(if self.reason == Reason::TripwireOpen {
            " was not called, because this run was stopped: "
        } else {
            " was not called: "
        })?;
        match self.tripped_by.unwrap_or(self.reason) {
            Reason::MaxTurns => {
                if count == 1 {
                    f.write_str("the only turn of the run is spent")?;
                } else {
                    write!(f, "all {count} turns of the run are spent")?;
                }
                f.write_str(". Make no more calls, and answer with what you have")
            }
            Reason::IdenticalCall if period > 1 => write!(
                f,
                "the same {period} calls came {count} times in a row. Do not go round again: \
                 change the arguments, try something else, or answer with what you have"
            ),
            Reason::IdenticalCall => write!(
                f,
                "the same call came {count} times in a row. Do not repeat it: \
                 change its arguments, try something else, or answer with what you have"
            ),
            Reason::ErrorStreak if count == 1 => f.write_str(
                "a call failed. Do not try the same again: \
                 read the error, change the approach, or say what is wrong",
            ),
            Reason::ErrorStreak => write!(
                f,
                "{count} calls failed in a row. Do not try the same again: \
                 read the errors, change the approach, or say what is wrong"
            ),
            _ => f.write_str(
                "the run's time is over. Make no more calls, and answer with what you have",
            ),
        }
    }
}

/// Displays a name in backticks, on one line and bounded.
///
/// The name can neither end its own quotation nor turn the reading direction.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('`')?;
        let mut rest = self.0.chars();
        for c in rest.by_ref().take(SHOWN) {
            f.write_char(if is_hostile(c) { '\u{fffd}' } else { c })?;
        }
        if rest.next().is_some() {
            f.write_char('…')?;
        }
        f.write_char('`')
    }
}

/// Whether a character would end the quotation or the line, or turn the reading direction.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '`' | '\u{061c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests;
