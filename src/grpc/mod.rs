//! gRPC: what a status says, in headers or in trailers, and soft refusals.
