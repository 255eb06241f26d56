//! Problems that keep a claim from being placed, or its volume from growing.
//!
//! *Invariant:* pure; a note names the pool, the sizes, the node and the remedy.

use std::collections::BTreeMap;

use cistern_crds::{
    Bytes, EventReason, Explanation, Parameters, Provisioning, parameters::ParametersError,
};
use k8s_openapi::api::{core::v1::PersistentVolumeClaimSpec, storage::v1::StorageClass};

use super::rooms::RoomSummary;
use crate::events::EventContent;

/// Maximum number of nodes that a note names.
pub(super) const NAMED: usize = 4;

/// Why a claim stays Pending, why a class can make no volume, or why a volume has not grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The parameters of the class are invalid.
    Parameters {
        class: String,
        error: ParametersError,
    },
    /// The class names a pool that does not exist.
    PoolMissing { class: String, pool: String },
    /// A thick volume is requested, and the pool of the class holds thin ones only.
    Overcommitted { class: String, pool: String },
    /// No node that the claim allows carries the pool.
    NoNodes { pool: String },
    /// The pool takes no volumes on any node that the claim allows.
    NotReady { pool: String, nodes: Vec<String> },
    /// No node has room now.
    NoSpace(Shortage),
    /// No node could ever hold it.
    TooLarge(Shortage),
    /// The volume is smaller than requested.
    NotExpanded { volume: String, why: String },
    /// The attributes of the claim are not applied.
    NotModified { volume: String, why: String },
    /// The volume works, but its I/O limits are not enforced.
    NotLimited { volume: String, why: String },
}

/// Requested size, and the best available one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pool: String,
    requested: Bytes,
    provisioning: Provisioning,
    best: Bytes,
    node: String,
}

/// A claim's requested volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeRequest {
    pub(super) pool: String,
    pub(super) provisioning: Provisioning,
    size: Bytes,
}

/// Room of one node for the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeRoom {
    /// The largest volume that fits now, and the largest that the node could ever hold, in bytes.
    Free { largest: Bytes, usable: Bytes },
    /// The node takes no volumes of the pool.
    None(Explanation),
}

impl VolumeRequest {
    /// Parses a claim; `None` if its size cannot be read.
    pub(super) fn of(spec: &PersistentVolumeClaimSpec, parameters: Parameters) -> Option<Self> {
        let requests = spec.resources.as_ref()?.requests.as_ref()?;
        let requested: Bytes = requests.get("storage")?.0.parse().ok()?;
        let least = if spec.volume_mode.as_deref() == Some("Block") {
            Bytes::mib(1)
        } else {
            parameters.filesystem.unwrap_or_default().minimum_size()
        };
        Some(Self {
            pool: parameters.pool,
            provisioning: parameters.attributes.provisioning,
            size: requested.round_up_to_mib()?.max(least),
        })
    }

    /// The problem that keeps it from being placed on any node.
    pub(super) fn problem(&self, rooms: &RoomSummary) -> Option<Problem> {
        let pool = self.pool.clone();
        if !rooms.is_carried {
            return Some(Problem::NoNodes { pool });
        }
        let (Some(largest), Some(usable)) = (&rooms.largest, &rooms.usable) else {
            let nodes = rooms.refused.clone();
            return Some(Problem::NotReady { pool, nodes });
        };
        let shortage = |(best, node): &(Bytes, String)| Shortage {
            pool,
            requested: self.size,
            provisioning: self.provisioning,
            best: *best,
            node: node.clone(),
        };
        if self.size <= largest.0 {
            None
        } else if self.size <= usable.0 {
            Some(Problem::NoSpace(shortage(largest)))
        } else {
            Some(Problem::TooLarge(shortage(usable)))
        }
    }
}

