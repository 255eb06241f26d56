//! Parses a capacity range and chooses the size of a volume.

use std::fmt;

use cistern_controller::volumes::SizeRange;
use cistern_crds::{AccessType, Bytes, FilesystemType, size::GIB};
use cistern_proto::csi::v1;

/// Default size of a volume (CV-31).
pub const DEFAULT_SIZE: Bytes = Bytes(GIB);

/// Why a capacity range has no possible size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A negative size (CV-11, FLD-11).
    #[error("{field} is {value}: a size is not negative")]
    Negative {
        /// Name of the field in the CSI message.
        field: &'static str,
        /// Value of the request.
        value: i64,
    },
    /// The lower end exceeds the upper end. This is an invalid value, not an impossible size
    /// (CV-24, GAP-11).
    #[error("required_bytes {required} is more than limit_bytes {limit}")]
    Empty {
        /// Lower end of the requested range in bytes.
        required: Bytes,
        /// Upper end of the requested range in bytes.
        limit: Bytes,
    },
    /// The smallest size that serves the request is beyond its limit (CV-09, CV-10).
    #[error(
        "no size from {required} to {limit} is possible: the next possible size is {next} ({why})"
    )]
    Unsatisfiable {
        /// Lower end of the requested range in bytes.
        required: Bytes,
        /// Upper end of the requested range in bytes.
        limit: Bytes,
        /// The smallest possible size in bytes that is at least `required`.
        next: Bytes,
        /// Why no smaller size is possible.
        why: Minimum,
    },
    /// The size exceeds the `int64` of the response (CV-10).
    #[error("{required} is larger than any volume can be")]
    TooLarge {
        /// Lower end of the requested range in bytes.
        required: Bytes,
    },
}

/// Which sizes are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minimum {
    /// Every multiple of 1 MiB.
    WholeMib,
    /// Every multiple of 1 MiB that is large enough for the filesystem.
    Filesystem(FilesystemType),
}

impl Minimum {
    fn size(self) -> Bytes {
        match self {
            Self::WholeMib => Bytes::mib(1),
            Self::Filesystem(filesystem) => filesystem.minimum_size(),
        }
    }
}

impl fmt::Display for Minimum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sizes are whole MiB")?;
        match self {
            Self::WholeMib => Ok(()),
            Self::Filesystem(filesystem) => write!(f, ", and {filesystem} needs {}", self.size()),
        }
    }
}

/// Reads a range and chooses the size of a new volume in it (CV-08 to CV-11, CV-24, CV-25).
///
/// Sizes are multiples of 1 MiB and at least the minimum of the filesystem. The size is rounded up
/// as far as the limit allows. Fails if the range is invalid, or if it contains no possible size.
pub fn parse(
    range: Option<v1::CapacityRange>,
    access_type: AccessType,
    filesystem: Option<FilesystemType>,
) -> Result<SizeRange, Error> {
    let (required, limit) = bounds(range)?;
    let why = minimum(access_type, filesystem);
    let ceiling = limit.unwrap_or(Bytes(u64::MAX));
    let asked = if required == Bytes::ZERO {
        DEFAULT_SIZE.min(ceiling).round_down_to_mib()
    } else {
        required
    };
    let next = asked
        .round_up_to_mib()
        .filter(|size| i64::try_from(size.0).is_ok())
        .ok_or(Error::TooLarge { required })?
        .max(why.size());
    if next > ceiling {
        return Err(Error::Unsatisfiable {
            required,
            limit: ceiling,
            next,
            why,
        });
    }
    Ok(SizeRange {
        required,
        limit,
        chosen: next,
    })
}

/// Reads the range of an expansion or of a copy, which must be at least as large as the volume or
/// its source (CEV-03, CEV-07, VCS-07). Fails if the range is invalid, or if it contains no
/// multiple of 1 MiB.
pub fn parse_growth(range: v1::CapacityRange) -> Result<SizeRange, Error> {
    let (required, limit) = bounds(Some(range))?;
    let chosen = required
        .round_up_to_mib()
        .filter(|size| i64::try_from(size.0).is_ok())
        .ok_or(Error::TooLarge { required })?;
    match limit {
        Some(limit) if chosen > limit => Err(Error::Unsatisfiable {
            required,
            limit,
            next: chosen,
            why: Minimum::WholeMib,
        }),
        _ => Ok(SizeRange {
            required,
            limit,
            chosen,
        }),
    }
}

/// The ends of a range. Zero means not given (FLD-08), also when both are zero (GAP-12). Fails if
/// an end is negative, or if the lower end exceeds the upper end.
pub fn bounds(range: Option<v1::CapacityRange>) -> Result<(Bytes, Option<Bytes>), Error> {
    let range = range.unwrap_or_default();
    let bytes = |field, value: i64| {
        u64::try_from(value)
            .map(Bytes)
            .map_err(|_| Error::Negative { field, value })
    };
    let required = bytes("required_bytes", range.required_bytes)?;
    let limit = Some(bytes("limit_bytes", range.limit_bytes)?).filter(|&l| l != Bytes::ZERO);
    match limit {
        Some(limit) if required > limit => Err(Error::Empty { required, limit }),
        _ => Ok((required, limit)),
    }
}

