//! [`Provisioning`]: thin or thick.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a volume's space is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Provisioning {
    /// Allocated when it is written; freed by discard.
    #[default]
    Thin,
    /// Allocated in full when the volume is created.
    Thick,
}

impl fmt::Display for Provisioning {
    /// Writes the value of the parameter `provisioning`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thin => "thin",
            Self::Thick => "thick",
        })
    }
}

impl FromStr for Provisioning {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "thin" => Ok(Self::Thin),
            "thick" => Ok(Self::Thick),
            _ => Err(()),
        }
    }
}
