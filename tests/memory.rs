//! A million keys pass through a small store, and the memory stays flat. A test of its own, for the allocator is the whole process's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tower_breaker::CircuitBreakerLayer;

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_million_keys_leave_the_memory_flat_and_the_live_in_place() {
    let layer = CircuitBreakerLayer::new()
        .failure_threshold(1)
        .per_key(|key: &String| key.as_str(), 1000);
    let handle = layer.handle();
    let live: Vec<_> = (0..10).map(|n| format!("live {n}")).collect();
    for key in &live {
        handle.try_acquire(key.as_str()).unwrap().failure();
    }
    let calls = |keys: std::ops::Range<u32>| {
        for key in keys {
            let permit = handle.try_acquire(format!("key {key}").as_str());
            permit.unwrap().success();
        }
    };
    calls(0..100_000);
    let before = BYTES.load(Ordering::Relaxed);
    let start = std::time::Instant::now();
    calls(100_000..1_000_000);
    let grown = BYTES.load(Ordering::Relaxed).saturating_sub(before);
    println!("{grown} bytes more, of {before}; {:?}", start.elapsed());
    assert!(grown < 500_000, "{grown} bytes more, of {before}");
    for key in &live {
        assert!(!handle.would_allow(key.as_str()), "{key} is still open");
    }
    assert_eq!(handle.keys().len(), 1000);
}
