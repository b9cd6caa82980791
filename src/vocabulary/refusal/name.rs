//! Names that a refusal may carry away.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// A name that a refusal may carry away without allocating.
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

    /// How many characters of a key's `Display` become its circuit's name.
    const LONGEST: usize = 256;

    /// The name of a key's circuit: what the key displays as, cut after 256 characters.
    pub(crate) fn of_key(key: &impl fmt::Display) -> Self {
        /// A text, and how many characters it has room for; `None` once it was cut.
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
                // The character that found no room may have been the last one.
                self.1.map(|_| ()).ok_or(fmt::Error)
            }
        }

        let mut name = Bounded(String::new(), Some(Self::LONGEST));
        // An error says that it is full, or that the key's own `Display` gave up: what is written by then is the name.
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
    fn a_keys_name_is_what_it_displays_as_and_bounded() {
        assert_eq!(Name::of_key(&"search").as_str(), "search");
        assert_eq!(Name::of_key(&7).as_str(), "7");
        let longest = "é".repeat(Name::LONGEST);
        assert_eq!(Name::of_key(&longest).as_str(), longest);
        let cut = Name::of_key(&"é".repeat(1_000_000));
        assert_eq!(cut.as_str(), format!("{longest}…"));
    }
}
