//! Canonical digests of JSON, and of anything that serialises as JSON.
//!
//! A value is walked by its own `Serialize`, so nothing is built on the way. An array is hashed in its order. Of an object every entry is hashed for
//! itself and the results are summed up: equal for every order of the keys, with nothing to sort.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::ser::{
    Error as _, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct,
    SerializeStructVariant, SerializeTuple, SerializeTupleStruct, SerializeTupleVariant,
    Serializer,
};
use serde_json::Value;

use super::{Digest, Digester, KeyedHasher};

/// Makes digests of JSON values, and of anything that is `Serialize`: equal for requests that are equal as JSON, in whatever order their keys
/// come.
///
/// | | |
/// | --- | --- |
/// | the order of keys, at every depth | does not matter |
/// | the order of an array | matters |
/// | integers | are exact: two 64-bit ids are never taken for each other |
/// | `1` and `1.0` | are equal |
/// | a key with `null`, and no such key | are not equal |
/// | fields that are left out by key or by pointer | do not matter, not even whether they are there |
/// | what is nested deeper than the depth limit | counts as one fixed value |
/// | a part that cannot be serialised | counts as one fixed value |
/// | `NaN` and infinity | are `null`, as everywhere in `serde_json` |
///
/// It answers for every request, so that no one nests a call out of the fence.
///
/// # Examples
///
/// ```
/// use serde_json::json;
/// use tower_breaker::JsonDigest;
///
/// let digest = JsonDigest::new().without("call_id").without_pointer("/meta/sent_at");
/// assert_eq!(
///     digest.of(&json!({"tool": "search", "call_id": 1, "meta": {"sent_at": 5}})),
///     digest.of(&json!({"meta": {}, "call_id": 2, "tool": "search"})),
/// );
/// ```
///
/// As the digester of a layer, whose requests are `Serialize`; and for calls whose arguments are a text:
///
/// ```
/// use serde::Serialize;
/// use tower_breaker::{Digest, JsonDigest, TripwireLayer};
///
/// #[derive(Serialize)]
/// struct ToolCall { id: u64, name: String, arguments: serde_json::Value }
///
/// let layer = TripwireLayer::new().digest(JsonDigest::new().without("id"));
/// # let _ = layer.handle().would_allow(&ToolCall { id: 1, name: String::new(), arguments: 1.into() });
///
/// struct TextCall { name: String, arguments: String }
///
/// let json = JsonDigest::new();
/// let layer = TripwireLayer::new()
///     .digest(move |call: &TextCall| Digest::of(&(&call.name, json.of_text(&call.arguments))));
/// # let _ = layer;
/// ```
#[derive(Clone, Debug)]
pub struct JsonDigest {
    rules: Arc<Rules>,
}

#[derive(Clone, Debug)]
struct Rules {
    keys: Vec<String>,
    /// Each as its tokens.
    pointers: Vec<Vec<String>>,
    depth: u32,
}

impl JsonDigest {
    /// The deepest limit: walking a value takes stack.
    const DEEPEST: u32 = 256;

    /// How many `Some` and newtypes a value may be wrapped in, all its levels together: they take stack, too.
    const WRAPS: u32 = 256;

