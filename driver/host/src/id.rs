//! Names that are safe to become part of a path, and UUIDs of filesystems.

use std::{ffi::OsStr, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
/// UUID of a filesystem.
pub use uuid::Uuid;

/// The UID of a Kubernetes object. It names the object's files; no other external text becomes part
/// of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uid(String);

/// A text that cannot be a UID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a UID: it has 1 to 64 letters, digits and hyphens, and begins with no hyphen"
)]
pub struct InvalidUid {
    text: String,
}

impl Uid {
    /// The UID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first twelve letters and digits, which fit into the label of an XFS.
    pub(crate) fn label(&self) -> String {
        self.0.chars().filter(|c| *c != '-').take(12).collect()
    }
}

/// Whether a label can be the [`Uid::label`] of a Kubernetes UID.
pub(crate) fn is_label(label: &str) -> bool {
    label.len() == 12 && label.bytes().all(|c| c.is_ascii_alphanumeric())
}

impl AsRef<OsStr> for Uid {
    fn as_ref(&self) -> &OsStr {
        OsStr::new(&self.0)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Uid {
    type Err = InvalidUid;

    fn from_str(text: &str) -> Result<Self, InvalidUid> {
        let safe = (1..=64).contains(&text.len())
            && !text.starts_with('-')
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
        if safe {
            Ok(Self(text.to_owned()))
        } else {
            let text = text.chars().take(80).collect();
            Err(InvalidUid { text })
        }
    }
}

impl TryFrom<String> for Uid {
    type Error = InvalidUid;

    fn try_from(text: String) -> Result<Self, InvalidUid> {
        text.parse()
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_that_could_leave_a_directory_is_a_uid() {
        assert!(
            "0b5c2f0e-6ab4-4d0a-9b6c-3c0a5a1f8f11"
                .parse::<Uid>()
                .is_ok()
        );
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "-a",
            "a b",
            "ä",
            "a\0",
            "x.img",
            &"a".repeat(65),
        ] {
            assert!(bad.parse::<Uid>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
            let _ = text.parse::<Uid>();
        }
    }
}
