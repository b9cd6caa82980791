//! A tonic client over the layers, against a real tonic server that fails in every way.

mod matrix;
mod refusals;
mod streams;
mod support;
