//! Moves the volumes and snapshots of a disk that is in another machine to its node.
//!
//! ```text
//! granted ─▶ the agent writes the marker, and reports one takeover more
//!            ─▶ a VolumeMove for each PoolVolume, so that its PersistentVolume follows (`moves`)
//!            ─▶ each PoolVolume and PoolSnapshot of that filesystem names the new node
//!               ─▶ each group whose snapshots are all there ─▶ the grant is removed
//! ```
//!
//! *Invariants:* an object follows only to the node that was granted the takeover and has reported it.
//! The API server refuses a change of the node unless the number of takeovers is greater than the one in
//! the status of the object, so a late change cannot undo a later takeover (`docs/design-moving.md`). The
//! grant stays until everything has followed, and meanwhile the pool takes nothing new.

use std::{collections::HashSet, fmt::Debug, time::Duration};

use cistern_client::{Rejection, writes::patch_guarded};
use cistern_crds::{HasImage, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode, names};
use kube::{Api, ResourceExt as _, api::ListParams, core::DeserializeGuard};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::takeover::Granted;
use crate::{
    Context, moves, pages,
    taken_over::{TakenOver, is_to_follow, taken_over},
};

/// Maximum number of objects of each kind that one reconcile moves, so that it ends in time.
const AT_ONCE: usize = 500;
/// When to look again while objects follow.
pub(super) const AGAIN: Duration = Duration::from_secs(2);

/// Why the objects of a pool do not follow.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a list.
    #[error("cannot list the {kind} of pool {pool}, which node {node} has taken over")]
    List {
        /// Plural name of the kind.
        kind: String,
        /// Name of the StoragePool.
        pool: String,
        /// Name of the node.
        node: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
    /// The API server refused a VolumeMove.
    #[error(transparent)]
    Begin(#[from] moves::Error),
    /// The API server refused a change.
    #[error("cannot move {object} to node {node}, which has its disk")]
    Write {
        /// Kind and name.
        object: String,
        /// Name of the node.
        node: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
}

/// Moves what is in the pools that a node has taken over. Returns the grants that have to stay, because
/// something is still to follow.
pub(super) async fn follow(context: &Context, node: &StorageNode) -> Result<Granted, Error> {
    let mut granted = Granted::new();
    let name = node.name_any();
    for (entry, status) in taken_over(node) {
        let pool = TakenOver::of(&name, entry, status);
        // A pool that is not ready is looked at again when that changes.
        let is_done = status.is_ready() && move_contents(context, pool).await?;
        if is_done {
            move_groups(context, pool).await?;
            tracing::info!(
                node = name,
                pool = entry.name,
                "all volumes and snapshots have followed their disk"
            );
        } else if let Some(owner) = &entry.take_over {
            granted.insert(entry.uid.clone(), owner.clone());
        }
    }
    Ok(granted)
}

/// Moves the volumes and snapshots of a pool. Returns whether none is left.
async fn move_contents(context: &Context, pool: TakenOver<'_>) -> Result<bool, Error> {
    let found = find::<PoolVolume>(context, pool).await?;
    let mut volumes = Vec::new();
    for volume in &found {
        // A move of its data is given up, and ends, before the volume follows its disk (`destination`).
        if moves::begin(context, volume, pool.node).await? {
            volumes.push(volume.clone());
        }
    }
    let all_begin = volumes.len() == found.len();
    let volumes = move_all(context, pool, &volumes).await? && all_begin;
    let snapshots = find::<PoolSnapshot>(context, pool).await?;
    let snapshots = move_all(context, pool, &snapshots).await?;
    Ok(volumes && snapshots)
}

/// Moves objects. Returns whether none is left.
async fn move_all<K>(context: &Context, pool: TakenOver<'_>, found: &[K]) -> Result<bool, Error>
where
    K: HasImage + Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::all(context.client.clone());
    let mut are_moved = found.len() < AT_ONCE;
    for object in found {
        let change = json!({"spec": {
            "nodeName": pool.node,
            "epoch": object.epoch().saturating_add(1),
            "takeovers": pool.takeovers,
        }});
        are_moved &= write(&api, object, pool.node, change).await?;
    }
    Ok(are_moved)
}

/// The objects of a kind that are to follow, [`AT_ONCE`] at most. One that this version cannot read stays.
async fn find<K>(context: &Context, pool: TakenOver<'_>) -> Result<Vec<K>, Error>
where
    K: HasImage + Clone + Debug + DeserializeOwned,
{
    let label = format!("{}={}", names::POOL_LABEL, pool.pool);
    let parameters = elsewhere(pool.node).labels(&label);
    let mut found = Vec::new();
    list(context, pool, parameters, |object: DeserializeGuard<K>| {
        let object = object.0.ok().filter(|object| is_to_follow(object, pool));
        found.extend(object.filter(|_| found.len() < AT_ONCE));
    })
    .await?;
    Ok(found)
}

/// Visits every object that the parameters select, readable or not.
async fn list<K>(
    context: &Context,
    pool: TakenOver<'_>,
    parameters: ListParams,
    visit: impl FnMut(DeserializeGuard<K>),
) -> Result<(), Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<DeserializeGuard<K>>::all(context.client.clone());
    let listed = pages::each(&api, parameters, visit).await;
    listed.map_err(|source| Error::List {
        kind: K::plural(&()).into_owned(),
        pool: pool.pool.to_owned(),
        node: pool.node.to_owned(),
        source,
    })
}

/// Moves the groups of snapshots that are on other nodes although all of their snapshots are here.
async fn move_groups(context: &Context, pool: TakenOver<'_>) -> Result<(), Error> {
    let mut groups = Vec::<PoolSnapshotGroup>::new();
    let visit = |group: DeserializeGuard<PoolSnapshotGroup>| groups.extend(group.0.ok());
    list(context, pool, elsewhere(pool.node), visit).await?;
    if groups.is_empty() {
        return Ok(());
    }
    let mut here = HashSet::new();
    let on_node = ListParams::default().fields(&format!("spec.nodeName={}", pool.node));
    let visit = |snapshot: DeserializeGuard<PoolSnapshot>| _ = here.insert(snapshot.name_any());
    list(context, pool, on_node, visit).await?;
    let api = Api::<PoolSnapshotGroup>::all(context.client.clone());
    for group in groups {
        let mut members = group.spec.members.iter();
        if members.all(|member| here.contains(&member.snapshot)) {
            let epoch = group.spec.epoch.saturating_add(1);
            let change = json!({"spec": {"nodeName": pool.node, "epoch": epoch}});
            write(&api, &group, pool.node, change).await?;
        }
    }
    Ok(())
}

/// Writes a change of the node. Returns whether it was written: another client may have changed the
/// object, or the schema may refuse it because of a later takeover.
async fn write<K>(api: &Api<K>, object: &K, node: &str, change: Value) -> Result<bool, Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let named = format!("{} {}", K::kind(&()), object.name_any());
    match patch_guarded(api, object, names::OPERATOR_MANAGER, change).await {
        Ok(_) => {
            tracing::info!(
                object = named,
                node,
                "moved it to the node that has its disk"
            );
            Ok(true)
        }
        Err(error)
            if matches!(
                Rejection::from(&error),
                Rejection::Conflict | Rejection::NotFound
            ) =>
        {
            Ok(false)
        }
        Err(source) => Err(Error::Write {
            object: named,
            node: node.to_owned(),
            source,
        }),
    }
}

/// Selects the objects of other nodes.
fn elsewhere(node: &str) -> ListParams {
    ListParams::default().fields(&format!("spec.nodeName!={node}"))
}
