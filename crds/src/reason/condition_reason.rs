//! The reasons of conditions and problems, in groups by what they are mostly about.
//!
//! *Invariant:* a text that is none of these, as another version may write it, is no error: see [`Reason::parse`].

use super::declaration::names;

names! {
    /// The reason of a condition or problem.
    Reason {
        /// The object has not been processed yet.
        ///
        /// No action is needed. If it persists, check the node plugin's pod.
        Pending,
        /// The object matches its spec.
        ///
        /// No action is needed.
        Reconciled,

        // Volumes.
        /// The volume becomes thick and its space is being allocated; the message states the start time
        /// and the progress.
        ///
        /// No action is needed. Pods can use the volume meanwhile.
        Allocating,
        /// The data of the volume is being copied from another node; the message states the start time and
        /// the progress.
        ///
        /// No action is needed. The claim is bound when the copy is complete.
        Copying,
        /// The new volume, or its new part, is being written with zeros, which a volume group needs; the message states the
        /// start time and the progress.
        ///
        /// No action is needed. The claim is bound, or has grown, when this ends.
        Zeroing,
        /// The node that has the snapshot cannot send it now; the message states why.
        ///
        /// Bring that node back, or delete the claim. The copy goes on where it ended.
        SourceUnreachable,
        /// The volume moves to another node, and is closed for that; the message states the VolumeMove.
        ///
        /// No action is needed. Pods that use the volume keep it; others get it once it has moved.
        Moving,
        /// The pool has too little room left for the object.
        ///
        /// Delete volumes or snapshots of the pool, enlarge the pool, or request less.
        NoSpace,
        /// The volume is larger than the pool could hold even when empty.
        ///
        /// Request less, or enlarge the pool.
        TooLarge,
        /// The pool holds as many volumes on the node as its limit allows.
        ///
        /// Delete volumes, or raise `spec.limits` of the StoragePool.
        VolumeLimitReached,
        /// The pool is overcommitted, so it holds thin volumes only.
        ///
        /// Use a class with thin provisioning or a pool with `overcommitPercent: 100`.
        Overcommitted,
        /// The pool is a volume group of LVM, which holds thick volumes only. Its volumes have no snapshots and
        /// clones, and do not move.
        ///
        /// Use a class with `provisioning: thick`. For snapshots, clones and moves use a pool whose source is an
        /// image, or a device with the engine `Image`.
        NotInVolumeGroup,
        /// The node does not carry the pool.
        ///
        /// Check `spec.nodeSelector` of the StoragePool and the labels of the node.
        PoolUnknown,
        /// The pool on this node cannot be used now.
        ///
        /// Follow the conditions of the pool: `kubectl describe storagenode`.
        PoolNotReady,
        /// The pool takes no new volumes on this node, because `spec.cordonedNodes` of the StoragePool
        /// names the node. Existing volumes work, can grow, and can be snapshotted.
        ///
        /// Use another node, or `kubectl cistern uncordon`.
        Cordoned,
        /// Creating the image failed; the agent retries.
        ///
        /// Follow the message. If it persists, check the disk.
        ProvisioningFailed,
        /// Expanding the image failed; the agent retries.
        ///
        /// Follow the message. If it persists, check the disk.
        ExpansionFailed,
        /// Changing the attributes of the volume failed; the agent retries.
        ///
        /// Follow the message. If it persists, check the disk, or go back to the former
        /// VolumeAttributesClass.
        ModificationFailed,
        /// The requested limit of the volume's I/O is above the maximum of its pool.
        ///
        /// Request less, or raise `spec.limits.volumeIO` of the StoragePool.
        LimitTooHigh,
        /// The node cannot enforce limits of the volumes' I/O; the message states what it lacks.
        ///
        /// Use a node with cgroup v2 and a kernel with `CONFIG_BLK_DEV_THROTTLING`, or remove the limits.
        LimitsUnavailable,
        /// Setting the limits of the volume's I/O failed; the agent retries.
        ///
        /// Follow the message.
        LimitsNotSet,
        /// The pool on this node does not accept expansions of its volumes, nor changes from thin to
        /// thick.
        ///
        /// Wait until the pool is ready, or take back the request.
        PoolClosed,
        /// The image has grown and its filesystem has not: it grows when the volume is staged next.
        ///
        /// Restart the pod.
        FilesystemSmaller,
        /// The image that the status describes is not on the disk.
        ///
        /// Look for the image in the pool and among the orphans of the StorageNode. Otherwise restore a
        /// backup.
        ImageMissing,
        /// The image on the disk under this identity belongs to something else.
        ///
        /// Find out what wrote it before you remove anything.
        IdentityConflict,
        /// The filesystem in the image is not the one that was created there.
        ///
        /// Find out what formatted the volume. Restore a backup, or take a snapshot and repair it by hand.
        FilesystemConflict,
        /// The node cannot have encrypted volumes: its kernel or the node plugin lacks what they need.
        ///
        /// Follow the message; see the page on encryption.
        EncryptionUnavailable,
        /// No key of the volume's Secret opens the encrypted image, or the image has no header.
        ///
        /// Put the key that the volume was made with into its Secret, as `previousKey`. If the header was overwritten,
        /// restore a snapshot. Without key or header the data is lost.
        EncryptionConflict,
        /// The filesystem in the image is damaged, and an administrator has to repair it.
        ///
        /// Take a snapshot. Then run the repair tool of the filesystem on the image.
        FilesystemDamaged,
        /// Checking the filesystem needs more resources than a check may use on the node.
        ///
        /// Run the filesystem's own check on the image, as docs/filesystems.md describes.
        TooLargeToCheck,
        /// The filesystem waits for its check.
        ///
        /// No action is needed.
        CheckWaiting,
        /// The filesystem is being checked; the message states the start time and the progress.
        ///
        /// No action is needed.
        CheckRunning,
        /// The filesystem is not being checked.
        ///
        /// No action is needed.
        NotChecking,
        /// The deletion of the data is not requested.
        ///
        /// No action is needed.
        NotRequested,
        /// `spec.deletionRequested` is set and the image is being removed.
        ///
        /// No action is needed.
        DeletionRequested,
        /// The volume is still staged, published or attached on the node.
        ///
        /// End the pods that use it.
        InUse,
        /// Removing the image failed; the agent retries.
        ///
        /// Follow the message. If it persists, check the disk.
        ReclaimFailed,
        /// The object is not being deleted.
        ///
        /// No action is needed.
        NotDeleting,
        /// The object is being deleted without a request to delete its data: it is kept.
        ///
        /// Delete the claim or VolumeSnapshot instead, so that the controller requests the deletion.
        DeletionNotRequested,

        // Snapshots, and volumes created from them.
        /// The pool, or the volume, has as many snapshots as its limit allows.
        ///
        /// Delete snapshots, or raise `spec.limits` of the StoragePool.
        SnapshotLimitReached,
        /// The image has more extents than the pool's limits allow to copy: copying them would block
        /// its writers for too long.
        ///
        /// Delete old snapshots of the volume, copy its data to a new volume, or raise
        /// `spec.limits.maximumExtents` or `spec.limits.maximumStallMilliseconds` of the StoragePool.
        TooManyExtents,
        /// The source of the snapshot or volume is not on the disk.
        ///
        /// Use another source.
        SourceMissing,
        /// A filesystem could not be frozen in time, or the group contains two raw block volumes,
        /// whose writers cannot be frozen.
        ///
        /// Check the disk, and repeat the snapshot. Take raw block volumes one by one.
        FreezeFailed,
        /// Taking the snapshot failed; the agent retries.
        ///
        /// Follow the message. If it persists, check the disk.
        SnapshotFailed,

        // A pool on a node.
        /// The pool's image file, device or volume group is missing.
        ///
        /// Bring the disk back under one of the paths of the StoragePool, or mount it again if the
        /// StoragePool names a directory of it.
        BackingMissing,
        /// The pool's image file or device holds something that is not this pool, or its volume group cannot be used as
        /// it is: it lacks a disk, for example.
        ///
        /// Find out what it is before you remove anything. Name another device. Of a volume group, repair what the
        /// message names.
        BackingConflict,
        /// The pool on the disk belongs to another node, as its marker states.
        ///
        /// Follow "A disk moves to another machine" in docs/recovery.md.
        BelongsToOtherNode,
        /// None of the listed devices is blank or holds this pool, or fewer are blank than the pool has stripes.
        ///
        /// The message states what each device holds. Add a blank device, or wipe one by hand.
        NoUsableDevice,
        /// The pool's filesystem is not mounted, or something else is mounted in its place.
        ///
        /// Unmount what is in its place, or restart the node plugin's pod.
        NotMounted,
        /// The pool's filesystem is read-only.
        ///
        /// Check the disk. The agent mounts the pool again when no pod uses it.
        ReadOnly,
        /// The image file would leave too little room on the filesystem that holds it.
        ///
        /// Free space on the node's disk, or declare a smaller `spec.source.image.size`.
        HostFilesystemFull,
        /// The filesystem for the image file cannot preallocate space for files, or has no direct
        /// I/O.
        ///
        /// Put the image file on XFS, ext4 or btrfs, or use a device.
        HostFilesystemUnfit,
        /// The node does not allow pools in `spec.source.image.directory` of the StoragePool.
        ///
        /// Add the directory to `POOL_DIRECTORIES` of the node plugin, and mount it there, as
        /// `node.poolDirectories` of the chart does; or declare a pool in another directory.
        DirectoryNotAllowed,
        /// `spec.source.image.directory` of the StoragePool does not exist on the node, is not a directory,
        /// is reached by a symbolic link, or is in a pool or volume; or a new pool would be on the filesystem
        /// of `/var/lib/cistern`.
        ///
        /// Mount the disk and create the directory, or declare a pool in another directory. If the disk is
        /// mounted already, delete the pod of the node plugin, which may not see it.
        DirectoryUnusable,
        /// An operation on the pool failed; the message states which.
        ///
        /// Follow the message. If it persists, check the disk.
        PoolFailed,
        /// The pool no longer belongs to this node, or leaves its disk there, and is removed once it is empty.
        ///
        /// Delete or move the volumes that the message names.
        Retiring,
        /// Volumes or images remain, so the pool stays.
        ///
        /// Delete or move what the message names.
        VolumesRemain,

        // Health of a volume.
        /// The image was removed while the volume is in use: its data is lost when the last pod
        /// stops using it.
        ///
        /// Copy the data out of the running pod now. Do not stop the pod before.
        ImageDeleted,
        /// The image is smaller than the volume.
        ///
        /// Find out what truncated it. Restore a backup.
        ImageTooSmall,
        /// The volume's loop device is missing, or bound to something else.
        ///
        /// Restart the pods that use the volume.
        DeviceMissing,
        /// The volume's loop device is read-only, and should not be.
        ///
        /// Check the disk. Then restart the pods that use the volume.
        DeviceReadOnly,
        /// The volume is not mounted where it is staged.
        ///
        /// Restart the pods that use the volume.
        MountMissing,
        /// The volume's filesystem was remounted read-only.
        ///
        /// Check the disk. Then restart the pods that use the volume.
        MountReadOnly,
        /// A thick volume lacks blocks, and they could not be reallocated.
        ///
        /// Make room in the pool. The agent allocates the blocks again.
        BlocksMissing,

        // Health of a volume or a pool.
        /// The filesystem has recorded errors.
        ///
        /// Take a backup, and check the disk. A volume is checked when it is staged next.
        FilesystemErrors,
        /// The filesystem has shut down after an error, until it is mounted again.
        ///
        /// Check the disk. Then end the pods that use it, so that it is mounted again.
        FilesystemShutDown,

        // Health of a pool.
        /// Data written to the pool could not be read back.
        ///
        /// Replace the disk.
        ProbeFailed,
        /// The pool's disk does not answer.
        ///
        /// Check the disk and its connection.
        ProbeTimedOut,
        /// The SCSI or SATA disk under the pool has failed requests since the pool was opened. NVMe and virtio disks have no
        /// counter of failed requests: only the pool's probe detects their errors.
        ///
        /// Take backups, and replace the disk.
        DeviceErrors,
        /// The pool's filesystem is nearly full.
        ///
        /// Delete snapshots or volumes, or enlarge the pool.
        NearlyFull,
        /// Part of the pool's file has no space allocated on the node's disk, and other files can
        /// take it.
        ///
        /// Free space on the node's disk. The agent allocates the file again.
        NotAllocated,
        /// The node's disk has no room for the declared size of the pool's file: the pool keeps its
        /// size.
        ///
        /// Free space on the node's disk, or lower `spec.source.image.size`.
        GrowthDoesNotFit,
        /// Disks that the StoragePool lists are not in the volume group of the pool on this node, because they are
        /// not blank, or cannot be read or added. The pool works without them.
        ///
        /// Wipe a disk on which nothing is needed, as docs/disks.md describes, or remove it from `spec.source.device.paths`.
        DiskNotAdded,
        /// A reason that this version does not know; the message describes it.
        ///
        /// Follow the message.
        OtherProblem,

        // Moves of volumes, set by the operator.
        /// The volume cannot begin to move now; the message states why.
        ///
        /// Follow the message, or delete the VolumeMove.
        NotMovable,
        /// The volume moves together with other volumes, and waits for them.
        ///
        /// No action is needed, unless the message names a VolumeMove that is missing: create it, or use
        /// `kubectl cistern move`.
        WaitingForOthers,
        /// The volume has moved. Its former node keeps the old image until a pod uses the volume, or for five
        /// minutes.
        ///
        /// No action is needed.
        OldImageKept,
        /// The old image or the copy is being removed.
        ///
        /// No action is needed. If it persists, check the node that the message names.
        RemovingImage,
        /// Pods use the volume on its present node, or are bound to a node that it has left.
        ///
        /// End the pods that the message names, or wait until they end.
        PodsRemain,
        /// The volume has been copied while pods use it, and little is left to copy. `spec.cutover` is `Manual`.
        ///
        /// Set `spec.cutover` of the VolumeMove to `Automatic`, or end the pods that the message names.
        ReadyToCutOver,
        /// The standby copy of the volume is as new as its interval demands.
        ///
        /// No action is needed.
        Standby,
        /// The standby copy of the volume is older than two of its intervals.
        ///
        /// Follow the message. If the node of the volume is lost, promote the copy: `kubectl cistern promote`.
        StandbyLags,
        /// The standby copy of the volume cannot be promoted now; the message states why.
        ///
        /// Follow the message, or remove `spec.promotion` of the VolumeMove.
        NotPromotable,
        /// The standby copy is the volume now. The former node of the volume keeps the previous image, which no pod can
        /// mount.
        ///
        /// Copy what you need from it. Then delete the VolumeMove, which removes the image.
        Superseded,
        /// Pods that use the volume cannot be evicted, so that the volume could move.
        ///
        /// Follow the message: wait until the PodDisruptionBudget allows the eviction, or delete the pod.
        EvictionBlocked,
        /// The PersistentVolume of a moved volume cannot be replaced.
        ///
        /// Follow the message. The volume itself has moved.
        PersistentVolumeConflict,

        // Nodes and pools, set by the operator.
        /// kubelet has not registered the driver on the node.
        ///
        /// Describe the node plugin's pod, and read its log.
        DriverNotRegistered,
        /// The Node's topology label is missing or has another value.
        ///
        /// The operator sets it. If it persists, look for what else writes labels of Nodes.
        LabelMissing,
        /// There is no Node of this name.
        ///
        /// Let the machine join the cluster, or forget the node: `kubectl cistern forget-node`.
        NodeMissing,
        /// The Node is gone, and the state of its volumes is unknown.
        ///
        /// Let the machine join the cluster again under the same name. If it is lost for good, closed volumes move
        /// to their complete copies: wait for these first (`kubectl get volumemoves`). If a volume has a standby
        /// copy, promote it: `kubectl cistern promote CLAIM`. After `forget-node` no copy can be promoted. Then run
        /// `kubectl cistern forget-node`.
        NodeGone,
        /// No pod of the node plugin runs on the node.
        ///
        /// Check the taints of the node and the events of the DaemonSet `cistern-node`.
        AgentMissing,
        /// The node plugin's pod on the node is not ready.
        ///
        /// Describe that pod, and read its log.
        AgentNotReady,
        /// Some nodes of the pool are not ready.
        ///
        /// The message names the nodes. Follow their conditions.
        NodesNotReady,
        /// The selector matches no node.
        ///
        /// Correct `spec.nodeSelector` of the StoragePool or label the nodes.
        NoNodes,
        /// The spec cannot be applied; the message states what to change.
        ///
        /// Change the spec as the message states.
        InvalidSpec,
        /// The pool holds thick volumes, or snapshots of them, so it reserves no more than it has.
        ///
        /// Delete them, or set `overcommitPercent` to 100.
        ThickVolumesPresent,
    }
}
