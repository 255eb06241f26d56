//! A disk is in another machine: what is on it follows. The tests act as the agents.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolOwner, PoolSnapshot, PoolSnapshotGroup, PoolVolume,
    VolumeMove, condition, names, persistent_volume::nodes_of,
};
use cistern_e2e::{
    eventually,
    objects::{change, write_status},
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, SOON},
    objects::{Objects, create, delete},
};

/// UUID of the filesystem of a pool that [`Objects::report`] reports.
const FILESYSTEM: &str = "6b3f1a52-0000-4000-8000-000000000000";

/// Two nodes with a pool, of which the first carries the disk.
struct Move<'a> {
    api: &'a Objects,
    pool: &'a str,
    old: String,
    new: String,
}

impl<'a> Move<'a> {
    async fn begin(api: &'a Objects, pool: &'a str) -> Self {
        let [old, new] = ["old", "new"].map(|name| format!("{pool}-{name}"));
        for node in [&old, &new] {
            api.add_node(node, &[(pool, "yes")]).await;
        }
        api.add_pool(pool, &[(pool, "yes")]).await;
        api.report(&old, pool, Bytes::gib(9)).await;
        Self {
            api,
            pool,
            old,
            new,
        }
    }

    /// The owner that the marker names as long as the old node has the disk.
    async fn owner(&self) -> PoolOwner {
        PoolOwner {
            node: self.old.clone(),
            machine_id: None,
            pool_uid: self.api.carried(&self.old, self.pool).await.uid,
            filesystem_uuid: FILESYSTEM.to_owned(),
        }
    }

    /// The old machine leaves the cluster, and the new node finds the disk. Waits for the grant.
    async fn move_disk(&self) {
        let (api, owner) = (self.api, self.owner().await);
        let found = NodePoolStatus {
            belongs_to: Some(owner.clone()),
            filesystem_uuid: None,
            ..api.ready_report(&self.new, self.pool, Bytes::ZERO).await
        };
        api.report_pools(&self.new, &[found]).await;
        delete(&api.nodes(), &self.old).await;
        delete(&api.pods(), &format!("agent-{}", self.old)).await;
        api.storage_node("the grant", &self.new, |node| {
            (node.spec.pools.first()?.take_over.as_ref() == Some(&owner)).then_some(())
        })
        .await;
    }

    /// The agent of the new node has written the marker.
    async fn take_over(&self, takeovers: u32) {
        let taken = NodePoolStatus {
            takeovers,
            ..self
                .api
                .ready_report(&self.new, self.pool, Bytes::ZERO)
                .await
        };
        self.api.report_pools(&self.new, &[taken]).await;
    }

    async fn until_the_grant_is_gone(&self) {
        let what = "the end of the grant";
        self.api
            .storage_node(what, &self.new, |node| {
                node.spec.pools.first()?.take_over.is_none().then_some(())
            })
            .await;
    }
}

/// The status of an object with an image in a filesystem.
fn made(filesystem: &str) -> Value {
    let uid = "6b3f1a52-0000-4000-8000-000000000001";
    json!({
        "reserved": "1Gi", "size": "1Gi",
        "image": {"uid": uid, "poolUuid": filesystem, "sectorSize": 4096},
    })
}

async fn volume_on(found: &Move<'_>, name: &str, filesystem: &str) {
    found.api.add_volume(name, found.pool, &found.old).await;
    write_status(&found.api.volumes(), name, made(filesystem)).await;
}

