//! The serializer of a value at its place.

use std::fmt;

use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::compound::{SerializeEntries, SerializeFields, SerializeItems};
use super::hash::{Tag, fixed, float, hashed, integer, large, text};
use super::walk::Walk;
use crate::tripwire::digest::Digest;

/// A part cannot be serialised. The reason does not matter.
#[derive(Debug)]
pub(super) struct Unserialisable;

impl fmt::Display for Unserialisable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not serialisable as JSON")
    }
}

impl std::error::Error for Unserialisable {}

impl serde::ser::Error for Unserialisable {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// The struct that `serde_json` makes of a number, if its feature `arbitrary_precision` is on.
pub(super) const NUMBER: &str = "$serde_json::private::Number";
/// The struct that `serde_json` makes of a `RawValue`.
const RAW: &str = "$serde_json::private::RawValue";

impl<'a> Serializer for Walk<'a> {
    type Ok = Digest;
    type Error = Unserialisable;
    type SerializeSeq = SerializeItems<'a>;
    type SerializeTuple = SerializeItems<'a>;
    type SerializeTupleStruct = SerializeItems<'a>;
    type SerializeTupleVariant = SerializeItems<'a>;
    type SerializeMap = SerializeEntries<'a>;
    type SerializeStruct = SerializeFields<'a>;
    type SerializeStructVariant = SerializeEntries<'a>;

    fn serialize_bool(self, v: bool) -> Result<Digest, Unserialisable> {
        Ok(hashed(Tag::Bool, &v))
    }

    fn serialize_i8(self, v: i8) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_i16(self, v: i16) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_i32(self, v: i32) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_i64(self, v: i64) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_i128(self, v: i128) -> Result<Digest, Unserialisable> {
        Ok(integer(v))
    }

    fn serialize_u8(self, v: u8) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_u16(self, v: u16) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_u32(self, v: u32) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_u64(self, v: u64) -> Result<Digest, Unserialisable> {
        Ok(integer(v.into()))
    }

    fn serialize_u128(self, v: u128) -> Result<Digest, Unserialisable> {
        Ok(large(v))
    }

    fn serialize_f32(self, v: f32) -> Result<Digest, Unserialisable> {
        Ok(float(v.into()))
    }

    fn serialize_f64(self, v: f64) -> Result<Digest, Unserialisable> {
        Ok(float(v))
    }

    fn serialize_char(self, v: char) -> Result<Digest, Unserialisable> {
        Ok(text(v.encode_utf8(&mut [0; 4])))
    }

    fn serialize_str(self, v: &str) -> Result<Digest, Unserialisable> {
        Ok(text(v))
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<Digest, Unserialisable> {
        let mut items = self.serialize_seq(Some(v.len()))?;
        for byte in v {
            SerializeSeq::serialize_element(&mut items, byte)?;
        }
        SerializeSeq::end(items)
    }

    fn serialize_none(self) -> Result<Digest, Unserialisable> {
        Ok(fixed(Tag::Null))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Digest, Unserialisable> {
        self.wrapped(value)
    }

    fn serialize_unit(self) -> Result<Digest, Unserialisable> {
        Ok(fixed(Tag::Null))
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Digest, Unserialisable> {
        Ok(fixed(Tag::Null))
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Digest, Unserialisable> {
        Ok(text(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Digest, Unserialisable> {
        self.wrapped(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Digest, Unserialisable> {
        let mut entries = self.entries();
        entries.push(variant, value);
        Ok(entries.digest())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<SerializeItems<'a>, Unserialisable> {
        Ok(self.items())
    }

    fn serialize_tuple(self, _: usize) -> Result<SerializeItems<'a>, Unserialisable> {
        Ok(self.items())
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<SerializeItems<'a>, Unserialisable> {
        Ok(self.items())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<SerializeItems<'a>, Unserialisable> {
        Ok(SerializeItems {
            variant: Some(variant),
            ..self.deeper().items()
        })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<SerializeEntries<'a>, Unserialisable> {
        Ok(self.entries())
    }

    fn serialize_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<SerializeFields<'a>, Unserialisable> {
        Ok(if name == NUMBER || name == RAW {
            SerializeFields::Text(self, None)
        } else {
            SerializeFields::Object(self.entries())
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<SerializeEntries<'a>, Unserialisable> {
        Ok(SerializeEntries {
            variant: Some(variant),
            ..self.deeper().entries()
        })
    }
}
