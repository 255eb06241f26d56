//! The attributes of a volume that can change while the volume is in use: the parameters of a
//! VolumeAttributesClass. A StorageClass can have them, too.

use std::{collections::BTreeMap, fmt};

use cistern_types::{Bytes, IoLimits, Provisioning, shorten};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Parameter for the provisioning: `thin` (default) or `thick`.
pub const PROVISIONING: &str = "provisioning";
/// Parameter with the maximum number of read operations per second.
pub const READ_IOPS: &str = "readIOPS";
/// Parameter with the maximum number of write operations per second.
pub const WRITE_IOPS: &str = "writeIOPS";
/// Parameter with the maximum number of bytes read per second.
pub const READ_BYTES: &str = "readBytesPerSecond";
/// Parameter with the maximum number of bytes written per second.
pub const WRITE_BYTES: &str = "writeBytesPerSecond";
/// Value that removes a limit.
pub const UNLIMITED: &str = "unlimited";

/// Attributes of a volume that can change while the volume is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttributes {
    /// Whether the volume's space is allocated in full (`Thick`) or when it is written (`Thin`).
    pub provisioning: Provisioning,
    /// Limits of the volume's I/O. Absent means no limits, apart from those of the pool.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub io_limits: IoLimits,
}

impl VolumeAttributes {
    /// Returns a merge patch (RFC 7386) that replaces all attributes: absent limits are null.
    pub fn merge_patch(&self) -> Value {
        let limits = &self.io_limits;
        let limits = (!limits.is_none()).then(|| {
            json!({
                READ_IOPS: limits.read_iops,
                WRITE_IOPS: limits.write_iops,
                READ_BYTES: limits.read_bytes_per_second,
                WRITE_BYTES: limits.write_bytes_per_second,
            })
        });
        json!({PROVISIONING: self.provisioning, "ioLimits": limits})
    }
}

impl fmt::Display for VolumeAttributes {
    /// Writes the attributes as parameters of a VolumeAttributesClass.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PROVISIONING}: {}", self.provisioning)?;
        if self.io_limits.is_none() {
            Ok(())
        } else {
            write!(f, ", {}", self.io_limits)
        }
    }
}

/// Why the parameters of attributes are invalid. Each message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `provisioning` has this unknown value, shortened.
    #[error("parameter \"{PROVISIONING}\" is {0:?}: write \"thin\" or \"thick\"")]
    Provisioning(String),
    /// A limit is not a number, too low, or too high.
    #[error("parameter \"{parameter}\" is {value:?}: write {allowed}, or \"{UNLIMITED}\"")]
    Limit {
        /// One of the parameters for limits.
        parameter: &'static str,
        /// The invalid value, shortened.
        value: String,
        /// The allowed values, in words.
        allowed: String,
    },
    /// The key, shortened, is no parameter of a VolumeAttributesClass (CMV-05).
    #[error(
        "mutable parameter {0:?} is unknown: Cistern knows \"{PROVISIONING}\", \"{READ_IOPS}\", \
        \"{WRITE_IOPS}\", \"{READ_BYTES}\" and \"{WRITE_BYTES}\""
    )]
    Unknown(String),
}

/// The attributes that a request names. It leaves the others unchanged (CMV-06).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    provisioning: Option<Provisioning>,
    read_iops: LimitChange<u64>,
    write_iops: LimitChange<u64>,
    read_bytes: LimitChange<Bytes>,
    write_bytes: LimitChange<Bytes>,
}

/// The change of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LimitChange<T> {
    #[default]
    Keep,
    Remove,
    Set(T),
}

impl<T: Copy> LimitChange<T> {
    fn apply(self, limit: Option<T>) -> Option<T> {
        match self {
            Self::Keep => limit,
            Self::Remove => None,
            Self::Set(limit) => Some(limit),
        }
    }
}

impl AttributeChanges {
    /// Parses the parameters of a VolumeAttributesClass: the `mutable_parameters` of CSI. Fails with
    /// the first parameter that is unknown or has an invalid value (CMV-05, CV-27).
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, Error> {
        let mut changes = Self::default();
        for (key, value) in parameters {
            if !changes.take(key, value)? {
                return Err(Error::Unknown(shorten(key)));
            }
        }
        Ok(changes)
    }

