//! Tests of the layers around a tonic client, with every fault of a real tonic server.

mod matrix;
mod refusals;
mod streams;
mod support;
