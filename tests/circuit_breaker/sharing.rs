//! Proves that layers, services, their clones and handles share one circuit until a setter.

use std::sync::Arc;

use tower::Layer;
use tower_breaker::{CircuitBreakerLayer, Event, Reason, State};

use crate::support::site::{Down, Query, Site, ask_now, trip_by_hand};
use crate::support::tool::{Ask, Tool, ask, by_status};
use crate::support::{refused, secs};

#[tokio::test(start_paused = true)]
async fn failures_of_layers_services_and_their_clones_count_in_one_circuit() {
    let tool = Tool::new();
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let copy = layer.clone();
    for service in [
        layer.layer(tool.clone()),
        copy.layer(tool.clone()),
        copy.clone().layer(tool.clone()),
    ] {
        // One clone for each request.
        let mut clone = service.clone();
        ask(&mut clone, Ask::fail()).await.unwrap_err();
    }
    assert_eq!(handle.state(), State::Open);
    assert_eq!(copy.handle().snapshot(), handle.clone().snapshot());
    refused(ask(&mut layer.layer(tool.clone()), Ask::ok()).await);
    assert_eq!(tool.calls(), 3);
}

/// A setter makes another circuit, so the handle is taken last.
#[tokio::test(start_paused = true)]
async fn a_setter_gives_the_layer_a_circuit_of_its_own() {
    let layer = CircuitBreakerLayer::new();
    let early = layer.handle();
    let copy = layer.clone();
    early.force_open();
    assert_eq!(copy.handle().state(), State::Open, "a clone shares it");
    let named = copy.clone().name("search");
    assert_eq!(
        named.handle().state(),
        State::Closed,
        "one configured further does not"
    );
    assert_eq!(
        copy.handle().state(),
        State::Open,
        "and leaves the other's alone"
    );

    // Each setter does so, also those of the classifier and of the policy.
    let silent = |_: &Event<'_>| {};
    for handle in [
        copy.clone().failure_threshold(3).handle(),
        copy.clone().recovery_duration(secs(30)).handle(),
        copy.clone().observe_only().handle(),
        copy.clone().observe(silent).handle(),
        copy.clone().jitter_seed(1).handle(),
        copy.clone().classify(by_status).handle(),
        copy.clone().refuse(tower_breaker::IntoError).handle(),
    ] {
        assert_eq!(handle.state(), State::Closed);
        handle.force_open();
    }
    early.reset();
    assert_eq!(copy.handle().state(), State::Closed);

    // The same for a keyed layer. Earlier settings stay.
    let keyed = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .per_key(|ask: &Ask| ask.name.as_str(), 7);
    keyed.handle().force_open("a");
    let further = keyed.clone().recovery_duration(secs(1));
    assert_eq!(keyed.clone().handle().state("a"), State::Open);
    assert_eq!(further.handle().state("a"), State::Closed);
    let _ = further.handle().try_acquire("a").unwrap().failure();
    assert_eq!(further.handle().state("a"), State::Open);
    for key in 0..100 {
        let _ = further.handle().try_acquire(key.to_string().as_str());
    }
    assert_eq!(further.handle().keys().len(), 7);
}

#[test]
fn clones_of_services_and_layers_are_refused_by_one_circuit_until_a_setter() {
    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new();
    let handle = layer.handle();
    let mut services = vec![layer.layer(site.tool()), layer.clone().layer(site.tool())];
    services.push(services[0].clone());
    // A service that is called more than once has a reference count of its own. Its clones share
    // the circuit.
    for _ in 0..3 {
        assert!(ask_now(&mut services[0]).is_ok());
    }
    services.push(services[0].clone());
    services.push(services[3].clone());
    let parted = layer.clone().name("other");
    trip_by_hand(&handle);
    for service in &mut services {
        assert_eq!(refused(ask_now(service)).reason(), Reason::CircuitOpen);
    }
    assert_eq!(parted.handle().state(), State::Closed);
    assert!(ask_now(&mut parted.layer(site.tool())).is_ok());
    assert_eq!(layer.clone().handle().state(), State::Open);
}

#[test]
fn a_layer_applied_once_per_request_still_trips() {
    let site = Arc::new(Site::default());
    site.set_down(true);
    let layer = CircuitBreakerLayer::new();
    for _ in 0..3 {
        assert!(
            ask_now(&mut layer.layer(site.tool()))
                .unwrap_err()
                .is::<Down>()
        );
    }
    for _ in 0..100 {
        assert_eq!(
            refused(ask_now(&mut layer.layer(site.tool()))).reason(),
            Reason::CircuitOpen
        );
    }
    assert_eq!(site.calls(), 3);

    let keyed = layer.clone().per_key(|query: &Query| *query, 10);
    for _ in 0..3 {
        assert!(
            ask_now(&mut keyed.layer(site.tool()))
                .unwrap_err()
                .is::<Down>()
        );
    }
    assert_eq!(
        refused(ask_now(&mut keyed.layer(site.tool()))).reason(),
        Reason::CircuitOpen
    );
    assert_eq!(site.calls(), 6);
}

#[test]
fn the_inner_service_can_be_borrowed_and_taken_out() {
    // The inner value need not even be a service.
    let mut service = CircuitBreakerLayer::new().layer(7_u8);
    assert_eq!(*service.get_ref(), 7);
    *service.get_mut() += 1;
    assert_eq!(service.into_inner(), 8);

    let site = Arc::new(Site::default());
    let layer = CircuitBreakerLayer::new().per_key(|query: &Query| *query, 10);
    let mut keyed = layer.layer(site.tool());
    assert!(ask_now(&mut keyed).is_ok());
    assert!(ask_now(keyed.get_mut()).is_ok(), "past the circuit");
    assert_eq!(site.calls(), 2);
}
