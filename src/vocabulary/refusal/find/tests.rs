use std::fmt;

use super::super::{Name, Reason};
use super::*;

fn refusal() -> Refusal {
    Refusal::breaker(Reason::CircuitOpen).with_name(Some(Name::Static("search")))
}

/// An error that names the error in its box as its source.
#[derive(Debug)]
struct Outer(BoxError);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("outer")
    }
}

impl Error for Outer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// An error that names the source of the error in its box, as `#[error(transparent)]` does.
#[derive(Debug)]
struct Transparent(BoxError);

impl fmt::Display for Transparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Transparent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// An error that names itself as its source.
#[derive(Debug)]
struct Ring;

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ring")
    }
}

impl Error for Ring {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self)
    }
}

/// Asserts that the refusal is found in `err`, and in `err` inside each kind of wrapper.
#[track_caller]
fn assert_found<E: Error + Send + Sync + 'static>(make: impl Fn() -> E) {
    let wanted = refusal();
    let boxes: [BoxError; 6] = [
        make().into(),
        Outer(make().into()).into(),
        io::Error::other(make()).into(),
        io::Error::other(io::Error::other(make())).into(),
        Outer(Outer(io::Error::other(Outer(make().into())).into()).into()).into(),
        Transparent(Outer(make().into()).into()).into(),
    ];
    for err in boxes {
        assert_eq!(Refusal::find(&*err), Some(&wanted), "{err:?}");
    }
    let err: Box<dyn Error> = Box::new(make());
    assert_eq!(Refusal::find(&*err), Some(&wanted), "{err:?}");
}

#[test]
fn a_refusal_is_found_as_itself_and_through_sources() {
    assert_found(refusal);
    assert_eq!(Refusal::find(&refusal()), Some(&refusal()));
    assert_found(|| Outer(refusal().into()));
}

#[test]
fn a_refusal_is_found_behind_a_pointer_that_is_an_error_itself() {
    assert_found(|| Box::new(refusal()));
    assert_found(|| Arc::new(refusal()));
    assert_found(|| Arc::new(Outer(refusal().into())));
}

#[test]
fn a_refusal_is_found_in_an_io_error_and_behind_a_pointer_to_one() {
    assert_found(|| io::Error::other(refusal()));
    assert_found(|| Box::new(io::Error::other(refusal())));
    assert_found(|| Arc::new(io::Error::other(refusal())));
    assert_found(|| io::Error::other(Box::new(io::Error::other(Arc::new(refusal())))));
}

#[test]
fn a_refusal_is_found_behind_a_shared_error_of_any_type() {
    assert_found(|| -> Arc<dyn Error + Send + Sync> { Arc::new(refusal()) });
    assert_found(|| -> Arc<dyn Error + Send + Sync> { Arc::from(BoxError::from(refusal())) });

    let wanted = refusal();
    let only_sent: Arc<dyn Error + Send> = Arc::new(refusal());
    assert_eq!(Refusal::find(&only_sent), Some(&wanted));
    let local: Arc<dyn Error> = Arc::new(refusal());
    assert_eq!(Refusal::find(&local), Some(&wanted));
    let nested: Arc<dyn Error> = Arc::new(Arc::new(io::Error::other(refusal())));
    assert_eq!(Refusal::find(&nested), Some(&wanted));
}

#[test]
fn a_box_that_is_boxed_again_stays_one_box() {
    fn boxed(err: impl Into<BoxError>) -> BoxError {
        err.into()
    }
    let twice = boxed(boxed(refusal()));
    assert!(twice.is::<Refusal>());
    assert_eq!(Refusal::find(&*twice), Some(&refusal()));
    let shared = Arc::new(BoxError::from(refusal()));
    assert_eq!(Refusal::find(&**shared), Some(&refusal()));
}

#[test]
fn a_transparent_error_hides_its_refusal_and_a_box_around_it_does_not() {
    let err = Transparent(refusal().into());
    assert_eq!(Refusal::find(&err), None);
    assert_eq!(Refusal::find(&*err.0), Some(&refusal()));
    assert!(Refusal::find(&Transparent(Outer(refusal().into()).into())).is_some());
}

#[test]
fn other_errors_hold_no_refusal() {
    assert_eq!(Refusal::find(&Outer("other".into())), None);
    assert_eq!(Refusal::find(&io::Error::other("other")), None);
    assert_eq!(Refusal::find(&io::Error::from_raw_os_error(2)), None);
    let shared: Arc<dyn Error + Send + Sync> = Arc::new(fmt::Error);
    assert_eq!(Refusal::find(&shared), None);
}

#[test]
fn a_chain_is_followed_up_to_its_bound_and_a_ring_ends() {
    let nested = |outers| (0..outers).fold(BoxError::from(refusal()), |err, _| Outer(err).into());
    assert!(Refusal::find(&*nested(LONGEST_CHAIN - 1)).is_some());
    assert!(Refusal::find(&*nested(LONGEST_CHAIN)).is_none());
    assert_eq!(Refusal::find(&Ring), None);
    assert_eq!(Refusal::find(&Outer(Ring.into())), None);
}

#[test]
fn an_error_as_a_service_returns_it_is_a_refusal_or_a_boxed_error() {
    let boxed: BoxError = Outer(refusal().into()).into();
    assert_eq!(in_error(&boxed), Some(&refusal()));
    assert_eq!(in_error(&refusal()), Some(&refusal()));
    assert_eq!(in_error(&Outer(refusal().into())), None, "a typed error");
    assert_eq!(in_error(&"other"), None);
}
