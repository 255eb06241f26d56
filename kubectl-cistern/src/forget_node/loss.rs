//! Lists the objects that are lost with a node. Pure.

mod copy;

use std::fmt;

use cistern_crds::{HasImage, PoolSnapshot, PoolSnapshotGroup, PoolVolume, volume::ClaimReference};
use kube::ResourceExt as _;

use self::copy::Copy;
use crate::{
    cluster::{Cluster, VolumeSnapshots},
    output::{Paint, Table, counted, human},
};

/// All objects on a node, or in one pool on it, with their claims and VolumeSnapshots.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    /// Name of the node.
    node: String,
    /// Name of the pool, if only this pool is released. `None` releases the whole node.
    pool: Option<String>,
    /// Volumes, each with its claim.
    pub(crate) volumes: Vec<(PoolVolume, Option<ClaimReference>)>,
    /// Snapshots, each with its VolumeSnapshot as `NAMESPACE/NAME`.
    pub(crate) snapshots: Vec<(PoolSnapshot, Option<String>)>,
    /// Snapshot groups. They have no data of their own.
    pub(crate) groups: Vec<PoolSnapshotGroup>,
    /// Copies of the volumes on other nodes. Complete ones stay until their VolumeMove is deleted.
    pub(crate) copies: Vec<Copy>,
}

impl Loss {
    /// Collects the objects on the node, and in the pool if one is named.
    pub(crate) fn of(
        cluster: &Cluster,
        asked_by: &VolumeSnapshots,
        node: &str,
        pool: Option<&str>,
    ) -> Self {
        let volumes = cluster.volumes.iter().filter(|it| is_in(*it, node, pool));
        let snapshots = cluster.snapshots.iter();
        let groups = cluster.groups.iter().filter(|group| {
            let members = || {
                let is_member = |it: &&PoolSnapshot| {
                    let mut members = group.spec.members.iter();
                    members.any(|member| member.snapshot == it.name_any())
                };
                snapshots.clone().filter(is_member)
            };
            // A group is lost if all of its snapshots are. A group without snapshots is lost only
            // with the node.
            let is_lost = pool.is_none() || members().next().is_some();
            let goes = is_lost && members().all(|it| is_in(it, node, pool));
            group.spec.node_name == node && goes
        });
        Self {
            node: node.to_owned(),
            pool: pool.map(str::to_owned),
            groups: groups.cloned().collect(),
            copies: volumes
                .clone()
                .filter_map(|it| Copy::of(cluster, it))
                .collect(),
            volumes: volumes.map(|it| (it.clone(), cluster.claim(it))).collect(),
            snapshots: snapshots
                .filter(|it| is_in(*it, node, pool))
                .map(|it| (it.clone(), asked_by.of(&it.name_any())))
                .collect(),
        }
    }

    /// Returns the name that confirms the command: `NODE`, or `NODE/POOL`.
    pub(crate) fn name(&self) -> String {
        match &self.pool {
            None => self.node.clone(),
            Some(pool) => format!("{}/{pool}", self.node),
        }
    }

    /// Describes the node or pool, for messages.
    fn subject(&self) -> String {
        match &self.pool {
            None => format!("node {}", self.node),
            Some(pool) => format!("pool {pool} on node {}", self.node),
        }
    }

    /// What to do with the copies before the objects are released.
    pub(crate) fn before_release(&self) -> String {
        copy::before_release(&self.copies, &self.node, self.pool.as_deref())
    }

    /// Returns whether no object is lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty() && self.groups.is_empty()
    }

    /// Describes the result and the remaining manual steps.
    pub(crate) fn forgotten(&self) -> String {
        let subject = self.subject();
        if self.is_empty() {
            return format!("{subject} is released: it had no volumes or snapshots");
        }
        let volumes = counted(self.volumes.len(), "volume");
        let snapshots = counted(self.snapshots.len(), "snapshot");
        format!(
            "{subject} is released with {volumes} and {snapshots}: their claims and VolumeSnapshots, and \
            then the pool, can now be deleted"
        )
    }
}