impl Problem {
    /// Reason of the event.
    pub(super) const fn reason(&self) -> EventReason {
        match self {
            Self::Parameters { .. } => EventReason::InvalidParameters,
            Self::PoolMissing { .. } => EventReason::PoolMissing,
            Self::Overcommitted { .. } => EventReason::PoolOvercommitted,
            Self::NoNodes { .. } => EventReason::NoNodes,
            Self::NotReady { .. } => EventReason::PoolNotReady,
            Self::NoSpace(_) => EventReason::NoSpace,
            Self::TooLarge(_) => EventReason::TooLarge,
            Self::NotExpanded { .. } => EventReason::VolumeNotExpanded,
            Self::NotModified { .. } => EventReason::VolumeNotModified,
            Self::NotLimited { .. } => EventReason::VolumeNotLimited,
        }
    }

    /// Action of the event.
    const fn action(&self) -> &'static str {
        match self {
            Self::Parameters { .. }
            | Self::PoolMissing { .. }
            | Self::Overcommitted { .. }
            | Self::NoNodes { .. }
            | Self::NotReady { .. }
            | Self::NoSpace(_)
            | Self::TooLarge(_) => "Provisioning",
            Self::NotExpanded { .. } => "Expanding",
            Self::NotModified { .. } | Self::NotLimited { .. } => "Modifying",
        }
    }

    /// The event that reports the problem. The object has one for each reason, which is updated.
    pub(super) fn event(&self) -> EventContent {
        EventContent {
            is_warning: true,
            reason: self.reason(),
            action: self.action(),
            note: self.note(),
            key: String::new(),
        }
    }

    /// Note of the event: the problem and its remedy.
    fn note(&self) -> String {
        match self {
            Self::Parameters { class, error } => {
                format!(
                    "StorageClass {class}: {error}; parameters cannot be changed, so delete the class and create it again"
                )
            }
            Self::PoolMissing { class, pool } => format!(
                "StorageClass {class} names StoragePool {pool}, which does not exist: create the pool, or delete the class and create it with another"
            ),
            Self::Overcommitted { class, pool } => format!(
                "a thick volume of StorageClass {class} is requested, and StoragePool {pool} allows overcommitment (overcommitPercent), so it holds thin volumes only: lower that to 100, or use classes with provisioning: thin"
            ),
            Self::NoNodes { pool } => format!(
                "no node that the claim allows carries StoragePool {pool}: check the node selector of the pool and the allowed topologies of the class"
            ),
            Self::NotReady { pool, nodes } => {
                format!(
                    "StoragePool {pool} takes no volumes on any node: {}",
                    nodes.join("; ")
                )
            }
            Self::NoSpace(shortage) => format!(
                "{}: the largest that fits now is {} on node {}; delete volumes, or give the pool more space or nodes",
                shortage.requested(),
                shortage.best,
                shortage.node
            ),
            Self::TooLarge(shortage) => format!(
                "{}: the most that a node could hold is {} on node {}; ask for less, or give the pool more space",
                shortage.requested(),
                shortage.best,
                shortage.node
            ),
            Self::NotExpanded { volume, why } => format!("volume {volume}: {why}"),
            Self::NotModified { volume, why } => {
                format!("the attributes of volume {volume} are not applied: {why}")
            }
            Self::NotLimited { volume, why } => {
                format!("volume {volume} works without the limits of its I/O: {why}")
            }
        }
    }
}

impl Shortage {
    fn requested(&self) -> String {
        let kind = match self.provisioning {
            Provisioning::Thin => "thin",
            Provisioning::Thick => "thick",
        };
        format!(
            "no node of StoragePool {} has room for {} ({kind})",
            self.pool, self.requested
        )
    }
}

