//! The names of layers and circuits.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// A name whose clones cost no allocation, so that a refusal can carry one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Name::Static(name) => name,
            Name::Shared(name) => name,
        }
    }

    /// How many characters of a key's `Display` become its circuit's name. A key may come from
    /// outside, and be of any length.
    const LONGEST: usize = 256;

    /// Names a key's circuit by the key's `Display`, cut after 256 characters.
    pub(crate) fn of_key(key: &impl fmt::Display) -> Self {
        /// A text, and how many more characters it takes; `None` once it was cut.
        struct Bounded(String, Option<usize>);

        impl fmt::Write for Bounded {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                for c in text.chars() {
                    let Some(room) = self.1 else {
                        return Err(fmt::Error);
                    };
                    self.1 = room.checked_sub(1);
                    self.0.push(if self.1.is_some() { c } else { '…' });
                }
                // The last character of this piece may be the one that found no room.
                self.1.map(|_| ()).ok_or(fmt::Error)
            }
        }

        let mut name = Bounded(String::new(), Some(Self::LONGEST));
        // It is an error when the name is full, or when the key's own `Display` gives up. What was
        // written by then is the name.
        let _ = write!(name, "{key}");
        Name::Shared(name.0.into())
    }
}

impl From<Cow<'static, str>> for Name {
    fn from(name: Cow<'static, str>) -> Self {
        match name {
            Cow::Borrowed(name) => Name::Static(name),
            Cow::Owned(name) => Name::Shared(name.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_by_its_display_up_to_a_bound() {
        assert_eq!(Name::of_key(&"search").as_str(), "search");
        assert_eq!(Name::of_key(&7).as_str(), "7");
        let longest = "é".repeat(Name::LONGEST);
        assert_eq!(Name::of_key(&longest).as_str(), longest);
        let cut = Name::of_key(&"é".repeat(1_000_000));
        assert_eq!(cut.as_str(), format!("{longest}…"));
    }
}
