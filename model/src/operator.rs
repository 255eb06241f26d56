//! The operator: it decides from what it sees and writes later, so that anything can happen in between.
//!
//! A crash is a decision that is not carried out. Two replicas may both believe that they lead. Each has at most one
//! decision; a write that is guarded by a resourceVersion fails if the object has changed since.

use crate::{
    collection::EPOCHS,
    guard::Guard,
    protocol::Protocol,
    schema::Change,
    state::{Epoch, Fence, Image, Kind, Movement, Node, Pod, Purpose, Replica, State, Volume},
};

/// A write of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Creates the object that owns what the source keeps.
    CreateRetained,
    /// Creates the object that owns the copy on the target.
    CreateIncoming,
    /// Declares the target in the volume's spec.
    Declare,
    /// Evicts the pod, within its budgets.
    Evict,
    /// Commits the move. The schema has the last word, not a resourceVersion.
    Commit(Change),
    /// Gives up a move that has not declared its target, by a write to the volume: a declaration that is under way fails.
    Cancel,
    /// Undoes the move. The schema has the last word.
    Undo(Change),
    /// Removes a replica whose image the volume has taken over.
    HandOver(Node, Epoch),
    /// Requests the deletion of a replica with its image.
    DeleteReplica(Node, Epoch),
    /// Writes the PersistentVolume into the move's status: step 1.
    Save,
    /// Patches Retain and the annotation: step 2.
    Patch,
    /// Deletes the PersistentVolume: step 3.
    Delete,
    /// Removes its finalizers: step 4.
    Strip,
    /// Creates the PersistentVolume on the new node, with the policy Retain and the annotation: step 5.
    Create,
    /// Gives the new PersistentVolume its reclaim policy once it is bound, and removes the annotation: step 6.
    Restore,
    /// Deletes a pod that is bound to the old node: step 8.
    DeletePodLeft,
    /// Reports that the move cannot go on.
    Block,
    /// Moves what is on a disk that is in another machine.
    FollowDisk,
    /// Removes the VolumeMove.
    End,
}

impl Decision {
    /// Whether the write names the move that it is for.
    pub(crate) const fn names_the_move(self) -> bool {
        matches!(
            self,
            Self::CreateRetained
                | Self::CreateIncoming
                | Self::Declare
                | Self::Cancel
                | Self::Patch
                | Self::Delete
                | Self::Strip
                | Self::Create
                | Self::Restore
        )
    }

    /// Whether a change of state makes the write fail on its precondition: the resourceVersion of its object, or the UID.
    pub(crate) fn is_outdated(self, before: &State, after: &State) -> bool {
        let uid = |state: &State| state.persistent_volume.map(|found| found.uid);
        match self {
            Self::Declare => before.volume != after.volume,
            Self::Evict | Self::DeletePodLeft => before.pod != after.pod,
            Self::HandOver(node, epoch) | Self::DeleteReplica(node, epoch) => {
                before.replicas.of(node).at(epoch) != after.replicas.of(node).at(epoch)
            }
            Self::Patch | Self::Restore => before.persistent_volume != after.persistent_volume,
            Self::Delete | Self::Strip => uid(before) != uid(after),
            Self::Save | Self::Block | Self::End => before.movement != after.movement,
            // The name that exists, or the schema, refuses these.
            Self::CreateRetained
            | Self::CreateIncoming
            | Self::Create
            | Self::FollowDisk
            | Self::Cancel
            | Self::Commit(_)
            | Self::Undo(_) => false,
        }
    }
}

impl Protocol {
    /// All decisions that the operator can take in a state.
    pub(crate) fn decisions(&self, state: &State) -> Vec<Decision> {
        let mut all = Vec::new();
        if let Some(movement) = state.movement {
            self.decide_move(state, &movement, &mut all);
            self.decide_replacement(state, &movement, &mut all);
        } else if self.disk_has_moved(state) {
            all.push(Decision::FollowDisk);
        }
        self.decide_replicas(state, &mut all);
        all
    }

