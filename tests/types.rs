//! The traits and sizes of the public types, checked by the compiler. All are `Debug`. They are
//! `Send`, `Sync`, `Clone` and `Unpin` if their contents are.

use std::cell::Cell;
use std::convert::Infallible;
use std::error::Error;
use std::fmt::Debug;
use std::future::{Pending, Ready};
use std::marker::{PhantomData, PhantomPinned};
use std::mem::size_of;
use std::rc::Rc;

use tower::{BoxError, Layer};
use tower_breaker::circuit_breaker::future::ResponseFuture;
use tower_breaker::circuit_breaker::{Borrowed, One, Owned, PerKey, Routed};
use tower_breaker::{
    AsBoxError, Cancelled, CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer,
    CircuitBreakerSnapshot, ErrorsAsFailures, Event, Failure, FailureKind, FallbackLayer,
    HealthRouter, IntoError, KeyedCircuitBreakerHandle, Outcome, Permit, Reason, Recorded, Refusal,
    RefusalsAsFailures, RefuseWith, State, TransitionReason, WhenOpen, Window,
};

/// Whether a type implements a trait. If its bound holds, the inherent constant goes before the
/// constant of the trait.
macro_rules! is {
    ($type:ty: $($trait:tt)+) => {{
        #[allow(dead_code)]
        trait Otherwise {
            const IS: bool = false;
        }
        impl<T: ?Sized> Otherwise for T {}
        #[allow(dead_code)]
        struct Asked<T: ?Sized>(PhantomData<T>);
        #[allow(dead_code)]
        impl<T: ?Sized + $($trait)+> Asked<T> {
            const IS: bool = true;
        }
        <Asked<$type>>::IS
    }};
}

/// `[Send, Sync, Unpin, Clone]`.
macro_rules! traits {
    ($type:ty) => {
        [
            is!($type: Send),
            is!($type: Sync),
            is!($type: Unpin),
            is!($type: Clone),
        ]
    };
}

const ALL: [bool; 4] = [true; 4];
const BUT_CLONE: [bool; 4] = [true, true, true, false];

type ByName = fn(&String) -> &str;
type Named = PerKey<String, Borrowed<ByName, str>>;
type ByPair = PerKey<(String, u8), Owned<fn(&String) -> (String, u8)>>;
type Substituted = PerKey<String, Routed<ByName, fn(&mut String, &str)>>;
type Future<F, T, E> = ResponseFuture<F, ErrorsAsFailures, AsBoxError, String, Result<T, E>>;

