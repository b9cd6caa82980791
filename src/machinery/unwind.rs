//! Verdicts when code that is not ours unwinds.

use std::mem;

/// Runs code that is not ours. Should it unwind, `verdict` is given to the permit now, whoever catches the panic and whenever the future is dropped.
#[inline]
pub(crate) fn on_unwind<P, T>(
    permit: &mut P,
    verdict: impl Fn(&mut P),
    f: impl FnOnce() -> T,
) -> T {
    struct Unwound<'a, P, V: Fn(&mut P)>(&'a mut P, V);

    impl<P, V: Fn(&mut P)> Drop for Unwound<'_, P, V> {
        #[cold]
        fn drop(&mut self) {
            self.1(self.0);
        }
    }

    let unwound = Unwound(permit, verdict);
    let value = f();
    mem::forget(unwound);
    value
}
