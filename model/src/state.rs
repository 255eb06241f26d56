//! What the API server, the machines and the disks hold. One volume, two nodes, one move at a time.
//!
//! *Invariant:* everything is a plain value, so two states are equal exactly if no part can tell them apart. A process
//! keeps nothing but its view of the API server, because the real ones derive all else from the objects and the disk.

use crate::{
    collection::{ByEpoch, ByNode},
    operator::Decision,
};

/// A machine of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The node that holds the volume at first.
    A,
    /// The other node.
    B,
}

impl Node {
    /// Both nodes.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// The node that this one is not.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// How often the volume has changed its location, or was to.
pub type Epoch = u8;

/// UID of a VolumeMove.
pub type MoveUid = u8;

/// `PoolVolume`: the volume's desired state and the status of the agent of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Volume {
    /// `spec.nodeName`.
    pub node: Node,
    /// `spec.epoch`.
    pub epoch: Epoch,
    /// `spec.target`: where a move wants to take the volume.
    pub target: Option<Target>,
    /// `spec.cancelledMove`: the last move that was given up before it declared its target.
    pub cancelled: MoveUid,
    /// `spec.deletionRequested`.
    pub deletion: bool,
    /// `status`.
    pub status: Status,
}

impl Volume {
    /// Whether the status describes the volume as the spec places it now, and the image is ready. A status of another
    /// epoch counts as empty.
    pub fn is_ready(&self) -> bool {
        self.status.ready && self.status.epoch == self.epoch
    }

    /// How far the source has reported that it has closed the volume for a move; None if it has not begun.
    pub fn fence_for(&self, uid: MoveUid) -> Option<Fence> {
        let is_its = self.status.epoch == self.epoch && self.status.fence_for == uid;
        is_its.then_some(self.status.fence)
    }
}

/// `spec.target` of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The VolumeMove that declared it.
    pub uid: MoveUid,
    /// The node to go to.
    pub node: Node,
    /// What allows the commit.
    pub kind: Kind,
    /// How often the pool had been taken over when a takeover was declared.
    pub takeovers: u8,
}

/// Why a volume changes its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An administrator moves it: the fence of the old epoch allows the commit.
    Move,
    /// Its disk is in another machine: the marker of the pool allows the commit.
    Takeover,
    /// Its node is lost, and an administrator promotes the standby copy.
    Promotion,
}

/// How far the source has stopped new attachments. On the disk and in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fence {
    /// The image may be staged.
    Open,
    /// Nothing new is staged; what is staged stays.
    Closing,
    /// Nothing is attached, and the image is out of the folder that is attached from.
    Closed,
}

/// `status` of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// The epoch that the status describes.
    pub epoch: Epoch,
    /// The bytes are reserved and the image is there.
    pub ready: bool,
    /// How often the pool has been taken over, as its marker says.
    pub takeovers: u8,
    /// The fence, as far as it is durable on the disk.
    pub fence: Fence,
    /// The VolumeMove that the fence is for.
    pub fence_for: MoveUid,
    /// `status.deletionCommitted`: the agent removes the image.
    pub deletion_committed: bool,
}

/// Why a node has an image that is not the volume's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The copy on the target of a move.
    Incoming,
    /// What the source of a move keeps.
    Retained,
    /// A copy on another node that follows the volume.
    Standby,
}

/// `PoolReplica`: owns an image of the volume beside its own. Node and epoch are its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// What it is for.
    pub purpose: Purpose,
    /// The VolumeMove that made it.
    pub uid: MoveUid,
    /// The agent counts its bytes.
    pub reserved: bool,
    /// The agent has all of the data, synced to the disk.
    pub complete: bool,
    /// `spec.deletionRequested`: the image is to go.
    pub deletion: bool,
}

/// What a VolumeMove is to do. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Its UID.
    pub uid: MoveUid,
    /// The node that the volume leaves.
    pub from: Node,
    /// The epoch that it leaves.
    pub base: Epoch,
    /// Why it moves.
    pub kind: Kind,
}

impl Plan {
    /// The node that the volume is to go to.
    pub const fn to(&self) -> Node {
        self.from.other()
    }

    /// Whether the volume is where it was, and can still stay.
    pub const fn is_before_commit(&self, volume: &Volume) -> bool {
        volume.epoch == self.base
    }

    /// Whether the volume has moved.
    pub fn is_committed(&self, volume: &Volume) -> bool {
        volume.epoch > self.base && volume.node == self.to()
    }
}

/// `VolumeMove`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Movement {
    /// What it is to do.
    pub plan: Plan,
    /// The administrator wants it undone.
    pub undo: bool,
    /// Its status says that it cannot go on, and why.
    pub blocked: bool,
    /// Its status holds the PersistentVolume.
    pub saved: bool,
}

/// `PersistentVolume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PersistentVolume {
    /// Its UID: how often it was replaced.
    pub uid: u8,
    /// Its node affinity.
    pub node: Node,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// Its policy is Retain: it is being replaced, or its claim was deleted meanwhile.
    pub retain: bool,
    /// The annotation of the VolumeMove that replaces it.
    pub annotation: Option<MoveUid>,
}

/// `PersistentVolumeClaim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Phase Lost instead of Bound.
    pub lost: bool,
    /// It has a deletion timestamp.
    pub terminating: bool,
}

