//! The walk through a value: where it is, and which fields it leaves out.

use serde::ser::Serialize;

use super::JsonDigest;
use super::compound::{SerializeEntries, SerializeItems};
use super::hash::{ArrayHasher, ObjectHasher, Tag, fixed};
use super::serializer::Unserialisable;
use crate::tripwire::digest::Digest;

/// The fields that a [`JsonDigest`] leaves out, and its depth limit.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) keys: Vec<String>,
    /// JSON pointers, each as its reference tokens.
    pub(super) pointers: Vec<Vec<String>>,
    pub(super) depth: u32,
}

impl Rules {
    pub(super) fn leaves_out(&self, path: &Path<'_>) -> bool {
        matches!(path.token, Token::Key(key) if self.keys.iter().any(|left_out| left_out == key))
            || self.pointers.iter().any(|pointer| path.is_at(pointer))
    }
}

/// The path to a part of the value, from its last token to its first.
pub(super) struct Path<'a> {
    pub(super) parent: Option<&'a Path<'a>>,
    pub(super) token: Token<'a>,
}

impl Path<'_> {
    /// Whether the pointer points here.
    fn is_at(&self, pointer: &[String]) -> bool {
        let mut tokens = pointer.iter().rev();
        let mut at = Some(self);
        while let Some(path) = at {
            if !tokens.next().is_some_and(|token| path.token.is(token)) {
                return false;
            }
            at = path.parent;
        }
        tokens.next().is_none()
    }
}

/// One step of a path: a key of an object, or an index of an array.
#[derive(Clone, Copy)]
pub(super) enum Token<'a> {
    Key(&'a str),
    Index(usize),
}

impl Token<'_> {
    fn is(self, token: &str) -> bool {
        match self {
            Token::Key(key) => key == token,
            Token::Index(index) => token.parse() == Ok(index),
        }
    }
}

/// Where a walk is. It is the serializer of the value at that place.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a> {
    pub(super) rules: &'a Rules,
    /// `None` at the root.
    pub(super) path: Option<&'a Path<'a>>,
    /// How many arrays and objects the place is in.
    pub(super) depth: u32,
    /// How many wrappers the walk went through that leave no trace in JSON.
    pub(super) wraps: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(rules: &'a Rules) -> Self {
        Self {
            rules,
            path: None,
            depth: 0,
            wraps: 0,
        }
    }

    /// The digest of the value here. If it cannot be serialised, the rest of the value still can.
    pub(super) fn digest_of<T: Serialize + ?Sized>(self, value: &T) -> Digest {
        value
            .serialize(self)
            .unwrap_or_else(|Unserialisable| fixed(Tag::Unserialisable))
    }

    fn is_deepest(self) -> bool {
        self.depth >= self.rules.depth
    }

    /// The same place, one level deeper: inside the object that a variant becomes.
    pub(super) fn deeper(mut self) -> Self {
        self.depth += 1;
        self
    }

    /// The digest of the value at `token`, or `None` if the rules leave it out.
    pub(super) fn child<T: Serialize + ?Sized>(
        self,
        token: Token<'_>,
        value: &T,
    ) -> Option<Digest> {
        let Walk { rules, .. } = self;
        let path = Path {
            parent: self.path,
            token,
        };
        if rules.leaves_out(&path) {
            return None;
        }
        let walk = Walk {
            path: Some(&path),
            ..self.deeper()
        };
        Some(walk.digest_of(value))
    }

    /// The digest of the value inside a `Some` or a newtype.
    pub(super) fn wrapped<T: Serialize + ?Sized>(
        mut self,
        value: &T,
    ) -> Result<Digest, Unserialisable> {
        self.wraps += 1;
        if self.wraps > JsonDigest::WRAPS {
            return Ok(fixed(Tag::TooDeep));
        }
        value.serialize(self)
    }

    pub(super) fn items(self) -> SerializeItems<'a> {
        SerializeItems {
            hasher: (!self.is_deepest()).then(ArrayHasher::new),
            index: 0,
            walk: self,
            variant: None,
        }
    }

    pub(super) fn entries(self) -> SerializeEntries<'a> {
        SerializeEntries {
            hasher: (!self.is_deepest()).then(ObjectHasher::default),
            walk: self,
            variant: None,
            key: None,
        }
    }
}
