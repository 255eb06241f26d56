//! Parses the topology of requests into values of Cistern's topology key.

use std::collections::{BTreeMap, BTreeSet};

use cistern_controller::volumes::Requirement;
use cistern_crds::names;
use cistern_proto::csi::v1;

/// Maximum length of a key's prefix, a key's name and a value (FLD-06).
const MAX: usize = 63;

/// Why a topology is invalid. All of these are errors of the caller (GAP-08).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An empty requirement (TOP-01).
    #[error("a topology requirement has neither requisite nor preferred entries")]
    EmptyRequirement,
    /// A topology without segments.
    #[error("a topology has no segments")]
    EmptyTopology,
    /// An invalid key (TOP-09, TOP-10, TOP-16).
    #[error("topology key {key:?} is malformed")]
    Key {
        /// The key of the request, truncated.
        key: String,
    },
    /// An invalid value (TOP-13).
    #[error("the value of topology key {key} is malformed")]
    Value {
        /// The topology key of the request.
        key: String,
    },
    /// A duplicate key. Keys are case-insensitive (TOP-12).
    #[error("topology key {key} is duplicate")]
    Duplicate {
        /// The topology key of the request.
        key: String,
    },
    /// A preferred topology outside the requisite ones (TOP-15).
    #[error("a preferred topology is not among the requisite ones")]
    PreferredOutside,
}

/// The segments of one topology, with keys in lower case.
type Segments = BTreeMap<String, String>;

/// Parses the topology requirement of a new volume. None allows every node (TOP-24). Fails if the
/// requirement is empty, if a topology is invalid, or if a preferred topology is not requisite.
pub fn parse(requirement: Option<v1::TopologyRequirement>) -> Result<Requirement, Error> {
    let Some(requirement) = requirement else {
        return Ok(Requirement::default());
    };
    let requisite = list(requirement.requisite)?;
    let preferred = list(requirement.preferred)?;
    if requisite.is_empty() && preferred.is_empty() {
        return Err(Error::EmptyRequirement);
    }
    // A set: a large cluster lists each of its nodes in both.
    let allowed: BTreeSet<&Segments> = requisite.iter().collect();
    if !allowed.is_empty() && !preferred.iter().all(|place| allowed.contains(place)) {
        return Err(Error::PreferredOutside);
    }
    Ok(Requirement {
        requisite: (!requisite.is_empty()).then(|| values(requisite)),
        preferred: values(preferred),
    })
}

/// Parses one topology. Returns None if it has foreign segments, so that no node matches. Fails if
/// it has no segments, or if a key or value is invalid or duplicate.
pub fn parse_one(topology: v1::Topology) -> Result<Option<String>, Error> {
    segments(topology).map(value)
}

fn list(topologies: Vec<v1::Topology>) -> Result<Vec<Segments>, Error> {
    topologies.into_iter().map(segments).collect()
}

fn values(places: Vec<Segments>) -> Vec<String> {
    places.into_iter().filter_map(value).collect()
}

/// The value of Cistern's key, if it is the only one. Well-formed foreign segments are no error, but no
/// node is known to match them (TOP-16).
fn value(mut segments: Segments) -> Option<String> {
    let value = segments.remove(names::TOPOLOGY_KEY)?;
    segments.is_empty().then_some(value)
}

fn segments(topology: v1::Topology) -> Result<Segments, Error> {
    if topology.segments.is_empty() {
        return Err(Error::EmptyTopology);
    }
    let mut segments = Segments::new();
    for (key, value) in topology.segments {
        if !is_key(&key) {
            let key = key.chars().take(2 * MAX).collect();
            return Err(Error::Key { key });
        }
        let key = key.to_ascii_lowercase();
        if !is_word(&value) {
            return Err(Error::Value { key });
        }
        if segments.insert(key.clone(), value).is_some() {
            return Err(Error::Duplicate { key });
        }
    }
    Ok(segments)
}

