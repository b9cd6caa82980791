//! Shared by the tests of the fallback.

use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceExt};
use tower_breaker::{FallbackHandle, FallbackLayer, FallbackState, Outcome, Refusal};
use tower_test::mock;
use tower_test::mock::{Handle, Mock};

use crate::support::models::{Answer, DOWN, Model, ModelError, classify, turn};

pub const SECOND: Duration = Duration::from_secs(1);

pub struct Models {
    pub primary: Model,
    pub a: Model,
    pub b: Model,
}

impl Models {
    pub fn new() -> Self {
        Self {
            primary: Model::new("primary"),
            a: Model::new("a"),
            b: Model::new("b"),
        }
    }

    /// The default layer with the chain [a, b].
    pub fn layer(
        &self,
    ) -> FallbackLayer<
        tower_breaker::fallback::Services<Model>,
        impl Fn(Result<&Answer, &ModelError>) -> Outcome + Clone + use<>,
    > {
        FallbackLayer::new("primary")
            .backup("a", self.a.clone())
            .backup("b", self.b.clone())
            .classify(classify)
    }
}

/// Trips the primary, which stays down.
pub async fn trip<S>(service: &S, handle: &FallbackHandle, models: &Models)
where
    S: Service<String, Response = Answer> + Clone,
    S::Error: std::fmt::Display,
{
    models.primary.does(DOWN);
    for _ in 0..3 {
        turn(service).await.unwrap_err();
    }
    assert_eq!(handle.state(), FallbackState::Fallback);
    assert_eq!(models.primary.count(), 3);
}

pub fn refusal(result: Result<Answer, BoxError>) -> Refusal {
    let err = result.expect_err("refused");
    Refusal::find(&*err).expect("a refusal").clone()
}

pub type Text = &'static str;

pub fn pair() -> (Mock<Text, Text>, Handle<Text, Text>) {
    mock::pair()
}

/// A primary and its backups as mocks, behind the layer that `set` makes of the default one.
pub struct Mocks {
    pub primary: Handle<Text, Text>,
    pub a: Handle<Text, Text>,
    pub b: Handle<Text, Text>,
    pub handle: tower_breaker::FallbackHandle,
    pub service: Guarded,
}

pub type Guarded =
    tower_breaker::Fallback<Mock<Text, Text>, tower_breaker::fallback::Services<Mock<Text, Text>>>;
pub type Layered = FallbackLayer<tower_breaker::fallback::Services<Mock<Text, Text>>>;

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

/// Fails one turn of the mock with `handle`.
pub async fn fail_mocks(service: &Guarded, handle: &mut Handle<Text, Text>) {
    let turn = service.clone().oneshot("trip");
    let answer = async {
        let (_, send) = handle.next_request().await.expect("called");
        send.send_error("down");
    };
    let (result, ()) = tokio::join!(turn, answer);
    result.unwrap_err();
}

pub async fn trip_mocks(mocks: &mut Mocks) {
    for _ in 0..3 {
        fail_mocks(&mocks.service, &mut mocks.primary).await;
    }
    assert_eq!(mocks.handle.state(), FallbackState::Fallback);
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}
