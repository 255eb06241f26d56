//! One comparison of what is on the node with what the agent knows of the API.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{
    AccessType, StorageNode, bounds,
    health::{Drift, Orphan, OrphanIdentity},
    volume::SourceKind,
};
use cistern_host::{Content, Identity, Inventory, Owner};
use tokio::time::timeout;

use super::{super::blocking::on_host, Found, elsewhere};
use crate::{
    agent::{Agent, desired::readable, pools::weight_of},
    fsck::findings::{Finding, Kind, Unclaimed, View, findings},
};

/// How long a look at the host may take. Each pool has a deadline of its own.
const DEADLINE: Duration = Duration::from_mins(5);

/// Looks once, and takes note; says whether another look has to tell what is so.
pub(super) async fn pass(agent: &Arc<Agent>) -> bool {
    // The disk first: what is made meanwhile has its custom resource already.
    let Some(inventory) = inventory(agent).await else {
        return false;
    };
    let Some((node, view)) = view(agent, inventory) else {
        return false;
    };
    let now = (agent.now)();
    let mut found = found(&view, now);
    let told = node.status.unwrap_or_default();
    if let Err(error) = elsewhere::mark(agent, &told, &mut found.orphans).await {
        tracing::warn!(error = %Chain(&error), "cannot compare what is on this node");
        return false;
    }
    let changes = agent.drift.note(&told, found, now);
    changes.log();
    if changes.is_news() {
        // Somebody may have changed what lies in a pool, and the ledger counts it.
        agent.look.notify_one();
    }
    agent.report.request();
    changes.is_open()
}

/// What is on the node. None where somebody still looks, or nobody can.
async fn inventory(agent: &Arc<Agent>) -> Option<Inventory> {
    let Ok(place) = Arc::clone(&agent.drift.looking).try_lock_owned() else {
        tracing::warn!("an earlier comparison of this node has not come to its end");
        return None;
    };
    let root = agent.root.clone();
    match timeout(DEADLINE, on_host(place, move || root.inventory())).await {
        Ok(Ok(Ok(inventory))) => return Some(inventory),
        Ok(Ok(Err(error))) => {
            tracing::warn!(error = %Chain(&error), "cannot compare what is on this node");
        }
        Ok(Err(error)) => {
            tracing::warn!(error = %Chain(&error), "cannot compare what is on this node");
        }
        Err(_) => tracing::warn!("a comparison of this node takes longer than {DEADLINE:?}"),
    }
    None
}

/// Both sides; none while it is not known who claims what.
fn view(agent: &Agent, inventory: Inventory) -> Option<(StorageNode, View)> {
    let object = agent.desired.node()?;
    let node = readable(&object)?.clone();
    let Some((volumes, snapshots, groups)) = agent.desired.everything() else {
        tracing::warn!("an object cannot be read, so nobody can say what belongs together");
        return None;
    };
    let view = View {
        node: Some(node.clone()),
        volumes,
        snapshots,
        groups,
        inventory,
    };
    Some((node, view))
}

fn found(view: &View, now: DateTime<Utc>) -> Found {
    let mut orphans = BTreeMap::<String, Vec<Orphan>>::new();
    for pool in &view.inventory.pools {
        if pool.filesystem_uuid.is_some() {
            orphans.entry(pool.uid.to_string()).or_default();
        }
    }
    for unclaimed in view.unclaimed() {
        let of_pool = orphans.entry(unclaimed.pool.uid.to_string()).or_default();
        of_pool.push(orphan(&unclaimed, now));
    }
    let findings = findings(view).into_iter();
    let findings = findings.filter(|finding| is_told(view, finding));
    let findings = findings.map(
        |Finding {
             kind,
             object,
             message,
         }| Drift {
            kind: kind.to_name(),
            object: bounds::cut(object, bounds::MESSAGE),
            message: bounds::cut(message, bounds::MESSAGE),
            since: now,
        },
    );
    Found {
        findings: findings.collect(),
        orphans,
    }
}

/// Whether a finding is told of the node: not where it stands elsewhere in the status, or is under
/// way.
fn is_told(view: &View, finding: &Finding) -> bool {
    match finding.kind {
        // An orphan of its pool; a problem of the volume; a condition of the pool.
        Kind::ImageWithoutObject
        | Kind::VolumeWithoutImage
        | Kind::PoolNotMounted
        | Kind::PoolSilent => false,
        Kind::UnfinishedImage => {
            let name = Path::new(&finding.object).file_name();
            let name = name.and_then(|name| name.to_str()).unwrap_or_default();
            !view.is_claimed(name)
        }
        Kind::SnapshotWithoutImage
        | Kind::GroupIncomplete
        | Kind::IdentityConflict
        | Kind::LedgerMismatch
        | Kind::DeletionUnfinished
        | Kind::LoopWithoutUse
        | Kind::MountWithoutVolume
        | Kind::PoolWithoutNode
        | Kind::Stray => true,
    }
}

fn orphan(unclaimed: &Unclaimed<'_>, now: DateTime<Utc>) -> Orphan {
    let image = unclaimed.image;
    Orphan {
        image: image.uid.to_string(),
        size: weight_of(image),
        identity: image.identity.as_ref().map(|identity| OrphanIdentity {
            volume_size: image.size,
            ..described(identity)
        }),
        since: now,
        belongs_to: None,
        trashed_since: unclaimed.discarded,
    }
}

/// What an image says of itself, in the words of the custom resources.
fn described(identity: &Identity) -> OrphanIdentity {
    let (access_type, filesystem) = match identity.content {
        Content::Filesystem { filesystem, .. } => (AccessType::Filesystem, Some(filesystem)),
        Content::Block => (AccessType::Block, None),
    };
    let source = identity.source.as_ref().map(ToString::to_string);
    let (kind, name, source_volume, source_image, creation_time) = match &identity.owner {
        Owner::Volume(name) => (SourceKind::Volume, name.clone(), None, source, None),
        Owner::Snapshot(cut) => (
            SourceKind::Snapshot,
            cut.name.clone(),
            Some(cut.volume.clone()),
            Some(cut.source.to_string()),
            Some(cut.time),
        ),
    };
    OrphanIdentity {
        kind,
        name,
        source_volume,
        source_image,
        creation_time,
        volume_size: identity.size,
        access_type,
        filesystem,
        provisioning: identity.provisioning,
    }
}
