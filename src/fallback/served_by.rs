//! How a response learns who served it.

use std::fmt;

/// Learns who served a response.
pub trait Served<Res> {
    fn served(&self, response: &mut Res, name: &str);
}

impl<Res> Served<Res> for () {
    fn served(&self, _: &mut Res, _: &str) {}
}

/// Writes into a response who served it.
#[derive(Clone)]
pub struct ServedBy<F> {
    f: F,
}

impl<F> ServedBy<F> {
    pub(super) fn new(f: F) -> Self {
        Self { f }
    }
}

impl<F, Res> Served<Res> for ServedBy<F>
where
    F: Fn(&mut Res, &str),
{
    fn served(&self, response: &mut Res, name: &str) {
        (self.f)(response, name);
    }
}

impl<F> fmt::Debug for ServedBy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServedBy")
    }
}
