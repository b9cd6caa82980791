//! The locks and atomics of the shared machinery: the standard ones, or those that loom watches.

#[cfg(not(tower_breaker_loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(tower_breaker_loom)]
pub(crate) use self::watched::Arc;
#[cfg(tower_breaker_loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};

use std::sync::PoisonError;

/// Locks `mutex`, poisoned or not.
///
/// The only foreign code that runs under one of our locks is the `Eq` and the `Borrow` of a key.
/// They run while nothing is half done. The state behind a poisoned lock is therefore whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(tower_breaker_loom)]
mod watched {
    use loom::sync::atomic::{AtomicUsize, Ordering, fence};

    /// An `Arc` with the memory orderings of `std`, whose count is an atomic that loom watches.
    ///
    /// Loom's own `Arc` counts in program order, and would hide a missing fence in the store.
    #[derive(Debug)]
    pub(crate) struct Arc<T>(loom::sync::Arc<Counted<T>>);

    #[derive(Debug)]
    struct Counted<T> {
        count: AtomicUsize,
        value: T,
    }

    impl<T> Arc<T> {
        pub(crate) fn new(value: T) -> Self {
            let count = AtomicUsize::new(1);
            Self(loom::sync::Arc::new(Counted { count, value }))
        }

        pub(crate) fn strong_count(this: &Self) -> usize {
            this.0.count.load(Ordering::Relaxed)
        }

        pub(crate) fn ptr_eq(this: &Self, other: &Self) -> bool {
            loom::sync::Arc::ptr_eq(&this.0, &other.0)
        }
    }

    impl<T> Clone for Arc<T> {
        fn clone(&self) -> Self {
            self.0.count.fetch_add(1, Ordering::Relaxed);
            Self(self.0.clone())
        }
    }

    impl<T> Drop for Arc<T> {
        fn drop(&mut self) {
            if self.0.count.fetch_sub(1, Ordering::Release) == 1 {
                fence(Ordering::Acquire);
            }
        }
    }

    impl<T> std::ops::Deref for Arc<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0.value
        }
    }
}
