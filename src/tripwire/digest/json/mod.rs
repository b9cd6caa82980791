//! Digests of JSON, and of anything that serialises as JSON.
//!
//! A value is walked by its own `Serialize`, so no JSON is built. An array is hashed in its
//! order. Of an object each entry is hashed alone, and the hashes are summed up. The sum is equal
//! for every order of the keys, and nothing needs sorting.

mod compound;
mod hash;
mod key;
mod serializer;
mod walk;

use std::sync::Arc;

use serde::ser::Serialize;
use serde_json::Value;

use self::hash::{Tag, fixed};
use self::walk::{Rules, Walk};
use super::{Digest, Digester};

/// Makes digests of JSON values, and of anything that is `Serialize`.
///
/// Requests that are equal as JSON have equal digests, in whatever order their keys come.
///
/// | in a request | in its digest |
/// | --- | --- |
/// | the order of keys, at every depth | does not matter |
/// | the order of an array | matters |
/// | integers | are exact: two 64-bit ids are never taken for each other |
/// | `1` and `1.0` | are equal |
/// | a key with `null`, and no such key | are not equal |
/// | fields that are left out by key or by pointer | do not matter, whether they are there or not |
/// | a part that is nested deeper than the depth limit | counts as one fixed value |
/// | a part that cannot be serialised | counts as one fixed value |
/// | `NaN` and infinity | are `null`, as everywhere in `serde_json` |
///
/// Every request has a digest, so nobody nests a call out of the fence.
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
/// As the digester of a layer whose requests are `Serialize`, and for calls whose arguments are
/// JSON text:
///
/// ```
/// use serde::Serialize;
/// use tower_breaker::{Digest, JsonDigest, TripwireLayer};
///
/// #[derive(Serialize)]
/// struct ToolCall { id: u64, name: String, arguments: serde_json::Value }
///
/// let layer = TripwireLayer::new().digest(JsonDigest::new().without("id"));
/// # let call = ToolCall { id: 1, name: String::new(), arguments: 1.into() };
/// # let _ = layer.handle().would_allow(&call);
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

impl JsonDigest {
    /// The highest depth limit. It is bounded because walking a value takes stack.
    const DEEPEST: u32 = 256;

    /// How many `Some` and newtypes a value may be wrapped in, over all its levels. They take
    /// stack, too.
    const WRAPS: u32 = 256;

    /// Makes a digester that leaves out nothing and looks 128 levels deep.
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

    /// Leaves out the fields with this key, at every depth: a call's id, a time, a trace.
    #[must_use]
    pub fn without(mut self, key: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.rules).keys.push(key.into());
        self
    }

    /// Leaves out what a JSON pointer (RFC 6901) points to.
    ///
    /// For instance `/meta/sent_at`, or `/messages/0/id`.
    ///
    /// # Panics
    ///
    /// If `pointer` does not begin with `/`: it is no pointer then, or leaves out everything.
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

    /// Sets how deep to look. A value that is nested deeper counts as one fixed value.
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

    /// Makes the digest of `value`.
    #[must_use]
    pub fn of<T: Serialize + ?Sized>(&self, value: &T) -> Digest {
        Walk::new(&self.rules).digest_of(value)
    }

    /// Makes the digest of JSON text, which is how models send their arguments.
    ///
    /// Text that is no JSON, or that is nested deeper than `serde_json` reads, counts as one
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