/// The pod that uses the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Where the scheduler has bound it.
    pub node: Option<Node>,
    /// kubelet has reported its containers.
    pub running: bool,
    /// It has a deletion timestamp.
    pub terminating: bool,
}

/// What kubelet does for the pod that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kubelet {
    /// It holds no pod.
    Idle,
    /// It has admitted the pod, and stages its volume as often as needed.
    Admitted,
    /// The containers run.
    Started,
}

/// What an agent has seen of the API server: by one watch the volumes of its node, by another the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The volume, if it is on the node.
    pub volume: Option<Volume>,
    /// The replicas on the node.
    pub replicas: ByEpoch<Replica>,
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    /// The machine is switched off.
    pub off: bool,
    /// Neither kubelet nor the agent reach the API server or another node.
    pub cut_off: bool,
    /// What the agent has seen. Absent until it has listed both kinds.
    pub view: Option<View>,
    /// What an agent process that is to end still knows of the volume. It stages beside its successor.
    pub former: Option<Volume>,
    /// kubelet.
    pub kubelet: Kubelet,
    /// The epoch of the image that is attached and staged.
    pub staged: Option<Epoch>,
    /// It was staged before a promotion that did not ask this node.
    pub left_over: bool,
}

impl Machine {
    /// Whether its processes reach the API server.
    pub const fn is_connected(&self) -> bool {
        !self.off && !self.cut_off
    }
}

/// The file of an image. The uid of the volume and an epoch are its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// It belongs to a replica, in a folder that is not attached from.
    pub copy: bool,
    /// All data of the moment has been received.
    pub complete: bool,
    /// The last write that it contains. [`Image::DIVERGED`] if it lacks an acknowledged one and has a later one.
    pub version: u8,
    /// The fence on the disk.
    pub fence: Fence,
    /// The last step survives a power failure.
    pub synced: bool,
}

impl Image {
    /// The version of an image that contains neither of two histories.
    pub const DIVERGED: u8 = u8::MAX;
}

/// A disk with an instance of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Disk {
    /// The machine that it is in. Absent if it is destroyed, or never was.
    pub place: Option<Node>,
    /// The node that the marker of the pool names.
    pub marker: Node,
    /// How often the pool has been taken over. The marker holds it, too.
    pub takeovers: u8,
    /// The images, by epoch.
    pub images: ByEpoch<Image>,
}

/// What the operator has decided, from what it saw, and is about to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// The write.
    pub decision: Decision,
    /// The move that it is for.
    pub plan: Option<Plan>,
    /// The object was written by another since: its resourceVersion is no longer the one that was seen.
    pub stale: bool,
}

/// What may still go wrong, or be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Crashes, power failures, cut-off nodes, lost disks.
    pub faults: u8,
    /// Requests to move.
    pub moves: u8,
    /// Requests to undo one.
    pub undos: u8,
    /// Deletions of the claim.
    pub deletions: u8,
    /// Writes of the pod.
    pub writes: u8,
    /// Disks that are taken to another machine.
    pub disk_moves: u8,
    /// Promotions.
    pub promotions: u8,
}

/// All of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The volume, until its data is removed.
    pub volume: Option<Volume>,
    /// The replicas, by node and epoch.
    pub replicas: ByNode<ByEpoch<Replica>>,
    /// The move.
    pub movement: Option<Movement>,
    /// The PersistentVolume.
    pub persistent_volume: Option<PersistentVolume>,
    /// The claim.
    pub claim: Option<Claim>,
    /// The pod.
    pub pod: Option<Pod>,
    /// A workload wants the pod, and makes another one for each that goes.
    pub workload: bool,
    /// The machines.
    pub machines: ByNode<Machine>,
    /// The disks, by the node that they are in at first.
    pub disks: ByNode<Disk>,
    /// The moves that there have been.
    pub moves: u8,
    /// What the replica of the operator on each node is about to write.
    pub operators: ByNode<Option<Pending>>,
    /// The last write that was acknowledged to the pod.
    pub acknowledged: u8,
    /// What may still happen.
    pub budget: Budget,
}

impl State {
    /// The disk whose pool the agent of a node uses: it is in the machine, and its marker names the node.
    pub fn disk(&self, node: Node) -> Option<&Disk> {
        let mut disks = Node::ALL.iter().map(|home| self.disks.of(*home));
        disks.find(|disk| disk.place == Some(node) && disk.marker == node)
    }

    /// As [`State::disk`], to be written to.
    pub fn disk_mut(&mut self, node: Node) -> Option<&mut Disk> {
        let home = Node::ALL.into_iter().find(|home| {
            let disk = self.disks.of(*home);
            disk.place == Some(node) && disk.marker == node
        })?;
        Some(self.disks.of_mut(home))
    }

    /// An image that the agent of a node can use.
    pub fn image(&self, node: Node, epoch: Epoch) -> Option<Image> {
        self.disk(node)?.images.at(epoch)
    }

    /// Writes or removes an image of a node.
    pub fn put_image(&mut self, node: Node, epoch: Epoch, image: Option<Image>) {
        if let Some(disk) = self.disk_mut(node) {
            disk.images.put(epoch, image);
        }
    }
}
