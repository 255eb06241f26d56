//! [`ExtentSize`]: the unit in which a pool allocates the space of an image.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{shorten, size::Bytes};

/// The extent size is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not supported: use 64Ki, 128Ki, 256Ki, 512Ki or 1Mi")]
pub struct UnknownExtentSize {
    value: String,
}

/// The unit in which the pool allocates space for a write to a new or shared block: the extent size
/// hint of XFS (`FS_XFLAG_EXTSIZE`). A larger unit makes fewer extents, and uses more space until
/// the volume is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ExtentSize {
    /// 64 KiB.
    #[serde(rename = "64Ki")]
    Kib64,
    /// 128 KiB.
    #[serde(rename = "128Ki")]
    Kib128,
    /// 256 KiB.
    #[serde(rename = "256Ki")]
    Kib256,
    /// 512 KiB.
    #[serde(rename = "512Ki")]
    Kib512,
    /// 1 MiB, the granularity of the sizes of volumes.
    #[serde(rename = "1Mi")]
    Mib1,
}

impl ExtentSize {
    /// All sizes, in ascending order.
    pub const ALL: [Self; 5] = [
        Self::Kib64,
        Self::Kib128,
        Self::Kib256,
        Self::Kib512,
        Self::Mib1,
    ];

    /// The size in bytes.
    pub const fn bytes(self) -> Bytes {
        match self {
            Self::Kib64 => Bytes(64 << 10),
            Self::Kib128 => Bytes(128 << 10),
            Self::Kib256 => Bytes(256 << 10),
            Self::Kib512 => Bytes(512 << 10),
            Self::Mib1 => Bytes::mib(1),
        }
    }
}

impl fmt::Display for ExtentSize {
    /// Writes the value of the parameter `extentSize`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl FromStr for ExtentSize {
    type Err = UnknownExtentSize;

    fn from_str(text: &str) -> Result<Self, UnknownExtentSize> {
        Self::ALL
            .into_iter()
            .find(|size| size.to_string() == text)
            .ok_or_else(|| UnknownExtentSize {
                value: shorten(text),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_size_is_written_in_the_same_way_everywhere() {
        for size in ExtentSize::ALL {
            let text = size.to_string();
            assert_eq!(text.parse(), Ok(size));
            assert_eq!(serde_json::to_value(size).unwrap(), text);
        }
    }

    #[test]
    fn another_extent_size_is_refused_with_those_that_are_supported() {
        for text in ["", "4Ki", "65536", "64ki", "2Mi"] {
            let error = text.parse::<ExtentSize>().unwrap_err().to_string();
            assert!(
                error.contains("64Ki, 128Ki, 256Ki, 512Ki or 1Mi"),
                "{error}"
            );
        }
    }
}
