//! What an earlier move of a volume has left. Its VolumeMove is gone, because somebody has removed its finalizer. The
//! volume may have a later one.

use std::time::Duration;

use cistern_client::writes::patch_guarded;
use cistern_crds::{PoolReplica, PoolVolume, ReplicaPurpose, names};
use kube::{Api, ResourceExt as _, api::ListParams, core::DeserializeGuard};
use serde_json::json;

use super::{
    Error,
    actions::{is_movable, may_be_only_data},
    removal,
    snapshots::remove_left,
    volume,
};
use crate::{Context, controller::Next, pages, taken_over};

/// When to look again at what is being removed.
const WAIT: Duration = Duration::from_secs(5);

/// Undoes the move of a volume without a VolumeMove, or whose VolumeMove is a later one that is not decided yet. Its pods
/// can then use the volume again, and the snapshots and the replicas that were made for the move are removed. Fails if
/// the API server refuses that.
pub(super) async fn undo(context: &Context, name: &str) -> Result<Next, Error> {
    let failed_with = |verb, object: &str, source| Error::Api {
        verb,
        object: object.to_owned(),
        volume: name.to_owned(),
        source,
    };
    let left = remove_left(context, name).await;
    let left = left.map_err(|it| failed_with("remove", "its PoolSnapshots", it))?;
    let failed = |verb, source| failed_with(verb, "the PoolVolume", source);
    let api = Api::<PoolVolume>::all(context.client.clone());
    let found = api.get_opt(name).await.map_err(|it| failed("get", it))?;
    let declared = found
        .as_ref()
        .and_then(|it| Some((it, it.spec.target.as_ref()?)));
    if let Some((volume, target)) = declared {
        let next = volume.spec.epoch.saturating_add(1);
        let cancelled = &target.move_uid;
        let change =
            json!({"spec": {"target": null, "cancelledMoveUID": cancelled, "epoch": next}});
        let written = patch_guarded(&api, volume, names::OPERATOR_MANAGER, change).await;
        written.map_err(|it| failed("update", it))?;
        tracing::warn!(volume = name, "undid an earlier move of the volume");
        return Ok(Next::After(WAIT));
    }
    let is_clear = remove_replicas(context, name, found.as_ref()).await;
    let is_clear = is_clear.map_err(|it| failed_with("remove", "its PoolReplicas", it))?;
    Ok(if is_clear { left } else { Next::After(WAIT) })
}

/// What is done with a replica of a move that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Its image is the volume's own, or may be the only one, or no agent is there that could remove it: only the
    /// object goes.
    Release,
    /// Its image is removed.
    Remove,
    /// It stays until somebody requests the removal of its image.
    Keep,
}

/// What is done with a replica of a volume that is ready, or that is gone. `is_claimed` is whether there is a
/// PersistentVolume, and `has_node` whether the node of the replica is known.
fn left(
    replica: &PoolReplica,
    volume: Option<&PoolVolume>,
    is_claimed: bool,
    has_node: bool,
) -> Left {
    let spec = &replica.spec;
    let is_volumes = match volume {
        Some(volume) => volume.spec.node_name == spec.node_name,
        None => spec.purpose == ReplicaPurpose::Retained,
    };
    if is_volumes {
        Left::Release
    } else if volume.is_none() && is_claimed && may_be_only_data(replica) {
        Left::Keep
    } else if has_node {
        Left::Remove
    } else {
        Left::Release
    }
}

/// The object of a list, if it is a replica of this volume, and this version can read it.
fn of_volume(listed: DeserializeGuard<PoolReplica>, name: &str) -> Option<PoolReplica> {
    removal::readable(listed).filter(|it| it.spec.volume_name == name)
}