#[tokio::test]
async fn volumes_snapshots_and_groups_follow_their_disk_to_the_node_that_took_it_over() {
    let api = Cluster::shared().await.api();
    let found = Move::begin(&api, "follow").await;
    volume_on(&found, "follow-volume", FILESYSTEM).await;
    let another = "6b3f1a52-0000-4000-8000-00000000000f";
    volume_on(&found, "follow-elsewhere", another).await;
    api.add_volume("follow-unmade", "follow", &found.old).await;
    let client = api.volumes().into_client();
    let snapshots = Api::<PoolSnapshot>::all(client.clone());
    api.add_snapshot("follow-snapshot", "follow", &found.old)
        .await;
    write_status(&snapshots, "follow-snapshot", made(FILESYSTEM)).await;
    let groups = Api::<PoolSnapshotGroup>::all(client);
    let group = json!({
        "apiVersion": "cistern.storage/v1alpha1", "kind": "PoolSnapshotGroup",
        "metadata": {"name": "follow-group"},
        "spec": {
            "requestedName": "follow-group", "nodeName": found.old,
            "members": [{"volume": "gone", "snapshot": "follow-snapshot"}],
        },
    });
    create(&groups, &group).await;

    found.move_disk().await;
    let volumes = api.volumes();
    let before = volumes.get("follow-volume").await.unwrap();
    assert_eq!(
        before.spec.node_name, found.old,
        "not before the marker is written"
    );
    found.take_over(1).await;
    found.until_the_grant_is_gone().await;

    let place = |volume: PoolVolume| {
        let spec = volume.spec;
        (spec.node_name, spec.epoch, spec.takeovers)
    };
    let moved = volumes.get("follow-volume").await.unwrap();
    assert_eq!(moved.uid(), before.uid());
    assert_eq!(place(moved), (found.new.clone(), 1, 1));
    for stays in ["follow-elsewhere", "follow-unmade"] {
        let volume = volumes.get(stays).await.unwrap();
        assert_eq!(place(volume), (found.old.clone(), 0, 0), "{stays}");
    }
    let snapshot = snapshots.get("follow-snapshot").await.unwrap().spec;
    assert_eq!(
        (&snapshot.node_name, snapshot.epoch, snapshot.takeovers),
        (&found.new, 1, 1)
    );
    let group = groups.get("follow-group").await.unwrap().spec;
    assert_eq!((group.node_name, group.epoch), (found.new.clone(), 1));

    // Nothing keeps the old StorageNode once the others are removed.
    for stays in ["follow-elsewhere", "follow-unmade"] {
        api.remove::<PoolVolume>(stays).await;
    }
    eventually("the old StorageNode to go", SOON, async || {
        match api.storage_nodes().get_opt(&found.old).await.unwrap() {
            None => Ok(()),
            Some(node) => Err(format!("{node:#?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_volume_that_was_verified_after_a_later_takeover_does_not_follow_an_earlier_one() {
    let api = Cluster::shared().await.api();
    let found = Move::begin(&api, "late").await;
    volume_on(&found, "late-volume", FILESYSTEM).await;
    found.move_disk().await;
    // The disk has returned, and its agent has verified the volume.
    write_status(&api.volumes(), "late-volume", json!({"takeovers": 2})).await;
    found.take_over(1).await;
    found.until_the_grant_is_gone().await;
    let spec = api.volumes().get("late-volume").await.unwrap().spec;
    assert_eq!((spec.node_name, spec.epoch), (found.old.clone(), 0));
}

/// A PersistentVolume as external-provisioner makes it, bound to the claim `default/{name}`.
async fn persistent_volume(found: &Move<'_>, name: &str, finalizers: &[&str]) -> PersistentVolume {
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": format!("pv-of-{name}"),
            "labels": {"team": "a"},
            "annotations": {"pv.kubernetes.io/provisioned-by": names::DRIVER},
            "finalizers": finalizers,
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "none",
            "mountOptions": ["noatime"],
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
                "name": name, "uid": format!("uid-of-{name}"),
            },
            "csi": {
                "driver": names::DRIVER, "volumeHandle": name, "fsType": "ext4",
                "volumeAttributes": {(names::IMAGE_CONTEXT): "6b3f1a52-0000-4000-8000-000000000001"},
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": names::TOPOLOGY_KEY, "operator": "In", "values": [found.old]},
            ]}]}},
        },
    });
    create(&persistent_volumes(found.api), &object).await
}

fn persistent_volumes(api: &Objects) -> Api<PersistentVolume> {
    Api::all(api.client.clone())
}

/// Waits until there is a PersistentVolume of this name that names the node, and no VolumeMove.
async fn followed(found: &Move<'_>, volume: &str) -> PersistentVolume {
    let moves = Api::<VolumeMove>::all(found.api.client.clone());
    eventually(&format!("{volume} to have moved"), SOON, async || {
        let (api, name) = (persistent_volumes(found.api), format!("pv-of-{volume}"));
        let moving = moves.get_opt(volume).await.unwrap();
        let is = api.get_opt(&name).await.unwrap();
        match (is, moving) {
            (Some(is), None) if nodes_of(&is) == [&found.new] => Ok(is),
            (is, moving) => Err(format!("{is:#?} {moving:#?}")),
        }
    })
    .await
}

/// Waits until the move of a volume waits for a reason, and returns its message.
async fn waits(found: &Move<'_>, volume: &str, reason: &str) -> String {
    let moves = Api::<VolumeMove>::all(found.api.client.clone());
    eventually(
        &format!("{volume} to wait for {reason}"),
        SOON,
        async || {
            let moving = moves.get_opt(volume).await.unwrap();
            let conditions = moving
                .as_ref()
                .and_then(|it| Some(&it.status.as_ref()?.conditions));
            let ready = conditions.and_then(|it| condition::find(it, ConditionType::Ready));
            match ready {
                Some(ready) if ready.reason == reason => Ok(ready.message.clone()),
                _ => Err(format!("{moving:#?}")),
            }
        },
    )
    .await
}

