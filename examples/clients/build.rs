//! Generates the client and the server of `proto/search.proto`. The parser is written in Rust, so
//! no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let protocol = protox::compile(["search.proto"], ["proto"])?;
    tonic_prost_build::compile_fds(protocol)?;
    Ok(())
}
