//! The cached part of Cistern's custom resources.

use cistern_crds::{
    ImageTransfer, PoolReplica, PoolSnapshot, PoolVolume, StorageNode, StoragePool, VolumeMove,
    VolumeMoveStatus,
};
use kube::{ResourceExt as _, core::DeserializeGuard};

use super::WatchedKind;
use crate::{
    cache::{Difference, Replaced},
    change::Change,
    comparison::has_same_declaration,
    identity,
    stored::{Location, PartOfMove, Stored, StoredSnapshot, StoredVolume},
};

impl WatchedKind for DeserializeGuard<StoragePool> {
    type Entry = Self;

    const NAME: &'static str = "storagepools";

    fn entry(mut self) -> Option<Self> {
        self.managed_fields_mut().clear();
        Some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        let key = difference.key.to_string();
        if let Replaced::Changed(before, now) = &difference.entries
            && let (Ok(before), Ok(now)) = (&before.0, &now.0)
            && has_same_declaration(before, now)
        {
            return vec![Change::PoolStatus(key)];
        }
        vec![Change::Pool(key)]
    }
}

impl WatchedKind for DeserializeGuard<StorageNode> {
    type Entry = Self;

    const NAME: &'static str = "storagenodes";

    fn entry(mut self) -> Option<Self> {
        self.managed_fields_mut().clear();
        if let Ok(node) = &mut self.0
            && let Some(status) = &mut node.status
        {
            status.disks = Vec::new();
        }
        Some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        vec![Change::StorageNode(difference.key.to_string())]
    }
}

impl WatchedKind for DeserializeGuard<PoolVolume> {
    type Entry = StoredVolume;

    const NAME: &'static str = "poolvolumes";

    fn entry(self) -> Option<StoredVolume> {
        Some(StoredVolume::of_volume(self))
    }

    fn changes(difference: &Difference<StoredVolume>) -> Vec<Change> {
        in_places(difference, |_, location| Change::Volume {
            name: difference.key.to_string(),
            pool: location.pool.to_string(),
            node: location.node.to_string(),
        })
    }
}

impl WatchedKind for DeserializeGuard<PoolSnapshot> {
    type Entry = StoredSnapshot;

    const NAME: &'static str = "poolsnapshots";

    fn entry(self) -> Option<StoredSnapshot> {
        Some(StoredSnapshot::of_snapshot(&self))
    }

    fn changes(difference: &Difference<StoredSnapshot>) -> Vec<Change> {
        in_places(difference, |snapshot, location| Change::Snapshot {
            name: difference.key.to_string(),
            pool: location.pool.to_string(),
            node: location.node.to_string(),
            moves: snapshot.of_move.as_ref().map(|it| it.volume.to_string()),
        })
    }
}

/// The changes at the place of an object, and at its former one if it has moved. An object that cannot be read may be
/// anywhere.
fn in_places<R>(
    difference: &Difference<Stored<R>>,
    change: impl Fn(&Stored<R>, &Location) -> Change,
) -> Vec<Change> {
    let entries = difference.before().into_iter().chain(difference.now());
    let changes = entries.map(|entry| Some(change(entry, entry.location.as_ref()?)));
    let changes: Option<Vec<Change>> = changes.collect();
    let mut changes = changes.unwrap_or_else(|| vec![Change::Everything]);
    changes.dedup();
    changes
}

impl WatchedKind for DeserializeGuard<PoolReplica> {
    type Entry = PartOfMove;

    const NAME: &'static str = "poolreplicas";
    // An upgrade may apply the definitions last.
    const IS_OPTIONAL: bool = true;

    fn entry(self) -> Option<PartOfMove> {
        let replica = self.0.ok()?;
        Some(PartOfMove::of(&replica, &replica.spec.volume_name))
    }

    fn changes(difference: &Difference<PartOfMove>) -> Vec<Change> {
        vec![Change::Replica(difference.entry().volume.to_string())]
    }
}

impl WatchedKind for VolumeMove {
    type Entry = Self;

