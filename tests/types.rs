//! Proves what the public types are: `Debug`; `Send`, `Sync`, `Clone` and `Unpin` as what they
//! wrap; and no larger than their limits.

mod support;

use std::cell::Cell;
use std::convert::Infallible;
use std::error::Error;
use std::fmt::Debug;
use std::future::{Pending, Ready, ready};
use std::marker::{PhantomData, PhantomPinned};
use std::mem::size_of;
use std::rc::Rc;

use tower::{BoxError, Layer, Service, service_fn};
use tower_breaker::circuit_breaker::future::ResponseFuture;
use tower_breaker::circuit_breaker::{Borrowed, One, Owned, PerKey, Routed};
use tower_breaker::{
    AsBoxError, Cancelled, CircuitBreaker, CircuitBreakerHandle, CircuitBreakerLayer,
    CircuitBreakerSnapshot, Digest, ErrorsAsFailures, Event, Failure, FailureKind, FallbackLayer,
    HealthRouter, IntoError, KeyedCircuitBreakerHandle, KeyedTripwireHandle, Outcome, Permit,
    Reason, Recorded, Refusal, RefusalsAsFailures, RefuseWith, State, TransitionReason,
    TripwireHandle, TripwireLayer, WhenOpen, Window,
};

use support::model::{Answer, Model, ModelError};

/// Whether a type implements a trait. Where the bound holds, the inherent constant hides the
/// trait's.
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

// What a service may wrap. Each type lacks one trait.
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
fn the_question_itself_can_say_no() {
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
            // The same for its classifier and its refusal policy.
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
    // The key function adds no other demand.
    assert_eq!(traits!(PerKey<String, Owned<NoClone>>), traits!(NoClone));
    assert_eq!(traits!(PerKey<String, Owned<NoSend>>), traits!(NoSend));
    // A key that is not `Send` is shared by all clones, so neither are they.
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
    // A soft refusal waits in it.
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
    // A request or policy that is not `Unpin` does not make the future so.
    assert_eq!(traits!(Of<NoUnpin, ErrorsAsFailures, NoUnpin>), BUT_CLONE);
}

#[test]
fn handles_permits_and_words_may_go_anywhere() {
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

/// Stands for the closures that services and layers hold, which are not `Debug`.
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

/// The limit is the larger of inner + 24 bytes and `Result` + 8 bytes: a soft refusal waits in
/// the future.
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
        // Types without a niche, of every size near that of the future.
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

// ===== the fallback =====

#[test]
fn a_fallback_is_at_most_64_bytes_more_than_its_primary() {
    let inner = [0_u64; 5];
    let layer = FallbackLayer::new("gpt-5").backup("claude", inner);
    let size = size_of_val(&layer.layer(inner));
    assert!(size <= size_of_val(&inner) + 64, "{size} bytes");
}

#[test]
fn a_fallback_and_its_future_are_send_though_its_backups_are_not_sync() {
    fn is_send<T: Send>(_: &T) {}
    type Boxed = tower::util::BoxCloneService<String, Answer, ModelError>;
    let backup: Boxed = Boxed::new(Model::new("a"));
    let layer = FallbackLayer::new("primary")
        .backup("a", backup.clone())
        .backup("b", backup)
        .same_turn(|req: &String| Some(req.clone()));
    let mut service = layer.layer(Model::new("primary"));
    is_send(&layer);
    is_send(&service);
    is_send(&service.call(String::new()));
    assert!(!format!("{service:?} {layer:?} {:?}", layer.handle()).is_empty());
}

// ===== the tripwire =====

#[test]
fn a_tripwire_and_its_future_are_not_much_larger_than_what_they_wrap() {
    type Answer = Result<u8, BoxError>;
    let inner = service_fn(|req: [u8; 32]| ready(Answer::Ok(req[0])));
    let mut service = TripwireLayer::new().layer(inner);
    let future = service.call([1; 32]);
    let wrapped = size_of::<Ready<Answer>>();
    assert!(size_of_val(&future) <= (wrapped + 32).max(size_of::<Answer>() + 8));
    assert!(size_of_val(&service) <= size_of_val(&inner) + 32);
}

#[test]
fn tripwires_go_to_other_threads_and_their_handles_can_be_named() {
    fn crosses_threads<T: Send + Sync + 'static>(_: &T) {}
    struct Keeps {
        _run: TripwireHandle<()>,
        _runs: KeyedTripwireHandle<String, (), ()>,
    }
    let layer = TripwireLayer::new().digest(|call: &(&'static str, u64)| Digest::of(call));
    let mut service = layer.layer(service_fn(|_: (&'static str, u64)| {
        ready(Ok::<_, BoxError>(()))
    }));
    crosses_threads(&layer);
    crosses_threads(&layer.handle());
    crosses_threads(&service);
    crosses_threads(&service.call(("search", 1)));
    let sessions = layer
        .clone()
        .per_session(|call: &(&'static str, u64)| call.0, 10);
    crosses_threads(&sessions);
    crosses_threads(&sessions.handle());
    let keeps = Keeps {
        _run: layer.handle().without_requests(),
        _runs: sessions.handle().without_requests(),
    };
    crosses_threads(&keeps);
    for debug in [
        format!("{layer:?}"),
        format!("{sessions:?}"),
        format!("{:?}", layer.handle()),
        format!("{:?}", sessions.handle()),
    ] {
        assert!(debug.contains("Tripwire"), "{debug}");
    }
}

// ===== features =====

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
        // The same for its inspector, which is not pinned.
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
    fn what_reads_a_status_and_what_refuses_with_one_is_plain_and_takes_after_who_judges_errors() {
        assert_eq!(traits!(SoftRefusal), ALL);
        assert_eq!(traits!(StatusClassifier), ALL);
        assert_eq!(traits!(StatusClassifier<NoSend>), traits!(NoSend));
        assert_eq!(traits!(StatusClassifier<NoSync>), traits!(NoSync));
        assert_eq!(traits!(StatusClassifier<NoUnpin>), traits!(NoUnpin));
        assert_eq!(traits!(StatusClassifier<NoClone>), BUT_CLONE);
        assert!(is!(SoftRefusal: Debug) && is!(StatusClassifier: Debug));
    }

    #[test]
    fn a_judge_that_knows_nothing_takes_no_room_and_a_body_72_bytes() {
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
        // An inspector adds its size.
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
    fn what_reads_a_code_and_what_refuses_with_one_is_plain_and_takes_after_who_judges_errors() {
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
