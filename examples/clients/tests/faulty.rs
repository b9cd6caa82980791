//! Tests that the faulty server fails as a test chooses, and restarts on the same port.

use std::time::Duration;

use tower_breaker_clients::faulty::{Answer, Fault, Server};

async fn get(server: &Server) -> Result<(u16, String), reqwest::Error> {
    let client = reqwest::Client::builder()
        .timeout(Duration::from_millis(300))
        .build()?;
    let response = client.get(server.url()).send().await?;
    Ok((response.status().as_u16(), response.text().await?))
}

#[tokio::test]
async fn the_server_has_each_fault_that_a_test_sets() {
    let mut server = Server::start(|_| Answer::of("text/plain", &["one ", "two ", "three"]))
        .await
        .unwrap();
    let whole = (200, "one two three".to_owned());
    assert_eq!(get(&server).await.unwrap(), whole);
    server.set(Fault::Drip(Duration::from_millis(1)));
    assert_eq!(get(&server).await.unwrap(), whole);
    for fault in [Fault::HangBeforeHead, Fault::HeadThenHang] {
        server.set(fault);
        assert!(get(&server).await.unwrap_err().is_timeout());
    }
    server.set(Fault::CutInBody);
    assert!(get(&server).await.is_err());
    server.set(Fault::Throttled(7));
    assert_eq!(get(&server).await.unwrap().0, 429);
    server.set(Fault::Status(503));
    assert_eq!(get(&server).await.unwrap().0, 503);
    server.kill().await;
    assert!(get(&server).await.unwrap_err().is_connect());
    server.set(Fault::Clean);
    server.restart().await.unwrap();
    assert_eq!(get(&server).await.unwrap(), whole);
    assert_eq!(server.seen(), 8);
}