    /// Leaves out nothing, and looks 128 levels deep.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rules: Arc::new(Rules {
                keys: Vec::new(),
                pointers: Vec::new(),
                depth: 128,
            }),
        }
    }

    /// Leaves out the fields of this name, at every depth: a call's id, a time, a trace.
    #[must_use]
    pub fn without(mut self, key: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.rules).keys.push(key.into());
        self
    }

    /// Leaves out what this JSON pointer (RFC 6901) points to, `/meta/sent_at` or `/messages/0/id` for instance.
    ///
    /// # Panics
    ///
    /// If `pointer` does not begin with `/`: it would be no pointer, or leave out everything.
    #[must_use]
    pub fn without_pointer(mut self, pointer: &str) -> Self {
        let Some(tokens) = pointer.strip_prefix('/') else {
            #[allow(clippy::panic)] // Documented, as in every setter.
            {
                panic!(
                    "`without_pointer` needs a JSON pointer that begins with `/`, not {pointer:?}"
                )
            }
        };
        let tokens = tokens
            .split('/')
            .map(|token| token.replace("~1", "/").replace("~0", "~"))
            .collect();
        Arc::make_mut(&mut self.rules).pointers.push(tokens);
        self
    }

    /// How deep to look. What is nested deeper counts as one fixed value.
    ///
    /// Default: 128.
    ///
    /// # Panics
    ///
    /// If `levels` is 0 or more than 256.
    #[must_use]
    pub fn depth_limit(mut self, levels: u32) -> Self {
        assert!(
            (1..=Self::DEEPEST).contains(&levels),
            "`depth_limit` must be at least 1 and at most {}, not {levels}",
            Self::DEEPEST
        );
        Arc::make_mut(&mut self.rules).depth = levels;
        self
    }

    /// The digest of `value`.
    #[must_use]
    pub fn of<T: Serialize + ?Sized>(&self, value: &T) -> Digest {
        let walk = Walk {
            rules: &self.rules,
            path: None,
            depth: 0,
            wraps: 0,
        };
        walk.part(value)
    }

    /// The digest of a JSON text, as models send their arguments. What is no JSON, or is nested deeper than `serde_json` reads, counts as one
    /// fixed value.
    #[must_use]
    pub fn of_text(&self, text: &str) -> Digest {
        match serde_json::from_str::<Value>(text) {
            Ok(value) => self.of(&value),
            Err(_) => fixed(Tag::Unserialisable),
        }
    }
}

impl Default for JsonDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl<Req: Serialize + ?Sized> Digester<Req> for JsonDigest {
    fn digest(&self, req: &Req) -> Option<Digest> {
        Some(self.of(req))
    }
}

/// What begins the hash of a value, so that values of different kinds never look alike.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Tag {
    Null,
    Bool,
    Integer,
    /// Above what 128 bits with a sign hold.
    Large,
    Float,
    /// A number that no machine type holds exactly.
    Digits,
    Text,
    Array,
    Object,
    Entry,
    TooDeep,
    Unserialisable,
}

fn hashed<T: Hash + ?Sized>(tag: Tag, value: &T) -> Digest {
    let mut hasher = KeyedHasher::new();
    hasher.write_u8(tag as u8);
    value.hash(&mut hasher);
    hasher.digest()
}

fn fixed(tag: Tag) -> Digest {
    hashed(tag, &())
}

fn integer(value: i128) -> Digest {
    hashed(Tag::Integer, &value)
}

fn large(value: u128) -> Digest {
    match i128::try_from(value) {
        Ok(value) => integer(value),
        Err(_) => hashed(Tag::Large, &value),
    }
}

// The casts are exact: the number is whole, and within the range of its type.
#[allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn float(value: f64) -> Digest {
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

/// A number as its text, where `serde_json` keeps numbers so.
fn number(text: &str) -> Digest {
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

fn text(text: &str) -> Digest {
    hashed(Tag::Text, text)
}

/// An array, or what is written as one, on the way.
struct Items {
    hasher: KeyedHasher,
    count: usize,
}

impl Items {
    fn new() -> Self {
        let mut hasher = KeyedHasher::new();
        hasher.write_u8(Tag::Array as u8);
        Self { hasher, count: 0 }
    }

    fn push(&mut self, item: Digest) {
        item.hash(&mut self.hasher);
        self.count += 1;
    }

    fn digest(mut self) -> Digest {
        self.hasher.write_usize(self.count);
        self.hasher.digest()
    }
}

/// An object, or what is written as one, on the way.
#[derive(Default)]
struct Entries {
    sum: u128,
    count: usize,
}

impl Entries {
    fn push(&mut self, key: &str, value: Digest) {
        let entry = hashed(Tag::Entry, &(key, value));
        self.sum = self.sum.wrapping_add(entry.as_number());
        self.count += 1;
    }

    fn digest(self) -> Digest {
        hashed(Tag::Object, &(self.sum, self.count))
    }
}

/// Where a walk is, and how it goes on.
#[derive(Clone, Copy)]
struct Walk<'a> {
    rules: &'a Rules,
    path: Option<&'a Step<'a>>,
    /// How many arrays and objects it is in.
    depth: u32,
    /// How many wrappers that leave no trace in JSON it went through.
    wraps: u32,
}

