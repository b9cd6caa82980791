//! Proves what a refusal tells, and what becomes of it.

use std::convert::Infallible;
use std::future::ready;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_breaker::{Refusal, TripwireLayer};

use crate::support::calls::{Call, Tool, call, search};
use crate::support::refused;

#[tokio::test]
async fn a_refusal_names_the_tool_the_rule_the_count_and_what_to_do_instead() {
    let layer = TripwireLayer::new()
        .max_turns(5)
        .cycles(2, 2)
        .name_of(|call: &Call| call.0);
    let handle = layer.handle();
    let mut tool = layer.layer(Tool::default());
    for _ in 0..2 {
        call(&mut tool, search(1)).await.unwrap();
    }
    let mut told = Vec::new();
    let identical = refused(call(&mut tool, search(1)).await);
    assert_eq!(identical.name(), Some("search"));
    told.push(identical.to_string());
    told.push(refused(call(&mut tool, ("fetch", 1)).await).to_string());

    handle.reset();
    for n in [1, 2, 1] {
        call(&mut tool, search(n)).await.unwrap();
    }
    told.push(refused(call(&mut tool, search(2)).await).to_string());

    handle.reset();
    for n in 0..5 {
        call(&mut tool, search(n)).await.unwrap();
    }
    told.push(refused(call(&mut tool, search(9)).await).to_string());

    handle.reset();
    for n in 0..3 {
        call(&mut tool, ("down", n)).await.unwrap_err();
    }
    told.push(refused(call(&mut tool, ("down", 3)).await).to_string());
    assert_eq!(
        told,
        [
            "`search` was not called: the same call came 3 times in a row. Do not repeat it: \
             change its arguments, try something else, or answer with what you have",
            "`fetch` was not called, because this run was stopped: the same call came 3 times in a row. \
             Do not repeat it: change its arguments, try something else, or answer with what you have",
            "`search` was not called: the same 2 calls came 2 times in a row. Do not go round again: \
             change the arguments, try something else, or answer with what you have",
            "`search` was not called: all 5 turns of the run are spent. \
             Make no more calls, and answer with what you have",
            "`down` was not called, because this run was stopped: 3 calls failed in a row. \
             Do not try the same again: read the errors, change the approach, or say what is wrong",
        ]
    );
}

#[tokio::test]
async fn a_soft_refusal_keeps_the_error_type_of_a_service_that_cannot_fail() {
    let layer = TripwireLayer::new()
        .name("shell")
        .refuse_with(|_: String, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()));
    let mut tool = layer.layer(service_fn(|req: String| ready(Ok::<_, Infallible>(req))));
    let mut last = String::new();
    for _ in 0..3 {
        last = tool.ready().await.unwrap().call("ls".into()).await.unwrap();
    }
    assert!(
        last.starts_with("`shell` was not called: the same call"),
        "{last}"
    );
}
