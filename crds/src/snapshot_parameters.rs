//! Parses the parameters of a VolumeSnapshotClass or VolumeGroupSnapshotClass.

use cistern_types::{Consistency, shorten};

use crate::names::RESERVED_PREFIX;

/// Parameter for the consistency of a snapshot: `crash` (default) or `filesystem`.
pub const CONSISTENCY: &str = "consistency";
/// Parameter that keeps a deleted snapshot as the base of incremental backups: `true` or `false` (default).
pub const KEEP_BASE: &str = "keepBaseForIncrementals";
/// Parameter that repeats the field of the class with this name, and has no effect. Classes of Kubernetes' own storage
/// tests have it.
pub const DELETION_POLICY: &str = "deletionPolicy";

/// The parameters of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotParameters {
    /// Consistency of the snapshot's data.
    pub consistency: Consistency,
    /// Whether a deleted snapshot is kept as the base of incremental backups.
    pub keep_base: bool,
}

/// Why parameters are invalid. Each message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `consistency` has an unknown value.
    #[error("parameter \"{CONSISTENCY}\" is {value:?}: write \"crash\" or \"filesystem\"")]
    Consistency {
        /// The invalid value, shortened.
        value: String,
    },
    /// `keepBaseForIncrementals` has an unknown value.
    #[error("parameter \"{KEEP_BASE}\" is {value:?}: write \"true\" or \"false\"")]
    KeepBase {
        /// The invalid value, shortened.
        value: String,
    },
    /// `keepBaseForIncrementals` is for single snapshots.
    #[error(
        "parameter \"{KEEP_BASE}\" is for single snapshots: remove it from the class of group snapshots"
    )]
    KeepBaseOfGroup,
    /// `deletionPolicy` is no deletion policy of Kubernetes.
    #[error(
        "parameter \"{DELETION_POLICY}\" is {value:?}: remove it, and set the class's own field to \"Delete\" or \"Retain\""
    )]
    DeletionPolicy {
        /// The invalid value, shortened.
        value: String,
    },
    /// An unknown key (CS-17).
    #[error("parameter {key:?} is unknown: snapshots know \"{CONSISTENCY}\" and \"{KEEP_BASE}\"")]
    Unknown {
        /// The unknown key, shortened.
        key: String,
    },
}

impl SnapshotParameters {
    /// Parses the parameters of a class or of a request. Ignores keys of Kubernetes (CS-17).
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, Error> {
        let mut read = Self::default();
        for (key, value) in parameters {
            match (key.as_str(), value.as_str()) {
                (CONSISTENCY, "crash") => read.consistency = Consistency::Crash,
                (CONSISTENCY, "filesystem") => read.consistency = Consistency::Filesystem,
                (CONSISTENCY, other) => {
                    let value = shorten(other);
                    return Err(Error::Consistency { value });
                }
                (KEEP_BASE, "true") => read.keep_base = true,
                (KEEP_BASE, "false") => read.keep_base = false,
                (KEEP_BASE, other) => {
                    let value = shorten(other);
                    return Err(Error::KeepBase { value });
                }
                (DELETION_POLICY, "Delete" | "Retain") => {}
                (DELETION_POLICY, other) => {
                    let value = shorten(other);
                    return Err(Error::DeletionPolicy { value });
                }
                (key, _) if key.starts_with(RESERVED_PREFIX) => {}
                (key, _) => return Err(Error::Unknown { key: shorten(key) }),
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<SnapshotParameters, Error> {
        let owned = |(key, value): &(&str, &str)| (String::from(*key), String::from(*value));
        let map: BTreeMap<String, String> = pairs.iter().map(owned).collect();
        SnapshotParameters::parse(&map)
    }

    #[test]
    fn cs_17_unknown_keys_are_refused_and_keys_of_kubernetes_are_ignored() {
        assert_eq!(parse(&[]).unwrap().consistency, Consistency::Crash);
        let read = parse(&[
            ("consistency", "filesystem"),
            ("csi.storage.k8s.io/volumesnapshot/name", "x"),
        ]);
        assert_eq!(read.unwrap().consistency, Consistency::Filesystem);
        assert!(matches!(
            parse(&[("bogus", "x")]),
            Err(Error::Unknown { .. })
        ));
        let error = parse(&[("consistency", "Crash")]).unwrap_err();
        assert!(error.to_string().contains("\"filesystem\""), "{error}");
    }

    #[test]
    fn a_deleted_snapshot_is_kept_as_a_base_only_if_its_class_says_so() {
        let keeps = |value| parse(&[("keepBaseForIncrementals", value)]);
        assert!(!parse(&[]).unwrap().keep_base);
        assert!(keeps("true").unwrap().keep_base);
        assert!(!keeps("false").unwrap().keep_base);
        let error = keeps("yes").unwrap_err().to_string();
        assert!(error.contains("\"true\""), "{error}");
    }

    #[test]
    fn a_parameter_that_repeats_the_deletion_policy_has_no_effect() {
        for policy in ["Delete", "Retain"] {
            let read = parse(&[("deletionPolicy", policy)]).unwrap();
            assert_eq!(read, SnapshotParameters::default());
        }
        let error = parse(&[("deletionPolicy", "Keep")]).unwrap_err();
        assert!(error.to_string().contains("\"Retain\""), "{error}");
    }
}
