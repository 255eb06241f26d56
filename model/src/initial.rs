//! The state that a scenario begins with.

use crate::{
    cluster::BOUND,
    collection::{ByEpoch, ByNode},
    scenario::Scenario,
    state::{
        Disk, Fence, Image, Kubelet, Machine, Node, PersistentVolume, Purpose, Replica, State,
        Status, View, Volume,
    },
};

impl Scenario {
    /// The state that it begins with: the volume is on [`Node::A`], ready, and bound.
    pub fn initial(&self) -> State {
        let volume = Volume {
            node: Node::A,
            epoch: 0,
            target: None,
            cancelled: 0,
            deletion: false,
            status: Status {
                epoch: 0,
                ready: true,
                takeovers: 0,
                fence: Fence::Open,
                fence_for: 0,
                deletion_committed: false,
            },
        };
        let mut replicas = ByNode(ByEpoch::EMPTY, ByEpoch::EMPTY);
        let mut copies = ByEpoch::EMPTY;
        if self.standby {
            let (replica, copy) = standby();
            replicas.of_mut(Node::B).put(1, Some(replica));
            copies.put(1, Some(copy));
        }
        let mut images = ByEpoch::EMPTY;
        images.put(0, Some(IMAGE));
        let machine = |volume, replicas| Machine {
            off: false,
            cut_off: false,
            view: Some(View { volume, replicas }),
            former: None,
            kubelet: Kubelet::Idle,
            staged: None,
            left_over: false,
        };
        State {
            volume: Some(volume),
            machines: ByNode(
                machine(Some(volume), *replicas.of(Node::A)),
                machine(None, *replicas.of(Node::B)),
            ),
            replicas,
            movement: None,
            persistent_volume: Some(PersistentVolume {
                uid: 0,
                node: Node::A,
                terminating: false,
                retain: false,
                annotation: None,
            }),
            claim: Some(BOUND),
            pod: None,
            workload: self.workload,
            disks: ByNode(
                Disk {
                    place: Some(Node::A),
                    marker: Node::A,
                    takeovers: 0,
                    images,
                },
                Disk {
                    place: (!self.one_disk).then_some(Node::B),
                    marker: Node::B,
                    takeovers: 0,
                    images: copies,
                },
            ),
            moves: 0,
            operators: ByNode(None, None),
            acknowledged: 0,
            budget: self.budget,
        }
    }
}

const IMAGE: Image = Image {
    copy: false,
    complete: true,
    version: 0,
    fence: Fence::Open,
    synced: true,
};

const fn standby() -> (Replica, Image) {
    let replica = Replica {
        purpose: Purpose::Standby,
        uid: 0,
        reserved: true,
        complete: true,
        deletion: false,
    };
    let copy = Image {
        copy: true,
        fence: Fence::Closed,
        ..IMAGE
    };
    (replica, copy)
}
