//! `transfers`: the copies of snapshots, and of volumes that move, to other nodes. Pure.
//!
//! *Invariant:* the progress is shown as the agent words it, and never parsed.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, Condition, ConditionType, HasImage as _, ImageTransfer, PoolVolume, TransferPurpose,
    condition, time, volume::ClaimReference,
};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    age::age,
    arguments::Selection,
    cluster::Cluster,
    output::{Cell, Paint, Style, Table, View, human},
};

/// Copies of snapshots and of volumes that move to other nodes.
#[derive(Clone, Debug, Serialize)]
pub struct Transfers {
    /// Copies, oldest first.
    pub items: Vec<TransferView>,
    /// Time at which the objects were listed.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// The copy of a snapshot for a new volume on another node, or of a volume that moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TransferView {
    /// Name of the volume that is made from the copy, or that moves.
    pub volume: String,
    /// Claim of the volume; absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimReference>,
    /// Name of the snapshot; absent if a volume moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Node that sends.
    pub from: String,
    /// Node that receives.
    pub to: String,
    /// Pool that receives; absent if the volume does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Size of the volume in bytes; absent if the volume does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Reason of the condition Ready of the volume, or of its move: `Copying`, or why the copy waits. Absent until the
    /// agent reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Progress, rate and time left, or why the copy waits.
    pub message: String,
    /// Time at which the copy was permitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
}

impl Transfers {
    /// Collects the copies for volumes in the selected pool, from or to the selected node.
    pub fn of(cluster: &Cluster, only: &Selection, now: DateTime<Utc>) -> Self {
        let is_selected = |it: &TransferView| {
            let pool = only.pool.as_ref();
            let node = only.node.as_ref();
            pool.is_none_or(|pool| it.pool.as_ref() == Some(pool))
                && node.is_none_or(|node| [&it.from, &it.to].contains(&node))
        };
        let items = cluster.transfers.iter();
        let items = items.map(|transfer| TransferView::of(transfer, cluster));
        let mut items: Vec<TransferView> = items.filter(is_selected).collect();
        items.sort_by(|a, b| (a.since, &a.volume).cmp(&(b.since, &b.volume)));
        Self { items, now }
    }
}

impl TransferView {
    fn of(transfer: &ImageTransfer, cluster: &Cluster) -> Self {
        let spec = &transfer.spec;
        let volume = cluster.volume(&spec.volume_name);
        let ready = match spec.purpose {
            TransferPurpose::Restore => volume.map(PoolVolume::conditions),
            TransferPurpose::Move => conditions_of_move(transfer, cluster),
        };
        let ready = ready.and_then(|it| condition::find(it, ConditionType::Ready));
        let message = match (volume, ready) {
            (None, _) => format!("there is no PoolVolume {}", spec.volume_name),
            (Some(_), None) => format!("node {} has not reported yet", spec.target_node),
            (Some(_), Some(ready)) => ready.message.clone(),
        };
        let created = transfer.metadata.creation_timestamp.as_ref();
        Self {
            volume: spec.volume_name.clone(),
            claim: volume.and_then(|volume| cluster.claim(volume)),
            snapshot: spec.snapshot_name.clone(),
            from: spec.source_node.clone(),
            to: spec.target_node.clone(),
            pool: volume.map(|volume| volume.pool_name().to_owned()),
            size_bytes: volume.map(|volume| volume.spec.size.0),
            reason: ready.map(|ready| ready.reason.clone()),
            message,
            since: created.map(time::from_kubernetes),
        }
    }
}

/// The conditions of the VolumeMove whose volume is copied. They repeat what the target says of its PoolReplica.
fn conditions_of_move<'a>(
    transfer: &ImageTransfer,
    cluster: &'a Cluster,
) -> Option<&'a [Condition]> {
    let uid = transfer.spec.move_uid.as_deref();
    let mut moves = cluster.moves.iter();
    let found = moves.find(|it| it.uid().as_deref() == uid)?;
    Some(&found.status.as_ref()?.conditions)
}

const HEADINGS: [&str; 9] = [
    "CLAIM", "VOLUME", "SNAPSHOT", "FROM", "TO", "SIZE", "AGE", "REASON", "MESSAGE",
];

impl View for Transfers {
    const KIND: &'static str = "TransferList";

    fn text(&self, _wide: bool, paint: Paint) -> String {
        if self.items.is_empty() {
            return "Nothing is being copied to another node.\n".to_owned();
        }
        let mut table = Table::new(&HEADINGS);
        for it in &self.items {
            let claim = it.claim.as_ref();
            let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
            let size = it.size_bytes.map(|size| human(Bytes(size)));
            let reason = it.reason.clone().unwrap_or_default();
            let style = match reason.as_str() {
                "Copying" => Style::Plain,
                _ => Style::Warning,
            };
            table.row(vec![
                Cell::new(claim.unwrap_or_default(), Style::Strong),
                it.volume.as_str().into(),
                it.snapshot.as_deref().unwrap_or_default().into(),
                it.from.as_str().into(),
                it.to.as_str().into(),
                size.unwrap_or_default().into(),
                it.since
                    .map(|since| age(since, self.now))
                    .unwrap_or_default()
                    .into(),
                Cell::new(reason, style),
                it.message.as_str().into(),
            ]);
        }
        table.render(paint)
    }

