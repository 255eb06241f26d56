//! [`Encryption`]: how the data of a volume is encrypted on its disk.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// How the data of a volume is encrypted on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Encryption {
    /// LUKS2, with the key that the volume's Secret has when it is staged.
    #[serde(rename = "LUKS2")]
    Luks2,
}

impl Encryption {
    /// Size of the header in front of the data, which the image has in addition to the size of the volume.
    pub const HEADER: Bytes = Bytes::mib(16);

    /// Returns the size of the header of an image that may be encrypted.
    pub fn header_of(encryption: Option<Self>) -> Bytes {
        encryption.map_or(Bytes::ZERO, |_| Self::HEADER)
    }
}

impl fmt::Display for Encryption {
    /// Writes the value of the parameter `encryption`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Luks2 => "luks2",
        })
    }
}

impl FromStr for Encryption {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "luks2" => Ok(Self::Luks2),
            _ => Err(()),
        }
    }
}