struct Step<'a> {
    before: Option<&'a Step<'a>>,
    token: Token<'a>,
}

#[derive(Clone, Copy)]
enum Token<'a> {
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

impl<'a> Walk<'a> {
    /// The digest of a part, whatever becomes of it: where it cannot be serialised, the rest still can.
    fn part<T: Serialize + ?Sized>(self, value: &T) -> Digest {
        value
            .serialize(self)
            .unwrap_or_else(|Unserialisable| fixed(Tag::Unserialisable))
    }

    fn is_deep(self) -> bool {
        self.depth >= self.rules.depth
    }

    /// Inside the object that a variant becomes.
    fn deeper(mut self) -> Self {
        self.depth += 1;
        self
    }

    /// What is at `token`, or `None` if it is left out.
    fn child<T: Serialize + ?Sized>(self, token: Token<'_>, value: &T) -> Option<Digest> {
        let Walk { rules, .. } = self;
        let step = Step {
            before: self.path,
            token,
        };
        if rules.leaves_out(&step) {
            return None;
        }
        let walk = Walk {
            path: Some(&step),
            ..self.deeper()
        };
        Some(walk.part(value))
    }

    fn wrapped<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Digest, Unserialisable> {
        self.wraps += 1;
        if self.wraps > JsonDigest::WRAPS {
            return Ok(fixed(Tag::TooDeep));
        }
        value.serialize(self)
    }

    fn items(self) -> ItemsOf<'a> {
        ItemsOf {
            items: (!self.is_deep()).then(Items::new),
            at: 0,
            walk: self,
            variant: None,
        }
    }

    fn entries(self) -> EntriesOf<'a> {
        EntriesOf {
            entries: (!self.is_deep()).then(Entries::default),
            walk: self,
            variant: None,
            key: None,
        }
    }
}

impl Rules {
    fn leaves_out(&self, step: &Step<'_>) -> bool {
        matches!(step.token, Token::Key(key) if self.keys.iter().any(|left| left == key))
            || self.pointers.iter().any(|pointer| is_at(step, pointer))
    }
}

/// Whether a path is what the pointer says.
fn is_at(step: &Step<'_>, pointer: &[String]) -> bool {
    let mut tokens = pointer.iter().rev();
    let mut at = Some(step);
    while let Some(step) = at {
        if !tokens.next().is_some_and(|token| step.token.is(token)) {
            return false;
        }
        at = step.before;
    }
    tokens.next().is_none()
}

/// A part that cannot be serialised. Why does not matter.
#[derive(Debug)]
struct Unserialisable;

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

/// How `serde_json` gives away numbers and texts that it keeps as they came, where some crate has turned that on.
const NUMBER: &str = "$serde_json::private::Number";
const RAW: &str = "$serde_json::private::RawValue";

impl<'a> Serializer for Walk<'a> {
    type Ok = Digest;
    type Error = Unserialisable;
    type SerializeSeq = ItemsOf<'a>;
    type SerializeTuple = ItemsOf<'a>;
    type SerializeTupleStruct = ItemsOf<'a>;
    type SerializeTupleVariant = ItemsOf<'a>;
    type SerializeMap = EntriesOf<'a>;
    type SerializeStruct = FieldsOf<'a>;
    type SerializeStructVariant = EntriesOf<'a>;

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

    fn serialize_seq(self, _: Option<usize>) -> Result<ItemsOf<'a>, Unserialisable> {
        Ok(self.items())
    }

    fn serialize_tuple(self, _: usize) -> Result<ItemsOf<'a>, Unserialisable> {
        Ok(self.items())
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<ItemsOf<'a>, Unserialisable> {
        Ok(self.items())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<ItemsOf<'a>, Unserialisable> {
        Ok(ItemsOf {
            variant: Some(variant),
            ..self.deeper().items()
        })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<EntriesOf<'a>, Unserialisable> {
        Ok(self.entries())
    }

    fn serialize_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<FieldsOf<'a>, Unserialisable> {
        Ok(if name == NUMBER || name == RAW {
            FieldsOf::Text(self, None)
        } else {
            FieldsOf::Entries(self.entries())
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<EntriesOf<'a>, Unserialisable> {
        Ok(EntriesOf {
            variant: Some(variant),
            ..self.deeper().entries()
        })
    }
}

