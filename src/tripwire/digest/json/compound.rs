//! Arrays and objects on the way: what `serde` hands over part by part.

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant,
};
use serde_json::Value;

use super::hash::{ArrayHasher, ObjectHasher, Tag, fixed, number};
use super::key::KeySerializer;
use super::serializer::{NUMBER, Unserialisable};
use super::walk::{Path, Token, Walk};
use crate::tripwire::digest::Digest;

/// The items of an array.
pub(super) struct SerializeItems<'a> {
    /// Where the array is. With a variant, its depth is one more than its path says.
    pub(super) walk: Walk<'a>,
    /// `None` below the depth limit.
    pub(super) hasher: Option<ArrayHasher>,
    /// The index of the next item.
    pub(super) index: usize,
    /// The name of the variant that wraps the array in an object.
    pub(super) variant: Option<&'static str>,
}

impl SerializeItems<'_> {
    pub(super) fn push<T: Serialize + ?Sized>(&mut self, value: &T) {
        let Some(hasher) = &mut self.hasher else {
            return;
        };
        let index = Token::Index(self.index);
        self.index += 1;
        if let Some(item) = part(self.walk, self.variant, index, value) {
            hasher.push(item);
        }
    }

    pub(super) fn digest(self) -> Digest {
        let digest = self.hasher.map_or(fixed(Tag::TooDeep), ArrayHasher::digest);
        wrap(self.walk, self.variant, digest)
    }
}

/// The entries of an object.
pub(super) struct SerializeEntries<'a> {
    /// Where the object is. With a variant, its depth is one more than its path says.
    pub(super) walk: Walk<'a>,
    /// `None` below the depth limit.
    pub(super) hasher: Option<ObjectHasher>,
    /// The name of the variant that wraps the object in another.
    pub(super) variant: Option<&'static str>,
    /// The key whose value comes next.
    pub(super) key: Option<String>,
}

impl SerializeEntries<'_> {
    pub(super) fn push<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        let Some(hasher) = &mut self.hasher else {
            return;
        };
        if let Some(value) = part(self.walk, self.variant, Token::Key(key), value) {
            hasher.push(key, value);
        }
    }

    pub(super) fn digest(self) -> Digest {
        let digest = self
            .hasher
            .map_or(fixed(Tag::TooDeep), ObjectHasher::digest);
        wrap(self.walk, self.variant, digest)
    }
}

/// The digest of a part, or `None` if the rules leave it out.
///
/// With a variant, the array or the object of the part is in an object under the variant's name.
fn part<T: Serialize + ?Sized>(
    walk: Walk<'_>,
    variant: Option<&str>,
    token: Token<'_>,
    value: &T,
) -> Option<Digest> {
    let Some(variant) = variant else {
        return walk.child(token, value);
    };
    let path = Path {
        parent: walk.path,
        token: Token::Key(variant),
    };
    let walk = Walk {
        path: Some(&path),
        ..walk
    };
    walk.child(token, value)
}

/// The digest of the object that a variant becomes. Without a variant it is `value` itself.
fn wrap(walk: Walk<'_>, variant: Option<&str>, value: Digest) -> Digest {
    let Some(variant) = variant else {
        return value;
    };
    if walk.depth > walk.rules.depth {
        return fixed(Tag::TooDeep);
    }
    let path = Path {
        parent: walk.path,
        token: Token::Key(variant),
    };
    let mut object = ObjectHasher::default();
    if !walk.rules.leaves_out(&path) {
        object.push(variant, value);
    }
    object.digest()
}

/// The fields of a struct.
pub(super) enum SerializeFields<'a> {
    Object(SerializeEntries<'a>),
    /// One of `serde_json`'s own structs, which carries a text.
    Text(Walk<'a>, Option<Digest>),
}

macro_rules! items {
    ($($of:ident::$push:ident),*) => {
        $(
            impl $of for SerializeItems<'_> {
                type Ok = Digest;
                type Error = Unserialisable;

                fn $push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unserialisable> {
                    self.push(value);
                    Ok(())
                }

                fn end(self) -> Result<Digest, Unserialisable> {
                    Ok(self.digest())
                }
            }
        )*
    };
}

items! {
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
}

impl SerializeMap for SerializeEntries<'_> {
    type Ok = Digest;
    type Error = Unserialisable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unserialisable> {
        self.key = Some(key.serialize(KeySerializer(str::to_owned))?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unserialisable> {
        let key = self.key.take().ok_or(Unserialisable)?;
        self.push(&key, value);
        Ok(())
    }

    fn serialize_entry<K, V>(&mut self, key: &K, value: &V) -> Result<(), Unserialisable>
    where
        K: Serialize + ?Sized,
        V: Serialize + ?Sized,
    {
        key.serialize(KeySerializer(|key: &str| self.push(key, value)))
    }

    fn end(self) -> Result<Digest, Unserialisable> {
        Ok(self.digest())
    }
}

impl SerializeStruct for SerializeFields<'_> {
    type Ok = Digest;
    type Error = Unserialisable;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Unserialisable> {
        match self {
            SerializeFields::Object(entries) => entries.push(key, value),
            SerializeFields::Text(walk, digest) => {
                let text = value.serialize(KeySerializer(str::to_owned))?;
                *digest = Some(if key == NUMBER {
                    number(&text)
                } else {
                    let value: Value =
                        serde_json::from_str(&text).map_err(Unserialisable::custom)?;
                    value.serialize(*walk)?
                });
            }
        }
        Ok(())
    }

    fn end(self) -> Result<Digest, Unserialisable> {
        match self {
            SerializeFields::Object(entries) => Ok(entries.digest()),
            SerializeFields::Text(_, digest) => digest.ok_or(Unserialisable),
        }
    }
}

impl SerializeStructVariant for SerializeEntries<'_> {
    type Ok = Digest;
    type Error = Unserialisable;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Unserialisable> {
        self.push(key, value);
        Ok(())
    }

    fn end(self) -> Result<Digest, Unserialisable> {
        Ok(self.digest())
    }
}