fn minimum(access_type: AccessType, filesystem: Option<FilesystemType>) -> Minimum {
    match (access_type, filesystem) {
        (AccessType::Filesystem, Some(filesystem)) => Minimum::Filesystem(filesystem),
        (AccessType::Filesystem, None) | (AccessType::Block, _) => Minimum::WholeMib,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: i64 = 1 << 20;

    fn size(required: i64, limit: i64, filesystem: FilesystemType) -> Result<u64, Error> {
        let range = v1::CapacityRange {
            required_bytes: required,
            limit_bytes: limit,
        };
        parse(Some(range), AccessType::Filesystem, Some(filesystem)).map(|size| size.chosen.0)
    }

    #[test]
    fn cv_08_cv_31_a_size_is_chosen_within_the_range() {
        let mib = |count: u64| Ok(count << 20);
        for (required, limit, filesystem, expected) in [
            (0, 0, FilesystemType::Ext4, mib(1024)),
            (10 * MIB, 0, FilesystemType::Ext4, mib(16)),
            (17 * MIB, 0, FilesystemType::Ext4, mib(17)),
            (17 * MIB + 1, 0, FilesystemType::Ext4, mib(18)),
            (17 * MIB + 1, 18 * MIB, FilesystemType::Ext4, mib(18)),
            (0, 20 * MIB + 5, FilesystemType::Ext4, mib(20)),
            (0, 2 << 30, FilesystemType::Ext4, mib(1024)),
            (MIB, 300 * MIB, FilesystemType::Xfs, mib(300)),
            (301 * MIB, 301 * MIB, FilesystemType::Xfs, mib(301)),
        ] {
            assert_eq!(
                size(required, limit, filesystem),
                expected,
                "{required}..{limit}"
            );
        }
        let default = parse(None, AccessType::Filesystem, Some(FilesystemType::Ext4)).unwrap();
        assert_eq!(default.chosen, DEFAULT_SIZE);
    }

    #[test]
    fn cv_10_a_range_without_a_possible_size_says_the_next_possible() {
        for (required, limit, filesystem, next) in [
            (17 * MIB + 1, 18 * MIB - 1, FilesystemType::Ext4, "18Mi"),
            (0, 8 * MIB, FilesystemType::Ext4, "16Mi"),
            (MIB, 299 * MIB, FilesystemType::Xfs, "300Mi"),
        ] {
            let error = size(required, limit, filesystem).unwrap_err();
            assert!(matches!(error, Error::Unsatisfiable { .. }));
            assert!(
                error
                    .to_string()
                    .contains(&format!("next possible size is {next}")),
                "{error}"
            );
        }
        let error = size(i64::MAX, 0, FilesystemType::Ext4).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }));
    }

    #[test]
    fn cv_11_cv_24_negative_and_reversed_ranges_are_illegal() {
        for (required, limit) in [(-1, 0), (0, -1), (i64::MIN, 0)] {
            let error = size(required, limit, FilesystemType::Ext4).unwrap_err();
            assert!(matches!(error, Error::Negative { .. }), "{error}");
        }
        let error = size(2 * MIB, MIB, FilesystemType::Ext4).unwrap_err();
        assert!(matches!(error, Error::Empty { .. }));
    }

    #[test]
    fn cev_03_cev_07_a_growth_has_a_size_of_whole_mebibytes_within_its_range() {
        let parse = |required_bytes, limit_bytes| {
            let range = parse_growth(v1::CapacityRange {
                required_bytes,
                limit_bytes,
            });
            range.map(|range| range.chosen)
        };
        assert_eq!(parse(17 * MIB, 0), Ok(Bytes::mib(17)));
        assert_eq!(parse(17 * MIB + 1, 18 * MIB), Ok(Bytes::mib(18)));
        assert_eq!(parse(0, 18 * MIB), Ok(Bytes::ZERO));
        let error = |required, limit| parse(required, limit).unwrap_err();
        assert!(matches!(error(-1, 0), Error::Negative { .. }));
        assert!(matches!(error(2 * MIB, MIB), Error::Empty { .. }));
        let between = error(17 * MIB + 1, 18 * MIB - 1);
        assert!(matches!(between, Error::Unsatisfiable { .. }));
        assert!(matches!(error(i64::MAX, 0), Error::TooLarge { .. }));
    }

    proptest! {
        #[test]
        fn cv_08_the_chosen_size_is_in_the_range_and_a_multiple_of_1_mib(
            required in 0..=i64::MAX, extra in 0..=(1_i64 << 40), limited: bool,
        ) {
            let limit = if limited { required.saturating_add(extra) } else { 0 };
            if let Ok(size) = size(required, limit, FilesystemType::Xfs) {
                prop_assert!(size.is_multiple_of(1 << 20) && size >= 300 << 20);
                prop_assert!(i128::from(size) >= i128::from(required));
                prop_assert!(limit == 0 || i128::from(size) <= i128::from(limit));
            }
        }
    }
}
