//! Servers on loopback that fail in every way a real one does, for the examples and tests of this package.

pub mod faulty;
pub mod grpc;
pub mod mcp_server;
pub mod proxy;

/// The client and the server of `proto/search.proto`.
#[allow(clippy::pedantic)]
pub mod search {
    tonic::include_proto!("search");
}
