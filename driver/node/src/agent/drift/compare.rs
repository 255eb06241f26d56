//! Compares the state of the node with the agent's view of the API.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{
    AccessType, StorageNode, bounds,
    drift::{Drift, Orphan, OrphanIdentity},
    time::acceptable,
    volume::SourceKind,
};
use cistern_host::{Content, Identity, Inventory, Owner};
use tokio::time::timeout;

use super::{elsewhere, state::Comparison};
use crate::{
    agent::{Agent, desired::readable},
    blocking::on_host,
    findings::{self, Finding, FindingKind, Unclaimed, View, charged_size, findings},
};

/// Deadline for reading the host. Each pool has a deadline of its own.
const DEADLINE: Duration = Duration::from_mins(5);

/// Compares once and records the findings. Returns whether they differ from those of the comparison
/// before.
pub(super) async fn compare(agent: &Arc<Agent>) -> bool {
    // Reads the disk first: images made afterwards have their custom resource already.
    let Some(inventory) = inventory(agent).await else {
        return false;
    };
    let Some((node, view)) = view(agent, inventory) else {
        return false;
    };
    let now = (agent.node.now)();
    let mut found = found(&view, now);
    let reported = node.status.unwrap_or_default();
    if let Err(error) = elsewhere::mark(agent, &reported, &mut found.orphans).await {
        tracing::warn!(error = %Chain(&error), "cannot find out where the orphans belong");
        return false;
    }
    let changes = agent.drift.note(&reported, found, now);
    changes.log();
    if changes.has_changes() {
        // The content of a pool may have changed, and the ledger counts it.
        agent.pools.request_reconcile();
    }
    agent.report.request();
    changes.has_changes()
}

/// The state of the node. None while an earlier read runs, or if it cannot be read.
async fn inventory(agent: &Arc<Agent>) -> Option<Inventory> {
    let Ok(permit) = Arc::clone(&agent.drift.inventory_lock).try_lock_owned() else {
        tracing::warn!("an earlier comparison of this node still runs");
        return None;
    };
    let root = agent.node.root.clone();
    let node = agent.desired.node();
    let node = node.as_deref().and_then(readable);
    let groups = node.map_or_else(Vec::new, |node| findings::groups(&node.spec));
    let read = on_host(permit, move || root.inventory(&groups));
    match timeout(DEADLINE, read).await {
        Ok(Ok(Ok(inventory))) => return Some(inventory),
        Ok(Ok(Err(error))) => {
            tracing::warn!(error = %Chain(&error), "cannot read the inventory of this node");
        }
        Ok(Err(error)) => {
            tracing::warn!(error = %Chain(&error), "the task that reads the inventory panicked");
        }
        Err(_) => tracing::warn!("a comparison of this node takes longer than {DEADLINE:?}"),
    }
    None
}

/// Both sides of the comparison; None while the claims are not known completely.
fn view(agent: &Agent, inventory: Inventory) -> Option<(StorageNode, View)> {
    let object = agent.desired.node()?;
    let node = readable(&object)?.clone();
    let Some((volumes, snapshots, groups, replicas)) = agent.desired.everything() else {
        tracing::warn!("cannot read an object, the node is not compared");
        return None;
    };
    let view = View {
        node: Some(node.clone()),
        volumes,
        snapshots,
        groups,
        replicas,
        unreadable: Vec::new(),
        inventory,
    };
    Some((node, view))
}

fn found(view: &View, now: DateTime<Utc>) -> Comparison {
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
    let findings = findings.filter(|finding| is_reported(view, finding));
    let findings = findings.map(
        |Finding {
             kind,
             object,
             message,
         }| Drift {
            kind: kind.to_name(),
            object: bounds::truncate(object, bounds::MESSAGE),
            message: bounds::truncate(message, bounds::MESSAGE),
            since: now,
        },
    );
    Comparison {
        findings: findings.collect(),
        orphans,
    }
}

/// Whether a finding is reported for the node. It is not if the status reports it elsewhere, or if
/// work on it is in progress.
fn is_reported(view: &View, finding: &Finding) -> bool {
    match finding.kind {
        // Reported as an orphan of its pool, a problem of the volume, or a condition of the pool.
        FindingKind::ImageWithoutObject
        | FindingKind::VolumeWithoutImage
        | FindingKind::PoolNotMounted
        | FindingKind::PoolSilent => false,
        FindingKind::UnfinishedImage => {
            let name = Path::new(&finding.object).file_name();
            let name = name.and_then(|name| name.to_str()).unwrap_or_default();
            !view.is_claimed(name)
        }
        FindingKind::ClosedImageWithoutObject
        | FindingKind::CopyWithoutObject
        | FindingKind::SnapshotWithoutImage
        | FindingKind::GroupIncomplete
        | FindingKind::IdentityConflict
        | FindingKind::LedgerMismatch
        | FindingKind::DeletionUnfinished
        | FindingKind::LoopWithoutUse
        | FindingKind::MappingWithoutUse
        | FindingKind::MountWithoutVolume
        | FindingKind::PoolWithoutNode
        | FindingKind::Stray
        | FindingKind::ObjectUnreadable => true,
    }
}

fn orphan(unclaimed: &Unclaimed<'_>, now: DateTime<Utc>) -> Orphan {
    let image = unclaimed.image;
    Orphan {
        image: image.uid.to_string(),
        size: charged_size(image),
        identity: image.identity.as_ref().map(|identity| OrphanIdentity {
            volume_size: image.size,
            ..described(identity)
        }),
        since: now,
        belongs_to: None,
        trashed_since: unclaimed.discarded.map(acceptable),
    }
}

/// The identity of an image in terms of the custom resources.
fn described(identity: &Identity) -> OrphanIdentity {
    let (access_type, filesystem) = match identity.content {
        Content::Filesystem { filesystem, .. } => (AccessType::Filesystem, Some(filesystem)),
        Content::Block => (AccessType::Block, None),
    };
    let source = identity.source.as_ref().map(ToString::to_string);
    let (kind, name, source_volume, source_image, creation_time) = match &identity.owner {
        Owner::Volume(name) => (SourceKind::Volume, name.clone(), None, source, None),
        Owner::Snapshot(snapshot) => (
            SourceKind::Snapshot,
            snapshot.name.clone(),
            Some(snapshot.volume.clone()),
            Some(snapshot.source.to_string()),
            Some(acceptable(snapshot.time)),
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
        encryption: identity.encrypted_with(),
        provisioning: identity.provisioning,
    }
}

#[cfg(test)]
mod tests {
    use chrono::Datelike as _;
    use cistern_crds::{Bytes, Provisioning};
    use cistern_host::SnapshotRecord;

    use super::*;
    use crate::testing::POOL_UUID;

    #[test]
    fn a_time_that_the_schema_refuses_and_a_disk_states_is_reported_as_the_nearest_one() {
        let record = SnapshotRecord {
            name: "snapshot-1".into(),
            volume: "pvc-1".into(),
            source: "uid-1".parse().unwrap(),
            time: DateTime::<Utc>::MAX_UTC,
        };
        let identity = Identity {
            encryption: None,
            owner: Owner::Snapshot(record),
            uid: "uid-2".parse().unwrap(),
            pool_uuid: POOL_UUID.parse().unwrap(),
            size: Bytes::gib(1),
            content: Content::Block,
            provisioning: Provisioning::Thin,
            source: None,
        };
        let stated = described(&identity).creation_time;
        assert_eq!(stated.map(|it| it.year()), Some(2999));
    }
}
