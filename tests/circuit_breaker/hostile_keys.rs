//! Keys whose own code is hostile to the store.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use tower_breaker::{CircuitBreakerLayer, KeyedCircuitBreakerHandle, Permit};

// ===== what held =====

type Back = Arc<OnceLock<KeyedCircuitBreakerHandle<Reentrant>>>;

/// A key that calls the layer from each of its functions but `Eq`. It passes a key that does not
/// call back.
struct Reentrant(u32, Back);

impl Reentrant {
    fn come_back(&self) {
        if let Some(handle) = self.1.get() {
            let other = Reentrant(self.0 + 1000, Back::default());
            let _ = handle.try_acquire(&other).map(Permit::failure);
            handle.force_open(&other);
            handle.reset(&other);
            handle.forget(&other);
            assert!(!format!("{handle:?}").is_empty());
        }
    }
}

impl Hash for Reentrant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.come_back();
        self.0.hash(state);
    }
}

impl PartialEq for Reentrant {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Reentrant {}

impl Clone for Reentrant {
    fn clone(&self) -> Self {
        self.come_back();
        Self(self.0, Arc::clone(&self.1))
    }
}

impl fmt::Display for Reentrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.come_back();
        write!(f, "{}", self.0)
    }
}

impl Drop for Reentrant {
    fn drop(&mut self) {
        self.come_back();
    }
}

thread_local!(static ARMED: Cell<bool> = const { Cell::new(false) });

/// A key that panics when it is dropped.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!ARMED.get() || std::thread::panicking(), "a key's");
    }
}

#[test]
fn a_key_may_come_back_to_its_layer_whenever_it_is_hashed_cloned_shown_or_dropped() {
    for capacity in [1, 2, 7] {
        let back = Back::default();
        let layer = CircuitBreakerLayer::new()
            .failure_threshold(1)
            .per_key(|key: &Reentrant| key, capacity);
        let handle = layer.handle();
        assert!(back.set(handle.clone()).is_ok());
        for round in 0..200 {
            let key = Reentrant(round % 10, Arc::clone(&back));
            if let Ok(permit) = handle.try_acquire(&key) {
                permit.success();
            }
            if round % 17 == 0 {
                handle.forget(&key);
            }
        }
        assert!(handle.keys().len() <= capacity);
    }
}

#[test]
fn a_key_that_panics_when_it_is_dropped_wedges_nothing() {
    let handle = CircuitBreakerLayer::new()
        .per_owned_key(|key: &Bomb| key.clone(), 4)
        .handle();
    let mut panics = 0;
    ARMED.set(true);
    for round in 0..2000 {
        let key = ManuallyDrop::new(Bomb(round));
        let call = || handle.try_acquire(&*key).map(Permit::success);
        panics += u32::from(catch_unwind(AssertUnwindSafe(call)).is_err());
    }
    ARMED.set(false);
    assert!(panics > 0, "evicted keys are dropped now and then");
    for round in 2000..3000 {
        handle.try_acquire(&Bomb(round)).unwrap().success();
    }
    let mut keys: Vec<_> = handle.keys().iter().map(|key| key.0).collect();
    keys.sort_unstable();
    assert_eq!(keys, [2996, 2997, 2998, 2999]);
    let shown = format!("{handle:?}");
    assert!(shown.contains("len: 4"), "{shown}");
}