// Parts of a service. Each takes away one of the traits, except `Whole`.
#[derive(Clone, Debug)]
struct Whole;
#[derive(Clone, Debug)]
struct NoSend(#[allow(dead_code)] Rc<u8>);
#[derive(Clone, Debug)]
struct NoSync(#[allow(dead_code)] Cell<u8>);
#[derive(Clone, Debug)]
struct NoUnpin(#[allow(dead_code)] PhantomPinned);
#[derive(Debug)]
struct NoClone;

#[test]
fn the_check_for_a_trait_can_say_no() {
    assert_eq!(traits!(Whole), ALL);
    assert_eq!(traits!(NoSend), [false, false, true, true]);
    assert_eq!(traits!(NoSync), [true, false, true, true]);
    assert_eq!(traits!(NoUnpin), [true, true, false, true]);
    assert_eq!(traits!(NoClone), BUT_CLONE);
}

#[test]
fn a_service_is_what_it_wraps() {
    macro_rules! check {
        ($($gate:ty),+) => {$(
            assert_eq!(traits!(CircuitBreaker<Whole, ErrorsAsFailures, AsBoxError, $gate>), traits!(Whole));
            assert_eq!(traits!(CircuitBreaker<NoSend, ErrorsAsFailures, AsBoxError, $gate>), traits!(NoSend));
            assert_eq!(traits!(CircuitBreaker<NoSync, ErrorsAsFailures, AsBoxError, $gate>), traits!(NoSync));
            assert_eq!(traits!(CircuitBreaker<NoUnpin, ErrorsAsFailures, AsBoxError, $gate>), traits!(NoUnpin));
            assert_eq!(traits!(CircuitBreaker<NoClone, ErrorsAsFailures, AsBoxError, $gate>), traits!(NoClone));
            // The same holds for the classifier and the refusal policy.
            assert_eq!(traits!(CircuitBreaker<Whole, NoSend, AsBoxError, $gate>), traits!(NoSend));
            assert_eq!(traits!(CircuitBreaker<Whole, ErrorsAsFailures, NoSync, $gate>), traits!(NoSync));
            assert_eq!(traits!(CircuitBreaker<Whole, NoClone, AsBoxError, $gate>), traits!(NoClone));
            assert_eq!(traits!(CircuitBreaker<Whole, ErrorsAsFailures, RefuseWith<NoClone>, $gate>), traits!(NoClone));
        )+};
    }
    check!(One, Named, ByPair, Substituted);
}

#[test]
fn a_layer_is_what_it_is_configured_with() {
    macro_rules! check {
        ($($gate:ty),+) => {$(
            assert_eq!(traits!(CircuitBreakerLayer<ErrorsAsFailures, AsBoxError, $gate>), ALL);
            assert_eq!(traits!(CircuitBreakerLayer<NoSend, AsBoxError, $gate>), traits!(NoSend));
            assert_eq!(traits!(CircuitBreakerLayer<ErrorsAsFailures, NoSync, $gate>), traits!(NoSync));
            assert_eq!(traits!(CircuitBreakerLayer<ErrorsAsFailures, NoClone, $gate>), traits!(NoClone));
        )+};
    }
    check!(One, Named, ByPair, Substituted);
    // The same holds for the key function.
    assert_eq!(traits!(PerKey<String, Owned<NoClone>>), traits!(NoClone));
    assert_eq!(traits!(PerKey<String, Owned<NoSend>>), traits!(NoSend));
    // All clones share the keys. If a key is not `Send`, the clones are not either.
    assert_eq!(
        traits!(PerKey<NoSend, Owned<Whole>>),
        [false, false, true, true]
    );
}

#[test]
fn a_future_is_what_it_wraps_and_the_request_adds_nothing() {
    assert_eq!(traits!(Future<Whole, (), BoxError>), BUT_CLONE);
    assert_eq!(
        traits!(Future<NoSend, (), BoxError>),
        [false, false, true, false]
    );
    assert_eq!(
        traits!(Future<NoSync, (), BoxError>),
        [true, false, true, false]
    );
    assert_eq!(
        traits!(Future<NoUnpin, (), BoxError>),
        [true, true, false, false]
    );
    // The future may hold a soft refusal.
    assert_eq!(
        traits!(Future<Whole, NoSend, BoxError>),
        [false, false, true, false]
    );
    type Of<Req, C, R> = ResponseFuture<Whole, C, R, Req, Result<(), BoxError>>;
    assert_eq!(traits!(Of<NoSend, ErrorsAsFailures, AsBoxError>), BUT_CLONE);
    assert_eq!(traits!(Of<String, ErrorsAsFailures, NoSend>), BUT_CLONE);
    assert_eq!(
        traits!(Of<String, NoSend, AsBoxError>),
        [false, false, true, false]
    );
    // Only the inner future is pinned, so the other parts may be `!Unpin`.
    assert_eq!(traits!(Of<NoUnpin, ErrorsAsFailures, NoUnpin>), BUT_CLONE);
}

#[test]
fn handles_permits_and_shared_types_are_send_sync_and_unpin() {
    assert_eq!(traits!(CircuitBreakerHandle), ALL);
    assert_eq!(traits!(KeyedCircuitBreakerHandle<String>), ALL);
    assert_eq!(traits!(KeyedCircuitBreakerHandle<NoClone>), ALL);
    assert_eq!(traits!(Permit), BUT_CLONE);
    assert_eq!(traits!(HealthRouter), ALL);
    assert_eq!(traits!(Refusal), ALL);
    assert_eq!(traits!(Event<'static>), ALL);
    assert_eq!(traits!(CircuitBreakerSnapshot), ALL);
    assert_eq!(traits!(RefuseWith<Whole>), ALL);
    macro_rules! plain {
        ($($type:ty),+ $(,)?) => {$(
            assert_eq!(traits!($type), ALL);
            assert!(is!($type: Copy + 'static), stringify!($type));
        )+};
    }
    plain!(
        AsBoxError,
        Cancelled,
        ErrorsAsFailures,
        Failure,
        FailureKind,
        IntoError,
        Outcome,
        Reason,
        Recorded,
        RefusalsAsFailures,
        State,
        TransitionReason,
        WhenOpen,
        Window,
    );
    assert!(is!(Refusal: Error + Eq + Send + Sync + 'static));
    assert!(is!(BoxError: From<Refusal>));
}

/// Services and layers hold closures, which are not `Debug`.
struct NoDebug;

#[test]
fn every_public_type_is_debug_whatever_closures_it_holds() {
    macro_rules! debug {
        ($($type:ty),+ $(,)?) => {$(assert!(is!($type: Debug), stringify!($type));)+};
    }
    debug!(
        AsBoxError,
        Cancelled,
        CircuitBreakerHandle,
        CircuitBreakerSnapshot,
        ErrorsAsFailures,
        Event<'static>,
        Failure,
        FailureKind,
        HealthRouter,
        IntoError,
        KeyedCircuitBreakerHandle<NoDebug>,
        Outcome,
        Permit,
        Reason,
        Recorded,
        Refusal,
        RefusalsAsFailures,
        RefuseWith<NoDebug>,
        State,
        TransitionReason,
        WhenOpen,
        Window,
        One,
        Borrowed<NoDebug, str>,
        Owned<NoDebug>,
        Routed<NoDebug, NoDebug>,
        PerKey<NoDebug, NoDebug>,
        CircuitBreaker<Whole, NoDebug, NoDebug, One>,
        CircuitBreaker<Whole, NoDebug, NoDebug, PerKey<NoDebug, NoDebug>>,
        CircuitBreakerLayer<NoDebug, NoDebug, One>,
        CircuitBreakerLayer<NoDebug, NoDebug, PerKey<NoDebug, NoDebug>>,
        ResponseFuture<Whole, NoDebug, NoDebug, NoDebug, Result<NoDebug, NoDebug>>,
    );
    #[cfg(feature = "retry")]
    debug!(tower_breaker::retry::SkipRefusals<Whole>);
    assert!(
        !is!(CircuitBreaker<NoDebug>: Debug),
        "the inner service's own"
    );
}

#[test]
fn a_service_is_at_most_32_bytes_more_than_what_it_wraps() {
    let layer = CircuitBreakerLayer::new();
    let by_name = layer.clone().per_key(|name: &String| name.as_str(), 1);
    let by_pair = layer
        .clone()
        .per_owned_key(|name: &String| (name.clone(), 1_u8), 1);
    let routed = by_name
        .clone()
        .substitute(HealthRouter::new(), |name: &mut String, to: &str| {
            *name = to.into();
        });
    let inner = [0_u64; 5];
    for size in [
        size_of_val(&layer.layer(inner)),
        size_of_val(&by_name.layer(inner)),
        size_of_val(&by_pair.layer(inner)),
        size_of_val(&routed.layer(inner)),
    ] {
        assert!(size <= size_of_val(&inner) + 32, "{size} bytes");
    }
    assert!(size_of::<CircuitBreaker<()>>() <= 32);
    assert!(size_of::<CircuitBreaker<u8>>() <= 40);
}

#[test]
fn a_fallback_is_at_most_64_bytes_more_than_its_primary() {
    let inner = [0_u64; 5];
    let layer = FallbackLayer::new("gpt-5").backup("claude", inner);
    let size = size_of_val(&layer.layer(inner));
    assert!(size <= size_of_val(&inner) + 64, "{size} bytes");
}

/// The limit is the larger of inner + 24 bytes and `Result` + 8 bytes, because the future may hold
/// a soft refusal.
#[test]
fn a_future_is_at_most_the_larger_of_what_it_wraps_and_a_refusal_and_a_little_more() {
    fn check<F, T, E>(over: &mut Vec<String>) {
        let size = size_of::<Future<F, T, E>>();
        let most = (size_of::<F>() + 24).max(size_of::<Result<T, E>>() + 8);
        let (future, result) = (size_of::<F>(), size_of::<Result<T, E>>());
        if size > most {
            over.push(format!(
                "{size} > {most}, with a future of {future} and a result of {result}"
            ));
        }
    }
    fn with_future<F>(over: &mut Vec<String>) {
        check::<F, (), BoxError>(over);
        check::<F, (), Infallible>(over);
        check::<F, u8, u8>(over);
        check::<F, String, BoxError>(over);
        check::<F, Vec<u64>, Infallible>(over);
        check::<F, [u64; 3], BoxError>(over);
        check::<F, [u64; 16], BoxError>(over);
        check::<F, [u64; 16], String>(over);
        // Results without a niche, of about the size of the future.
        check::<F, [u64; 1], Infallible>(over);
        check::<F, [u64; 2], Infallible>(over);
        check::<F, [u64; 3], Infallible>(over);
        check::<F, [u64; 4], Infallible>(over);
        check::<F, [u64; 5], Infallible>(over);
        check::<F, [u64; 6], Infallible>(over);
        check::<F, [u64; 7], Infallible>(over);
        check::<F, [u64; 8], Infallible>(over);
        check::<F, [u64; 9], Infallible>(over);
        check::<F, Option<Box<u8>>, Infallible>(over);
    }
    let mut over = Vec::new();
    with_future::<()>(&mut over);
    with_future::<[u64; 1]>(&mut over);
    with_future::<[u64; 2]>(&mut over);
    with_future::<[u64; 5]>(&mut over);
    with_future::<[u64; 64]>(&mut over);
    with_future::<Pending<()>>(&mut over);
    with_future::<Box<u8>>(&mut over);
    with_future::<Ready<Result<String, BoxError>>>(&mut over);
    assert!(over.is_empty(), "{over:#?}");
}

/// The types need no box, and do not name a gate.
#[test]
fn a_guarded_service_its_layer_and_its_future_can_be_named_and_stored() {
    use tower::Service;
    use tower::util::ServiceFn;

    type Answer = std::future::Ready<Result<String, BoxError>>;
    type Tool = ServiceFn<fn(String) -> Answer>;

    struct Agent {
        layer: CircuitBreakerLayer,
        tool: CircuitBreaker<Tool>,
        handle: CircuitBreakerHandle,
        asked: Option<Future<Answer, String, BoxError>>,
    }

    let tool: fn(String) -> Answer = |query| std::future::ready(Ok(query));
    let layer = CircuitBreakerLayer::default();
    let mut agent = Agent {
        tool: layer.layer(tower::service_fn(tool)),
        handle: layer.handle(),
        asked: None,
        layer,
    };
    agent.asked = Some(agent.tool.call("q".to_owned()));
    assert_eq!(agent.handle.state(), State::Closed);
    agent.tool = agent.layer.layer(tower::service_fn(tool));
    assert!(agent.asked.is_some());
}

#[cfg(feature = "http")]
mod http {
    use http_body_util::{Empty, Full};
    use hyper::body::Bytes;
    use tower_breaker::Head;
    use tower_breaker::http::{
        EndOfBody, ErrorEvents, InspectBody, ResponseBody, SoftRefusal, StatusClassifier,
    };

    use super::*;

    type Judged<S, J> = CircuitBreaker<S, ErrorsAsFailures, AsBoxError, One, J>;

    #[test]
    fn a_body_is_what_it_wraps_and_a_permit_takes_nothing_away() {
        assert_eq!(traits!(ResponseBody<Whole>), BUT_CLONE);
        assert_eq!(traits!(ResponseBody<NoSend>), [false, false, true, false]);
        assert_eq!(traits!(ResponseBody<NoSync>), [true, false, true, false]);
        assert_eq!(traits!(ResponseBody<NoUnpin>), [true, true, false, false]);
        // The same holds for the inspector, which is never pinned.
        assert_eq!(
            traits!(ResponseBody<Whole, NoSend>),
            [false, false, true, false]
        );
        assert_eq!(traits!(ResponseBody<Whole, NoUnpin>), BUT_CLONE);
        for simple in [traits!(Head), traits!(EndOfBody), traits!(ErrorEvents)] {
            assert_eq!(simple, ALL);
        }
        assert_eq!(traits!(InspectBody<NoClone>), BUT_CLONE);
        assert_eq!(traits!(Judged<Whole, Head>), ALL);
        assert_eq!(traits!(Judged<Whole, EndOfBody>), ALL);
        assert_eq!(traits!(Judged<Whole, InspectBody<NoSend>>), traits!(NoSend));
        assert_eq!(traits!(Judged<Whole, InspectBody<NoClone>>), BUT_CLONE);
        assert!(is!(ResponseBody<Whole, NoClone>: Debug));
        assert!(is!(InspectBody<NoClone>: Debug));
    }

    #[test]
    fn status_classifiers_have_the_traits_of_their_error_classifier_and_soft_refusals_have_all() {
        assert_eq!(traits!(SoftRefusal), ALL);
        assert_eq!(traits!(StatusClassifier), ALL);
        assert_eq!(traits!(StatusClassifier<NoSend>), traits!(NoSend));
        assert_eq!(traits!(StatusClassifier<NoSync>), traits!(NoSync));
        assert_eq!(traits!(StatusClassifier<NoUnpin>), traits!(NoUnpin));
        assert_eq!(traits!(StatusClassifier<NoClone>), BUT_CLONE);
        assert!(is!(SoftRefusal: Debug) && is!(StatusClassifier: Debug));
    }

    #[test]
    fn a_judge_without_state_takes_no_room_and_a_guarded_body_72_bytes() {
        assert_eq!(
            size_of::<Judged<u8, EndOfBody>>(),
            size_of::<CircuitBreaker<u8>>()
        );
        for (wrapped, inner) in [
            (
                size_of::<ResponseBody<Full<Bytes>>>(),
                size_of::<Full<Bytes>>(),
            ),
            (
                size_of::<ResponseBody<Empty<Bytes>>>(),
                size_of::<Empty<Bytes>>(),
            ),
        ] {
            assert!(wrapped <= inner + 72, "{wrapped} bytes");
        }
        // The inspector adds its own size.
        let inspected = size_of::<ResponseBody<Full<Bytes>, ErrorEvents>>();
        assert!(
            inspected <= size_of::<Full<Bytes>>() + 168,
            "{inspected} bytes"
        );
    }
}

#[cfg(feature = "grpc")]
mod grpc {
    use tower_breaker::grpc::{Code, Codes, SoftRefusal};

    use super::*;

    #[test]
    fn code_classifiers_have_the_traits_of_their_error_classifier_and_soft_refusals_have_all() {
        for simple in [traits!(Code), traits!(SoftRefusal), traits!(Codes)] {
            assert_eq!(simple, ALL);
        }
        assert_eq!(traits!(Codes<NoSend>), traits!(NoSend));
        assert_eq!(traits!(Codes<NoSync>), traits!(NoSync));
        assert_eq!(traits!(Codes<NoUnpin>), traits!(NoUnpin));
        assert_eq!(traits!(Codes<NoClone>), BUT_CLONE);
        assert!(is!(Code: Debug) && is!(Codes: Debug) && is!(SoftRefusal: Debug));
    }
}
