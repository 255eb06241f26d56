//! The agent of a node: it acts on the disk by what its watches have shown, and writes only status, guarded by the
//! resourceVersion that it has seen.

use crate::{
    guard::Guard,
    protocol::Protocol,
    state::{Epoch, Fence, Image, Kind, Node, State, Status, View, Volume},
};

/// A step of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentStep {
    /// Lists both kinds after its start.
    List,
    /// Sees the volume as it is now.
    WatchVolume,
    /// Sees the replicas as they are now.
    WatchReplicas,
    /// Marks the image as closing, on the disk.
    BeginClosing,
    /// Reports that.
    ReportClosing,
    /// Renames the image out of the folder that is attached from, under the exclusive lock.
    Close,
    /// Syncs the folder, or the copy.
    Sync(Epoch),
    /// Reports the closed fence.
    ReportClosed,
    /// Takes up the volume's own image of the epoch before: after an undo, or on a disk that moved.
    TakeUp,
    /// Takes up a copy as the volume's image, after the commit.
    OpenCopy,
    /// Reports that the image of this epoch is there and counted.
    ReportReady,
    /// Reports the number of the pool's last takeover.
    ReportTakeover,
    /// Reserves the bytes of a replica.
    Reserve(Epoch),
    /// Copies what the source has now.
    Pass(Epoch),
    /// Reports that a copy is complete.
    ReportComplete(Epoch),
    /// Removes the image of a replica.
    RemoveCopy(Epoch),
    /// Reports that, and the replica goes.
    ReportRemoved(Epoch),
    /// Commits itself to remove the volume's image.
    CommitDeletion,
    /// Removes the volume's image.
    Reclaim,
    /// Reports that, and the volume goes.
    ReportReclaimed,
    /// Removes an image that no object names, where the pool allows that.
    ReclaimOrphan(Epoch),
    /// Writes its node into the marker of a pool that it was granted.
    WriteMarker,
}

impl Protocol {
    /// Takes a step of an agent, if it can be taken.
    pub(crate) fn agent(&self, state: &mut State, node: Node, step: AgentStep) -> Option<()> {
        if state.machines.of(node).off {
            return None;
        }
        match step {
            AgentStep::List | AgentStep::WatchVolume | AgentStep::WatchReplicas => {
                self.watch(state, node, step)
            }
            AgentStep::BeginClosing
            | AgentStep::ReportClosing
            | AgentStep::Close
            | AgentStep::ReportClosed => self.fence(state, node, step),
            AgentStep::TakeUp | AgentStep::OpenCopy | AgentStep::ReportReady => {
                self.own(state, node, step)
            }
            AgentStep::Reserve(epoch)
            | AgentStep::Pass(epoch)
            | AgentStep::ReportComplete(epoch)
            | AgentStep::RemoveCopy(epoch)
            | AgentStep::ReportRemoved(epoch) => self.replica(state, node, epoch, step),
            AgentStep::CommitDeletion | AgentStep::Reclaim | AgentStep::ReportReclaimed => {
                self.reclaim(state, node, step)
            }
            AgentStep::Sync(epoch) => {
                let mut image = state.image(node, epoch).filter(|image| !image.synced)?;
                image.synced = true;
                state.put_image(node, epoch, Some(image));
                Some(())
            }
            AgentStep::ReportTakeover => {
                let takeovers = state.disk(node)?.takeovers;
                report(state, node, |status| status.takeovers = takeovers)
            }
            AgentStep::ReclaimOrphan(epoch) => self.reclaim_orphan(state, node, epoch),
            AgentStep::WriteMarker => {
                let home = Node::ALL.into_iter().find(|home| {
                    let disk = state.disks.of(*home);
                    disk.place == Some(node) && disk.marker != node
                })?;
                let disk = state.disks.of_mut(home);
                (disk.marker, disk.takeovers) = (node, disk.takeovers + 1);
                Some(())
            }
        }
    }

    fn watch(&self, state: &mut State, node: Node, step: AgentStep) -> Option<()> {
        let volume = state.volume.filter(|volume| volume.node == node);
        let replicas = *state.replicas.of(node);
        let machine = state.machines.of_mut(node);
        if !machine.is_connected() {
            return None;
        }
        match (step, machine.view.as_mut()) {
            (AgentStep::List, None) => machine.view = Some(View { volume, replicas }),
            (AgentStep::WatchVolume, Some(view)) if view.volume != volume => {
                if volume.is_none() && self.holds(Guard::ReplicasAreSeenFirst) {
                    view.replicas = replicas;
                }
                view.volume = volume;
            }
            (AgentStep::WatchReplicas, Some(view)) if view.replicas != replicas => {
                view.replicas = replicas;
            }
            _ => return None,
        }
        Some(())
    }

