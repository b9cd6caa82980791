//! The observers of one layer, which get its events.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::vocabulary::{Event, Observe};

/// The observers of one layer.
#[derive(Clone, Default)]
pub(crate) struct Observers(Vec<Arc<dyn Observe + Send + Sync>>);

impl Observers {
    pub(crate) fn add(&mut self, observer: Arc<dyn Observe + Send + Sync>) {
        self.0.push(observer);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Delivers `event` to every observer.
    ///
    /// It never panics. A panic here would leave a destructor, or would leave events undelivered.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        for observer in &self.0 {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| observer.observe(event))) {
                // The destructor of the payload may panic as well.
                if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                    std::mem::forget(again);
                }
            }
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_panicking_observer_harms_no_other_even_when_its_payload_panics_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::panic_any("bomb");
            }
        }
        let seen = Arc::new(Mutex::new(0));
        let mut observers = Observers::default();
        assert!(observers.is_empty());
        observers.add(Arc::new(|_: &Event<'_>| std::panic::panic_any(Bomb)));
        let counter = Arc::clone(&seen);
        observers.add(Arc::new(move |_: &Event<'_>| *counter.lock().unwrap() += 1));
        assert!(!observers.is_empty());
        observers.tell(&Event::Unguarded { name: None });
        assert_eq!(*seen.lock().unwrap(), 1);
        assert_eq!(format!("{observers:?}"), "2 observers");
    }
}
