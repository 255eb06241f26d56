//! Parameters of a VolumeSnapshotClass or VolumeGroupSnapshotClass as a type.

use crate::{names::RESERVED_PREFIX, parameters::shorten, snapshot::Consistency};

/// Parameter that says in what state a volume's filesystem is held: `crash` (default) or
/// `filesystem`.
pub const CONSISTENCY: &str = "consistency";

/// How a snapshot is to be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotParameters {
    /// In what state the volume's filesystem is held.
    pub consistency: Consistency,
}

/// What is wrong with the parameters. Each message says how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value that is none of those allowed.
    #[error("parameter \"{CONSISTENCY}\" is {value:?}: write \"crash\" or \"filesystem\"")]
    Consistency {
        /// What was written.
        value: String,
    },
    /// A key that means nothing here (CS-17).
    #[error("parameter {key:?} is unknown: snapshots know \"{CONSISTENCY}\"")]
    Unknown {
        /// The key.
        key: String,
    },
}

impl SnapshotParameters {
    /// Reads the parameters of a class, or of a request that carries them. Keys of the orchestrator
    /// are passed over (CS-17).
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
    fn cs_17_what_is_not_known_is_refused_and_what_is_the_orchestrators_passed_over() {
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
}