/// Whether a class lets its volumes be on a node with these labels.
pub(super) fn allows(class: &StorageClass, labels: Option<&BTreeMap<String, String>>) -> bool {
    let Some(terms) = class
        .allowed_topologies
        .as_ref()
        .filter(|terms| !terms.is_empty())
    else {
        return true;
    };
    terms.iter().any(|term| {
        term.match_label_expressions
            .iter()
            .flatten()
            .all(|requirement| {
                labels
                    .and_then(|labels| labels.get(&requirement.key))
                    .is_some_and(|label| requirement.values.contains(label))
            })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cistern_crds::{Reason, parameters::FSTYPE};
    use serde_json::json;

    use super::*;

    fn requested(size: Bytes) -> VolumeRequest {
        VolumeRequest {
            pool: "fast".to_owned(),
            provisioning: Provisioning::Thin,
            size,
        }
    }

    fn free(largest: u64, usable: u64) -> NodeRoom {
        NodeRoom::Free {
            largest: Bytes::gib(largest),
            usable: Bytes::gib(usable),
        }
    }

    fn broken() -> NodeRoom {
        NodeRoom::None(Explanation {
            reason: Reason::AgentMissing,
            message: "no pod of the node plugin runs".to_owned(),
        })
    }

    fn problem(size: u64, rooms: &[(&str, NodeRoom)]) -> Option<Problem> {
        let rooms = rooms.iter();
        let rooms = rooms.map(|(node, room)| ((*node).to_owned(), Arc::new(room.clone())));
        let rooms: Vec<_> = rooms.collect();
        let summary = RoomSummary::of(rooms.iter().map(|(node, room)| (node, room)));
        requested(Bytes::gib(size)).problem(&summary)
    }

    #[test]
    fn a_claim_that_fits_somewhere_has_no_problem() {
        assert_eq!(
            problem(
                3,
                &[("w1", free(1, 9)), ("w2", free(3, 9)), ("w3", broken())]
            ),
            None
        );
    }

    #[test]
    fn the_note_names_pool_wanted_and_largest_size_and_node() {
        let found = problem(5, &[("w1", free(1, 9)), ("w2", free(3, 9))]).unwrap();
        assert_eq!(found.reason(), EventReason::NoSpace);
        for part in ["StoragePool fast", "5Gi", "3Gi", "w2"] {
            assert!(found.note().contains(part), "{}", found.note());
        }
        let never = problem(50, &[("w1", free(1, 9)), ("w2", free(3, 8))]).unwrap();
        assert_eq!(never.reason(), EventReason::TooLarge);
        for part in ["StoragePool fast", "50Gi", "9Gi", "w1"] {
            assert!(never.note().contains(part), "{}", never.note());
        }
    }

    #[test]
    fn a_pool_without_nodes_and_a_pool_without_ready_nodes_have_different_reasons() {
        assert_eq!(problem(1, &[]).unwrap().reason(), EventReason::NoNodes);
        let found = problem(1, &[("w1", broken())]).unwrap();
        assert_eq!(found.reason(), EventReason::PoolNotReady);
        assert!(found.note().contains("w1: no pod of the node plugin runs"));
    }

    #[test]
    fn the_size_is_what_the_driver_would_make_of_it() {
        let size = |text: &str, mode: &str, filesystem: Option<&str>| {
            let spec: PersistentVolumeClaimSpec = serde_json::from_value(json!({
                "volumeMode": mode,
                "resources": {"requests": {"storage": text}},
            }))
            .unwrap();
            let pairs = [("pool", "fast"), (FSTYPE, filesystem.unwrap_or_default())];
            let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let parameters = Parameters::of_class(&BTreeMap::from(pairs)).unwrap();
            VolumeRequest::of(&spec, parameters).map(|requested| requested.size)
        };
        assert_eq!(size("1", "Filesystem", None), Some(Bytes::mib(16)));
        assert_eq!(size("1", "Filesystem", Some("xfs")), Some(Bytes::mib(300)));
        assert_eq!(size("1500k", "Block", None), Some(Bytes::mib(2)));
        assert_eq!(size("1e3", "Filesystem", None), None);
    }

    #[test]
    fn allowed_topologies_of_the_class_narrow_the_nodes() {
        let class: StorageClass = serde_json::from_value(json!({
            "provisioner": "x",
            "allowedTopologies": [
                {"matchLabelExpressions": [
                    {"key": "zone", "values": ["a"]},
                    {"key": "disk", "values": ["nvme", "ssd"]},
                ]},
                {"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]},
            ],
        }))
        .unwrap();
        let labels = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            allows(&class, Some(&pairs.collect()))
        };
        assert!(labels(&[("zone", "a"), ("disk", "ssd")]));
        assert!(labels(&[("zone", "b")]));
        assert!(!labels(&[("zone", "a"), ("disk", "hdd")]));
        assert!(!allows(&class, None));
        assert!(allows(&StorageClass::default(), None));
    }
}
