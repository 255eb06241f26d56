//! kubelet and the node plugin: from a pod that is bound to a node to an attached image, and back.
//!
//! kubelet asks the API server before it admits a pod, and retries what it holds also while it is cut off.

use crate::{
    guard::Guard,
    protocol::Protocol,
    state::{Epoch, Fence, Image, Kubelet, Node, State, Volume},
};

/// A step of kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KubeletStep {
    /// Admits the pod, by a live read of claim and PersistentVolume.
    Admit,
    /// Has the volume staged by the current agent process.
    Stage,
    /// Has it staged by an agent process that is to end.
    StageByFormer,
    /// Starts the containers.
    Start,
    /// The pod writes, and the write is acknowledged.
    Write,
    /// Stops the containers of a pod that is deleted, and lets it go.
    Stop,
    /// Has the volume unstaged.
    Unstage,
    /// Reports that the containers of a running pod are gone, after a restart.
    ReportStopped,
}

impl Protocol {
    /// Takes a step of kubelet, if it can be taken.
    pub(crate) fn kubelet(&self, state: &mut State, node: Node, step: KubeletStep) -> Option<()> {
        let machine = *state.machines.of(node);
        if machine.off {
            return None;
        }
        let pod = state.pod.filter(|pod| pod.node == Some(node));
        match (step, machine.kubelet) {
            (KubeletStep::Admit, Kubelet::Idle) if machine.is_connected() => {
                let volume = state.persistent_volume.filter(|it| it.node == node);
                volume?;
                pod.filter(|pod| !pod.terminating && !pod.running)?;
                state.claim.filter(|claim| !claim.lost)?;
                state.machines.of_mut(node).kubelet = Kubelet::Admitted;
            }
            (KubeletStep::Stage, Kubelet::Admitted) if machine.staged.is_none() => {
                let seen = machine.view?.volume;
                let epoch = self.stageable(state, node, seen)?;
                state.machines.of_mut(node).staged = Some(epoch);
            }
            (KubeletStep::StageByFormer, Kubelet::Admitted) if machine.staged.is_none() => {
                let epoch = self.stageable(state, node, Some(machine.former?))?;
                state.machines.of_mut(node).staged = Some(epoch);
            }
            (KubeletStep::Start, Kubelet::Admitted) if machine.staged.is_some() => {
                state.machines.of_mut(node).kubelet = Kubelet::Started;
            }
            (KubeletStep::Start, Kubelet::Started) if machine.is_connected() => {
                let pod = state.pod.as_mut().filter(|pod| pod.node == Some(node))?;
                pod.running = true;
            }
            (KubeletStep::Write, Kubelet::Started) => write(state, node, machine.staged?)?,
            (KubeletStep::Stop, held) if machine.is_connected() => {
                if pod.is_some_and(|pod| !pod.terminating) {
                    return None;
                }
                if pod.is_none() && held == Kubelet::Idle {
                    return None;
                }
                state.machines.of_mut(node).kubelet = Kubelet::Idle;
                state.pod = state.pod.filter(|pod| pod.node != Some(node));
            }
            (KubeletStep::Unstage, Kubelet::Idle) if machine.staged.is_some() => {
                let machine = state.machines.of_mut(node);
                (machine.staged, machine.left_over) = (None, false);
            }
            (KubeletStep::ReportStopped, Kubelet::Idle) if machine.is_connected() => {
                pod?;
                state.pod.as_mut()?.running = false;
            }
            _ => return None,
        }
        Some(())
    }

    /// The epoch of the image that the node plugin stages, if it does.
    fn stageable(&self, state: &State, node: Node, seen: Option<Volume>) -> Option<Epoch> {
        if self.scenario.standby && self.holds(Guard::StageAsksTheApiServer) {
            let is_here = state.volume.is_some_and(|volume| Some(volume) == seen);
            if !is_here || !state.machines.of(node).is_connected() {
                return None;
            }
        }
        let is_open = |image: &Image| {
            image.fence == Fence::Open && !image.copy || !self.holds(Guard::StageNeedsTheDisk)
        };
        let mut images = state.disk(node)?.images.iter();
        if !self.holds(Guard::StageNeedsTheView) {
            return images
                .find(|(_, image)| is_open(image))
                .map(|(epoch, _)| epoch);
        }
        let volume =
            seen.filter(|volume| volume.node == node && !volume.status.deletion_committed)?;
        let is_seen_open = volume.target.is_none();
        let is_reported = volume.status.takeovers == state.disk(node)?.takeovers;
        if !is_reported && self.holds(Guard::StageNeedsTheTakeover)
            || !self.is_ready(&volume) && self.holds(Guard::StageNeedsReady)
        {
            return None;
        }
        let mut found = images.find(|(epoch, _)| *epoch == volume.epoch);
        found = found.filter(|(_, image)| is_open(image));
        // Without the disk's fence, only what the process has seen would keep it from staging.
        found = found.filter(|_| is_seen_open || self.holds(Guard::StageNeedsTheDisk));
        found.map(|(epoch, _)| epoch)
    }
}

/// An acknowledged write. It is in the image that the pod has, and in no other.
fn write(state: &mut State, node: Node, epoch: Epoch) -> Option<()> {
    state.budget.writes = state.budget.writes.checked_sub(1)?;
    let mut image = state.image(node, epoch)?;
    if state.machines.of(node).left_over {
        // Promised: what an isolated pod writes after a promotion may be lost.
        return None;
    }
    image.version = if image.version == state.acknowledged {
        state.acknowledged + 1
    } else {
        Image::DIVERGED
    };
    state.acknowledged += 1;
    state.put_image(node, epoch, Some(image));
    Some(())
}
