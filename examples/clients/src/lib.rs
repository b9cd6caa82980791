//! Servers on loopback that fail like real ones, for the examples and tests of this package.

pub mod faulty;
pub mod grpc;
pub mod mcp_server;
pub mod proxy;

/// The generated client and server of `proto/search.proto`.
#[allow(clippy::pedantic)]
pub mod search {
    tonic::include_proto!("search");
}
