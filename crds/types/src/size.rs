//! [`Bytes`]: sizes in bytes, written as Kubernetes quantities.

use std::{fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Bytes of one mebibyte. Volume sizes are multiples of it.
pub const MIB: u64 = 1 << 20;
/// Bytes of one gibibyte.
pub const GIB: u64 = 1 << 30;

/// A number of bytes, written as a Kubernetes quantity (`10Gi`, `1500M`, `4096`).
///
/// *Invariant:* each text that [`Self::PATTERN`] matches is read in a custom resource. A number with more than 64 bits is read as the
/// largest size: a field that is refused would make its whole object unreadable. Kubernetes reads such a quantity as its own
/// largest one, too. Anywhere else, such a number is an error.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(into = "String", try_from = "String")]
pub struct Bytes(pub u64);

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a size: write a whole number of bytes with an optional suffix, as in 10Gi"
)]
pub struct ParseError {
    text: String,
}

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);
    /// The pattern of a quantity in the schemas of the custom resources.
    pub const PATTERN: &str = r"^[0-9]+(\.[0-9]{1,18})?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$";

    /// `count` mebibytes.
    pub const fn mib(count: u64) -> Self {
        Self(count * MIB)
    }

    /// `count` gibibytes.
    pub const fn gib(count: u64) -> Self {
        Self(count * GIB)
    }

    /// This size rounded up to a multiple of 1 MiB; None on overflow.
    #[must_use]
    pub fn round_up_to_mib(self) -> Option<Self> {
        self.0.checked_next_multiple_of(MIB).map(Self)
    }

    /// This size rounded up to a multiple of a unit, or the largest possible size on overflow. A unit of 0 counts as 1.
    #[must_use]
    pub fn round_up_to(self, unit: Self) -> Self {
        let unit = unit.0.max(1);
        Self(self.0.div_ceil(unit).saturating_mul(unit))
    }

    /// This size rounded down to a multiple of 1 MiB.
    #[must_use]
    pub const fn round_down_to_mib(self) -> Self {
        Self(self.0 / MIB * MIB)
    }

    /// A percentage of this size, rounded down.
    #[must_use]
    pub fn percent(self, percent: u32) -> Self {
        let scaled = u128::from(self.0) * u128::from(percent) / 100;
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// The difference, or zero if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, or the largest possible size on overflow.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The size as the signed number of the CSI protocol, which is never negative (FLD-10).
    pub fn to_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

const BINARY: [(&str, u64); 6] = [
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
];
const DECIMAL: [(&str, u64); 6] = [
    ("E", 1_000_000_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

impl fmt::Display for Bytes {
    /// Writes the size in the largest binary unit that divides it, without loss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = BINARY
            .iter()
            .find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit));
        match unit {
            Some((suffix, unit)) => f.pad(&format!("{}{suffix}", self.0 / unit)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

impl ParseError {
    fn of(text: &str) -> Self {
        Self {
            text: text.chars().take(64).collect(),
        }
    }
}

/// Reads a quantity. The result is None if the number has more than 64 bits.
fn read(text: &str) -> Result<Option<Bytes>, ParseError> {
    let error = || ParseError::of(text);
    let (number, unit) = BINARY
        .iter()
        .chain(&DECIMAL)
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 18 {
        return Err(error());
    }
    // Computes exactly in units of 10^-len(fraction), and rounds up to a whole byte. What 128 bits do not hold in these units has
    // more than 64 bits in bytes, because there are 18 digits of a fraction at most.
    let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| error())?);
    let scaled = format!("{whole}{fraction}").parse::<u128>().ok();
    let bytes = scaled.and_then(|scaled| scaled.checked_mul(u128::from(unit)));
    let bytes = bytes.map(|bytes| u64::try_from(bytes.div_ceil(scale)));
    Ok(bytes.and_then(Result::ok).map(Bytes))
}

impl FromStr for Bytes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        read(text)?.ok_or_else(|| ParseError::of(text))
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        bytes.to_string()
    }
}

/// Reads a size in a custom resource.
impl TryFrom<String> for Bytes {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        Ok(read(&text)?.unwrap_or(Self(u64::MAX)))
    }
}

impl JsonSchema for Bytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "pattern": Self::PATTERN,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1000),
            ("1.5Gi", 3 << 29),
            ("0.1", 1),
            ("300Mi", 300 << 20),
            ("2E", 2_000_000_000_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for bad in [
            "",
            "-1",
            "1 Gi",
            "Gi",
            "1.Gi.",
            "1e3",
            "0x10",
            "20Ei",
            "١",
            "1GiB",
            &"9".repeat(60),
        ] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_number_with_more_than_64_bits_is_the_largest_size_in_a_custom_resource_only() {
        let in_resource = |text: &str| serde_json::from_value::<Bytes>(text.into()).ok();
        let largest = u64::MAX.to_string();
        assert_eq!(largest.parse(), Ok(Bytes(u64::MAX)));
        for text in [
            "18446744073709551616",
            "99Ei",
            "16.000000000000000001Ei",
            "9999999999.999999999999999999Ei",
            &"9".repeat(60),
        ] {
            assert_eq!(in_resource(text), Some(Bytes(u64::MAX)), "{text}");
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        for (text, bytes) in [
            (largest.as_str(), u64::MAX),
            ("18446744073709551614.5", u64::MAX),
            ("15.999999999999999999Ei", u64::MAX),
            ("0000000000000000000000000001Ei", 1 << 60),
        ] {
            assert_eq!(in_resource(text), Some(Bytes(bytes)), "{text}");
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "-1", "1e12", "99ei"] {
            assert_eq!(in_resource(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn each_text_that_the_pattern_matches_is_read_in_a_custom_resource(
            text in "[0-9]{1,32}(\\.[0-9]{1,18})?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"
        ) {
            prop_assert!(Bytes::try_from(text).is_ok());
        }

        #[test]
        fn a_printed_size_is_read_back(bytes: u64) {
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
            let _ = text.parse::<Bytes>();
        }
    }
}