    fn has_headings(&self) -> bool {
        !self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{at, cluster, condition, object};

    const PROGRESS: &str = "snapshot snap-1 of node worker-1 is being copied since 1970-01-01T00:05:00Z: 25 % are done, \
        10 MiB of data per second, about 30 s are left";

    fn transfer(volume: &str, to: &str, created: &str) -> ImageTransfer {
        object(json!({
            "metadata": {"name": volume, "creationTimestamp": created},
            "spec": {"sourceNode": "worker-1", "targetNode": to, "snapshotName": "snap-1",
                "image": "uid-of-snap-1", "volumeName": volume, "purpose": "Restore"},
        }))
    }

    fn copying(conditions: &Value) -> Cluster {
        let mut cluster = cluster();
        cluster.transfers = vec![
            transfer("pvc-9", "worker-3", "1970-01-01T00:08:00Z"),
            transfer("pvc-2", "worker-2", "1970-01-01T00:05:00Z"),
        ];
        cluster.volumes[1].status = Some(object(json!({"conditions": conditions})));
        cluster
    }

    #[test]
    fn copies_are_listed_oldest_first_with_what_the_agent_says() {
        let cluster = copying(&json!([condition("Ready", "False", "Copying", PROGRESS)]));
        let all = Transfers::of(&cluster, &Selection::default(), at(600));
        let text = all.text(false, Paint::plain());
        let expected = format!(
            "\
CLAIM       VOLUME   SNAPSHOT   FROM       TO         SIZE   AGE   REASON    MESSAGE
shop/copy   pvc-2    snap-1     worker-1   worker-2   2Gi    5m    Copying   {PROGRESS}
-           pvc-9    snap-1     worker-1   worker-3   -      2m    -         there is no PoolVolume pvc-9
"
        );
        assert_eq!(text, expected);
        let json = serde_json::to_value(&all).unwrap();
        let first = &json["items"][0];
        assert_eq!(
            (&first["from"], &first["to"]),
            (&json!("worker-1"), &json!("worker-2"))
        );
        assert_eq!(
            (&first["pool"], &first["sizeBytes"]),
            (&json!("fast"), &json!(2_u64 << 30))
        );
        assert_eq!(
            (&first["reason"], &first["message"]),
            (&json!("Copying"), &json!(PROGRESS))
        );
    }

    #[test]
    fn the_copy_of_a_volume_that_moves_has_the_progress_of_its_move() {
        let mut cluster = cluster();
        cluster.transfers = vec![object(json!({
            "metadata": {"name": "move"},
            "spec": {"sourceNode": "worker-1", "targetNode": "worker-2", "moveUID": "m",
                "image": "uid-of-pvc-1", "volumeName": "pvc-1", "purpose": "Move"},
        }))];
        let first = |cluster: &Cluster| {
            let all = Transfers::of(cluster, &Selection::default(), at(600));
            all.items.into_iter().next().unwrap()
        };
        assert_eq!(
            first(&cluster).message,
            "node worker-2 has not reported yet"
        );
        cluster.moves = vec![object(json!({
            "metadata": {"name": "pvc-1", "uid": "m"}, "spec": {"volumeName": "pvc-1"},
            "status": {"conditions": [condition("Ready", "False", "Copying", "25 % are done")]},
        }))];
        let copy = first(&cluster);
        assert_eq!(copy.reason.as_deref(), Some("Copying"));
        assert_eq!(
            (copy.message.as_str(), copy.snapshot),
            ("25 % are done", None)
        );
    }

    #[test]
    fn copies_are_selected_by_both_nodes_and_by_pool() {
        let cluster = copying(&json!([]));
        let count = |pool: Option<&str>, node: Option<&str>| {
            let (pool, node) = (pool.map(str::to_owned), node.map(str::to_owned));
            Transfers::of(&cluster, &Selection { pool, node }, at(600))
                .items
                .len()
        };
        assert_eq!(count(None, Some("worker-1")), 2);
        assert_eq!(count(None, Some("worker-2")), 1);
        assert_eq!(count(None, Some("worker-9")), 0);
        assert_eq!(count(Some("fast"), None), 1);
        let silent = &Transfers::of(&cluster, &Selection::default(), at(600)).items[0];
        assert_eq!(silent.message, "node worker-2 has not reported yet");
        let none = Transfers::of(&Cluster::default(), &Selection::default(), at(600));
        assert_eq!(
            none.text(false, Paint::plain()),
            "Nothing is being copied to another node.\n"
        );
    }
}
