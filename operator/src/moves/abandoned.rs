//! A volume whose declared target has no VolumeMove any more: somebody has removed its finalizer.

use cistern_client::writes::patch_guarded;
use cistern_crds::{PoolVolume, names};
use kube::Api;
use serde_json::json;

use super::Error;
use crate::{Context, controller::Next};

/// Undoes the move of a volume without a VolumeMove, so that its pods can use it again. Fails if the API server
/// refuses that.
pub(super) async fn undo(context: &Context, name: &str) -> Result<Next, Error> {
    if context
        .cluster
        .volumes
        .get(name)
        .is_none_or(|it| it.moves.is_none())
    {
        return Ok(Next::OnChange);
    }
    let failed = |verb, source| Error::Api {
        verb,
        object: "the PoolVolume".to_owned(),
        volume: name.to_owned(),
        source,
    };
    let api = Api::<PoolVolume>::all(context.client.clone());
    let found = api.get_opt(name).await.map_err(|it| failed("get", it))?;
    let Some(volume) = found.filter(|volume| volume.spec.target.is_some()) else {
        return Ok(Next::OnChange);
    };
    let next = volume.spec.epoch.saturating_add(1);
    let change = json!({"spec": {"target": null, "epoch": next}});
    let written = patch_guarded(&api, &volume, names::OPERATOR_MANAGER, change).await;
    written.map_err(|it| failed("update", it))?;
    tracing::warn!(
        volume = name,
        "undid the move of a volume whose VolumeMove is gone"
    );
    Ok(Next::OnChange)
}