    /// Closes the image for a move, in two states.
    fn fence(&self, state: &mut State, node: Node, step: AgentStep) -> Option<()> {
        let volume = seen_volume(state, node)?;
        let target = volume.target.filter(|target| target.kind == Kind::Move)?;
        let epoch = volume.epoch;
        let mut image = state.image(node, epoch).filter(|image| !image.copy)?;
        let reported = volume.fence_for(target.uid).unwrap_or(Fence::Open);
        match (step, image.fence, reported) {
            (AgentStep::BeginClosing, Fence::Open, _) => {
                (image.fence, image.synced) = (Fence::Closing, false);
            }
            (AgentStep::Close, Fence::Closing, Fence::Closing) => {
                let is_attached = state.machines.of(node).staged == Some(epoch);
                if is_attached && self.holds(Guard::CloseNeedsNothingAttached) {
                    return None;
                }
                (image.fence, image.synced) = (Fence::Closed, false);
            }
            (AgentStep::ReportClosing, Fence::Closing, Fence::Open)
                if image.synced || !self.holds(Guard::FenceIsSynced) =>
            {
                return report(state, node, |status| {
                    (status.fence, status.fence_for) = (Fence::Closing, target.uid);
                });
            }
            (AgentStep::ReportClosed, Fence::Closed, Fence::Closing)
                if image.synced || !self.holds(Guard::FenceIsSynced) =>
            {
                return report(state, node, |status| {
                    (status.fence, status.fence_for) = (Fence::Closed, target.uid);
                });
            }
            _ => return None,
        }
        state.put_image(node, epoch, Some(image));
        Some(())
    }

    /// Makes the volume's image that of its epoch.
    fn own(&self, state: &mut State, node: Node, step: AgentStep) -> Option<()> {
        let volume = seen_volume(state, node)?;
        let epoch = volume.epoch;
        if self.is_ready(&volume) {
            return None;
        }
        let present = state.image(node, epoch);
        let takeovers = state.disk(node)?.takeovers;
        match (step, present) {
            (AgentStep::TakeUp, None) => {
                let (former, mut image) = self.former_image(state, node, epoch)?;
                (image.copy, image.fence, image.synced) = (false, Fence::Open, true);
                state.put_image(node, former, None);
                state.put_image(node, epoch, Some(image));
                // A rename does not touch what is attached.
                let staged = &mut state.machines.of_mut(node).staged;
                *staged = staged.map(|it| if it == former { epoch } else { it });
            }
            (AgentStep::OpenCopy, Some(mut image)) if image.copy && image.complete => {
                (image.copy, image.fence) = (false, Fence::Open);
                state.put_image(node, epoch, Some(image));
                if self.scenario.standby {
                    // The administrator has accepted the loss of what the copy lacks.
                    state.acknowledged = image.version;
                }
            }
            (AgentStep::ReportReady, Some(image)) if !image.copy => {
                return report(state, node, |status| {
                    *status = Status {
                        epoch,
                        ready: true,
                        takeovers,
                        fence: Fence::Open,
                        fence_for: 0,
                        deletion_committed: false,
                    };
                });
            }
            _ => return None,
        }
        Some(())
    }

    /// The volume's own image of an earlier epoch. After an undo it is that of the epoch before. A disk may have moved
    /// more than once before an agent saw it; then no replica names the image.
    fn former_image(&self, state: &State, node: Node, epoch: Epoch) -> Option<(Epoch, Image)> {
        let replicas = state.machines.of(node).view?.replicas;
        let is_next = |former| former + 1 == epoch;
        let may = |former| {
            let is_free =
                replicas.at(former).is_none() && self.holds(Guard::TakeUpFindsOlderImages);
            former < epoch && (is_next(former) || is_free)
        };
        let images = state.disk(node)?.images.iter();
        images
            .filter(|(former, image)| may(*former) && !image.copy)
            .last()
    }
}

/// The volume, if the agent's watch shows it on its node.
pub(crate) fn seen_volume(state: &State, node: Node) -> Option<Volume> {
    state.machines.of(node).view?.volume
}

/// Writes the volume's status. It fails if the volume is not the one that was seen.
pub(crate) fn report(
    state: &mut State,
    node: Node,
    change: impl FnOnce(&mut Status),
) -> Option<()> {
    let mut volume = seen_volume(state, node)?;
    if state.volume != Some(volume) || !state.machines.of(node).is_connected() {
        return None;
    }
    change(&mut volume.status);
    state.volume = Some(volume);
    state.machines.of_mut(node).view.as_mut()?.volume = Some(volume);
    Some(())
}
