//! [`Provisioning`]: thin or thick.

use std::str::FromStr;

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