    /// Whether the disk with the volume's image is in the other machine, which has taken over its pool.
    fn disk_has_moved(&self, state: &State) -> bool {
        let Some(volume) = state.volume.filter(|volume| volume.target.is_none()) else {
            return false;
        };
        let other = volume.node.other();
        let is_own = |epoch| {
            let is_named = state.replicas.of(other).at(epoch).is_some();
            !is_named && self.found(state, other, epoch).is_some_and(|it| !it.copy)
        };
        (0..=volume.epoch).any(is_own)
    }

    /// An image on a disk that is in a machine, and whose pool the node has taken over.
    fn found(&self, state: &State, node: Node, epoch: Epoch) -> Option<Image> {
        if self.holds(Guard::TakeoverNeedsTheMarker) {
            return state.image(node, epoch);
        }
        let disks = Node::ALL.map(|home| *state.disks.of(home));
        let disk = disks.iter().find(|disk| disk.place == Some(node))?;
        disk.images.at(epoch)
    }

    fn decide_move(&self, state: &State, movement: &Movement, all: &mut Vec<Decision>) {
        let Some(volume) = state.volume else {
            all.push(Decision::End);
            return;
        };
        let is_before = movement.plan.is_before_commit(&volume);
        let is_given_up = self.is_given_up(state, movement, &volume);
        if is_before && !is_given_up && volume.target.is_none() {
            self.decide_declaration(state, movement, all);
        }
        let is_cancelled = volume.cancelled >= movement.plan.uid;
        if is_before && is_given_up && volume.target.is_none() && !is_cancelled {
            all.push(Decision::Cancel);
        }
        let is_declared = volume.target.is_some_and(|it| it.uid == movement.plan.uid);
        if is_before && is_declared {
            let is_closing = volume.fence_for(movement.plan.uid) == Some(Fence::Closing);
            let is_evictable = |pod: &Pod| pod.node == Some(movement.plan.from) && !pod.terminating;
            if is_closing && state.pod.as_ref().is_some_and(is_evictable) {
                all.push(Decision::Evict);
            }
            if is_given_up && !self.is_rescued(state, movement, &volume) {
                all.push(Decision::Undo(Change::undo(&movement.plan)));
            } else if self.may_commit(state, movement) {
                all.push(Decision::Commit(Change::commit(&movement.plan)));
            }
        }
        if !movement.blocked && self.is_stuck(state, movement) {
            all.push(Decision::Block);
        }
        if self.has_ended(state, movement, &volume) {
            all.push(Decision::End);
        }
    }

    /// Whether the move is to be undone, if it still can be.
    pub(crate) fn is_given_up(&self, state: &State, movement: &Movement, volume: &Volume) -> bool {
        let is_deleted = volume.deletion && self.holds(Guard::DeletionUndoesTheMove);
        let to = movement.plan.to();
        let is_target_lost = match movement.plan.kind {
            Kind::Move => state.disk(to).is_none(),
            Kind::Takeover => !self.disk_is_at(state, to),
            Kind::Promotion => false,
        };
        movement.undo || is_deleted || is_target_lost
    }

    /// Whether a move that is given up is committed nevertheless: the source has closed its image and lost it, and the copy is
    /// complete.
    fn is_rescued(&self, state: &State, movement: &Movement, volume: &Volume) -> bool {
        let plan = &movement.plan;
        let is_lost = state.disk(plan.from).is_none() && state.disk(plan.to()).is_some();
        let is_closed = volume.fence_for(plan.uid) == Some(Fence::Closed);
        let is_at_risk = plan.kind == Kind::Move && is_lost && is_closed && !volume.deletion;
        is_at_risk && self.may_commit(state, movement)
    }

    fn disk_is_at(&self, state: &State, node: Node) -> bool {
        let mut epochs = 0..EPOCHS;
        epochs.any(|epoch| self.found(state, node, epoch).is_some())
    }

