//! Makes the client and the server of `proto/search.proto`. The protocol is parsed in Rust: no `protoc` has to be installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let protocol = protox::compile(["search.proto"], ["proto"])?;
    tonic_prost_build::compile_fds(protocol)?;
    Ok(())
}
