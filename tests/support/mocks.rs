//! Mocks of a primary and its backups, for the tests of who is polled and who is called.

use tower::{Layer, ServiceExt};
use tower_breaker::fallback::Services;
use tower_breaker::{Fallback, FallbackHandle, FallbackLayer, FallbackState};
use tower_test::mock::{self, Handle, Mock};

pub type Text = &'static str;

pub fn pair() -> (Mock<Text, Text>, Handle<Text, Text>) {
    mock::pair()
}

/// A primary and its backups as mocks, behind the layer that `set` makes of the default one.
pub struct Mocks {
    pub primary: Handle<Text, Text>,
    pub a: Handle<Text, Text>,
    pub b: Handle<Text, Text>,
    pub handle: FallbackHandle,
    pub service: Guarded,
}

pub type Guarded = Fallback<Mock<Text, Text>, Services<Mock<Text, Text>>>;

pub type Layered = FallbackLayer<Services<Mock<Text, Text>>>;

pub fn mocks(set: impl FnOnce(Layered) -> Layered) -> Mocks {
    let (service, primary) = pair();
    let (backup_a, a) = pair();
    let (backup_b, b) = pair();
    let layer = set(FallbackLayer::new("primary")
        .backup("a", backup_a)
        .backup("b", backup_b));
    Mocks {
        primary,
        a,
        b,
        handle: layer.handle(),
        service: layer.layer(service),
    }
}

impl Mocks {
    /// Fails three turns of the primary, which trips it.
    pub async fn trip(&mut self) {
        for _ in 0..3 {
            let turn = self.service.clone().oneshot("trip");
            let answer = async {
                let (_, send) = self.primary.next_request().await.expect("called");
                send.send_error("down");
            };
            let (result, ()) = tokio::join!(turn, answer);
            result.unwrap_err();
        }
        assert_eq!(self.handle.state(), FallbackState::Fallback);
    }
}
