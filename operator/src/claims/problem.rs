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
    /// The pool is a volume group, and holds no such volume.
    VolumeGroup { pool: String, why: String },
    /// No node that the claim allows carries the pool.
    NoNodes { pool: String },
    /// The pool takes no volumes on any node that the claim allows.
    NotReady { pool: String, nodes: Vec<String> },
    /// No node has room now.
    NoSpace(Shortage),
    /// No node could ever hold it.
    TooLarge(Shortage),
    /// None of the pools of the class takes it, each for a reason of its own.
    InNoPool {
        requested: String,
        problems: Vec<Problem>,
    },
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
    pub(super) fn of(spec: &PersistentVolumeClaimSpec, parameters: &Parameters) -> Option<Self> {
        let requests = spec.resources.as_ref()?.requests.as_ref()?;
        let requested: Bytes = requests.get("storage")?.0.parse().ok()?;
        let least = if spec.volume_mode.as_deref() == Some("Block") {
            Bytes::mib(1)
        } else {
            parameters.filesystem.unwrap_or_default().minimum_size()
        };
        Some(Self {
            provisioning: parameters.attributes.provisioning,
            size: requested.round_up_to_mib()?.max(least),
        })
    }

    /// The problem that keeps it from being placed in a pool on any node.
    pub(super) fn problem(&self, pool: &str, rooms: &RoomSummary) -> Option<Problem> {
        let pool = pool.to_owned();
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

    /// The problem of a claim, from those of all pools of its class.
    pub(super) fn problem_of_all(&self, mut problems: Vec<Problem>) -> Option<Problem> {
        if problems.len() > 1 {
            let requested = format!("{} ({})", self.size, self.provisioning);
            return Some(Problem::InNoPool {
                requested,
                problems,
            });
        }
        problems.pop()
    }
}