/// The items of an array; `None` where it is too deep to look.
struct ItemsOf<'a> {
    /// Where it is; with a variant, one level further in than its path.
    walk: Walk<'a>,
    items: Option<Items>,
    at: usize,
    /// The name of the variant that wraps the array in an object.
    variant: Option<&'static str>,
}

impl ItemsOf<'_> {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) {
        let Some(items) = &mut self.items else {
            return;
        };
        let index = Token::Index(self.at);
        self.at += 1;
        if let Some(item) = inside(self.walk, self.variant, index, value) {
            items.push(item);
        }
    }

    fn digest(self) -> Digest {
        let digest = self.items.map_or(fixed(Tag::TooDeep), Items::digest);
        named(self.walk, self.variant, digest)
    }
}

/// The entries of an object; `None` where it is too deep to look.
struct EntriesOf<'a> {
    /// Where it is; with a variant, one level further in than its path.
    walk: Walk<'a>,
    entries: Option<Entries>,
    /// The name of the variant that wraps the object in another.
    variant: Option<&'static str>,
    /// A key whose value is still to come.
    key: Option<String>,
}

impl EntriesOf<'_> {
    fn push<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        let Some(entries) = &mut self.entries else {
            return;
        };
        if let Some(value) = inside(self.walk, self.variant, Token::Key(key), value) {
            entries.push(key, value);
        }
    }

    fn digest(self) -> Digest {
        let digest = self.entries.map_or(fixed(Tag::TooDeep), Entries::digest);
        named(self.walk, self.variant, digest)
    }
}

/// A part of an array or an object, which may be wrapped in an object of its variant's name.
fn inside<T: Serialize + ?Sized>(
    walk: Walk<'_>,
    variant: Option<&str>,
    token: Token<'_>,
    value: &T,
) -> Option<Digest> {
    let Some(variant) = variant else {
        return walk.child(token, value);
    };
    let step = Step {
        before: walk.path,
        token: Token::Key(variant),
    };
    let walk = Walk {
        path: Some(&step),
        ..walk
    };
    walk.child(token, value)
}

/// The object of one entry that a variant becomes, or the value itself where there is none.
fn named(walk: Walk<'_>, variant: Option<&str>, value: Digest) -> Digest {
    let Some(variant) = variant else {
        return value;
    };
    if walk.depth > walk.rules.depth {
        return fixed(Tag::TooDeep);
    }
    let step = Step {
        before: walk.path,
        token: Token::Key(variant),
    };
    let mut entries = Entries::default();
    if !walk.rules.leaves_out(&step) {
        entries.push(variant, value);
    }
    entries.digest()
}

/// The fields of a struct, or the text that one of `serde_json`'s own structs carries.
enum FieldsOf<'a> {
    Entries(EntriesOf<'a>),
    Text(Walk<'a>, Option<Digest>),
}

macro_rules! items {
    ($($of:ident::$push:ident),*) => {
        $(
            impl $of for ItemsOf<'_> {
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

impl SerializeMap for EntriesOf<'_> {
    type Ok = Digest;
    type Error = Unserialisable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unserialisable> {
        self.key = Some(key.serialize(Key(str::to_owned))?);
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
        key.serialize(Key(|key: &str| self.push(key, value)))
    }

    fn end(self) -> Result<Digest, Unserialisable> {
        Ok(self.digest())
    }
}

impl SerializeStruct for FieldsOf<'_> {
    type Ok = Digest;
    type Error = Unserialisable;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Unserialisable> {
        match self {
            FieldsOf::Entries(entries) => entries.push(key, value),
            FieldsOf::Text(walk, digest) => {
                let text = value.serialize(Key(str::to_owned))?;
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
            FieldsOf::Entries(entries) => Ok(entries.digest()),
            FieldsOf::Text(_, digest) => digest.ok_or(Unserialisable),
        }
    }
}

impl SerializeStructVariant for EntriesOf<'_> {
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

/// Serialises an object's key, a text in the end, into a closure.
struct Key<F>(F);

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

impl<R, F: FnOnce(&str) -> R> Serializer for Key<F> {
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
            // As `serde_json` writes such a key, with a point.
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