    fn decide_declaration(&self, state: &State, movement: &Movement, all: &mut Vec<Decision>) {
        let own = |replica: Option<Replica>| replica.filter(|it| it.uid == movement.plan.uid);
        let retained = state.replicas.of(movement.plan.from).at(movement.plan.base);
        let copy = state
            .replicas
            .of(movement.plan.to())
            .at(movement.plan.base + 1);
        let keeps_source = movement.plan.kind != Kind::Takeover;
        let needs_retained = self.holds(Guard::DeclareNeedsWhatIsRetained);
        if keeps_source && retained.is_none() {
            all.push(Decision::CreateRetained);
        }
        let is_kept = own(retained).is_some() || !needs_retained;
        if movement.plan.kind == Kind::Move && is_kept && copy.is_none() {
            all.push(Decision::CreateIncoming);
        }
        let is_prepared = match movement.plan.kind {
            Kind::Move => {
                let keeps = own(retained).is_some_and(|it| it.reserved && !it.deletion);
                let admits = own(copy).is_some_and(|it| it.reserved && !it.deletion);
                (keeps || !self.holds(Guard::DeclareNeedsWhatIsRetained))
                    && (admits || !self.holds(Guard::DeclareNeedsRoom))
            }
            Kind::Takeover => self.disk_is_at(state, movement.plan.to()),
            Kind::Promotion => {
                let keeps =
                    own(retained).is_some() || !self.holds(Guard::DeclareNeedsWhatIsRetained);
                keeps && copy.is_some_and(|it| it.purpose == Purpose::Standby && it.complete)
            }
        };
        if is_prepared {
            all.push(Decision::Declare);
        }
    }

    fn may_commit(&self, state: &State, movement: &Movement) -> bool {
        if movement.plan.kind == Kind::Takeover {
            return true;
        }
        let copy = state
            .replicas
            .of(movement.plan.to())
            .at(movement.plan.base + 1);
        copy.is_some_and(|it| it.complete && !it.deletion) || !self.holds(Guard::CommitNeedsTheCopy)
    }

    /// Whether the move waits for a disk that is lost: for the data of the source, or for an image to remove.
    fn is_stuck(&self, state: &State, movement: &Movement) -> bool {
        let is_lost = |node: &Node| state.disk(*node).is_none();
        movement.plan.kind == Kind::Move && Node::ALL.iter().any(is_lost)
    }

    fn has_ended(&self, state: &State, movement: &Movement, volume: &Volume) -> bool {
        let is_own = |replica: Replica| replica.uid == movement.plan.uid;
        let mut replicas = Node::ALL
            .iter()
            .flat_map(|node| state.replicas.of(*node).iter());
        if replicas.any(|(_, replica)| is_own(replica)) {
            return false;
        }
        if movement.plan.is_committed(volume) {
            // The disk may have left again.
            let is_away =
                movement.plan.kind == Kind::Takeover && !self.disk_is_at(state, movement.plan.to());
            let has_policy = |annotation| {
                annotation != Some(movement.plan.uid)
                    || state.claim.is_none()
                    || !self.holds(Guard::PolicyIsRestored)
            };
            let follows = state
                .persistent_volume
                .is_some_and(|it| it.node == volume.node && has_policy(it.annotation));
            return (is_away || self.is_ready(volume))
                && (follows || volume.deletion || !self.holds(Guard::PersistentVolumeFollows))
                && !self.has_pod_left(state, movement);
        }
        let is_undone = volume.epoch > movement.plan.base;
        volume.target.is_none() && (is_undone || self.is_cancelled(state, movement.plan.uid))
    }

    /// Whether a pod is still bound to the node that the volume has left. It cannot run there.
    pub(crate) fn has_pod_left(&self, state: &State, movement: &Movement) -> bool {
        let is_left = |pod: Pod| pod.node == Some(movement.plan.from);
        state.pod.is_some_and(is_left)
    }
}
