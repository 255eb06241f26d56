//! `kubectl cistern replace-disk`. The test plays the agent.

use cistern_crds::{PoolVolume, StorageNode, StoragePool, pool::ReplacedDisk};
use cistern_e2e::objects::write_status;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::{Plugin, create, end};

const POOL: &str = "replace-disk";
const NODE: &str = "replace-disk-1";
const FIRST: &str = "11111111-1111-4111-8111-111111111111";

/// The status of a node with the pool on a disk.
fn on_disk(filesystem: &str, ready: &str, reason: &str) -> Value {
    let condition = |kind: &str| {
        json!({"type": kind, "status": ready, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({"pools": [{"name": POOL, "uid": "u", "filesystemUuid": filesystem, "device": "/dev/sdb",
        "deviceIdentity": "serial:S1", "size": "1Gi", "usable": "1Gi", "empty": "1Gi", "used": "0", "free": "1Gi",
        "reserved": "0", "thinRoom": "0", "thickRoom": "0", "volumes": 1, "snapshots": 0,
        "conditions": [condition("Ready"), condition("Healthy")]}]})
}

#[tokio::test]
async fn a_dead_disk_is_listed_as_replaced_after_its_volumes_were_released_by_name() {
    let control_plane = cistern_e2e::ControlPlane::shared().await;
    let plugin = Plugin::with(crate::rights::kubeconfig(control_plane).await);
    let pools: Api<StoragePool> = Api::all(control_plane.client());
    let nodes: Api<StorageNode> = Api::all(control_plane.client());
    let volumes: Api<PoolVolume> = Api::all(control_plane.client());
    let source = json!({"device": {"paths": ["/dev/disk/by-id/wwn-1"]}});
    let spec = json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "source": source});
    create(&pools, json!({"metadata": {"name": POOL}, "spec": spec})).await;
    let entry = json!({"name": POOL, "uid": "u", "source": source, "overcommitPercent": 100,
        "reservedPercent": 5});
    let spec = json!({"topology": {}, "pools": [entry]});
    create(&nodes, json!({"metadata": {"name": NODE}, "spec": spec})).await;
    let spec = cistern_crds::testing::volume_spec("data", NODE, POOL);
    create(
        &volumes,
        json!(PoolVolume::desired("replace-disk-data", spec)),
    )
    .await;
    let report = async |filesystem: &str, ready: &str, reason: &str| {
        write_status(&nodes, NODE, on_disk(filesystem, ready, reason)).await;
    };
    let replaced = async || pools.get(POOL).await.unwrap().spec.replaced_disks;
    let words = ["replace-disk", POOL, NODE];
    let refused = async |words: &[&str], why: &str| {
        let answer = plugin.run(words).await;
        assert_eq!(answer.code, 3, "{}", answer.stdout);
        assert!(answer.stderr.contains(why), "{}", answer.stderr);
        assert!(replaced().await.is_empty());
        volumes.get("replace-disk-data").await.unwrap();
    };

    refused(&["replace-disk", POOL, "w"], "does not carry pool").await;
    refused(&words, "has no disk on replace-disk-1 now").await;
    report(FIRST, "True", "Reconciled").await;
    refused(&words, "works, and has volumes or snapshots").await;
    report(FIRST, "False", "FilesystemShutDown").await;
    refused(&words, "not confirmed").await;
    let answer = end(plugin.start(&words, &format!("{NODE}\n"))).await;
    assert_eq!(answer.code, 3);
    for part in ["/dev/sdb", "serial:S1", FIRST, "replace-disk-data"] {
        assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
    }

    let confirmed = format!("{NODE}/{POOL}\n");
    let answer = end(plugin.start(&words, &confirmed)).await;
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert!(
        answer
            .stdout
            .contains("remove that disk from replace-disk-1"),
        "{}",
        answer.stdout
    );
    let gone = volumes.get_opt("replace-disk-data").await.unwrap();
    assert!(gone.is_none(), "{:?}", gone.map(|it| it.name_any()));
    let disk = |filesystem: &str| ReplacedDisk {
        node: NODE.to_owned(),
        filesystem_uuid: filesystem.to_owned(),
        device_identity: Some("serial:S1".to_owned()),
    };
    assert_eq!(replaced().await, [disk(FIRST)]);
    // It can be repeated.
    let answer = end(plugin.start(&words, &confirmed)).await;
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert_eq!(replaced().await, [disk(FIRST)]);

    // A disk that works can be replaced when the pool there is empty.
    let second = "22222222-2222-4222-8222-222222222222";
    report(second, "True", "Reconciled").await;
    let answer = end(plugin.start(&words, &confirmed)).await;
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert_eq!(replaced().await, [disk(FIRST), disk(second)]);
}