    /// Takes a parameter. Returns false if it is not an attribute.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> Result<bool, Error> {
        match key {
            PROVISIONING => self.provisioning = Some(provisioning(value)?),
            READ_IOPS => self.read_iops = operations(READ_IOPS, value)?,
            WRITE_IOPS => self.write_iops = operations(WRITE_IOPS, value)?,
            READ_BYTES => self.read_bytes = bytes(READ_BYTES, value)?,
            WRITE_BYTES => self.write_bytes = bytes(WRITE_BYTES, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the attributes with the changes applied.
    #[must_use]
    pub fn apply(&self, attributes: VolumeAttributes) -> VolumeAttributes {
        let limits = attributes.io_limits;
        VolumeAttributes {
            provisioning: self.provisioning.unwrap_or(attributes.provisioning),
            io_limits: IoLimits {
                read_iops: self.read_iops.apply(limits.read_iops),
                write_iops: self.write_iops.apply(limits.write_iops),
                read_bytes_per_second: self.read_bytes.apply(limits.read_bytes_per_second),
                write_bytes_per_second: self.write_bytes.apply(limits.write_bytes_per_second),
            },
        }
    }
}

fn provisioning(value: &str) -> Result<Provisioning, Error> {
    value
        .parse()
        .map_err(|()| Error::Provisioning(shorten(value)))
}

fn operations(parameter: &'static str, value: &str) -> Result<LimitChange<u64>, Error> {
    let (minimum, maximum) = (IoLimits::MINIMUM_OPERATIONS, IoLimits::MAXIMUM_OPERATIONS);
    match value.parse::<u64>() {
        _ if value == UNLIMITED => Ok(LimitChange::Remove),
        Ok(limit) if (minimum..=maximum).contains(&limit) => Ok(LimitChange::Set(limit)),
        _ => {
            let allowed = format!("a number from {minimum} to {maximum}");
            Err(invalid(parameter, value, allowed))
        }
    }
}

fn bytes(parameter: &'static str, value: &str) -> Result<LimitChange<Bytes>, Error> {
    let minimum = IoLimits::MINIMUM_BYTES;
    match value.parse() {
        _ if value == UNLIMITED => Ok(LimitChange::Remove),
        Ok(limit) if limit >= minimum => Ok(LimitChange::Set(limit)),
        _ => {
            let allowed = format!("a number of at least {minimum}");
            Err(invalid(parameter, value, allowed))
        }
    }
}

fn invalid(parameter: &'static str, value: &str, allowed: String) -> Error {
    Error::Limit {
        parameter,
        value: shorten(value),
        allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<AttributeChanges, Error> {
        let pairs = pairs.iter();
        AttributeChanges::parse(
            &pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn cmv_06_attributes_that_a_request_does_not_name_stay_unchanged() {
        let before = VolumeAttributes {
            provisioning: Provisioning::Thick,
            io_limits: IoLimits {
                read_iops: Some(100),
                write_bytes_per_second: Some(Bytes::mib(5)),
                ..IoLimits::NONE
            },
        };
        assert_eq!(parse(&[]).unwrap().apply(before), before);
        let changes = parse(&[
            (PROVISIONING, "thin"),
            (READ_IOPS, UNLIMITED),
            (WRITE_IOPS, "300"),
        ]);
        let after = changes.unwrap().apply(before);
        assert_eq!(
            after.to_string(),
            "provisioning: thin, writeIOPS: 300, writeBytesPerSecond: 5Mi"
        );
    }

    #[test]
    fn a_merge_patch_removes_limits_that_are_absent() {
        let mut attributes = VolumeAttributes::default();
        assert_eq!(
            attributes.merge_patch(),
            json!({"provisioning": "Thin", "ioLimits": null})
        );
        attributes.io_limits.read_iops = Some(100);
        attributes.io_limits.write_bytes_per_second = Some(Bytes::mib(1));
        let patch = attributes.merge_patch();
        assert_eq!(
            patch,
            json!({"provisioning": "Thin", "ioLimits": {"readIOPS": 100, "writeIOPS": null,
                "readBytesPerSecond": null, "writeBytesPerSecond": "1Mi"}})
        );
        assert_eq!(
            serde_json::from_value::<VolumeAttributes>(patch).unwrap(),
            attributes
        );
    }

    #[test]
    fn cmv_05_cv_27_an_unknown_parameter_and_an_invalid_value_are_named() {
        for (key, value) in [
            ("xxInvalidParameterKey", "x"),
            ("pool", "fast"),
            (PROVISIONING, "Thick"),
            (READ_IOPS, "9"),
            (READ_IOPS, "4294967295"),
            (WRITE_IOPS, "-1"),
            (READ_BYTES, "1000"),
            (WRITE_BYTES, "fast"),
            (WRITE_BYTES, ""),
        ] {
            let error = parse(&[(PROVISIONING, "thick"), (key, value)]);
            let message = error.unwrap_err().to_string();
            assert!(message.contains(&format!("{key:?}")), "{message}");
        }
        let message = |key, value| parse(&[(key, value)]).unwrap_err().to_string();
        assert_eq!(
            message(READ_IOPS, "9"),
            "parameter \"readIOPS\" is \"9\": write a number from 10 to 4294967294, or \
             \"unlimited\""
        );
        assert_eq!(
            message(WRITE_BYTES, "100"),
            "parameter \"writeBytesPerSecond\" is \"100\": write a number of at least 1Mi, or \
             \"unlimited\""
        );
    }

    #[test]
    fn the_lowest_and_the_highest_limit_are_accepted() {
        for (key, value) in [
            (READ_IOPS, "10"),
            (WRITE_IOPS, "4294967294"),
            (READ_BYTES, "1Mi"),
        ] {
            assert!(parse(&[(key, value)]).is_ok(), "{key}: {value}");
        }
    }
}
