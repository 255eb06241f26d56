//! The page with 1,000 nodes and 10,000 volumes: what is in the document does not grow with the cluster.

use cistern_crds::{PoolVolume, StorageNode, StoragePool};
use cistern_e2e::{ControlPlane, objects};
use futures::{StreamExt as _, stream};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use thirtyfour::Key;

use super::ROWS;
use crate::browser::{Browser, Scheme, Ui};

/// Concurrent writers.
const WRITERS: usize = 16;

/// Creates volumes of one claim each, of which `count` exist then, on `nodes` nodes.
pub(super) async fn volumes(control_plane: &ControlPlane, count: usize, nodes: usize) {
    let api: Api<PoolVolume> = Api::all(control_plane.client());
    stream::iter(0..count)
        .for_each_concurrent(WRITERS, async |number| {
            let name = format!("volume-{number:05}");
            let volume = json!({
                "apiVersion": "cistern.storage/v1alpha1", "kind": "PoolVolume",
                "metadata": {"name": name},
                "spec": {"requestedName": name, "nodeName": node(number % nodes), "poolName": "fast",
                    "size": "1Gi", "accessType": "Filesystem", "filesystem": "ext4",
                    "attributes": {"provisioning": "Thin"}, "accessModes": ["SingleNodeMultiWriter"],
                    "claim": {"namespace": "shop", "name": name}},
            });
            let volume = serde_json::from_value(volume).unwrap();
            let created = api.create(&PostParams::default(), &volume).await;
            let is_known = matches!(&created, Err(kube::Error::Api(status)) if status.code == 409);
            assert!(created.is_ok() || is_known, "{created:?}");
        })
        .await;
}

fn node(number: usize) -> String {
    format!("worker-{number:04}")
}

/// Creates nodes with a pool that is half full.
async fn nodes(control_plane: &ControlPlane, count: usize) {
    let pools: Api<StoragePool> = Api::all(control_plane.client());
    let spec = json!({"nodeSelector": {}, "source": {"image": {"size": "100Gi"}}});
    objects::create(&pools, json!({"metadata": {"name": "fast"}, "spec": spec})).await;
    let api: Api<StorageNode> = Api::all(control_plane.client());
    stream::iter(0..count)
        .for_each_concurrent(WRITERS, async |number| {
            let name = node(number);
            let spec = json!({"topology": {}});
            objects::create(&api, json!({"metadata": {"name": name}, "spec": spec})).await;
            let pool = json!({"name": "fast", "uid": "u", "size": "100Gi", "usable": "90Gi",
                "reserved": "45Gi", "reservedForSnapshots": "5Gi", "volumes": 10,
                "conditions": [objects::condition("Ready", "Reconciled", "")]});
            let status = Patch::Merge(json!({"status": {"pools": [pool]}}));
            let parameters = PatchParams::default();
            api.patch_status(&name, &parameters, &status).await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn a_thousand_nodes_and_ten_thousand_volumes_stay_light() {
    const FEW: u64 = 60;
    let control_plane = ControlPlane::start().await;
    nodes(&control_plane, 1_000).await;
    volumes(&control_plane, 10_000, 1_000).await;
    let ui = Ui::start(control_plane.kubeconfig(), &[]).await;
    let browser = Browser::open(&ui.url, Scheme::Light).await;
    browser
        .shows(&["1,000 of 1,000 nodes ready", "All 1,000 nodes"])
        .await;
    let elements = async || {
        let all = browser.get("document.querySelectorAll('*').length").await;
        all.as_u64().unwrap()
    };
    let rows = async || browser.get(ROWS).await.as_u64().unwrap();
    // Problems are shown in steps.
    assert!(elements().await < 2_500, "{}", elements().await);

    browser.visit("#nodes").await;
    browser.shows(&["Pools on nodes (1,000)"]).await;
    browser.until(&format!("{ROWS} > 10")).await;
    assert!(rows().await < FEW);
    browser.visit("#volumes").await;
    browser.shows(&["Volumes (10,000)"]).await;
    assert!(rows().await < FEW && elements().await < 1_500);

    // Scrolling replaces rows; the last one is reached by one key.
    let grid = "document.querySelector('.grid')";
    browser.get(&format!("{grid}.focus()")).await;
    browser.press(&char::from(Key::End).to_string()).await;
    browser.shows(&["volume-09999"]).await;
    assert!(rows().await < FEW);
    assert_eq!(browser.get(&format!("{grid}.ariaRowCount")).await, "10001");

    // A change elsewhere keeps the place.
    let before = browser.get(&format!("{grid}.scrollTop")).await;
    volumes(&control_plane, 10_001, 1_000).await;
    browser.shows(&["Volumes (10,001)"]).await;
    assert_eq!(browser.get(&format!("{grid}.scrollTop")).await, before);

    browser.press("/").await;
    browser.press("0123").await;
    browser.shows(&["of 10,001)"]).await;
    browser.shows(&["volume-00123"]).await;
    assert!(rows().await < FEW);
}
