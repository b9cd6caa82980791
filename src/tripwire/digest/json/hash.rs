//! The hashes of JSON values: of scalars, arrays and objects.

use std::hash::{Hash, Hasher};

use crate::tripwire::digest::Digest;
use crate::tripwire::digest::hasher::KeyedHasher;

/// The first byte of every hash. It keeps values of different kinds apart.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Tag {
    Null,
    Bool,
    Integer,
    /// A whole number above `i128::MAX`.
    Large,
    Float,
    /// A number that no machine type holds exactly, as its text.
    Digits,
    Text,
    Array,
    Object,
    Entry,
    TooDeep,
    Unserialisable,
}

pub(super) fn hashed<T: Hash + ?Sized>(tag: Tag, value: &T) -> Digest {
    let mut hasher = KeyedHasher::new();
    hasher.write_u8(tag as u8);
    value.hash(&mut hasher);
    hasher.digest()
}

/// The one hash of a kind that has one value, or whose value is not looked at.
pub(super) fn fixed(tag: Tag) -> Digest {
    hashed(tag, &())
}

pub(super) fn integer(value: i128) -> Digest {
    hashed(Tag::Integer, &value)
}

/// A number that may be above `i128::MAX`.
pub(super) fn large(value: u128) -> Digest {
    match i128::try_from(value) {
        Ok(value) => integer(value),
        Err(_) => hashed(Tag::Large, &value),
    }
}

/// A floating-point number. A whole one has the hash of the equal integer, so `1.0` is `1`.
// The casts are exact: the number is whole, and within the range of its type.
#[allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
pub(super) fn float(value: f64) -> Digest {
    const TWO_TO_127: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if !value.is_finite() {
        fixed(Tag::Null)
    } else if value.trunc() != value || value.abs() >= 2.0 * TWO_TO_127 {
        hashed(Tag::Float, &value.to_bits())
    } else if value >= TWO_TO_127 {
        large(value as u128)
    } else if value >= -TWO_TO_127 {
        integer(value as i128)
    } else {
        hashed(Tag::Float, &value.to_bits())
    }
}

/// A number whose text `serde_json` has kept.
pub(super) fn number(text: &str) -> Digest {
    if let Ok(value) = text.parse() {
        return integer(value);
    }
    if let Ok(value) = text.parse() {
        return large(value);
    }
    let is_whole = text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && !is_whole => float(value),
        _ => hashed(Tag::Digits, text),
    }
}

pub(super) fn text(text: &str) -> Digest {
    hashed(Tag::Text, text)
}

/// Hashes an array item by item. The order matters.
pub(super) struct ArrayHasher {
    hasher: KeyedHasher,
    count: usize,
}

impl ArrayHasher {
    pub(super) fn new() -> Self {
        let mut hasher = KeyedHasher::new();
        hasher.write_u8(Tag::Array as u8);
        Self { hasher, count: 0 }
    }

    pub(super) fn push(&mut self, item: Digest) {
        item.hash(&mut self.hasher);
        self.count += 1;
    }

    pub(super) fn digest(mut self) -> Digest {
        self.hasher.write_usize(self.count);
        self.hasher.digest()
    }
}

/// Hashes an object entry by entry. The sum of the entries' hashes is equal for every order.
#[derive(Default)]
pub(super) struct ObjectHasher {
    sum: u128,
    count: usize,
}

impl ObjectHasher {
    pub(super) fn push(&mut self, key: &str, value: Digest) {
        let entry = hashed(Tag::Entry, &(key, value));
        self.sum = self.sum.wrapping_add(entry.as_number());
        self.count += 1;
    }

    pub(super) fn digest(self) -> Digest {
        hashed(Tag::Object, &(self.sum, self.count))
    }
}
