//! What the bodies of model and tool APIs say, row by row. Nothing here needs a network.
#![cfg(feature = "http")]

mod corpus;
mod ends;
mod errors;
mod forms;
mod hostile;
mod old_lines;
mod properties;
mod support;
