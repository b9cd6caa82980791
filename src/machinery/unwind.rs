//! Verdicts when foreign code unwinds.

use std::mem;

/// Runs foreign code. If it unwinds, `verdict` is called with `permit` at once.
///
/// The verdict then does not depend on who catches the panic, or on when the future is dropped.
#[inline]
pub(crate) fn on_unwind<P, T>(
    permit: &mut P,
    verdict: impl Fn(&mut P),
    f: impl FnOnce() -> T,
) -> T {
    struct Guard<'a, P, V: Fn(&mut P)>(&'a mut P, V);

    impl<P, V: Fn(&mut P)> Drop for Guard<'_, P, V> {
        #[cold]
        fn drop(&mut self) {
            self.1(self.0);
        }
    }

    let guard = Guard(permit, verdict);
    let value = f();
    mem::forget(guard);
    value
}
