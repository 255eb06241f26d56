//! The PersistentVolume of a volume: its name, what is saved of it, and its node affinity.

use cistern_crds::{
    VolumeMove, names,
    persistent_volume::{names_nodes, nodes_of},
    unclaimed::{self, Owner},
};
use k8s_openapi::api::core::v1::{PersistentVolume, VolumeNodeAffinity};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use crate::{Context, pages};

/// The reclaim policy with which nothing deletes the data of a PersistentVolume.
pub(super) const RETAIN: &str = "Retain";

/// Name of the PersistentVolume of a move: the saved one, or the one whose handle is the volume's name.
pub(super) fn name(context: &Context, object: &VolumeMove) -> Option<String> {
    let saved = saved_in(object).and_then(|it| it.pointer("/metadata/name")?.as_str());
    let found = || of_volume(context, &object.spec.volume_name);
    saved.map(str::to_owned).or_else(found)
}

/// Name of the PersistentVolume whose handle is the name of a volume.
pub(super) fn of_volume(context: &Context, volume: &str) -> Option<String> {
    let owners = &context.cluster.volume_owners;
    let is_ours = |owner: &Owner| matches!(owner, Owner::Handle(handle) if **handle == *volume);
    owners.keys(is_ours).into_iter().next()
}

/// Whether a PersistentVolume has this volume. It is deleted once the deletion of the volume was requested and is
/// done, and stays when somebody removes the PoolVolume. Fails if the API server refuses a list.
pub(super) async fn is_claimed(context: &Context, volume: &str) -> Result<bool, kube::Error> {
    let mut is_claimed = false;
    let api = Api::<PersistentVolume>::all(context.client.clone());
    let look = |it: PersistentVolume| is_claimed |= unclaimed::handle(&it) == Some(volume);
    pages::each(&api, ListParams::default(), look).await?;
    Ok(is_claimed)
}

/// The PersistentVolume that a move has saved.
pub(super) fn saved_in(object: &VolumeMove) -> Option<&Value> {
    object.status.as_ref()?.persistent_volume.as_ref()
}

/// UID of the PersistentVolume that a move has saved.
pub(super) fn saved_uid(object: &VolumeMove) -> Option<&str> {
    saved_in(object)?.pointer("/metadata/uid")?.as_str()
}

/// What is saved of a PersistentVolume: all that a user or a controller has written to it.
pub(super) fn saved(volume: &PersistentVolume) -> Value {
    let metadata = &volume.metadata;
    json!({
        "metadata": {
            "name": metadata.name,
            "uid": metadata.uid,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "finalizers": metadata.finalizers,
        },
        "spec": volume.spec,
    })
}

/// The saved PersistentVolume as it is created again for a node, or for its former one if the volume is
/// gone: with the mark of its move, and with the policy `Retain` until it is bound. None if what was saved cannot be read.
pub(super) fn again(saved: &Value, node: Option<&str>, move_uid: &str) -> Option<PersistentVolume> {
    let mut volume: PersistentVolume = serde_json::from_value(saved.clone()).ok()?;
    volume.metadata.uid = None;
    let mark = (names::MOVE_ANNOTATION.to_owned(), move_uid.to_owned());
    volume.annotations_mut().extend([mark]);
    let spec = volume.spec.as_mut()?;
    spec.persistent_volume_reclaim_policy = Some(RETAIN.to_owned());
    let affinity = spec.node_affinity.as_ref()?;
    if let Some(node) = node {
        spec.node_affinity = Some(pointed_at(affinity, node));
    }
    if let Some(claim) = &mut spec.claim_ref {
        claim.resource_version = None;
    }
    Some(volume)
}

/// The saved reclaim policy of a PersistentVolume.
pub(super) fn saved_policy(saved: &Value) -> Option<&str> {
    saved
        .pointer("/spec/persistentVolumeReclaimPolicy")?
        .as_str()
}

/// The node that a PersistentVolume names. None if it names none, or more than one.
pub(super) fn node_of(volume: &PersistentVolume) -> Option<&str> {
    match nodes_of(volume)[..] {
        [node] => Some(node),
        _ => None,
    }
}

/// The same affinity with another node. Other requirements of an administrator stay.
pub(super) fn pointed_at(affinity: &VolumeNodeAffinity, node: &str) -> VolumeNodeAffinity {
    let mut affinity = affinity.clone();
    let terms = affinity.required.iter_mut();
    let terms = terms.flat_map(|required| &mut required.node_selector_terms);
    for expression in terms.flat_map(|term| term.match_expressions.iter_mut().flatten()) {
        if names_nodes(expression) {
            expression.values = Some(vec![names::topology_value(node)]);
        }
    }
    affinity
}
