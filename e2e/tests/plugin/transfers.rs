//! `kubectl cistern transfers`. The test plays operator and agent.

use cistern_crds::{ContentSource, ImageTransfer, PoolVolume, SourceKind, testing::volume_spec};
use cistern_e2e::{ControlPlane, objects::write_status};
use kube::{Api, api::DeleteParams};
use serde_json::json;

use crate::{Plugin, create};

const VOLUME: &str = "transfers-copy";
const MESSAGE: &str =
    "snapshot s of node transfers-1 is being copied since 2026-01-01T00:00:00Z: 25 % are done";

#[tokio::test]
async fn a_copy_is_listed_with_its_nodes_and_its_progress_while_it_is_permitted() {
    let control_plane = ControlPlane::shared().await;
    let plugin = Plugin::with(crate::rights::kubeconfig(control_plane).await);
    let volumes: Api<PoolVolume> = Api::all(control_plane.client());
    let mut spec = volume_spec("data", "transfers-2", "transfers");
    spec.content_source = Some(ContentSource {
        kind: SourceKind::Snapshot,
        name: "s".to_owned(),
        image: "i".to_owned(),
        node_name: Some("transfers-1".to_owned()),
        snapshot_name: None,
    });
    let mut volume = PoolVolume::desired(VOLUME, spec);
    volume.metadata.finalizers = None;
    create(&volumes, json!(volume)).await;
    let ready = json!({"type": "Ready", "status": "False", "reason": "Copying", "message": MESSAGE,
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"reserved": "1Gi", "conditions": [ready]});
    write_status(&volumes, VOLUME, status).await;
    let transfers: Api<ImageTransfer> = Api::all(control_plane.client());
    let spec = json!({"sourceNode": "transfers-1", "targetNode": "transfers-2", "snapshotName": "s",
        "image": "i", "volumeName": VOLUME, "purpose": "Restore"});
    create(
        &transfers,
        json!({"metadata": {"name": VOLUME}, "spec": spec}),
    )
    .await;

    for node in ["transfers-1", "transfers-2"] {
        let text = plugin.text(&["transfers", "--node", node]).await;
        let line = text.lines().find(|line| line.contains(VOLUME)).unwrap();
        for word in ["transfers-1", "transfers-2", "Copying", MESSAGE] {
            assert!(line.contains(word), "{word}: {text}");
        }
    }
    let json = plugin.json(&["transfers", "--pool", "transfers"]).await;
    assert_eq!(json["kind"], "TransferList");
    assert_eq!(json["items"][0]["snapshot"], "s");
    assert_eq!(json["items"][0]["message"], MESSAGE);

    let parameters = DeleteParams::default();
    transfers.delete(VOLUME, &parameters).await.unwrap();
    volumes.delete(VOLUME, &parameters).await.unwrap();
    let text = plugin.text(&["transfers", "--pool", "transfers"]).await;
    assert_eq!(text, "Nothing is being copied to another node.\n");
}