/// Removes the replicas of a volume, once that is ready or gone: until then, one may have the only image. One that this
/// version cannot read stays. Returns whether nothing is left to do. Fails if the API server refuses that.
async fn remove_replicas(
    context: &Context,
    name: &str,
    volume: Option<&PoolVolume>,
) -> Result<bool, kube::Error> {
    let api = Api::<DeserializeGuard<PoolReplica>>::all(context.client.clone());
    let mut found = Vec::new();
    let visit = |listed| found.extend(of_volume(listed, name));
    pages::each(&api, ListParams::default(), visit).await?;
    // What a volume reports that is to follow its disk is not known to be so any more.
    let is_away = |it: &PoolVolume| taken_over::destination(&context.cluster, it).is_some();
    if volume.is_some_and(|volume| is_movable(volume).is_err() || is_away(volume)) {
        return Ok(found.is_empty());
    }
    let mut is_clear = true;
    let is_claimed =
        volume.is_some() || !found.is_empty() && volume::is_claimed(context, name).await?;
    for replica in &found {
        let node = context.cluster.storage_node(&replica.spec.node_name);
        match left(replica, volume, is_claimed, node.is_some()) {
            Left::Release => removal::release(context, replica).await?,
            Left::Remove => removal::advance(context, replica).await?,
            Left::Keep => {
                warn_of(replica);
                continue;
            }
        }
        is_clear = false;
    }
    Ok(is_clear)
}

fn warn_of(copy: &PoolReplica) {
    let (replica, spec) = (copy.name_any(), &copy.spec);
    tracing::warn!(
        volume = spec.volume_name,
        node = spec.node_name,
        replica,
        "the PoolVolume and its VolumeMove are gone, and the copy of the volume stays: create the PoolVolume again, or \
         set spec.deletionRequested of the PoolReplica to remove the copy"
    );
}

#[cfg(test)]
mod tests {
    use cistern_crds::{ReceivedSnapshot, testing::ready_volume};
    use kube::core::ObjectList;

    use super::*;
    use crate::{moves::testing, testing::moment};

    #[test]
    fn without_its_volume_the_former_image_and_a_whole_copy_stay_until_their_removal_is_requested()
    {
        let left = |replica: &PoolReplica, volume: Option<&PoolVolume>, is_claimed| {
            left(replica, volume, is_claimed, true)
        };
        let retained = testing::replica(ReplicaPurpose::Retained, "node-1", 0);
        assert_eq!(left(&retained, None, true), Left::Release);
        let mut copy = testing::replica(ReplicaPurpose::Incoming, "node-2", 1);
        assert_eq!(
            left(&copy, None, true),
            Left::Remove,
            "nothing whole is in it"
        );
        copy.status.get_or_insert_default().snapshot = Some(ReceivedSnapshot {
            image: "image-1".to_owned(),
            received: moment(),
            seconds: None,
        });
        assert_eq!(left(&copy, None, true), Left::Keep);
        assert_eq!(left(&copy, None, false), Left::Remove, "deleted");
        copy.spec.deletion_requested = true;
        assert_eq!(left(&copy, None, true), Left::Remove);
        // The volume is ready: only its own image is needed.
        let mut volume = ready_volume();
        "node-1".clone_into(&mut volume.spec.node_name);
        assert_eq!(left(&retained, Some(&volume), true), Left::Release);
        assert_eq!(left(&copy, Some(&volume), true), Left::Remove);
    }

    #[test]
    fn r22_a_replica_that_cannot_be_read_stays_and_hides_no_other() {
        let ours = testing::replica(ReplicaPurpose::Incoming, "node-2", 1);
        let mut other = ours.clone();
        "pvc-2".clone_into(&mut other.spec.volume_name);
        let mut strange = json!(ours);
        strange["status"]["reserved"] = json!("1e12");
        let list = json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "PoolReplicaList",
            "metadata": {},
            "items": [strange, ours, other],
        });
        let list: ObjectList<DeserializeGuard<PoolReplica>> = serde_json::from_value(list).unwrap();
        let listed = list.items.into_iter();
        let found: Vec<PoolReplica> = listed.filter_map(|it| of_volume(it, "pvc-1")).collect();
        assert_eq!(found, [ours]);
    }

    #[test]
    fn a_replica_goes_without_its_image_once_its_node_is_gone_for_good() {
        let mut copy = testing::replica(ReplicaPurpose::Incoming, "node-2", 1);
        let mut volume = ready_volume();
        "node-1".clone_into(&mut volume.spec.node_name);
        assert_eq!(left(&copy, Some(&volume), true, true), Left::Remove);
        assert_eq!(left(&copy, Some(&volume), true, false), Left::Release);
        // What may be the only data of the volume stays known.
        copy.status.get_or_insert_default().complete = true;
        assert_eq!(left(&copy, None, true, false), Left::Keep);
        assert_eq!(left(&copy, None, false, false), Left::Release);
    }
}
