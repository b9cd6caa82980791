//! An allocator that counts, for each thread, how often it allocates and how many bytes it holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counts. A test binary makes it its `#[global_allocator]`.
pub struct Counting;

thread_local! {
    // Constant and without a destructor, so that counting takes no memory.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn allocated(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    HELD.set(HELD.get() + isize::try_from(bytes).expect("a size"));
}

fn freed(bytes: usize) {
    HELD.set(HELD.get() - isize::try_from(bytes).expect("a size"));
}

// SAFETY: every method hands its arguments to the system's allocator unchanged. Counting touches
// plain integers of this thread alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        freed(layout.size());
        allocated(size);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// How often `work` allocates.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// How many bytes this thread holds.
pub fn held() -> isize {
    HELD.get()
}
