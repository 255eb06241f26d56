//! Bases of incremental backups: snapshots that users have deleted, and that a backup program may still compare with.
//!
//! ```text
//! delete ─▶ spec.incrementalBase ─▶ compared with the next snapshot ─▶ revoked ─▶ removed as any other snapshot
//! ```
//!
//! A base is revoked once it is of no use, or in the way: its volume is gone or on another node, a later base of the
//! volume is kept, it is old, its pool leaves the node, or its pool has little room left.
//!
//! *Invariant:* a volume has one base, apart from those that are being removed. Users can neither list nor restore it,
//! and only a class with the parameter `keepBaseForIncrementals` makes one.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chrono::{DateTime, TimeDelta, Utc};
use cistern_client::Chain;
use cistern_crds::{
    Bytes, HasImage as _, IncrementalBase, NodePoolStatus, PoolSnapshot, PoolVolume, StorageNode,
};
use futures::{StreamExt as _, stream};
use kube::ResourceExt as _;
use serde_json::json;

use super::{Error, Snapshots};
use crate::objects::{
    ManagedObject as _,
    sweep::{AT_ONCE, next_sweep},
};

/// How long a base is kept at most.
const KEPT_FOR: TimeDelta = TimeDelta::days(31);
/// Part of a pool's usable space that bases leave free: a tenth.
const FREE: u64 = 10;

impl Snapshots {
    /// Keeps a snapshot that a user deletes as a base, if its class says so and it can be compared with. Returns
    /// whether it is kept: one that is not is to be removed. Fails if a request to the API server fails.
    pub(super) async fn keep_as_base(&self, snapshot: PoolSnapshot) -> Result<bool, Error> {
        let name = snapshot.name_any();
        let mut current = Some(snapshot);
        // A conflicting write decides nothing: what has changed is looked at again.
        while let Some(snapshot) = current {
            match when_deleted(&snapshot) {
                WhenDeleted::Removed => return Ok(false),
                WhenDeleted::IsKept => {
                    self.kept.notify_one();
                    tracing::info!(
                        snapshot = name,
                        "kept the deleted snapshot as a base for incremental backups"
                    );
                    return Ok(true);
                }
                WhenDeleted::Keep => {
                    let keep = json!({"spec": {"incrementalBase": IncrementalBase::Kept}});
                    current = self.objects.patch("keep", &snapshot, keep).await?;
                }
            }
        }
        Ok(false)
    }

    /// Removes the bases that are of no use or in the way, as long as it is polled.
    pub(super) async fn revoke_bases(self: Arc<Self>) {
        loop {
            if let Err(error) = self.revoke().await {
                tracing::warn!(error = %Chain(&error), "cannot list or check the backup bases");
            }
            next_sweep(&self.kept).await;
        }
    }

    async fn revoke(&self) -> Result<(), Error> {
        let mut bases = self.objects.select("spec.incrementalBase=Kept").await?;
        bases.sort_by_key(|base| Reverse(taken(base)));
        let (mut volumes, mut pools) = (BTreeSet::new(), BTreeSet::new());
        let mut revoked = BTreeMap::new();
        // Of each volume the latest one first; of each pool that is full the oldest one.
        for base in &bases {
            let volume = self.volumes.find(&base.spec.source_volume).await?;
            let is_latest = volumes.insert(base.spec.source_image.clone());
            if let Some(why) = why_revoked(base, volume.as_ref(), is_latest, Utc::now()) {
                revoked.insert(base.name_any(), why);
            }
        }
        for base in bases.iter().rev() {
            let spec = &base.spec;
            let is_first = pools.insert((&spec.node_name, &spec.pool_name));
            let nodes = self.objects.nodes();
            let why = nodes.inspect(&spec.node_name, |node| in_the_way(node?, &spec.pool_name));
            if is_first && let Some(Some(why)) = why {
                revoked.entry(base.name_any()).or_insert(why);
            }
        }
        stream::iter(revoked)
            .for_each_concurrent(AT_ONCE, async |(name, why)| {
                match self.objects.sweep(&name).await {
                    Ok(()) => tracing::info!(snapshot = name, why, "removed the backup base"),
                    Err(error) => {
                        tracing::info!(snapshot = name, error = %Chain(&error), "cannot remove the backup base yet");
                    }
                }
            })
            .await;
        Ok(())
    }
}

/// What becomes of a snapshot that a user deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenDeleted {
    /// It is to be kept as a base.
    Keep,
    /// It is kept as a base.
    IsKept,
    /// It is removed.
    Removed,
}

fn when_deleted(snapshot: &PoolSnapshot) -> WhenDeleted {
    if snapshot.is_leaving() {
        return WhenDeleted::Removed;
    }
    match snapshot.spec.incremental_base {
        Some(IncrementalBase::Kept) => WhenDeleted::IsKept,
        Some(IncrementalBase::WhenDeleted) if snapshot.size().is_some() => WhenDeleted::Keep,
        Some(IncrementalBase::WhenDeleted) | None => WhenDeleted::Removed,
    }
}

