//! The pictures of the page in `docs/images`, of an invented cluster:
//!
//! ```text
//! cargo test -p cistern-e2e --features api --test plugin -- --ignored pictures
//! ```

use cistern_crds::{PoolSnapshot, PoolVolume, StorageNode, StoragePool};
use cistern_e2e::{
    ControlPlane,
    objects::{self, condition},
    process::workspace,
};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::browser::{Browser, Scheme, Ui};

const DISK: &str = "no answer for 10 s: check the disk of the node; if it is lost, run \
    `kubectl cistern forget-node worker-3 --pool fast`";
const IMAGE: &str = "its image is missing: restore the claim from a snapshot or a backup";
const SINCE: &str = "2026-11-24T00:40:00Z";

/// Sets the status of an object.
async fn report<K>(api: &Api<K>, name: &str, status: Value)
where
    K: Clone + serde::de::DeserializeOwned,
{
    let (status, parameters) = (
        Patch::Merge(json!({"status": status})),
        PatchParams::default(),
    );
    api.patch_status(name, &parameters, &status).await.unwrap();
}

fn failing(kind: &str, reason: &str, message: &str) -> Value {
    let mut failing = condition(kind, reason, message);
    failing["status"] = json!("False");
    failing
}

fn pool_on_node(pool: &str, number: usize) -> Value {
    let (usable, name) = match pool {
        "fast" => (1_700, "fast"),
        _ => (480, "bulk"),
    };
    let snapshots = usable * (number * 13 % 17) / 100;
    let reserved = usable * (number * 37 % 79) / 100 + snapshots;
    let mut status = json!({
        "name": name, "uid": pool, "usable": format!("{usable}Gi"),
        "reserved": format!("{reserved}Gi"), "reservedForSnapshots": format!("{snapshots}Gi"),
        "thinRoom": format!("{}Gi", usable - reserved), "volumes": number * 7 % 19, "snapshots": number * 3 % 7,
        "conditions": [condition("Ready", "Reconciled", ""), condition("Healthy", "Reconciled", "")],
    });
    if pool == "fast" && number == 3 {
        status["problems"] = json!([{"severity": "Unreachable", "reason": "ProbeTimedOut",
            "message": DISK, "since": SINCE}]);
        status["conditions"] = json!([failing("Ready", "ProbeTimedOut", DISK)]);
    }
    if pool == "bulk" && number == 2 {
        status["orphans"] = json!([{"image": "e2a1", "size": "40Gi", "since": SINCE}]);
    }
    status
}

async fn nodes(control_plane: &ControlPlane) {
    let client = control_plane.client();
    let pools: Api<StoragePool> = Api::all(client.clone());
    let device = json!({"device": {"paths": ["/dev/nvme1n1"]}});
    let image = json!({"image": {"size": "500Gi"}});
    for (name, source) in [("fast", device), ("bulk", image)] {
        let spec = json!({"nodeSelector": {}, "source": source});
        objects::create(&pools, json!({"metadata": {"name": name}, "spec": spec})).await;
        let ready = json!({"conditions": [condition("Ready", "Reconciled", "")]});
        report(&pools, name, ready).await;
    }
    let api: Api<StorageNode> = Api::all(client);
    for number in 1..=6 {
        let name = format!("worker-{number}");
        let node = json!({"metadata": {"name": name}, "spec": {"topology": {}}});
        objects::create(&api, node).await;
        let kinds = ["Ready", "Healthy", "AgentReporting", "TopologyRegistered"];
        let conditions = kinds.map(|kind| condition(kind, "Reconciled", ""));
        let pools = [pool_on_node("fast", number), pool_on_node("bulk", number)];
        report(
            &api,
            &name,
            json!({"pools": pools, "conditions": conditions}),
        )
        .await;
    }
}

async fn volumes(control_plane: &ControlPlane) {
    const USERS: [&str; 5] = ["orders", "search", "billing", "sessions", "metrics"];
    let client = control_plane.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    objects::create(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    let api: Api<PoolVolume> = Api::all(client);
    for number in 0..25 {
        let claim = format!("data-{}-{}", USERS[number % 5], number / 5);
        let name = format!(
            "pvc-{:08x}",
            0x9e37_79b9_u32.wrapping_mul(u32::try_from(number).unwrap() + 1)
        );
        let pool = if number % 4 == 0 { "bulk" } else { "fast" };
        let volume = json!({
            "metadata": {"name": name},
            "spec": {"requestedName": name, "nodeName": format!("worker-{}", 1 + number % 6), "poolName": pool,
                "size": format!("{}Gi", 8 + number * 11 % 90), "accessType": "Filesystem",
                "filesystem": "xfs", "attributes": {"provisioning": "Thin"},
                "accessModes": ["SingleNodeMultiWriter"],
                "claim": {"namespace": "shop", "name": claim}},
        });
        objects::create(&api, volume).await;
        let mut status = objects::made(&name);
        status["size"] = json!(format!("{}Gi", 8 + number * 11 % 90));
        status["reserved"] = status["size"].clone();
        if number == 7 {
            status["problems"] = json!([{"severity": "DataLoss", "reason": "ImageMissing",
                "message": IMAGE, "since": SINCE}]);
            status["conditions"] = json!([failing("Ready", "ImageMissing", IMAGE)]);
        }
        report(&api, &name, status).await;
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
        let name = claim.trim_start_matches("data-");
        let spec = json!({"containers": [{"name": "c", "image": "x"}], "volumes": [volume]});
        objects::create(&pods, json!({"metadata": {"name": name}, "spec": spec})).await;
    }
}

async fn snapshots(control_plane: &ControlPlane) {
    let api: Api<PoolSnapshot> = Api::all(control_plane.client());
    for number in 0..6 {
        let name = format!("snapshot-{number}");
        let source = format!("pvc-{:08x}", 0x9e37_79b9_u32);
        let snapshot = json!({
            "metadata": {"name": name},
            "spec": {"requestedName": name, "nodeName": "worker-1", "poolName": "bulk",
                "sourceVolume": source, "sourceImage": source, "accessType": "Filesystem",
                "filesystem": "xfs", "provisioning": "Thin"},
        });
        objects::create(&api, snapshot).await;
        let status = json!({"reserved": "3Gi", "size": "8Gi", "creationTime": SINCE,
            "conditions": [condition("Ready", "Reconciled", "")]});
        report(&api, &name, status).await;
    }
}

fn keep(name: &str, picture: &[u8]) {
    let path = workspace().join("docs/images").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, picture).unwrap();
}

#[tokio::test]
#[ignore = "writes docs/images; run by hand after a change of the page"]
async fn pictures() {
    let control_plane = ControlPlane::start().await;
    nodes(&control_plane).await;
    volumes(&control_plane).await;
    snapshots(&control_plane).await;
    let ui = Ui::start(control_plane.kubeconfig(), &[]).await;
    let light = Browser::open(&ui.url, Scheme::Light).await;
    light.shows(&["Probe timed out", "worker-6", "Live"]).await;
    keep("ui-overview.png", &light.screenshot().await);
    light.get("[...document.querySelectorAll('.problem a')].find(it => it.innerText.includes('Volume')).click()").await;
    light.shows(&["Data loss", "Used by pods"]).await;
    keep("ui-problem.png", &light.screenshot().await);

    let dark = Browser::open(&format!("{}#nodes", ui.url), Scheme::Dark).await;
    dark.shows(&["Pools on nodes (12)", "Not ready", "Live"])
        .await;
    keep("ui-nodes-dark.png", &dark.screenshot().await);
}
