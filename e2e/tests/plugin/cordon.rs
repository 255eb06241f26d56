//! `kubectl cistern cordon` and `uncordon`.

use cistern_crds::{StorageNode, StoragePool};
use kube::Api;
use serde_json::json;

use crate::{Plugin, create};

#[tokio::test]
async fn a_pool_is_cordoned_on_one_of_its_nodes_and_uncordoned() {
    let control_plane = cistern_e2e::ControlPlane::shared().await;
    let plugin = Plugin::with(crate::rights::kubeconfig(control_plane).await);
    let pools: Api<StoragePool> = Api::all(control_plane.client());
    let nodes: Api<StorageNode> = Api::all(control_plane.client());
    let source = json!({"image": {"size": "1Gi"}});
    let spec = json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "source": source});
    create(
        &pools,
        json!({"metadata": {"name": "cordon"}, "spec": spec}),
    )
    .await;
    let entry = json!({"name": "cordon", "uid": "u", "source": source, "overcommitPercent": 100,
        "reservedPercent": 5});
    let spec = json!({"topology": {}, "pools": [entry]});
    create(
        &nodes,
        json!({"metadata": {"name": "cordon-1"}, "spec": spec}),
    )
    .await;
    let cordoned = async || pools.get("cordon").await.unwrap().spec.cordoned_nodes;

    let wrong = plugin.run(&["cordon", "cordon", "cordon-2"]).await;
    assert_eq!(wrong.code, 3);
    assert!(
        wrong.stderr.contains("does not carry pool cordon"),
        "{}",
        wrong.stderr
    );
    let done = plugin.text(&["cordon", "cordon", "cordon-1"]).await;
    assert_eq!(done, "pool cordon is cordoned on cordon-1\n");
    assert_eq!(cordoned().await, ["cordon-1"]);
    let again = plugin.text(&["cordon", "cordon", "cordon-1"]).await;
    assert_eq!(again, "pool cordon is already cordoned on cordon-1\n");
    let done = plugin.text(&["uncordon", "cordon", "cordon-1"]).await;
    assert_eq!(done, "pool cordon is uncordoned on cordon-1\n");
    assert!(cordoned().await.is_empty());
    let unknown = plugin.run(&["uncordon", "nothing", "cordon-1"]).await;
    assert_eq!(unknown.code, 3);
    assert!(
        unknown.stderr.contains("no StoragePool is called"),
        "{}",
        unknown.stderr
    );
}
