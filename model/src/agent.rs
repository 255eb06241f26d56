//! The agent of a node: it acts on the disk by what its watches have shown, and writes only status, guarded by the
//! resourceVersion that it has seen.

use crate::{
    guard::Guard,
    protocol::Protocol,
    state::{Epoch, Fence, Image, Kind, Node, Replica, State, Status, View, Volume},
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
        let reported = if volume.status.epoch == epoch && volume.status.fence_for == target.uid {
            volume.status.fence
        } else {
            Fence::Open
        };
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

    /// Keeps, fills and removes an image that is not the volume's own.
    fn replica(&self, state: &mut State, node: Node, epoch: Epoch, step: AgentStep) -> Option<()> {
        let replica = state.machines.of(node).view?.replicas.at(epoch)?;
        let image = state.image(node, epoch);
        state.disk(node)?;
        match step {
            AgentStep::Reserve(_) if !replica.reserved && !replica.deletion => {
                report_replica(state, node, epoch, |replica| replica.reserved = true)
            }
            AgentStep::Pass(_) if !replica.deletion => {
                let is_missing = replica.complete && image.is_none();
                if !replica.reserved && self.holds(Guard::CopyNeedsReservation)
                    || is_missing && self.holds(Guard::CompleteIsNotCopiedAgain)
                {
                    return None;
                }
                self.pass(state, node, epoch, replica)
            }
            AgentStep::ReportComplete(_) => {
                let image = image.filter(|image| image.copy && image.complete)?;
                if replica.complete || !image.synced && self.holds(Guard::CopyIsSynced) {
                    return None;
                }
                report_replica(state, node, epoch, |replica| replica.complete = true)
            }
            AgentStep::RemoveCopy(_) if replica.deletion && image.is_some() => {
                let is_attached = state.machines.of(node).staged == Some(epoch);
                if is_attached && self.holds(Guard::RemoveNeedsNothingAttached) {
                    return None;
                }
                state.put_image(node, epoch, None);
                Some(())
            }
            AgentStep::ReportRemoved(_) if replica.deletion && image.is_none() => {
                let is_current = state.replicas.of(node).at(epoch) == Some(replica);
                if !is_current || !state.machines.of(node).is_connected() {
                    return None;
                }
                state.replicas.of_mut(node).put(epoch, None);
                state
                    .machines
                    .of_mut(node)
                    .view
                    .as_mut()?
                    .replicas
                    .put(epoch, None);
                Some(())
            }
            _ => None,
        }
    }

    /// One pass from the other node. The last one is served of a closed image.
    fn pass(&self, state: &mut State, node: Node, epoch: Epoch, replica: Replica) -> Option<()> {
        use crate::state::Purpose;
        let reaches = |node| state.machines.of(node).is_connected();
        let source = state.image(node.other(), epoch.checked_sub(1)?)?;
        let present = state.image(node, epoch);
        let is_done = present.is_some_and(|image| !image.copy || image.complete);
        let is_final = source.fence == Fence::Closed || !self.holds(Guard::LastPassNeedsTheFence);
        // A standby copy is complete at the end of each pass, because a pass is applied to a reflink of the last one.
        let follows = replica.purpose == Purpose::Standby;
        if !Node::ALL.into_iter().all(reaches)
            || source.copy
            || is_done && !follows
            || present.is_some_and(|image| !image.copy)
        {
            return None;
        }
        let copy = Image {
            copy: true,
            complete: is_final || follows,
            version: source.version,
            fence: Fence::Closed,
            synced: follows,
        };
        state.put_image(node, epoch, Some(copy));
        Some(())
    }

    /// Removes the image of a volume whose deletion is requested.
    fn reclaim(&self, state: &mut State, node: Node, step: AgentStep) -> Option<()> {
        let volume = seen_volume(state, node)?;
        let epoch = volume.epoch;
        let is_asked = volume.deletion && volume.target.is_none() && self.is_ready(&volume);
        let is_committed = volume.status.deletion_committed;
        let is_attached = state.machines.of(node).staged == Some(epoch);
        match step {
            AgentStep::CommitDeletion if is_asked && !is_committed && !is_attached => {
                report(state, node, |status| status.deletion_committed = true)
            }
            AgentStep::Reclaim if is_asked && is_committed => {
                state.image(node, epoch)?;
                state.put_image(node, epoch, None);
                Some(())
            }
            AgentStep::ReportReclaimed if is_asked && is_committed => {
                state.disk(node)?;
                if state.image(node, epoch).is_some() {
                    return None;
                }
                report(state, node, |_| {})?;
                state.volume = None;
                state.machines.of_mut(node).view.as_mut()?.volume = None;
                Some(())
            }
            _ => None,
        }
    }

    fn reclaim_orphan(&self, state: &mut State, node: Node, epoch: Epoch) -> Option<()> {
        let view = state.machines.of(node).view?;
        let image = state.image(node, epoch)?;
        let is_attached = state.machines.of(node).staged == Some(epoch);
        let is_of_volume = view
            .volume
            .is_some_and(|volume| volume.epoch == epoch || volume.epoch > epoch && !image.copy);
        let is_of_replica =
            view.replicas.at(epoch).is_some() && self.holds(Guard::ReplicaOwnsItsImage);
        if is_attached || is_of_volume || is_of_replica || !self.scenario.orphans {
            return None;
        }
        state.put_image(node, epoch, None);
        Some(())
    }
}

/// The volume, if the agent's watch shows it on its node.
fn seen_volume(state: &State, node: Node) -> Option<Volume> {
    state.machines.of(node).view?.volume
}

/// Writes the volume's status. It fails if the volume is not the one that was seen.
fn report(state: &mut State, node: Node, change: impl FnOnce(&mut Status)) -> Option<()> {
    let mut volume = seen_volume(state, node)?;
    if state.volume != Some(volume) || !state.machines.of(node).is_connected() {
        return None;
    }
    change(&mut volume.status);
    state.volume = Some(volume);
    state.machines.of_mut(node).view.as_mut()?.volume = Some(volume);
    Some(())
}

/// Writes the status of a replica. It fails if the replica is not the one that was seen.
fn report_replica(
    state: &mut State,
    node: Node,
    epoch: Epoch,
    change: impl FnOnce(&mut Replica),
) -> Option<()> {
    let mut replica = state.machines.of(node).view?.replicas.at(epoch)?;
    if state.replicas.of(node).at(epoch) != Some(replica) || !state.machines.of(node).is_connected()
    {
        return None;
    }
    change(&mut replica);
    state.replicas.of_mut(node).put(epoch, Some(replica));
    let view = state.machines.of_mut(node).view.as_mut()?;
    view.replicas.put(epoch, Some(replica));
    Some(())
}
