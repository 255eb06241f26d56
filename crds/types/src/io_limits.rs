//! [`IoLimits`]: limits of the I/O of one volume.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// [`IoLimits::MINIMUM_BYTES`], as a rule of the schema.
const BYTES_RULE: &str = "quantity(self).compareTo(quantity('1Mi')) >= 0";
const BYTES_MESSAGE: &str = "a limit of bytes per second is at least 1Mi";

/// Limits of the I/O of one volume on its node, for all of its pods together. An absent limit means
/// unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IoLimits {
    /// Maximum number of read operations per second. Absent means unlimited.
    #[serde(default, rename = "readIOPS", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = IoLimits::MINIMUM_OPERATIONS, max = IoLimits::MAXIMUM_OPERATIONS))]
    pub read_iops: Option<u64>,
    /// Maximum number of write operations per second. Absent means unlimited.
    #[serde(default, rename = "writeIOPS", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = IoLimits::MINIMUM_OPERATIONS, max = IoLimits::MAXIMUM_OPERATIONS))]
    pub write_iops: Option<u64>,
    /// Maximum number of bytes read per second, at least 1Mi. Absent means unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{"rule": BYTES_RULE, "message": BYTES_MESSAGE}]))]
    pub read_bytes_per_second: Option<Bytes>,
    /// Maximum number of bytes written per second, at least 1Mi. Absent means unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{"rule": BYTES_RULE, "message": BYTES_MESSAGE}]))]
    pub write_bytes_per_second: Option<Bytes>,
}

impl IoLimits {
    /// Smallest limit of operations per second. A lower one would block a filesystem for minutes.
    pub const MINIMUM_OPERATIONS: u64 = 10;
    /// Largest limit of operations per second. The kernel takes a higher one for no limit.
    pub const MAXIMUM_OPERATIONS: u64 = 4_294_967_294;
    /// Smallest limit of bytes per second.
    pub const MINIMUM_BYTES: Bytes = Bytes::mib(1);

    /// No limits.
    pub const NONE: Self = Self {
        read_iops: None,
        write_iops: None,
        read_bytes_per_second: None,
        write_bytes_per_second: None,
    };

    /// Whether there is no limit.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Whether a limit is above that of `maximum`. An absent limit is not.
    pub fn exceed(&self, maximum: &Self) -> bool {
        let exceeds = |one: Option<u64>, other: Option<u64>| {
            one.zip(other).is_some_and(|(one, other)| one > other)
        };
        let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
        exceeds(self.read_iops, maximum.read_iops)
            || exceeds(self.write_iops, maximum.write_iops)
            || exceeds(
                bytes(self.read_bytes_per_second),
                bytes(maximum.read_bytes_per_second),
            )
            || exceeds(
                bytes(self.write_bytes_per_second),
                bytes(maximum.write_bytes_per_second),
            )
    }

    /// The stricter of both, limit by limit.
    #[must_use]
    pub fn min(&self, other: &Self) -> Self {
        Self {
            read_iops: stricter(self.read_iops, other.read_iops),
            write_iops: stricter(self.write_iops, other.write_iops),
            read_bytes_per_second: stricter(
                self.read_bytes_per_second,
                other.read_bytes_per_second,
            ),
            write_bytes_per_second: stricter(
                self.write_bytes_per_second,
                other.write_bytes_per_second,
            ),
        }
    }
}

fn stricter<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl fmt::Display for IoLimits {
    /// Writes the limits as parameters of a class; "no limits" if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = [("readIOPS", self.read_iops), ("writeIOPS", self.write_iops)];
        let bytes = [
            ("readBytesPerSecond", self.read_bytes_per_second),
            ("writeBytesPerSecond", self.write_bytes_per_second),
        ];
        let operations = operations
            .into_iter()
            .filter_map(|(name, limit)| Some(format!("{name}: {}", limit?)));
        let bytes = bytes
            .into_iter()
            .filter_map(|(name, limit)| Some(format!("{name}: {}", limit?)));
        let all: Vec<String> = operations.chain(bytes).collect();
        if all.is_empty() {
            f.write_str("no limits")
        } else {
            f.write_str(&all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_limits_are_taken_one_by_one() {
        let volume = IoLimits {
            read_iops: Some(500),
            write_bytes_per_second: Some(Bytes::mib(10)),
            ..IoLimits::NONE
        };
        let pool = IoLimits {
            read_iops: Some(100),
            write_iops: Some(200),
            write_bytes_per_second: Some(Bytes::mib(20)),
            ..IoLimits::NONE
        };
        let both = volume.min(&pool);
        assert_eq!(both, pool.min(&volume));
        assert_eq!(
            both.to_string(),
            "readIOPS: 100, writeIOPS: 200, writeBytesPerSecond: 10Mi"
        );
        assert_eq!(volume.min(&IoLimits::NONE), volume);
        assert!(volume.exceed(&pool) && !both.exceed(&pool));
        assert!(!volume.exceed(&IoLimits::NONE) && !IoLimits::NONE.exceed(&pool));
        assert_eq!(IoLimits::NONE.to_string(), "no limits");
    }
}
