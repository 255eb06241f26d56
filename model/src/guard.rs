//! The preconditions of the protocol, one by one. A check of the model without a guard has to find what it prevents.

/// A precondition of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guard {
    /// The schema allows the commit of a move only with the fence of the old epoch, closed for that move, in the status.
    CommitNeedsTheFence,
    /// An undo raises the epoch.
    UndoRaisesTheEpoch,
    /// The operator commits only a copy that is complete.
    CommitNeedsTheCopy,
    /// The operator declares a target only once the source counts the image by an object of its own.
    DeclareNeedsWhatIsRetained,
    /// The operator declares a target only once the target has admitted the copy.
    DeclareNeedsRoom,
    /// The operator gives up the object of a copy only once the volume's own status counts it.
    HandOverNeedsReady,
    /// The operator gives up what the source keeps only once the target is ready and the PersistentVolume has followed.
    ReleaseNeedsReady,
    /// The complete copy of a move that was undone is removed only once the source has reported the volume again.
    UndoneCopyNeedsReady,
    /// A replica that hands its image over to the volume is removed without its image.
    HandOverKeepsTheImage,
    /// A move that is given up before its declaration is cancelled by a write to the volume, before its replicas go.
    CancelIsWrittenFirst,
    /// The operator undoes a move whose volume is to be deleted.
    DeletionUndoesTheMove,
    /// Replicas of moves that are over are collected.
    ReplicasAreCollected,
    /// The PersistentVolume is replaced only after the commit.
    ReplaceAfterCommit,
    /// The PersistentVolume is saved in the move's status before it is deleted.
    SaveBeforeDelete,
    /// The PersistentVolume is created again also if its claim is gone.
    CreateNeedsNoClaim,
    /// The PersistentVolume that was created again gets its reclaim policy, and the move ends only after that.
    PolicyIsRestored,
    /// A pod that is bound to the old node is deleted, and the move ends only after that.
    PodLeftIsDeleted,
    /// The agent stages only a volume that its view places on its node.
    StageNeedsTheView,
    /// The agent stages only a volume whose status of this epoch says that it is ready.
    StageNeedsReady,
    /// The agent stages only an image that the disk has open.
    StageNeedsTheDisk,
    /// The agent of a volume with a standby copy asks the API server before it stages.
    StageAsksTheApiServer,
    /// The agent closes an image only while nothing is attached.
    CloseNeedsNothingAttached,
    /// The agent reports a closed fence only when it survives a power failure.
    FenceIsSynced,
    /// The agent reports a copy as complete only when it survives a power failure.
    CopyIsSynced,
    /// The source serves the last pass only of a closed image.
    LastPassNeedsTheFence,
    /// The agent also takes up an image that is several epochs old, if no replica names it.
    TakeUpFindsOlderImages,
    /// The agent treats a status of another epoch as empty.
    StatusOfAnotherEpochIsEmpty,
    /// The agent removes no image that is attached.
    RemoveNeedsNothingAttached,
    /// An image that a replica names is no orphan.
    ReplicaOwnsItsImage,
    /// The agent forgets a volume that leaves its watch only after it has seen the replicas of that moment.
    ReplicasAreSeenFirst,
    /// The ledger counts an image once, whatever objects name it.
    LedgerCountsImages,
    /// A copy that was complete is not begun again.
    CompleteIsNotCopiedAgain,
    /// The agent copies only what it has reserved.
    CopyNeedsReservation,
    /// The pool's marker names the new node before the volumes of a disk that moved are committed there.
    TakeoverNeedsTheMarker,
    /// The schema allows the commit of a takeover only if no agent has reported a later one.
    TakeoverIsNewer,
    /// The agent stages from a pool only once the volume's status has the number of the pool's last takeover.
    StageNeedsTheTakeover,
    /// The PersistentVolumes of a disk that moved follow.
    PersistentVolumeFollows,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 37] = [
        Self::CommitNeedsTheFence,
        Self::UndoRaisesTheEpoch,
        Self::CommitNeedsTheCopy,
        Self::DeclareNeedsWhatIsRetained,
        Self::DeclareNeedsRoom,
        Self::HandOverNeedsReady,
        Self::ReleaseNeedsReady,
        Self::UndoneCopyNeedsReady,
        Self::HandOverKeepsTheImage,
        Self::CancelIsWrittenFirst,
        Self::DeletionUndoesTheMove,
        Self::ReplicasAreCollected,
        Self::ReplaceAfterCommit,
        Self::SaveBeforeDelete,
        Self::CreateNeedsNoClaim,
        Self::PolicyIsRestored,
        Self::PodLeftIsDeleted,
        Self::StageNeedsTheView,
        Self::StageNeedsReady,
        Self::StageNeedsTheDisk,
        Self::StageAsksTheApiServer,
        Self::CloseNeedsNothingAttached,
        Self::FenceIsSynced,
        Self::CopyIsSynced,
        Self::LastPassNeedsTheFence,
        Self::TakeUpFindsOlderImages,
        Self::StatusOfAnotherEpochIsEmpty,
        Self::RemoveNeedsNothingAttached,
        Self::ReplicaOwnsItsImage,
        Self::ReplicasAreSeenFirst,
        Self::LedgerCountsImages,
        Self::CompleteIsNotCopiedAgain,
        Self::CopyNeedsReservation,
        Self::TakeoverNeedsTheMarker,
        Self::TakeoverIsNewer,
        Self::StageNeedsTheTakeover,
        Self::PersistentVolumeFollows,
    ];
}
