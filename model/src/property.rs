//! What always holds.

use stateright::Property;

use crate::{
    ending,
    guard::Guard,
    protocol::Protocol,
    scenario::Scenario,
    state::{Disk, Epoch, Image, Kind, Kubelet, Node, Purpose, Replica, State, Volume},
};

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Never two nodes that stage.
    OneNode,
    /// No node but the volume's own stages it.
    ItsNode,
    /// Never zero complete images.
    Complete,
    /// A volume that is ready has its data.
    Ready,
    /// No leak.
    Owned,
    /// The PersistentVolume is never deleted under a pod.
    PersistentVolume,
    /// The reservation has no gap and is never counted twice.
    Reserved,
    /// The source keeps its image until the target is ready.
    Kept,
    /// The copy stays until the source is ready again.
    Spared,
    /// No image is removed while it is attached.
    Attached,
    /// There is always an end.
    End,
}

impl Name {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::OneNode,
        Self::ItsNode,
        Self::Complete,
        Self::Ready,
        Self::Owned,
        Self::PersistentVolume,
        Self::Reserved,
        Self::Kept,
        Self::Spared,
        Self::Attached,
        Self::End,
    ];

    /// The sentence that holds.
    pub const fn text(self) -> &'static str {
        match self {
            Self::OneNode => "at most one node has the volume staged",
            Self::ItsNode => "only the node that the volume names has it staged",
            Self::Complete => "a complete image holds all acknowledged data",
            Self::Ready => "the image of a ready volume holds all acknowledged data",
            Self::Owned => "every image has an object that owns it",
            Self::PersistentVolume => "the PersistentVolume exists while a pod runs",
            Self::Reserved => "the ledger counts every image exactly once",
            Self::Kept => "the source keeps its image until the target is ready",
            Self::Spared => "a complete copy stays until the source is ready after an undo",
            Self::Attached => "an image that is attached exists",
            Self::End => "from everywhere an end is reached once nothing breaks any more",
        }
    }

    const fn condition(self) -> fn(&Protocol, &State) -> bool {
        match self {
            Self::OneNode => one_node,
            Self::ItsNode => its_node,
            Self::Complete => complete,
            Self::Ready => ready,
            Self::Owned => owned,
            Self::PersistentVolume => persistent_volume,
            Self::Reserved => reserved,
            Self::Kept => kept,
            Self::Spared => spared,
            Self::Attached => attached,
            Self::End => ending::is_possible,
        }
    }
}

/// The properties of a scenario.
pub(crate) fn of(scenario: &Scenario) -> Vec<Property<Protocol>> {
    let all = Name::ALL.into_iter();
    let applies = all.filter(|name| !scenario.without.contains(name));
    applies
        .map(|name| Property::always(name.text(), name.condition()))
        .collect()
}

/// Nodes that have the volume staged. What was staged before a promotion that did not ask the node is promised nothing.
fn staging(state: &State) -> impl Iterator<Item = Node> + '_ {
    let stages = |node: &Node| {
        let machine = state.machines.of(*node);
        machine.staged.is_some() && !machine.left_over
    };
    Node::ALL.into_iter().filter(stages)
}

fn one_node(_: &Protocol, state: &State) -> bool {
    staging(state).count() <= 1
}

fn its_node(_: &Protocol, state: &State) -> bool {
    staging(state).all(|node| state.volume.is_some_and(|volume| volume.node == node))
}

fn has_all(state: &State, image: &Image) -> bool {
    image.complete && image.version == state.acknowledged
}

/// A disk that was lost still counts: no protocol brings it back.
fn complete(_: &Protocol, state: &State) -> bool {
    let Some(volume) = state
        .volume
        .filter(|volume| !volume.status.deletion_committed)
    else {
        return true;
    };
    let is_its = |epoch: Epoch| epoch <= volume.epoch;
    let has_it = |disk: &Disk| {
        let mut images = disk.images.iter();
        images.any(|(epoch, image)| is_its(epoch) && has_all(state, &image))
    };
    Node::ALL
        .into_iter()
        .any(|home| has_it(state.disks.of(home)))
}

fn ready(_: &Protocol, state: &State) -> bool {
    let is_meant = |it: &Volume| it.is_ready() && !it.status.deletion_committed;
    let Some(volume) = state.volume.filter(is_meant) else {
        return true;
    };
    let has_it = |disk: &Disk| {
        let image = disk.images.at(volume.epoch).filter(|image| !image.copy);
        image.is_some_and(|image| has_all(state, &image))
    };
    Node::ALL
        .into_iter()
        .any(|home| has_it(state.disks.of(home)))
}

