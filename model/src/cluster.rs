//! Everything around Cistern: Kubernetes' own controllers, the administrator, and what breaks.

use crate::{
    guard::Guard,
    protocol::Protocol,
    state::{Claim, Disk, Fence, Kind, Kubelet, Node, Pod, Purpose, State},
    write,
};

/// A step of Kubernetes' controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClusterStep {
    /// The workload makes a pod.
    CreatePod,
    /// The scheduler binds the pod to the node of the PersistentVolume, also of one that is being deleted.
    Schedule,
    /// The claim's controller misses the PersistentVolume.
    LoseClaim,
    /// It finds the PersistentVolume again.
    BindClaim,
    /// The claim goes, once no pod uses it.
    RemoveClaim,
    /// The provisioner requests the deletion of a volume whose claim is gone.
    DeleteVolume,
    /// It removes the PersistentVolume once the volume is gone. The administrator does if the policy is Retain.
    RemovePersistentVolume,
    /// The administrator removes the pod of a node that is switched off or lost.
    ForceDelete(Node),
    /// A node is switched on again.
    SwitchOn(Node),
    /// A node that was cut off is reached again.
    Reconnect(Node),
    /// A former agent process ends.
    EndFormer(Node),
}

/// A request of the administrator or the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Creates a VolumeMove.
    Move,
    /// Asks for it to be undone.
    Undo,
    /// Deletes the workload and its claim.
    DeleteClaim,
    /// Promotes the standby copy of a node that is cut off.
    Promote,
}

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The agent's process dies.
    CrashAgent(Node),
    /// The machine loses power, and starts again.
    PowerFailure(Node),
    /// The node is cut off from the API server and the other nodes.
    CutOff(Node),
    /// A new agent process starts beside the old one.
    Overlap(Node),
    /// The disk is destroyed.
    LoseDisk(Node),
    /// The machine is switched off and its disk put into the other one.
    MoveDisk(Node),
}

impl Protocol {
    /// Takes a step of Kubernetes' controllers, if it can be taken.
    pub(crate) fn cluster(&self, state: &mut State, step: ClusterStep) -> Option<()> {
        match step {
            ClusterStep::CreatePod if state.workload && state.pod.is_none() => {
                state.pod = Some(Pod {
                    node: None,
                    running: false,
                    terminating: false,
                });
            }
            ClusterStep::Schedule => {
                let node = state.persistent_volume?.node;
                state.claim.filter(|claim| !claim.lost)?;
                state.pod.as_mut().filter(|pod| pod.node.is_none())?.node = Some(node);
            }
            ClusterStep::LoseClaim if state.persistent_volume.is_none() => {
                state.claim.as_mut()?.lost = true;
            }
            ClusterStep::BindClaim => {
                state.persistent_volume.filter(|it| !it.terminating)?;
                state.claim.as_mut()?.lost = false;
            }
            ClusterStep::RemoveClaim => {
                state.claim.filter(|claim| claim.terminating)?;
                if state.pod.is_some() {
                    return None;
                }
                state.claim = None;
            }
            ClusterStep::DeleteVolume if state.claim.is_none() => {
                state
                    .persistent_volume
                    .filter(|it| !it.retain && !it.terminating)?;
                state.volume.as_mut()?.deletion = true;
            }
            ClusterStep::RemovePersistentVolume
                if state.claim.is_none() && state.volume.is_none() =>
            {
                state.persistent_volume.take()?;
            }
            ClusterStep::ForceDelete(node) => {
                state.pod.filter(|pod| pod.node == Some(node))?;
                let machine = state.machines.of(node);
                let has_left = state.volume.is_some_and(|volume| volume.node != node);
                let is_lost = machine.off || state.disk(node).is_none();
                if !(is_lost || machine.cut_off && has_left) {
                    return None;
                }
                state.pod = None;
            }
            ClusterStep::SwitchOn(node) => {
                let machine = state.machines.of_mut(node);
                machine.off.then(|| machine.off = false)?;
            }
            ClusterStep::Reconnect(node) => state.machines.of_mut(node).cut_off = false,
            ClusterStep::EndFormer(node) => {
                state.machines.of_mut(node).former.take()?;
            }
            _ => return None,
        }
        Some(())
    }

