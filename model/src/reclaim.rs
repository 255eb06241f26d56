//! How an agent removes the volume's image, and images that no object names.

use crate::{
    agent::{AgentStep, report, seen_volume},
    guard::Guard,
    protocol::Protocol,
    state::{Epoch, Node, State},
};

impl Protocol {
    /// Removes the image of a volume whose deletion is requested.
    pub(crate) fn reclaim(&self, state: &mut State, node: Node, step: AgentStep) -> Option<()> {
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

    pub(crate) fn reclaim_orphan(&self, state: &mut State, node: Node, epoch: Epoch) -> Option<()> {
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
