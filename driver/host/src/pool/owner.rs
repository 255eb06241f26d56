//! The owner of a pool: the node that its marker names. A disk that two machines can access is mounted
//! by one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Uid, Uuid};

/// A node of a cluster, and its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Name of the node.
    pub node: String,
    /// Identity of the machine (machine-id(5)), if known. Cloned machines may share it, so it never
    /// replaces the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// The marker of a pool that belongs to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMarker {
    /// The node that owns the pool.
    pub owner: Owner,
    /// UID of the StoragePool.
    pub pool: Uid,
    /// UUID of the pool's filesystem.
    pub filesystem: Uuid,
}

impl Owner {
    /// Whether both may be the same machine: equal, or one is unknown.
    fn may_be_machine_of(&self, other: &Self) -> bool {
        match (&self.machine, &other.machine) {
            (Some(one), Some(other)) => one == other,
            (None, _) | (_, None) => true,
        }
    }

    /// The owner to record if this one is found and `present` is the node. A known machine is kept if
    /// the present one is unknown.
    pub(super) fn completed(&self, present: &Self) -> Self {
        match present.machine {
            None if self.node == present.node => self.clone(),
            Some(_) | None => present.clone(),
        }
    }
}

impl ForeignMarker {
    /// Whether the pool belongs to the node despite a difference. The cluster decides which machine has
    /// the name of a node, so another machine matters only if the pool may be of another cluster.
    pub(super) fn is_of(&self, node: &Owner, pool: &Uid) -> bool {
        self.owner.node == node.node && (self.pool == *pool || self.owner.may_be_machine_of(node))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.machine {
            Some(machine) => write!(f, "{} (machine {machine})", self.node),
            None => f.write_str(&self.node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(node: &str, machine: Option<&str>) -> Owner {
        Owner {
            node: node.to_owned(),
            machine: machine.map(str::to_owned),
        }
    }

    #[test]
    fn the_machine_of_a_node_is_kept_until_another_is_known_and_never_that_of_another_node() {
        let found = owner("w1", Some("m1"));
        assert_eq!(found.completed(&owner("w1", None)), found);
        for present in [owner("w1", Some("m2")), owner("w2", None)] {
            assert_eq!(found.completed(&present), present);
        }
    }

    #[test]
    fn a_pool_is_that_of_the_node_of_its_name_unless_machine_and_cluster_are_others() {
        let present = owner("w1", Some("m1"));
        let is_own = |node: &str, machine: Option<&str>, pool: &str| {
            let foreign = ForeignMarker {
                owner: owner(node, machine),
                pool: pool.parse().unwrap(),
                filesystem: Uuid::from_bytes([0; 16]),
            };
            foreign.is_of(&present, &"pool".parse().unwrap())
        };
        assert!(is_own("w1", Some("m1"), "pool"));
        // A restored cluster: the pool has a new UID, the machine is the same.
        assert!(is_own("w1", Some("m1"), "before") && is_own("w1", None, "before"));
        // The machine was reinstalled.
        assert!(is_own("w1", Some("m2"), "pool"));
        // Another cluster may have a node of the same name.
        assert!(!is_own("w1", Some("m2"), "before"));
        // Machines that were copied from one another share their identity.
        assert!(!is_own("w2", Some("m1"), "pool") && !is_own("w2", None, "pool"));
    }
}
