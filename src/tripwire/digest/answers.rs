//! Whether answers are compared, and by which digest.

use std::fmt;

use super::{Digest, Digester};

/// Makes a digest of what a success answered, if answers are compared.
pub(in crate::tripwire) trait Answers<Res> {
    fn digest_of(&self, answer: &Res) -> Option<Digest>;
}

/// Answers are not compared.
impl<Res> Answers<Res> for () {
    fn digest_of(&self, _: &Res) -> Option<Digest> {
        None
    }
}

/// Compares answers by `D`. Made by [`same_result`](crate::TripwireLayer::same_result).
#[derive(Clone, Copy)]
pub struct SameResult<D> {
    pub(in crate::tripwire) digest: D,
}

impl<D> fmt::Debug for SameResult<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SameResult")
    }
}

impl<D: Digester<Res>, Res> Answers<Res> for SameResult<D> {
    fn digest_of(&self, answer: &Res) -> Option<Digest> {
        self.digest.digest(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_by_the_given_digester_or_not_at_all() {
        let compared = SameResult {
            digest: |answer: &&str| Digest::of(&answer.len()),
        };
        assert_eq!(compared.digest_of(&"abc"), Some(Digest::of(&3_usize)));
        assert_eq!(().digest_of(&"abc"), None);
        assert_eq!(format!("{compared:?}"), "SameResult");
    }
}
