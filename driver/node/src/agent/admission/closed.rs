//! Why a pool takes nothing new.

use std::path::PathBuf;

use cistern_crds::{Reason, enumeration::first_names};
use kube::ResourceExt;

use crate::agent::desired::AssignedObjects;

/// Highest number of names of each kind that a message lists.
const NAMED: usize = 5;

/// The reason why a usable pool takes no new volumes. Unless the pool is only cordoned, it takes no
/// snapshots and growths either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The pool leaves the node, and still holds these objects.
    #[error("{}", leaving(.volumes, .snapshots))]
    Retiring {
        /// Names of its PoolVolumes.
        volumes: Vec<String>,
        /// Names of its PoolSnapshots.
        snapshots: Vec<String>,
    },
    /// The node has taken over the pool, and objects in it still name the node that carried it before.
    /// The ledger does not count them yet.
    #[error(
        "the volumes and snapshots in the pool still name node {node}: they follow to this node first"
    )]
    Following {
        /// Name of the node that carried the pool.
        node: String,
    },
    /// The host's filesystem lacks blocks for the pool's file.
    #[error("part of the pool's file is not allocated")]
    NotAllocated,
    /// The pool holds a foreign entry that the ledger cannot count.
    #[error("{} does not belong to Cistern and its size is unknown: move it away", .0.display())]
    Stray(PathBuf),
    /// The StoragePool names the node in `spec.cordonedNodes`. Only new volumes are refused.
    #[error(
        "the pool takes no new volumes on this node, because spec.cordonedNodes of the StoragePool names it; \
         its volumes work, can grow, and can be snapshotted"
    )]
    Cordoned,
    /// The ledger does not count the bytes of an object, because it cannot be read.
    #[error("{0} cannot be read by this version, so its size is unknown")]
    Unreadable(String),
}

impl Closed {
    /// Reason of the refusal of a new volume.
    pub(super) const fn reason(&self) -> Reason {
        match self {
            Self::Cordoned => Reason::Cordoned,
            Self::Retiring { .. }
            | Self::Following { .. }
            | Self::NotAllocated
            | Self::Stray(_)
            | Self::Unreadable(_) => Reason::PoolNotReady,
        }
    }

    /// A retiring pool with its objects.
    pub(super) fn retiring(assigned: &AssignedObjects) -> Self {
        Self::Retiring {
            volumes: assigned.volumes().map(ResourceExt::name_any).collect(),
            snapshots: assigned.snapshots().map(ResourceExt::name_any).collect(),
        }
    }
}

fn leaving(volumes: &[String], snapshots: &[String]) -> String {
    let held = [named("volumes", volumes), named("snapshots", snapshots)];
    let held: Vec<String> = held.into_iter().flatten().collect();
    if held.is_empty() {
        return "the pool leaves this node as soon as it is empty".to_owned();
    }
    let held = held.join("; ");
    format!("the pool leaves this node when it is empty; it still holds {held}")
}

/// The first names as text; None for no names.
fn named(kind: &str, names: &[String]) -> Option<String> {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    (!names.is_empty()).then(|| format!("{kind} {}", first_names(names.iter(), NAMED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retiring_pool_names_the_first_objects_that_it_holds() {
        let empty = Closed::retiring(&AssignedObjects::default()).to_string();
        assert!(empty.ends_with("as soon as it is empty"), "{empty}");
        let names = ["pvc-2", "pvc-1"].map(str::to_owned);
        assert_eq!(named("volumes", &names).unwrap(), "volumes pvc-1, pvc-2");
        let many: Vec<String> = (0..1000)
            .map(|number| format!("snapshot-{number}"))
            .collect();
        let message = named("snapshots", &many).unwrap();
        assert!(message.ends_with(" and 995 more"), "{message}");
        assert_eq!(named("snapshots", &[]), None);
    }
}