fn is_key(key: &str) -> bool {
    match key.rsplit_once('/') {
        Some((prefix, name)) => is_prefix(prefix) && is_word(name),
        None => is_word(key),
    }
}

/// Whether the prefix of a key is in domain notation: lower-case labels between dots (TOP-10).
fn is_prefix(prefix: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    prefix.len() <= MAX && prefix.split('.').all(label)
}

/// Whether a word begins and ends with an alphanumeric character, and otherwise has only these and
/// `-`, `_` and `.` (TOP-09, TOP-13).
fn is_word(word: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let end = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    word.len() <= MAX
        && word.bytes().all(inner)
        && end(word.bytes().next())
        && end(word.bytes().last())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topology(pairs: &[(&str, &str)]) -> v1::Topology {
        v1::Topology {
            segments: pairs
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    fn node(name: &str) -> v1::Topology {
        topology(&[(names::TOPOLOGY_KEY, name)])
    }

    fn read(
        requisite: Vec<v1::Topology>,
        preferred: Vec<v1::Topology>,
    ) -> Result<Requirement, Error> {
        parse(Some(v1::TopologyRequirement {
            requisite,
            preferred,
        }))
    }

    #[test]
    fn requisite_and_preferred_become_values_in_their_order() {
        let read = read(vec![node("a"), node("b")], vec![node("b"), node("a")]).unwrap();
        assert_eq!(read.requisite, Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(read.preferred, ["b", "a"]);
        assert_eq!(parse(None), Ok(Requirement::default()));
    }

    #[test]
    fn top_01_top_15_a_requirement_names_places_and_prefers_among_them() {
        assert_eq!(read(vec![], vec![]), Err(Error::EmptyRequirement));
        assert_eq!(
            read(vec![node("a")], vec![node("b")]),
            Err(Error::PreferredOutside)
        );
        assert!(read(vec![], vec![node("b")]).is_ok());
    }

    #[test]
    fn top_16_no_node_matches_a_foreign_but_legal_segment() {
        for foreign in [
            topology(&[("topology.kubernetes.io/zone", "z1")]),
            topology(&[(names::TOPOLOGY_KEY, "a"), ("zone", "z1")]),
        ] {
            assert_eq!(parse_one(foreign.clone()), Ok(None));
            assert_eq!(read(vec![foreign], vec![]).unwrap().requisite, Some(vec![]));
        }
    }

    #[test]
    fn top_12_keys_are_case_insensitive() {
        let upper = names::TOPOLOGY_KEY.replace("/node", "/NODE");
        assert_eq!(
            parse_one(topology(&[(&upper, "a")])),
            Ok(Some("a".to_owned()))
        );
        let twice = topology(&[(&upper, "a"), (names::TOPOLOGY_KEY, "a")]);
        assert!(matches!(parse_one(twice), Err(Error::Duplicate { .. })));
    }

    #[test]
    fn top_09_top_10_top_13_keys_and_values_are_checked() {
        let long = "x".repeat(64);
        for bad in [
            "Bad Key!", "", "/", "a/", "/a", "A.b/c", "-a/b", "a..b/c", "a/b/c", "_a", "a-", &long,
        ] {
            let error = parse_one(topology(&[(bad, "v")]));
            assert!(
                matches!(error, Err(Error::Key { .. })),
                "{bad:?}: {error:?}"
            );
        }
        for bad in ["", "a b", "-a", "a.", "ü", &long] {
            let error = parse_one(topology(&[("k", bad)]));
            assert!(
                matches!(error, Err(Error::Value { .. })),
                "{bad:?}: {error:?}"
            );
        }
        assert_eq!(parse_one(topology(&[])), Err(Error::EmptyTopology));
        assert!(parse_one(topology(&[("a-b.c/x_y.z", "1.2-3_4")])).is_ok());
    }

    proptest! {
        #[test]
        fn no_topology_makes_the_parser_panic(key in "\\PC{0,140}", value in "\\PC{0,140}") {
            let _ = parse_one(topology(&[(&key, &value)]));
        }
    }
}
