//! [`Change`]: what the watches report to the controllers.

/// A change of an object, as reported to the controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Any object may have changed.
    Everything,
    /// A StoragePool, not only in its status.
    Pool(String),
    /// The status of a StoragePool.
    PoolStatus(String),
    /// A StorageNode.
    StorageNode(String),
    /// A PoolVolume.
    Volume {
        /// Name of the object.
        name: String,
        /// The StoragePool that it comes from.
        pool: String,
        /// The node that holds it.
        node: String,
    },
    /// A PoolSnapshot.
    Snapshot {
        /// Name of the object.
        name: String,
        /// The StoragePool that it is in.
        pool: String,
        /// The node that holds it.
        node: String,
        /// The volume that moves, if the snapshot was taken for that.
        moves: Option<String>,
    },
    /// A PoolReplica of this volume.
    Replica(String),
    /// A Node, its CSINode, or the pod of its agent.
    Node(String),
    /// A VolumeMove.
    Move(String),
    /// An ImageTransfer.
    Transfer(String),
    /// A StorageClass.
    Class(String),
    /// A VolumeAttributesClass.
    AttributesClass(String),
    /// A PersistentVolumeClaim.
    Claim {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the object.
        name: String,
    },
    /// A PersistentVolume or VolumeSnapshotContent of this driver.
    Owner,
    /// A CSIStorageCapacity of the operator.
    Capacity {
        /// The StorageClass that it is for.
        class: String,
        /// The value of the topology key that it is for.
        segment: String,
    },
}
