//! How a refusal is found inside an error.

use std::any::Any;
use std::error::Error;
use std::io;
use std::sync::Arc;

use super::Refusal;
use crate::vocabulary::BoxError;

/// How many errors of one chain are looked at. A chain that leads back into itself ends here.
const LONGEST_CHAIN: usize = 128;

/// Finds a refusal in an error or in the chain of its sources.
pub(super) fn find<'a>(err: &'a (dyn Error + 'static)) -> Option<&'a Refusal> {
    std::iter::successors(Some(err), |&err| held(err).or_else(|| err.source()))
        .take(LONGEST_CHAIN)
        .find_map(|err| err.downcast_ref())
}

/// Finds a refusal in an error as a service returns it: a [`Refusal`], or a [`BoxError`] with one
/// in its chain.
pub(crate) fn in_error(err: &dyn Any) -> Option<&Refusal> {
    err.downcast_ref::<Refusal>().or_else(|| {
        err.downcast_ref::<BoxError>()
            .and_then(|err| Refusal::find(&**err))
    })
}

/// The error that a pointer or an [`io::Error`] holds.
///
/// Each of these types is an error itself, and its `source()` is the source of the error that it
/// holds. A walk over sources alone would therefore skip the error inside. A `Box<dyn Error>` is
/// not in the list, because it is no `Error`.
fn held<'a>(err: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(err) = err.downcast_ref::<io::Error>() {
        return err.get_ref().map(|err| err as _);
    }
    if let Some(err) = err.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        return Some(&**err);
    }
    if let Some(err) = err.downcast_ref::<Arc<dyn Error + Send>>() {
        return Some(&**err);
    }
    if let Some(err) = err.downcast_ref::<Arc<dyn Error>>() {
        return Some(&**err);
    }
    pointee::<Refusal>(err).or_else(|| pointee::<io::Error>(err))
}

/// The `T` behind a `Box<T>` or an `Arc<T>`.
fn pointee<'a, T: Error + 'static>(
    err: &'a (dyn Error + 'static),
) -> Option<&'a (dyn Error + 'static)> {
    if let Some(err) = err.downcast_ref::<Box<T>>() {
        return Some(&**err);
    }
    err.downcast_ref::<Arc<T>>().map(|err| &**err as _)
}

#[cfg(test)]
mod tests;