    /// A request, if its budget and the state allow it.
    pub(crate) fn request(&self, state: &mut State, request: Request) -> Option<()> {
        let budget = &mut state.budget;
        match request {
            Request::Move => {
                let volume = state.volume.filter(|_| state.movement.is_none())?;
                budget.moves = budget.moves.checked_sub(1)?;
                write::start(state, &volume, Kind::Move);
            }
            Request::Undo => {
                budget.undos = budget.undos.checked_sub(1)?;
                state.movement.as_mut().filter(|it| !it.undo)?.undo = true;
            }
            Request::DeleteClaim => {
                budget.deletions = budget.deletions.checked_sub(1)?;
                state.workload = false;
                state.claim.as_mut()?.terminating = true;
                state.pod = state.pod.map(|pod| Pod {
                    terminating: true,
                    ..pod
                });
                // A pod that no kubelet has goes at once.
                state.pod = state.pod.filter(|pod| pod.node.is_some());
            }
            Request::Promote => {
                let volume = state.volume.filter(|_| state.movement.is_none())?;
                let standby = state
                    .replicas
                    .of(volume.node.other())
                    .at(volume.epoch + 1)?;
                if standby.purpose != Purpose::Standby
                    || state.machines.of(volume.node).is_connected()
                {
                    return None;
                }
                budget.promotions = budget.promotions.checked_sub(1)?;
                write::start(state, &volume, Kind::Promotion);
            }
        }
        Some(())
    }

    /// A fault, if there is budget for it.
    pub(crate) fn fault(&self, state: &mut State, fault: Fault) -> Option<()> {
        if let Fault::MoveDisk(home) = fault {
            state.budget.disk_moves = state.budget.disk_moves.checked_sub(1)?;
            let disk = state.disks.of_mut(home);
            let from = disk.place?;
            disk.place = Some(from.other());
            stop(state, from);
            state.machines.of_mut(from).off = true;
            return Some(());
        }
        if !self.scenario.faults.iter().any(|kind| kind.matches(fault)) {
            return None;
        }
        state.budget.faults = state.budget.faults.checked_sub(1)?;
        match fault {
            Fault::CrashAgent(node) => {
                state.machines.of_mut(node).view.take()?;
            }
            Fault::PowerFailure(node) => {
                if let Some(disk) = state.disk_mut(node) {
                    forget_unsynced(disk, self.holds(Guard::FenceIsSynced));
                }
                stop(state, node);
            }
            Fault::CutOff(node) => {
                let machine = state.machines.of_mut(node);
                machine.is_connected().then(|| machine.cut_off = true)?;
            }
            Fault::Overlap(node) => {
                let machine = state.machines.of_mut(node);
                machine.former = Some(machine.view?.volume?);
            }
            Fault::LoseDisk(node) => {
                state.disk_mut(node)?.place = None;
                stop(state, node);
            }
            Fault::MoveDisk(_) => return None,
        }
        Some(())
    }
}

/// The processes and attachments of a machine are gone.
fn stop(state: &mut State, node: Node) {
    let machine = state.machines.of_mut(node);
    (machine.view, machine.former) = (None, None);
    (machine.kubelet, machine.staged) = (Kubelet::Idle, None);
    machine.left_over = false;
}

/// What was renamed or received since the last sync is as it was before.
fn forget_unsynced(disk: &mut Disk, is_fence_synced: bool) {
    for (epoch, mut image) in disk.images.iter().collect::<Vec<_>>() {
        match image.fence {
            Fence::Open | Fence::Closing | Fence::Closed if image.synced && is_fence_synced => {}
            Fence::Closed if !image.copy && is_fence_synced => image.fence = Fence::Closing,
            Fence::Closing | Fence::Closed if !image.copy => image.fence = Fence::Open,
            Fence::Open | Fence::Closing | Fence::Closed => image.complete &= image.synced,
        }
        image.synced = true;
        disk.images.put(epoch, Some(image));
    }
}

/// A claim that is bound.
pub(crate) const BOUND: Claim = Claim {
    lost: false,
    terminating: false,
};
