//! Bodies that are judged at their end, as users of the layers see them.

#![cfg(feature = "http")]

mod hostile;
mod support;
mod verdicts;