#[tokio::test]
async fn the_persistent_volume_of_a_volume_that_follows_is_replaced_under_its_name_and_claim() {
    let api = Cluster::shared().await.api();
    let found = Move::begin(&api, "bound").await;
    volume_on(&found, "bound-volume", FILESYSTEM).await;
    let provisioner = "external-provisioner.volume.kubernetes.io/finalizer";
    let before = persistent_volume(&found, "bound-volume", &[provisioner]).await;
    let (persistent_volumes, name) = (persistent_volumes(&api), before.name_any());
    let claim = json!({
        "metadata": {"name": "bound-volume"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claim = create::<PersistentVolumeClaim>(&api.claims(), &claim).await;
    let claimed = json!({"spec": {"claimRef": {"uid": claim.uid()}}});
    let before = change(&persistent_volumes, &name, claimed).await;
    found.move_disk().await;
    found.take_over(1).await;

    // The test is kube-controller-manager.
    let replaced = eventually("it to be replaced", SOON, async || {
        let is = persistent_volumes.get_opt(&name).await.unwrap();
        let is_new = is.as_ref().is_some_and(|is| is.uid() != before.uid());
        is.filter(|_| is_new).ok_or_else(|| "it is not".to_owned())
    })
    .await;
    let policy = replaced.spec.unwrap().persistent_volume_reclaim_policy;
    assert_eq!(policy.as_deref(), Some("Retain"), "until it is bound");
    let bound = json!({"phase": "Bound"});
    write_status(&persistent_volumes, &name, bound).await;

    let after = followed(&found, "bound-volume").await;
    assert_ne!(
        after.uid(),
        before.uid(),
        "the API server allows no change of the affinity"
    );
    let volume = api.volumes().get("bound-volume").await.unwrap();
    assert_eq!(volume.spec.node_name, found.new);
    let mut expected = before.spec.unwrap();
    let is = after.spec.clone().unwrap();
    assert_eq!(
        is.claim_ref.as_ref().unwrap().uid.as_deref(),
        claim.uid().as_deref()
    );
    expected.node_affinity.clone_from(&is.node_affinity);
    expected.claim_ref.clone_from(&is.claim_ref);
    assert_eq!(is, expected, "the reclaim policy, too");
    assert_eq!(after.labels(), before.metadata.labels.as_ref().unwrap());
    assert_eq!(
        after.annotations(),
        before.metadata.annotations.as_ref().unwrap()
    );
    assert!(after.finalizers().contains(&provisioner.to_owned()));
}

#[tokio::test]
async fn a_volume_whose_move_cannot_begin_follows_its_disk() {
    let api = Cluster::shared().await.api();
    let found = Move::begin(&api, "begun").await;
    volume_on(&found, "begun-volume", FILESYSTEM).await;
    persistent_volume(&found, "begun-volume", &[]).await;
    let moves = Api::<VolumeMove>::all(api.client.clone());
    let waiting = json!({
        "metadata": {"name": "begun-volume"}, "spec": {"volumeName": "begun-volume"},
    });
    create(&moves, &waiting).await;
    waits(&found, "begun-volume", "NotMovable").await;
    found.move_disk().await;
    found.take_over(1).await;
    followed(&found, "begun-volume").await;
    let volume = api.volumes().get("begun-volume").await.unwrap();
    assert_eq!(volume.spec.node_name, found.new);
    found.until_the_grant_is_gone().await;
}

#[tokio::test]
async fn a_persistent_volume_that_is_in_use_or_held_waits_and_says_what_to_do() {
    let api = Cluster::shared().await.api();
    let found = Move::begin(&api, "held").await;
    api.add_node("held-elsewhere", &[]).await;
    volume_on(&found, "held-volume", FILESYSTEM).await;
    let hold = "backup.example/hold";
    let before = persistent_volume(&found, "held-volume", &[hold]).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "held"},
        "spec": {
            "nodeName": "held-elsewhere",
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "held-volume"}}],
        },
    });
    let pods = Api::<Pod>::namespaced(api.client.clone(), "default");
    create(&pods, &pod).await;
    found.move_disk().await;
    found.take_over(1).await;

    let message = waits(&found, "held-volume", "PersistentVolumeConflict").await;
    assert!(message.contains(hold), "{message}");
    let released = json!({"metadata": {"finalizers": null}});
    change(&persistent_volumes(&api), &before.name_any(), released).await;
    let message = waits(&found, "held-volume", "PodsRemain").await;
    assert!(message.contains("default/held"), "{message}");
    let unchanged = persistent_volumes(&api)
        .get(&before.name_any())
        .await
        .unwrap();
    assert_eq!(
        (unchanged.uid(), unchanged.spec),
        (before.uid(), before.spec)
    );
    delete(&pods, "held").await;
    followed(&found, "held-volume").await;
}
