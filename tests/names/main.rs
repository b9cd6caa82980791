//! Every public name, setter and method, written as users write them: with closures as the
//! documents show them, arguments of each kind that is taken, and results that nobody looks at.
//! That this compiles without a warning is most of what it proves.

#![deny(unused_must_use)]

mod circuit_breaker;
mod fallback;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "retry")]
mod retry;
mod tripwire;

use std::hash::Hash;

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Ask {
    model: String,
    run: String,
    turn: u32,
}

fn ask() -> Ask {
    Ask {
        model: "gpt-5".into(),
        run: "a".into(),
        turn: 1,
    }
}
