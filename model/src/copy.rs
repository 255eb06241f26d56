//! What an agent does with images that are not the volume's own: it counts, fills and removes them.

use crate::{
    agent::AgentStep,
    guard::Guard,
    protocol::Protocol,
    state::{Epoch, Fence, Image, Node, Purpose, Replica, State, Volume},
};

impl Protocol {
    /// Keeps, fills and removes an image that is not the volume's own.
    pub(crate) fn replica(
        &self,
        state: &mut State,
        node: Node,
        epoch: Epoch,
        step: AgentStep,
    ) -> Option<()> {
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
                if is_attached && self.holds(Guard::RemoveNeedsNothingAttached)
                    || !self.is_unneeded(state, node, &replica)
                {
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

    /// Whether the API server says that the volume does not need the copy: its node has reported it in its present epoch, or it is to
    /// be deleted on another node.
    fn is_unneeded(&self, state: &State, node: Node, replica: &Replica) -> bool {
        let is_copy = replica.purpose == Purpose::Incoming;
        if !is_copy || !self.holds(Guard::UndoneCopyNeedsReady) {
            return true;
        }
        let is_spare = |volume: Volume| {
            let is_reported = volume.status.epoch == volume.epoch;
            is_reported || volume.deletion && volume.node != node
        };
        state.machines.of(node).is_connected() && state.volume.is_none_or(is_spare)
    }

    /// One pass from the other node. The last one is served of a closed image.
    fn pass(&self, state: &mut State, node: Node, epoch: Epoch, replica: Replica) -> Option<()> {
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
