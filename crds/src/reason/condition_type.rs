//! The types of conditions.
//!
//! *Invariant:* the documentation of each names the kinds that have it.

use super::declaration::names;

names! {
    /// The type of a condition.
    ConditionType {
        /// All kinds: the object matches its spec and can be used.
        ///
        /// When `False`, follow the reason and the message.
        Ready,
        /// PoolVolume, StoragePool, StorageNode, and a pool on a node: no problem is known. `Unknown`
        /// while the node or its node plugin does not report.
        ///
        /// When `False`, `status.problems` lists each problem. When `Unknown`, check the node first.
        Healthy,
        /// PoolVolume, PoolSnapshot: the node's ledger has reserved the bytes of the object.
        ///
        /// When `False`, make room in the pool or delete the claim or snapshot.
        Admitted,
        /// PoolVolume: the last requested expansion is complete, including the filesystem.
        ///
        /// When `False`, follow the reason. The volume keeps its previous size and stays usable.
        Expanded,
        /// PoolVolume: the attributes of the spec are in force, for example those of the claim's
        /// VolumeAttributesClass.
        ///
        /// When `False`, follow the reason. The volume stays usable with its previous attributes.
        AttributesApplied,
        /// PoolVolume: the limits of its I/O are in force, or it has none.
        ///
        /// When `False`, the volume works without limits. Follow the reason.
        LimitsEnforced,
        /// PoolVolume: its filesystem is checked before use, or waits for the check.
        ///
        /// When `True`, wait. The pod starts after the check.
        Checking,
        /// PoolVolume, PoolSnapshot: its image is removed, because `spec.deletionRequested` is set.
        ///
        /// When `False` for a deleted claim, the reason states what prevents the removal.
        Reclaimed,
        /// All kinds: the object is being deleted, and something prevents its removal.
        ///
        /// When `True`, remove what the message names, or keep the object.
        DeletionHeld,
        /// StoragePool: the `overcommitPercent` of the spec is in force.
        ///
        /// When `False`, delete the thick volumes of the pool, or set the percentage to 100.
        OvercommitApplied,
        /// StorageNode: CSINode and the label of the Node show the driver and its topology.
        ///
        /// When `False`, the scheduler does not place volumes there. Check the node plugin's pod.
        TopologyRegistered,
        /// StorageNode: the node plugin's pod on this node is ready.
        ///
        /// When `False`, describe that pod.
        AgentReporting,
    }
}