    const NAME: &'static str = "volumemoves";
    // An upgrade may apply the definitions last.
    const IS_OPTIONAL: bool = true;

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity::with_deletion(&self.metadata);
        // The saved PersistentVolume is read when it is needed.
        self.status = self.status.map(|status| VolumeMoveStatus {
            plan: status.plan,
            copying: status.copying,
            prepared: status.prepared,
            promoted: status.promoted,
            conditions: status.conditions,
            ..VolumeMoveStatus::default()
        });
        Some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        vec![Change::Move(difference.key.to_string())]
    }
}

impl WatchedKind for ImageTransfer {
    type Entry = Self;

    const NAME: &'static str = "imagetransfers";
    // An upgrade may apply the definitions last.
    const IS_OPTIONAL: bool = true;

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity::with_deletion(&self.metadata);
        Some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        vec![Change::Transfer(difference.key.to_string())]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cistern_crds::StoragePoolStatus;
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn only_the_location_of_a_snapshot_is_kept() {
        let snapshot: DeserializeGuard<PoolSnapshot> = serde_json::from_value(json!({
            "metadata": {"name": "s", "uid": "u", "labels": {"x": "y"}},
            "spec": {
                "requestedName": "snapshot-s", "nodeName": "w1", "poolName": "fast",
                "sourceVolume": "v", "sourceImage": "i", "accessType": "Block",
                "provisioning": "Thin", "groupName": "g",
            },
            "status": {"reserved": "1Gi"},
        }))
        .unwrap();
        let kept = snapshot.entry().unwrap();
        let expected = Change::Snapshot {
            name: "x".to_owned(),
            pool: "fast".to_owned(),
            node: "w1".to_owned(),
            moves: None,
        };
        assert_eq!(
            <DeserializeGuard<PoolSnapshot>>::changes(&Difference {
                key: "x".into(),
                entries: Replaced::Added(Arc::new(kept.clone())),
            }),
            [expected]
        );
        assert_eq!(kept.requested_name.as_deref(), Some("snapshot-s"));
    }

    #[test]
    fn the_status_of_a_pool_is_no_change_of_its_declaration() {
        let pool = testing::pool("fast", &[]);
        let change = |change: fn(&mut StoragePool)| {
            let mut now = pool.clone();
            change(&mut now);
            let [before, now] = [pool.clone(), now].map(|it| Arc::new(DeserializeGuard(Ok(it))));
            <DeserializeGuard<StoragePool>>::changes(&Difference {
                key: "fast".into(),
                entries: Replaced::Changed(before, now),
            })
        };
        let written = change(|pool| pool.status = Some(StoragePoolStatus::default()));
        assert_eq!(written, [Change::PoolStatus("fast".to_owned())]);
        let declared = change(|pool| pool.spec.overcommit_percent = 200);
        assert_eq!(declared, [Change::Pool("fast".to_owned())]);
        let deleted = change(|pool| pool.metadata.finalizers = None);
        assert_eq!(deleted, [Change::Pool("fast".to_owned())]);
    }

    #[test]
    fn a_volume_that_moves_is_a_change_on_both_nodes_and_one_that_cannot_be_read_is_on_any() {
        let on = |node: Option<&str>| {
            Arc::new(StoredVolume {
                location: node.map(|node| Location {
                    node: node.into(),
                    pool: "fast".into(),
                    thick: false,
                }),
                ..StoredVolume::default()
            })
        };
        let changes = |entries| {
            let key = "pvc-1".into();
            <DeserializeGuard<PoolVolume>>::changes(&Difference { key, entries })
        };
        let change = |node: &str| Change::Volume {
            name: "pvc-1".to_owned(),
            pool: "fast".to_owned(),
            node: node.to_owned(),
        };
        let [there, here, unknown] = [Some("w1"), Some("w2"), None].map(on);
        let moved = changes(Replaced::Changed(there, here.clone()));
        assert_eq!(moved, [change("w1"), change("w2")]);
        let stayed = changes(Replaced::Changed(here.clone(), here.clone()));
        assert_eq!(stayed, [change("w2")]);
        for entries in [
            Replaced::Changed(unknown.clone(), here.clone()),
            Replaced::Changed(here, unknown.clone()),
            Replaced::Removed(unknown),
        ] {
            assert_eq!(changes(entries), [Change::Everything]);
        }
    }
}
