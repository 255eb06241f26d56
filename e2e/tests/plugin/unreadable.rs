//! Objects that the schema accepts and the plugin cannot parse.

use cistern_crds::{PoolVolume, StorageNode, StoragePool, names, testing::volume_spec};
use cistern_e2e::{ControlPlane, objects::change};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use crate::{Plugin, create};

/// More than 64 bits of bytes.
const HUGE: &str = "20Ei";
const NODE: &str = "n";

/// The objects of a kind, of which this test can write what the type does not allow.
fn raw<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

fn pool(name: &str, size: &str) -> Value {
    json!({"apiVersion": "cistern.storage/v1alpha1", "kind": "StoragePool", "metadata": {"name": name},
        "spec": {"nodeSelector": {}, "source": {"image": {"size": size}}}})
}

#[tokio::test]
async fn an_object_that_cannot_be_parsed_is_named_and_hides_no_other() {
    // Its own control plane: what is unreadable there would be named in the other tests, too.
    let control_plane = ControlPlane::start().await;
    let (plugin, client) = (Plugin::of(&control_plane), control_plane.client());
    let pools = raw::<StoragePool>(&client);
    create(&pools, pool("well", "1Gi")).await;
    create(&pools, pool("huge", HUGE)).await;
    let carried = |name: &str| {
        json!({"name": name, "uid": name, "source": {"image": {"size": "1Gi"}},
            "overcommitPercent": 100, "reservedPercent": 5})
    };
    let spec = json!({"topology": {}, "pools": [carried("well"), carried("huge")]});
    let node = json!({"metadata": {"name": NODE}, "spec": spec});
    create(&Api::<StorageNode>::all(client.clone()), node).await;

    let words = "StoragePool huge cannot be read: ";
    for list in ["pools", "volumes", "snapshots", "discover", "orphans"] {
        let answer = plugin.run(&[list]).await;
        assert_eq!(answer.code, 0, "{list}: {}", answer.stderr);
        let is_warned = answer.stderr.contains(&format!("warning: {words}"));
        // The disks are those of StorageNodes, all of which can be parsed.
        assert_eq!(is_warned, list != "discover", "{list}: {}", answer.stderr);
    }
    let listed = plugin.text(&["pools"]).await;
    assert!(
        listed.contains("well") && !listed.contains("huge"),
        "{listed}"
    );
    let wrong = plugin.json(&["status"]).await["wrong"].clone();
    let is_it = |it: &&Value| it["name"] == "huge";
    let issue = wrong.as_array().unwrap().iter().find(is_it).unwrap();
    assert_eq!(
        (&issue["kind"], &issue["reason"]),
        (&json!("StoragePool"), &json!("Unreadable"))
    );
    assert!(issue["message"].as_str().unwrap().contains(HUGE), "{issue}");
    let report = plugin.run(&["doctor"]).await.stdout;
    assert!(
        report.contains(&format!("warn  objects             {words}")),
        "{report}"
    );
    for about_it in [&["pools", "--pool", "huge"][..], &["cordon", "huge", NODE]] {
        let answer = plugin.run(about_it).await;
        assert_eq!(answer.code, 3, "{}", answer.stdout);
        assert!(
            answer.stderr.contains(&format!("error: {words}")),
            "{}",
            answer.stderr
        );
    }

    // A command that gives up data must know all of it.
    let volumes = raw::<PoolVolume>(&client);
    let volume = PoolVolume::desired("big", volume_spec("big", NODE, "well"));
    create(&volumes, json!(volume)).await;
    change(&volumes, "big", json!({"spec": {"size": HUGE}})).await;
    let labels = json!({names::COMPONENT_LABEL: names::NODE_COMPONENT});
    let containers = json!([{"name": "node", "image": "image"}]);
    let agents = json!({"metadata": {"name": "cistern-node", "labels": labels}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
    }});
    create(
        &Api::<DaemonSet>::default_namespaced(client.clone()),
        agents,
    )
    .await;
    let forget = ["forget-node", NODE, "--system-namespace", "default"];
    let answer = plugin.run(&forget).await;
    assert_eq!(answer.code, 3, "{}", answer.stdout);
    let refused = "nothing was changed: PoolVolume big cannot be read: ";
    assert!(answer.stderr.contains(refused), "{}", answer.stderr);

    change(
        &pools,
        "huge",
        json!({"spec": {"source": {"image": {"size": "2Gi"}}}}),
    )
    .await;
    let answer = plugin.run(&["pools"]).await;
    assert!(answer.stdout.contains("huge"), "{}", answer.stdout);
    assert!(!answer.stderr.contains("StoragePool"), "{}", answer.stderr);
}
