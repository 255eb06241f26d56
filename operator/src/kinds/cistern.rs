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
    stored::{PartOfMove, Stored, StoredSnapshot, StoredVolume},
};

impl WatchedKind for DeserializeGuard<StoragePool> {
    type Entry = Self;

    const NAME: &'static str = "storagepools";

    fn entry(mut self) -> Option<Self> {
        self.managed_fields_mut().clear();
        Some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        let key = difference.key.to_string();
        if let Replaced::Changed(before, now) = &difference.entries
            && let (Ok(before), Ok(now)) = (&before.0, &now.0)
            && has_same_declaration(before, now)
        {
            return Change::PoolStatus(key);
        }
        Change::Pool(key)
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

    fn change(difference: &Difference<Self>) -> Change {
        Change::StorageNode(difference.key.to_string())
    }
}

impl WatchedKind for DeserializeGuard<PoolVolume> {
    type Entry = StoredVolume;

    const NAME: &'static str = "poolvolumes";

    fn entry(self) -> Option<StoredVolume> {
        Some(StoredVolume::of_volume(self))
    }

    fn change(difference: &Difference<StoredVolume>) -> Change {
        match &difference.entry().location {
            // Two nodes are concerned.
            Some(_) if has_moved(difference) => Change::Everything,
            Some(location) => Change::Volume {
                name: difference.key.to_string(),
                pool: location.pool.to_string(),
                node: location.node.to_string(),
            },
            None => Change::Everything,
        }
    }
}

impl WatchedKind for DeserializeGuard<PoolSnapshot> {
    type Entry = StoredSnapshot;

    const NAME: &'static str = "poolsnapshots";

    fn entry(self) -> Option<StoredSnapshot> {
        Some(StoredSnapshot::of_snapshot(&self))
    }

    fn change(difference: &Difference<StoredSnapshot>) -> Change {
        match &difference.entry().location {
            Some(_) if has_moved(difference) => Change::Everything,
            Some(location) => Change::Snapshot {
                pool: location.pool.to_string(),
                node: location.node.to_string(),
                moves: of_move(difference.entry()),
            },
            None => Change::Everything,
        }
    }
}

fn of_move(snapshot: &StoredSnapshot) -> Option<String> {
    let part = snapshot.of_move.as_ref();
    part.map(|part| part.volume.to_string())
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

    fn change(difference: &Difference<PartOfMove>) -> Change {
        Change::Replica(difference.entry().volume.to_string())
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

    fn change(difference: &Difference<Self>) -> Change {
        Change::Move(difference.key.to_string())
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

    fn change(difference: &Difference<Self>) -> Change {
        Change::Transfer(difference.key.to_string())
    }
}

/// Whether the node of an object has changed.
fn has_moved<R>(difference: &Difference<Stored<R>>) -> bool {
    match &difference.entries {
        Replaced::Changed(before, now) => {
            let [before, now] = [before, now].map(|it| it.location.as_ref());
            before.map(|it| &it.node) != now.map(|it| &it.node)
        }
        Replaced::Added(_) | Replaced::Removed(_) => false,
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
            pool: "fast".to_owned(),
            node: "w1".to_owned(),
            moves: None,
        };
        assert_eq!(
            <DeserializeGuard<PoolSnapshot>>::change(&Difference {
                key: "x".into(),
                entries: Replaced::Added(Arc::new(kept.clone())),
            }),
            expected
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
            <DeserializeGuard<StoragePool>>::change(&Difference {
                key: "fast".into(),
                entries: Replaced::Changed(before, now),
            })
        };
        let written = change(|pool| pool.status = Some(StoragePoolStatus::default()));
        assert_eq!(written, Change::PoolStatus("fast".to_owned()));
        let declared = change(|pool| pool.spec.overcommit_percent = 200);
        assert_eq!(declared, Change::Pool("fast".to_owned()));
        let deleted = change(|pool| pool.metadata.finalizers = None);
        assert_eq!(deleted, Change::Pool("fast".to_owned()));
    }
}
