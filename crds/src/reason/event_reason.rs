//! The reasons of events that the operator publishes.
//!
//! *Invariant:* the documentation of each names the kinds on which it is published.

use super::declaration::names;

names! {
    /// The reason of an event that the operator publishes.
    EventReason {
        // On PersistentVolumeClaims.
        /// On a claim and its StorageClass: the parameters of the class are wrong.
        ///
        /// Delete the class and create it again with correct parameters.
        InvalidParameters,
        /// On a claim and its StorageClass: the class names a StoragePool that does not exist.
        ///
        /// Create the pool, or use another class.
        PoolMissing,
        /// On a claim and its StorageClass: the class requests thick provisioning in an overcommitted pool.
        ///
        /// Use a class with thin provisioning or another pool.
        PoolOvercommitted,
        /// On a claim and its StorageClass: the pool is a volume group, and the class requests a thin volume.
        ///
        /// Use a class with `provisioning: thick`, or another pool.
        PoolIsVolumeGroup,
        /// On a claim: no node carries the pool.
        ///
        /// Correct `spec.nodeSelector` of the StoragePool or label the nodes.
        NoNodes,
        /// On a claim: the pool is not ready on any node.
        ///
        /// Follow the conditions of the pool: `kubectl describe storagenode`.
        PoolNotReady,
        /// On a claim: no node has enough room left in the pool.
        ///
        /// Delete volumes or snapshots, enlarge the pool, or request less.
        NoSpace,
        /// On a claim: the request is larger than the pool could hold on any node.
        ///
        /// Request less, or enlarge the pool.
        TooLarge,
        /// On a claim: its volume was not expanded.
        ///
        /// Follow the message: make room, or lower the request.
        VolumeNotExpanded,
        /// On a claim: the attributes of its VolumeAttributesClass are not applied to its volume.
        ///
        /// Follow the message, or go back to the former VolumeAttributesClass.
        VolumeNotModified,
        /// On a claim: its volume works without the limits of its I/O.
        ///
        /// Follow the message, or remove the limits.
        VolumeNotLimited,

        /// On a claim: its volume is on another node now, and the PersistentVolume names that node.
        ///
        /// No action is needed. Pods are scheduled to that node.
        VolumeMoved,

        // On claims, and on pods that use them.
        /// On claims and pods: the volume becomes thick and its space is being allocated.
        ///
        /// No action is needed. Pods can use the volume meanwhile.
        VolumeAllocating,
        /// On claims and pods: the allocation has ended.
        ///
        /// No action is needed.
        VolumeAllocated,
        /// On claims and pods: the filesystem of the volume is being checked.
        ///
        /// Wait. The pod starts after the check.
        VolumeChecking,
        /// On claims and pods: the check has ended.
        ///
        /// No action is needed.
        VolumeChecked,
        /// On claims and pods: the volume works, and has a problem.
        ///
        /// Follow the message, and take a backup.
        VolumeDegraded,
        /// On claims and pods: the data of the volume exists and cannot be reached.
        ///
        /// Follow the message.
        VolumeInaccessible,
        /// On claims and pods: data of the volume is lost, or will be when its pods end.
        ///
        /// Do not stop the pods. Follow "CisternVolumeDataLoss" in docs/runbook.md.
        VolumeDataLoss,
        /// On claims and pods: all problems of the volume have ended.
        ///
        /// No action is needed.
        VolumeRecovered,

        // On StoragePools and StorageNodes.
        /// On a StorageNode and its StoragePool: the pool works on the node, and has a problem.
        ///
        /// Follow the message.
        PoolDegraded,
        /// On a StorageNode and its StoragePool: the pool on the node cannot be read or written.
        ///
        /// Follow "CisternPoolUnreachable" in docs/runbook.md.
        PoolUnreachable,
        /// On a StorageNode and its StoragePool: all problems of the pool on the node have ended.
        ///
        /// No action is needed.
        PoolRecovered,
        /// On a StoragePool: the `overcommitPercent` of the spec is not applied.
        ///
        /// Delete the thick volumes of the pool, or set the percentage to 100.
        OvercommitRefused,
        /// On a StorageNode: the node plugin does not report.
        ///
        /// Follow "CisternAgentSilent" in docs/runbook.md.
        AgentSilent,
        /// On a StorageNode: the node plugin reports again.
        ///
        /// No action is needed.
        AgentReporting,
        /// On a StorageNode: its disks, mounts and custom resources disagree.
        ///
        /// Follow "CisternDrift" in docs/runbook.md.
        DriftDetected,
        /// On a StorageNode and its StoragePool: the pool has images that no object claims.
        ///
        /// Follow "CisternOrphans" in docs/runbook.md.
        ImagesWithoutOwner,
        /// On a StorageNode and its StoragePool: the pool has images whose objects name another node.
        ///
        /// Follow "A disk moves to another machine" in docs/recovery.md.
        ImagesOfAnotherNode,

        // On PoolVolumes and PoolSnapshots.
        /// On a PoolVolume or PoolSnapshot: no PersistentVolume or VolumeSnapshotContent refers to it.
        ///
        /// The message states how to adopt it and how to delete it.
        Unclaimed,
    }
}
