//! StoragePools: the finalizer, and a status that sums up the agents' reports.
//!
//! *Invariant:* a pool's finalizer stays until no StorageNode names the pool and no PoolVolume or
//! PoolSnapshot is in it.

pub mod declaration;
mod shares;
mod summary;

use std::time::Duration;

use cistern_client::writes::{patch_guarded, patch_status_guarded, remove_finalizer};
use cistern_crds::{StoragePool, StoragePoolStatus, names};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    core::DeserializeGuard,
};
use serde_json::json;

use self::{
    shares::Shares,
    summary::{Declaration, summarize},
};
use crate::{
    Context,
    change::Change,
    controller::{Controller, Next},
    events::{self, publish_once},
    overcommit::Overcommit,
};

/// How long changes are gathered, so that many changed volumes or snapshots cause few status
/// writes.
const GATHER: Duration = Duration::from_millis(300);

/// Why a StoragePool is not up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a read or a write.
    #[error("cannot {verb} StoragePool {pool}")]
    Api {
        /// The attempted action, as a verb.
        verb: &'static str,
        /// Name of the StoragePool.
        pool: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
    /// The API server refused an event.
    #[error(transparent)]
    Event(#[from] events::Error),
}

/// Keeps the finalizers and the status of the StoragePools up to date.
#[derive(Debug, Default)]
pub struct PoolController {
    shares: Shares,
}

impl Controller for PoolController {
    type Key = String;
    type Error = Error;
    const NAME: &'static str = "pool";
    const GATHER: Duration = GATHER;

    /// Marks the shares that a change makes out of date.
    fn keys(&self, context: &Context, change: &Change) -> Vec<String> {
        let cluster = &context.cluster;
        let every = || {
            let pools = cluster.pools.all();
            pools.iter().map(|pool| pool.name_any()).collect()
        };
        match change {
            Change::Pool(name)
            | Change::PoolStatus(name)
            | Change::Volume { pool: name, .. }
            | Change::Snapshot { pool: name, .. } => vec![name.clone()],
            Change::StorageNode(node) | Change::Node(node) => {
                self.shares.outdate(node);
                every()
            }
            Change::Everything => {
                self.shares.outdate_all();
                every()
            }
            Change::Class(_)
            | Change::Replica(_)
            | Change::Move(_)
            | Change::Transfer(_)
            | Change::AttributesClass(_)
            | Change::Claim { .. }
            | Change::Owner
            | Change::Capacity { .. } => Vec::new(),
        }
    }

    async fn reconcile(&self, context: &Context, name: &String) -> Result<Next, Error> {
        let own_writes = &context.cluster.own_writes;
        let Ok(pool) = own_writes.read(|| context.cluster.pool(name)) else {
            return Ok(Next::OnChange);
        };
        let Some(pool) = pool else {
            self.shares.forget(name);
            return Ok(Next::OnChange);
        };
        let wrote = |written| own_writes.wrote(&written, || context.cluster.pool(name));
        let api = Api::<DeserializeGuard<StoragePool>>::all(context.client.clone());
        let failed = |verb| {
            move |source| Error::Api {
                verb,
                pool: name.clone(),
                source,
            }
        };
        let shares = self.shares.of(&context.cluster, &pool);
        let kept = context.cluster.contents_of(name);
        let manager = names::OPERATOR_MANAGER;
        match finalizer_action(&pool, shares.is_empty() && kept.is_empty()) {
            FinalizerAction::Add => {
                let mut finalizers = pool.finalizers().to_vec();
                finalizers.push(names::FINALIZER.to_owned());
                let change = json!({"metadata": {"finalizers": finalizers}});
                let held = patch_guarded(&api, &pool, manager, change).await;
                // The watch delivers the write as a change, which causes the next reconcile.
                held.map(wrote).map_err(failed("add the finalizer of"))?;
                return Ok(Next::OnChange);
            }
            FinalizerAction::Remove => {
                let released = remove_finalizer(&api, &pool, manager, names::FINALIZER).await;
                return released
                    .map(|()| Next::OnChange)
                    .map_err(failed("remove the finalizer of"));
            }
            FinalizerAction::Keep => {}
        }
        let current = current_status(context, &pool)
            .await
            .map_err(failed("read"))?;
        let readable = pool.0.as_ref().ok();
        let overcommit =
            readable.map(|pool| Overcommit::of(pool, || context.cluster.thick_in(name)));
        let now = (context.now)();
        if let Some(content) = overcommit.and_then(|it| it.refusal_event(&current, now)) {
            publish_once(context, &pool.object_ref(&()), &content).await?;
        }
        let declaration = Declaration::of(&pool, overcommit);
        let status = summarize(&declaration, &current, &shares, &kept, now);
        if status != current {
            let written = patch_status_guarded(&api, &pool, manager, json!(status)).await;
            written.map(wrote).map_err(failed("write the status of"))?;
        }
        Ok(Next::OnChange)
    }
}

/// Action on the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinalizerAction {
    Keep,
    Add,
    Remove,
}

fn finalizer_action(pool: &DeserializeGuard<StoragePool>, unused: bool) -> FinalizerAction {
    let held = pool
        .finalizers()
        .iter()
        .any(|name| name == names::FINALIZER);
    let deleted = pool.meta().deletion_timestamp.is_some();
    match (deleted, held) {
        (false, false) => FinalizerAction::Add,
        (true, true) if unused => FinalizerAction::Remove,
        (true, _) | (false, true) => FinalizerAction::Keep,
    }
}

/// The current status. That of an unreadable pool is fetched as raw JSON.
async fn current_status(
    context: &Context,
    pool: &DeserializeGuard<StoragePool>,
) -> Result<StoragePoolStatus, kube::Error> {
    if let Ok(pool) = &pool.0 {
        return Ok(pool.status.clone().unwrap_or_default());
    }
    let kind = ApiResource::erase::<StoragePool>(&());
    let api = Api::<DynamicObject>::all_with(context.client.clone(), &kind);
    let raw = api.get(&pool.name_any()).await?;
    let status = raw.data.get("status").cloned().unwrap_or_default();
    Ok(serde_json::from_value(status).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::testing;

    #[test]
    fn a_pool_keeps_its_finalizer_from_the_first_reconcile_until_nothing_is_left() {
        let guard = |finalizer: bool, deleted: bool| {
            let mut pool = testing::pool("fast", &[]);
            if !finalizer {
                pool.metadata.finalizers = None;
            }
            pool.metadata.deletion_timestamp =
                deleted.then_some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
            DeserializeGuard(Ok(pool))
        };
        assert_eq!(
            finalizer_action(&guard(false, false), true),
            FinalizerAction::Add
        );
        assert_eq!(
            finalizer_action(&guard(true, false), true),
            FinalizerAction::Keep
        );
        assert_eq!(
            finalizer_action(&guard(true, true), false),
            FinalizerAction::Keep
        );
        assert_eq!(
            finalizer_action(&guard(true, true), true),
            FinalizerAction::Remove
        );
        // Deleted before the finalizer was added: there is nothing to release.
        assert_eq!(
            finalizer_action(&guard(false, true), true),
            FinalizerAction::Keep
        );
    }
}
