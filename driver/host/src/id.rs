//! Names that are safe to become part of a path, and UUIDs of filesystems.

use std::{ffi::OsStr, fmt, str::FromStr};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

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

/// UUID of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uuid([u8; 16]);

/// A text that is not a UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a UUID")]
pub struct InvalidUuid {
    text: String,
}

impl Uuid {
    /// Creates a random UUID.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0_u8; 16];
        // A read of 16 bytes is never short (getrandom(2)).
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        // Version 4, variant 1 (RFC 9562).
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }

    /// Creates a UUID from the sixteen bytes of a superblock.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl Uuid {
    /// The sixteen bytes as in a superblock.
    pub(crate) const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", u128::from_be_bytes(self.0));
        let (first, rest) = hex.split_at(8);
        write!(f, "{first}")?;
        let mut rest = rest;
        for length in [4, 4, 4, 12] {
            let (group, tail) = rest.split_at(length);
            write!(f, "-{group}")?;
            rest = tail;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = InvalidUuid;

    fn from_str(text: &str) -> Result<Self, InvalidUuid> {
        let error = || InvalidUuid {
            text: text.chars().take(80).collect(),
        };
        let hex: String = text.chars().filter(|c| *c != '-').collect();
        if hex.len() != 32 || !hex.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(error());
        }
        let number = u128::from_str_radix(&hex, 16).map_err(|_| error())?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl TryFrom<String> for Uuid {
    type Error = InvalidUuid;

    fn try_from(text: String) -> Result<Self, InvalidUuid> {
        text.parse()
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        uuid.to_string()
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

    #[test]
    fn a_random_uuid_is_of_version_4() {
        let text = Uuid::random().unwrap().to_string();
        assert_eq!((text.len(), &text[14..15]), (36, "4"));
    }

    proptest! {
        #[test]
        fn a_uuid_is_read_back(bytes: [u8; 16]) {
            let uuid = Uuid::from_bytes(bytes);
            prop_assert_eq!(uuid.to_string().parse(), Ok(uuid));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC{0,40}") {
            let _ = (text.parse::<Uuid>(), text.parse::<Uid>());
        }
    }
}
