//! `kubectl cistern cordon` and `uncordon`.

use cistern_crds::{StorageNode, StoragePool};
use cistern_e2e::{ControlPlane, objects::change};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DeleteParams};
use serde_json::json;

use crate::{Plugin, create};

/// Creates a pool and the StorageNode `POOL-1`, which carries it. Returns the program and all pools.
async fn carried(pool: &str) -> (Plugin, Api<StoragePool>) {
    let control_plane = ControlPlane::shared().await;
    let pools: Api<StoragePool> = Api::all(control_plane.client());
    let nodes: Api<StorageNode> = Api::all(control_plane.client());
    let source = json!({"image": {"size": "1Gi"}});
    let spec = json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "source": source});
    create(&pools, json!({"metadata": {"name": pool}, "spec": spec})).await;
    let entry = json!({"name": pool, "uid": "u", "source": source, "overcommitPercent": 100,
        "reservedPercent": 5});
    let spec = json!({"topology": {}, "pools": [entry]});
    let name = format!("{pool}-1");
    create(&nodes, json!({"metadata": {"name": name}, "spec": spec})).await;
    let plugin = Plugin::with(crate::rights::kubeconfig(control_plane).await);
    (plugin, pools)
}

#[tokio::test]
async fn nodes_that_do_not_exist_any_more_make_room_for_the_next_one_that_is_cordoned() {
    let (plugin, pools) = carried("full").await;
    let nodes: Api<Node> = Api::all(ControlPlane::shared().await.client());
    create(&nodes, json!({"metadata": {"name": "full-2"}})).await;
    let gone = (0..255).map(|number| format!("full-gone-{number}"));
    let names: Vec<String> = gone.chain(["full-2".to_owned()]).collect();
    change(&pools, "full", json!({"spec": {"cordonedNodes": names}})).await;
    let done = plugin.text(&["cordon", "full", "full-1"]).await;
    let says = "pool full is cordoned on full-1\npool full no longer lists nodes that do not exist: full-gone-0, ";
    assert!(done.starts_with(says), "{done}");
    let cordoned = pools.get("full").await.unwrap().spec.cordoned_nodes;
    assert_eq!(cordoned, ["full-2", "full-1"]);
    let now = DeleteParams::default();
    nodes.delete("full-2", &now).await.unwrap();
}

#[tokio::test]
async fn a_pool_is_cordoned_on_one_of_its_nodes_and_uncordoned() {
    let (plugin, pools) = carried("cordon").await;
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