/// What a disk in a machine holds.
fn images(state: &State) -> impl Iterator<Item = (Node, Epoch, Image)> + '_ {
    let disks = Node::ALL.into_iter().map(|home| state.disks.of(home));
    let present = disks.filter(|disk| disk.place.is_some());
    present.flat_map(|disk| {
        let images = disk.images.iter();
        images.map(|(epoch, image)| (disk.marker, epoch, image))
    })
}

fn owned(protocol: &Protocol, state: &State) -> bool {
    images(state).all(|(node, epoch, image)| {
        let is_of_volume = state.volume.is_some_and(|volume| {
            let moves = protocol.scenario.one_disk;
            let is_former = volume.epoch == epoch + 1 || volume.epoch > epoch && moves;
            let is_its = volume.epoch == epoch || is_former && !image.copy;
            is_its && (volume.node == node || moves)
        });
        is_of_volume || state.replicas.of(node).at(epoch).is_some()
    })
}

fn persistent_volume(_: &Protocol, state: &State) -> bool {
    let runs = |node| {
        let machine = state.machines.of(node);
        machine.kubelet == Kubelet::Started && !machine.left_over
    };
    state.persistent_volume.is_some() || !state.pod.and_then(|pod| pod.node).is_some_and(runs)
}

/// Until then an administrator can go back to it, whatever happens to the target.
fn kept(_: &Protocol, state: &State) -> bool {
    let (Some(volume), Some(movement)) = (state.volume, state.movement) else {
        return true;
    };
    let plan = movement.plan;
    if plan.kind != Kind::Move
        || !plan.is_committed(&volume)
        || volume.is_ready()
        || volume.deletion
    {
        return true;
    }
    let has_it = |disk: &Disk| {
        disk.images
            .at(plan.base)
            .is_some_and(|image| has_all(state, &image))
    };
    Node::ALL
        .into_iter()
        .any(|home| has_it(state.disks.of(home)))
}

/// The source may not be able to open the image again that it has closed.
fn spared(_: &Protocol, state: &State) -> bool {
    let is_meant = |volume: &Volume| volume.status.epoch != volume.epoch && !volume.deletion;
    let Some(volume) = state.volume.filter(is_meant) else {
        return true;
    };
    let target = volume.node.other();
    let copy = state.replicas.of(target).at(volume.epoch);
    let is_whole = |it: Replica| it.purpose == Purpose::Incoming && it.complete;
    let images = state.disks.of(target).images;
    !copy.is_some_and(is_whole) || images.at(volume.epoch).is_some()
}

fn attached(_: &Protocol, state: &State) -> bool {
    Node::ALL.into_iter().all(|node| {
        let staged = state.machines.of(node).staged;
        staged.is_none_or(|epoch| state.image(node, epoch).is_some())
    })
}

/// By what each agent has seen. A pool that was taken over admits nothing before its volumes have followed.
fn reserved(protocol: &Protocol, state: &State) -> bool {
    protocol.scenario.one_disk
        || images(state).all(|(node, epoch, _)| {
            let count = counts(protocol, state, node, epoch);
            count.is_none_or(|count| count == 1)
        })
}

/// How often the ledger of a node counts an image. None if its agent is not running.
fn counts(protocol: &Protocol, state: &State, node: Node, epoch: Epoch) -> Option<usize> {
    let view = state.machines.of(node).view?;
    // What a source keeps is counted as soon as it is seen: its image is there.
    let is_counted = |it: &Replica| it.reserved || it.purpose == Purpose::Retained;
    let is_reserved = |epoch| view.replicas.at(epoch).filter(is_counted);
    let by_volume = view
        .volume
        .is_some_and(|volume| volume.is_ready() && volume.epoch == epoch);
    let by_replica = is_reserved(epoch).is_some();
    // After an undo the image has the next epoch, and is what the source was to keep.
    let before = epoch.checked_sub(1).and_then(is_reserved);
    let by_former = before.is_some_and(|it| it.purpose == Purpose::Retained);
    let count = [by_volume, by_replica, by_former]
        .into_iter()
        .filter(|it| *it)
        .count();
    Some(if protocol.holds(Guard::LedgerCountsImages) {
        count.min(1)
    } else {
        count
    })
}
