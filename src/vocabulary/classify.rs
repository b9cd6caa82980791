//! Classifiers decide what a call's result says.

use std::any::Any;

use super::outcome::{Failure, Outcome};
use super::refusal;

/// Decides what a call's result says of the guarded thing.
///
/// A closure of the same shape is a classifier. Annotate its argument.
///
/// A classifier runs outside every lock.
///
/// # Panics
///
/// If a classifier panics, the call counts as cancelled, and the panic goes on to the caller.
///
/// # Examples
///
/// A tool that reports its errors inside a success:
///
/// ```
/// use std::io;
/// use tower_breaker::{CircuitBreakerLayer, Classify, ErrorsAsFailures, Failure, Outcome};
///
/// struct ToolResult { is_error: bool }
///
/// let layer = CircuitBreakerLayer::new().classify(
///     |result: Result<&ToolResult, &io::Error>| match result {
///         Ok(answer) if answer.is_error => Outcome::Failure(Failure::transient()),
///         other => ErrorsAsFailures.classify(other),
///     },
/// );
/// # let _ = layer;
/// ```
pub trait Classify<Res, E> {
    /// Decides what `result` says of the guarded thing.
    fn classify(&self, result: Result<&Res, &E>) -> Outcome;
}

impl<F, Res, E> Classify<Res, E> for F
where
    // One lifetime for both references: functions with one and with two lifetimes fit.
    F: for<'a> Fn(Result<&'a Res, &'a E>) -> Outcome,
{
    fn classify(&self, result: Result<&Res, &E>) -> Outcome {
        self(result)
    }
}

/// The default classifier of a circuit breaker and of a tripwire.
///
/// | result | outcome |
/// | --- | --- |
/// | a response | a success |
/// | a [`Refusal`](crate::Refusal) of a layer of this crate further inside | neutral |
/// | any other error | a transient failure |
///
/// A refusal is neutral. It says that the call was not attempted, so it says nothing about the
/// guarded thing.
///
/// The classifier looks at the error as the service returns it. It recognises an error that is a
/// `Refusal`, and a [`BoxError`](crate::BoxError) with a refusal anywhere in its chain of sources.
/// For any other error type that has a refusal in its `source()`, write a classifier that asks
/// [`Refusal::find`](crate::Refusal::find).
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorsAsFailures;

impl<Res, E: 'static> Classify<Res, E> for ErrorsAsFailures {
    fn classify(&self, result: Result<&Res, &E>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(err) if refusal::in_error(err as &dyn Any).is_some() => Outcome::Neutral,
            Err(_) => Outcome::Failure(Failure::transient()),
        }
    }
}

/// The default classifier of a fallback: every error is a transient failure.
///
/// So is a refusal of a layer of this crate further inside: a model whose call was refused did not
/// answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalsAsFailures;

impl<Res, E> Classify<Res, E> for RefusalsAsFailures {
    fn classify(&self, result: Result<&Res, &E>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::Failure(Failure::transient()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{BoxError, Reason, Refusal};

    type Answer = Result<(), BoxError>;

    fn classify<C: Classify<(), BoxError>>(classifier: &C, answer: &Answer) -> Outcome {
        classifier.classify(answer.as_ref())
    }

    fn refused() -> Answer {
        Err(Refusal::breaker(Reason::CircuitOpen).into())
    }

    #[test]
    fn an_error_is_a_transient_failure_and_a_response_a_success() {
        assert_eq!(classify(&ErrorsAsFailures, &Ok(())), Outcome::Success);
        let failure = Outcome::from(Failure::transient());
        assert_eq!(classify(&ErrorsAsFailures, &Err("down".into())), failure);
        assert_eq!(classify(&RefusalsAsFailures, &Ok(())), Outcome::Success);
        assert_eq!(classify(&RefusalsAsFailures, &Err("down".into())), failure);
    }

    #[test]
    fn a_refusal_inside_a_boxed_error_is_neutral_or_a_failure() {
        assert_eq!(classify(&ErrorsAsFailures, &refused()), Outcome::Neutral);
        assert_eq!(
            classify(&RefusalsAsFailures, &refused()),
            Outcome::Failure(Failure::transient())
        );
    }

    #[test]
    fn a_refusal_that_is_the_error_type_itself_is_neutral() {
        let refusal = Refusal::breaker(Reason::CircuitOpen);
        assert_eq!(
            Classify::<(), Refusal>::classify(&ErrorsAsFailures, Err(&refusal)),
            Outcome::Neutral
        );
    }

    #[test]
    fn functions_of_one_lifetime_and_of_two_are_classifiers_and_so_are_closures() {
        type Answered<'a> = Result<&'a (), &'a BoxError>;
        fn one(_: Answered<'_>) -> Outcome {
            Outcome::Neutral
        }
        fn two(_: Result<&(), &BoxError>) -> Outcome {
            Outcome::Neutral
        }
        let closure = |_: Result<&(), &BoxError>| Outcome::Neutral;
        assert_eq!(classify(&one, &Ok(())), Outcome::Neutral);
        assert_eq!(classify(&two, &Ok(())), Outcome::Neutral);
        assert_eq!(classify(&closure, &Ok(())), Outcome::Neutral);
    }
}