/// When a snapshot was taken.
fn taken(snapshot: &PoolSnapshot) -> Option<DateTime<Utc>> {
    snapshot.status.as_ref()?.creation_time
}

/// Why a base is of no use; None if it is of use.
fn why_revoked(
    base: &PoolSnapshot,
    volume: Option<&PoolVolume>,
    is_latest: bool,
    now: DateTime<Utc>,
) -> Option<&'static str> {
    let spec = &base.spec;
    let is_its = |volume: &&PoolVolume| {
        let image = volume.image();
        !volume.spec.deletion_requested && image.is_some_and(|image| image.uid == spec.source_image)
    };
    let Some(volume) = volume.filter(is_its) else {
        return Some("its volume is gone");
    };
    if volume.spec.node_name != spec.node_name {
        return Some("its volume is on another node");
    }
    if spec.deletion_requested {
        return Some("its removal was interrupted");
    }
    if !is_latest {
        return Some("its volume has a later base");
    }
    let is_old = taken(base).is_none_or(|taken| now - taken > KEPT_FOR);
    is_old.then_some("it is too old")
}

/// Why the bases in a pool of a node are in the way; None if they are not.
fn in_the_way(node: &StorageNode, pool: &str) -> Option<&'static str> {
    let mut declared = node.spec.pools.iter();
    if declared.any(|it| it.name == pool && it.retiring) {
        return Some("its pool leaves the node");
    }
    let status = node.status_of(pool)?;
    has_little_room(status).then_some("its pool has little room left")
}

fn has_little_room(pool: &NodePoolStatus) -> bool {
    pool.usable > Bytes::ZERO && pool.thin_room.0 < pool.usable.0 / FREE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        objects::nodes::tests::node,
        testing::{at, ready_snapshot, ready_volume},
    };

    fn base() -> (PoolSnapshot, PoolVolume) {
        let volume = ready_volume();
        let mut base = ready_snapshot();
        base.spec.incremental_base = Some(IncrementalBase::Kept);
        base.spec.node_name = volume.spec.node_name.clone();
        base.spec.source_image = volume.image().unwrap().uid.clone();
        base.status.as_mut().unwrap().creation_time = Some(at(0));
        (base, volume)
    }

    #[test]
    fn a_snapshot_that_its_class_keeps_is_removed_only_if_it_is_leaving_or_was_never_taken() {
        let mut snapshot = ready_snapshot();
        assert_eq!(when_deleted(&snapshot), WhenDeleted::Removed);
        snapshot.spec.incremental_base = Some(IncrementalBase::WhenDeleted);
        // Also after a conflicting write of something else.
        assert_eq!(when_deleted(&snapshot), WhenDeleted::Keep);
        let mut taking = snapshot.clone();
        taking.status = None;
        assert_eq!(when_deleted(&taking), WhenDeleted::Removed);
        let mut kept = snapshot.clone();
        kept.spec.incremental_base = Some(IncrementalBase::Kept);
        assert_eq!(when_deleted(&kept), WhenDeleted::IsKept);
        for mut leaving in [snapshot, kept] {
            leaving.spec.deletion_requested = true;
            assert_eq!(when_deleted(&leaving), WhenDeleted::Removed);
        }
    }

    #[test]
    fn a_base_is_kept_while_a_later_snapshot_of_its_volume_can_be_compared_with_it() {
        let (base, volume) = base();
        let why = |base: &PoolSnapshot, volume: &PoolVolume, is_latest| {
            why_revoked(base, Some(volume), is_latest, at(60)).unwrap_or("")
        };
        assert_eq!(why(&base, &volume, true), "");
        assert_eq!(why(&base, &volume, false), "its volume has a later base");
        let mut moved = volume.clone();
        "elsewhere".clone_into(&mut moved.spec.node_name);
        assert_eq!(why(&base, &moved, true), "its volume is on another node");
        let mut leaving = volume.clone();
        leaving.spec.deletion_requested = true;
        assert_eq!(why(&base, &leaving, true), "its volume is gone");
        let mut other = base.clone();
        "image-of-another".clone_into(&mut other.spec.source_image);
        assert_eq!(why(&other, &volume, true), "its volume is gone");
        assert!(why_revoked(&base, None, true, at(60)).is_some());
        let mut interrupted = base.clone();
        interrupted.spec.deletion_requested = true;
        assert!(!why(&interrupted, &volume, true).is_empty());
        let old = at(0) + KEPT_FOR + TimeDelta::seconds(1);
        assert!(why_revoked(&base, Some(&volume), true, old).is_some());
    }

    #[test]
    fn bases_give_way_in_a_pool_that_leaves_its_node_or_has_little_room() {
        let (usable, little) = (Bytes::gib(10), Bytes::mib(1000));
        assert_eq!(in_the_way(&node("n", Bytes::gib(1), usable), "fast"), None);
        assert!(in_the_way(&node("n", little, usable), "fast").is_some());
        assert_eq!(in_the_way(&node("n", little, usable), "slow"), None);
        let mut retiring = node("n", usable, usable);
        retiring.spec.pools[0].retiring = true;
        assert!(in_the_way(&retiring, "fast").is_some());
    }
}
