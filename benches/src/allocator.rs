//! An allocator that counts per thread, so tests that run in parallel do not affect each other.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    // Constant and without a destructor, so an access never allocates.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, with counters.
#[derive(Debug)]
pub struct Counting;

fn grown(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    ALLOCATED.set(ALLOCATED.get() + bytes as u64);
    LIVE.set(LIVE.get() + bytes as i64);
}

// SAFETY: every method passes its arguments to the system's allocator unchanged. Counting only
// changes thread-local integers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as i64);
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.set(LIVE.get() - layout.size() as i64);
        grown(size);
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a piece of work has allocated on its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// How often it asked for memory.
    pub times: u64,
    /// How many bytes it asked for.
    pub bytes: u64,
    /// How many more bytes are allocated after it than before.
    pub kept: i64,
}

/// Counts what `work` allocates on this thread. All counts are zero if [`Counting`] is not the
/// global allocator.
pub fn allocated<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    let (times, bytes, live) = (ALLOCATIONS.get(), ALLOCATED.get(), LIVE.get());
    let result = work();
    let counted = Allocated {
        times: ALLOCATIONS.get() - times,
        bytes: ALLOCATED.get() - bytes,
        kept: LIVE.get() - live,
    };
    (result, counted)
}