/// Returns whether an object is on the node, and in the pool if one is named.
fn is_in<K: HasImage>(object: &K, node: &str, pool: Option<&str>) -> bool {
    object.node_name() == node && pool.is_none_or(|pool| object.pool_name() == pool)
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.subject();
        if self.is_empty() {
            return writeln!(f, "No volume or snapshot is lost with {subject}.");
        }
        writeln!(f, "These are lost with {subject}:\n")?;
        let mut volumes = Table::new(&["CLAIM", "VOLUME", "POOL", "SIZE"]);
        for (volume, claim) in &self.volumes {
            let claim = claim.as_ref();
            let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
            volumes.row(vec![
                claim.unwrap_or_default().into(),
                volume.name_any().into(),
                volume.pool_name().into(),
                human(volume.spec.size).into(),
            ]);
        }
        let mut snapshots = Table::new(&["VOLUMESNAPSHOT", "SNAPSHOT", "POOL", "OF VOLUME"]);
        for (snapshot, asked_by) in &self.snapshots {
            snapshots.row(vec![
                asked_by.clone().unwrap_or_default().into(),
                snapshot.name_any().into(),
                snapshot.pool_name().into(),
                snapshot.spec.source_volume.clone().into(),
            ]);
        }
        for table in [volumes, snapshots] {
            if !table.is_empty() {
                writeln!(f, "{}", table.render(Paint::plain()))?;
            }
        }
        for copy in &self.copies {
            writeln!(f, "The copy of {copy} cannot be promoted any more.")?;
        }
        writeln!(
            f,
            "Their objects are released so that they can be deleted. The disks are not touched. Continue only \
            if the disks are permanently lost."
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, complete_copy, object};

    #[test]
    fn all_objects_on_a_node_and_no_others_are_lost_with_it() {
        let contents = VolumeSnapshots::of_contents(&[object(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content"},
            "spec": {"driver": "csi.cistern.storage",
                "volumeSnapshotRef": {"namespace": "shop", "name": "nightly"}},
            "status": {"snapshotHandle": "snap-1"},
        }))]);
        let loss = Loss::of(&cluster(), &contents, "worker-1", None);
        assert_eq!((loss.volumes.len(), loss.snapshots.len()), (2, 1));
        let text = loss.to_string();
        for part in ["shop/data", "shop/copy", "shop/nightly", "pvc-1", "2Gi"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(loss.forgotten().contains("2 volumes and 1 snapshot"));
        let other = Loss::of(&cluster(), &contents, "worker-2", None);
        assert!(other.is_empty() && other.forgotten().contains("it had no volumes or snapshots"));
        let of_pool = |pool| Loss::of(&cluster(), &contents, "worker-1", Some(pool));
        assert_eq!(of_pool("fast").volumes.len(), 2);
        assert_eq!(of_pool("fast").name(), "worker-1/fast");
        assert!(of_pool("slow").is_empty());
    }

    #[test]
    fn a_complete_copy_on_another_node_is_lost_with_its_volume() {
        let mut cluster = cluster();
        let plan = json!({"fromNode": "worker-1", "toNode": "worker-2", "epoch": 1});
        let taken = "2026-01-01T00:00:00Z";
        let prepared = json!({"number": 1, "snapshotName": "s", "image": "i", "taken": taken, "received": taken});
        let mut copies = |prepared: &serde_json::Value| {
            cluster.moves = vec![object(json!({"metadata": {"name": "pvc-1"},
                "spec": {"volumeName": "pvc-1", "cutover": "Never"},
                "status": {"plan": plan, "prepared": prepared}}))];
            Loss::of(&cluster, &VolumeSnapshots::default(), "worker-1", None)
        };
        assert!(copies(&json!(null)).copies.is_empty(), "it is not complete");
        let loss = copies(&prepared);
        assert_eq!(loss.copies[0].volume, "pvc-1");
        let text = loss.to_string();
        let says = "The copy of shop/data (volume pvc-1) as of 2026-01-01 00:00:00 UTC on node worker-2 cannot be \
        promoted any more.";
        assert!(text.contains(says), "{text}");
    }

    #[test]
    fn the_complete_copy_of_a_closed_volume_counts_although_there_was_no_pass() {
        let mut cluster = cluster();
        let plan = json!({"fromNode": "worker-1", "toNode": "worker-2", "epoch": 1});
        cluster.moves = vec![object(json!({"metadata": {"name": "pvc-1"},
            "spec": {"volumeName": "pvc-1"}, "status": {"plan": plan}}))];
        let lost =
            |cluster: &Cluster| Loss::of(cluster, &VolumeSnapshots::default(), "worker-1", None);
        cluster.replicas = vec![complete_copy("pvc-1", 2)];
        assert!(lost(&cluster).copies.is_empty(), "of another move");
        cluster.replicas = vec![complete_copy("pvc-1", 1)];
        let text = lost(&cluster).to_string();
        let says = "The copy of shop/data (volume pvc-1) with all of its data on node worker-2";
        assert!(text.contains(says), "{text}");
    }

    #[test]
    fn a_group_is_lost_with_the_last_of_its_snapshots() {
        let mut cluster = cluster();
        let mut other = cluster.snapshots[0].clone();
        other.metadata.name = Some("snap-2".to_owned());
        "slow".clone_into(&mut other.spec.pool_name);
        cluster.snapshots.push(other);
        cluster.groups = vec![object(json!({
            "metadata": {"name": "group"},
            "spec": {"requestedName": "group", "nodeName": "worker-1", "members": [
                {"volume": "pvc-1", "snapshot": "snap-1"},
                {"volume": "pvc-2", "snapshot": "snap-2"},
            ]},
        }))];
        let lost = |pool| Loss::of(&cluster, &VolumeSnapshots::default(), "worker-1", pool);
        assert_eq!(lost(Some("fast")).groups.len(), 0);
        assert_eq!(lost(None).groups.len(), 1);
        cluster.snapshots.pop();
        let lost = |pool| {
            Loss::of(
                &cluster,
                &VolumeSnapshots::default(),
                "worker-1",
                Some(pool),
            )
        };
        assert_eq!(lost("fast").groups.len(), 1);
        assert_eq!(lost("slow").groups.len(), 0);
    }
}
