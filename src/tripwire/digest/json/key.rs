//! The serializer of an object's key.

use serde::ser::{Impossible, Serialize, Serializer};

use super::serializer::Unserialisable;

/// Turns a key into text, as `serde_json` does, and hands it to a closure.
pub(super) struct KeySerializer<F>(pub(super) F);

macro_rules! keys_by_display {
    ($($serialize:ident: $type:ty),*) => {
        $(
            fn $serialize(self, v: $type) -> Result<R, Unserialisable> {
                Ok((self.0)(&v.to_string()))
            }
        )*
    };
}

type Never<R> = Impossible<R, Unserialisable>;

impl<R, F: FnOnce(&str) -> R> Serializer for KeySerializer<F> {
    type Ok = R;
    type Error = Unserialisable;
    type SerializeSeq = Never<R>;
    type SerializeTuple = Never<R>;
    type SerializeTupleStruct = Never<R>;
    type SerializeTupleVariant = Never<R>;
    type SerializeMap = Never<R>;
    type SerializeStruct = Never<R>;
    type SerializeStructVariant = Never<R>;

    keys_by_display! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_i128: i128,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_u128: u128,
        serialize_char: char
    }

    fn serialize_f32(self, v: f32) -> Result<R, Unserialisable> {
        if v.is_finite() {
            // `serde_json` writes such a key with a decimal point.
            Ok((self.0)(&format!("{v:?}")))
        } else {
            Err(Unserialisable)
        }
    }

    fn serialize_f64(self, v: f64) -> Result<R, Unserialisable> {
        if v.is_finite() {
            Ok((self.0)(&format!("{v:?}")))
        } else {
            Err(Unserialisable)
        }
    }

    fn serialize_str(self, v: &str) -> Result<R, Unserialisable> {
        Ok((self.0)(v))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<R, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_none(self) -> Result<R, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<R, Unserialisable> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<R, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<R, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<R, Unserialisable> {
        Ok((self.0)(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<R, Unserialisable> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<R, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Never<R>, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_tuple(self, _: usize) -> Result<Never<R>, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Never<R>, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never<R>, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Never<R>, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Never<R>, Unserialisable> {
        Err(Unserialisable)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never<R>, Unserialisable> {
        Err(Unserialisable)
    }
}