impl Problem {
    /// Reason of the event.
    pub(super) fn reason(&self) -> EventReason {
        match self {
            Self::Parameters { .. } => EventReason::InvalidParameters,
            Self::PoolMissing { .. } => EventReason::PoolMissing,
            Self::Overcommitted { .. } => EventReason::PoolOvercommitted,
            Self::VolumeGroup { .. } => EventReason::PoolIsVolumeGroup,
            Self::NoNodes { .. } => EventReason::NoNodes,
            Self::NotReady { .. } => EventReason::PoolNotReady,
            Self::NoSpace(_) => EventReason::NoSpace,
            Self::TooLarge(_) => EventReason::TooLarge,
            Self::InNoPool { problems, .. } => most_hopeful(problems),
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
            | Self::VolumeGroup { .. }
            | Self::NoNodes { .. }
            | Self::NotReady { .. }
            | Self::NoSpace(_)
            | Self::TooLarge(_)
            | Self::InNoPool { .. } => "Provisioning",
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
                "StorageClass {class} names StoragePool {pool}, which does not exist: create the pool, or delete the \
                 class and create it with another"
            ),
            Self::Overcommitted { class, pool } => format!(
                "a thick volume of StorageClass {class} is requested, and StoragePool {pool} allows overcommitment \
                 (overcommitPercent), so it holds thin volumes only: lower that to 100, or use classes with \
                 provisioning: thin"
            ),
            Self::VolumeGroup { why, .. } => why.clone(),
            Self::NoNodes { pool } => format!(
                "no node that the claim allows carries StoragePool {pool}: check the node selector of the pool and \
                 the allowed topologies of the class"
            ),
            Self::NotReady { pool, nodes } => {
                format!(
                    "StoragePool {pool} takes no volumes on any node: {}",
                    nodes.join("; ")
                )
            }
            Self::NoSpace(shortage) => format!(
                "{}: {}; delete volumes, or give the pool more space or nodes",
                shortage.requested(),
                shortage.fits_now()
            ),
            Self::TooLarge(shortage) => format!(
                "{}: {}; ask for less, or give the pool more space",
                shortage.requested(),
                shortage.fits_at_most()
            ),
            Self::InNoPool {
                requested,
                problems,
            } => {
                let causes: Vec<String> = problems.iter().filter_map(Self::cause).collect();
                format!(
                    "no StoragePool of the class takes {requested}: {}",
                    causes.join("; ")
                )
            }
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

impl Problem {
    /// Name of the pool, and why it does not take the claim; None if the problem is not about one pool.
    fn cause(&self) -> Option<String> {
        let (pool, why) = match self {
            Self::PoolMissing { pool, .. } => (pool, "it does not exist".to_owned()),
            Self::Overcommitted { pool, .. } => (
                pool,
                "it allows overcommitment, so it holds thin volumes only".to_owned(),
            ),
            Self::VolumeGroup { pool, why } => (pool, why.clone()),
            Self::NoNodes { pool } => (pool, "no node that the claim allows carries it".to_owned()),
            Self::NotReady { pool, nodes } => (pool, nodes.join(", ")),
            Self::NoSpace(shortage) => (&shortage.pool, shortage.fits_now()),
            Self::TooLarge(shortage) => (&shortage.pool, shortage.fits_at_most()),
            Self::Parameters { .. }
            | Self::InNoPool { .. }
            | Self::NotExpanded { .. }
            | Self::NotModified { .. }
            | Self::NotLimited { .. } => return None,
        };
        Some(format!("{pool}: {why}"))
    }
}

/// The reason among those of several pools that is nearest to a place for the claim.
fn most_hopeful(problems: &[Problem]) -> EventReason {
    let order = [
        EventReason::NoSpace,
        EventReason::TooLarge,
        EventReason::PoolNotReady,
        EventReason::PoolOvercommitted,
        EventReason::PoolIsVolumeGroup,
        EventReason::NoNodes,
    ];
    let is_there = |reason: &EventReason| problems.iter().any(|it| it.reason() == *reason);
    let found = order.into_iter().find(is_there);
    found.unwrap_or(EventReason::PoolMissing)
}

impl Shortage {
    /// The largest volume that has room now.
    fn fits_now(&self) -> String {
        format!(
            "the largest that fits now is {} on node {}",
            self.best, self.node
        )
    }

    /// The largest volume that a node could ever hold.
    fn fits_at_most(&self) -> String {
        format!(
            "the most that a node could hold is {} on node {}",
            self.best, self.node
        )
    }

    fn requested(&self) -> String {
        format!(
            "no node of StoragePool {} has room for {} ({})",
            self.pool, self.requested, self.provisioning
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
        in_pool("fast", size, rooms)
    }

    fn in_pool(pool: &str, size: u64, rooms: &[(&str, NodeRoom)]) -> Option<Problem> {
        let rooms = rooms.iter();
        let rooms = rooms.map(|(node, room)| ((*node).to_owned(), Arc::new(room.clone())));
        let rooms: Vec<_> = rooms.collect();
        let summary = RoomSummary::of(rooms.iter().map(|(node, room)| (node, room)));
        requested(Bytes::gib(size)).problem(pool, &summary)
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
    fn the_note_names_the_reason_of_each_pool_of_the_class() {
        let of_pools = |problems: &[Option<Problem>]| {
            let problems = problems.iter().flatten().cloned().collect();
            requested(Bytes::gib(8)).problem_of_all(problems).unwrap()
        };
        let full = in_pool("nvme-0", 8, &[("w1", free(3, 9))]);
        let small = in_pool("nvme-1", 8, &[("w1", free(2, 4))]);
        let missing = Some(Problem::PoolMissing {
            class: "gold".to_owned(),
            pool: "nvme-2".to_owned(),
        });
        let silent = in_pool("nvme-3", 8, &[("w1", broken())]);
        let found = of_pools(&[
            missing.clone(),
            small.clone(),
            full.clone(),
            silent.clone(),
            in_pool("nvme-4", 8, &[]),
        ]);
        assert_eq!(found.reason(), EventReason::NoSpace);
        assert_eq!(
            found.note(),
            "no StoragePool of the class takes 8Gi (thin): nvme-2: it does not exist; \
             nvme-1: the most that a node could hold is 4Gi on node w1; \
             nvme-0: the largest that fits now is 3Gi on node w1; \
             nvme-3: w1: no pod of the node plugin runs; \
             nvme-4: no node that the claim allows carries it"
        );
        for (problems, reason) in [
            ([small.clone(), silent.clone()], EventReason::TooLarge),
            ([missing.clone(), silent], EventReason::PoolNotReady),
            ([missing.clone(), missing], EventReason::PoolMissing),
        ] {
            assert_eq!(of_pools(&problems).reason(), reason);
        }
        assert_eq!(of_pools(std::slice::from_ref(&full)), full.unwrap());
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
            VolumeRequest::of(&spec, &parameters).map(|requested| requested.size)
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
