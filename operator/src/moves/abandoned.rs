//! What a move has left whose VolumeMove is gone: somebody has removed its finalizer.

use std::time::Duration;

use cistern_client::writes::patch_guarded;
use cistern_crds::{PoolReplica, PoolVolume, names};
use kube::{Api, api::ListParams};
use serde_json::json;

use super::{Error, removal, snapshots::remove_left, stages::is_movable};
use crate::{Context, controller::Next};

/// When to look again at what is being removed.
const WAIT: Duration = Duration::from_secs(5);

/// Undoes the move of a volume without a VolumeMove, or whose VolumeMove is a later one that is not decided yet, so that its pods can use it again, and removes the snapshots and the
/// replicas that were made for it. Fails if the API server refuses that.
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
    let declared = found.as_ref().filter(|volume| volume.spec.target.is_some());
    if let Some(volume) = declared {
        let next = volume.spec.epoch.saturating_add(1);
        let change = json!({"spec": {"target": null, "epoch": next}});
        let written = patch_guarded(&api, volume, names::OPERATOR_MANAGER, change).await;
        written.map_err(|it| failed("update", it))?;
        tracing::warn!(
            volume = name,
            "undid the move of a volume whose VolumeMove is gone"
        );
        return Ok(Next::After(WAIT));
    }
    let is_clear = remove_replicas(context, name, found.as_ref()).await;
    let is_clear = is_clear.map_err(|it| failed_with("remove", "its PoolReplicas", it))?;
    Ok(if is_clear { left } else { Next::After(WAIT) })
}

/// Removes the replicas of a volume, once that is ready or gone: until then, one may have the only image. Returns whether
/// none is left. Fails if the API server refuses that.
async fn remove_replicas(
    context: &Context,
    name: &str,
    volume: Option<&PoolVolume>,
) -> Result<bool, kube::Error> {
    let api = Api::<PoolReplica>::all(context.client.clone());
    let all = api.list(&ListParams::default()).await?.items;
    let left: Vec<_> = all
        .iter()
        .filter(|it| it.spec.volume_name == name)
        .collect();
    if volume.is_some_and(|volume| is_movable(volume).is_err()) {
        return Ok(left.is_empty());
    }
    for replica in &left {
        // Its image is the volume's own.
        let is_own = volume.is_some_and(|it| it.spec.node_name == replica.spec.node_name);
        if is_own {
            removal::release(context, *replica).await?;
        } else {
            removal::advance(context, *replica).await?;
        }
    }
    Ok(left.is_empty())
}
